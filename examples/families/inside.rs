//! One case: an owner with what a row starts, beside it another owner and a stranger; the owner ends; who is
//! left? Runs as PID 1 of a pid namespace of its own and refuses to run elsewhere. Its neighbours are
//! [`crate::rows`] (what is started) and [`crate::outside`] (which starts this and reads what it says).

use std::collections::BTreeSet;
use std::fs::{self, File, TryLockError};
use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::look::{FIRST, Identity, everybody, is_guard, parent, reap, unreaped};
use crate::outside::Tools;
use crate::rows::{self, Act, ROW, Row};
use crate::table::{Case, End, Mode, Seen, Tier};

/// For whatever must happen; reached by a failure alone.
const DEADLINE: Duration = Duration::from_secs(30);

/// After the owner's end, with us; reached by a failure alone. Seconds in `FAMILIES_PATIENCE` make it shorter.
const LIMIT: Duration = Duration::from_secs(30);

/// After the owner's end, without us: longer than programs take that leave by themselves, and what is enough for
/// a miniature, in which nobody leaves.
const SETTLE: [Duration; 2] = [Duration::from_secs(3), Duration::from_secs(1)];

/// The OOM score of all that a case starts; guards have another.
const SCORE: &str = "300";

/// What the other owner has: a server with a launcher, and a daemon.
pub(crate) const CONTROL: [&str; 2] = [
    r#"server="$SERVICE" --lock "$DIR/lock"; :"#,
    r#"done=(setsid "$SERVICE" </dev/null >/dev/null 2>&1 &)"#,
];

/// Runs the case in this namespace.
pub(crate) fn run(case: &Case, tools: &Tools, dir: &Path) -> Result<Seen, String> {
    if std::process::id() != 1 {
        return Err("only as PID 1 of a pid namespace of its own: see `families --help`".to_owned());
    }
    let row = rows::find(case.row).ok_or("no such row")?;
    // The group that it was started in has no number here.
    rustix::process::setsid().map_err(|error| format!("setsid: {error}"))?;
    fs::write("/proc/self/oom_score_adj", SCORE).map_err(|error| error.to_string())?;
    let mut stranger = Stranger::start(&dir.join("stranger"))?;
    let control = dir.join("control");
    let mut control = Agent::start(&control, case, tools, &CONTROL, &ROW)?;
    control.wait_for("the other owner", |agent| agent.is_started() && agent.lock_is_held())?;
    let beside = beside(row, dir)?;
    let mut others = everybody();

    let folder = dir.join("case");
    let mut agent = Agent::start(&folder, case, tools, row.starts, row)?;
    let mut own = vec![stranger.process.id(), control.process.id(), agent.process.id()];
    own.extend(beside.iter().map(Child::id));
    let expected = row.expected.as_ref();
    let reaps = expected.is_none_or(|expected| expected.dead.is_none());
    let reap = |own: &[u32]| {
        if reaps {
            reap(own)
        }
    };
    let mut started = 0;
    if row.act != Act::Dies {
        // Launchers of launchers come and go: ready is who is ready after whatever was on its way.
        let until = Instant::now() + DEADLINE;
        loop {
            agent
                .wait_for(row.name, |agent| agent.is_started() && is_ready(row, agent, &others))?;
            started = settled(|| reap(&own), &others);
            if is_ready(row, &agent, &others) {
                break;
            } else if Instant::now() > until {
                return Err(format!("not in time: {}; it said: {}", row.name, agent.said()));
            }
        }
    }
    let heir = act(row.act, &mut agent, &mut others)?;
    own.extend(heir.iter().map(Child::id));
    let wanted = expected.and_then(|expected| expected.alive).map(|alive| alive[case.mode.index()]);
    let ends = expected.and_then(|expected| expected.output_ends);
    let ends = ends.map(|ends| ends[case.mode.index()]);
    let alive = wait_for("who is to live while the owner does", || {
        reap(&own);
        let alive = agent.members(&others).len();
        let as_wanted = wanted.is_none_or(|wanted| wanted == alive);
        (as_wanted && ends.is_none_or(|ends| ends == agent.output_has_ended())).then_some(alive)
    });
    let (alive, ended_output) = (alive.unwrap_or(usize::MAX), agent.output_has_ended());

    match (row.act, case.end) {
        (Act::Dies, _) => {}
        (_, End::Kill) => assert!(agent.identity.signal(Signal::KILL), "it is there"),
        (_, End::Exit) => agent.say("exit")?,
    }
    agent.wait_for("the owner's end", |agent| !agent.identity.lives())?;
    let ended = Instant::now();
    let settle = SETTLE[usize::from(expected.is_some())];
    let patience = std::env::var("FAMILIES_PATIENCE").ok().and_then(|text| text.parse().ok());
    let patience = patience.map_or(LIMIT, Duration::from_secs);
    let limit = if case.leaves() { settle } else { patience };
    let left = loop {
        reap(&own);
        agent.process.try_wait().map_err(|error| error.to_string())?;
        let left: BTreeSet<_> = everybody().difference(&others).copied().collect();
        if left.is_empty() || ended.elapsed() > limit {
            break left;
        }
        std::thread::sleep(Duration::from_millis(5));
    };
    let took = ended.elapsed();
    hit(&stranger, &others);
    Ok(Seen {
        started,
        alive,
        output_ended: ended_output,
        left: left.len(),
        names: names(&left),
        // A guard outlives whoever started it on purpose, and is PID 1's in the end.
        dead: unreaped().difference(&others).filter(|who| !is_guard(**who)).count(),
        millis: took.as_millis().try_into().unwrap_or(u64::MAX),
        freed: agent.is_free(),
        control: control.identity.lives() && others.iter().all(|who| who.lives()),
        stranger: stranger.is_untouched(),
    })
}

/// For a test of what notices it: hits whom nobody may hit, if `FAMILIES_HIT` says whom.
fn hit(stranger: &Stranger, others: &BTreeSet<Identity>) {
    let victim = match std::env::var("FAMILIES_HIT").as_deref() {
        Ok("stranger") => Some(stranger.identity),
        Ok("control") => others.iter().copied().find(|who| who.name() == "helper-service"),
        _ => None,
    };
    if let Some(victim) = victim {
        victim.signal(Signal::KILL);
        wait_for("the hit", || (!victim.lives()).then_some(())).expect("it is killed");
    }
}

/// Does what is to happen while the owner lives, and gives whom it has started; others have not to be touched.
fn act(
    act: Act,
    agent: &mut Agent,
    others: &mut BTreeSet<Identity>,
) -> Result<Option<Child>, String> {
    match act {
        Act::Nothing | Act::Dies => {}
        Act::KillLauncher => {
            let launcher = agent.launcher()?;
            let launcher = Identity::of(launcher).ok_or("the launcher has ended")?;
            launcher.signal(Signal::KILL);
            wait_for("the launcher's end", || (!launcher.lives()).then_some(()))?;
        }
        // Its number is of a namespace in which nobody but its own scope can take it.
        Act::Recycle if agent.inside => {}
        Act::Recycle => {
            let launcher = agent.launcher()?;
            let heir = take_number(launcher)?;
            others.extend(Identity::of(heir.id().cast_signed()));
            return Ok(Some(heir));
        }
        Act::KillSupervisor => {
            let guards = || {
                let all = everybody();
                let guards = all.difference(others).copied().filter(|who| is_guard(*who));
                guards.filter(|who| who.name() != FIRST).collect::<Vec<_>>()
            };
            let all = guards();
            let below = |who: &&Identity| all.iter().any(|above| parent(**who) == Some(above.pid));
            if let Some(supervisor) = all.iter().find(below) {
                supervisor.signal(Signal::KILL);
                let is_back = || {
                    let now = guards();
                    (now.len() == all.len() && !now.contains(supervisor)).then_some(())
                };
                wait_for("another supervisor", is_back)?;
            }
        }
        Act::Again => {
            agent.say("again")?;
            wait_for("the owner again", || agent.dir.join("again").exists().then_some(()))?;
        }
    }
    Ok(None)
}

/// A stranger with this number, once it is free. Only in a namespace where few others start anything.
fn take_number(number: i32) -> Result<Child, String> {
    wait_for("the launcher's number again", || {
        if Identity::of(number).is_some() {
            return None;
        }
        let last = "/proc/sys/kernel/ns_last_pid";
        if let Err(error) = fs::write(last, (number - 1).to_string()) {
            return Some(Err(format!("{last}: {error}")));
        }
        let mut command = Command::new("sleep");
        let mut heir = command.arg("600").process_group(0).spawn().expect("sleep");
        if heir.id().cast_signed() == number {
            return Some(Ok(heir));
        }
        heir.kill().and_then(|()| heir.wait()).expect("our own child");
        None
    })?
}

/// Whoever stands beside a row by its own script.
fn beside(row: &Row, dir: &Path) -> Result<Option<Child>, String> {
    let dir = dir.join("beside");
    fs::create_dir(&dir).map_err(|error| error.to_string())?;
    if row.beside.is_empty() {
        return Ok(None);
    }
    let before = everybody();
    let mut command = Command::new("/bin/sh");
    command.arg("-c").arg(row.beside).current_dir(&dir).stdin(Stdio::null());
    let mut child = command.spawn().map_err(|error| error.to_string())?;
    if !row.beside.starts_with("exec") {
        child.wait().map_err(|error| error.to_string())?;
    }
    // Its socket where it has one; that it has got where it stays, where it has none.
    let has_socket = row.beside.contains("socket");
    wait_for("who stands beside", || {
        let socket = fs::read_dir(&dir).ok()?.next().is_some();
        let executed = everybody().difference(&before).any(|who| who.name() == "sleep");
        (if has_socket { socket } else { executed }).then_some(())
    })?;
    Ok(Some(child))
}

/// How many there are when nobody comes or goes for a moment.
fn settled(reap: impl Fn(), others: &BTreeSet<Identity>) -> usize {
    let until = Instant::now() + Duration::from_secs(10);
    let mut last = (BTreeSet::new(), Instant::now());
    loop {
        reap();
        let now: BTreeSet<_> = everybody().difference(others).copied().collect();
        if now != last.0 {
            last = (now, Instant::now());
        } else if last.1.elapsed() > Duration::from_millis(300) || Instant::now() > until {
            return last.0.len();
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Names with how often they occur: `node ×2, sh`.
fn names(who: &BTreeSet<Identity>) -> String {
    let mut counted: Vec<(String, usize)> = Vec::new();
    for name in who.iter().map(|who| who.name()) {
        match counted.iter_mut().find(|(known, _)| *known == name) {
            Some((_, count)) => *count += 1,
            None => counted.push((name, 1)),
        }
    }
    let shown = counted.iter().map(|(name, count)| match count {
        1 => name.clone(),
        count => format!("{name} ×{count}"),
    });
    shown.collect::<Vec<_>>().join(", ")
}

fn is_ready(row: &Row, agent: &Agent, others: &BTreeSet<Identity>) -> bool {
    let ready = &row.ready;
    // The agent itself is no member; guards and the like only add.
    everybody().difference(others).count() > ready.members
        && (!ready.port || TcpStream::connect(("127.0.0.1", agent.port)).is_ok())
        && (!ready.lock || agent.lock_is_held())
        && (ready.says.is_empty() || agent.said().contains(ready.says))
}

/// An owner, as the mode of the case has it.
pub(crate) struct Agent {
    process: Child,
    /// Of the agent itself, also where something stands above it.
    identity: Identity,
    dir: PathBuf,
    port: u16,
    inside: bool,
}

impl Agent {
    pub(crate) fn start(
        dir: &Path,
        case: &Case,
        tools: &Tools,
        starts: &[&str],
        row: &Row,
    ) -> Result<Self, String> {
        fs::create_dir(dir).map_err(|error| error.to_string())?;
        open_to_all(dir);
        let port = free_port();
        let mut command = match case.mode {
            Mode::Own => {
                let mut command = Command::new(&tools.delegate);
                command.args(["own", "--grace", &format!("{}ms", row.grace)]);
                command.args(case.tier.words()).arg("--").arg(&tools.agent);
                command
            }
            Mode::Before | Mode::Spawn => Command::new(&tools.agent),
        };
        command.arg(dir).args((case.mode == Mode::Spawn).then_some("--owned")).args(starts);
        command.env("DIR", dir).env("HOME", dir).env("PORT", port.to_string());
        command.env("PROGRAMS", &tools.programs).env("SERVICE", &tools.service);
        command.env("AS", tools.become_other).env("AGENT_INPUT", row.input);
        command.env("AGENT_GRACE_MS", row.grace.to_string());
        command.env("AGENT_CONTAINMENT", case.tier.containment().word());
        command.env("BESIDE", dir.with_file_name("beside"));
        command.env("npm_config_update_notifier", "false").env("NO_COLOR", "1");
        // State of the command goes where the case goes.
        command.env("XDG_STATE_HOME", dir.join("state")).env("XDG_RUNTIME_DIR", dir);
        command.stdin(Stdio::piped()).current_dir(dir);
        let log = || File::create(dir.join("stdio")).map_err(|error| error.to_string());
        command.stdout(log()?).stderr(log()?);
        let mut process = command.spawn().map_err(|error| error.to_string())?;
        let identity = wait_for("the agent", || {
            if let Ok(pid) = fs::read_to_string(dir.join("agent")) {
                let pid = pid.trim().parse().ok()?;
                let found = match case.mode {
                    // One that dies at once may be gone, with all that held it, before it is looked for.
                    Mode::Own if case.tier == Tier::PidNamespace => {
                        let ended = process.try_wait().ok()?.is_some();
                        let found = Identity::from_inside(pid, dir);
                        if found.is_none() && !ended {
                            return None;
                        }
                        found
                    }
                    Mode::Before | Mode::Own | Mode::Spawn => Identity::of(pid),
                };
                return Some(Ok(found.unwrap_or(Identity::gone(pid))));
            }
            let status = process.try_wait().ok()??;
            let said = fs::read_to_string(dir.join("stdio")).unwrap_or_default();
            Some(Err(format!("the agent has ended: {status}: {said}")))
        })??;
        // Those that it starts have numbers of their own in both modes.
        let inside = case.tier == Tier::PidNamespace && case.mode != Mode::Before;
        Ok(Self { process, identity, dir: dir.to_owned(), port, inside })
    }

    pub(crate) fn is_started(&self) -> bool {
        self.dir.join("started").exists()
    }

    pub(crate) fn said(&self) -> String {
        let read = |name: &str| fs::read(self.dir.join(name)).unwrap_or_default();
        let said = ["out", "log", "stdio"].map(read).concat();
        String::from_utf8_lossy(&said).into_owned()
    }

    pub(crate) fn lock_is_held(&self) -> bool {
        is_held(&self.dir.join("lock"))
    }

    /// Nobody holds its lock, and nobody listens on its port.
    fn is_free(&self) -> bool {
        !self.lock_is_held() && TcpListener::bind(("127.0.0.1", self.port)).is_ok()
    }

    /// Who of it lives: not the agent, nor who stands above it or guards it.
    pub(crate) fn members(&self, others: &BTreeSet<Identity>) -> BTreeSet<Identity> {
        let front = Identity::of(self.process.id().cast_signed());
        let all = everybody();
        let mine = all.difference(others).copied().filter(|who| !is_guard(*who));
        mine.filter(|who| *who != self.identity && Some(*who) != front).collect()
    }

    /// The number that a launcher has written down.
    fn launcher(&self) -> Result<i32, String> {
        let text = fs::read_to_string(self.dir.join("launcher"));
        let text = text.map_err(|error| format!("the launcher's number: {error}"))?;
        let number = text.trim().parse();
        let number = number.map_err(|_| format!("the launcher's number: {text:?}"))?;
        let found = self.inside.then(|| Identity::from_inside(number, &self.dir)).flatten();
        Ok(found.map_or(number, |found| found.pid))
    }

    /// Of the process that was started here: the agent, or who stands above it.
    pub(crate) fn number(&self) -> u32 {
        self.process.id()
    }

    pub(crate) fn kill(&self) {
        self.identity.signal(Signal::KILL);
    }

    /// Whether the process that was started here has ended; reaps it.
    pub(crate) fn has_ended(&mut self) -> bool {
        self.process.try_wait().is_ok_and(|status| status.is_some())
    }

    /// Waits until it has.
    pub(crate) fn wait(&mut self) -> Result<(), String> {
        self.process.wait().map(drop).map_err(|error| error.to_string())
    }

    fn output_has_ended(&self) -> bool {
        self.dir.join("ended").exists()
    }

    fn say(&mut self, word: &str) -> Result<(), String> {
        let stdin = self.process.stdin.as_mut().expect("a pipe");
        writeln!(stdin, "{word}").map_err(|error| error.to_string())
    }

    pub(crate) fn wait_for(
        &mut self,
        what: &str,
        fact: impl Fn(&Self) -> bool,
    ) -> Result<(), String> {
        let found = wait_for(what, || fact(self).then_some(()));
        found.map_err(|error| {
            let said = self.said();
            let tail = said.char_indices().rev().nth(1500).map_or(0, |(at, _)| at);
            format!("{error}; it said: {}", &said[tail..])
        })
    }
}

/// Whether somebody holds this lock (flock).
fn is_held(path: &Path) -> bool {
    let Ok(file) = File::open(path) else { return false };
    matches!(file.try_lock(), Err(TryLockError::WouldBlock))
}

/// Others work there too (a database server refuses to be root).
fn open_to_all(dir: &Path) {
    use std::os::unix::fs::PermissionsExt;
    fs::set_permissions(dir, fs::Permissions::from_mode(0o777)).expect("own directory");
}

/// Nobody listens there now; between this and its use somebody else may, which fails the case.
fn free_port() -> u16 {
    let socket = TcpListener::bind(("127.0.0.1", 0)).expect("loopback");
    socket.local_addr().expect("address").port()
}

pub(crate) fn wait_for<T>(what: &str, mut fact: impl FnMut() -> Option<T>) -> Result<T, String> {
    let until = Instant::now() + DEADLINE;
    loop {
        if let Some(value) = fact() {
            return Ok(value);
        }
        if Instant::now() > until {
            return Err(format!("not in time: {what}"));
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Belongs to nobody here and must not be touched: it keeps its number, its start time and its lock.
pub(crate) struct Stranger {
    process: Child,
    identity: Identity,
    lock: PathBuf,
}

impl Stranger {
    pub(crate) fn start(lock: &Path) -> Result<Self, String> {
        let mut command = Command::new("flock");
        command.arg("--no-fork").arg(lock).args(["sleep", "600"]);
        let process = command.spawn().map_err(|error| format!("flock: {error}"))?;
        let identity = Identity::of(process.id().cast_signed()).ok_or("no stranger")?;
        wait_for("the stranger's lock", || is_held(lock).then_some(()))?;
        Ok(Self { process, identity, lock: lock.to_owned() })
    }

    pub(crate) fn number(&self) -> u32 {
        self.process.id()
    }

    pub(crate) fn is_untouched(&mut self) -> bool {
        let alive = self.process.try_wait().is_ok_and(|status| status.is_none());
        alive && self.identity.lives() && is_held(&self.lock)
    }
}

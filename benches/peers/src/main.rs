//! Other ways to hold child processes beside ours, on the same kinds of trees, in one run. Prints the table of
//! `docs/compared.md`. Uses `look` of the families; `owner` holds a tree with each library.
//!
//! `cargo run --manifest-path benches/peers/Cargo.toml`, after `cargo build --bins` and `.ci/programs`.
//! Each case has a pid namespace of its own (root, or user namespaces).

#[path = "../../../examples/families/look.rs"]
#[allow(dead_code, reason = "its other user needs more")]
mod look;
mod owner;

use std::collections::BTreeSet;
use std::fs;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use look::{Identity, everybody, reap};
use ownership::Machine;
use rustix::process::Signal;

/// A kind of tree: name, script of the launcher, members.
const KINDS: [(&str, &str, usize); 8] = [
    ("one child", "exec sleep 600", 1),
    ("launcher, program, helper", "sh -c 'sleep 600 & wait'; :", 3),
    ("own session", "setsid sleep 600 & wait", 2),
    ("daemon (double fork)", "(setsid sleep 600 &); exec sleep 600", 2),
    ("daemon, its launcher has ended", "(setsid sleep 600 &)", 1),
    ("ignores TERM", "trap '' TERM; sleep 600 & wait", 2),
    ("stopped", "sleep 600 & kill -STOP $!; wait", 2),
    (
        "own session, no environment, ignores TERM",
        "trap '' TERM; setsid env -i sleep 600 & wait",
        2,
    ),
];

/// What happens.
const EVENTS: [&str; 3] = ["owner killed", "ended regularly", "holder killed"];

/// A way to hold a tree.
struct Tool {
    name: &'static str,
    /// What stands above the owner; empty for a library, which stands in it.
    wrapper: &'static [&'static str],
    /// The library that the owner uses.
    library: &'static str,
}

const fn library(name: &'static str, library: &'static str) -> Tool {
    Tool { name, wrapper: &[], library }
}

const fn wrapper(name: &'static str, wrapper: &'static [&'static str]) -> Tool {
    Tool { name, wrapper, library: "std" }
}

const TOOLS: [Tool; 11] = [
    library("`std::process::Child::kill`", "std"),
    library("tokio `kill_on_drop`", "tokio"),
    library("process-wrap 10.0.1, group", "group"),
    library("process-wrap 10.0.1, session", "session"),
    library("processkit 3.3.4", "processkit"),
    wrapper("`tini -s -g`", &["tini", "-s", "-g", "--"]),
    wrapper("`dumb-init`", &["dumb-init", "--"]),
    wrapper(
        "`unshare --pid --fork --kill-child`",
        &["unshare", "--pid", "--fork", "--kill-child", "--"],
    ),
    wrapper("`systemd-run --user --scope`", &["systemd-run", "--user", "--scope", "--quiet", "--"]),
    wrapper("**`delegate own`**", &["delegate", "own", "--"]),
    library("**ownership, spawn mode**", "ownership"),
];

/// Cases at the same time.
const ABREAST: usize = 6;

/// Whoever wants to leave by itself has left.
const SETTLE: Duration = Duration::from_millis(1500);

/// Where somebody is at work who gives time after TERM: longer than any of them gives.
const PATIENCE: Duration = Duration::from_secs(8);

const DEADLINE: Duration = Duration::from_secs(30);

fn main() -> ExitCode {
    if let Some(code) = ownership::owner::run_if_asked() {
        return code;
    }
    let args: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = args.iter().map(String::as_str).collect();
    let done = match words.as_slice() {
        ["@owner", library, dir, script] => return owner::run(library, Path::new(dir), script),
        ["@inside", tool, kind, event, dir, login] => {
            let at = |text: &str| text.parse::<usize>().map_err(|error| error.to_string());
            at(tool).and_then(|tool| {
                inside(&TOOLS[tool], KINDS[at(kind)?], at(event)?, Path::new(dir), login)
            })
        }
        [] => show(),
        _ => Err("no words are understood: it prints a table".to_owned()),
    };
    match done {
        Ok(said) => {
            println!("{said}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("peers: {error}");
            ExitCode::from(2)
        }
    }
}

fn found(program: &str) -> Option<PathBuf> {
    if program == "delegate" {
        let own = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/debug/delegate");
        return own.exists().then_some(own);
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).map(|dir| dir.join(program)).find(|path| path.exists())
}

/// Why a tool is not measured here.
fn lacks(tool: &Tool) -> Option<String> {
    let [first, ..] = tool.wrapper else { return None };
    if found(first).is_none() {
        return Some("not installed".to_owned());
    }
    if !by_systemd(tool) {
        return None;
    }
    let lacking = ["/lib/systemd/systemd", "/usr/bin/systemd-run"].map(Path::new);
    if !lacking.iter().all(|path| path.exists()) {
        return Some("no systemd is installed".to_owned());
    }
    let asked = Machine::look().cgroup;
    let usable = rustix::process::geteuid().is_root() && asked.made == Some(Ok(()));
    (!usable).then(|| "needs root and a writable cgroup v2 to start a user's systemd in".to_owned())
}

fn by_systemd(tool: &Tool) -> bool {
    tool.wrapper.contains(&"systemd-run")
}

/// The cgroup of a case's own systemd, removed with what that made in it.
struct Login(PathBuf);

impl Login {
    fn new() -> Result<Self, String> {
        static NUMBER: AtomicUsize = AtomicUsize::new(0);
        let base = Machine::look().cgroup.dir.ok_or("no cgroup v2")?;
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let dir = base.join(format!("peers-{}-{number}", std::process::id()));
        fs::create_dir(&dir).map_err(|error| format!("{}: {error}", dir.display()))?;
        Ok(Self(dir))
    }
}

impl Drop for Login {
    fn drop(&mut self) {
        fn remove(dir: &Path) {
            let inside = fs::read_dir(dir).into_iter().flatten().flatten();
            inside.filter(|it| it.path().is_dir()).for_each(|it| remove(&it.path()));
            drop(fs::remove_dir(dir));
        }
        // Who was in there died with the pid namespace, or is about to.
        let until = Instant::now() + DEADLINE;
        while self.0.exists() && Instant::now() < until {
            remove(&self.0);
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

/// What a user of no rights asks its systemd with.
const AS_USER: [&str; 6] = [
    "setpriv",
    "--reuid=65534",
    "--regid=65534",
    "--clear-groups",
    "env",
    "XDG_RUNTIME_DIR=/run/user/65534",
];

/// Starts that systemd in a cgroup, for a case that asks it; comes back when it can be asked.
fn start_systemd(login: &str, dir: &Path) -> Result<Child, String> {
    let mut shell = Command::new("sh");
    shell.args(["-c", include_str!("systemd.sh"), "systemd.sh", login]);
    shell.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    // Its user writes there.
    fs::set_permissions(dir, fs::Permissions::from_mode(0o777)).map_err(|it| it.to_string())?;
    let systemd = shell.spawn().map_err(|error| error.to_string())?;
    wait_for("a user's systemd", &[systemd.id()], || {
        let mut asked = Command::new(AS_USER[0]);
        asked.args(&AS_USER[1..]).args(["systemctl", "--user", "is-system-running"]);
        asked.stdout(Stdio::null()).stderr(Stdio::null());
        asked.status().is_ok_and(|status| status.success()).then_some(())
    })?;
    Ok(systemd)
}

fn show() -> Result<String, String> {
    let mut cases = Vec::new();
    for (tool, row) in TOOLS.iter().enumerate().filter(|(_, tool)| lacks(tool).is_none()) {
        for kind in 0..KINDS.len() {
            let events = if row.wrapper.is_empty() && row.library != "ownership" { 2 } else { 3 };
            cases.extend((0..events).map(|event| (tool, kind, event)));
        }
    }
    let next = Mutex::new(cases.into_iter());
    let results = Mutex::new(Vec::new());
    std::thread::scope(|threads| {
        for _ in 0..ABREAST {
            threads.spawn(|| {
                loop {
                    let Some(case) = next.lock().expect("no panic").next() else { return };
                    let left = alone(case);
                    eprintln!(
                        "{}, {}, {}: {left:?}",
                        TOOLS[case.0].name, KINDS[case.1].0, EVENTS[case.2]
                    );
                    results.lock().expect("no panic").push((case, left));
                }
            });
        }
    });
    let results = results.into_inner().expect("no panic");
    let mut text =
        String::from("| left of the tree: owner killed / ended regularly / holder killed |");
    KINDS.iter().for_each(|(kind, ..)| text += &format!(" {kind} |"));
    text += &format!("\n|---{}|", "|---".repeat(KINDS.len()));
    for (tool, row) in TOOLS.iter().enumerate() {
        text += &format!("\n| {} |", row.name);
        if let Some(why) = lacks(row) {
            text += &format!(" {why} |{}", " |".repeat(KINDS.len() - 1));
            continue;
        }
        for kind in 0..KINDS.len() {
            let cells = [0, 1, 2].map(|event| {
                let result = results.iter().find(|(case, _)| *case == (tool, kind, event));
                match result.map(|(_, left)| left) {
                    Some(Ok(left)) => left.to_string(),
                    Some(Err(_)) => "failed".to_owned(),
                    None => "–".to_owned(),
                }
            });
            text += &format!(" {} |", cells.join(" / "));
        }
    }
    for (case, left) in &results {
        if let Err(why) = left {
            text += &format!(
                "\n\nFAILED {} {} {}: {why}",
                TOOLS[case.0].name, KINDS[case.1].0, EVENTS[case.2]
            );
        }
    }
    Ok(text)
}

/// Runs a case in a namespace of its own.
fn alone((tool, kind, event): (usize, usize, usize)) -> Result<usize, String> {
    let dir = tempfile::tempdir().map_err(|error| error.to_string())?;
    let mut command = Command::new("timeout");
    command.args(["-s", "KILL", "90", "setsid", "-w", "unshare"]);
    if !rustix::process::geteuid().is_root() {
        command.args(["--user", "--map-current-user"]);
    }
    command.args(["--pid", "--fork", "--mount-proc", "--kill-child"]);
    command.arg(std::env::current_exe().map_err(|error| error.to_string())?);
    command.args(["@inside", &tool.to_string(), &kind.to_string(), &event.to_string()]);
    let login = by_systemd(&TOOLS[tool]).then(Login::new).transpose()?;
    command.arg(dir.path()).arg(login.as_ref().map_or(Path::new(""), |login| &login.0));
    let output = command.stdin(Stdio::null()).output();
    let output = output.map_err(|error| error.to_string())?;
    let said = String::from_utf8_lossy(&output.stdout);
    said.trim().parse().map_err(|_| String::from_utf8_lossy(&output.stderr).trim().to_owned())
}

/// How many processes of a tree are left, in this namespace.
fn inside(
    tool: &Tool,
    kind: (&str, &str, usize),
    event: usize,
    dir: &Path,
    login: &str,
) -> Result<String, String> {
    if std::process::id() != 1 {
        return Err("only as PID 1 of a pid namespace of its own".to_owned());
    }
    rustix::process::setsid().map_err(|error| format!("setsid: {error}"))?;
    let systemd = by_systemd(tool).then(|| start_systemd(login, dir)).transpose()?;
    let stranger = Command::new("sleep").arg("600").spawn().map_err(|error| error.to_string())?;
    let others = everybody();
    let own = std::env::current_exe().map_err(|error| error.to_string())?;
    let mut command = match tool.wrapper {
        [] => Command::new(own),
        [first, rest @ ..] => {
            let program = found(first).ok_or("not installed")?;
            let mut command =
                Command::new(if systemd.is_some() { AS_USER[0].into() } else { program });
            if systemd.is_some() {
                command.args(&AS_USER[1..]).arg(first);
            }
            command.args(rest).arg(own);
            command
        }
    };
    command.args(["@owner", tool.library]).arg(dir).arg(kind.1).stdin(Stdio::piped());
    let mut process = command.spawn().map_err(|error| error.to_string())?;
    let mut mine = vec![stranger.id(), process.id()];
    mine.extend(systemd.as_ref().map(Child::id));
    wait_for("the tree", &mine, || {
        (dir.join("started").exists() && everybody().difference(&others).count() > kind.2)
            .then_some(())
    })?;
    // The launcher that is to end has ended.
    std::thread::sleep(Duration::from_millis(100));
    let owner = fs::read_to_string(dir.join("owner")).map_err(|error| error.to_string())?;
    let owner = inner(&process, owner.trim(), tool)?;
    match EVENTS[event] {
        "owner killed" => assert!(owner.signal(Signal::KILL)),
        "ended regularly" => {
            let stdin = process.stdin.as_mut().expect("a pipe");
            writeln!(stdin, "end").map_err(|error| error.to_string())?;
        }
        _ if tool.library == "ownership" => {
            // One of its guards, and then the owner, before another guard can be there.
            let guard =
                everybody().into_iter().find(|who| look::is_guard(*who)).ok_or("no guard")?;
            guard.signal(Signal::KILL);
            owner.signal(Signal::KILL);
        }
        _ => kill(&process, Signal::KILL)?,
    }
    let since = Instant::now();
    let nobody = event == 0 && tool.wrapper.is_empty() && tool.library != "ownership";
    let limit = if nobody { SETTLE } else { PATIENCE };
    loop {
        reap(&mine);
        drop(process.try_wait());
        let left: BTreeSet<_> = everybody().difference(&others).copied().collect();
        if left.is_empty() || since.elapsed() > limit {
            let whole = others.iter().all(|who| who.lives());
            return if whole {
                Ok(left.len().to_string())
            } else {
                Err("others were touched".to_owned())
            };
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// The owner as this namespace numbers it: in one inside it has another number.
fn inner(process: &Child, number: &str, tool: &Tool) -> Result<Identity, String> {
    let number = if tool.wrapper.first() == Some(&"unshare") {
        let parent = process.id().cast_signed();
        let child = everybody().into_iter().find(|who| look::parent(*who) == Some(parent));
        child.ok_or("no owner")?.pid
    } else {
        number.parse().map_err(|_| "no number")?
    };
    Identity::of(number).ok_or_else(|| "the owner has ended".to_owned())
}

fn kill(process: &Child, signal: Signal) -> Result<(), String> {
    let pid = rustix::process::Pid::from_child(process);
    rustix::process::kill_process(pid, signal).map_err(|error| error.to_string())
}

fn wait_for<T>(what: &str, mine: &[u32], mut fact: impl FnMut() -> Option<T>) -> Result<T, String> {
    let until = Instant::now() + DEADLINE;
    loop {
        reap(mine);
        if let Some(value) = fact() {
            return Ok(value);
        }
        if Instant::now() > until {
            return Err(format!("not in time: {what}"));
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

//! An owner in a process of its own (`helper-owner`), strangers, and the trees that they run.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use serde_json::{Value, json};

use crate::step::Step;
use crate::support::{Identity, LIMIT, Scratch, helper, wait_for};

/// launcher shell → program → helper, a session of its own, a double-forked daemon, one that ignores
/// TERM and one that is stopped. Each line is `tree NAME PID`.
pub(crate) const TREE: &str = r#"
sh -c '
    echo "tree program $$"
    sh -c "echo tree helper \$\$; exec sleep 600" &
    setsid sh -c "echo tree session \$\$; exec sleep 600" &
    (setsid sh -c "echo tree daemon \$\$; exec sleep 600" &)
    sh -c "trap \"\" TERM; echo tree stubborn \$\$; exec sleep 600" &
    sh -c "echo tree stopped \$\$; kill -STOP \$\$; exec sleep 600" &
    wait
' &
echo "tree launcher $$"
wait
"#;

/// Lines of a whole [`TREE`].
pub(crate) const TREE_SIZE: usize = 7;

/// A task for an owner program.
pub(crate) fn task(agent: &str, goal: &str, params: Value) -> Value {
    json!({"agent": agent, "goal": goal, "params": params})
}

/// A task of the `step` agent.
pub(crate) fn step(step: &Step) -> Value {
    task("step", "step", serde_json::to_value(step).unwrap())
}

/// A task that runs [`TREE`].
pub(crate) fn tree() -> Value {
    task("command", "tree", json!({"argv": ["sh", "-c", TREE]}))
}

/// An owner program, ended with its handle.
pub(crate) struct OwnerProgram {
    process: Child,
    lines: Receiver<Value>,
    seen: Vec<Value>,
    pub(crate) state: Scratch,
}

impl OwnerProgram {
    /// Starts one with these tasks and settings (an object), in a group of its own.
    pub(crate) fn start(tasks: &[Value], settings: &Value) -> Self {
        Self::start_with(tasks, settings, &[])
    }

    /// The same with variables in its environment.
    pub(crate) fn start_with(
        tasks: &[Value],
        settings: &Value,
        variables: &[(&str, &str)],
    ) -> Self {
        let state = Scratch::new();
        let mut job = settings.clone();
        job["state"] = json!(state.path());
        job["tasks"] = json!(tasks);
        let mut process = Command::new(helper("owner"))
            .arg(job.to_string())
            .envs(variables.iter().copied())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .process_group(0)
            .spawn()
            .unwrap();
        let stdout = BufReader::new(process.stdout.take().unwrap());
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            for line in stdout.lines().map_while(Result::ok) {
                // Who is killed may leave half of one.
                let Ok(line) = serde_json::from_str(&line) else { break };
                if sender.send(line).is_err() {
                    break;
                }
            }
        });
        Self { process, lines, seen: Vec::new(), state }
    }

    /// One that runs `count` trees, all up.
    pub(crate) fn with_trees(count: usize) -> (Self, Vec<Identity>) {
        let tasks = vec![tree(); count];
        let mut owner = Self::start(&tasks, &json!({"grace_seconds": 1}));
        let members = owner.tree(count);
        (owner, members)
    }

    pub(crate) fn pid(&self) -> u32 {
        self.process.id()
    }

    fn raw(&self) -> Pid {
        Pid::from_child(&self.process)
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(self.raw(), signal).unwrap();
    }

    pub(crate) fn signal_group(&self, signal: Signal) {
        kill_process_group(self.raw(), signal).unwrap();
    }

    pub(crate) fn tell(&mut self, word: &str) {
        let stdin = self.process.stdin.as_mut().unwrap();
        writeln!(stdin, "{word}").unwrap();
    }

    /// The same to one that may have ended.
    pub(crate) fn tell_if_alive(&mut self, word: &str) {
        let stdin = self.process.stdin.as_mut().unwrap();
        writeln!(stdin, "{word}").ok();
    }

    /// The next line, or `None` at the end.
    fn next(&mut self, until: Instant) -> Option<Value> {
        let left = until.saturating_duration_since(Instant::now());
        match self.lines.recv_timeout(left) {
            Ok(line) => {
                self.seen.push(line.clone());
                Some(line)
            }
            Err(RecvTimeoutError::Disconnected) => None,
            Err(RecvTimeoutError::Timeout) => panic!("no line in {LIMIT:?} after {:?}", self.seen),
        }
    }

    /// Reads on until a line fits; lines that were read before do not count.
    pub(crate) fn expect<T>(&mut self, what: &str, mut fits: impl FnMut(&Value) -> Option<T>) -> T {
        let until = Instant::now() + LIMIT;
        while let Some(line) = self.next(until) {
            if let Some(found) = fits(&line) {
                return found;
            }
        }
        panic!("the owner ended before {what}; it said {:?}", self.seen);
    }

    /// Whether a line comes at once: reads what is there, without waiting.
    pub(crate) fn pending(&mut self) -> Vec<Value> {
        let fresh: Vec<Value> = self.lines.try_iter().collect();
        self.seen.extend(fresh.iter().cloned());
        fresh
    }

    pub(crate) fn run_id(&mut self) -> String {
        self.expect("the run id", |line| Some(line["run"].as_str()?.to_owned()))
    }

    /// Waits for the start of any child; gives its index and process.
    pub(crate) fn started(&mut self) -> (u32, Identity) {
        self.expect("a start", |line| {
            let pid = line["pid"].as_u64().filter(|_| line["event"] == "subagent.start")?;
            Some((index(line), Identity::of(u32::try_from(pid).unwrap())?))
        })
    }

    /// Waits for a text that contains `part`.
    pub(crate) fn text(&mut self, part: &str) {
        self.expect(part, |line| line["text"].as_str()?.contains(part).then_some(()));
    }

    /// Waits for the outcome of one child; gives the short form.
    pub(crate) fn completed(&mut self, task: u32) -> Value {
        self.expect("a complete", |line| {
            (line["event"] == "subagent.complete" && index(line) == task)
                .then(|| line["end"].clone())
        })
    }

    pub(crate) fn report(&mut self) -> Value {
        self.expect("the report", |line| line.get("report").cloned())
    }

    /// Waits until `count` trees are up; gives their members, workers and supervisor.
    pub(crate) fn tree(&mut self, count: usize) -> Vec<Identity> {
        let mut members = Vec::new();
        self.expect("the trees", |line| {
            if let Some(pid) = line["pid"].as_u64() {
                members.extend(Identity::of(u32::try_from(pid).unwrap()));
            }
            for line in line["text"].as_str().unwrap_or_default().lines() {
                let pid = line.strip_prefix("tree ").and_then(|rest| rest.split(' ').nth(1));
                members.extend(pid.and_then(|pid| Identity::of(pid.parse().ok()?)));
            }
            (members.len() == count * (TREE_SIZE + 1)).then_some(())
        });
        members.push(self.supervisor());
        members
    }

    /// The supervisor: the parent of a worker that started and still lives.
    pub(crate) fn supervisor(&self) -> Identity {
        let workers = self.seen.iter().filter_map(|line| line["pid"].as_u64());
        let parent = |pid| stat(u32::try_from(pid).ok()?)?.get(1)?.parse().ok();
        workers.rev().find_map(parent).and_then(Identity::of).expect("a living worker")
    }

    /// Whether its loop has taken this in: a line of its log that holds every part.
    pub(crate) fn has_seen(&self, parts: &[&str]) -> bool {
        let log = fs::read_to_string(self.state.path().join("owner.log")).unwrap_or_default();
        log.lines().any(|line| parts.iter().all(|part| line.contains(part)))
    }

    /// Waits until its loop has taken this in.
    pub(crate) fn wait_seen(&self, parts: &[&str]) {
        wait_for(&format!("{parts:?} in the owner's log"), || self.has_seen(parts).then_some(()));
    }

    /// Waits for the end of the process.
    pub(crate) fn wait(&mut self) -> ExitStatus {
        wait_for("the owner's end", || self.process.try_wait().unwrap())
    }

    /// How its process ended, if it has.
    pub(crate) fn ended(&mut self) -> Option<ExitStatus> {
        self.process.try_wait().unwrap()
    }

    /// Reads what a process that has ended had said. Its last line may be half of one.
    pub(crate) fn drain(&mut self) {
        self.seen.extend(self.lines.iter());
    }

    /// Every line that was read.
    pub(crate) fn seen(&self) -> &[Value] {
        &self.seen
    }
}

impl Drop for OwnerProgram {
    fn drop(&mut self) {
        self.process.kill().ok();
        self.process.wait().ok();
    }
}

/// The task that an event is about.
pub(crate) fn index(event: &Value) -> u32 {
    let id = event["child"].as_str().unwrap_or_default();
    id.split('-').nth(1).and_then(|index| index.parse().ok()).expect("sa-INDEX-…")
}

/// Every task of `tasks` has exactly one Complete among these lines.
pub(crate) fn assert_one_complete_each(lines: &[Value], tasks: u32) {
    for task in 0..tasks {
        let complete = |line: &&Value| line["event"] == "subagent.complete" && index(line) == task;
        assert_eq!(lines.iter().filter(complete).count(), 1, "task {task} in {lines:?}");
    }
}

/// Waits until none of them lives.
pub(crate) fn wait_gone(members: &[Identity]) {
    wait_for(&format!("the end of all of {members:?}"), || {
        (!members.iter().any(|member| member.is_alive())).then_some(())
    });
}

pub(crate) fn assert_alive(members: &[Identity]) {
    for member in members {
        assert!(member.is_alive(), "{member:?} should live on");
    }
}

/// A process that belongs to nobody here, in a session of its own.
pub(crate) struct Stranger(Child, pub(crate) Identity);

impl Stranger {
    pub(crate) fn start() -> Self {
        let child = Command::new("setsid").args(["sleep", "600"]).spawn().unwrap();
        let identity = Identity::of(child.id()).unwrap();
        Self(child, identity)
    }
}

impl Drop for Stranger {
    fn drop(&mut self) {
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

/// A control owner with a tree of its own, and a stranger, that must outlive whatever is done.
pub(crate) struct Bystanders {
    control: OwnerProgram,
    members: Vec<Identity>,
    stranger: Stranger,
}

impl Bystanders {
    pub(crate) fn start() -> Self {
        let (control, members) = OwnerProgram::with_trees(1);
        Self { control, members, stranger: Stranger::start() }
    }

    pub(crate) fn assert_untouched(mut self) {
        assert_alive(&self.members);
        assert_alive(&[self.stranger.1]);
        self.control.signal(Signal::KILL);
        self.control.wait();
        wait_gone(&self.members);
        assert_alive(&[self.stranger.1]);
    }
}

/// What a process executes; `None` when it is gone.
pub(crate) fn image(pid: u32) -> Option<PathBuf> {
    fs::read_link(format!("/proc/{pid}/exe")).ok()
}

/// A child of the supervisor that stands still before it has executed anything, stopped by a signal. The
/// moment is met by watching, and proven once it stands still: its image is still the supervisor's.
/// Those that were faster go on.
pub(crate) fn stop_before_exec(supervisor: Identity) -> Identity {
    let own = image(supervisor.pid).expect("the supervisor");
    let deadline = Instant::now() + LIMIT;
    let mut last = newest_pid();
    loop {
        assert!(Instant::now() < deadline, "none was met before it executed in {LIMIT:?}");
        let newest = newest_pid();
        let fresh = std::mem::replace(&mut last, newest) + 1..=newest;
        for child in fresh.filter_map(|pid| stop_if_unexecuted(pid, supervisor)) {
            wait_for("it stands still, or is gone", || {
                matches!(child.state(), None | Some('T' | 'Z')).then_some(())
            });
            if child.state() == Some('T') && image(child.pid).as_ref() == Some(&own) {
                return child;
            }
            kill_process(raw(child), Signal::CONT).ok();
        }
    }
}

fn stop_if_unexecuted(pid: u32, supervisor: Identity) -> Option<Identity> {
    let is_child = stat(pid)?.get(1)?.parse() == Ok(supervisor.pid);
    let child = Identity::of(pid).filter(|_| is_child && image(pid) == image(supervisor.pid))?;
    kill_process(raw(child), Signal::STOP).ok()?;
    Some(child)
}

/// The number of the process or thread that was made last (man 5 proc_loadavg). Numbers go round at
/// their end: those behind it are then not looked at.
fn newest_pid() -> u32 {
    let text = fs::read_to_string("/proc/loadavg").unwrap();
    text.split_whitespace().last().unwrap().parse().unwrap()
}

pub(crate) fn raw(process: Identity) -> Pid {
    Pid::from_raw(process.pid.cast_signed()).unwrap()
}

/// Fields of `/proc/PID/stat` after the name: state, parent, …
pub(crate) fn stat(pid: u32) -> Option<Vec<String>> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    Some(text.rsplit_once(')')?.1.split_whitespace().map(str::to_owned).collect())
}

/// Its state, such as `T`.
pub(crate) fn state(pid: u32) -> Option<char> {
    stat(pid)?.first()?.chars().next()
}

/// A process that stands still until this is dropped, however the test ends: a guard that was left so would hold
/// everything that it guards.
pub(crate) struct Stopped(Identity);

impl Stopped {
    pub(crate) fn stop(who: Identity) -> Self {
        send(who, Signal::STOP);
        let stopped = Self(who);
        wait_for("it stands still", || (state(who.pid)? == 'T').then_some(()));
        stopped
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        if self.0.is_alive() {
            send(self.0, Signal::CONT);
        }
    }
}

fn send(who: Identity, signal: Signal) {
    // It may die in between.
    kill_process(raw(who), signal).ok();
}

pub(crate) fn parent_of(pid: u32) -> Option<u32> {
    stat(pid)?.get(1)?.parse().ok()
}

/// Every process that can be seen.
pub(crate) fn all_pids() -> Vec<u32> {
    let entries = fs::read_dir("/proc").unwrap();
    entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok()).collect()
}

/// Living processes with this parent.
pub(crate) fn children_of(parent: u32) -> Vec<u32> {
    let parent = parent.to_string();
    let is_child =
        |pid: &u32| stat(*pid).is_some_and(|fields| fields[0] != "Z" && fields[1] == parent);
    all_pids().into_iter().filter(is_child).collect()
}

/// A number from 0 to below `below`, of a sequence that begins with `seed` (xorshift64).
pub(crate) fn random(seed: &mut u64, below: u64) -> u64 {
    *seed ^= *seed << 13;
    *seed ^= *seed >> 7;
    *seed ^= *seed << 17;
    *seed % below
}

/// A seed, printed so that a failure can be repeated.
pub(crate) fn seed() -> u64 {
    let nanos = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    let seed = u64::from(nanos.subsec_nanos()) << 8 | 1;
    println!("seed {seed}");
    seed
}

/// Makes the file that a [`Step::Gate`] waits for.
pub(crate) fn open_gate(gate: &Path) {
    fs::write(gate, "").unwrap();
}

/// A short pause between two looks or blows.
pub(crate) fn pause(time: Duration) {
    std::thread::sleep(time);
}

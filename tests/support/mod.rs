//! What every integration suite needs: delegators over both executors with a state directory of their
//! own, helper programs, and waiting for facts with a deadline.
#![allow(dead_code, unreachable_pub, reason = "each suite uses its part")]
#![allow(clippy::allow_attributes, reason = "an expectation would fail in the suite that uses all")]

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use delegate_runtime::config::{LauncherWish, Settings};
use delegate_runtime::{Isolation, Outcome, Report, Task, Value, blocking};

/// Both executors: every behaviour must be the same over each.
pub const BOTH: [Isolation; 2] = [Isolation::Thread, Isolation::Process];

/// Longest wait for a fact. Generous: it only bounds a failing test.
pub const LIMIT: Duration = Duration::from_secs(60);

/// A delegator with a state directory that goes with it.
pub struct Rig {
    pub delegator: blocking::Delegator,
    pub state: Scratch,
}

/// A directory that goes with this, also where somebody who is ending still writes into it: a guard, the ledger. They make no
/// folder again, so it goes as soon as they have done.
pub struct Scratch(Option<tempfile::TempDir>);

impl Scratch {
    pub fn new() -> Self {
        Self(Some(tempfile::tempdir().unwrap()))
    }

    pub fn path(&self) -> &Path {
        self.0.as_ref().unwrap().path()
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let Some(dir) = self.0.take().map(tempfile::TempDir::keep) else { return };
        let deadline = Instant::now() + Duration::from_secs(10);
        loop {
            match fs::remove_dir_all(&dir) {
                // Of a failure nothing is said here: a test that fails is heard by itself.
                Err(error) if error.kind() != io::ErrorKind::NotFound => {}
                _ if !dir.exists() => return,
                _ => {}
            }
            if Instant::now() > deadline {
                return;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

/// The switch that has every worker process of a suite started in another way: `exec`, `zygote` or `pool`.
const TEST_LAUNCHER: &str = "DELEGATE_TEST_LAUNCHER";

/// How worker processes are started, where a test does not say it itself. Without the switch the process half of the
/// conformance suite goes over all of them in one run: a third of its tests each, by their names. What a test is
/// about does not depend on it.
pub fn launcher() -> LauncherWish {
    let asked = std::env::var(TEST_LAUNCHER).unwrap_or_default();
    let known = LauncherWish::ALL.into_iter().find(|wish| wish.word() == asked);
    assert!(known.is_some() || asked.is_empty(), "{TEST_LAUNCHER}={asked}");
    known.unwrap_or_else(|| {
        let third = if module_path!().starts_with("conformance") { third_of(&test()) } else { 0 };
        [LauncherWish::Auto, LauncherWish::Zygote, LauncherWish::Pool][third]
    })
}

/// The test that runs. One in a process of its own runs on the main thread, and is an argument.
fn test() -> String {
    match std::thread::current().name() {
        Some(name) if name != "main" => name.to_owned(),
        _ => std::env::args().nth(1).unwrap_or_default(),
    }
}

/// The same for the same name, in each run and on each machine.
fn third_of(name: &str) -> usize {
    name.bytes().fold(0, |sum: usize, byte| (sum * 31 + usize::from(byte)) % 9973) % 3
}

/// Settings with that, for a test that builds its delegator itself.
pub fn as_asked(settings: Settings) -> Settings {
    if settings.launcher == LauncherWish::Auto {
        Settings { launcher: launcher(), ..settings }
    } else {
        settings
    }
}

/// The words of outcomes whose processes are started so. A pool has none that waits for the first child.
pub fn launcher_words(isolation: Isolation) -> &'static [&'static str] {
    match (isolation, launcher()) {
        (Isolation::Thread, _) => &["thread"],
        (_, LauncherWish::Auto | LauncherWish::Exec) => &["exec"],
        (_, LauncherWish::Zygote) => &["zygote"],
        (_, LauncherWish::Pool) => &["zygote", "pool"],
    }
}

/// A rig with settings.
pub fn rig_with(isolation: Isolation, settings: Settings) -> Rig {
    let state = Scratch::new();
    let delegator = blocking::Delegator::builder()
        .isolation(isolation)
        .settings(as_asked(settings))
        .state_dir(state.path())
        .build()
        .unwrap();
    Rig { delegator, state }
}

/// A rig with default settings.
pub fn rig(isolation: Isolation) -> Rig {
    rig_with(isolation, Settings::default())
}

/// Runs a batch to its end and gives the results in task order.
pub fn run(rig: &Rig, tasks: impl IntoIterator<Item = Task>) -> (Vec<Outcome>, Report) {
    let report = rig.delegator.batch(tasks).run().unwrap();
    let outcomes = report.results().collect();
    (outcomes, report)
}

/// A task for the `command` agent.
pub fn command<S: Into<String>>(goal: &str, argv: impl IntoIterator<Item = S>) -> Task {
    let argv = argv.into_iter().map(|text| Value::Text(text.into())).collect();
    Task::new("command", goal).params(Value::Map([("argv".to_owned(), Value::List(argv))].into()))
}

/// A helper program of `examples/helpers`, as cargo built it for this test run.
pub fn helper(name: &str) -> String {
    let mut path: PathBuf = std::env::current_exe().unwrap();
    path.pop();
    if path.ends_with("deps") {
        path.pop();
    }
    path.push("examples");
    path.push(format!("helper-{name}"));
    assert!(path.exists(), "{} is missing: cargo test builds it with the examples", path.display());
    path.to_str().unwrap().to_owned()
}

/// Waits for a fact; panics with `what` when it does not come within [`LIMIT`].
pub fn wait_for<T>(what: &str, mut fact: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + LIMIT;
    loop {
        if let Some(found) = fact() {
            return found;
        }
        assert!(Instant::now() < deadline, "waited {LIMIT:?} in vain for {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// A process by number and start time: the number alone may be somebody else's by now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Identity {
    pub pid: u32,
    pub start: u64,
}

/// Field 22 of /proc/PID/stat (man 5 proc), and the state.
fn stat(pid: u32) -> Option<(char, u64)> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let rest: Vec<&str> = text.rsplit_once(')')?.1.split_whitespace().collect();
    Some((rest.first()?.chars().next()?, rest.get(19)?.parse().ok()?))
}

impl Identity {
    /// The process that has this number now.
    pub fn of(pid: u32) -> Option<Self> {
        stat(pid).map(|(_, start)| Self { pid, start })
    }

    /// Whether it still runs; a zombie is gone.
    pub fn is_alive(self) -> bool {
        stat(self.pid).is_some_and(|(state, start)| start == self.start && state != 'Z')
    }

    /// Its state as the kernel writes it (man 5 proc): `R`, `S`, `T`, `Z`; `None` when it is gone.
    pub fn state(self) -> Option<char> {
        stat(self.pid).filter(|(_, start)| *start == self.start).map(|(state, _)| state)
    }
}

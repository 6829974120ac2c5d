//! What the tests of this crate share: an owner over the supervisor program, and waiting for facts.
#![expect(clippy::disallowed_methods, reason = "tests wait for facts, with deadlines")]
#![allow(dead_code, reason = "each test binary uses its own part")]
#![allow(clippy::allow_attributes, reason = "an expectation would fail in some of the binaries")]

use std::collections::HashSet;
use std::fs;
use std::path::Path;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use ownership::{ChildEvent, Owned, Owner, Program, Spawn};

/// Long enough for a busy machine; reached only by a failure.
pub(crate) const DEADLINE: Duration = Duration::from_secs(30);

/// An owner whose supervisor is the small program of this crate.
pub(crate) fn owner() -> Owner {
    Owner::new(Program::named(env!("CARGO_BIN_EXE_ownership-supervisor")), Vec::new())
}

/// A shell that runs `script`.
pub(crate) fn shell(script: &str) -> Spawn {
    Spawn::new("/bin/sh").arg("-c").arg(script)
}

/// Starts it and gives its events.
pub(crate) fn start(owner: &Owner, spawn: Spawn) -> (Owned, Receiver<ChildEvent>) {
    let (tell, events) = channel();
    let owned = owner.spawn(spawn, move |event| drop(tell.send(event))).expect("spawn");
    (owned, events)
}

/// Waits until `fact` gives something.
pub(crate) fn wait_for<T>(what: &str, mut fact: impl FnMut() -> Option<T>) -> T {
    let until = Instant::now() + DEADLINE;
    loop {
        if let Some(value) = fact() {
            return value;
        }
        assert!(Instant::now() < until, "in time: {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Number and start time of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Identity {
    pub(crate) pid: i32,
    pub(crate) start: u64,
}

/// The fields of `/proc/PID/stat` after the name.
fn stat(pid: i32) -> Option<Vec<String>> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let rest = text.get(text.rfind(')')? + 2..)?;
    Some(rest.split(' ').map(str::to_owned).collect())
}

impl Identity {
    pub(crate) fn of(pid: i32) -> Option<Self> {
        let start = stat(pid)?.get(19)?.parse().ok()?;
        Some(Self { pid, start })
    }

    /// Whether it is this process and not dead; a zombie is.
    pub(crate) fn lives(self) -> bool {
        let state = stat(self.pid).and_then(|fields| fields.first().cloned());
        Self::of(self.pid) == Some(self) && !matches!(state.as_deref(), Some("Z" | "X") | None)
    }

    pub(crate) fn state(self) -> Option<String> {
        stat(self.pid)?.first().cloned()
    }

    pub(crate) fn parent(self) -> Option<i32> {
        stat(self.pid)?.get(1)?.parse().ok()
    }

    /// Sends KILL through a handle, if it still is this process.
    pub(crate) fn kill(self) {
        use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
        let Some(pid) = Pid::from_raw(self.pid) else { return };
        let Ok(handle) = pidfd_open(pid, PidfdFlags::empty()) else { return };
        if Self::of(self.pid) == Some(self) {
            let _ = pidfd_send_signal(handle, Signal::KILL);
        }
    }
}

/// The processes whose numbers stand in the files of `dir`, by file name; files appear when the
/// processes are ready.
pub(crate) fn recorded(dir: &Path, name: &str) -> Identity {
    wait_for(&format!("{name} is there"), || {
        let pid = fs::read_to_string(dir.join(name)).ok()?;
        Identity::of(pid.strip_suffix('\n')?.parse().ok()?)
    })
}

/// Processes with this parent.
pub(crate) fn children_of(parent: i32) -> HashSet<i32> {
    fs::read_dir("/proc")
        .expect("proc")
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .filter(|pid| stat(*pid).and_then(|f| f.get(1)?.parse().ok()) == Some(parent))
        .collect()
}

/// The parent of a child of the supervisor is the supervisor.
pub(crate) fn supervisor_of(owned: &Owned) -> Identity {
    let child = Identity::of(owned.pid().cast_signed()).expect("child");
    Identity::of(child.parent().expect("parent")).expect("supervisor")
}

/// Compiles a program in C and gives its path: `DIR/NAME.exe`.
pub(crate) fn compile(dir: &Path, name: &str, source: &str) -> std::path::PathBuf {
    let (code, program) = (dir.join(format!("{name}.c")), dir.join(format!("{name}.exe")));
    fs::write(&code, source).expect("write");
    let mut command = std::process::Command::new("cc");
    command.arg("-pthread").arg("-o").arg(&program).arg(&code);
    let status = command.status().expect("cc, which links Rust programs too");
    assert!(status.success());
    program
}

/// A program of `examples/`. `cargo test` builds them; `cargo test --test NAME` alone does not.
pub(crate) fn example(name: &str) -> std::path::PathBuf {
    let own = std::env::current_exe().expect("this program");
    let target = own.parent().and_then(Path::parent).expect("target directory");
    let path = target.join("examples").join(name);
    assert!(path.exists(), "{name} is not built: cargo build -p delegate-ownership --examples");
    path
}

/// A `tree-owner` and the members of its tree.
pub(crate) struct TreeOwner {
    pub(crate) process: std::process::Child,
    pub(crate) supervisor: Identity,
    /// launcher, program, helper, session, daemon, stubborn, stopped.
    pub(crate) members: Vec<(&'static str, Identity)>,
    _dir: tempfile::TempDir,
}

/// The files that `tree-owner` writes.
const MEMBERS: [&str; 7] =
    ["launcher", "program", "helper", "session", "daemon", "stubborn", "stopped"];

impl TreeOwner {
    /// Starts one, with mechanisms of its supervisor switched `off`.
    pub(crate) fn start(grace: Duration, off: &str) -> Self {
        let dir = tempfile::tempdir().expect("dir");
        let process = std::process::Command::new(example("tree-owner"))
            .arg(dir.path())
            .arg(grace.as_millis().to_string())
            .env("OWNERSHIP_TEST_OFF", off)
            .stdin(std::process::Stdio::piped())
            .spawn()
            .expect("tree-owner");
        let members: Vec<_> =
            MEMBERS.iter().map(|name| (*name, recorded(dir.path(), name))).collect();
        let stopped = members[6].1;
        wait_for("stopped", || (stopped.state()? == "T").then_some(()));
        let launcher = members[0].1;
        let supervisor = Identity::of(launcher.parent().expect("parent")).expect("supervisor");
        Self { process, supervisor, members, _dir: dir }
    }

    pub(crate) fn member(&self, name: &str) -> Identity {
        self.members.iter().find(|(known, _)| *known == name).expect("a member").1
    }

    /// Who of the tree lives.
    pub(crate) fn living(&self) -> Vec<&'static str> {
        self.members.iter().filter(|(_, who)| who.lives()).map(|(name, _)| *name).collect()
    }

    /// Says how it is to end.
    pub(crate) fn tell(&mut self, how: &str) {
        use std::io::Write;
        let stdin = self.process.stdin.as_mut().expect("stdin");
        writeln!(stdin, "{how}").expect("tell");
    }

    pub(crate) fn signal(&self, number: rustix::process::Signal) {
        // Our own child, not reaped: the number is its own.
        let pid = rustix::process::Pid::from_child(&self.process);
        rustix::process::kill_process(pid, number).expect("signal");
    }
}

/// Whatever a test leaves of it is ended by handle.
impl Drop for TreeOwner {
    fn drop(&mut self) {
        self.process.kill().ok();
        self.process.wait().ok();
        self.supervisor.kill();
        for (_, member) in &self.members {
            member.kill();
        }
    }
}

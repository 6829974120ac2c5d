//! An owner (`examples/tree-owner.rs`) above a tree of the awkward kinds, from outside.

use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use super::process::{Guards, everybody};
use super::{Identity, example, mayhem, recorded, small_program, tier, wait_for};

/// The members of a tree, after which the files are named that `tree-owner` writes.
pub(crate) const MEMBERS: [&str; 8] =
    ["launcher", "program", "helper", "session", "daemon", "stubborn", "stopped", "cleared"];

/// A `tree-owner` and the members of its tree.
pub(crate) struct TreeOwner {
    pub(crate) process: Child,
    pub(crate) supervisor: Identity,
    /// In the order of [`MEMBERS`].
    pub(crate) members: Vec<(&'static str, Identity)>,
    own: Identity,
    /// The environment entry that everybody of it has who keeps an environment.
    marker: String,
    dir: tempfile::TempDir,
}

impl TreeOwner {
    /// Starts one, with mechanisms of its supervisor switched `off`.
    pub(crate) fn start(grace: Duration, off: &str) -> Self {
        Self::launch(grace, off, |dir| {
            let mut command = Command::new(example("tree-owner"));
            command.arg(dir).stdin(Stdio::piped());
            command
        })
    }

    /// Starts one that does what [`mayhem`] names when it is sent those signals.
    pub(crate) fn start_with_mayhem(grace: Duration) -> Self {
        Self::launch(grace, "", |dir| {
            let mut command = Command::new(example("tree-owner"));
            command.arg(dir).stdin(Stdio::piped()).env("LD_PRELOAD", mayhem::library(dir));
            command
        })
    }

    /// Starts one that leads the session of a terminal, and gives the terminal's other end.
    pub(crate) fn start_in_a_terminal(grace: Duration) -> (Self, OwnedFd) {
        use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
        let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC);
        let master = master.expect("a terminal");
        grantpt(&master).expect("grant");
        unlockpt(&master).expect("unlock");
        let name = ptsname(&master, Vec::new()).expect("name").into_string().expect("text");
        let slave = std::fs::File::options().read(true).write(true).open(name).expect("open");
        let owner = Self::launch(grace, "", |dir| {
            // It executes the owner itself: the number stays.
            let mut command = Command::new("setsid");
            command.arg("--ctty").arg(example("tree-owner")).arg(dir).stdin(slave);
            command
        });
        (owner, master)
    }

    fn launch(grace: Duration, off: &str, command: impl FnOnce(&Path) -> Command) -> Self {
        let dir = tempfile::tempdir().expect("dir");
        let process = command(dir.path())
            .arg(grace.as_millis().to_string())
            .env("OWNERSHIP_TEST_OFF", off)
            .env("OWNERSHIP_TEST_CONTAINMENT", tier::asked().word())
            .env("TREE_DIR", dir.path())
            .envs(small_program().map(|program| ("OWNERSHIP_TEST_GUARDS", program)))
            .env("RUST_BACKTRACE", "0")
            .spawn()
            .expect("tree-owner");
        let own = Identity::of(process.id().cast_signed()).expect("not reaped");
        let members: Vec<_> =
            MEMBERS.iter().map(|name| (*name, recorded(dir.path(), name))).collect();
        let stopped = members[6].1;
        wait_for("stopped", || (stopped.state()? == "T").then_some(()));
        let guards = Guards::of(members[0].1).expect("guards");
        let marker = format!("TREE_DIR={}", dir.path().display());
        Self { process, supervisor: guards.supervisor, members, own, marker, dir }
    }

    pub(crate) fn identity(&self) -> Identity {
        Identity::of(self.process.id().cast_signed()).expect("not reaped")
    }

    /// Its guards as they are now; `None` while one is being replaced.
    pub(crate) fn guards(&self) -> Option<Guards> {
        let child = self.members.first().expect("members").1;
        Guards::of(child).or_else(|| Guards::marked(&self.marker))
    }

    /// A process that writes its number into a file of this name.
    pub(crate) fn other(&self, name: &str) -> Identity {
        recorded(self.dir.path(), name)
    }

    pub(crate) fn member(&self, name: &str) -> Identity {
        self.members.iter().find(|(known, _)| *known == name).expect("a member").1
    }

    /// Who of the tree lives.
    pub(crate) fn living(&self) -> Vec<&'static str> {
        self.members.iter().filter(|(_, who)| who.lives()).map(|(name, _)| *name).collect()
    }

    pub(crate) fn is_whole(&self) -> bool {
        self.living() == MEMBERS
    }

    /// Who is left of the tree and its guards, also of what was started later; the owner itself apart.
    pub(crate) fn left(&self) -> Vec<Identity> {
        let owner = self.process.id().cast_signed();
        let marked = everybody().filter(|who| who.pid != owner && who.has_variable(&self.marker));
        let mut left: Vec<_> = marked.filter(|who| who.lives()).collect();
        left.extend(self.members.iter().map(|(_, who)| *who).filter(|who| who.lives()));
        left.sort_by_key(|who| who.pid);
        left.dedup();
        left
    }

    /// Says how it is to end, or what it is to do first.
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
        // A guard that is killed may be replaced meanwhile.
        for _ in 0..20 {
            let left = self.left();
            if left.is_empty() {
                // Guards that were killed remove nothing.
                return tier::remove_cgroups_of(self.own);
            }
            left.iter().for_each(|who| who.kill());
        }
    }
}

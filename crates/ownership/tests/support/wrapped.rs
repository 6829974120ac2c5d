//! A tree below `own`: front, guards, program, and helpers that leave group, session, parent, or environment, or
//! ignore TERM, or stand still.

use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus};

use rustix::process::Signal;

use super::support::process::{Guards, everybody};
use super::support::{Identity, recorded, undisturbed, wait_for};

/// The members, by the names of the files into which they write their numbers.
pub(crate) const MEMBERS: [&str; 8] =
    ["program", "launcher", "helper", "session", "daemon", "stubborn", "stopped", "cleared"];

/// What the program does. It ends with 3 when the file `exit` is there.
const SCRIPT: &str = r#"
D=$TREE_DIR
note='echo $$ > $D/$0.new; mv $D/$0.new $D/$0;'
export D
sh -c "sh -c '$note exec sleep 600' helper & $note wait; exec sleep 600" launcher &
setsid sh -c "$note exec sleep 600" session &
(setsid sh -c "$note exec sleep 600" daemon &)
sh -c "trap '' TERM; $note while :; do sleep 0.05; done" stubborn &
sh -c "$note kill -STOP \$\$; exec sleep 600" stopped &
env -i D=$D PATH=$PATH setsid sh -c "$note exec sleep 600" cleared &
sh -c 'echo $PPID > $D/program.new; mv $D/program.new $D/program'
until [ -e $D/exit ]; do sleep 0.02; done
exit 3
"#;

/// The small program of this crate.
pub(crate) const OWN: &str = env!("CARGO_BIN_EXE_own");

pub(crate) struct Wrapped {
    pub(crate) front: Child,
    pub(crate) members: Vec<(&'static str, Identity)>,
    marker: String,
    dir: tempfile::TempDir,
}

impl Wrapped {
    pub(crate) fn start(off: &str) -> Self {
        let mut command = undisturbed(OWN);
        command.args(["--grace", "300ms", "--", "bash", "-c", SCRIPT, "tree"]);
        Self::launch(command, off)
    }

    /// The same tree without anybody above it.
    pub(crate) fn bare() -> Self {
        let mut command = undisturbed("bash");
        command.args(["-c", SCRIPT, "tree"]);
        Self::launch(command, "")
    }

    fn launch(mut command: Command, off: &str) -> Self {
        let dir = tempfile::tempdir().expect("dir");
        command.env("TREE_DIR", dir.path()).env("OWNERSHIP_TEST_OFF", off).process_group(0);
        let marker = format!("TREE_DIR={}", dir.path().display());
        let front = command.spawn().expect("start");
        let mut wrapped = Self { front, members: Vec::new(), marker, dir };
        let path = wrapped.dir.path().to_owned();
        wrapped.members.extend(MEMBERS.map(|name| (name, recorded(&path, name))));
        let stopped = wrapped.member("stopped");
        wait_for("stopped", || (stopped.state()? == "T").then_some(()));
        wrapped
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub(crate) fn identity(&self) -> Identity {
        Identity::of(self.front.id().cast_signed()).expect("not reaped")
    }

    pub(crate) fn member(&self, name: &str) -> Identity {
        self.members.iter().find(|(known, _)| *known == name).expect("a member").1
    }

    /// Its guards as they are now, once they are two.
    pub(crate) fn guards(&self) -> Guards {
        let program = self.member("program");
        wait_for("two guards", || {
            let guards = Guards::of(program).or_else(|| Guards::marked(&self.marker))?;
            guards.keeper.is_some().then_some(guards)
        })
    }

    pub(crate) fn living(&self) -> Vec<&'static str> {
        self.members.iter().filter(|(_, who)| who.lives()).map(|(name, _)| *name).collect()
    }

    pub(crate) fn is_whole(&self) -> bool {
        self.living() == MEMBERS
    }

    /// Who is left of tree and guards, the front apart.
    pub(crate) fn left(&self) -> Vec<Identity> {
        let front = self.front.id().cast_signed();
        let marked = everybody().filter(|who| who.pid != front && who.has_variable(&self.marker));
        let mut left: Vec<_> = marked.filter(|who| who.lives()).collect();
        left.extend(self.members.iter().map(|(_, who)| *who).filter(|who| who.lives()));
        left.sort_by_key(|who| who.pid);
        left.dedup();
        left
    }

    pub(crate) fn signal(&self, signal: Signal) {
        assert!(self.identity().signal(signal));
    }

    /// Waits for the end of the front.
    pub(crate) fn wait(&mut self) -> ExitStatus {
        wait_child(&mut self.front)
    }
}

/// Waits for the end of a child of this test.
pub(crate) fn wait_child(child: &mut Child) -> ExitStatus {
    wait_for("its end", || child.try_wait().ok()?)
}

/// Whether a descriptor of a process is this file.
pub(crate) fn holds(process: Identity, file: &Path) -> bool {
    let dir = format!("/proc/{}/fd", process.pid);
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    let links = entries.filter_map(|entry| std::fs::read_link(entry.path()).ok());
    links.into_iter().any(|link| link == file)
}

/// Whether a process holds a pidfd of another one.
pub(crate) fn holds_handle(process: Identity, of: Identity) -> bool {
    let dir = format!("/proc/{}/fdinfo", process.pid);
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    let texts = entries.filter_map(|entry| std::fs::read_to_string(entry.path()).ok());
    let wanted = format!("Pid:\t{}", of.pid);
    texts.into_iter().any(|text| text.lines().any(|line| line == wanted))
}

/// Whatever a test leaves of it is ended by handle.
impl Drop for Wrapped {
    fn drop(&mut self) {
        self.front.kill().ok();
        self.front.wait().ok();
        for _ in 0..20 {
            let left = self.left();
            if left.is_empty() {
                return;
            }
            left.iter().for_each(|who| who.kill());
        }
    }
}

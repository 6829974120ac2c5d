//! However the owner ends, nothing of its tree is left, and nobody else is touched. Beside each owner
//! that ends there is one that lives on with its tree, and a stranger.

mod support;

use std::time::Duration;

use rustix::process::Signal;
use support::{Identity, TreeOwner, wait_for};

const GRACE: Duration = Duration::from_millis(300);

/// A process that belongs to nobody here.
struct Stranger(std::process::Child);

impl Stranger {
    fn start() -> Self {
        let mut command = std::process::Command::new("sleep");
        #[expect(clippy::disallowed_methods, reason = "a stranger is not owned")]
        let child = command.arg("600").spawn().expect("sleep");
        Self(child)
    }

    fn identity(&self) -> Identity {
        Identity::of(self.0.id().cast_signed()).expect("stranger")
    }
}

impl Drop for Stranger {
    fn drop(&mut self) {
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

fn ends_with_its_owner(end: impl FnOnce(&mut TreeOwner)) {
    let stranger = Stranger::start();
    let before = stranger.identity();
    let control = TreeOwner::start(GRACE, "");
    let mut owner = TreeOwner::start(GRACE, "");
    assert_eq!(owner.living().len(), 7, "the whole tree is there first");
    end(&mut owner);
    owner.process.wait().expect("the owner ends");
    wait_for("nothing is left of the tree", || owner.living().is_empty().then_some(()));
    wait_for("the supervisor has left", || (!owner.supervisor.lives()).then_some(()));
    assert_eq!(control.living().len(), 7, "the other owner's tree lives on");
    assert!(control.supervisor.lives());
    assert!(before.lives(), "the stranger lives on");
}

#[test]
fn by_returning() {
    ends_with_its_owner(|owner| owner.tell("return"));
}

#[test]
fn by_an_exit_code() {
    ends_with_its_owner(|owner| owner.tell("exit"));
}

#[test]
fn by_abort() {
    ends_with_its_owner(|owner| owner.tell("abort"));
}

#[test]
fn by_a_segmentation_fault() {
    ends_with_its_owner(|owner| owner.tell("segv"));
}

#[test]
fn by_term() {
    ends_with_its_owner(|owner| owner.signal(Signal::TERM));
}

#[test]
fn by_kill() {
    ends_with_its_owner(|owner| owner.signal(Signal::KILL));
}

/// The same on a kernel that lacks what newer ones have.
#[test]
fn by_kill_on_an_older_kernel() {
    let owner = TreeOwner::start(GRACE, "lists,group-handle");
    owner.signal(Signal::KILL);
    wait_for("nothing is left of the tree", || owner.living().is_empty().then_some(()));
    wait_for("the supervisor has left", || (!owner.supervisor.lives()).then_some(()));
}

/// The line ends, for it is close-on-exec, but the process lives on.
#[test]
fn an_owner_that_executes_another_program_keeps_its_tree_until_it_dies() {
    let mut owner = TreeOwner::start(GRACE, "");
    owner.tell("exec");
    let comm = format!("/proc/{}/comm", owner.process.id());
    wait_for("executed", || (std::fs::read_to_string(&comm).ok()? == "sleep\n").then_some(()));
    // Its supervisor's line has ended before that; another owner's whole end takes longer.
    let other = TreeOwner::start(GRACE, "");
    other.signal(Signal::KILL);
    wait_for("the other's tree is gone", || other.living().is_empty().then_some(()));
    assert_eq!(owner.living().len(), 7);
    owner.signal(Signal::KILL);
    wait_for("its own end", || owner.living().is_empty().then_some(()));
}

/// Whoever else holds the owner's line (a copy of it made by fork) does not keep its tree.
#[test]
fn a_line_that_is_held_elsewhere_does_not_count() {
    use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open};
    let owner = TreeOwner::start(GRACE, "");
    let handle = pidfd_open(Pid::from_child(&owner.process), PidfdFlags::empty()).expect("pidfd");
    let fds = std::fs::read_dir(format!("/proc/{}/fd", owner.process.id())).expect("fds");
    let sockets = fds.flatten().filter(|entry| {
        std::fs::read_link(entry.path()).is_ok_and(|to| to.to_string_lossy().starts_with("socket:"))
    });
    let numbers: Vec<i32> = sockets
        .map(|entry| entry.file_name().to_str().expect("number").parse().expect("number"))
        .collect();
    let held: Result<Vec<_>, _> =
        numbers.iter().map(|fd| pidfd_getfd(&handle, *fd, PidfdGetfdFlags::empty())).collect();
    let Ok(held) = held else {
        eprintln!("SKIPPED: descriptors of another process may not be taken here");
        return;
    };
    assert!(!held.is_empty(), "the owner has a line");
    owner.signal(Signal::KILL);
    wait_for("nothing is left of the tree", || owner.living().is_empty().then_some(()));
    drop(held);
}

/// A stopped owner is not dead.
#[test]
fn a_stopped_owner_keeps_its_tree() {
    let mut owner = TreeOwner::start(GRACE, "");
    owner.signal(Signal::STOP);
    let own = Identity::of(owner.process.id().cast_signed()).expect("owner");
    wait_for("stopped", || (own.state()? == "T").then_some(()));
    // Another owner goes through its whole end meanwhile.
    let other = TreeOwner::start(GRACE, "");
    other.signal(Signal::KILL);
    wait_for("the other's tree is gone", || other.living().is_empty().then_some(()));
    assert_eq!(owner.living().len(), 7);
    owner.signal(Signal::CONT);
    owner.tell("exit");
    wait_for("its own end", || owner.living().is_empty().then_some(()));
}

/// Signals that a terminal or a careless kill sends do not end a supervisor.
#[test]
fn a_supervisor_outlives_term_and_hup() {
    let owner = TreeOwner::start(GRACE, "");
    let pid = rustix::process::Pid::from_raw(owner.supervisor.pid).expect("pid");
    for number in [Signal::TERM, Signal::HUP, Signal::INT, Signal::QUIT, Signal::PIPE] {
        rustix::process::kill_process(pid, number).expect("signal");
    }
    owner.signal(Signal::KILL);
    wait_for("it still does its work", || owner.living().is_empty().then_some(()));
}

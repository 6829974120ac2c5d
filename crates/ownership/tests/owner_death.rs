//! Special ways in which an owner's tree ends or is kept. Every way in which an owner itself can end is in
//! `death_matrix`.

mod support;

use std::time::Duration;

use rustix::process::Signal;
use support::{TreeOwner, wait_for};

const GRACE: Duration = Duration::from_millis(300);

/// The same on a kernel that lacks what newer ones have.
#[test]
fn by_kill_on_an_older_kernel() {
    let owner = TreeOwner::start(GRACE, "lists,group-handle");
    owner.signal(Signal::KILL);
    wait_for("nothing is left of the tree", || owner.living().is_empty().then_some(()));
    wait_for("the supervisor has left", || (!owner.supervisor.lives()).then_some(()));
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

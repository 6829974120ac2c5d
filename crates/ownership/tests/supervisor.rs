//! The supervisor's own life: it is started when needed, leaves when idle, may be killed, and takes
//! junk without harm.

mod support;

use std::os::fd::AsFd;
use std::time::Duration;

use ownership::{ExitStatus, Owner, Phase, Program, Spawn};
use rustix::net::{SendFlags, send};
use support::{Identity, owner, recorded, shell, start, supervisor_of, wait_for};

/// The host sees no child that it did not start, and no zombie.
#[test]
fn the_owner_has_no_child_of_ours() {
    let owner = owner();
    let (child, _events) = start(&owner, Spawn::new("sleep").arg("600"));
    let supervisor = supervisor_of(&child);
    assert_ne!(supervisor.parent(), Some(std::process::id().cast_signed()));
    let name = std::fs::read_to_string(format!("/proc/{}/comm", supervisor.pid)).expect("comm");
    assert_eq!(name, "minder\n");
    let keeper = Identity::of(supervisor.parent().expect("parent")).expect("keeper");
    assert_ne!(keeper.parent(), Some(std::process::id().cast_signed()));
    let name = std::fs::read_to_string(format!("/proc/{}/comm", keeper.pid)).expect("comm");
    assert_eq!(name, "warden\n");
    // Streams, line, owner, table, link, deaths, null, itself, the other guard, the pipe by which number 1 of a
    // namespace sees them, and here one child: nothing that was inherited. Who starts something in a cgroup holds the owner's.
    let place = usize::from(support::tier::used() == ownership::containment::Tier::Cgroup);
    for (guard, count) in [(supervisor, 3 + 9 + 1 + place), (keeper, 3 + 9)] {
        wait_for("it holds only its own descriptors", || {
            let fds = std::fs::read_dir(format!("/proc/{}/fd", guard.pid)).expect("fds").count();
            (fds == count).then_some(())
        });
    }
}

#[test]
fn c55_junk_on_a_line_does_nothing() {
    let owner = owner();
    let dir = tempfile::tempdir().expect("dir");
    let junk = support::example("junk-sender");
    let (child, _events) = start(&owner, Spawn::new(junk).arg(dir.path()).line(4));
    let own = Identity::of(child.pid().cast_signed()).expect("child");
    let inner = recorded(dir.path(), "inner");
    assert_eq!(inner.parent(), own.parent(), "after the junk its line still works");
    assert!(supervisor_of(&child).lives());
    child.kill();
    child.wait_empty().expect("empty");
}

/// Who does not read its answers stops only itself, and loses none.
#[test]
fn a_line_that_is_not_read_does_not_hold_up_the_others() {
    let owner = owner();
    let dir = tempfile::tempdir().expect("dir");
    let flooder = Spawn::new(support::example("junk-sender")).arg(dir.path()).arg("flood");
    let (child, _events) = start(&owner, flooder.line(4));
    wait_for("the flood", || dir.path().join("flooded").exists().then_some(()));
    let (beside, _beside_events) = start(&owner, shell("exit 6"));
    assert_eq!(beside.wait().expect("exit").status, ExitStatus::Code(6));
    std::fs::write(dir.path().join("go"), "").expect("write");
    let inner = recorded(dir.path(), "inner");
    assert!(inner.lives(), "once it reads, its line goes on");
    child.kill();
    child.wait_empty().expect("empty");
}

/// Closing the control socket while the owner lives changes nothing; its death does.
#[test]
fn a_supervisor_leaves_when_idle_and_no_request_is_lost_in_crossing() {
    if support::no_hooks() {
        return;
    }
    let dir = tempfile::tempdir().expect("dir");
    let owner = support::example("idle-owner");
    let mut command = std::process::Command::new(owner);
    command.arg(dir.path()).env("OWNERSHIP_TEST_IDLE_MS", "1");
    #[expect(clippy::disallowed_methods, reason = "an owner of its own, with its own setting")]
    let status = command.status().expect("idle-owner");
    assert!(status.success());
    let text = std::fs::read_to_string(dir.path().join("supervisors")).expect("record");
    let supervisors: usize = text.trim().parse().expect("number");
    assert!(supervisors > 1, "some left in between: {supervisors}");
}

#[test]
fn a_program_that_takes_the_role_without_its_descriptors_does_nothing() {
    let owner = owner();
    let program = Program::named(env!("CARGO_BIN_EXE_ownership-supervisor"));
    let spawn = Spawn::program(program.clone()).arg("@warden");
    let (child, _events) = start(&owner, spawn);
    assert_eq!(child.wait().expect("exit").status, ExitStatus::Code(2));
    let (child, _events) = start(&owner, Spawn::program(program));
    assert_eq!(child.wait().expect("exit").status, ExitStatus::Code(2));
}

#[test]
fn a_line_that_is_no_line_is_a_clear_error() {
    let (ours, theirs) = rustix::net::socketpair(
        rustix::net::AddressFamily::UNIX,
        rustix::net::SocketType::SEQPACKET,
        rustix::net::SocketFlags::CLOEXEC,
        None,
    )
    .expect("pair");
    send(ours.as_fd(), b"\x07junk", SendFlags::NOSIGNAL).expect("send");
    let error = Owner::inherited(theirs).spawn(shell("true"), |_| {}).expect_err("junk");
    assert_eq!(error.phase, Phase::Supervisor);
}

#[test]
fn an_owner_without_descriptors_gets_errors_and_waits_for_nothing() {
    let owner = owner();
    let starved = Spawn::new(support::example("starved-owner"));
    let (child, _events) = start(&owner, starved);
    assert_eq!(child.wait().expect("exit").status, ExitStatus::Code(0));
}

#[test]
fn many_threads_may_end_what_others_start() {
    let owner = owner();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..10 {
                    let (child, events) = start(&owner, Spawn::new("sleep").arg("600"));
                    child.end(Duration::from_secs(60));
                    child.wait_empty().expect("empty");
                    assert_eq!(events.iter().take(2).count(), 2);
                }
            });
        }
    });
}

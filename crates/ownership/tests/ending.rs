//! Ending: whatever a child does to get away, its scope is empty when it is told to be.

mod support;

use std::fs;
use std::io::Read;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::{Duration, Instant};

use ownership::{ChildEvent, ExitStatus, Owned, Owner, Phase, Spawn};
use support::{Identity, owner, recorded, shell, start, wait_for};

const GRACE: Duration = Duration::from_millis(200);

/// Longer than any test: who dies before it, did not die of KILL.
const LONG: Duration = Duration::from_secs(600);

/// A member that runs until it is ended, made in several ways. Each writes its number to `$DIR/NAME`.
const SESSION: &str = r#"setsid sh -c 'echo $$ > "$DIR/session"; exec sleep 600' & "#;
const DAEMON: &str = r#"(setsid sh -c 'echo $$ > "$DIR/daemon"; exec sleep 600' &) ; "#;
const STUBBORN: &str = r#"sh -c 'trap "" TERM; echo $$ > "$DIR/stubborn"; exec sleep 600' & "#;
const STOPPED: &str =
    r#"setsid sh -c 'echo $$ > "$DIR/stopped"; kill -STOP $$; exec sleep 600' & "#;
const WHEN_TOLD: &str = r#"while ! [ -e "$DIR/go" ]; do sleep 0.01; done; "#;

fn script(dir: &Path, parts: &[&str]) -> Spawn {
    shell(&parts.concat()).env("DIR", dir).grace(GRACE)
}

fn gone(who: &[Identity]) {
    for one in who {
        assert!(!one.lives(), "{one:?} is left");
    }
}

#[test]
fn what_a_child_leaves_is_ended_and_named() {
    let dir = tempfile::tempdir().expect("dir");
    let owner = owner();
    let (child, events) =
        start(&owner, script(dir.path(), &[SESSION, DAEMON, WHEN_TOLD, "exit 3"]));
    let members = ["session", "daemon"].map(|name| recorded(dir.path(), name));
    fs::write(dir.path().join("go"), "").expect("write");
    assert_eq!(child.wait().expect("exit").status, ExitStatus::Code(3));
    let empty = child.wait_empty().expect("empty");
    gone(&members);
    assert!(empty.left.is_empty());
    assert_eq!(empty.leftover_count, 2, "{empty:?}");
    let mut named: Vec<_> = empty.leftovers.iter().map(|l| l.pid.cast_signed()).collect();
    let mut expected: Vec<_> = members.iter().map(|member| member.pid).collect();
    named.sort_unstable();
    expected.sort_unstable();
    assert_eq!(named, expected);
    let events: Vec<_> = events.iter().take(2).collect();
    assert!(matches!(events[..], [ChildEvent::Exited(_), ChildEvent::Emptied(_)]));
}

#[test]
fn ending_a_scope_ends_who_has_left_its_group() {
    let dir = tempfile::tempdir().expect("dir");
    let owner = owner();
    let (child, _events) = start(&owner, script(dir.path(), &[SESSION, DAEMON, "wait; sleep 600"]));
    let members = ["session", "daemon"].map(|name| recorded(dir.path(), name));
    child.end(LONG);
    assert!(child.wait_empty().expect("empty").left.is_empty());
    gone(&members);
}

#[test]
fn a_member_that_ignores_term_is_killed_after_the_grace_and_not_before() {
    let dir = tempfile::tempdir().expect("dir");
    let owner = owner();
    let (child, _events) = start(&owner, script(dir.path(), &[STUBBORN, "wait; sleep 600"]));
    let stubborn = recorded(dir.path(), "stubborn");
    #[expect(clippy::disallowed_methods, reason = "the test measures a grace")]
    let begun = Instant::now();
    child.end(GRACE);
    child.wait_empty().expect("empty");
    assert!(begun.elapsed() >= GRACE, "it had its grace");
    gone(&[stubborn]);
}

#[test]
fn a_second_order_can_only_shorten_the_grace() {
    let dir = tempfile::tempdir().expect("dir");
    let owner = owner();
    let (child, _events) = start(&owner, script(dir.path(), &[STUBBORN, "wait; sleep 600"]));
    let stubborn = recorded(dir.path(), "stubborn");
    child.end(LONG);
    child.end(GRACE);
    child.end(LONG);
    child.wait_empty().expect("empty");
    gone(&[stubborn]);
}

#[test]
fn a_stopped_member_is_continued_so_that_term_reaches_it() {
    let dir = tempfile::tempdir().expect("dir");
    let owner = owner();
    let (child, _events) = start(&owner, script(dir.path(), &[STOPPED, "wait; sleep 600"]));
    let stopped = recorded(dir.path(), "stopped");
    wait_for("stopped", || (stopped.state()? == "T").then_some(()));
    // No KILL comes in time.
    child.end(LONG);
    child.wait_empty().expect("empty");
    gone(&[stopped]);
}

#[test]
fn dropping_a_child_ends_it() {
    let dir = tempfile::tempdir().expect("dir");
    let owner = owner();
    let (child, events) = start(&owner, script(dir.path(), &[DAEMON, "sleep 600"]));
    let daemon = recorded(dir.path(), "daemon");
    drop(child);
    let events: Vec<_> = events.iter().take(2).collect();
    assert!(matches!(events[..], [ChildEvent::Exited(_), ChildEvent::Emptied(_)]), "{events:?}");
    gone(&[daemon]);
}

/// RB-18: a grandchild that keeps the pipe does not keep the exit back, and is ended.
#[test]
fn a_grandchild_that_keeps_the_pipe_is_ended_with_its_scope() {
    let owner = owner();
    let (read, write) = std::io::pipe().expect("pipe");
    let spawn = shell("(setsid sleep 600 &) ; echo done").fd(1, write.into()).grace(GRACE);
    let (child, _events) = start(&owner, spawn);
    let exit = child.wait().expect("exit");
    assert_eq!(exit.status, ExitStatus::Code(0));
    let mut text = String::new();
    fs::File::from(OwnedFd::from(read)).read_to_string(&mut text).expect("end of file");
    assert_eq!(text, "done\n");
    child.wait_empty().expect("empty");
}

#[test]
fn pausing_stops_all_of_a_scope_and_resuming_continues_it() {
    let dir = tempfile::tempdir().expect("dir");
    let owner = owner();
    // The shell sleeps in state D while what it starts is stopped before its exec: not until then.
    let last = r#"sh -c 'echo $$ > "$DIR/last"; exec sleep 600'; "#;
    let (child, _events) = start(&owner, script(dir.path(), &[SESSION, DAEMON, last]));
    let mut members = ["session", "daemon", "last"].map(|n| recorded(dir.path(), n)).to_vec();
    members.push(Identity::of(child.pid().cast_signed()).expect("child"));
    let all = |state: &str| members.iter().all(|m| m.state().as_deref() == Some(state));
    child.pause();
    wait_for("all stopped", || all("T").then_some(()));
    child.resume();
    wait_for("all continued", || all("S").then_some(()));
    child.kill();
    child.wait_empty().expect("empty");
    gone(&members);
}

/// What a process with a line starts over it. The test plays that process: it takes the line from the
/// owner by opening a scope, which is the same kind of line.
#[test]
fn a_scope_without_a_process_ends_what_was_started_in_it() {
    let dir = tempfile::tempdir().expect("dir");
    let owner = owner();
    let (tell, events) = std::sync::mpsc::channel();
    let scope = owner.scope("test", move |event| drop(tell.send(event))).expect("scope");
    let inner = scope.owner();
    let (child, child_events) = start(&inner, script(dir.path(), &[DAEMON, "sleep 600"]));
    let daemon = recorded(dir.path(), "daemon");
    let (beside, _beside_events) = start(&owner, Spawn::new("sleep").arg("600"));
    scope.end(GRACE);
    assert!(matches!(events.recv(), Ok(ChildEvent::Emptied(_))));
    gone(&[daemon]);
    assert!(child.wait().is_some() && child.wait_empty().is_some());
    assert_eq!(child_events.iter().take(2).count(), 2);
    let beside_lives = Identity::of(beside.pid().cast_signed()).is_some_and(Identity::lives);
    assert!(beside_lives, "another scope is not touched");
    let error = inner.spawn(shell("true"), |_| {}).expect_err("the scope is over");
    assert!(matches!(error.phase, Phase::Supervisor | Phase::Request), "{error}");
}

#[test]
fn dropping_a_scope_ends_it() {
    let owner = owner();
    let (tell, events) = std::sync::mpsc::channel();
    let scope = owner.scope("test", move |event| drop(tell.send(event))).expect("scope");
    let (child, _events) = start(&scope.owner(), Spawn::new("sleep").arg("600"));
    drop(scope);
    assert!(matches!(events.recv(), Ok(ChildEvent::Emptied(_))));
    assert!(matches!(child.wait().expect("exit").status, ExitStatus::Signal { .. }));
}

/// The program of the child: takes its line, starts a process over it, and tells its number.
#[test]
fn what_a_child_starts_over_its_line_ends_with_the_child() {
    let dir = tempfile::tempdir().expect("dir");
    let owner = owner();
    let nested = support::example("line-user");
    let spawn = Spawn::new(nested).arg(dir.path()).line(4).grace(GRACE);
    let (child, _events) = start(&owner, spawn);
    let inner = recorded(dir.path(), "inner");
    let own = Identity::of(child.pid().cast_signed()).expect("child");
    assert_eq!(inner.parent(), own.parent(), "started by the same supervisor");
    own.kill();
    let exit = child.wait().expect("exit");
    assert!(matches!(exit.status, ExitStatus::Signal { signal: libc::SIGKILL, .. }));
    child.wait_empty().expect("empty");
    gone(&[inner]);
}

#[test]
fn no_zombie_and_no_descriptor_is_left_of_500_children() {
    let owner = owner();
    let (keeper, _events) = start(&owner, Spawn::new("sleep").arg("600"));
    let supervisor = support::supervisor_of(&keeper);
    let count = |pid: i32| fs::read_dir(format!("/proc/{pid}/fd")).expect("fds").count();
    let run = |children: usize| {
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for at in 0..children / 4 {
                        if at % 5 == 0 {
                            owner.spawn(Spawn::new("/no/such/program"), |_| {}).expect_err("none");
                            continue;
                        }
                        let (child, _events) = start(&owner, Spawn::new("true").line(4));
                        child.wait_empty().expect("empty");
                    }
                });
            }
        });
    };
    run(20);
    let own = std::process::id().cast_signed();
    let before = (count(own), count(supervisor.pid));
    run(500);
    // Other tests of this program open and close descriptors meanwhile.
    wait_for("no descriptor is left", || {
        (count(supervisor.pid) <= before.1 && count(own) <= before.0 + 64).then_some(())
    });
    let keeper_pid = keeper.pid().cast_signed();
    let mut children = support::children_of(supervisor.pid);
    // Number 1 of the keeper's namespace, where it has one.
    children
        .retain(|pid| Identity::of(*pid).is_none_or(|who| who.name() != "porter" || !who.lives()));
    assert_eq!(children, [keeper_pid].into(), "no zombies");
}

#[test]
fn the_pidfd_is_readable_when_the_child_has_ended() {
    use rustix::event::{PollFd, PollFlags, poll};
    let owner: Owner = owner();
    let (child, _events): (Owned, _) = start(&owner, shell("exit 0"));
    let pidfd = child.pidfd();
    let mut asked = [PollFd::from_borrowed_fd(pidfd, PollFlags::IN)];
    assert_eq!(poll(&mut asked, None), Ok(1));
}

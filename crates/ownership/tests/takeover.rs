//! What is easily lost, done twice or kept for ever when a guard takes over: nested lines, wishes, answers,
//! descriptors and rows.

#[path = "../examples/support/player.rs"]
mod player;
mod support;
use support::process;

use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use ownership::{ChildEvent, Owned, Owner, Program, Spawn};
use player::Player;
use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, Signal, pidfd_getfd, pidfd_open};
use support::{Identity, TreeOwner, example, owner, recorded, shell, start, wait_for};

const GRACE: Duration = Duration::from_millis(300);

/// Longer than any test.
const LONG: Duration = Duration::from_secs(600);

fn sleeper() -> Spawn {
    Spawn::new("sleep").arg("600")
}

fn identity(child: &Owned) -> Identity {
    Identity::of(child.pid().cast_signed()).expect("child")
}

/// Both guards of an owner.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Guards {
    keeper: Identity,
    supervisor: Identity,
}

impl Guards {
    /// Those of a child, once both are there.
    fn of(child: Identity) -> Self {
        wait_for("guards", || Self::both(process::Guards::of(child)?))
    }

    /// Those with this variable.
    fn marked(entry: &str) -> Option<Self> {
        Self::both(process::Guards::marked(entry)?)
    }

    fn both(guards: process::Guards) -> Option<Self> {
        Some(Self { keeper: guards.keeper?, supervisor: guards.supervisor })
    }
}

fn guards(child: &Owned) -> Guards {
    Guards::of(identity(child))
}

fn gone(who: Identity) {
    wait_for("it is gone", || (!who.lives()).then_some(()));
}

/// The supervisor below a keeper, once it is set up.
fn supervisor_below(keeper: Identity) -> Identity {
    wait_for("a supervisor below", || minder_below(keeper))
}

fn minder_below(keeper: Identity) -> Option<Identity> {
    let below = support::children_of(keeper.pid).into_iter().filter_map(Identity::of);
    below.into_iter().find(|guard| guard.name() == "minder" && guard.lives())
}

/// Kills one guard and gives both that follow.
fn replace(before: Guards, supervisor: bool) -> Guards {
    let (victim, keeper) = match supervisor {
        true => (before.supervisor, before.keeper),
        false => (before.keeper, before.supervisor),
    };
    victim.kill();
    gone(victim);
    Guards { keeper, supervisor: supervisor_below(keeper) }
}

fn descriptors(who: Identity) -> usize {
    std::fs::read_dir(format!("/proc/{}/fd", who.pid)).expect("descriptors").count()
}

/// An owner that does what it is told (`examples/scripted-owner.rs`).
fn scripted(dir: &Path, settings: &[(&str, &str)]) -> Player {
    let mut command = Command::new(example("scripted-owner"));
    command.env("DIR", dir).envs(settings.iter().copied());
    Player::start(&mut command)
}

/// Its first child, which stays.
fn first(player: &mut Player) -> Identity {
    player.say("spawn 1 50 exec sleep 600");
    player.ping().expect("an answer");
    player.started[&1]
}

fn end_of(mut player: Player) {
    player.process.kill().expect("kill");
    player.process.wait().expect("wait");
    wait_for("nothing is left", || player.alive().is_empty().then_some(()));
}

/// The keeper takes over a worker's line and starts something on it under a number of its own, which is lower
/// than the worker's; its own successor must not take that for a child of the owner.
#[test]
fn a_line_of_a_child_survives_two_guards() {
    let owner = owner();
    let dir = tempfile::tempdir().expect("dir");
    let user = Spawn::new(example("line-user")).arg(dir.path()).line(4);
    let (child, events) = start(&owner, user);
    let (_beside, beside_events) = start(&owner, sleeper());
    let first = recorded(dir.path(), "inner");
    let after = replace(guards(&child), true);
    std::fs::write(dir.path().join("go"), "").expect("write");
    let second = recorded(dir.path(), "inner2");
    let after = replace(after, false);
    second.kill();
    first.kill();
    let told = || std::fs::read_to_string(dir.path().join("told")).ok();
    let told = wait_for("the worker is told both ends", told);
    assert!(!told.contains("lost"), "{told}");
    assert!(matches!(events.recv(), Ok(ChildEvent::Exited(_))));
    assert!(matches!(events.recv(), Ok(ChildEvent::Emptied(_))));
    assert!(beside_events.try_recv().is_err(), "it was told the end of somebody else");
    assert!(after.supervisor.lives());
}

#[test]
fn a_wish_that_guards_took_with_them_is_said_again() {
    let owner = owner();
    let (child, _events) = start(&owner, sleeper());
    let own = identity(&child);
    child.pause();
    wait_for("stopped", || (own.state()? == "T").then_some(()));
    let before = guards(&child);
    before.supervisor.signal(Signal::STOP);
    child.resume();
    before.keeper.kill();
    before.supervisor.kill();
    wait_for("it goes on", || (own.state()? != "T").then_some(()));
}

/// What was to end within ten minutes is not killed after the third of a second that it was started with.
#[test]
fn an_end_keeps_its_grace() {
    let owner = owner();
    let stubborn = |events: &str| {
        let script =
            format!("trap '' TERM; echo $$ > \"$DIR/{events}\"; while :; do sleep 1; done");
        shell(&script).grace(GRACE)
    };
    let dir = tempfile::tempdir().expect("dir");
    let (patient, _events) = start(&owner, stubborn("patient").env("DIR", dir.path()));
    let own = recorded(dir.path(), "patient");
    patient.end(LONG);
    let (beside, _events) = start(&owner, sleeper());
    replace(guards(&beside), true);
    let (other, _events) = start(&owner, stubborn("other").env("DIR", dir.path()));
    recorded(dir.path(), "other");
    other.end(GRACE * 2);
    other.wait_empty().expect("empty");
    assert!(own.lives(), "killed before its time");
    patient.kill();
    patient.wait_empty().expect("empty");
}

/// A callback ends another child while the line is full, because the guard that should read it is stopped: the
/// thread that reads the line must not wait for it.
#[test]
#[expect(clippy::disallowed_methods, reason = "to see that a thread does not go on")]
fn a_callback_that_ends_another_does_not_wait_for_a_stopped_guard() {
    let owner = owner();
    let (beside, told) = start(&owner, sleeper());
    let beside = std::sync::Arc::new(beside);
    let before = guards(&beside);
    let victim = std::sync::Arc::clone(&beside);
    let noticed = owner.spawn(sleeper(), move |_| victim.end(GRACE)).expect("spawn");
    let noticed_own = identity(&noticed);
    let after = replace(before, true);
    // What the keeper has is told by it, although the new supervisor is stopped.
    let (other, _events) = start(&owner, sleeper());
    assert_eq!(guards(&other), after);
    after.supervisor.signal(Signal::STOP);
    let said = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for _ in 0..2000 {
                other.end(LONG);
                said.fetch_add(1, Ordering::Relaxed);
            }
        });
        let full = || {
            let before = said.load(Ordering::Relaxed);
            std::thread::sleep(Duration::from_millis(20));
            (before > 50 && said.load(Ordering::Relaxed) == before).then_some(())
        };
        wait_for("the line is full", full);
        noticed_own.kill();
        wait_for("the callback's wish is done", || told.try_recv().ok());
    });
}

#[test]
fn a_callback_that_starts_something_is_told_that_it_may_not() {
    let owner = owner();
    let (tell, told) = std::sync::mpsc::channel();
    let starter = owner.clone();
    let child = owner.spawn(shell("exit 0"), move |_| {
        let error = starter.spawn(shell("exit 0"), |_| {}).map(|child| child.pid());
        tell.send(error.expect_err("refused").errno).ok();
    });
    let child = child.expect("spawn");
    assert_eq!(told.recv(), Ok(Some(libc::EDEADLK)));
    child.wait_empty().expect("empty");
}

/// The guard dies with the only copy of what it was about to hand out.
#[test]
fn a_scope_that_was_not_handed_out_is_asked_for_again() {
    if support::no_hooks() {
        return;
    }
    let dir = tempfile::tempdir().expect("dir");
    let mut player = scripted(dir.path(), &[("OWNERSHIP_TEST_DIE_AT", "before-opened")]);
    player.say("scope 1");
    player.say("within 1 2 50 exec sleep 600");
    player.ping().expect("answers");
    assert_eq!((player.told("opened", 1), player.told("started", 2)), (1, 1));
    player.say("end 1 50");
    player.until("its end", |player| player.told("emptied", 1) == 1).expect("told");
    end_of(player);
}

#[test]
fn a_scope_goes_on_over_two_guards_and_ends_once() {
    let dir = tempfile::tempdir().expect("dir");
    let mut player = scripted(dir.path(), &[]);
    let first = first(&mut player);
    player.say("scope 2");
    player.say("within 2 3 50 exec sleep 600");
    player.ping().expect("answers");
    let after = replace(Guards::of(first), true);
    player.say("within 2 4 50 exec sleep 600");
    player.ping().expect("answers");
    replace(after, false);
    player.say("within 2 5 50 exec sleep 600");
    player.ping().expect("answers");
    // On the scope's own line, which no ping of the owner's waits for.
    player.until("all have started", |player| player.alive().len() == 4).expect("told");
    player.say("end 2 50");
    player.until("its end", |player| player.told("emptied", 2) == 1).expect("told");
    assert_eq!(player.alive(), [first]);
    player.ping().expect("answers");
    for id in [3, 4, 5] {
        assert!(player.told("exited", id) <= 1 && player.told("lost", id) <= 1);
    }
    assert_eq!((player.told("emptied", 2), player.told("exited", 1)), (1, 0));
    end_of(player);
}

/// Copies of lines for a keeper that is stopped must not fill the supervisor.
#[test]
fn a_stopped_keeper_costs_no_descriptors() {
    let owner = owner();
    let (stays, _events) = start(&owner, sleeper());
    let guards = guards(&stays);
    guards.keeper.signal(Signal::STOP);
    let before = descriptors(guards.supervisor);
    for _ in 0..400 {
        let (child, _events) = start(&owner, shell("exit 0").line(4));
        child.wait_empty().expect("empty");
    }
    let after = descriptors(guards.supervisor);
    assert!(after <= before + 2, "{before} before, {after} after");
    guards.keeper.signal(Signal::CONT);
}

/// The first word of the table: one above the highest row that was ever used.
fn rows_used(guard: Identity) -> u64 {
    use std::io::Read;
    let dir = format!("/proc/{}/fd", guard.pid);
    let fds = std::fs::read_dir(dir).expect("descriptors").flatten();
    let named = |path: &Path| {
        std::fs::read_link(path).is_ok_and(|to| to.to_string_lossy().starts_with("/memfd:table"))
    };
    let table = fds.map(|fd| fd.path()).find(|path| named(path)).expect("table");
    let mut word = [0; 8];
    std::fs::File::open(table).expect("open").read_exact(&mut word).expect("read");
    u64::from_ne_bytes(word)
}

/// `OWNERSHIP_CHILDREN` sets how many; a few by default.
#[test]
fn many_short_children_with_lines_leave_nothing_in_the_guards() {
    let many = std::env::var("OWNERSHIP_CHILDREN").ok().and_then(|many| many.parse().ok());
    let owner = owner();
    let (stays, _events) = start(&owner, sleeper().line(4));
    let guards = guards(&stays);
    let [keeper, supervisor] = [guards.keeper, guards.supervisor];
    let before = [keeper, supervisor].map(descriptors);
    for _ in 0..many.unwrap_or(1000) {
        let (child, _events) = start(&owner, shell("exit 0").line(4));
        child.wait_empty().expect("empty");
    }
    let after = [keeper, supervisor].map(descriptors);
    assert!(after[0] <= before[0] + 2 && after[1] <= before[1] + 2, "{before:?}, {after:?}");
    assert!(rows_used(keeper) <= 3, "{} rows", rows_used(keeper));
    assert_eq!((guards.keeper.lives(), guards.supervisor.lives()), (true, true));
}

/// Somebody holds the owner's end of the line and never reads: a copy of it by fork does that.
#[test]
fn guards_leave_although_a_copy_of_the_owner_holds_its_line() {
    let dir = tempfile::tempdir().expect("dir");
    let mut player = scripted(dir.path(), &[]);
    let first = first(&mut player);
    for id in 2..400 {
        player.say(&format!("spawn {id} 50 exec sleep 600"));
    }
    player.ping().expect("answers");
    let after = replace(Guards::of(first), true);
    let held = sockets_of(player.identity);
    assert!(!held.is_empty());
    end_of(player);
    wait_for("guards leave", || (!after.keeper.lives() && !after.supervisor.lives()).then_some(()));
    drop(held);
}

fn sockets_of(who: Identity) -> Vec<OwnedFd> {
    let handle = pidfd_open(Pid::from_raw(who.pid).expect("number"), PidfdFlags::empty());
    let handle = handle.expect("handle");
    let fds = std::fs::read_dir(format!("/proc/{}/fd", who.pid)).expect("descriptors").flatten();
    let sockets = fds.filter(|fd| {
        std::fs::read_link(fd.path()).is_ok_and(|to| to.to_string_lossy().starts_with("socket:"))
    });
    let numbers = sockets.filter_map(|fd| fd.file_name().to_str()?.parse().ok());
    numbers.filter_map(|fd| pidfd_getfd(&handle, fd, PidfdGetfdFlags::empty()).ok()).collect()
}

/// It has no line any more, and its children are guarded by two all the same.
#[test]
fn an_owner_that_executed_another_program_keeps_two_guards() {
    let mut owner = TreeOwner::start(GRACE, "");
    let before = Guards::of(owner.members[0].1);
    owner.tell("exec");
    let own = Identity::of(owner.process.id().cast_signed()).expect("owner");
    wait_for("it is another program", || (own.name() == "sleep").then_some(()));
    let after = replace(before, false);
    let last = replace(after, false);
    assert_eq!(owner.living().len(), owner.members.len(), "{:?}", owner.living());
    owner.process.kill().expect("kill");
    owner.process.wait().expect("wait");
    wait_for("nothing is left", || owner.living().is_empty().then_some(()));
    gone(last.keeper);
}

/// A root that gives up being a subreaper leaves its daemons to us while it lives: nobody's but the owner's.
#[test]
fn guards_do_not_leave_while_the_keeper_has_an_orphan() {
    if support::no_hooks() {
        return;
    }
    let dir = tempfile::tempdir().expect("dir");
    let program = support::loose_program(dir.path());
    // Without a cgroup nothing tells whose the orphan is, and it stays until the owner's end.
    let settings = [("OWNERSHIP_TEST_IDLE_MS", "100"), ("OWNERSHIP_TEST_CONTAINMENT", "subreaper")];
    let mut player = scripted(dir.path(), &settings);
    player.say(&format!("spawn 1 50 exec '{}'", program.display()));
    player.ping().expect("answers");
    let daemon = recorded(dir.path(), "daemon");
    let before = Guards::of(player.started[&1]);
    wait_for("it was left to the supervisor", || {
        (daemon.parent() == Some(before.supervisor.pid)).then_some(())
    });
    let after = replace(before, true);
    player.say("end 1 50");
    player.until("its end", |player| player.told("emptied", 1) == 1).expect("told");
    gone(after.supervisor);
    assert!(daemon.lives());
    end_of(player);
    gone(daemon);
}

/// A supervisor that ends by itself is not tried again and again.
#[test]
fn a_keeper_whose_supervisor_cannot_start_serves_alone() {
    if support::no_hooks() {
        return;
    }
    for how in ["exit-at-start", "abort-at-start"] {
        let dir = tempfile::tempdir().expect("dir");
        let mut player = scripted(dir.path(), &[("OWNERSHIP_TEST_OFF", how)]);
        let first = first(&mut player);
        let keeper = first.parent().and_then(Identity::of).expect("keeper");
        assert_eq!(keeper.name(), "warden", "{how}");
        // One that tries again and again does not sleep for long.
        let switches = || {
            let status = std::fs::read_to_string(format!("/proc/{}/status", keeper.pid));
            let status = status.expect("status");
            let line = status.lines().find(|line| line.starts_with("voluntary")).expect("switches");
            line.to_owned()
        };
        let mut last = (switches(), 0);
        wait_for("it sleeps", || {
            let now = switches();
            last = if now == last.0 { (now, last.1 + 1) } else { (now, 0) };
            (last.1 > 50).then_some(())
        });
        player.say("spawn 2 50 exit 7");
        player.until("its end", |player| player.told("emptied", 2) == 1).expect("told");
        assert!(player.of(2).contains(&"exited 7".to_owned()), "{:?}", player.of(2));
        assert_eq!(minder_below(keeper), None);
        end_of(player);
        gone(keeper);
    }
}

/// An update replaces the program while it runs.
#[test]
fn a_guard_whose_program_was_removed_is_replaced() {
    let dir = tempfile::tempdir().expect("dir");
    let program = dir.path().join("guard");
    std::fs::copy(env!("CARGO_BIN_EXE_ownership-supervisor"), &program).expect("copy");
    let owner = Owner::new(Program::named(&program), Vec::new());
    let (child, _events) = start(&owner, sleeper());
    std::fs::remove_file(&program).expect("remove");
    let after = replace(guards(&child), true);
    let after = replace(after, false);
    let (next, _events) = start(&owner, sleeper());
    assert_eq!(guards(&next), after);
    assert!(identity(&child).lives());
}

/// A request that travels as a memfd, because the environment is large, is asked for again whole.
#[test]
fn a_large_request_is_asked_for_again() {
    if support::no_hooks() {
        return;
    }
    let dir = tempfile::tempdir().expect("dir");
    let large = "x".repeat(100_000);
    let settings = [
        ("OWNERSHIP_TEST_DIE_AT", "claimed"),
        ("LARGE_1", large.as_str()),
        ("LARGE_2", large.as_str()),
        ("LARGE_3", large.as_str()),
    ];
    let mut player = scripted(dir.path(), &settings);
    player.say(r#"spawn 1 50 echo "${#LARGE_1} ${#LARGE_2} ${#LARGE_3}" >> "$DIR/sizes""#);
    player.until("its end", |player| player.told("emptied", 1) == 1).expect("told");
    let sizes = std::fs::read_to_string(dir.path().join("sizes")).expect("sizes");
    assert_eq!(sizes, "100000 100000 100000\n", "once, and whole");
    end_of(player);
}

/// Many children, some of which die while nobody watches them, and a start that is asked for meanwhile.
#[test]
fn hundreds_of_children_are_handed_over() {
    let dir = tempfile::tempdir().expect("dir");
    let mut player = scripted(dir.path(), &[]);
    let first = first(&mut player);
    for id in 2..=500 {
        player.say(&format!("spawn {id} 50 exec sleep 600"));
    }
    player.ping().expect("answers");
    let before = Guards::of(first);
    before.supervisor.signal(Signal::STOP);
    before.keeper.kill();
    for id in 100..150 {
        player.started[&id].kill();
    }
    before.supervisor.kill();
    player.say("spawn 501 50 exec sleep 600");
    player.ping().expect("answers");
    let all_told = |player: &Player| {
        (100..150).all(|id| player.told("exited", id) + player.told("lost", id) == 1)
    };
    player.until("the ends of the dead", all_told).expect("told");
    let after = Guards::of(player.started[&501]);
    assert_ne!(after.keeper, before.keeper);
    assert_eq!(player.alive().len(), 451);
    // What was handed over is known to both of the new guards.
    let after = replace(after, true);
    player.say("end 2 50");
    player.until("its end", |player| player.told("emptied", 2) == 1).expect("told");
    assert_eq!(player.alive().len(), 450);
    end_of(player);
    gone(after.keeper);
    gone(after.supervisor);
}

/// The first process of a container is the parent of everybody who loses his own, guards among them.
#[test]
fn guards_of_an_owner_that_is_the_first_process_are_reaped_and_cost_nothing() {
    let dir = tempfile::tempdir().expect("dir");
    let mut command = Command::new("setsid");
    command.args(["-w", "unshare", "--pid", "--fork", "--mount-proc", "--kill-child"]);
    command.arg(example("scripted-owner")).env("DIR", dir.path());
    let mut player = Player::start(&mut command);
    player.say("spawn 1 50 exec sleep 600");
    player.say("spawn 2 50 exec sleep 600");
    if player.ping().is_err() {
        eprintln!("SKIPPED: no pid namespace may be made here");
        return;
    }
    let mark = format!("DIR={}", dir.path().display());
    let mut guards = wait_for("guards", || Guards::marked(&mark));
    // The parent of the keeper, who is one for those outside too.
    let owner = guards.keeper.parent().and_then(Identity::of).expect("owner");
    assert_eq!(owner.name(), "scripted-owner");
    let before = descriptors(owner);
    for round in 0..12 {
        guards = replace(guards, round != 2);
        player.ping().expect("answers");
    }
    let zombies = || {
        let below = support::children_of(owner.pid).into_iter().filter_map(Identity::of);
        below.into_iter().filter(|child| child.state().as_deref() == Some("Z")).count()
    };
    wait_for("no zombie is left", || {
        // The next hello is the time at which it looks.
        guards = replace(guards, true);
        player.ping().expect("answers");
        (zombies() == 0).then_some(())
    });
    wait_for("as many descriptors as before, but for one keeper", || {
        (descriptors(owner) <= before + 2).then_some(())
    });
    player.process.kill().expect("kill");
    player.process.wait().expect("wait");
    gone(guards.keeper);
}

/// Guards are killed last for want of memory, and what they start is not.
#[test]
fn children_do_not_have_their_guards_oom_score() {
    let score = |pid: i32| {
        let text = std::fs::read_to_string(format!("/proc/{pid}/oom_score_adj"));
        text.expect("score").trim().parse::<i32>().expect("number")
    };
    let own = score(std::process::id().cast_signed());
    let owner = owner();
    let (child, _events) = start(&owner, sleeper());
    assert_eq!(score(identity(&child).pid), own);
    let guards = guards(&child);
    let after = replace(guards, true);
    let (next, _events) = start(&owner, sleeper());
    assert_eq!(score(identity(&next).pid), own, "the next one's neither");
    let lowered = score(guards.keeper.pid);
    if lowered == own {
        eprintln!("SKIPPED: the score may not be lowered here");
        return;
    }
    assert!(lowered < own);
    wait_for("both have it", || (score(after.supervisor.pid) == lowered).then_some(()));
    assert_eq!(score(after.keeper.pid), lowered, "a child's own is not its parent's");
}

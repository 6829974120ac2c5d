//! Guards that are killed, stopped or do not answer: the survivor goes on, no living child of a living
//! owner dies, and nothing is left when the owner dies after all.

mod support;

use std::time::Duration;

use ownership::{ChildEvent, ExitStatus, Owned, Spawn};
use rustix::process::{Pid, Signal, kill_process};
use support::{
    Identity, TreeOwner, kill_both, owner, recorded, shell, start, supervisor_of, wait_for,
};

const GRACE: Duration = Duration::from_millis(300);

/// Both guards of an owner.
#[derive(Clone, Copy)]
struct Guards {
    keeper: Identity,
    supervisor: Identity,
}

impl Guards {
    /// Of the owner of a child that was just started.
    fn of(child: &Owned) -> Self {
        Self::above(supervisor_of(child))
    }

    fn above(supervisor: Identity) -> Self {
        let keeper = supervisor.parent().and_then(Identity::of).expect("keeper");
        Self { keeper, supervisor }
    }

    /// Those that follow when `of` have been killed: the parent of a child that is started now.
    fn next(owner: &ownership::Owner) -> (Self, Owned) {
        let (child, _events) = start(owner, Spawn::new("sleep").arg("600"));
        (Self::of(&child), child)
    }
}

fn signal(who: Identity, number: Signal) {
    kill_process(Pid::from_raw(who.pid).expect("number"), number).expect("signal");
}

fn gone(who: Identity) {
    wait_for("the guard is gone", || (!who.lives()).then_some(()));
}

fn sleeper() -> Spawn {
    Spawn::new("sleep").arg("600")
}

/// A child that was started before is alive, can be ended, and its end is told once.
fn ends_properly(child: &Owned, events: &std::sync::mpsc::Receiver<ChildEvent>) {
    let own = Identity::of(child.pid().cast_signed()).expect("it lives");
    assert!(own.lives());
    child.end(GRACE);
    let emptied = child.wait_empty().expect("empty");
    assert!(emptied.left.is_empty(), "{emptied:?}");
    assert!(!own.lives());
    let told: Vec<_> = events.try_iter().collect();
    assert!(
        matches!(told[..], [ChildEvent::Exited(_), ChildEvent::Emptied(_)]),
        "each thing once: {told:?}"
    );
}

#[test]
fn c53_a_killed_supervisor_is_replaced_and_its_children_live() {
    let owner = owner();
    let (child, events) = start(&owner, sleeper());
    let before = Guards::of(&child);
    before.supervisor.kill();
    gone(before.supervisor);
    let own = Identity::of(child.pid().cast_signed()).expect("it lives");
    wait_for("the keeper is its parent", || {
        (own.parent() == Some(before.keeper.pid)).then_some(())
    });
    let (after, _next) = Guards::next(&owner);
    assert_eq!(after.keeper, before.keeper);
    assert_ne!(after.supervisor, before.supervisor);
    ends_properly(&child, &events);
}

#[test]
fn a_killed_keeper_is_followed_by_its_supervisor() {
    let owner = owner();
    let (child, events) = start(&owner, sleeper());
    let before = Guards::of(&child);
    before.keeper.kill();
    gone(before.keeper);
    let (after, _next) = wait_next(&owner, before.supervisor);
    assert_eq!(after.keeper, before.supervisor);
    let own = Identity::of(child.pid().cast_signed()).expect("it lives");
    assert_eq!(own.parent(), Some(before.supervisor.pid));
    ends_properly(&child, &events);
}

/// The kernel hands what a dying supervisor had to the keeper before that one is seen dead: a child of the keeper's own
/// that dies in the same moment has left none of it.
#[test]
fn what_the_other_guard_had_is_nobodys_leavings() {
    let owner = owner();
    let (mut own, _events) = start(&owner, sleeper());
    for round in 0..5 {
        let first = Guards::of(&own);
        first.supervisor.kill();
        gone(first.supervisor);
        let (guards, below) = Guards::next(&owner);
        let (beside, _events) = start(&owner, sleeper());
        let others =
            [&below, &beside].map(|child| Identity::of(child.pid().cast_signed()).unwrap());
        signal(guards.keeper, Signal::STOP);
        wait_for("it stands", || (guards.keeper.state().as_deref() == Some("T")).then_some(()));
        guards.supervisor.kill();
        gone(guards.supervisor);
        let dying = Identity::of(own.pid().cast_signed()).unwrap();
        dying.kill();
        gone(dying);
        signal(guards.keeper, Signal::CONT);
        let emptied = own.wait_empty().expect("its end");
        assert_eq!(emptied.leftover_count, 0, "round {round}: {emptied:?}");
        for other in others {
            wait_for("the keeper is its parent", || {
                (other.parent() == Some(guards.keeper.pid)).then_some(())
            });
            assert!(other.lives(), "round {round}");
        }
        own = Guards::next(&owner).1;
    }
}

/// Starts children until one has this keeper.
fn wait_next(owner: &ownership::Owner, keeper: Identity) -> (Guards, Owned) {
    wait_for("a supervisor below the new keeper", || {
        let (guards, child) = Guards::next(owner);
        (guards.keeper == keeper).then_some((guards, child))
    })
}

#[test]
fn both_killed_children_are_handed_to_others() {
    let owner = owner();
    let (child, events) = start(&owner, sleeper());
    let before = Guards::of(&child);
    kill_both(before.keeper, before.supervisor);
    let (after, _next) = Guards::next(&owner);
    assert_ne!(after.keeper, before.keeper);
    ends_properly(&child, &events);
}

/// Whoever is killed, in any order: first living children are kept, then nothing is left.
#[test]
fn any_order_of_deaths_keeps_the_tree_and_then_leaves_nothing() {
    for killed in ["s", "k", "ss", "sk", "ks", "kk", "sss", "ksk"] {
        let mut owner = TreeOwner::start(GRACE, "");
        let mut guards = Guards::above(owner.supervisor);
        for (at, which) in killed.chars().enumerate() {
            let victim = if which == 's' { guards.supervisor } else { guards.keeper };
            victim.kill();
            gone(victim);
            let keeper = if which == 's' { guards.keeper } else { guards.supervisor };
            let supervisor = wait_for(&format!("{killed}: {at}: a supervisor below"), || {
                supervisor_below(keeper)
            });
            guards = Guards { keeper, supervisor };
        }
        assert!(owner.is_whole(), "{killed}: {:?}", owner.living());
        owner.process.kill().expect("kill");
        owner.process.wait().expect("wait");
        wait_for(&format!("{killed}: nothing is left"), || owner.living().is_empty().then_some(()));
        wait_for(&format!("{killed}: guards leave"), || {
            (!guards.keeper.lives() && !guards.supervisor.lives()).then_some(())
        });
    }
}

/// The supervisor that a keeper has started, once it is set up.
fn supervisor_below(keeper: Identity) -> Option<Identity> {
    support::children_of(keeper.pid).into_iter().find_map(|pid| {
        let name = std::fs::read_to_string(format!("/proc/{pid}/comm")).ok()?;
        Identity::of(pid).filter(|guard| name == "minder\n" && guard.lives())
    })
}

#[test]
fn owner_and_one_guard_killed_together_leave_nothing() {
    for which in ["supervisor", "keeper"] {
        for first in ["owner", "guard"] {
            let mut owner = TreeOwner::start(GRACE, "");
            let guards = Guards::above(owner.supervisor);
            let victim = if which == "keeper" { guards.keeper } else { guards.supervisor };
            if first == "guard" {
                victim.kill();
            }
            owner.process.kill().expect("kill");
            victim.kill();
            owner.process.wait().expect("wait");
            wait_for(&format!("{first} first, {which}: nothing is left"), || {
                owner.living().is_empty().then_some(())
            });
        }
    }
}

#[test]
fn a_stopped_supervisor_does_not_keep_a_dead_owners_children() {
    let mut owner = TreeOwner::start(GRACE, "");
    signal(owner.supervisor, Signal::STOP);
    owner.process.kill().expect("kill");
    owner.process.wait().expect("wait");
    wait_for("nothing is left", || owner.living().is_empty().then_some(()));
}

#[test]
fn a_stopped_keeper_does_not_keep_a_dead_owners_children() {
    let mut owner = TreeOwner::start(GRACE, "");
    let guards = Guards::above(owner.supervisor);
    // It has something of its own to end.
    guards.supervisor.kill();
    gone(guards.supervisor);
    let supervisor = wait_for("a supervisor", || supervisor_below(guards.keeper));
    signal(guards.keeper, Signal::STOP);
    owner.process.kill().expect("kill");
    owner.process.wait().expect("wait");
    wait_for("nothing is left", || owner.living().is_empty().then_some(()));
    wait_for("guards leave", || (!supervisor.lives() && !guards.keeper.lives()).then_some(()));
}

#[test]
fn a_supervisor_that_does_not_answer_is_replaced() {
    let owner = owner();
    let (child, events) = start(&owner, sleeper());
    let before = Guards::of(&child);
    signal(before.supervisor, Signal::STOP);
    let (after, _next) = Guards::next(&owner);
    assert_eq!(after.keeper, before.keeper);
    gone(before.supervisor);
    ends_properly(&child, &events);
}

/// Ending has no answer of its own, and is noticed all the same.
#[test]
fn a_stopped_supervisor_does_not_hold_up_an_end() {
    let owner = owner();
    let (child, _events) = start(&owner, sleeper());
    signal(supervisor_of(&child), Signal::STOP);
    child.end(GRACE);
    child.wait_empty().expect("empty");
}

/// A worker's line goes on: what it starts after the supervisor's death is in its scope as before.
#[test]
fn a_line_of_a_child_survives_the_supervisor() {
    let owner = owner();
    let dir = tempfile::tempdir().expect("dir");
    let user = support::example("line-user");
    let (child, _events) = start(&owner, Spawn::new(user).arg(dir.path()).line(4));
    let first = recorded(dir.path(), "inner");
    let before = Guards::of(&child);
    before.supervisor.kill();
    gone(before.supervisor);
    std::fs::write(dir.path().join("go"), "").expect("write");
    let second = recorded(dir.path(), "inner2");
    assert!(first.lives() && second.lives());
    assert_eq!(
        second.parent(),
        Some(before.keeper.pid),
        "the keeper serves the lines that it keeps"
    );
    child.end(GRACE);
    child.wait_empty().expect("empty");
    assert!(!first.lives() && !second.lives());
}

/// Requests cross the deaths of supervisors: each is answered, and none is done twice.
#[test]
fn starts_that_cross_a_death_are_done_once() {
    let owner = owner();
    let dir = tempfile::tempdir().expect("dir");
    let mark = dir.path().join("starts");
    let children = std::thread::scope(|scope| {
        let starters: Vec<_> = (0..4)
            .map(|thread| {
                let (owner, mark) = (&owner, &mark);
                scope.spawn(move || {
                    let one = |at: usize| {
                        let script =
                            format!("echo {thread}.{at} >> {}; exec sleep 600", mark.display());
                        start(owner, shell(&script))
                    };
                    (0..25).map(one).collect::<Vec<_>>()
                })
            })
            .collect();
        for kill in 0..20 {
            // Spread over the starts.
            wait_for("the starts go on", || (lines_of(&mark).len() >= kill * 4).then_some(()));
            if let Some(guard) = any_guard(&owner) {
                guard.kill();
            }
        }
        starters.into_iter().flat_map(|starter| starter.join().expect("starts")).collect::<Vec<_>>()
    });
    let lines = wait_for("all have run", || {
        let lines = lines_of(&mark);
        (lines.len() >= 100).then_some(lines)
    });
    let distinct: std::collections::HashSet<_> = lines.iter().collect();
    assert_eq!((lines.len(), distinct.len()), (100, 100), "none lost, none twice");
    let dead: Vec<_> = children
        .iter()
        .filter(|(child, _)| Identity::of(child.pid().cast_signed()).is_none())
        .map(|(child, events)| (child.pid(), events.try_iter().collect::<Vec<_>>()))
        .collect();
    assert!(dead.is_empty(), "all of them live: {dead:?}");
    for (child, _) in &children {
        child.kill();
    }
    for (child, _) in &children {
        child.wait_empty().expect("empty");
    }
}

/// None where the file is not there yet.
fn lines_of(file: &std::path::Path) -> Vec<String> {
    let text = std::fs::read_to_string(file).unwrap_or_default();
    text.lines().map(str::to_owned).collect()
}

/// The supervisor of the moment, through a child of its own.
fn any_guard(owner: &ownership::Owner) -> Option<Identity> {
    let child = owner.spawn(shell("exit 0"), |_| {}).ok()?;
    let guard = Identity::of(child.pid().cast_signed())?.parent().and_then(Identity::of);
    guard.filter(|guard| {
        std::fs::read_to_string(format!("/proc/{}/comm", guard.pid)).is_ok_and(|n| n == "minder\n")
    })
}

#[test]
fn exits_that_cross_a_death_are_told() {
    let owner = owner();
    for round in 0..20 {
        let children: Vec<_> =
            (0..5).map(|code| start(&owner, shell(&format!("exit {code}")))).collect();
        if round % 2 == 0
            && let Some(guard) = any_guard(&owner)
        {
            guard.kill();
        }
        for (code, (child, _)) in children.iter().enumerate() {
            let expected = ExitStatus::Code(i32::try_from(code).expect("small"));
            assert_eq!(child.wait().expect("exit").status, expected, "round {round}");
            child.wait_empty().expect("empty");
        }
    }
}

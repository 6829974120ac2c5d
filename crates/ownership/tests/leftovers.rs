//! What a child leaves when it ends by itself: ended, or let live and owned all the same.

mod support;

use std::path::Path;
use std::time::Duration;

use ownership::{Leftovers, Owned, Owner, Spawn};
use support::{
    Identity, example, kill_both, owner, recorded, shell, start, supervisor_of, wait_for,
};

const GRACE: Duration = Duration::from_millis(200);

/// Ends by itself as soon as it is told to, and has left a daemon then.
fn leaves_one(dir: &Path, leftovers: Leftovers) -> Spawn {
    let script = r#"(setsid sh -c 'echo $$ > "$DIR/left"; exec sleep 600' &)
        while ! [ -e "$DIR/go" ]; do sleep 0.01; done"#;
    shell(script).env("DIR", dir).grace(GRACE).leftovers(leftovers)
}

fn gone(who: Identity) {
    wait_for("it is gone", || (!who.lives()).then_some(()));
}

/// A child, and what it has left.
fn left_by(owner: &Owner, leftovers: Leftovers) -> (Owned, Identity, tempfile::TempDir) {
    let dir = tempfile::tempdir().expect("dir");
    let (child, _events) = start(owner, leaves_one(dir.path(), leftovers));
    let left = recorded(dir.path(), "left");
    std::fs::write(dir.path().join("go"), "").expect("write");
    (child, left, dir)
}

#[test]
fn by_default_it_is_ended() {
    let owner = owner();
    let (child, left, _dir) = left_by(&owner, Leftovers::Kill);
    let emptied = child.wait_empty().expect("empty");
    assert!(!left.lives());
    assert_eq!((emptied.leftover_count, emptied.kept, emptied.left.len()), (1, 0, 0));
}

#[test]
fn with_report_it_lives_and_is_named_and_with_keep_it_is_not() {
    for policy in [Leftovers::Report, Leftovers::Keep] {
        let owner = owner();
        let (child, left, _dir) = left_by(&owner, policy);
        let emptied = child.wait_empty().expect("empty");
        assert!(left.lives(), "{policy:?}");
        assert_eq!((emptied.leftover_count, emptied.kept), (0, 1), "{policy:?}");
        let named: Vec<_> = emptied.left.iter().map(|left| left.pid.cast_signed()).collect();
        let expected = if policy == Leftovers::Report { vec![left.pid] } else { vec![] };
        assert_eq!(named, expected, "{policy:?}");
        child.end(GRACE);
        gone(left);
    }
}

#[test]
fn dropping_the_handle_of_what_has_ended_leaves_it() {
    let owner = owner();
    let (child, left, _dir) = left_by(&owner, Leftovers::Keep);
    child.wait_empty().expect("empty");
    drop(child);
    // A later end was done by then, since requests are read in order.
    let (other, _events) = start(&owner, shell("exit 0"));
    other.wait_empty().expect("empty");
    assert!(left.lives());
    left.kill();
}

#[test]
fn an_explicit_end_ends_it_whatever_the_policy() {
    let owner = owner();
    let dir = tempfile::tempdir().expect("dir");
    let script = r#"(setsid sh -c 'echo $$ > "$DIR/left"; exec sleep 600' &) ; sleep 600"#;
    let spawn = shell(script).env("DIR", dir.path()).grace(GRACE).leftovers(Leftovers::Keep);
    let (child, _events) = start(&owner, spawn);
    let left = recorded(dir.path(), "left");
    child.end(GRACE);
    assert_eq!(child.wait_empty().expect("empty").kept, 0);
    assert!(!left.lives());
}

/// Whichever guard is killed, before and after the child's end: what was to live lives, and can be ended.
#[test]
fn the_policy_survives_a_guard() {
    for (supervisor, before) in [(true, true), (true, false), (false, true), (false, false)] {
        let owner = owner();
        let dir = tempfile::tempdir().expect("dir");
        let script = r#"(setsid sh -c 'echo $$ > "$DIR/left"; exec sleep 600' &)
            while ! [ -e "$DIR/go" ]; do sleep 0.01; done"#;
        let spawn = shell(script).env("DIR", dir.path()).grace(GRACE);
        let (child, _events) = start(&owner, spawn.leftovers(Leftovers::Report));
        let left = recorded(dir.path(), "left");
        let guard = supervisor_of(&child);
        let keeper = Identity::of(guard.parent().expect("parent")).expect("keeper");
        let guard = if supervisor { guard } else { keeper };
        let go = || std::fs::write(dir.path().join("go"), "").expect("write");
        if before {
            guard.kill();
            gone(guard);
        }
        go();
        let emptied = child.wait_empty().expect("empty");
        if !before {
            guard.kill();
            gone(guard);
        }
        let case = format!("supervisor {supervisor}, before {before}");
        // The survivor serves by then.
        let (other, _events) = start(&owner, shell("exit 0"));
        other.wait_empty().expect("empty");
        assert!(left.lives(), "{case}: {emptied:?}");
        assert_eq!((emptied.kept, emptied.left.len()), (1, 1), "{case}: {emptied:?}");
        child.end(GRACE);
        gone(left);
    }
}

/// Both guards die: what was let live is no stray.
#[test]
fn what_was_let_live_survives_both_guards() {
    let owner = owner();
    let (child, left, _dir) = left_by(&owner, Leftovers::Keep);
    let (beside, _events) = start(&owner, Spawn::new("sleep").arg("600"));
    let supervisor = supervisor_of(&beside);
    let keeper = Identity::of(supervisor.parent().expect("parent")).expect("keeper");
    child.wait_empty().expect("empty");
    kill_both(keeper, supervisor);
    let (other, _events) = start(&owner, shell("exit 0"));
    other.wait_empty().expect("empty");
    assert!(left.lives());
    child.end(GRACE);
    gone(left);
}

/// The owner's death is no normal end of a child.
#[test]
#[expect(clippy::disallowed_methods, reason = "an owner that is to be killed")]
fn it_ends_with_the_owner() {
    for policy in ["report", "keep"] {
        let dir = tempfile::tempdir().expect("dir");
        let mut owner = std::process::Command::new(example("end-owner"))
            .arg(dir.path())
            .arg(policy)
            .spawn()
            .expect("end-owner");
        let left = recorded(dir.path(), "left");
        wait_for("the end was told", || dir.path().join("told").exists().then_some(()));
        assert!(left.lives());
        owner.kill().expect("kill");
        owner.wait().expect("wait");
        gone(left);
    }
}

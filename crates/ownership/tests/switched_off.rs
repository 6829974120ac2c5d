//! Negative controls: each mechanism switched off lets somebody escape whom its test would miss. What
//! escapes is ended by handle afterwards.

mod support;

use std::time::Duration;

use rustix::process::Signal;
use support::{TreeOwner, wait_for};

const GRACE: Duration = Duration::from_millis(300);

/// Longer than any test.
const LONG: Duration = Duration::from_secs(600);

/// Kills the owner of a tree whose supervisor lacks this mechanism.
fn killed(grace: Duration, off: &str) -> TreeOwner {
    let owner = TreeOwner::start(grace, off);
    owner.signal(Signal::KILL);
    owner
}

#[test]
fn without_the_owners_pidfd_nothing_ends() {
    let mut owner = killed(GRACE, "pidfd");
    owner.process.wait().expect("owner");
    // A whole owner's death, seen by its own supervisor, takes less time than this one has had.
    let other = killed(GRACE, "");
    wait_for("the other's end", || other.living().is_empty().then_some(()));
    assert!(owner.is_whole());
}

/// The daemon was re-parented away from us when the launcher died.
#[test]
fn without_subreapers_the_double_forked_daemon_escapes() {
    let owner = killed(GRACE, "subreaper");
    wait_for("the supervisor thinks that it is done", || (!owner.supervisor.lives()).then_some(()));
    assert!(owner.living().contains(&"daemon"), "{:?}", owner.living());
    assert!(!owner.living().contains(&"launcher"));
}

#[test]
fn without_walks_only_known_groups_end() {
    let owner = killed(GRACE, "walk");
    wait_for("the group has had TERM", || (!owner.living().contains(&"helper")).then_some(()));
    let living = owner.living();
    assert!(living.contains(&"session") && living.contains(&"daemon"), "{living:?}");
    assert!(owner.supervisor.lives(), "it knows that it is not done");
}

#[test]
fn without_cont_the_stopped_member_stays_until_kill() {
    let with = killed(LONG, "");
    let without = killed(LONG, "cont");
    wait_for("TERM and CONT end it", || (!with.living().contains(&"stopped")).then_some(()));
    wait_for("TERM reaches the others", || (!without.living().contains(&"helper")).then_some(()));
    assert!(without.living().contains(&"stopped"));
    assert_eq!(without.member("stopped").state().as_deref(), Some("T"));
}

#[test]
fn without_kill_the_stubborn_member_stays() {
    let with = killed(GRACE, "");
    let without = killed(GRACE, "kill");
    wait_for("KILL ends it", || (!with.living().contains(&"stubborn")).then_some(()));
    wait_for("TERM ends the others", || (without.living() == ["stubborn"]).then_some(()));
    assert!(without.supervisor.lives(), "it knows that it is not done");
}

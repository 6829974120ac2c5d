//! The suites of ending, starting and dying on the weakest tier, descent alone. Run by themselves they take the
//! best that the machine has, so where that is a cgroup each of them runs on both. What differs is written
//! where it is expected: `support::tier::used`.

#![expect(
    clippy::duplicate_mod,
    reason = "each suite brings its own support, as when it is run by itself"
)]

#[path = "death_matrix.rs"]
mod death_matrix;
#[path = "death_matrix_guards.rs"]
mod death_matrix_guards;
#[path = "ending.rs"]
mod ending;
#[path = "leftovers.rs"]
mod leftovers;
#[path = "owner_death.rs"]
mod owner_death;
#[path = "spawn.rs"]
mod spawn;
mod support;

use ownership::containment::Tier;
use support::{owner, shell, start, tier};

/// This program is what it says.
#[test]
fn children_have_no_cgroup_of_their_own() {
    assert_eq!(tier::used(), Tier::Subreaper);
    let (child, _events) = start(&owner(), shell("exec sleep 600"));
    assert_eq!(child.cgroup(), None);
}

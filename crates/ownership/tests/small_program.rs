//! The suites of starting, ending and dying over guards that are the static small program as it is installed
//! (`.ci/small`), which has another C library and aborts where others unwind. Where no static program can be built they
//! run over the ordinary one, and that is said loudly.
//!
//! It is a release build: what a suite switches off in its guards is not off here.

#![expect(
    clippy::duplicate_mod,
    reason = "each suite brings its own support, as when it is run by itself"
)]

#[path = "death_matrix.rs"]
mod death_matrix;
#[path = "ending.rs"]
mod ending;
#[path = "leftovers.rs"]
mod leftovers;
#[path = "owner_death.rs"]
mod owner_death;
#[path = "spawn.rs"]
mod spawn;
mod support;

use std::time::Duration;

use support::{TreeOwner, owner, shell, small_program, start, supervisor_of};

/// This program is what it says: both guards are that file, of an owner of this program and of a fixture's.
#[test]
fn the_guards_are_the_static_program() {
    let Some(program) = small_program() else { return };
    let program = program.canonicalize().expect("it is built");
    let (child, _events) = start(&owner(), shell("exec sleep 600"));
    let fixture = TreeOwner::start(Duration::from_millis(300), "");
    for supervisor in [supervisor_of(&child), fixture.supervisor] {
        let keeper = supervisor.parent().expect("a keeper");
        for guard in [supervisor.pid, keeper] {
            let exe = std::fs::read_link(format!("/proc/{guard}/exe")).expect("a guard");
            assert_eq!(exe, program);
            // What a dynamic linker has mapped into a process shows in its maps.
            let maps = std::fs::read_to_string(format!("/proc/{guard}/maps")).expect("maps");
            assert!(!maps.contains(".so"), "{maps}");
        }
    }
}

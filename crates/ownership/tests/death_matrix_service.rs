//! The row of the death matrix in which a service manager stops the whole service: TERM to every process
//! of it, guards included, and a while later KILL to those that are left. The processes of the service are
//! found by looking at all, so this is only for a pid namespace of its own.
#![expect(clippy::disallowed_methods, reason = "a manager with a patience of its own")]

mod support;

use std::collections::HashSet;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use support::matrix::Bystanders;
use support::process::everybody;
use support::{Identity, TreeOwner, wait_for};

const LIMIT: Duration = Duration::from_secs(60);

/// Between TERM and KILL.
const PATIENCE: Duration = Duration::from_secs(1);

/// Everybody in this namespace who is not of the service.
fn others() -> HashSet<Identity> {
    everybody().collect()
}

fn service(others: &HashSet<Identity>) -> Vec<Identity> {
    everybody().filter(|who| !others.contains(who) && who.lives()).collect()
}

/// Whether the guards had done it all before the manager's patience was over.
fn stop(grace: Duration) -> bool {
    let around = Bystanders::start();
    let others = others();
    let mut owner = TreeOwner::start(grace, "");
    let all = service(&others);
    assert!(all.contains(&owner.supervisor) && all.len() >= 10, "{}", all.len());
    for who in all {
        who.signal(Signal::TERM);
    }
    let until = Instant::now() + PATIENCE;
    owner.process.wait().expect("the owner obeys");
    while !service(&others).is_empty() && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(5));
    }
    let in_time = service(&others).is_empty();
    // As long as there is somebody, as service managers do.
    wait_for("the service is stopped", || {
        let left = service(&others);
        left.iter().for_each(|who| who.kill());
        left.is_empty().then_some(())
    });
    around.assert_untouched();
    in_time
}

/// The guards ignore TERM and give the tree its grace.
#[test]
fn a_service_manager_that_is_patient_finds_nothing_to_kill() {
    if support::namespace::enter("a_service_manager_that_is_patient_finds_nothing_to_kill", LIMIT) {
        assert!(stop(Duration::from_millis(100)), "all was over before the manager's KILL");
    }
}

/// What the guards would give more grace than the manager has is the manager's to kill, them too.
#[test]
fn a_service_manager_that_is_not_stops_all_the_same() {
    if support::namespace::enter("a_service_manager_that_is_not_stops_all_the_same", LIMIT) {
        assert!(!stop(Duration::from_secs(20)));
    }
}

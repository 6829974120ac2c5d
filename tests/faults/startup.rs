//! RB-15: the owner is killed at random moments of its start. "Nothing left" is every process of a
//! pid namespace, so this runs in one of its own.
//!
//! Short form in every test run; the whole thousand: `DELEGATE_RB15_KILLS=1000 cargo test --test faults
//! rb_15`.

use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::json;

use crate::program::{OwnerProgram, all_pids, pause, random, seed, state, step, tree};
use crate::step::Step;
use crate::support::wait_for;

const KILLS: &str = "DELEGATE_RB15_KILLS";
const INSIDE: &str = "DELEGATE_RB15_INSIDE";

/// Owners that start at once.
const AT_ONCE: u64 = 5;

/// From the start of the owner until its batch is well under way, on a slow machine.
const WINDOW_MICROS: u64 = 150_000;

#[test]
fn rb_15_kills_of_the_owner_at_random_moments_of_its_start_leave_nothing() {
    let kills: u64 = std::env::var(KILLS).map_or(60, |text| text.parse().unwrap());
    if !can_unshare() {
        println!("SKIPPED rb_15: no pid namespace can be made here (unshare --pid is refused)");
        return;
    }
    let own = std::env::current_exe().unwrap();
    let status = Command::new("setsid")
        .args(["-w", "unshare", "--pid", "--fork", "--mount-proc", "--kill-child"])
        .arg(own)
        .args(["startup::inside_a_namespace", "--exact", "--ignored", "--nocapture"])
        .env(KILLS, kills.to_string())
        .env(INSIDE, "yes")
        .status()
        .unwrap();
    assert!(status.success(), "{status}");
}

fn can_unshare() -> bool {
    let mut probe = Command::new("unshare");
    probe.args(["--pid", "--fork", "--mount-proc", "true"]).stderr(Stdio::null());
    probe.status().is_ok_and(|status| status.success())
}

#[test]
#[ignore = "runs inside the namespace that rb_15 makes"]
fn inside_a_namespace() {
    assert!(std::env::var_os(INSIDE).is_some(), "rb_15 starts this");
    assert_eq!(std::process::id(), 1, "only as the init of a pid namespace of its own");
    let kills: u64 = std::env::var(KILLS).unwrap().parse().unwrap();
    let mut seed = seed();
    let (mut done, mut under_way) = (0, 0);
    while done < kills {
        let mut owners: Vec<_> = (0..AT_ONCE.min(kills - done))
            .map(|_| {
                let tasks = [tree(), step(&Step::Wait), step(&Step::Wait)];
                OwnerProgram::start(&tasks, &json!({"grace_seconds": 1}))
            })
            .collect();
        for owner in &mut owners {
            // Not a wait for a fact: the moment is to be any.
            pause(Duration::from_micros(random(&mut seed, WINDOW_MICROS / AT_ONCE)));
            owner.signal(rustix::process::Signal::KILL);
            owner.wait();
            done += 1;
            under_way += u32::from(!owner.pending().is_empty());
        }
        drop(owners);
        wait_for("an empty namespace", || left().is_empty().then_some(()));
    }
    println!("{done} kills, {under_way} of them after the first line, 0 processes left");
}

/// Living processes besides this one.
fn left() -> Vec<u32> {
    let own = std::process::id();
    let lives = |pid: &u32| *pid != own && state(*pid).is_some_and(|state| state != 'Z');
    all_pids().into_iter().filter(lives).collect()
}

//! The supervisor is killed, or stopped: outcomes say what is not known, and the next batch works.

use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;

use crate::program::{
    OwnerProgram, assert_alive, assert_one_complete_each, stat, state, step, wait_gone,
};
use crate::step::Step;
use crate::support::{Identity, wait_for};

fn signal(process: Identity, signal: Signal) {
    assert!(process.is_alive());
    kill_process(Pid::from_raw(process.pid.cast_signed()).unwrap(), signal).unwrap();
}

#[test]
fn a_killed_supervisor_costs_the_running_children_and_nothing_else() {
    let tasks = [step(&Step::Answer("early".to_owned())), step(&Step::Wait), step(&Step::Wait)];
    let mut owner = OwnerProgram::start(&tasks, &json!({"grace_seconds": 1}));
    let mut workers = Vec::new();
    let mut early = false;
    owner.expect("one outcome and two that wait", |line| {
        early |= line["event"] == "subagent.complete";
        if line["text"] == "waiting" {
            workers.push(());
        }
        (early && workers.len() == 2).then_some(())
    });
    let supervisor = owner.supervisor();
    let workers: Vec<Identity> =
        crate::program::children_of(supervisor.pid).into_iter().filter_map(Identity::of).collect();
    assert_eq!(workers.len(), 2);
    signal(supervisor, Signal::KILL);
    let report = owner.report();
    assert_one_complete_each(owner.seen(), 3);
    wait_gone(&workers);
    let results = &report["results"];
    assert_eq!(
        (&results[0]["status"], &results[0]["summary"]),
        (&json!("completed"), &json!("early"))
    );
    for index in [1, 2] {
        assert_eq!(results[index]["cause"]["kind"], "lost", "{}", results[index]);
        assert_eq!(results[index]["status"], "error", "{}", results[index]);
    }
    assert_eq!(report["verified_empty"], false, "{report}");
    assert!(!report["warnings"].as_array().unwrap().is_empty(), "{report}");
    // A later batch gets a supervisor of its own.
    owner.tell("again");
    let (_, worker) = owner.started();
    assert_alive(&[worker]);
    let next = owner.supervisor();
    assert_ne!(next, supervisor);
    let (mut early, mut waiting) = (false, 0);
    owner.expect("the same once more", |line| {
        early |= line["event"] == "subagent.complete";
        waiting += u32::from(line["text"] == "waiting");
        (early && waiting == 2).then_some(())
    });
    owner.tell("interrupt");
    let report = owner.report();
    assert_eq!(report["verified_empty"], true, "{report}");
    assert_eq!(report["results"][0]["summary"], "early");
}

/// The mechanism: while the supervisor stands still nobody ends the tree of a dead owner; when it
/// goes on, the tree is gone. Without it the tests of `owner_kill` would fail.
#[test]
fn it_is_the_supervisor_that_ends_the_tree_of_a_dead_owner() {
    let (mut owner, members) = OwnerProgram::with_trees(1);
    let (supervisor, tree) = members.split_last().unwrap();
    let below = |member: &&Identity| stat(member.pid).unwrap()[1] == supervisor.pid.to_string();
    // The other ones below it are orphans of the tree, each in a session of its own.
    let worker = *tree.iter().find(|member| below(member) && is_worker(**member)).unwrap();
    signal(*supervisor, Signal::STOP);
    wait_for("it stands still", || (state(supervisor.pid)? == 'T').then_some(()));
    owner.signal(Signal::KILL);
    owner.wait();
    // Workers leave by themselves at the end of their line; what they started does not.
    wait_gone(&[worker]);
    let alive: Vec<_> = tree.iter().copied().filter(|member| member.is_alive()).collect();
    assert_eq!(alive.len(), crate::program::TREE_SIZE, "{alive:?} of {tree:?} live");
    signal(*supervisor, Signal::CONT);
    wait_gone(&members);
}

fn is_worker(process: Identity) -> bool {
    let words = std::fs::read(format!("/proc/{}/cmdline", process.pid)).unwrap();
    String::from_utf8_lossy(&words).contains("delegate-worker")
}

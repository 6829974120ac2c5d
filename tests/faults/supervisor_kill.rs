//! The supervisor is killed, or stopped: outcomes say what is not known, and the next batch works.

use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;

use crate::program::{
    OwnerProgram, Stopped, assert_alive, assert_one_complete_each, step, wait_gone,
};
use crate::step::Step;
use crate::support::{Identity, wait_for};

fn signal(process: Identity, signal: Signal) {
    assert!(process.is_alive());
    kill_process(Pid::from_raw(process.pid.cast_signed()).unwrap(), signal).unwrap();
}

#[test]
fn c53_a_killed_supervisor_costs_nothing() {
    let tasks = [step(&Step::Answer("early".to_owned())), step(&Step::Wait), step(&Step::Wait)];
    let mut owner = OwnerProgram::start(&tasks, &json!({"grace_seconds": 1}));
    let (mut early, mut waiting) = (false, 0);
    owner.expect("one outcome and two that wait", |line| {
        early |= line["event"] == "subagent.complete";
        waiting += u32::from(line["text"] == "waiting");
        (early && waiting == 2).then_some(())
    });
    let supervisor = owner.supervisor();
    let workers: Vec<Identity> =
        crate::program::children_of(supervisor.pid).into_iter().filter_map(Identity::of).collect();
    assert_eq!(workers.len(), 2);
    signal(supervisor, Signal::KILL);
    wait_for("it is dead", || (!supervisor.is_alive()).then_some(()));
    assert_alive(&workers);
    owner.tell("interrupt");
    let report = owner.report();
    assert_one_complete_each(owner.seen(), 3);
    wait_gone(&workers);
    assert_eq!(report["results"][0]["summary"], "early");
    for index in [1, 2] {
        assert_eq!(report["results"][index]["status"], "interrupted", "{report}");
    }
    assert_eq!(report["verified_empty"], true, "{report}");
}

/// The mechanism: while both guards stand still nobody ends the tree of a dead owner. When one goes on it wakes
/// the other; else the worker's library, which gets no answer, ends the one and wakes the other.
#[test]
fn it_is_the_guards_that_end_the_tree_of_a_dead_owner() {
    for woken in [true, false] {
        let (mut owner, members) = OwnerProgram::with_trees(1);
        let (supervisor, tree) = members.split_last().unwrap();
        let keeper = crate::program::parent_of(supervisor.pid).and_then(Identity::of).unwrap();
        let _keeper = Stopped::stop(keeper);
        let supervisor = Stopped::stop(*supervisor);
        owner.signal(Signal::KILL);
        owner.wait();
        let alive: Vec<_> = tree.iter().copied().filter(|member| member.is_alive()).collect();
        assert!(alive.len() >= crate::program::TREE_SIZE, "{alive:?} of {tree:?} live");
        // One of the two is kept still to the end.
        let _kept = (!woken).then_some(supervisor);
        wait_gone(&members);
        wait_gone(&[keeper]);
    }
}

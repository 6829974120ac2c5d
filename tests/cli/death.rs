//! `kill -9` of `delegate run`, in whatever state it is: nothing of it is left, and nobody else is hurt.

use rustix::process::Signal;
use serde_json::Value;

use crate::rig::{Rig, Running};
use crate::support::wait_for;

/// A program, its helper in a session of its own, and one that is nobody's child any more.
const TREE: &str = "trap '' TERM INT HUP; setsid sleep 600 & (sleep 600 &) ; touch begun; \
                    while :; do sleep 0.1; done";

fn begun(rig: &Rig) {
    wait_for("the task to begin", || rig.path("begun").exists().then_some(()));
}

/// Brings a run into a state and kills it there. A run beside it must not notice.
fn killed_in(
    state: &str,
    args: &[&str],
    scripts: &[&str],
    bring: impl FnOnce(&Rig, &mut Running),
) -> Rig {
    let control = Rig::new();
    control.batch("c.yaml", &["touch begun; until test -e go; do sleep 0.02; done; echo survived"]);
    let beside = control.start(["run", "c.yaml"]);
    begun(&control);

    let rig = Rig::new();
    rig.batch("b.yaml", scripts);
    let mut running = rig.start([&["run", "b.yaml"], args].concat());
    bring(&rig, &mut running);
    let before = rig.processes();
    running.signal(Signal::KILL);
    assert_eq!(running.end().code, None, "{state}: it ended before it was killed");
    wait_for(&format!("everything to be gone: {state}"), || {
        (rig.processes().is_empty() && !before.iter().any(|process| process.is_alive()))
            .then_some(())
    });
    control.file("go", "");
    beside.end().expect(0).says("survived").says("0 processes left");
    rig
}

#[test]
fn nothing_is_left_when_it_was_just_started() {
    killed_in("before any child", &[], &[TREE, TREE], |rig, _| {
        wait_for("the command", || (!rig.processes().is_empty()).then_some(()));
    });
    killed_in("while the first children start", &[], &[TREE, TREE], |rig, _| {
        wait_for("a second process", || (rig.processes().len() > 1).then_some(()));
    });
}

#[test]
fn nothing_is_left_of_running_children_in_processes_or_threads() {
    for isolation in ["process", "thread"] {
        let args = ["--isolation", isolation];
        killed_in(isolation, &args, &[TREE, TREE], |rig, _| begun(rig));
    }
}

#[test]
fn nothing_is_left_of_a_run_that_was_being_interrupted() {
    let args = ["--set", "interrupt_grace=1h"];
    killed_in("interrupted", &args, &[TREE], |rig, running| {
        begun(rig);
        running.signal(Signal::INT);
    });
}

#[test]
fn nothing_is_left_of_a_run_that_was_stopped() {
    killed_in("stopped", &[], &[TREE], |rig, running| {
        begun(rig);
        let command = running.identity();
        running.signal(Signal::TSTP);
        wait_for("the command to stop", || (command.state() == Some('T')).then_some(()));
    });
}

#[test]
fn nothing_is_left_of_the_quickstart() {
    let rig = Rig::new();
    let mut command = rig.command(["run", "examples/quickstart.yaml"]);
    command.current_dir(env!("CARGO_MANIFEST_DIR"));
    let running = Running::of(command);
    wait_for("worker processes", || (rig.processes().len() > 3).then_some(()));
    running.signal(Signal::KILL);
    running.end();
    rig.wait_for_nobody();
}

#[test]
fn the_record_says_unknown_and_what_had_finished() {
    let rig = killed_in("one done", &[], &["echo finished before", TREE], |rig, _| {
        begun(rig);
        wait_for("the first outcome", || (rig.runs()[0]["counts"]["completed"] == 1).then_some(()));
    });
    let run = &rig.runs()[0];
    assert_eq!(run["status"], "unknown", "{run}");
    rig.run(["runs"]).expect(0).says("unknown");
    let shown = rig.run(["show", "latest"]);
    shown.expect(0).says("\"finished before\"").says("its parent died before it had an outcome");
    let json = rig.run(["show", "latest", "--json"]).expect(0).json();
    assert_eq!(
        (&json["status"], json["results"].as_array().map(Vec::len)),
        (&Value::from("unknown"), Some(2))
    );
    rig.run(["logs", "latest", "0", "--stdout"]).expect(0).says("finished before");
    // Nobody writes any more: following ends at once.
    rig.start(["logs", "latest", "-f"]).end().expect(0);
}

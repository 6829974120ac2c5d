//! Signals to `delegate run`: it asks, it kills, it stops and goes on; and it always says what is left.

use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::Value;

use crate::rig::{Rig, Running};
use crate::support::{Identity, wait_for};

/// Takes no notice of a polite word.
const STUBBORN: &str =
    "trap '' INT TERM; echo half an answer; touch begun; while :; do sleep 0.1; done";

/// Long enough that only a second signal ends what takes no notice.
const FOR_EVER: [&str; 2] = ["--set", "interrupt_grace=1h"];

fn started(rig: &Rig, scripts: &[&str], args: &[&str]) -> Running {
    rig.batch("b.yaml", scripts);
    let running = rig.start([&["run", "b.yaml"], args].concat());
    wait_for("the task to begin", || rig.path("begun").exists().then_some(()));
    running
}

fn completed_one(rig: &Rig) {
    wait_for("the first task to be on record", || {
        // The next in line may be done as well by the time that we look.
        (rig.runs()[0]["counts"]["completed"].as_u64() >= Some(1)).then_some(())
    });
}

#[test]
fn sigint_ends_what_listens_and_prints_what_there_is() {
    for isolation in ["process", "thread"] {
        let rig = Rig::new();
        let slow = "echo half an answer; touch begun; exec sleep 600";
        let args = ["--isolation", isolation];
        let running = started(
            &rig,
            &["echo done before", slow, "echo next in line"],
            &[&args[..], &["-j", "2"]].concat(),
        );
        wait_for("two to be done or running", || rig.path("begun").exists().then_some(()));
        completed_one(&rig);
        running.signal(Signal::INT);
        let said = running.end();
        said.expect(130).says("\"done before\"").says("0 processes left").is_plain();
        assert!(said.out.contains("interrupted"), "{}", said.out);
        rig.wait_for_nobody();
        let shown = rig.run(["show", "latest", "--json"]).expect(0).json();
        assert_eq!(shown["results"][1]["status"], "interrupted", "{shown}");
        assert_eq!(shown["results"][1]["summary"], "half an answer\n", "{shown}");
    }
}

#[test]
fn sigint_alone_ends_what_ignores_it_after_the_grace() {
    let rig = Rig::new();
    let graces = ["--set", "interrupt_grace=1s", "--set", "terminate_grace=1s"];
    let running = started(&rig, &[STUBBORN], &graces);
    running.signal(Signal::INT);
    running.end().expect(130).says("0 processes left").says("interrupted");
    rig.wait_for_nobody();
}

#[test]
fn sigint_twice_kills() {
    let rig = Rig::new();
    let running = started(&rig, &["echo done before", STUBBORN], &FOR_EVER);
    completed_one(&rig);
    running.signal(Signal::INT);
    running.signal(Signal::INT);
    // Two of a kind may become one on their way (man 7 signal): go on until it is over.
    let running = insist(running, Signal::INT);
    running.end().expect(130).says("\"done before\"").says("0 processes left");
    rig.wait_for_nobody();
}

/// Sends it again until the command has ended.
fn insist(mut running: Running, signal: Signal) -> Running {
    wait_for("the command to end", || {
        if running.child().try_wait().unwrap().is_some() {
            return Some(());
        }
        running.signal(signal);
        std::thread::sleep(Duration::from_millis(200));
        None
    });
    running
}

#[test]
fn sigterm_kills_at_once_and_says_143() {
    for isolation in ["process", "thread"] {
        let rig = Rig::new();
        let args = [&FOR_EVER[..], &["--isolation", isolation]].concat();
        let running = started(&rig, &["echo done before", STUBBORN], &args);
        completed_one(&rig);
        running.signal(Signal::TERM);
        running.end().expect(143).says("\"done before\"").says("0 processes left");
        rig.wait_for_nobody();
    }
}

#[test]
fn sighup_ends_it_as_sigterm_does_and_says_129() {
    for isolation in ["process", "thread"] {
        let rig = Rig::new();
        let args = [&FOR_EVER[..], &["--isolation", isolation]].concat();
        let running = started(&rig, &["echo done before", STUBBORN], &args);
        completed_one(&rig);
        running.signal(Signal::HUP);
        running.end().expect(129).says("\"done before\"").says("0 processes left");
        rig.wait_for_nobody();
        let run = &rig.runs()[0];
        let ended = (&run["status"], &run["counts"]["interrupted"]);
        assert_eq!(ended, (&"failed".into(), &1.into()), "{isolation}: {run}");
    }
}

/// Whoever ignores it (`nohup`) wants the run to go on.
#[test]
fn sighup_that_is_ignored_stays_ignored() {
    let rig = Rig::new();
    rig.batch("b.yaml", &["touch begun; until test -e go; do sleep 0.01; done; echo over"]);
    let mut command = rig.program("env");
    command.args(["--ignore-signal=HUP", crate::rig::DELEGATE, "run", "b.yaml"]);
    let running = Running::of(command);
    wait_for("the task to begin", || rig.path("begun").exists().then_some(()));
    running.signal(Signal::HUP);
    rig.file("go", "");
    running.end().expect(0).says("\"over\"").says("0 processes left");
}

#[test]
fn json_stays_one_object_when_a_signal_ends_the_run() {
    let rig = Rig::new();
    let running = started(&rig, &[STUBBORN], &["--json"]);
    running.signal(Signal::TERM);
    let said = running.end();
    let report = said.expect(143).json();
    assert_eq!(report["status"], "failed");
    assert_eq!(report["left_running"], Value::Array(vec![]));
    assert!(said.err.contains("0 processes left"), "{}", said.err);
}

/// Stops with the command: the workers and what they run. The supervisor must not.
fn stopped(rig: &Rig) -> Vec<Identity> {
    rig.processes().into_iter().filter(|process| process.state() == Some('T')).collect()
}

/// How long the run is stopped: more than its child may run.
const STOPPED: Duration = Duration::from_secs(4);

#[test]
fn sigtstp_stops_the_workers_and_their_clocks() {
    for (isolation, others) in [("process", 2), ("thread", 1)] {
        let rig = Rig::new();
        let script = "touch begun; until test -e go; do read -t 0.02 x; done; echo over";
        rig.file(
            "b.yaml",
            serde_json::json!({"tasks": [
                {"goal": "wait", "params": {"argv": ["bash", "-c", script]}}
            ]})
            .to_string(),
        );
        let args = ["run", "b.yaml", "--timeout", "3s", "--isolation", isolation];
        let running = rig.start(args);
        wait_for("the task to begin", || rig.path("begun").exists().then_some(()));
        let command = running.identity();
        running.signal(Signal::TSTP);
        wait_for("the command to stop", || (command.state() == Some('T')).then_some(()));
        let still = wait_for("the workers to stop", || {
            let still = stopped(&rig);
            (still.len() > others).then_some(still)
        });
        let until = Instant::now() + STOPPED;
        while Instant::now() < until {
            std::thread::sleep(Duration::from_millis(50));
            assert_eq!(stopped(&rig), still, "{isolation}");
        }
        rig.file("go", "");
        running.signal(Signal::CONT);
        running.end().expect(0).says("\"over\"").says("1 completed in ").says("0 processes left");
    }
}

#[test]
fn a_stopped_run_still_ends_by_a_signal_once_it_goes_on() {
    let rig = Rig::new();
    let running = started(&rig, &[STUBBORN], &[]);
    let command = running.identity();
    running.signal(Signal::TSTP);
    wait_for("the command to stop", || (command.state() == Some('T')).then_some(()));
    running.signal(Signal::TERM);
    running.signal(Signal::CONT);
    running.end().expect(143).says("0 processes left");
    rig.wait_for_nobody();
}

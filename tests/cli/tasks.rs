//! What `delegate ps` shows of tasks: what delegators say of theirs over their control sockets, and nothing of one that
//! does not answer.

use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::Value;

use crate::rig::Rig;
use crate::support::wait_for;

/// Far above what is waited for an answer, far below what a stopped one would take.
const SOON: Duration = Duration::from_secs(4);

fn tasks(picture: &Value) -> Vec<&Value> {
    let owners = picture["owners"].as_array().unwrap().iter();
    let children = owners.flat_map(|owner| owner["children"].as_array().unwrap());
    children.map(|child| &child["task"]).filter(|task| !task.is_null()).collect()
}

#[expect(clippy::disallowed_methods, reason = "how long a command takes")]
fn timed(work: impl FnOnce() -> Value) -> (Value, Duration) {
    let begun = Instant::now();
    let value = work();
    (value, begun.elapsed())
}

/// A run of two tasks is shown with them; while its program is stopped, without, and no later; and then again with them.
#[test]
fn tasks_are_shown_while_their_delegator_answers() {
    let rig = Rig::new();
    rig.batch("b.yaml", &["touch one; exec sleep 600", "touch two; exec sleep 600"]);
    let running = rig.start(["run", "b.yaml", "--timeout", "10m"]);
    for name in ["one", "two"] {
        wait_for("a child", || rig.path(name).exists().then_some(()));
    }
    let look = || rig.run(["ps", "--json"]).expect(0).json();
    let picture = wait_for("both tasks", || {
        let picture = look();
        (tasks(&picture).len() == 2).then_some(picture)
    });
    let shown = tasks(&picture);
    for (at, task) in shown.iter().enumerate() {
        assert_eq!(task["run_id"], rig.runs()[0]["run_id"], "{task}");
        assert_eq!(task["state"], "running", "{task}");
        assert!(task["goal"].as_str().unwrap().contains("sleep 600"), "{at}: {task}");
        assert!(task["running_seconds"].as_f64().unwrap() >= 0.0 && task["pid"].is_u64());
    }
    rig.run(["ps"]).expect(0).is_plain().says("task 0 running").says("task 1 running");
    rig.run(["ps", "--flat"]).expect(0).says("task 0 running");
    let some = rig.run(["ps", "--json", "--filter", "status=running"]).json();
    assert_eq!(tasks(&some).len(), 2, "{some}");
    let none = rig.run(["ps", "--json", "--filter", "status=ending"]).json();
    assert_eq!(none["owners"], serde_json::json!([]));

    running.signal(Signal::STOP);
    wait_for("it is stopped", || (running.identity().state() == Some('T')).then_some(()));
    // Not even a queue of calls that nobody takes is waited for.
    for _ in 0..3 {
        let (picture, took) = timed(look);
        assert!(tasks(&picture).is_empty(), "{picture}");
        assert!(!picture["owners"][0]["children"].as_array().unwrap().is_empty(), "{picture}");
        assert!(took < SOON, "{took:?}");
    }
    running.signal(Signal::CONT);
    wait_for("they are shown again", || (tasks(&look()).len() == 2).then_some(()));
    running.signal(Signal::TERM);
    running.end();
}

/// Tasks in threads have no process of their own.
#[test]
fn a_task_in_a_thread_is_shown_with_its_owner() {
    let rig = Rig::new();
    rig.batch("b.yaml", &["touch one; exec sleep 600"]);
    let running = rig.start(["run", "b.yaml", "--isolation", "thread", "--timeout", "10m"]);
    wait_for("the child", || rig.path("one").exists().then_some(()));
    let picture = wait_for("its task", || {
        let picture = rig.run(["ps", "--json"]).expect(0).json();
        picture["owners"][0]["tasks_in_threads"][0].is_object().then_some(picture)
    });
    let task = &picture["owners"][0]["tasks_in_threads"][0];
    assert_eq!((&task["state"], &task["pid"]), (&"running".into(), &Value::Null), "{picture}");
    rig.run(["ps"]).expect(0).is_plain().says("task 0 running").says("in a thread");
    running.signal(Signal::TERM);
    running.end();
}

//! The spec arrives field by field the same in both executors: context, metadata, trace context,
//! images, group, directory, limits.

use std::time::Duration;

use delegate_protocol::TaskSpec;
use delegate_runtime::config::Settings;
use delegate_runtime::{Isolation, Task, Value};

use crate::agents;
use crate::support::{BOTH, command, rig, rig_with, run};

const TRACE: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

fn full() -> Task {
    Task::of::<agents::Spec>("a goal with é and \0", Value::List(vec![Value::Int(1), Value::Null]))
        .context("what to know")
        .timeout(Duration::from_secs(77))
        .cwd("/tmp")
        .traceparent(TRACE)
        .metadata("tenant", Value::Text("blue".to_owned()))
        .metadata("deep", Value::Map([("k".to_owned(), Value::UInt(u64::MAX))].into()))
        .metadata("raw", Value::Float(-0.5))
        .images(["a.png", "https://example.org/b.png"])
        .group("g1")
}

fn specs(isolation: Isolation, tasks: Vec<Task>) -> Vec<TaskSpec> {
    let settings = Settings { max_iterations: 9, max_result_bytes: 1 << 20, ..Settings::default() };
    let (outcomes, _) = run(&rig_with(isolation, settings), tasks);
    let parse = |text: &String| serde_json::from_str(text).unwrap();
    outcomes.iter().map(|outcome| parse(outcome.summary.as_ref().unwrap())).collect()
}

#[test]
fn context_metadata_and_trace_reach_the_agent() {
    for isolation in BOTH {
        let spec = specs(isolation, vec![full()]).remove(0);
        assert_eq!(spec.context.as_deref(), Some("what to know"));
        assert_eq!(spec.traceparent.as_deref(), Some(TRACE));
        assert_eq!(spec.metadata["tenant"], Value::Text("blue".to_owned()));
        assert_eq!(spec.metadata["raw"], Value::Float(-0.5));
        assert_eq!(spec.metadata["deep"].get("k"), Some(&Value::UInt(u64::MAX)));
        assert_eq!(spec.images, ["a.png", "https://example.org/b.png"]);
        assert_eq!(spec.group.as_deref(), Some("g1"));
        assert_eq!(spec.cwd.as_deref(), Some("/tmp".as_ref()));
        assert_eq!((spec.timeout_ms, spec.max_iterations), (Some(77_000), 9));
        assert_eq!(spec.max_result_bytes, 1 << 20);
    }
}

#[test]
fn every_field_is_equal_in_both_executors() {
    let tasks = || vec![full(), Task::of::<agents::Spec>("bare", Value::Null)];
    let thread = specs(Isolation::Thread, tasks());
    let process = specs(Isolation::Process, tasks());
    for (mut thread, process) in thread.into_iter().zip(process) {
        // Made anew for each run.
        assert_eq!(thread.subagent_id.task_index(), process.subagent_id.task_index());
        thread.subagent_id = process.subagent_id;
        assert_eq!(thread.session_id.len(), process.session_id.len());
        thread.session_id.clone_from(&process.session_id);
        assert_eq!(thread, process);
    }
}

#[test]
fn a_goal_under_64_kib_is_in_the_environment_and_a_longer_one_only_on_stdin() {
    const BORDER: usize = 64 * 1024;
    for isolation in BOTH {
        let script = "printf '%s %s' \"${#DELEGATE_GOAL}\" \"$(wc -c)\"";
        let tasks = [1, BORDER - 1, BORDER, BORDER + 1, 3 * BORDER]
            .map(|length| command(&"g".repeat(length), ["sh", "-c", script]));
        let (outcomes, _) = run(&rig(isolation), tasks);
        let told: Vec<_> = outcomes.iter().map(|o| o.summary.clone().unwrap()).collect();
        assert_eq!(told, ["1 1", "65535 65535", "0 65536", "0 65537", "0 196608"], "{isolation:?}");
    }
}

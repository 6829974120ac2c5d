//! What events hold (contract 4.2 to 4.4, matrix 11.12, C12 to C15), over both executors.

use delegate_runtime::config::Settings;
use delegate_runtime::{Event, Status};

use crate::agents::{End, Op, answer, script};
use crate::seen::{Seen, watch, watch_with};
use crate::support::{BOTH, rig, rig_with};

fn tools(count: usize) -> Vec<Op> {
    (0..count).map(|number| Op::Tool(format!("t{number}"))).collect()
}

/// Names in the progress lines, in order.
fn batched(seen: &Seen) -> Vec<String> {
    let line = |event: &Event| match event {
        Event::Progress { summary, .. } => Some(summary.clone()),
        _ => None,
    };
    seen.events.iter().filter_map(line).collect()
}

#[test]
fn c12_tool_names_are_flushed_on_success_and_on_every_failure() {
    for isolation in BOTH {
        for (end, status) in [
            (answer("ok"), Status::Completed),
            (End::Fail("no".to_owned(), None), Status::Failed),
            (End::Panic("boom".to_owned()), Status::Error),
            (End::MaxIterations("half".to_owned()), Status::Completed),
        ] {
            let rig = rig(isolation);
            let seen = watch(&rig, [script(tools(7), end).task("tools")]);
            assert_eq!(seen.outcomes[0].status, status);
            assert_eq!(
                batched(&seen),
                ["t0, t1, t2, t3, t4", "t5, t6"],
                "{isolation:?} {status:?}"
            );
            // The flush comes before the end, and stands in the file too.
            assert!(matches!(seen.events.last(), Some(Event::Complete { .. })));
            let written = seen.written(0);
            let lines = written.iter().filter(|line| line["event"] == "subagent.progress").count();
            assert_eq!(lines, 2, "{written:?}");
        }
    }
}

#[test]
fn c12_tool_names_of_a_killed_child_are_flushed() {
    for isolation in BOTH {
        let hasty = Settings {
            interrupt_grace: std::time::Duration::ZERO,
            terminate_grace: std::time::Duration::ZERO,
            ..Settings::default()
        };
        let ops = tools(3).into_iter().chain([Op::AwaitInterrupt]);
        let task = script(ops, End::Interrupted).task("killed");
        let seen = watch_with(&rig_with(isolation, hasty), [task], |event, control| {
            if matches!(event, Event::Tool { name, .. } if name == "t2") {
                control.kill();
            }
        });
        assert_eq!(batched(&seen), ["t0, t1, t2"], "{isolation:?}");
        assert!(matches!(seen.events.last(), Some(Event::Complete { .. })));
    }
}

#[test]
fn c13_c14_spawn_requested_is_first_and_complete_comes_once_also_without_a_run() {
    for isolation in BOTH {
        let one = Settings { max_concurrent_children: 1, ..Settings::default() };
        let tasks = [
            script([Op::Tool("t".to_owned()), Op::AwaitInterrupt], End::Interrupted).task("runs"),
            script([], answer("never")).task("waits"),
        ];
        let seen = watch_with(&rig_with(isolation, one), tasks, |event, control| {
            if matches!(event, Event::Tool { .. }) {
                control.interrupt();
            }
        });
        for index in 0..2 {
            let names: Vec<_> = seen.of(index).iter().map(|event| event.name()).collect();
            assert_eq!(names[0], "subagent.spawn_requested", "{isolation:?} {names:?}");
            let ends = names.iter().filter(|name| **name == "subagent.complete").count();
            assert_eq!((ends, names.last()), (1, Some(&"subagent.complete")), "{names:?}");
        }
        let runs: Vec<_> = seen.of(1).iter().map(|event| event.name()).collect();
        let names =
            ["spawn_requested", "waiting", "complete"].map(|name| format!("subagent.{name}"));
        assert_eq!(runs, names, "{isolation:?}");
    }
}

/// Contract 4.3, every field of it.
#[test]
fn c15_complete_carries_the_payload_and_files_written_lists_the_writes() {
    for isolation in BOTH {
        let ops = [
            Op::ApiCall(10, 20),
            Op::Reasoned(7),
            Op::Read("in.txt".to_owned()),
            Op::Wrote("out.txt".to_owned()),
            Op::Wrote("out.txt".to_owned()),
            Op::Tool("grep".to_owned()),
            Op::Output("no such file".to_owned(), false),
        ];
        let seen = watch(&rig(isolation), [script(ops, answer("the\nanswer")).task("payload")]);
        let Some(Event::Complete { end, .. }) = seen.events.last() else { panic!("no end") };
        let json = serde_json::to_value(end).unwrap();
        assert_eq!(json["status"], "completed");
        assert_eq!(
            (&json["preview"], &json["summary"]),
            (&"the answer".into(), &"the\nanswer".into())
        );
        assert_eq!((&json["api_calls"], &json["cost_usd"]), (&2.into(), &0.25.into()));
        assert_eq!((&json["tokens"]["input"], &json["tokens"]["output"]), (&10.into(), &20.into()));
        assert_eq!(json["reasoning_tokens"], 7);
        assert_eq!(json["files_read"], serde_json::json!(["in.txt"]), "{isolation:?}");
        assert_eq!(json["files_written"], serde_json::json!(["out.txt"]), "{isolation:?}");
        let tail =
            serde_json::json!([{"tool": "grep", "preview": "no such file", "is_error": true}]);
        assert_eq!(json["output_tail"], tail, "{isolation:?}");
        assert!(json["duration_seconds"].is_number());
    }
}

/// Matrix 111 to 117, over the line: an adapter hands on a loop's callbacks in any spelling.
#[test]
fn m111_m117_every_spelling_reaches_the_consumer_and_unknown_ones_nobody() {
    for isolation in BOTH {
        let relay = |name: &str| Op::Relay(name.to_owned(), "grep".to_owned(), "line".to_owned());
        let ops = [
            relay("tool.started"),
            relay("tool.completed"),
            relay("delegate.tool_started"),
            relay("_thinking"),
            relay("no.such.event"),
            relay("delegate.task_failed"),
            relay("subagent_progress"),
        ];
        let seen = watch(&rig(isolation), [script(ops, answer("ok")).task("relay")]);
        let names: Vec<_> = seen.of(0).iter().map(|event| event.name()).collect();
        let expected = [
            "subagent.spawn_requested",
            "subagent.start",
            "subagent.tool",
            "subagent.tool",
            "subagent.thinking",
            "subagent.progress",
            // The two tools; the ready summary before is none of them.
            "subagent.progress",
            "subagent.complete",
        ];
        assert_eq!(names, expected, "{isolation:?}");
        assert_eq!(batched(&seen), ["line", "grep, grep"]);
    }
}

//! Statuses and exit reasons (contract 3.2), and the fields of an entry (3.1), over both executors.

use std::time::Duration;

use delegate_runtime::config::Settings;
use delegate_runtime::{Cause, ExitReason, Isolation, StartError, Status, Task, Value};

use crate::agents::{End, Op, answer, script};
use crate::seen::{watch, watch_with};
use crate::support::{BOTH, launcher_words, rig, rig_with, run};

fn text(text: &str) -> Op {
    Op::Text(text.to_owned())
}

/// Script, status, exit reason, summary, error.
type Row = (Vec<Op>, End, Status, ExitReason, Option<&'static str>, Option<&'static str>);

fn rows() -> Vec<Row> {
    let fail = |reason: Option<&str>| End::Fail("HTTP 400".to_owned(), reason.map(str::to_owned));
    let calls = || vec![Op::ApiCall(3, 4), text("so far")];
    vec![
        (vec![], answer("42"), Status::Completed, ExitReason::Completed, Some("42"), None),
        (vec![], answer(""), Status::Failed, ExitReason::Completed, None, Some("no answer")),
        (
            vec![],
            answer(" (empty)\n"),
            Status::Failed,
            ExitReason::Completed,
            Some(" (empty)\n"),
            Some("no answer"),
        ),
        (
            vec![Op::AllowEmpty],
            answer(""),
            Status::Completed,
            ExitReason::Completed,
            Some(""),
            None,
        ),
        // The word "error" in an answer is no failure: a status never comes from a text.
        (
            vec![],
            answer("error: Traceback (timeout)"),
            Status::Completed,
            ExitReason::Completed,
            Some("error: Traceback (timeout)"),
            None,
        ),
        (calls(), fail(None), Status::Failed, ExitReason::Error, Some("so far"), Some("HTTP 400")),
        (
            calls(),
            fail(Some("rate_limit")),
            Status::Failed,
            ExitReason::Error,
            Some("so far"),
            Some("HTTP 400"),
        ),
        (
            calls(),
            End::MaxIterations("half".to_owned()),
            Status::Completed,
            ExitReason::MaxIterations,
            Some("half"),
            None,
        ),
        (
            calls(),
            End::MaxIterations(String::new()),
            Status::Failed,
            ExitReason::MaxIterations,
            Some("so far"),
            Some("no answer"),
        ),
        (
            calls(),
            End::Panic("index 3 of 2".to_owned()),
            Status::Error,
            ExitReason::Error,
            None,
            Some("index 3 of 2"),
        ),
    ]
}

#[test]
fn every_end_of_a_run_has_its_status_reason_summary_and_error() {
    for isolation in BOTH {
        let tasks = rows().into_iter().map(|(ops, end, ..)| script(ops, end).task("row"));
        let (outcomes, report) = run(&rig(isolation), tasks);
        for ((_, end, status, reason, summary, error), outcome) in rows().into_iter().zip(&outcomes)
        {
            let shown = format!("{isolation:?} {end:?}: {:?}", **outcome);
            assert_eq!((outcome.status, outcome.exit_reason), (status, reason), "{shown}");
            assert_eq!(outcome.summary.as_deref(), summary, "{shown}");
            assert_eq!(outcome.truncated, reason == ExitReason::MaxIterations, "{shown}");
            match (error, outcome.error.as_deref()) {
                (None, None) => {}
                (Some(part), Some(whole)) => assert!(whole.contains(part), "{shown}"),
                _ => panic!("{shown}"),
            }
            // Not a timeout: all four fields are null.
            assert_eq!(outcome.timeout_seconds, None, "{shown}");
            assert_eq!(outcome.timed_out_after_seconds, None, "{shown}");
            assert_eq!((&outcome.timeout_phase, outcome.last_event_age), (&None, None), "{shown}");
        }
        assert_eq!(outcomes[6].failure_reason.as_deref(), Some("rate_limit"));
        assert_eq!(report.statuses(), rows().iter().map(|row| row.2).collect::<Vec<_>>());
    }
}

#[test]
fn a_panic_names_its_place() {
    for isolation in BOTH {
        let bad = script([], End::Panic("gone".to_owned()));
        let (outcomes, _) = run(&rig(isolation), [bad.task("panic")]);
        let error = outcomes[0].error.as_ref().unwrap();
        assert!(error.contains("gone") && error.contains("agents.rs:"), "{isolation:?}: {error}");
    }
}

#[test]
fn an_entry_counts_what_the_agent_told() {
    let work = script(
        [
            Op::Model("large-2".to_owned()),
            Op::ApiCall(10, 3),
            Op::Tool("grep".to_owned()),
            Op::ToolDone(99, true),
            Op::ApiCall(20, 4),
            Op::Tool("write".to_owned()),
            Op::ToolDone(1, false),
        ],
        answer("ok"),
    );
    for isolation in BOTH {
        let (outcomes, _) = run(&rig(isolation), [work.task("count")]);
        let outcome = &outcomes[0];
        assert_eq!((outcome.api_calls, outcome.tokens.input, outcome.tokens.output), (2, 30, 7));
        assert_eq!(outcome.model.as_deref(), Some("large-2"));
        assert_eq!(outcome.cost_usd, Some(0.5));
        let trace: Vec<_> = outcome
            .tool_trace
            .iter()
            .map(|call| (call.tool.as_str(), call.result_bytes, call.status.as_str()))
            .collect();
        assert_eq!(trace, [("grep", 99, "ok"), ("write", 1, "error")]);
        assert!(outcome.tool_trace[0].args_bytes > 0);
        assert!(outcome.duration_seconds >= 0.0);
    }
}

#[test]
fn an_entry_says_what_carried_the_child_and_where_its_logs_are() {
    for isolation in BOTH {
        let rig = rig(isolation);
        let (outcomes, _) = run(&rig, [script([], answer("ok")).task("t")]);
        let outcome = &outcomes[0];
        let process = isolation == Isolation::Process;
        assert_eq!(outcome.pid.is_some(), process);
        assert_eq!(outcome.isolation.word(), if process { "process" } else { "thread" });
        let word = outcome.launcher.as_deref().unwrap();
        assert!(launcher_words(isolation).contains(&word), "{word}");
        assert!(outcome.logs.as_ref().unwrap().join("events.jsonl").exists());
        let json = serde_json::to_value(&**outcome).unwrap();
        // Fields that an entry always has, null or not.
        for field in [
            "task_index",
            "status",
            "summary",
            "exit_reason",
            "truncated",
            "api_calls",
            "duration_seconds",
            "model",
            "tokens",
            "tool_trace",
            "timeout_seconds",
            "timed_out_after_seconds",
            "timeout_phase",
            "last_event_age",
            "pid",
            "isolation",
            "launcher",
            "logs",
            "cause",
        ] {
            assert!(json.get(field).is_some(), "{field} is missing in {json}");
        }
    }
}

#[test]
fn an_interrupted_child_keeps_its_last_text_and_the_notice_is_the_error() {
    for isolation in BOTH {
        for end in [End::Interrupted, answer("not that")] {
            let ops = [text("first "), text("last words"), Op::AwaitInterrupt];
            let finishes = end != End::Interrupted;
            let seen =
                watch_with(&rig(isolation), [script(ops, end).task("w")], |event, control| {
                    if event.name() == "subagent.text" {
                        control.interrupt();
                    }
                });
            let outcome = &seen.outcomes[0];
            if finishes {
                // A result that comes within the grace wins as it is.
                assert_eq!(outcome.status, Status::Completed, "{:?}", **outcome);
                assert_eq!(outcome.summary.as_deref(), Some("not that"));
            } else {
                assert_eq!(outcome.status, Status::Interrupted, "{:?}", **outcome);
                assert_eq!(outcome.exit_reason, ExitReason::Interrupted);
                assert_eq!(outcome.summary.as_deref(), Some("first last words"));
                assert!(outcome.error.as_ref().unwrap().contains("interrupted"));
            }
        }
    }
}

#[test]
fn a_stop_of_one_child_leaves_its_sibling_alone() {
    for isolation in BOTH {
        let folder = tempfile::tempdir().unwrap();
        let done = folder.path().join("done");
        let first = script([text("a"), Op::AwaitInterrupt], End::Interrupted).task("first");
        let second = script([text("b"), Op::AwaitFile(done.display().to_string())], answer("fine"));
        let seen =
            watch_with(
                &rig(isolation),
                [first, second.task("second")],
                |event, control| match event {
                    delegate_runtime::Event::Text { child, .. } if child.task_index() == 0 => {
                        control.stop(*child);
                    }
                    delegate_runtime::Event::Complete { child, .. } if child.task_index() == 0 => {
                        std::fs::write(&done, "").unwrap();
                    }
                    _ => {}
                },
            );
        assert_eq!(seen.report.statuses(), [Status::Interrupted, Status::Completed]);
    }
}

#[test]
fn a_timeout_has_its_four_fields_and_what_there_was() {
    for isolation in BOTH {
        for (ops, phase, calls) in [
            (vec![text("early")], "before_first_llm_call", 0),
            (vec![Op::ApiCall(1, 1), text("early")], "after_llm_calls", 1),
        ] {
            let ops = ops.into_iter().chain([Op::AwaitInterrupt]);
            let task = script(ops, End::Interrupted).task("t").timeout(Duration::from_secs(1));
            let (outcomes, _) = run(&rig(isolation), [task]);
            let outcome = &outcomes[0];
            let shown = format!("{isolation:?} {:?}", **outcome);
            assert_eq!(outcome.status, Status::Timeout, "{shown}");
            assert_eq!(outcome.exit_reason, ExitReason::Timeout, "{shown}");
            assert_eq!(outcome.summary.as_deref(), Some("early"), "{shown}");
            assert_eq!(outcome.timeout_seconds, Some(1.0), "{shown}");
            let after = outcome.timed_out_after_seconds.unwrap();
            let silence = outcome.last_event_age.unwrap();
            assert!(after >= 1.0 && silence >= 0.0 && silence <= after, "{shown}");
            assert_eq!((outcome.timeout_phase.as_deref(), outcome.api_calls), (Some(phase), calls));
            assert!(outcome.error.as_ref().unwrap().contains("1 s"), "{shown}");
        }
    }
}

#[test]
fn rb_21_every_child_has_its_whole_limit_from_its_own_start() {
    for isolation in BOTH {
        let settings = Settings { max_concurrent_children: 1, ..Settings::default() };
        let nap = script([Op::Burn(600)], answer("slept"));
        let tasks =
            (0..3).map(|index| nap.task(format!("t {index}")).timeout(Duration::from_secs(10)));
        // Together they take longer than each may; the limit is generous, the order of things is not.
        let limited = script([Op::AwaitInterrupt], End::Interrupted).task("last");
        let tasks = tasks.chain([limited.timeout(Duration::from_secs(1))]);
        let (outcomes, _) = run(&rig_with(isolation, settings), tasks);
        assert!(outcomes[..3].iter().all(|outcome| outcome.status == Status::Completed));
        let last = outcomes[3].timed_out_after_seconds.unwrap();
        assert!(last >= 1.0, "{last}: the clock ran while it waited in line");
    }
}

#[test]
fn an_unknown_agent_is_refused_before_anything_starts() {
    for isolation in BOTH {
        let rig = rig(isolation);
        let tasks = [script([], answer("ok")).task("good"), Task::new("nobody", "bad one")];
        match rig.delegator.batch(tasks).start() {
            Err(StartError::UnknownAgent { task: 1, agent, known, .. }) => {
                assert_eq!(agent, "nobody");
                assert!(known.contains(&"scripted".to_owned()), "{known:?}");
            }
            other => panic!("{other:?}"),
        }
        assert!(
            !rig.state.path().join("runs").read_dir().is_ok_and(|mut all| all.next().is_some())
        );
    }
}

#[test]
fn parameters_that_do_not_fit_fail_the_child_and_are_named() {
    for isolation in BOTH {
        let wrong = |value| Task::new("scripted", "g").params(value);
        let tasks = [wrong(Value::Null), wrong(Value::Map([("ops".into(), Value::Int(1))].into()))];
        let (outcomes, _) = run(&rig(isolation), tasks);
        for outcome in outcomes {
            assert_eq!(outcome.status, Status::Failed, "{:?}", *outcome);
            assert!(outcome.error.as_ref().unwrap().contains("param"), "{:?}", outcome.error);
        }
    }
}

#[test]
fn parameters_that_cannot_cross_name_the_field_and_start_nothing() {
    for isolation in BOTH {
        let nan = Value::Map([("depth".to_owned(), Value::Float(f64::NAN))].into());
        let error = rig(isolation).delegator.batch([Task::new("spec", "g").params(nan)]).start();
        let error = error.unwrap_err().to_string();
        assert!(error.contains("params") && error.contains("depth is NaN"), "{error}");
    }
}

#[test]
fn a_worker_that_cannot_start_is_an_error_with_phase_errno_and_path() {
    for (program, errno) in [("/nowhere/worker", 2), ("/etc/passwd", 13)] {
        let settings =
            Settings { worker_command: Some(vec![program.to_owned()]), ..Settings::default() };
        let rig = rig_with(Isolation::Process, settings);
        let seen = watch(&rig, [Task::new("any", "first"), Task::new("any", "second")]);
        for outcome in &seen.outcomes {
            assert_eq!(outcome.status, Status::Error);
            assert_eq!((outcome.pid, outcome.launcher.as_deref()), (None, None));
            match outcome.cause.as_ref() {
                Some(Cause::StartFailed { errno: Some(found), path: Some(path), .. }) => {
                    assert_eq!((*found, path.as_str()), (errno, program));
                }
                other => panic!("{other:?}"),
            }
        }
        let names: Vec<_> = seen.of(1).iter().map(|event| event.name()).collect();
        assert_eq!(names, ["subagent.spawn_requested", "subagent.complete"]);
    }
}

#[test]
fn rb_51_every_outcome_names_its_real_mode_also_when_it_never_began() {
    for isolation in BOTH {
        let settings = Settings { max_concurrent_children: 1, ..Settings::default() };
        let waits = script([text("x"), Op::AwaitInterrupt], End::Interrupted);
        let tasks = [waits.task("one"), waits.task("two")];
        let seen = watch_with(&rig_with(isolation, settings), tasks, |event, control| {
            if event.name() == "subagent.text" {
                control.interrupt();
            }
        });
        let never = &seen.outcomes[1];
        assert_eq!(never.status, Status::Interrupted);
        assert_eq!((never.launcher.as_deref(), never.pid, &never.cause), (None, None, &None));
        assert_eq!(never.isolation.word(), seen.outcomes[0].isolation.word());
        assert_eq!(never.duration_seconds, 0.0);
    }
}

//! Workers that never get going: silent, leaving at once, of another version, talking too early.

use std::time::Duration;

use delegate_runtime::config::Settings;
use delegate_runtime::{Cause, Isolation, Outcome, Status, Task};

use crate::seen::watch;
use crate::support::{helper, rig_with};
use crate::wire::{garblers, impatient};

fn soon() -> Settings {
    Settings { start_timeout: Duration::from_secs(1), ..impatient() }
}

fn start(mode: &str, settings: Settings) -> Outcome {
    let seen = watch(&garblers(mode, settings), [Task::new("garbler", "well")]);
    assert!(seen.report.verified_empty(), "{mode}: {:?}", seen.report);
    assert_eq!(seen.of(0).last().map(|event| event.name()), Some("subagent.complete"));
    seen.outcomes[0].clone()
}

#[test]
fn rb_26_a_silent_worker_ends_at_the_start_limit_with_its_stderr() {
    let outcome = start("silent", soon());
    assert_eq!((outcome.status, &outcome.cause), (Status::Error, &Some(Cause::StartTimeout)));
    assert!(outcome.error.as_ref().unwrap().contains("start limit of 1 s"), "{outcome:?}");
    // What it said on stderr is in the entry.
    let script = "echo cannot reach the moon >&2; exec sleep 600";
    let worker = ["sh", "-c", script].map(str::to_owned).to_vec();
    let rig = rig_with(Isolation::Process, Settings { worker_command: Some(worker), ..soon() });
    let seen = watch(&rig, [Task::new("any", "g")]);
    assert_eq!(seen.outcomes[0].cause, Some(Cause::StartTimeout));
    assert_eq!(seen.outcomes[0].stderr_tail.as_deref(), Some("cannot reach the moon\n"));
}

#[test]
fn rb_26_the_start_limit_is_apart_from_the_run_limit() {
    let seen = watch(
        &garblers("silent", soon()),
        [Task::new("garbler", "well").timeout(Duration::from_secs(600))],
    );
    assert_eq!(seen.outcomes[0].cause, Some(Cause::StartTimeout));
}

#[test]
fn rb_62_a_worker_that_leaves_at_once_is_told_by_its_exit_code_and_stderr() {
    let outcome = start("leaver", soon());
    assert_eq!((outcome.status, &outcome.cause), (Status::Error, &Some(Cause::Exited { code: 0 })));
    let worker = ["sh", "-c", "echo no licence >&2; exit 9"].map(str::to_owned).to_vec();
    let rig = rig_with(Isolation::Process, Settings { worker_command: Some(worker), ..soon() });
    let seen = watch(&rig, [Task::new("any", "g")]);
    assert_eq!(seen.outcomes[0].cause, Some(Cause::Exited { code: 9 }));
    assert_eq!(seen.outcomes[0].stderr_tail.as_deref(), Some("no licence\n"));
}

#[test]
fn a_worker_of_another_version_is_refused_with_both_versions() {
    let outcome = start("wrong-version", soon());
    assert_eq!(outcome.status, Status::Error);
    match &outcome.cause {
        Some(Cause::ProtocolError { detail }) => {
            let ours = delegate_protocol::version::PROTOCOL_VERSION;
            assert!(detail.contains(&(ours + 1000).to_string()), "{detail}");
            assert!(detail.contains(&ours.to_string()), "{detail}");
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn noise_instead_of_a_greeting_is_a_protocol_error() {
    let outcome = start("noise", soon());
    assert_eq!(outcome.status, Status::Error);
    assert!(matches!(outcome.cause, Some(Cause::ProtocolError { .. })), "{outcome:?}");
}

#[test]
fn a_worker_that_never_reads_is_ended_by_its_limit() {
    let task = Task::new("garbler", "x").timeout(Duration::from_secs(1));
    let seen = watch(&garblers("deaf", soon()), [task]);
    assert_eq!(seen.outcomes[0].status, Status::Timeout, "{:?}", *seen.outcomes[0]);
    // The same with a task that does not fit into the line's buffers.
    let large = delegate_runtime::Value::Text("p".repeat(24 << 20));
    let task = Task::new("garbler", "x").params(large).timeout(Duration::from_secs(1));
    let seen = watch(&garblers("deaf", soon()), [task]);
    assert_eq!(seen.outcomes[0].status, Status::Timeout, "{:?}", *seen.outcomes[0]);
    assert!(seen.report.verified_empty());
}

#[test]
fn an_event_before_the_task_is_a_protocol_error() {
    let outcome = start("early-event", soon());
    match &outcome.cause {
        Some(Cause::ProtocolError { detail }) => assert!(detail.contains("before"), "{detail}"),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_question_before_the_task_is_a_protocol_error() {
    let outcome = start("early-ask", soon());
    match &outcome.cause {
        Some(Cause::ProtocolError { detail }) => assert!(detail.contains("asked"), "{detail}"),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_greeting_comes_once_and_before_all_else() {
    for (mode, words) in
        [("no-hello", "its first frame is not Hello"), ("two-hellos", "Hello twice")]
    {
        let outcome = start(mode, soon());
        assert_eq!((outcome.status, &outcome.summary), (Status::Error, &None), "{mode}");
        match &outcome.cause {
            Some(Cause::ProtocolError { detail }) => assert!(detail.contains(words), "{detail}"),
            other => panic!("{mode}: {other:?}"),
        }
    }
}

#[test]
fn a_worker_that_is_no_program_of_ours_is_not_waited_for_longer_than_the_start_limit() {
    let worker = vec![helper("sleeper")];
    let rig = rig_with(Isolation::Process, Settings { worker_command: Some(worker), ..soon() });
    let seen = watch(&rig, [Task::new("any", "g")]);
    assert_eq!(seen.outcomes[0].cause, Some(Cause::StartTimeout));
}

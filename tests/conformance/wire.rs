//! Workers that speak the protocol wrong: each ends in exactly one typed outcome, and harms nobody.

use std::time::Duration;

use delegate_protocol::Outcome;
use delegate_runtime::config::Settings;
use delegate_runtime::{Cause, Event, Isolation, Status, Task};

use crate::seen::{Seen, watch, watch_with};
use crate::support::{Rig, helper, rig_with};

/// A rig whose workers are `helper-garbler`; the goal says what each does wrong.
pub fn garblers(mode: &str, settings: Settings) -> Rig {
    let worker = vec![helper("garbler"), mode.to_owned()];
    rig_with(Isolation::Process, Settings { worker_command: Some(worker), ..settings })
}

/// Graces and a start limit that a test can wait for.
pub fn impatient() -> Settings {
    Settings {
        interrupt_grace: Duration::from_millis(500),
        terminate_grace: Duration::from_secs(1),
        ..Settings::default()
    }
}

fn one(goal: &str) -> (Outcome, Seen) {
    let seen = watch(&garblers("goal", impatient()), [Task::new("garbler", goal)]);
    let completes = seen.events.iter().filter(|event| matches!(event, Event::Complete { .. }));
    assert_eq!(completes.count(), 1, "{goal}");
    assert!(seen.report.verified_empty(), "{goal}: {:?}", seen.report);
    (seen.outcomes[0].clone().into_entry(), seen)
}

/// A child that asks without listening cannot make its parent keep answers without end.
#[test]
fn more_questions_than_are_allowed_are_a_protocol_error() {
    let (detail, _) = broken("asks 1000");
    assert!(detail.contains("16 questions"), "{detail}");
    let (outcome, _) = one("asks 16");
    assert_eq!(outcome.status, Status::Completed, "{outcome:?}");
}

fn broken(goal: &str) -> (String, Outcome) {
    let (outcome, _) = one(goal);
    assert_eq!(outcome.status, Status::Error, "{goal}: {outcome:?}");
    match &outcome.cause {
        Some(Cause::ProtocolError { detail }) => (detail.clone(), outcome),
        other => panic!("{goal}: {other:?}"),
    }
}

#[test]
fn a_right_worker_of_another_make_completes() {
    let (outcome, seen) = one("well");
    assert_eq!((outcome.status, outcome.summary.as_deref()), (Status::Completed, Some("well")));
    assert_eq!(outcome.notes, Vec::<String>::new());
    assert!(seen.events.iter().any(|event| event.name() == "subagent.text"));
}

#[test]
fn garbage_is_a_protocol_error_that_says_what_was_wrong() {
    for goal in ["garbage", "garbage 1", "garbage 3000000"] {
        let (detail, outcome) = broken(goal);
        assert!(!detail.is_empty() && outcome.error.unwrap().contains("broke the protocol"));
    }
}

#[test]
fn half_a_frame_is_a_protocol_error() {
    let (detail, outcome) = broken("half-frame");
    assert!(outcome.error.unwrap().contains(&detail));
    assert_eq!(outcome.summary, None);
}

#[test]
fn rb_32_an_oversized_frame_is_noted_with_size_and_cap_and_the_result_still_counts() {
    let (outcome, _) = one("oversized");
    assert_eq!(outcome.status, Status::Completed, "{outcome:?}");
    assert_eq!(outcome.summary.as_deref(), Some("after an oversized frame"));
    let note = outcome.notes.join("\n");
    assert!(note.contains("16777217 bytes") && note.contains("16777216 bytes"), "{note}");
}

#[test]
fn rb_33_a_progress_frame_over_the_cap_is_dropped_and_counted() {
    let (outcome, seen) = one("oversized");
    assert!(outcome.notes.iter().any(|note| note.starts_with("1 frame(s) over the cap")));
    // Nothing of it reached the consumer.
    assert!(seen.events.iter().all(|event| event.name() != "subagent.text"));
}

#[test]
fn an_undecodable_frame_and_a_parents_message_are_protocol_errors() {
    for goal in ["undecodable", "wrong-direction"] {
        broken(goal);
    }
}

#[test]
fn of_two_results_the_first_counts_and_the_second_is_noted() {
    let (outcome, _) = one("two-results");
    assert_eq!((outcome.status, outcome.summary.as_deref()), (Status::Completed, Some("first")));
    assert_eq!(outcome.notes, ["1 message(s) after its result were ignored"]);
}

#[test]
fn events_after_the_result_are_counted_and_not_shown() {
    let (outcome, seen) = one("late-events 5");
    assert_eq!((outcome.status, outcome.summary.as_deref()), (Status::Completed, Some("early")));
    assert_eq!(outcome.notes, ["5 message(s) after its result were ignored"]);
    assert!(seen.events.iter().all(|event| event.name() != "subagent.text"));
}

#[test]
fn parts_that_are_fewer_than_announced_are_an_error_with_both_numbers() {
    let (outcome, _) = one("short-parts 1000");
    assert_eq!(outcome.status, Status::Error, "{outcome:?}");
    let error = outcome.error.unwrap();
    assert!(error.contains("1049577") && error.contains("1048577"), "{error}");
    assert_eq!(outcome.summary, None);
}

#[test]
fn a_worker_that_ends_without_a_result_is_told_by_its_wait_status() {
    for (goal, cause) in [
        ("no-result", Cause::Exited { code: 0 }),
        ("exit 3", Cause::Exited { code: 3 }),
        ("exit 255", Cause::Exited { code: 255 }),
    ] {
        let (outcome, _) = one(goal);
        assert_eq!(
            (outcome.status, outcome.cause.as_ref()),
            (Status::Error, Some(&cause)),
            "{goal}"
        );
        assert!(outcome.error.unwrap().contains("exited with code"), "{goal}");
    }
    for signal in [11, 9, 6, 15] {
        let (outcome, _) = one(&format!("crash {signal}"));
        assert_eq!(outcome.status, Status::Error);
        match outcome.cause {
            Some(Cause::Signaled { signal: found, .. }) => assert_eq!(found, signal),
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn a_crash_after_the_result_is_noted_and_the_result_counts() {
    let (outcome, _) = one("result-then-crash");
    assert_eq!(outcome.status, Status::Completed, "{outcome:?}");
    assert!(matches!(outcome.cause, Some(Cause::Signaled { signal: 11, .. })), "{outcome:?}");
    assert!(outcome.notes.iter().any(|note| note.contains("after its result signal 11")));
}

#[test]
fn a_worker_that_stays_after_its_result_is_ended_and_the_result_counts() {
    let (outcome, _) = one("result-then-stay");
    assert_eq!(outcome.status, Status::Completed, "{outcome:?}");
    assert_eq!(outcome.summary.as_deref(), Some("and still here"));
    assert!(outcome.notes.iter().any(|note| note.contains("stayed after its result")));
}

#[test]
fn a_worker_that_closes_its_line_and_runs_on_is_ended() {
    let (detail, _) = broken("close");
    assert_eq!(detail, "it closed its line without a result and ran on");
}

#[test]
fn rb_27_interrupt_grace_term_grace_kill_each_have_their_time() {
    // It ignores interrupts: TERM ends it after the interrupt's grace.
    let seen = watch_with(
        &garblers("goal", impatient()),
        [Task::new("garbler", "hang")],
        |event, control| {
            if matches!(event, Event::Start { .. }) {
                control.interrupt();
            }
        },
    );
    let outcome = &seen.outcomes[0];
    assert_eq!(outcome.status, Status::Interrupted, "{:?}", **outcome);
    assert!(matches!(outcome.cause, Some(Cause::Signaled { signal: 15, .. })), "{outcome:?}");
    assert!(outcome.duration_seconds >= 0.5, "{}", outcome.duration_seconds);
    assert!(seen.report.verified_empty());
    // It ignores TERM as well: KILL ends it after the second grace.
    let script = "trap '' TERM; exec \"$0\" hang";
    let worker = ["sh", "-c", script, &helper("garbler")].map(str::to_owned).to_vec();
    let settings = Settings { worker_command: Some(worker), ..impatient() };
    let rig = rig_with(Isolation::Process, settings);
    let seen = watch_with(&rig, [Task::new("garbler", "x")], |event, control| {
        if matches!(event, Event::Start { .. }) {
            control.interrupt();
        }
    });
    let outcome = &seen.outcomes[0];
    assert!(matches!(outcome.cause, Some(Cause::Signaled { signal: 9, .. })), "{outcome:?}");
    assert!(outcome.duration_seconds >= 1.5, "{}", outcome.duration_seconds);
}

#[test]
fn one_dead_worker_beside_healthy_siblings_harms_none_of_them() {
    let bad = [
        "garbage",
        "half-frame",
        "crash 9",
        "crash 11",
        "exit 3",
        "oversized",
        "undecodable",
        "no-result",
        "short-parts 9",
        "two-results",
        "close",
    ];
    let tasks = bad.iter().flat_map(|goal| {
        [Task::new("garbler", "well"), Task::new("garbler", *goal), Task::new("garbler", "well")]
    });
    let seen = watch(&garblers("goal", impatient()), tasks);
    assert_eq!(seen.outcomes.len(), 3 * bad.len());
    for (index, outcome) in seen.outcomes.iter().enumerate().filter(|(index, _)| index % 3 != 1) {
        assert_eq!(outcome.status, Status::Completed, "{index}: {:?}", **outcome);
        assert_eq!(outcome.summary.as_deref(), Some("well"));
    }
    let completes = seen.events.iter().filter(|event| matches!(event, Event::Complete { .. }));
    assert_eq!(completes.count(), 3 * bad.len());
    assert!(seen.report.verified_empty());
}

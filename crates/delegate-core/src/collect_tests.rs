//! One row per kind of end: the right status, reason, cause and text.

use super::*;
use crate::monitor::CancelReason;
use delegate_protocol::event::Limit;
use delegate_protocol::message::Verdict;
use delegate_protocol::{Beat, Note, Tokens, ToolCall};

fn at(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn subject() -> Subject {
    Subject {
        task_index: 2,
        isolation: Isolation::Process,
        launcher: Some("exec"),
        limit: Some(at(60)),
        limit_place: Some("batch.yaml:14".to_owned()),
        start_limit: at(60),
        logs: None,
        start_failure: None,
        diagnostic: None,
        missed: Vec::new(),
        subtree: None,
        over_budget: None,
        reached: ownership::Reached::default(),
        ration: ownership::Ration::default(),
        live_transcript: None,
    }
}

fn facts() -> Facts {
    Facts {
        pid: Some(77),
        launched_at: Some(at(1)),
        started_at: Some(at(2)),
        ended_at: at(5),
        exit: Some(ExitStatus::Code(0)),
        emptied: Some(ownership::Emptied::default()),
        ..Facts::default()
    }
}

fn finish(verdict: Verdict, answer: &str) -> Said {
    Said {
        finish: Some(Finish {
            verdict,
            answer_bytes: answer.len() as u64,
            answer: Some(answer.to_owned()),
            answer_is_json: false,
            empty_on_purpose: false,
            error: None,
            failure_reason: None,
            api_calls: 3,
            tokens: Tokens { input: 1, output: 2 },
            model: None,
            cost_usd: None,
            cost_status: None,
            schema: None,
            tool_trace: Vec::new(),
        }),
        answer: Answer { text: answer.to_owned(), bytes: answer.len() as u64, ..Answer::default() },
        ..Said::default()
    }
}

fn silence() -> Said {
    Said { last_text: "so far".to_owned(), stderr: b"boom".to_vec(), ..Said::default() }
}

#[test]
fn an_answer_completes() {
    let outcome = outcome(subject(), &facts(), finish(Verdict::Completed, "42"));
    assert_eq!((outcome.status, outcome.exit_reason), (Status::Completed, ExitReason::Completed));
    assert_eq!(outcome.summary.as_deref(), Some("42"));
    assert_eq!((outcome.error, outcome.cause), (None, Some(Cause::Exited { code: 0 })));
    assert_eq!((outcome.duration_seconds, outcome.timeout_seconds), (3.0, None));
}

#[test]
fn c1_an_empty_or_give_up_answer_fails_unless_it_is_meant() {
    for text in ["", "(empty)"] {
        let outcome = outcome(subject(), &facts(), finish(Verdict::Completed, text));
        assert_eq!(outcome.status, Status::Failed, "{text:?}");
        assert_eq!(outcome.exit_reason, ExitReason::Completed);
        assert!(outcome.error.is_some());
    }
    let mut said = finish(Verdict::Completed, "");
    said.finish.as_mut().unwrap().empty_on_purpose = true;
    assert_eq!(outcome(subject(), &facts(), said).status, Status::Completed);
}

#[test]
fn c2_a_failed_run_with_text_is_failed_and_not_out_of_turns() {
    let mut said = finish(Verdict::Failed, "half");
    said.finish.as_mut().unwrap().error = Some("HTTP 400".to_owned());
    let outcome = outcome(subject(), &facts(), said);
    assert_eq!((outcome.status, outcome.exit_reason), (Status::Failed, ExitReason::Error));
    assert_eq!(outcome.error.as_deref(), Some("HTTP 400"));
    assert_eq!(outcome.summary.as_deref(), Some("half"));
    assert!(!outcome.truncated);
}

#[test]
fn c3_a_used_up_budget_with_text_is_completed_and_truncated() {
    let outcome = outcome(subject(), &facts(), finish(Verdict::MaxIterations, "partly"));
    assert_eq!(outcome.status, Status::Completed);
    assert_eq!((outcome.exit_reason, outcome.truncated), (ExitReason::MaxIterations, true));
}

#[test]
fn c4_an_interrupted_child_keeps_its_last_text_and_the_notice_is_the_error() {
    let mut facts = facts();
    facts.cancel = Some(CancelReason::Interrupt);
    for said in [finish(Verdict::Interrupted, "so far"), silence()] {
        let outcome = outcome(subject(), &facts, said);
        assert_eq!(outcome.status, Status::Interrupted);
        assert_eq!(outcome.summary.as_deref(), Some("so far"));
        assert!(outcome.error.unwrap().contains("interrupted"));
    }
}

#[test]
fn a_timeout_names_its_limit_and_keeps_the_partial_answer() {
    let mut facts = facts();
    facts.cancel = Some(CancelReason::Timeout);
    facts.timed_out_at = Some(at(62));
    facts.exit = Some(ExitStatus::Signal { signal: 9, core_dumped: false });
    let mut said = silence();
    said.last_content_at = Some(at(50));
    let outcome = outcome(subject(), &facts, said);
    assert_eq!((outcome.status, outcome.exit_reason), (Status::Timeout, ExitReason::Timeout));
    assert_eq!(outcome.error.as_deref(), Some("its limit of 60 s ran out (batch.yaml:14)"));
    assert_eq!(outcome.summary.as_deref(), Some("so far"));
    assert_eq!(outcome.timeout_seconds, Some(60.0));
    assert_eq!(outcome.timed_out_after_seconds, Some(60.0));
    assert_eq!(outcome.last_event_age, Some(12.0));
    assert_eq!(outcome.timeout_phase.as_deref(), Some("before_first_llm_call"));
    assert_eq!(outcome.cause, Some(Cause::Signaled { signal: 9, core_dumped: false }));
}

#[test]
fn a_result_that_arrives_within_the_grace_wins_as_it_is() {
    let mut facts = facts();
    for cancel in [CancelReason::Interrupt, CancelReason::Timeout, CancelReason::Kill] {
        facts.cancel = Some(cancel);
        let outcome = outcome(subject(), &facts, finish(Verdict::Completed, "done"));
        assert_eq!(outcome.status, Status::Completed, "{cancel:?}");
        assert_eq!(outcome.timeout_seconds, None);
    }
}

#[test]
fn a_crash_carries_its_signal_and_the_end_of_stderr() {
    let mut facts = facts();
    facts.exit = Some(ExitStatus::Signal { signal: 11, core_dumped: true });
    let outcome = outcome(subject(), &facts, silence());
    assert_eq!((outcome.status, outcome.summary), (Status::Error, None));
    assert_eq!(outcome.error.as_deref(), Some("signal 11 (SIGSEGV) ended it"));
    assert_eq!(outcome.stderr_tail.as_deref(), Some("boom"));
    assert_eq!(outcome.cause, Some(Cause::Signaled { signal: 11, core_dumped: true }));
}

#[test]
fn rb_60_an_exit_without_a_result_is_an_error_even_with_code_0() {
    let outcome = outcome(subject(), &facts(), Said::default());
    assert_eq!(outcome.status, Status::Error);
    assert_eq!(outcome.error.as_deref(), Some("it exited with code 0 and left no result"));
}

#[test]
fn rb_59_a_status_never_comes_from_the_text() {
    let text = "error: Traceback (most recent call last): timeout, killed, failed";
    let outcome = outcome(subject(), &facts(), finish(Verdict::Completed, text));
    assert_eq!((outcome.status, outcome.error), (Status::Completed, None));
}

#[test]
fn a_broken_protocol_is_named_and_one_after_the_result_only_noted() {
    let mut facts = facts();
    facts.violation = Some("garbage".to_owned());
    let broken = outcome(subject(), &facts, silence());
    assert_eq!(broken.error.as_deref(), Some("it broke the protocol: garbage"));
    assert_eq!(broken.cause, Some(Cause::ProtocolError { detail: "garbage".to_owned() }));

    let kept = outcome(subject(), &facts, finish(Verdict::Completed, "42"));
    assert_eq!(kept.status, Status::Completed);
    assert_eq!(kept.notes, ["after its result it broke the protocol: garbage"]);
}

#[test]
fn a_stream_that_is_cut_by_a_kill_has_the_signal_as_its_cause() {
    let cut = || Said { cut: Some("half a frame".to_owned()), ..silence() };
    let signal = ExitStatus::Signal { signal: 9, core_dumped: false };
    let killed = outcome(subject(), &Facts { exit: Some(signal), ..facts() }, cut());
    assert_eq!(killed.error.as_deref(), Some("signal 9 (SIGKILL) ended it"));
    assert_eq!(killed.cause, Some(Cause::Signaled { signal: 9, core_dumped: false }));
    assert_eq!(killed.notes, ["its stream was cut: half a frame"]);
    let left = outcome(subject(), &facts(), cut());
    assert_eq!(left.cause, Some(Cause::ProtocolError { detail: "half a frame".to_owned() }));
}

#[test]
fn an_oversized_frame_is_noted_and_named_only_when_no_result_came() {
    let over = Some((1, 1 << 30));
    let kept = Said { oversized: over, ..finish(Verdict::Completed, "42") };
    let kept = outcome(subject(), &facts(), kept);
    assert_eq!(kept.status, Status::Completed);
    assert!(kept.notes[0].contains("16777216"), "{:?}", kept.notes);
    let lost = outcome(subject(), &facts(), Said { oversized: over, ..silence() });
    assert!(lost.error.unwrap().contains("1073741824"));
}

#[test]
fn a_short_answer_is_not_taken_for_the_whole() {
    let mut said = finish(Verdict::Completed, "42");
    said.finish.as_mut().unwrap().answer_bytes = 99;
    let outcome = outcome(subject(), &facts(), said);
    assert_eq!(outcome.error.as_deref(), Some("its answer should have 99 bytes, 2 arrived"));
    assert_eq!(outcome.status, Status::Error);
}

#[test]
fn a_start_failure_carries_phase_errno_and_path() {
    let mut subject = subject();
    subject.launcher = None;
    subject.start_failure = Some(StartFailure {
        phase: "exec".to_owned(),
        errno: Some(2),
        path: Some("/no/such".to_owned()),
        detail: "No such file or directory".to_owned(),
    });
    let facts = Facts { launch_failed: true, ..Facts::default() };
    let outcome = outcome(subject, &facts, Said::default());
    assert_eq!(outcome.status, Status::Error);
    assert!(outcome.error.unwrap().contains("(exec): No such file"));
    let phase = "exec".to_owned();
    let path = Some("/no/such".to_owned());
    assert_eq!(outcome.cause, Some(Cause::StartFailed { phase, errno: Some(2), path }));
}

#[test]
fn the_other_ends_have_their_own_words() {
    let never = Facts { cancel: Some(CancelReason::Kill), ..Facts::default() };
    let start = Facts { start_timeout: true, ..facts() };
    let lost = Facts { exit: None, lost: true, ..facts() };
    let mut left = facts();
    left.abandoned = true;
    left.cancel = Some(CancelReason::Timeout);
    let rows = [
        (never, Status::Interrupted, "before its turn", None),
        (start, Status::Error, "start limit of 60 s", Some(Cause::StartTimeout)),
        (lost, Status::Error, "guards were killed", Some(Cause::Lost)),
        (left, Status::Timeout, "abandoned", Some(Cause::Abandoned)),
    ];
    for (facts, status, text, cause) in rows {
        let outcome = outcome(subject(), &facts, Said::default());
        assert_eq!(outcome.status, status, "{text}");
        assert!(outcome.error.as_ref().unwrap().contains(text), "{:?}", outcome.error);
        assert_eq!(outcome.cause, cause, "{text}");
    }
}

#[test]
fn what_a_worker_of_another_make_says_is_cut_to_the_bounds_of_our_own() {
    let call = |number: usize| ToolCall {
        tool: format!("{number:04}{}", "t".repeat(NAME_BYTES)),
        args_bytes: 1,
        input_summary: delegate_protocol::InputSummary {
            argument_keys: vec!["k".repeat(9999); 99],
            targets: vec!["t".repeat(9999); 99],
        },
        result_bytes: 2,
        status: "s".repeat(NAME_BYTES + 1),
    };
    let mut said = finish(Verdict::Failed, "half");
    let frame = said.finish.as_mut().unwrap();
    // The last character would be cut through.
    frame.error = Some(format!("{}é", "e".repeat(ERROR_BYTES - 1)));
    frame.failure_reason = Some("r".repeat(NAME_BYTES + 1));
    frame.cost_status = Some("c".repeat(NAME_BYTES + 1));
    frame.schema = Some(SchemaWord {
        valid: false,
        retries: 1,
        errors: vec!["e".repeat(SCHEMA_ERROR_BYTES + 1); MAX_SCHEMA_ERRORS + 1],
        note: Some("n".repeat(ERROR_BYTES + 1)),
    });
    frame.model = Some("m".repeat(NAME_BYTES + 1));
    frame.tool_trace = (0..MAX_TOOL_TRACE + 2).map(call).collect();
    let outcome = outcome(subject(), &facts(), said);
    assert_eq!(outcome.error.unwrap(), "e".repeat(ERROR_BYTES - 1));
    assert_eq!(outcome.failure_reason.unwrap().len(), NAME_BYTES);
    assert_eq!(outcome.model.unwrap().len(), NAME_BYTES);
    assert_eq!(outcome.cost_status.len(), NAME_BYTES);
    assert_eq!(outcome.schema_errors.len(), MAX_SCHEMA_ERRORS);
    assert!(outcome.schema_errors.iter().all(|error| error.len() == SCHEMA_ERROR_BYTES));
    assert_eq!(outcome.schema_note.unwrap().len(), ERROR_BYTES);
    assert_eq!(outcome.tool_trace.len(), MAX_TOOL_TRACE);
    assert!(outcome.tool_trace[0].tool.starts_with("0002"), "the newest are kept");
    for call in &outcome.tool_trace {
        assert_eq!((call.tool.len(), call.status.len()), (NAME_BYTES, NAME_BYTES));
        let InputSummary { argument_keys, targets } = &call.input_summary;
        assert_eq!((argument_keys.len(), targets.len()), (16, 4));
        assert!(argument_keys.iter().chain(targets).all(|word| word.len() == 800));
    }
}

#[test]
fn output_that_is_not_in_the_logs_leaves_a_note() {
    let quiet = outcome(subject(), &facts(), finish(Verdict::Completed, "42"));
    assert!(quiet.notes.is_empty(), "{:?}", quiet.notes);
    let said = Said { lost: 4096, ..finish(Verdict::Completed, "42") };
    let outcome = outcome(subject(), &facts(), said);
    assert!(outcome.notes[0].starts_with("4096 bytes of its output"), "{:?}", outcome.notes);
}

/// C7, C10, C11: each limit is named with its key, and all fields are null where none ended it.
#[test]
fn c07_c11_a_timeout_names_the_limit_that_ended_it_and_others_name_none() {
    use crate::monitor::Expired;
    let limits = [
        (
            Limit::Inactivity,
            90,
            CancelReason::Timeout,
            "no progress for 90 s (child_inactivity_seconds)",
        ),
        (Limit::StaleIdle, 450, CancelReason::Stale, "no progress for 450 s (stale_idle_seconds)"),
        (
            Limit::StaleInTool,
            1200,
            CancelReason::Stale,
            "no progress for 1200 s inside a tool (stale_in_tool_seconds)",
        ),
        (Limit::Run, 75, CancelReason::Timeout, "its limit of 75 s ran out (batch.yaml:14)"),
    ];
    for (limit, after, cancel, text) in limits {
        let facts = Facts {
            cancel: Some(cancel),
            timed_out_at: Some(at(4)),
            expired: Some(Expired { limit, after: at(after) }),
            quiet_for: Some(at(3)),
            ..facts()
        };
        let diagnostic = Some(PathBuf::from("/logs/timeout-diagnostic.txt"));
        let timed_out = outcome(Subject { diagnostic, ..subject() }, &facts, silence());
        assert_eq!(
            (timed_out.status, timed_out.exit_reason),
            (Status::Timeout, ExitReason::Timeout)
        );
        let error = timed_out.error.as_deref().unwrap();
        assert!(error.contains(text) && error.ends_with("/logs/timeout-diagnostic.txt"), "{error}");
        assert_eq!(timed_out.timeout_seconds, Some(at(after).as_secs_f64()));
        assert_eq!(
            (timed_out.timed_out_after_seconds, timed_out.last_event_age),
            (Some(2.0), Some(3.0))
        );
        assert_eq!(timed_out.timeout_phase.as_deref(), Some("before_first_llm_call"));
        assert!(timed_out.diagnostic_path.is_some());
    }
    let plain = outcome(subject(), &facts(), silence());
    assert_eq!((plain.status, plain.timeout_seconds), (Status::Error, None));
    assert_eq!((plain.timed_out_after_seconds, plain.timeout_phase), (None, None));
    assert_eq!((plain.last_event_age, plain.diagnostic_path), (None, None));
}

/// RB-68: a child that is killed at its limit has told what it did.
#[test]
fn rb_68_a_child_without_a_last_frame_keeps_calls_cost_files_and_text() {
    let mut said = silence();
    let tokens = Tokens { input: 5, output: 6 };
    let call = Note::Call { tokens, reasoning_tokens: 2, cost_usd: Some(0.25) };
    said.spent.note(call, None);
    said.spent.note(Note::File { path: "out.txt".to_owned(), written: true }, None);
    said.spent.beat(&Beat { api_calls: 1, ..Beat::default() });
    let facts = Facts {
        cancel: Some(CancelReason::Timeout),
        timed_out_at: Some(at(4)),
        exit: Some(ExitStatus::Signal { signal: 9, core_dumped: false }),
        ..facts()
    };
    let outcome = outcome(subject(), &facts, said);
    assert_eq!((outcome.status, outcome.api_calls), (Status::Timeout, 1));
    assert_eq!((outcome.tokens, outcome.reasoning_tokens), (tokens, 2));
    assert_eq!((outcome.cost_usd, outcome.summary.as_deref()), (Some(0.25), Some("so far")));
    assert_eq!(outcome.files_written, ["out.txt"]);
    let end = complete(&outcome);
    assert_eq!((end.files_written, end.preview.as_str()), (vec!["out.txt".to_owned()], "so far"));
}

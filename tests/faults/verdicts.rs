//! RB-52, 59, 60: every kind of failure has the right status, reason and original text; no status
//! ever comes from a text.

use delegate_runtime::config::Settings;
use delegate_runtime::{Cause, ExitReason, Isolation, Outcome, Status, Task, Value};

use crate::step::{Step, Stepper};
use crate::support::{BOTH, command, helper, rig, rig_with, run};

/// What an outcome must be: status, reason, and a part of its error.
struct Row {
    task: Task,
    status: Status,
    reason: ExitReason,
    error: &'static str,
}

fn row(task: Task, status: Status, reason: ExitReason, error: &'static str) -> Row {
    Row { task, status, reason, error }
}

fn step(step: Step) -> Task {
    Task::of::<Stepper>("step", step)
}

fn failed(task: Task, error: &'static str) -> Row {
    row(task, Status::Failed, ExitReason::Error, error)
}

fn check(rows: Vec<Row>, isolation: Isolation, settings: Settings) -> Vec<Outcome> {
    let rig = rig_with(isolation, settings);
    let tasks: Vec<_> = rows.iter().map(|row| row.task.clone()).collect();
    let (outcomes, report) = run(&rig, tasks);
    assert!(report.verified_empty(), "{:?}", report.warnings());
    for (row, outcome) in rows.iter().zip(&outcomes) {
        let seen = (outcome.status, outcome.exit_reason);
        assert_eq!(seen, (row.status, row.reason), "{isolation:?} {:?}: {outcome:?}", row.task);
        let error = outcome.error.as_deref().unwrap_or_default();
        assert!(error.contains(row.error), "{isolation:?} {error:?} has no {:?}", row.error);
        assert_eq!(error.is_empty(), row.status == Status::Completed, "{outcome:?}");
    }
    outcomes
}

/// Those that both executors can have.
fn agent_rows() -> Vec<Row> {
    let fail = |reason: Option<&str>| Step::Fail {
        text: "so far".to_owned(),
        message: "HTTP 400: no such model".to_owned(),
        reason: reason.map(str::to_owned),
    };
    let crasher = |how: &str| command("crash", [helper("crasher").as_str(), how, "told on stderr"]);
    let sh = |script: &str| command("sh", ["sh", "-c", script]);
    let none: [&str; 0] = [];
    let relative = Task::new("command", "cwd").params(
        Value::from_typed(&serde_json::json!({"argv": ["true"], "cwd": "/no/such/folder"}))
            .unwrap(),
    );
    vec![
        failed(step(fail(None)), "HTTP 400: no such model"),
        failed(step(fail(Some("rate_limit"))), "HTTP 400: no such model"),
        row(
            step(Step::Panic("the agent's own words".to_owned())),
            Status::Error,
            ExitReason::Error,
            "the agent's own words",
        ),
        row(
            step(Step::Turns("partial".to_owned())),
            Status::Completed,
            ExitReason::MaxIterations,
            "",
        ),
        row(
            step(Step::Turns(String::new())),
            Status::Failed,
            ExitReason::MaxIterations,
            "it gave no answer",
        ),
        row(
            step(Step::Empty { on_purpose: false }),
            Status::Failed,
            ExitReason::Completed,
            "it gave no answer",
        ),
        row(step(Step::Empty { on_purpose: true }), Status::Completed, ExitReason::Completed, ""),
        row(
            step(Step::Answer("(empty)".to_owned())),
            Status::Failed,
            ExitReason::Completed,
            "it gave no answer",
        ),
        row(
            step(Step::Wait).timeout(std::time::Duration::from_secs(1)),
            Status::Timeout,
            ExitReason::Timeout,
            "its limit of 1 s ran out",
        ),
        failed(Task::new("step", "no params"), ""),
        failed(sh("exit 7"), "exit code 7"),
        failed(sh("echo why >&2; exit 1"), "why"),
        failed(crasher("segv"), "told on stderr"),
        failed(crasher("segv"), "SIGSEGV"),
        failed(crasher("kill"), "SIGKILL"),
        failed(crasher("abrt"), "SIGABRT"),
        failed(crasher("term"), "SIGTERM"),
        failed(crasher("panic"), "this helper panics on purpose"),
        failed(command("none", none), "params.argv is empty"),
        failed(command("gone", ["/no/such/program"]), "No such file or directory"),
        failed(command("folder", ["/tmp"]), "Permission denied"),
        failed(relative, "/no/such/folder"),
        row(sh("true"), Status::Completed, ExitReason::Completed, ""),
    ]
}

#[test]
fn rb_52_every_kind_of_failure_keeps_its_status_reason_and_words_over_both() {
    for isolation in BOTH {
        let outcomes = check(agent_rows(), isolation, Settings::default());
        assert_eq!(outcomes[1].failure_reason.as_deref(), Some("rate_limit"));
        assert_eq!(outcomes[0].summary.as_deref(), Some("so far"), "its last text is kept");
        assert!(outcomes[2].error.as_ref().unwrap().contains("step.rs"), "a panic has its place");
        assert_eq!(outcomes[3].summary.as_deref(), Some("partial"));
        assert!(outcomes[3].truncated);
    }
}

#[test]
fn rb_52_a_worker_that_ends_under_its_agent_has_the_cause_of_its_process() {
    let exit = |code| Step::Exit { stderr: "last words".to_owned(), code };
    let error = |task, text| row(task, Status::Error, ExitReason::Error, text);
    let rows = vec![
        error(step(exit(0)), "exited with code 0 and left no result"),
        error(step(exit(3)), "exited with code 3 and left no result"),
    ];
    let outcomes = check(rows, Isolation::Process, Settings::default());
    for (outcome, code) in outcomes.iter().zip([0, 3]) {
        assert_eq!(outcome.cause, Some(Cause::Exited { code }));
        assert!(outcome.stderr_tail.as_ref().unwrap().contains("last words"), "{outcome:?}");
    }
}

#[test]
fn rb_52_a_worker_of_another_make_that_breaks_the_protocol_is_named() {
    let goal = |goal: &str| Task::new("garbler", goal);
    let error =
        |goal_text: &str, text| row(goal(goal_text), Status::Error, ExitReason::Error, text);
    let rows = vec![
        error("garbage", "broke the protocol"),
        error("half-frame", "broke the protocol"),
        error("no-result", "exited with code 0 and left no result"),
        error("short-parts", "should have"),
        error("crash 11", "signal 11 (SIGSEGV)"),
        error("crash 6", "signal 6 (SIGABRT)"),
        error("exit 4", "code 4"),
        error("undecodable", "broke the protocol"),
        row(goal("well"), Status::Completed, ExitReason::Completed, ""),
        row(goal("two-results"), Status::Completed, ExitReason::Completed, ""),
        row(goal("late-events"), Status::Completed, ExitReason::Completed, ""),
        row(goal("oversized"), Status::Completed, ExitReason::Completed, ""),
    ];
    let command = vec![helper("garbler"), "goal".to_owned()];
    let settings = Settings { worker_command: Some(command), ..Settings::default() };
    let outcomes = check(rows, Isolation::Process, settings);
    assert_eq!(outcomes[9].summary.as_deref(), Some("first"));
    assert!(matches!(outcomes[0].cause, Some(Cause::ProtocolError { .. })));
    assert!(matches!(outcomes[4].cause, Some(Cause::Signaled { signal: 11, .. })));
    assert_eq!(outcomes[6].cause, Some(Cause::Exited { code: 4 }));
}

#[test]
fn rb_59_words_of_failure_in_the_output_are_only_words() {
    let text =
        "error: timeout, panicked at src/lib.rs, signal 9 (SIGKILL), interrupted, setTimeout(1)";
    let script = format!("echo '{text}'; echo '{text}' >&2");
    for isolation in BOTH {
        let rig = rig(isolation);
        let tasks = [
            command("words", ["sh", "-c", &script]),
            step(Step::Answer(text.to_owned())),
            command("words", ["sh", "-c", "echo all good, completed; exit 1"]),
        ];
        let (outcomes, report) = run(&rig, tasks);
        let statuses = [Status::Completed, Status::Completed, Status::Failed];
        assert_eq!(report.statuses(), statuses, "{isolation:?} {outcomes:?}");
        assert_eq!(outcomes[0].summary.as_deref(), Some(text));
        assert_eq!(outcomes[1].summary.as_deref(), Some(text));
    }
}

#[test]
fn rb_60_completed_needs_a_terminal_frame_and_an_answer_or_the_empty_flag() {
    let settings = Settings {
        worker_command: Some(vec![helper("garbler"), "leaver".to_owned()]),
        ..Settings::default()
    };
    let (outcomes, _report) =
        run(&rig_with(Isolation::Process, settings), [Task::new("any", "leaves at once")]);
    assert_eq!(outcomes[0].status, Status::Error, "exit 0 without a frame: {:?}", outcomes[0]);
    for isolation in BOTH {
        let empty = |on_purpose| step(Step::Empty { on_purpose });
        let mute = command("mute", [helper("mute").as_str(), "exit"]);
        let (outcomes, report) = run(&rig(isolation), [empty(false), empty(true), mute]);
        let statuses = [Status::Failed, Status::Completed, Status::Completed];
        assert_eq!(report.statuses(), statuses, "{isolation:?} {outcomes:?}");
    }
}

//! What an entry holds (contract 3), over both executors: trace, status words, money, the length of an answer,
//! the schema that it must meet, the transcript, and the callbacks of whoever delegates.

use std::path::Path;
use std::sync::{Arc, Mutex};

use delegate_protocol::Tokens;
use delegate_runtime::config::Settings;
use delegate_runtime::plan::{Headroom, Parent};
use delegate_runtime::{
    Agent, ExitReason, Failure, Identity, Isolation, Listener, Outcome, Session, StartError,
    Status, Stopped, Task, Value,
};
use serde::{Deserialize, Serialize};

use crate::agents::{End, Op, answer, script};
use crate::seen::{watch, watch_with};
use crate::support::{BOTH, command, rig, rig_with, run};

fn text(text: &str) -> Op {
    Op::Text(text.to_owned())
}

fn call(id: &str, tool: &str, args: &str) -> Op {
    Op::Call(id.to_owned(), tool.to_owned(), args.to_owned())
}

fn gave(id: &str, result: &str) -> Op {
    Op::Result(Some(id.to_owned()), result.to_owned())
}

fn value(json: &str) -> Value {
    serde_json::from_str(json).unwrap()
}

/// Answers as it is told, one text per turn, and says what it was told.
#[derive(Debug, Default)]
pub struct Pupil {
    left: Vec<End>,
}

impl Pupil {
    fn turn(&mut self, session: &mut Session) -> Result<String, Failure> {
        session.api_call(Tokens { input: 1, output: 1 }, None);
        match self.left.remove(0) {
            End::Answer(text) => Ok(text),
            End::Fail(message, reason) => Err(Failure::Failed { message, reason }),
            End::Panic(message) => panic!("{message}"),
            End::MaxIterations(partial) => Err(Failure::MaxIterations { partial }),
            End::Interrupted => {
                session.text("partial");
                while !session.is_interrupted() {
                    std::thread::sleep(std::time::Duration::from_millis(2));
                }
                Err(Failure::Interrupted)
            }
        }
    }
}

#[derive(Debug, Serialize, Deserialize)]
pub struct Turns {
    ends: Vec<End>,
}

impl Agent for Pupil {
    const NAME: &'static str = "pupil";
    type Params = Turns;
    type Answer = String;

    fn run(&mut self, turns: Turns, session: &mut Session) -> Result<String, Failure> {
        self.left = turns.ends;
        let told = session.answer_contract().unwrap_or_default();
        session.thinking(&told.replace('\n', " "));
        self.turn(session)
    }

    fn answer_again(
        &mut self,
        errors: &[String],
        session: &mut Session,
    ) -> Option<Result<String, Failure>> {
        session.thinking(&format!("again: {}", errors.join("; ")));
        (!self.left.is_empty()).then(|| self.turn(session))
    }
}

const SCHEMA: &str = r#"{"type":"object","required":["n"],"properties":{"n":{"type":"integer"}}}"#;

pub fn pupil(ends: impl IntoIterator<Item = End>) -> Task {
    Task::of::<Pupil>("learn", Turns { ends: ends.into_iter().collect() })
        .output_schema(value(SCHEMA))
}

/// Valid, retries, model calls, whether there are errors.
fn met(outcome: &Outcome) -> (Option<bool>, Option<u32>, u64, bool) {
    let errors = !outcome.schema_errors.is_empty();
    (outcome.schema_valid, outcome.schema_retries, outcome.api_calls, errors)
}

#[test]
fn m035_one_goal_gives_one_result() {
    for isolation in BOTH {
        let (outcomes, report) = run(&rig(isolation), [script([], answer("42")).task("one")]);
        assert_eq!((outcomes.len(), report.statuses()), (1, &[Status::Completed][..]));
        assert_eq!(outcomes[0].summary.as_deref(), Some("42"));
    }
}

#[test]
fn m036_two_tasks_give_two_results_in_order_and_a_total_duration() {
    for isolation in BOTH {
        let folder = tempfile::tempdir().unwrap();
        let done = folder.path().join("second-is-over").display().to_string();
        // The second ends first.
        let tasks = [
            script([Op::AwaitFile(done.clone())], answer("a")).task("first"),
            script([Op::Touch(done)], answer("b")).task("second"),
        ];
        let (outcomes, report) = run(&rig(isolation), tasks);
        let order: Vec<_> =
            outcomes.iter().map(|o| (o.task_index, o.summary.as_deref().unwrap())).collect();
        assert_eq!(order, [(0, "a"), (1, "b")]);
        assert!(report.total_duration() > std::time::Duration::ZERO);
    }
}

#[test]
fn m037_an_error_of_a_child_is_an_entry_and_the_call_succeeds() {
    for isolation in BOTH {
        let bad = script([], End::Fail("HTTP 400".to_owned(), None)).task("bad");
        let (outcomes, report) = run(&rig(isolation), [bad, script([], answer("ok")).task("good")]);
        assert_eq!(report.statuses(), [Status::Failed, Status::Completed]);
        assert_eq!(outcomes[0].error.as_deref(), Some("HTTP 400"));
    }
}

#[test]
fn m047_a_result_has_model_reason_tokens_and_a_trace_with_what_each_tool_was_called_with() {
    let ops = || {
        [
            Op::Model("large-2".to_owned()),
            Op::ApiCall(10, 3),
            call(
                "1",
                "read",
                r#"{"path":"/a/b","content":"hush","url":"https://u:hush@h/p?k=hush"}"#,
            ),
            gave("1", r#""four""#),
        ]
    };
    for isolation in BOTH {
        let (outcomes, _) = run(&rig(isolation), [script(ops(), answer("done")).task("t")]);
        let outcome = &outcomes[0];
        assert_eq!(outcome.model.as_deref(), Some("large-2"));
        assert_eq!(outcome.exit_reason, ExitReason::Completed);
        assert_eq!((outcome.tokens.input, outcome.tokens.output), (10, 3));
        let [read] = &outcome.tool_trace[..] else { panic!("{:?}", outcome.tool_trace) };
        assert_eq!(
            (read.tool.as_str(), read.status.as_str(), read.result_bytes),
            ("read", "ok", 4)
        );
        assert!(read.args_bytes > 0);
        assert_eq!(read.input_summary.argument_keys, ["content", "path", "url"]);
        assert_eq!(read.input_summary.targets, ["/a/b", "https://h/p"]);
        let json = serde_json::to_string(&outcome.tool_trace).unwrap();
        assert!(!json.contains("hush"), "{json}");
    }
}

#[test]
fn m048_a_result_of_several_blocks_is_counted() {
    let blocks = r#"[{"type":"text","text":"one"},{"type":"text","text":"two"}]"#;
    for isolation in BOTH {
        let ops = [call("1", "look", "{}"), gave("1", blocks)];
        let (outcomes, _) = run(&rig(isolation), [script(ops, answer("x")).task("t")]);
        let [look] = &outcomes[0].tool_trace[..] else { panic!("one call") };
        assert_eq!((look.status.as_str(), look.result_bytes), ("ok", 7));
    }
}

#[test]
fn m049_the_output_tail_flattens_blocks_and_flags_an_error_inside_one() {
    let bad = r#"[{"type":"text","text":"{\"error\":\"boom\"}"}]"#;
    for isolation in BOTH {
        let ops = [call("1", "look", "{}"), gave("1", bad)];
        let (outcomes, _) = run(&rig(isolation), [script(ops, answer("x")).task("t")]);
        let [tail] = &outcomes[0].output_tail[..] else { panic!("one end") };
        assert_eq!((tail.tool.as_str(), tail.is_error), ("look", true));
        assert_eq!(tail.preview, r#"{"error":"boom"}"#);
    }
}

#[test]
fn m050_a_result_that_begins_with_an_error_mark_is_an_error_and_the_mere_word_is_not() {
    for isolation in BOTH {
        let ops = [
            call("1", "a", "{}"),
            gave("1", r#""Error: no such file""#),
            call("2", "b", "{}"),
            gave("2", r#""no error: fine""#),
        ];
        let (outcomes, _) = run(&rig(isolation), [script(ops, answer("x")).task("t")]);
        let status: Vec<_> = outcomes[0].tool_trace.iter().map(|call| &*call.status).collect();
        assert_eq!(status, ["error", "ok"]);
    }
}

#[test]
fn m051_parallel_calls_get_their_own_status_and_their_own_name_in_the_tail() {
    for isolation in BOTH {
        let ops = [
            call("1", "a", "{}"),
            call("2", "b", "{}"),
            call("3", "c", "{}"),
            gave("2", r#"{"error":"gone"}"#),
            gave("3", r#""fine""#),
            gave("1", r#""fine too""#),
        ];
        let (outcomes, _) = run(&rig(isolation), [script(ops, answer("x")).task("t")]);
        let trace: Vec<_> =
            outcomes[0].tool_trace.iter().map(|call| (&*call.tool, &*call.status)).collect();
        assert_eq!(trace, [("a", "ok"), ("b", "error"), ("c", "ok")]);
        let tail: Vec<_> =
            outcomes[0].output_tail.iter().map(|end| (&*end.tool, end.is_error)).collect();
        assert_eq!(tail, [("b", true), ("c", false), ("a", false)]);
    }
}

#[test]
fn m052_an_interrupted_run_says_so() {
    for isolation in BOTH {
        let task = script([text("last"), Op::AwaitInterrupt], End::Interrupted).task("t");
        let seen = watch_with(&rig(isolation), [task], |event, control| {
            if event.name() == "subagent.text" {
                control.interrupt();
            }
        });
        assert_eq!(seen.outcomes[0].exit_reason, ExitReason::Interrupted);
        assert_eq!(seen.outcomes[0].status, Status::Interrupted);
    }
}

#[test]
fn m053_a_run_out_of_turns_says_max_iterations() {
    for isolation in BOTH {
        let (outcomes, _) =
            run(&rig(isolation), [script([], End::MaxIterations("half".to_owned())).task("t")]);
        assert_eq!(outcomes[0].exit_reason, ExitReason::MaxIterations);
        assert!(outcomes[0].truncated);
    }
}

#[test]
fn c1_c2_c3_are_the_same_in_both_executors() {
    let rows = || {
        [
            (answer("(empty)"), Status::Failed, ExitReason::Completed),
            (End::Fail("HTTP 500".to_owned(), None), Status::Failed, ExitReason::Error),
            (End::MaxIterations("so far".to_owned()), Status::Completed, ExitReason::MaxIterations),
        ]
    };
    for isolation in BOTH {
        let tasks = rows().map(|(end, ..)| script([text("words")], end).task("t"));
        let (outcomes, _) = run(&rig(isolation), tasks);
        for (outcome, (_, status, reason)) in outcomes.iter().zip(rows()) {
            assert_eq!((outcome.status, outcome.exit_reason), (status, reason));
        }
    }
}

#[test]
fn money_says_what_kind_of_number_it_is() {
    for isolation in BOTH {
        let tasks = [
            script([], answer("free")).task("t"),
            script([Op::ApiCall(1, 1)], answer("told a price")).task("t"),
            script([Op::ApiCall(1, 1), Op::CostStatus("exact".to_owned())], answer("x")).task("t"),
        ];
        let (outcomes, _) = run(&rig(isolation), tasks);
        let status: Vec<_> = outcomes.iter().map(|outcome| &*outcome.cost_status).collect();
        assert_eq!(status, ["unknown", "estimated", "exact"]);
        assert_eq!(outcomes[2].cost_usd, Some(0.25));
    }
}

#[test]
fn c47_a_schema_is_told_met_at_once_or_after_exactly_one_more_turn() {
    let good = || answer(r#"{"n":1}"#);
    for isolation in BOTH {
        let tasks = [
            pupil([good(), answer("never asked")]),
            pupil([answer("n is 1"), good(), answer("never asked")]),
            pupil([answer("n is 1"), answer(r#"{"n":"one"}"#), answer("never asked")]),
            // It has no second turn.
            pupil([answer("n is 1")]),
            script([], answer("{}")).task("t").output_schema(value(SCHEMA)),
        ];
        let seen = watch(&rig(isolation), tasks);
        let met: Vec<_> = seen.outcomes.iter().map(met).collect();
        let expected = [
            (Some(true), Some(0), 1, false),
            (Some(true), Some(1), 2, false),
            (Some(false), Some(1), 2, true),
            (Some(false), Some(0), 1, true),
            (Some(false), Some(0), 0, true),
        ];
        assert_eq!(met, expected, "{isolation:?}");
        // A miss is no failure, and the raw text stays.
        assert_eq!(seen.report.statuses(), [Status::Completed; 5]);
        assert_eq!(seen.outcomes[1].summary.as_deref(), Some(r#"{"n":1}"#));
        assert_eq!(seen.outcomes[2].summary.as_deref(), Some(r#"{"n":"one"}"#));
        assert!(seen.outcomes[2].schema_errors[0].contains("/n"), "{:?}", seen.outcomes[2]);
        let said = serde_json::to_string(&seen.of(2)).unwrap();
        assert!(said.contains("must be JSON that meets this JSON Schema"), "{said}");
        assert!(said.contains("again: the answer is not JSON"), "{said}");
        for outcome in &seen.outcomes {
            assert_eq!(outcome.schema_note.is_none(), outcome.schema_valid == Some(true));
        }
    }
}

#[test]
fn c47_an_empty_answer_a_failed_turn_and_an_interrupt_are_not_asked_again() {
    for isolation in BOTH {
        let tasks = [
            pupil([answer(""), answer("never asked")]),
            pupil([End::Fail("HTTP 500".to_owned(), None), answer("never asked")]),
            pupil([answer("first"), End::Fail("HTTP 500".to_owned(), None)]),
            pupil([answer("first"), End::Panic("oops".to_owned())]),
            pupil([End::Interrupted, answer("never asked")]),
        ];
        let seen = watch_with(&rig(isolation), tasks, |event, control| {
            if event.name() == "subagent.text" {
                control.stop(event.child());
            }
        });
        let all: Vec<_> = seen
            .outcomes
            .iter()
            .map(|o| (o.status, o.schema_valid, o.schema_retries, o.api_calls))
            .collect();
        let expected = [
            (Status::Failed, None, Some(0), 1),
            (Status::Failed, None, Some(0), 1),
            (Status::Completed, Some(false), Some(1), 2),
            (Status::Completed, Some(false), Some(1), 2),
            (Status::Interrupted, None, Some(0), 1),
        ];
        assert_eq!(all, expected, "{isolation:?}");
        // A second turn that came to nothing left the first answer.
        assert_eq!(seen.outcomes[2].summary.as_deref(), Some("first"));
        assert!(seen.outcomes[2].schema_note.as_ref().unwrap().contains("HTTP 500"));
        assert!(seen.outcomes[3].schema_note.as_ref().unwrap().contains("oops"));
        assert!(seen.outcomes[4].schema_note.as_ref().unwrap().contains("no answer to check"));
    }
}

#[test]
fn c47_a_malformed_schema_refuses_the_whole_batch_and_nothing_starts() {
    for isolation in BOTH {
        let rig = rig(isolation);
        for schema in [r#"{"type":"nothing"}"#, r#"{"$ref":"https://example.org/s"}"#, "[]"] {
            let tasks = [
                script([], answer("x")).task("fine"),
                Task::new("spec", "bad").output_schema(value(schema)),
            ];
            match rig.delegator.batch(tasks).start() {
                Err(StartError::InvalidTask { task: 1, reason, .. }) => {
                    assert!(reason.starts_with("output_schema is malformed"), "{reason}");
                }
                other => panic!("{other:?}"),
            }
        }
        let runs = rig.state.path().join("runs").read_dir();
        assert!(!runs.is_ok_and(|mut all| all.next().is_some()));
    }
}

#[test]
fn c47_a_command_is_told_the_schema_and_its_output_is_checked() {
    let sh = |line: &str| command("g", ["sh", "-c", line]).output_schema(value(SCHEMA));
    for isolation in BOTH {
        let tasks = [
            sh(r#"printf '%s' "$DELEGATE_OUTPUT_SCHEMA" | grep -q required && echo '{"n": 3}'"#),
            sh("echo no"),
        ];
        let (outcomes, _) = run(&rig(isolation), tasks);
        assert_eq!(met(&outcomes[0]), (Some(true), Some(0), 0, false), "{:?}", *outcomes[0]);
        assert_eq!(met(&outcomes[1]), (Some(false), Some(0), 0, true));
    }
}

fn lines(count: usize) -> String {
    (1..=count).map(|line| format!("line number {line:04}\n")).collect()
}

fn capped(isolation: Isolation, chars: Option<u32>) -> crate::support::Rig {
    rig_with(isolation, Settings { max_summary_chars: chars, ..Settings::default() })
}

#[test]
fn c48_an_answer_over_its_ceiling_is_cut_and_kept_and_both_executors_cut_alike() {
    let mut cuts = Vec::new();
    for isolation in BOTH {
        let rig = capped(isolation, Some(400));
        let tasks =
            [script([], answer(&lines(100))).task("long"), script([], answer("short")).task("t")];
        let (outcomes, _) = run(&rig, tasks);
        let long = &outcomes[0];
        let path = long.summary_full_path.as_ref().unwrap();
        assert!(long.summary_truncated && path.starts_with(long.logs.as_ref().unwrap()));
        assert_eq!(std::fs::read_to_string(path).unwrap(), lines(100));
        let summary = long.summary.as_ref().unwrap();
        assert!(
            summary
                .contains(&format!("is in {}; what is left out begins in line 18", path.display()))
        );
        cuts.push(summary.replace(path.to_str().unwrap(), "PATH"));
        assert_eq!((outcomes[1].summary_truncated, &outcomes[1].summary_full_path), (false, &None));
    }
    assert_eq!(cuts[0], cuts[1]);
}

#[test]
fn c48_unknown_room_means_the_ceiling_only_and_known_room_is_shared_by_the_batch() {
    let tasks = || [0, 1].map(|_| script([], answer(&lines(1_500))).task("t"));
    let room = |context_length| {
        Some(Headroom { context_length, last_prompt_tokens: 1_000, output_reserve: 1_000 })
    };
    for isolation in BOTH {
        let cut = |chars, parent: Option<Option<Headroom>>| {
            let rig = capped(isolation, chars);
            let batch = rig.delegator.batch(tasks());
            let report = match parent {
                None => batch.run(),
                Some(headroom) => batch.parent(Parent { headroom, ..Parent::default() }).run(),
            };
            let report = report.unwrap();
            let outcome = report.results().next().unwrap();
            outcome.summary_truncated.then(|| outcome.summary.as_ref().unwrap().len())
        };
        // 25,500 characters: a program takes them all, an agent 24,000.
        assert_eq!(cut(None, None), None);
        assert!(cut(None, Some(None)).is_some_and(|bytes| (23_000..24_500).contains(&bytes)));
        assert_eq!(cut(Some(0), Some(None)), None);
        // (12,000 - 2,000) / 2 / 2 tasks * 4 characters.
        assert!(
            cut(Some(0), Some(room(12_000))).is_some_and(|bytes| (9_000..10_500).contains(&bytes))
        );
        assert!(cut(Some(3_000), Some(room(12_000))).is_some_and(|bytes| bytes < 3_500));
        // A full parent still gets something.
        assert!(cut(None, Some(room(10))).is_some_and(|bytes| (1_500..2_500).contains(&bytes)));
    }
}

#[test]
fn a_child_can_be_followed_from_its_begin_and_the_manifest_says_how_it_ended() {
    for isolation in BOTH {
        let rig = rig(isolation);
        let tasks = [
            script([text("hello")], answer("ok")).task("a"),
            script([], End::Fail("no".to_owned(), None)).task("b"),
        ];
        let seen = watch_with(&rig, tasks, |_, _| {});
        let run = rig.state.path().join("runs").join(seen.report.run_id().to_string());
        let manifest = std::fs::read_to_string(run.join("manifest.jsonl")).unwrap();
        let lines: Vec<serde_json::Value> =
            manifest.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!(lines[0]["tasks"], 2);
        assert_eq!(lines[0]["run_id"], seen.report.run_id().to_string());
        for (index, end) in [(0, "completed"), (1, "failed")] {
            let of: Vec<_> = lines.iter().filter(|line| line["task_index"] == index).collect();
            let words: Vec<_> = of.iter().map(|line| line["status"].as_str().unwrap()).collect();
            assert_eq!(words, ["running", end]);
            let path =
                seen.outcomes[usize::try_from(index).unwrap()].live_transcript.clone().unwrap();
            assert!(
                of.iter().all(|line| Path::new(line["live_transcript"].as_str().unwrap()) == path)
            );
            let transcript = std::fs::read_to_string(path).unwrap();
            assert!(
                transcript.contains("subagent.start") && transcript.contains("subagent.complete")
            );
        }
    }
}

/// What a listener heard.
#[derive(Debug, Default, Clone)]
struct Heard(Arc<Mutex<Calls>>);

type Calls = Vec<(String, u32, Option<Status>)>;

impl Listener for Heard {
    fn subagent_start(&self, child: &Identity) {
        self.0.lock().unwrap().push(("start".to_owned(), child.task_index, None));
    }

    fn subagent_stop(&self, child: &Stopped) {
        let status = Some(child.end.status);
        self.0.lock().unwrap().push(("stop".to_owned(), child.identity.task_index, status));
    }
}

#[test]
fn c49_both_hooks_are_called_once_per_child_however_it_ended() {
    for isolation in BOTH {
        let heard = Heard::default();
        let tasks = [
            script([], answer("ok")).task("a"),
            script([], End::Panic("oops".to_owned())).task("b"),
            script([], End::Fail("no".to_owned(), None)).task("c"),
        ];
        let report = rig(isolation).delegator.batch(tasks).listener(heard.clone()).run().unwrap();
        let mut all = heard.0.lock().unwrap().clone();
        all.sort_by(|left, right| (&left.0, left.1).cmp(&(&right.0, right.1)));
        let mut expected: Vec<_> = (0..3).map(|index| ("start".to_owned(), index, None)).collect();
        let ends = (0..).zip(report.statuses());
        expected.extend(ends.map(|(index, status)| ("stop".to_owned(), index, Some(*status))));
        assert_eq!(all, expected);
    }
}

//! What is known of a child that never told its end, and what was said to one in vain (contract 3.1, C22): over both
//! executors.

use std::fs;
use std::time::Duration;

use delegate_runtime::config::Settings;
use delegate_runtime::plan::Parent;
use delegate_runtime::{Agent, Event, Failure, Isolation, Outcome, Session, Status, Task, Value};

use crate::agents::{End, Op, Script, answer, script};
use crate::alone;
use crate::seen::{watch, watch_with};
use crate::support::{BOTH, Rig, rig, rig_with};

fn hasty() -> Settings {
    let none = Duration::ZERO;
    Settings { interrupt_grace: none, terminate_grace: none, ..Settings::default() }
}

fn call(id: &str, tool: &str, args: &str) -> Op {
    Op::Call(id.to_owned(), tool.to_owned(), args.to_owned())
}

/// Three calls at once of which one never ends, behind two in a row.
fn calls() -> Vec<Op> {
    let gave = |id: &str, result: &str| Op::Result(Some(id.to_owned()), result.to_owned());
    vec![
        Op::Tool("first".to_owned()),
        Op::Tool("second".to_owned()),
        Op::ToolDone(7, false),
        call("1", "read", r#"{"path": "/etc/hosts", "lines": 3}"#),
        call("2", "fetch", r#"{"url": "https://user:secret@example.org/x?token=t"}"#),
        call("3", "grep", r#"{"pattern": "x"}"#),
        gave("2", r#""page""#),
        gave("1", r#"{"error": "gone"}"#),
        Op::Text("up".to_owned()),
    ]
}

/// A child that is killed leaves the trace that it would have told itself.
#[test]
fn the_trace_of_a_killed_child_is_the_one_that_it_would_have_told() {
    for isolation in BOTH {
        let told = watch(&rig(isolation), [script(calls(), End::Panic("x".into())).task("t")]);
        // In a process it hears nothing; a thread cannot be killed and is left behind.
        let ops = calls().into_iter().chain([Op::Sleep(600_000)]).collect();
        let task = Script { ops, end: answer("never") }.task("t");
        let killed = watch_with(&rig_with(isolation, hasty()), [task], |event, control| {
            if matches!(event, Event::Text { .. }) {
                control.kill();
            }
        });
        let (told, killed) = (&told.outcomes[0], &killed.outcomes[0]);
        assert_eq!(killed.status, Status::Interrupted, "{isolation:?} {killed:?}");
        assert_eq!(killed.tool_trace, told.tool_trace, "{isolation:?}");
        let shown: Vec<_> =
            killed.tool_trace.iter().map(|call| (&*call.tool, &*call.status)).collect();
        let expected = [
            ("first", "ok"),
            ("second", "error"),
            ("read", "error"),
            ("fetch", "ok"),
            ("grep", "error"),
        ];
        assert_eq!(shown, expected, "{isolation:?}");
        assert!(killed.tool_trace[2].args_bytes > 0);
        assert!(!format!("{:?}", killed.tool_trace).contains("secret"), "{killed:?}");
    }
}

/// Waits until it is steered, then answers with a number.
pub struct Counted;

impl Agent for Counted {
    const NAME: &'static str = "counted";
    type Params = String;
    type Answer = u64;

    fn run(&mut self, open: String, session: &mut Session) -> Result<u64, Failure> {
        session.text("up");
        while !std::path::Path::new(&open).exists() {
            session.checkpoint()?;
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(42)
    }
}

/// The outcome of a child to which something is said that it does not take.
fn unheard(rig: &Rig, task: impl Fn(String) -> Task, word: &str) -> Outcome {
    let open = rig.state.path().join("open").display().to_string();
    let mut run = rig.delegator.batch([task(open.clone())]).start().unwrap();
    let child = run.events().find(|event| matches!(event, Event::Text { .. })).unwrap().child();
    run.control().steer(child, word).unwrap();
    fs::write(open, "").unwrap();
    run.finish().results().next().unwrap()
}

fn gated(end: End) -> impl Fn(String) -> Task {
    move |open| {
        let ops = [Op::Text("up".to_owned()), Op::AwaitFile(open)];
        script(ops, end.clone()).task("t")
    }
}

#[test]
fn c22_what_was_missed_stands_behind_the_summary_else_behind_the_error() {
    let note = "\n\n[not delivered before it ended: turn left]";
    for isolation in BOTH {
        let outcome = unheard(&rig(isolation), gated(answer("done")), "turn left");
        assert_eq!(outcome.missed_steer.as_deref(), Some("turn left"));
        assert_eq!(outcome.summary, Some(format!("done{note}")), "{isolation:?}");
        // Who takes the answer as a type gets what the agent said.
        assert_eq!(outcome.answer::<crate::agents::Scripted>().unwrap(), "done");
        let broken = unheard(&rig(isolation), gated(End::Panic("boom".to_owned())), "turn left");
        assert_eq!(broken.summary, None, "{isolation:?} {broken:?}");
        let error = broken.error.as_deref().unwrap();
        assert!(error.contains("boom") && error.ends_with(note), "{isolation:?} {error}");
        // Nothing missed, nothing said.
        let heard = watch(&rig(isolation), [script([], answer("done")).task("t")]);
        assert_eq!(heard.outcomes[0].summary.as_deref(), Some("done"));
    }
}

#[test]
fn c22_an_answer_that_is_parsed_stays_as_it_is() {
    for isolation in BOTH {
        let typed = unheard(&rig(isolation), |open| Task::of::<Counted>("t", open), "turn left");
        assert_eq!((typed.summary.as_deref(), typed.answer_is_json), (Some("42"), true));
        assert_eq!(typed.answer::<Counted>().unwrap(), 42, "{isolation:?}");
        let schema: Value = serde_json::from_str(r#"{"type": "object"}"#).unwrap();
        let task = |open| gated(answer("{}"))(open).output_schema(schema.clone());
        let checked = unheard(&rig(isolation), task, "turn left");
        assert_eq!((checked.summary.as_deref(), checked.schema_valid), (Some("{}"), Some(true)));
        for outcome in [typed, checked] {
            assert_eq!(outcome.missed_steer.as_deref(), Some("turn left"), "{isolation:?}");
            assert!(outcome.notes.iter().any(|note| note.contains("missed_steer")), "{outcome:?}");
        }
    }
}

/// A word that the agent has said is its own no more: `taken`, whatever else it was.
fn said_and_missed(isolation: Isolation) -> (bool, Option<String>) {
    let rig = rig(isolation);
    let task = script([Op::Text("up".to_owned()), Op::AwaitSteer], answer("done")).task("t");
    let mut run = rig.delegator.batch([task]).start().unwrap();
    let child = run.events().find(|event| matches!(event, Event::Text { .. })).unwrap().child();
    run.control().steer(child, "turn left").unwrap();
    let said =
        run.events().any(|event| matches!(event, Event::Text { text, .. } if text == "turn left"));
    (said, run.finish().results().next().unwrap().missed_steer.clone())
}

#[test]
fn c22_a_word_that_was_taken_is_not_missed() {
    for isolation in BOTH {
        assert_eq!(said_and_missed(isolation), (true, None), "{isolation:?}");
    }
}

/// The control of the test above: with nobody to tell that a word was taken, it is said and missed.
#[test]
fn c22_without_acknowledgements_a_word_that_was_taken_comes_back_as_missed() {
    let off = [("DELEGATE_TEST_OFF", "acknowledge")];
    alone::alone_with("killed::words_without_acknowledgements", &off);
}

#[test]
#[ignore = "run by the test above, in a process of its own"]
fn words_without_acknowledgements() {
    for isolation in BOTH {
        let missed = Some("turn left".to_owned());
        assert_eq!(said_and_missed(isolation), (true, missed), "{isolation:?}");
    }
}

/// Contract 4.4: which delegation of the conversation, and which of its children.
#[test]
fn lines_about_a_child_have_a_prefix_with_its_set_and_its_place() {
    for isolation in BOTH {
        let rig = rig(isolation);
        let prefixes = |tasks: usize, session: &str, delegation: Option<&str>| {
            let parent = Parent {
                session_id: Some(session.to_owned()),
                delegation_id: delegation.map(str::to_owned),
                ..Parent::default()
            };
            let tasks = (0..tasks).map(|_| script([Op::Tool("t".into())], answer("ok")).task("t"));
            let mut run = rig.delegator.batch(tasks).parent(parent).start().unwrap();
            let of_tool = |relayed: &delegate_runtime::Relayed| {
                matches!(relayed.event, Event::Progress { .. })
            };
            let mut seen: Vec<_> = run
                .relayed()
                .filter(of_tool)
                .map(|relayed| {
                    let json = serde_json::to_value(&relayed).unwrap();
                    assert_eq!(json["prefix"], relayed.prefix());
                    relayed.prefix()
                })
                .collect();
            drop(run.finish());
            seen.sort();
            seen
        };
        assert_eq!(prefixes(1, "chat-1", None), ["[set 1] "], "{isolation:?}");
        let three = ["[set 2 · 1/3] ", "[set 2 · 2/3] ", "[set 2 · 3/3] "];
        assert_eq!(prefixes(3, "chat-1", Some("d")), three, "{isolation:?}");
        assert_eq!(prefixes(1, "chat-1", Some("d")), ["[set 2] "], "the same delegation");
        assert_eq!(prefixes(1, "chat-1", Some("e")), ["[set 3] "]);
        assert_eq!(prefixes(1, "chat-2", None), ["[set 1] "], "another conversation");
    }
}

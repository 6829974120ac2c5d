//! Lines of the matrix that stand beside the large topics, each over both executors: who is active (39), what is
//! relayed (42, 112 to 116), what children cost (54 to 58), who is touched (106, 107), which toolsets a child
//! gets (17 to 21), and C2 to C4, C14, C23.

use std::fs;
use std::sync::{Arc, Mutex};

use delegate_core::collect::cost::{Bill, Node, Spending, roll_up};
use delegate_runtime::config::Settings;
use delegate_runtime::plan::{Parent, Tools};
use delegate_runtime::{
    Event, ExitReason, Isolation, Listener, ManualClock, Outcome, Sign, Status, SteerError,
    SubagentId, Task, blocking,
};

use crate::agents::{End, Op, answer, script};
use crate::matrix_routing::{nobody, specs};
use crate::seen::{watch, watch_with};
use crate::support::{BOTH, Identity, as_asked, rig, rig_with, run, wait_for};

fn text(text: &str) -> Op {
    Op::Text(text.to_owned())
}

fn relay(name: &str) -> Op {
    Op::Relay(name.to_owned(), "grep".to_owned(), "line".to_owned())
}

/// What a consumer is shown between start and end.
fn shown(isolation: Isolation, ops: impl IntoIterator<Item = Op>) -> Vec<Event> {
    let seen = watch(&rig(isolation), [script(ops, answer("ok")).task("relay")]);
    let edge = |event: &Event| {
        matches!(event, Event::SpawnRequested { .. } | Event::Start { .. } | Event::Complete { .. })
    };
    seen.events.into_iter().filter(|event| !edge(event)).collect()
}

fn names(events: &[Event]) -> Vec<&str> {
    events.iter().map(Event::name).collect()
}

#[test]
fn m039_after_the_run_no_child_is_active() {
    for isolation in BOTH {
        let rig = rig(isolation);
        let open = rig.state.path().join("open").display().to_string();
        let tasks = (0..3).map(|_| {
            let tools = ["read", "grep"].map(|name| Op::Tool(name.to_owned()));
            let then = [Op::ToolDone(1, true), text("up"), Op::AwaitFile(open.clone())];
            script(tools.into_iter().chain(then), answer("ok")).task("t")
        });
        let mut run = rig.delegator.batch(tasks).start().unwrap();
        let ups = run.events().filter(|event| matches!(event, Event::Text { .. })).take(3);
        assert_eq!(ups.count(), 3);
        let operator = rig.delegator.operator(None);
        let active = operator.list_blocking();
        assert_eq!(active[0].list.children.len(), 3, "{isolation:?}");
        for child in &active[0].list.children {
            let tools = (child.tool_count, child.last_tool.as_deref(), child.tool.as_deref());
            assert_eq!(tools, (2, Some("grep"), None), "{isolation:?}");
        }
        let pids: Vec<_> = active[0].list.children.iter().filter_map(|child| child.pid).collect();
        assert_eq!(pids.len(), if isolation == Isolation::Process { 3 } else { 0 });
        let processes: Vec<_> = pids.into_iter().map(|pid| Identity::of(pid).unwrap()).collect();
        fs::write(&open, "").unwrap();
        assert_eq!(run.finish().statuses(), [Status::Completed; 3]);
        wait_for("nothing to be active", || operator.list_blocking().is_empty().then_some(()));
        assert!(processes.iter().all(|process| !process.is_alive()), "{isolation:?}");
    }
}

/// Where nobody listens, thoughts and tools are not sent at all; they are a sign of life all the same.
#[test]
fn m042_thoughts_and_tools_are_relayed_when_somebody_listens() {
    for isolation in BOTH {
        for listens in [true, false] {
            let parent = Parent { relay_events: listens, ..Parent::default() };
            let ops = [Op::Thinking("hm".to_owned()), Op::Tool("t".to_owned()), text("said")];
            let task = script(ops, answer("ok")).task("t");
            let rig = rig(isolation);
            let mut run = rig.delegator.batch([task]).parent(parent).start().unwrap();
            let events: Vec<_> = run.events().collect();
            let outcome = run.finish().results().next().unwrap();
            let names: Vec<_> = names(&events)[2..].to_vec();
            let (relayed, all) = (["subagent.thinking", "subagent.tool"], names.join(" "));
            for name in relayed {
                assert_eq!(names.contains(&name), listens, "{isolation:?} {listens} {all}");
            }
            assert!(names.contains(&"subagent.text"), "{all}");
            // What was done is known in either case.
            assert_eq!(outcome.tool_trace.len(), 1, "{isolation:?}");
        }
    }
}

#[test]
fn m112_thoughts_and_reasoning_are_a_thinking_line() {
    for isolation in BOTH {
        for name in ["_thinking", "reasoning.available"] {
            let events = shown(isolation, [relay(name)]);
            let [Event::Thinking { text, .. }] = &events[..] else { panic!("{events:?}") };
            assert_eq!(text, "line", "{isolation:?} {name}");
        }
    }
}

#[test]
fn m113_a_completed_tool_shows_nothing() {
    for isolation in BOTH {
        let names_of = |ops: Vec<Op>| names(&shown(isolation, ops)).join(" ");
        assert_eq!(names_of(vec![relay("tool.completed")]), "", "{isolation:?}");
        let both = vec![relay("tool.started"), relay("tool.completed")];
        // The second is the flush of tool names.
        assert_eq!(names_of(both), "subagent.tool subagent.progress", "{isolation:?}");
    }
}

#[test]
fn m114_an_unknown_event_is_ignored() {
    for isolation in BOTH {
        let ops = [relay("no.such.event"), relay(""), relay("subagent."), text("after")];
        assert_eq!(names(&shown(isolation, ops)), ["subagent.text"], "{isolation:?}");
    }
}

#[test]
fn m115_a_formal_event_is_taken_as_it_is() {
    for isolation in BOTH {
        for (formal, older) in [
            ("delegate.tool_started", "tool.started"),
            ("delegate.task_progress", "subagent_progress"),
        ] {
            let essence = |name: &str| {
                let events = shown(isolation, [relay(name)]);
                let strip = |event: &Event| {
                    let mut json = serde_json::to_value(event).unwrap();
                    json.as_object_mut().unwrap().remove("child");
                    json
                };
                events.iter().map(strip).collect::<Vec<_>>()
            };
            assert_eq!(essence(formal), essence(older), "{isolation:?}");
            assert!(!essence(formal).is_empty());
        }
    }
}

#[test]
fn m116_delegate_task_thinking_is_taken_as_text() {
    for isolation in BOTH {
        let events = shown(isolation, [relay("delegate.task_thinking")]);
        assert_eq!(names(&events), ["subagent.thinking"], "{isolation:?}");
    }
}

#[test]
fn m109_m110_names_are_formal_or_one_of_five_older_ones() {
    let reserved = ["delegate.task_spawned", "delegate.task_completed", "delegate.task_failed"];
    for isolation in BOTH {
        for (older, formal) in [
            ("_thinking", "delegate.task_thinking"),
            ("reasoning.available", "delegate.task_thinking"),
            ("tool.started", "delegate.tool_started"),
            ("tool.completed", "delegate.tool_completed"),
            ("subagent_progress", "delegate.task_progress"),
        ] {
            let [old, new] = [older, formal].map(|name| {
                let events = shown(isolation, [relay(name)]);
                names(&events).join(" ")
            });
            assert_eq!(old, new, "{isolation:?} {older}");
        }
        assert_eq!(names(&shown(isolation, reserved.map(relay))), [""; 0], "{isolation:?}");
    }
}

/// The bill after a batch whose children each told what they had spent.
fn billed(
    isolation: Isolation,
    bill: Bill,
    children: &[(Option<f64>, End)],
) -> (Bill, Vec<Outcome>) {
    let task =
        |(cost, end): &(Option<f64>, End)| script(cost.map(Op::Cost), end.clone()).task("costs");
    let (outcomes, _) = run(&rig(isolation), children.iter().map(task));
    let outcomes: Vec<Outcome> = outcomes;
    let node = |outcome: &Outcome| Node { own: Spending::of(outcome), children: Vec::new() };
    let nodes: Vec<_> = outcomes.iter().map(node).collect();
    (roll_up(bill, &nodes), outcomes)
}

fn near(left: f64, right: f64) -> bool {
    (left - right).abs() < 1e-9
}

#[test]
fn m054_the_cost_of_a_child_adds_to_what_its_parent_spent() {
    for isolation in BOTH {
        let before = Bill { cost_usd: 0.10, ..Bill::default() };
        let (after, outcomes) = billed(isolation, before, &[(Some(0.42), answer("ok"))]);
        assert!(near(after.cost_usd, 0.52), "{isolation:?} {after:?}");
        // Nothing of the accounting shows in the entry.
        let entry = serde_json::to_value(&*outcomes[0]).unwrap();
        assert!(entry.as_object().unwrap().keys().all(|key| !key.starts_with('_')), "{entry}");
    }
}

#[test]
fn m055_a_batch_adds_up_with_the_child_that_failed() {
    for isolation in BOTH {
        let children = [
            (Some(0.15), answer("ok")),
            (Some(0.27), answer("ok")),
            (Some(0.03), End::Fail("HTTP 500".to_owned(), None)),
        ];
        let (after, outcomes) = billed(isolation, Bill::default(), &children);
        assert_eq!(outcomes[2].status, Status::Failed);
        assert!(near(after.cost_usd, 0.45), "{isolation:?} {after:?}");
        let labels = (after.source.as_deref(), after.status.as_deref());
        assert_eq!(labels, (Some("subagent"), Some("estimated")), "{isolation:?}");
    }
}

#[test]
fn m056_children_that_cost_nothing_leave_the_bill_as_it_is() {
    for isolation in BOTH {
        let (after, _) = billed(isolation, Bill::default(), &[(Some(0.0), answer("ok"))]);
        assert_eq!(after, Bill::default(), "{isolation:?}");
    }
}

#[test]
fn m057_a_bill_with_labels_keeps_them() {
    for isolation in BOTH {
        let label = |text: &str| Some(text.to_owned());
        let bill = Bill { cost_usd: 1.0, source: label("provider"), status: label("exact") };
        let (after, _) = billed(isolation, bill, &[(Some(0.5), answer("ok"))]);
        let labels = (after.source.as_deref(), after.status.as_deref());
        assert_eq!(labels, (Some("provider"), Some("exact")), "{isolation:?}");
        assert!(near(after.cost_usd, 1.5), "{isolation:?}");
    }
}

#[test]
fn m058_entries_that_name_no_cost_are_no_error() {
    for isolation in BOTH {
        let bill = Bill { cost_usd: 0.7, ..Bill::default() };
        let (after, outcomes) = billed(isolation, bill.clone(), &[(None, answer("ok"))]);
        assert_eq!((after, outcomes[0].cost_usd), (bill, None), "{isolation:?}");
    }
}

/// Hears signs of life.
#[derive(Clone, Default)]
struct Ear(Arc<Mutex<Vec<Sign>>>);

impl Listener for Ear {
    fn touch(&self, sign: &Sign) {
        self.0.lock().unwrap().push(sign.clone());
    }
}

/// A child that is there for one heartbeat and then ends so; what was heard, and how it ended.
fn touched(isolation: Isolation, ops: Vec<Op>, end: End) -> (Vec<Sign>, Outcome) {
    let (state, clock, ear) =
        (tempfile::tempdir().unwrap(), ManualClock::default(), Ear::default());
    let delegator = blocking::Delegator::builder()
        .isolation(isolation)
        .settings(as_asked(Settings::default()))
        .state_dir(state.path())
        .clock(clock.clone())
        .build()
        .unwrap();
    let open = state.path().join("open").display().to_string();
    let ops = ops.into_iter().chain([text("up"), Op::AwaitFile(open.clone())]);
    let batch = delegator.batch([script(ops, end).task("t")]).listener(ear.clone());
    let mut run = batch.start().unwrap();
    assert!(run.events().any(|event| matches!(event, Event::Text { .. })));
    clock.advance(std::time::Duration::from_secs(30));
    wait_for("a touch", || (ear.0.lock().unwrap().len() == 1).then_some(()));
    fs::write(&open, "").unwrap();
    assert!(matches!(run.events().last(), Some(Event::Complete { .. })));
    // Nobody is there any more, however much time goes by; `finish` waits for the last callback.
    clock.advance(std::time::Duration::from_secs(3000));
    let outcome = run.finish().results().next().unwrap();
    let signs = ear.0.lock().unwrap().clone();
    (signs, outcome)
}

#[test]
fn m106_after_an_error_of_the_child_nobody_is_touched() {
    for isolation in BOTH {
        let (signs, outcome) = touched(isolation, Vec::new(), End::Panic("boom".to_owned()));
        assert_eq!((signs.len(), outcome.status), (1, Status::Error), "{isolation:?}");
    }
}

#[test]
fn m107_without_a_tool_the_line_has_the_last_activity() {
    for isolation in BOTH {
        let tool = vec![Op::Tool("grep".to_owned())];
        let done = vec![Op::Tool("grep".to_owned()), Op::ToolDone(1, true)];
        for (ops, expected) in [
            (Vec::new(), "a subagent is writing"),
            (done, "a subagent is writing"),
            (tool, "running grep"),
        ] {
            let (signs, _) = touched(isolation, ops, answer("ok"));
            assert!(signs[0].description.contains(expected), "{isolation:?} {signs:?}");
            assert_eq!(signs[0].description.contains("grep"), expected.contains("grep"));
        }
    }
}

/// The toolsets of a child whose parent holds these, the same in both executors.
fn toolsets(held: &[&str], asked: Option<&[&str]>, contents: &[(&str, &[&str])]) -> Vec<String> {
    let texts = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
    let contents = contents.iter().map(|(set, tools)| ((*set).to_owned(), texts(tools))).collect();
    let tools = Tools { enabled: Some(texts(held)), contents, ..Tools::default() };
    let parent = Parent { tools, ..Parent::default() };
    let mut task = Task::of::<crate::agents::Spec>("a goal", delegate_runtime::Value::Null);
    if let Some(asked) = asked {
        task = task.toolsets(texts(asked));
    }
    let [thread, process] = specs(&Settings::default(), &parent, &nobody(), &[task])
        .map(|mut specs| specs.remove(0).enabled_toolsets);
    assert_eq!(thread, process);
    thread.unwrap()
}

#[test]
fn m017_allowed_toolsets_reach_a_child_as_they_are() {
    let sets = ["terminal", "file", "web"];
    assert_eq!(toolsets(&sets, Some(&sets), &[]), sets);
}

#[test]
fn m018_an_empty_list_of_toolsets_reaches_a_child_empty() {
    assert_eq!(toolsets(&["terminal"], Some(&[]), &[]), [""; 0]);
}

#[test]
fn m019_the_cronjob_toolset_does_not_reach_a_child() {
    let contents: &[(&str, &[&str])] = &[("cronjob", &["cronjob_manage"])];
    assert_eq!(toolsets(&["file", "cronjob"], None, contents), ["file"]);
}

#[test]
fn m020_a_toolset_of_blocked_tools_only_does_not_reach_a_child() {
    let contents: &[(&str, &[&str])] =
        &[("talk", &["send_message", "start_chat"]), ("mixed", &["send_message", "read_file"])];
    assert_eq!(toolsets(&["talk", "mixed"], None, contents), ["mixed"]);
}

#[test]
fn m021_the_blocked_tools_reach_a_child_by_name() {
    let task = Task::of::<crate::agents::Spec>("a goal", delegate_runtime::Value::Null);
    let [thread, process] = specs(&Settings::default(), &Parent::default(), &nobody(), &[task])
        .map(|mut specs| specs.remove(0).blocked_tools);
    assert_eq!(thread, process);
    let blocked =
        ["delegate_task", "clarify", "memory", "send_message", "cronjob_manage", "start_chat"];
    assert_eq!(thread, blocked);
    assert!(!thread.contains(&"execute_code".to_owned()), "allowed by the newest contract");
}

#[test]
fn c02_a_failed_run_with_text_is_no_run_out_of_turns() {
    for isolation in BOTH {
        let end = End::Fail("HTTP 401".to_owned(), Some("auth".to_owned()));
        let (outcomes, _) = run(&rig(isolation), [script([text("some words")], end).task("t")]);
        let outcome = &outcomes[0];
        assert_eq!((outcome.status, outcome.exit_reason), (Status::Failed, ExitReason::Error));
        assert_eq!(outcome.failure_reason.as_deref(), Some("auth"), "{isolation:?}");
        assert!(!outcome.truncated, "{isolation:?}");
    }
}

#[test]
fn c03_out_of_turns_with_text_is_completed_and_truncated_and_without_text_failed() {
    for isolation in BOTH {
        for (partial, status) in [("so far", Status::Completed), ("", Status::Failed)] {
            let end = End::MaxIterations(partial.to_owned());
            let (outcomes, _) = run(&rig(isolation), [script([], end).task("t")]);
            let outcome = &outcomes[0];
            assert_eq!(outcome.status, status, "{isolation:?} {outcome:?}");
            assert_eq!((outcome.exit_reason, outcome.truncated), (ExitReason::MaxIterations, true));
        }
    }
}

#[test]
fn c04_an_interrupted_child_keeps_its_last_words_and_the_notice_is_its_error() {
    for isolation in BOTH {
        let ops = [text("last words"), Op::AwaitInterrupt];
        let task = script(ops, End::Interrupted).task("t");
        let seen = watch_with(&rig(isolation), [task], |event, control| {
            if matches!(event, Event::Text { .. }) {
                control.interrupt();
            }
        });
        let outcome = &seen.outcomes[0];
        assert_eq!(outcome.status, Status::Interrupted, "{isolation:?}");
        assert_eq!(outcome.summary.as_deref(), Some("last words"), "{isolation:?}");
        assert!(outcome.error.is_some(), "{isolation:?} {outcome:?}");
    }
}

/// Every way to end, and one complete event each: for the consumer and in the file.
#[test]
fn c14_each_child_has_exactly_one_complete_event_however_it_ends() {
    for isolation in BOTH {
        let settings = Settings {
            max_concurrent_children: 8,
            interrupt_grace: std::time::Duration::ZERO,
            terminate_grace: std::time::Duration::ZERO,
            ..Settings::default()
        };
        let hang =
            |word: &str| script([text(word), Op::AwaitInterrupt], End::Interrupted).task("t");
        let tasks = [
            script([], answer("ok")).task("t"),
            script([], answer("")).task("t"),
            script([], End::Fail("no".to_owned(), None)).task("t"),
            script([], End::Panic("boom".to_owned())).task("t"),
            script([], End::MaxIterations("half".to_owned())).task("t"),
            Task::new("scripted", "parameters that do not fit"),
            hang("stop"),
            hang("kill"),
        ];
        let count = u32::try_from(tasks.len()).unwrap();
        let rig = rig_with(isolation, settings);
        let seen = watch_with(&rig, tasks, |event, control| match event {
            Event::Text { child, text } if text == "stop" => control.stop(*child),
            Event::Text { child, text } if text == "kill" => control.kill_child(*child),
            _ => {}
        });
        for index in 0..count {
            let shown =
                seen.of(index).iter().filter(|e| matches!(e, Event::Complete { .. })).count();
            let written = seen.written(index);
            let written = written.iter().filter(|line| line["event"] == "subagent.complete");
            assert_eq!((shown, written.count()), (1, 1), "{isolation:?} task {index}");
        }
        assert_eq!(seen.outcomes.len(), count as usize);
    }
}

/// A handle of a run that is over, and the end of that run, do nothing to a child of another run.
#[test]
fn c23_an_old_child_cannot_close_a_newer_one() {
    for isolation in BOTH {
        let rig = rig(isolation);
        let hang = || script([text("up"), Op::AwaitSteer, Op::AwaitInterrupt], End::Interrupted);
        let mut old = rig.delegator.batch([hang().task("old")]).start().unwrap();
        let mut new = rig.delegator.batch([hang().task("new")]).start().unwrap();
        let up = |run: &mut blocking::Run| -> SubagentId {
            let said = |event: &Event| matches!(event, Event::Text { .. });
            run.events().find(said).unwrap().child()
        };
        let (old_child, child) = (up(&mut old), up(&mut new));
        assert_ne!(old_child, child);
        let stale = old.control();
        stale.interrupt();
        assert_eq!(old.finish().statuses(), [Status::Interrupted]);
        // Same position in its batch, another child: nothing that the old handle does reaches it.
        stale.stop(child);
        stale.kill_child(child);
        stale.kill();
        assert_eq!(stale.steer(child, "x"), Err(SteerError::NoSuchChild), "{isolation:?}");
        assert_eq!(stale.steer(old_child, "x"), Err(SteerError::Ended), "{isolation:?}");
        let operator = rig.delegator.operator(None);
        wait_for("the old run to be off the list", || {
            (operator.list_blocking().len() == 1).then_some(())
        });
        let listed = operator.list_blocking();
        assert_eq!(listed[0].list.children[0].child, child, "{isolation:?}");
        assert!(listed[0].list.children[0].accepts_steer, "{isolation:?}");
        operator.steer(&child.to_string(), "still here").unwrap();
        let heard = new.events().find(|event| matches!(event, Event::Text { .. }));
        assert!(matches!(heard, Some(Event::Text { text, .. }) if text == "still here"));
        operator.stop(&child.to_string(), false).unwrap();
        assert_eq!(new.finish().statuses(), [Status::Interrupted]);
    }
}

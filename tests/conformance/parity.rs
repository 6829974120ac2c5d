//! Both executors are indistinguishable to a consumer, but for pids, names of executors, logs and
//! times: outcome and events of the same script are equal.

use std::time::Duration;

use delegate_runtime::{Event, Isolation, Task};

use crate::agents::{End, Op, Script, answer, script};
use crate::seen::{Seen, watch, watch_with};
use crate::support::{command, helper, rig};

fn both(tasks: impl Fn() -> Vec<Task>, each: impl Fn(&Event, &delegate_runtime::Control)) -> usize {
    let thread = watch_with(&rig(Isolation::Thread), tasks(), &each);
    let process = watch_with(&rig(Isolation::Process), tasks(), &each);
    compare(&thread, &process).unwrap();
    thread.outcomes.len()
}

/// What differs between two runs of the same tasks.
pub fn compare(thread: &Seen, process: &Seen) -> Result<(), String> {
    for index in 0..u32::try_from(thread.outcomes.len()).unwrap() {
        let (left, right) = (thread.essence(index), process.essence(index));
        if left != right {
            return Err(format!("task {index}:\n thread: {left}\nprocess: {right}"));
        }
    }
    if thread.report.verified_empty() != process.report.verified_empty() {
        return Err("one of them left something behind".to_owned());
    }
    Ok(())
}

fn scripts() -> Vec<Script> {
    let text = |text: &str| Op::Text(text.to_owned());
    vec![
        script([], answer("plain")),
        script([], answer("")),
        script([Op::AllowEmpty], answer("")),
        script([], answer("(empty)")),
        script([text("a"), text("b"), Op::Tool("t".into()), text("c")], answer("é\0\u{1f600}")),
        script([Op::Thinking("hm".into()), Op::Thinking("so".into())], answer("thought")),
        script((0..50).map(|number| Op::Progress(number.to_string())), answer("far")),
        script([Op::ApiCall(1, 2), text("partial")], End::Fail("rate".into(), Some("r".into()))),
        script([text("so far")], End::Panic("multi\nline \u{7f} panic".into())),
        script([text("x"), Op::ApiCall(9, 9)], End::MaxIterations("half".into())),
        script([], End::MaxIterations(String::new())),
        // It unwinds though nobody asked it to.
        script([text("gave up")], End::Interrupted),
        script([Op::Tool("open".into())], End::Fail(String::new(), None)),
        script([text(&"long ".repeat(40_000))], answer(&"r".repeat(300_000))),
        script([Op::Tool("x".repeat(5000))], answer("long name")),
    ]
}

#[test]
fn scripts_have_the_same_outcomes_and_events_in_both_executors() {
    let tasks = || -> Vec<_> {
        let all = scripts().into_iter().enumerate();
        all.map(|(index, script)| script.task(format!("script {index}"))).collect()
    };
    assert_eq!(both(tasks, |_, _| {}), scripts().len());
}

#[test]
fn params_that_do_not_fit_are_told_in_the_same_words() {
    let tasks = || {
        vec![
            Task::new("scripted", "bad"),
            Task::new("sized", "bad"),
            command("x", ["true"]).params(delegate_runtime::Value::Int(3)),
        ]
    };
    both(tasks, |_, _| {});
}

#[test]
fn a_timeout_is_the_same() {
    let ops = || [Op::ApiCall(1, 1), Op::Text("early".into()), Op::AwaitInterrupt];
    let tasks = || vec![script(ops(), End::Interrupted).task("t").timeout(Duration::from_secs(1))];
    both(tasks, |_, _| {});
}

#[test]
fn an_interrupt_is_the_same() {
    let ops = || [Op::Text("last".into()), Op::AwaitInterrupt, Op::Tool("cleanup".into())];
    let tasks = || {
        vec![
            script(ops(), End::Interrupted).task("t"),
            script(ops(), answer("done anyway")).task("u"),
        ]
    };
    both(tasks, |event, control| {
        // Each when it has said its last words: what was said by then is the same.
        if let Event::Text { child, .. } = event {
            control.stop(*child);
        }
    });
}

#[test]
fn commands_are_the_same() {
    let sh = |script: &str| command("the goal", ["sh", "-c", script]);
    let tasks = move || {
        vec![
            sh("cat"),
            sh("printf 'one\\ntwo\\nthree'; echo oops >&2"),
            sh("echo partial; echo why >&2; exit 7"),
            sh("kill -KILL $$"),
            sh("exit 0"),
            sh("printf '%s' \"$DELEGATE_GOAL\"; printf '\\377\\n'"),
            command("g", ["/nowhere/program"]),
            command("g", [helper("crasher"), "segv".to_owned()]),
            command("g", Vec::<String>::new()),
            sh("true").cwd("/nowhere"),
        ]
    };
    assert_eq!(both(tasks, |_, _| {}), 10);
}

#[test]
fn large_results_are_the_same() {
    let tasks = || {
        [0u64, 1, 70_000, (16 << 20) + 1]
            .map(|bytes| Task::of::<crate::agents::Sized>("sized", bytes))
            .to_vec()
    };
    let thread = watch(&rig(Isolation::Thread), tasks());
    let process = watch(&rig(Isolation::Process), tasks());
    compare(&thread, &process).unwrap();
    assert_eq!(thread.outcomes[3].result_sha256, process.outcomes[3].result_sha256);
    assert!(thread.outcomes[3].result_sha256.is_some());
}

//! The agent `command` with real programs under a real supervisor.

use std::time::{Duration, Instant};

use crate::common::{Line, Parent};
use delegate_child::Registry;
use delegate_protocol::message::Verdict;
use delegate_protocol::spec::sample;
use delegate_protocol::{ChildEvent, ChildMessage, Finish, ParentMessage, TaskSpec, Value};
use ownership::{Owner, Program};

fn owner() -> Owner {
    let supervisor = Program::named(env!("CARGO_BIN_EXE_delegate-child"));
    Owner::new(supervisor, Vec::new())
}

fn task(argv: &[&str], goal: &str) -> TaskSpec {
    let mut spec = sample(0, "command", goal);
    spec.params = Value::from_typed(&serde_json::json!({ "argv": argv })).unwrap();
    spec
}

fn begin(task: TaskSpec) -> Parent {
    let mut parent = Parent::start_with(Line::Memory, Registry::shipped(), Some(owner()));
    parent.next();
    parent.send(&ParentMessage::Begin(Box::new(task)));
    parent
}

/// Streamed text, the last frame, and the answer.
fn rest(parent: &mut Parent) -> (Vec<String>, Finish, Vec<u8>) {
    let (mut texts, mut parts) = (Vec::new(), Vec::new());
    loop {
        match parent.next().expect("the stream ended without a finish") {
            ChildMessage::Event(ChildEvent::Text { text }) => texts.push(text),
            ChildMessage::ResultPart(part) => parts.extend(part.0),
            ChildMessage::Finish(finish) => {
                let answer = finish.answer.clone().map_or(parts, String::into_bytes);
                return (texts, *finish, answer);
            }
            ChildMessage::Hello(_)
            | ChildMessage::Beat(_)
            | ChildMessage::Event(_)
            | ChildMessage::Dump { .. }
            | ChildMessage::Ask { .. } => {}
        }
    }
}

fn sh(script: &str) -> (Finish, String) {
    let (_, finish, answer) = rest(&mut begin(task(&["sh", "-c", script], "the goal")));
    (finish, String::from_utf8(answer).unwrap())
}

fn failure(script: &str) -> String {
    let (finish, _) = sh(script);
    assert_eq!(finish.verdict, Verdict::Failed);
    finish.error.unwrap()
}

#[test]
fn the_goal_goes_in_and_stdout_without_its_last_newline_comes_out() {
    let (finish, answer) = sh("cat; echo; echo \"$DELEGATE_GOAL\"; echo");
    assert_eq!((finish.verdict, answer.as_str()), (Verdict::Completed, "the goal\nthe goal\n"));

    let long = "x".repeat(64 * 1024);
    let script = "wc -c; echo ${DELEGATE_GOAL-unset}";
    let (_, _, answer) = rest(&mut begin(task(&["sh", "-c", script], &long)));
    let words: Vec<_> = std::str::from_utf8(&answer).unwrap().split_whitespace().collect();
    assert_eq!(words, ["65536", "unset"]);
}

#[test]
fn no_output_is_an_answer_that_is_empty_on_purpose() {
    let (finish, answer) = sh("exit 0");
    assert_eq!((finish.verdict, answer.as_str()), (Verdict::Completed, ""));
    assert!(finish.empty_on_purpose);
}

#[test]
fn other_ends_are_failures_with_the_last_of_stderr() {
    let error = failure("echo out; echo oops >&2; exit 3");
    assert!(error.contains("exit code 3") && error.ends_with("oops"), "{error}");
    let error = failure("kill -SEGV $$");
    assert!(error.contains("killed by signal 11 (SIGSEGV)"), "{error}");
    let error = failure("kill -KILL $$");
    assert!(error.contains("killed by signal 9 (SIGKILL)"), "{error}");
}

#[test]
fn a_program_that_is_not_there_is_named_with_the_step() {
    let (_, finish, _) = rest(&mut begin(task(&["/nowhere/prog"], "")));
    let error = finish.error.unwrap();
    assert!(error.contains("exec") && error.contains("/nowhere/prog"), "{error}");
    assert!(error.contains("No such file"), "{error}");
    let mut task = task(&["true"], "");
    task.cwd = Some("/nowhere".into());
    let error = rest(&mut begin(task)).1.error.unwrap();
    assert!(error.contains("chdir") && error.contains("/nowhere"), "{error}");
}

#[test]
fn no_argv_is_a_clear_failure() {
    let error = rest(&mut begin(task(&[], ""))).1.error.unwrap();
    assert!(error.contains("params.argv"), "{error}");
}

#[test]
fn a_program_that_closes_its_stdout_is_waited_for() {
    assert!(failure("exec >&- 2>&-; sleep 0.2; exit 4").contains("exit code 4"));
}

#[test]
fn a_grandchild_that_keeps_the_pipe_is_not_waited_for() {
    let start = Instant::now();
    let (finish, answer) = sh("sleep 60 & echo done");
    assert_eq!((finish.verdict, answer.as_str()), (Verdict::Completed, "done"));
    assert!(start.elapsed() < Duration::from_secs(30));
}

#[test]
fn an_interrupt_ends_the_program_and_keeps_its_text() {
    let mut parent = begin(task(&["sh", "-c", "echo partial; sleep 60"], ""));
    while !matches!(parent.next(), Some(ChildMessage::Event(ChildEvent::Text { .. }))) {}
    let start = Instant::now();
    parent.send(&ParentMessage::Interrupt);
    let (_, finish, answer) = rest(&mut parent);
    assert_eq!((finish.verdict, &answer[..]), (Verdict::Interrupted, &b"partial\n"[..]));
    assert!(start.elapsed() < Duration::from_secs(30));
}

#[test]
fn half_a_gibibyte_arrives_whole_and_is_not_held_in_memory() {
    let bytes = 512_usize << 20;
    let script = format!("yes 0123456 | head -c {bytes}");
    let mut parent = begin(task(&["sh", "-c", &script], ""));
    let mut received = 0;
    loop {
        match parent.next().unwrap() {
            ChildMessage::ResultPart(part) => received += part.0.len(),
            ChildMessage::Finish(finish) => {
                assert_eq!(finish.verdict, Verdict::Completed, "{:?}", finish.error);
                break;
            }
            ChildMessage::Hello(_)
            | ChildMessage::Beat(_)
            | ChildMessage::Event(_)
            | ChildMessage::Dump { .. }
            | ChildMessage::Ask { .. } => {}
        }
    }
    assert_eq!(received, bytes - 1);
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    let peak: usize = peak.trim().trim_end_matches(" kB").trim().parse().unwrap();
    assert!(peak < 200 * 1024, "{peak} KiB");
}

#[test]
fn an_output_over_the_limit_ends_the_program() {
    let mut task = task(&["yes"], "");
    task.max_result_bytes = 1 << 20;
    let (_, finish, _) = rest(&mut begin(task));
    assert_eq!(finish.verdict, Verdict::Failed);
    assert!(finish.error.unwrap().contains("max_result_bytes"));
}

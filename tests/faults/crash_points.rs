//! A worker is killed before, within and after each message that it sends, before and after each that it
//! takes, and before and after each record on its line to the supervisor. It kills itself there
//! (`DELEGATE_TEST_DIE_AT`, `OWNERSHIP_TEST_ASKER_DIE_AT`), by SIGKILL, which nothing in it can tell from anybody else's.
//!
//! Each time: one outcome with the right status and reason, a result that was said whole is kept and no other
//! one counts, what was said is told and what was not said is not, a sibling and the bystanders are well, and
//! nothing that the worker started is left.

use std::collections::BTreeSet;
use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};

use delegate_protocol::{ChildEvent, ChildMessage, ParentMessage};
use rustix::process::{Signal, kill_process};
use serde_json::{Value, json};

use crate::program::{
    Bystanders, OwnerProgram, all_pids, assert_one_complete_each, index, raw, step,
};
use crate::step::Step;
use crate::support::{Identity, helper, wait_for};

const WORKER_DIE_AT: &str = "DELEGATE_TEST_DIE_AT";
const ASKER_DIE_AT: &str = "OWNERSHIP_TEST_ASKER_DIE_AT";

/// Over one frame, so that it comes in parts.
const LARGE: usize = 5 << 19;

/// Over what a parent says in one frame.
const LARGE_GOAL: usize = 17 << 20;

/// What is done to a worker.
#[derive(Clone)]
struct Play {
    task: Value,
    /// What the test does once the worker has said this.
    then: Option<(&'static str, Then)>,
    /// Length of the answer, if it comes to one.
    bytes: usize,
}

#[derive(Clone, Copy, PartialEq)]
enum Then {
    Interrupt,
    Steer,
    /// Nothing: it is quiet for too long, and its parent ends it.
    Expire,
    /// The supervisor is killed, so that another one says hello.
    Replace,
}

fn every(bytes: usize) -> Play {
    Play { task: step(&Step::Every(bytes)), then: None, bytes }
}

fn waits() -> Play {
    Play { task: step(&Step::Wait), then: None, bytes: 0 }
}

fn reads_a_large_goal() -> Play {
    let mut task = step(&Step::Wait);
    task["goal_bytes"] = json!(LARGE_GOAL);
    Play { task, then: None, bytes: 0 }
}

/// It hears no interrupt, so it is still there when it has taken it.
fn is_interrupted() -> Play {
    let task = step(&Step::Count("/dev/null".into()));
    Play { task, then: Some(("waiting", Then::Interrupt)), bytes: 0 }
}

/// It reads nothing that it is told, and so the word is missed.
fn is_steered() -> Play {
    Play { then: Some(("waiting", Then::Steer)), ..is_interrupted() }
}

/// It is told that it is quiet before it is ended for that, and asked what it does when it is.
fn is_quiet(ends: bool) -> Play {
    let then = ends.then_some(("", Then::Expire));
    // It hears no interrupt, so it is still there when it is asked.
    let mut task = step(&Step::Count("/dev/null".into()));
    task["inactivity_seconds"] = json!(1);
    Play { task, then, bytes: 0 }
}

fn asks(then: Option<Then>) -> Play {
    Play { task: step(&Step::Asks), then: then.map(|then| ("asked", then)), bytes: 0 }
}

/// Cases by message. One that is missing here does not compile.
macro_rules! each {
    ($name:ident: $message:ty { $($pattern:pat => [$(($what:literal, $play:expr)),*],)+ }) => {
        fn $name() -> Vec<(&'static str, Play)> {
            fn _exhaustive(message: &$message) {
                match message { $($pattern => {})+ }
            }
            vec![$($(($what, $play),)*)+]
        }
    };
}

each!(sent: ChildMessage {
    ChildMessage::Hello(_) => [("hello", every(10))],
    ChildMessage::Event(ChildEvent::Thinking { .. }) => [("thinking", every(10))],
    ChildMessage::Event(ChildEvent::Tool { .. }) => [("tool", every(10))],
    ChildMessage::Event(ChildEvent::Note(_)) => [("note", every(10))],
    ChildMessage::Event(ChildEvent::Progress { .. }) => [("progress", every(10))],
    ChildMessage::Event(ChildEvent::Text { .. }) => [("text", every(10))],
    ChildMessage::Beat(_) => [("beat", waits()), ("beat:2", waits())],
    ChildMessage::ResultPart(_) => [
        ("result-part", every(LARGE)),
        ("result-part:2", every(LARGE)),
        ("result-part:3", every(LARGE))
    ],
    ChildMessage::Dump { .. } => [("dump", is_quiet(true))],
    ChildMessage::Ask { .. } => [("ask", every(10))],
    ChildMessage::Finish(_) => [("finish", every(10)), ("finish", every(LARGE))],
});

each!(taken: ParentMessage {
    ParentMessage::SpecPart(_) => [
        ("spec-part", reads_a_large_goal()),
        ("spec-part:2", reads_a_large_goal())
    ],
    ParentMessage::BeginFromParts => [("begin-from-parts", reads_a_large_goal())],
    ParentMessage::Begin(_) => [("begin", waits())],
    ParentMessage::Interrupt => [("interrupt", is_interrupted())],
    ParentMessage::Notice { .. } => [("notice", is_quiet(false))],
    ParentMessage::Steer { .. } => [("steer", is_steered())],
    // To a child of a session: see there.
    ParentMessage::StopTurn { .. } => [],
    ParentMessage::Dump => [("dump", is_quiet(true))],
    ParentMessage::Answer { .. } => [("answer", every(10))],
});

/// Requests of a worker, and why the others are none of its.
const ASKED: [(&str, Result<Option<Then>, &str>); 12] = [
    ("spawn", Ok(None)),
    ("open", Ok(None)),
    ("end", Ok(None)),
    ("pause", Ok(None)),
    ("resume", Ok(None)),
    ("ping", Ok(None)),
    ("adopt", Ok(None)),
    ("let-go", Err("what a worker asks to be adopted is refused: its descent is owned already")),
    ("resync", Ok(Some(Then::Replace))),
    ("foster", Err("after the death of both guards: a line that was inherited has ended then")),
    ("end-strays", Err("the same")),
    ("recount", Err("of an owner that executed itself: nobody waits for a worker that does")),
];

/// What a worker hears.
const HEARD: [(&str, Result<Option<Then>, &str>); 13] = [
    ("started", Ok(None)),
    ("failed", Ok(None)),
    ("opened", Ok(None)),
    ("exited", Ok(None)),
    ("emptied", Ok(None)),
    ("pong", Ok(None)),
    ("hello", Ok(Some(Then::Replace))),
    ("resynced", Ok(Some(Then::Replace))),
    ("no-scope", Err("to an owner, with the first hello of its guards; a worker has them already")),
    ("leaving", Err("a supervisor does not leave a living worker")),
    ("stopped", Err("of a program that runs as if its owner had started it; a worker starts none")),
    ("returned", Err("answers that request only")),
    ("recounted", Err("the same")),
];

/// One batch whose first worker dies at a point.
struct Scene {
    owner: OwnerProgram,
    folder: tempfile::TempDir,
}

impl Scene {
    fn start(play: &Play, variable: &str, point: &str, off: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        // One place, so that the first worker is that of task 0.
        let script = r#"mkdir "$0/first" 2>/dev/null && export "$1=$2"
            export CRASH_POINT="$0"; exec "$3" @delegate-worker"#;
        let command = json!(["sh", "-c", script, folder.path(), variable, point, helper("owner")]);
        let settings = json!({
            "worker_command": command, "places": 1, "grace_seconds": 1, "heartbeat_ms": 100,
            "inactivity_seconds": play.task["inactivity_seconds"],
        });
        let tasks = [play.task.clone(), step(&Step::Answer("fine".to_owned()))];
        let owner = OwnerProgram::start_with(&tasks, &settings, &[("OWNERSHIP_TEST_OFF", off)]);
        Self { owner, folder }
    }

    /// Living processes that descend from one of its workers, wherever they are by now.
    fn started(&self) -> Vec<Identity> {
        let mark = format!("CRASH_POINT={}", self.folder.path().display()).into_bytes();
        let bears = |pid: &u32| {
            let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
            environment.split(|byte| *byte == 0).any(|variable| variable == mark)
        };
        let marked = all_pids().into_iter().filter(bears).filter_map(Identity::of);
        marked.filter(|who| who.is_alive()).collect()
    }

    fn play(&mut self, then: Option<(&'static str, Then)>) {
        match then {
            Some((text, Then::Interrupt)) => {
                self.owner.text(text);
                self.owner.tell("interrupt");
            }
            Some((text, Then::Steer)) => {
                self.owner.text(text);
                self.owner.tell("steer");
            }
            Some((text, Then::Replace)) => {
                self.owner.text(text);
                kill_process(raw(self.owner.supervisor()), Signal::KILL).unwrap();
            }
            Some((_, Then::Expire)) | None => {}
        }
    }

    /// Kinds of events that were told of the first child.
    fn told(&self) -> BTreeSet<String> {
        let first =
            self.owner.seen().iter().filter(|line| line["child"].is_string() && index(line) == 0);
        // Not the line of tools, which its parent makes when it ends.
        let first = first.filter(|line| line["summary"] != "tree");
        let kinds = first.filter_map(|line| line["event"].as_str()?.strip_prefix("subagent."));
        kinds.map(str::to_owned).collect()
    }

    /// Reads the report; what must be so however it was killed.
    fn outcome(&mut self, sibling: &str) -> Value {
        let report = self.owner.report();
        // Before anything else: the report says that it is so.
        let left = self.started();
        assert!(left.is_empty(), "{left:?} is left");
        assert_one_complete_each(self.owner.seen(), 2);
        assert_eq!(report["verified_empty"], true, "{report}");
        assert_eq!(report["left_running"], json!([]), "{report}");
        let results = report["results"].as_array().unwrap();
        assert_eq!(results.len(), 2, "{report}");
        assert_eq!(results[1]["status"], sibling, "the sibling: {}", results[1]);
        results[0].clone()
    }
}

impl Drop for Scene {
    fn drop(&mut self) {
        for who in self.started() {
            kill_process(raw(who), Signal::KILL).ok();
        }
    }
}

fn assert_signaled(outcome: &Value, status: &str, reason: &str) {
    assert_eq!(outcome["status"], status, "{outcome}");
    assert_eq!(outcome["exit_reason"], reason, "{outcome}");
    let cause = json!({"kind": "signaled", "signal": 9, "core_dumped": false});
    assert_eq!(outcome["cause"], cause, "{outcome}");
}

fn assert_killed(outcome: &Value) {
    assert_signaled(outcome, "error", "error");
    assert!(
        outcome["error"].as_str().unwrap().contains("signal 9 (SIGKILL) ended it"),
        "{outcome}"
    );
    assert_eq!(outcome["summary"], Value::Null, "no result was said: {outcome}");
}

/// A worker that dies at one point of its line to the parent.
fn at(point: &str, what: &str, play: &Play) {
    let mut scene = Scene::start(play, WORKER_DIE_AT, &format!("{point}:{what}"), "");
    scene.play(play.then);
    let interrupted = play.then.is_some_and(|(_, then)| then == Then::Interrupt);
    let outcome = scene.outcome(if interrupted { "interrupted" } else { "completed" });
    if (point, what) == ("after-send", "finish") {
        assert_signaled(&outcome, "completed", "completed");
        assert_eq!(outcome["summary"].as_str().map(str::len), Some(play.bytes), "{outcome}");
        let notes = outcome["notes"].to_string();
        assert!(notes.contains("after its result signal 9 (SIGKILL) ended it"), "{outcome}");
    } else if interrupted {
        assert_signaled(&outcome, "interrupted", "interrupted");
    } else if play.then.is_some_and(|(_, then)| then == Then::Expire) {
        assert_signaled(&outcome, "timeout", "timeout");
    } else {
        assert_killed(&outcome);
    }
    if what == "steer" {
        assert_eq!(outcome["missed_steer"], "left", "nobody can have read it: {outcome}");
    }
    // Each kind of event comes once, so what was sent whole was told, and nothing else.
    let event = if what == "hello" { "start" } else { what };
    if ["start", "thinking", "tool", "progress", "text"].contains(&event) {
        assert_eq!(scene.told().contains(event), point == "after-send", "{:?}", scene.told());
    }
}

/// A worker that dies at one point of its line to the supervisor.
fn at_supervisor(point: &str, record: &str, play: &Play) {
    let mut scene = Scene::start(play, ASKER_DIE_AT, &format!("{point}:{record}"), "");
    scene.play(play.then);
    assert_killed(&scene.outcome("completed"));
}

/// Runs all of them beside one living control owner and one living stranger, and names those that fail.
fn run(cases: Vec<(String, Box<dyn Fn() + '_>)>) {
    if !cfg!(debug_assertions) {
        eprintln!("SKIPPED: NOTHING DIES BY ITSELF IN A RELEASE BUILD; run it in a debug build");
        return;
    }
    let bystanders = Bystanders::start();
    let failed = |(name, case): &(String, Box<dyn Fn() + '_>)| {
        catch_unwind(AssertUnwindSafe(case)).is_err().then(|| name.clone())
    };
    let failures: Vec<String> = cases.iter().filter_map(failed).collect();
    assert!(failures.is_empty(), "{} of {}: {failures:?}", failures.len(), cases.len());
    bystanders.assert_untouched();
}

/// All of these at all of these points.
fn cases<'a>(
    points: &[&'static str],
    plays: &'a [(&'static str, Play)],
    case: fn(&str, &str, &Play),
) -> Vec<(String, Box<dyn Fn() + 'a>)> {
    let each = |(what, play): &'a (&'static str, Play)| {
        let case_at = move |point: &&'static str| {
            let point = *point;
            let run: Box<dyn Fn() + 'a> = Box::new(move || case(point, what, play));
            (format!("{point}:{what} ({} B)", play.bytes), run)
        };
        points.iter().map(case_at).collect::<Vec<_>>()
    };
    plays.iter().flat_map(each).collect()
}

#[test]
fn at_each_message_that_it_sends() {
    run(cases(&["before-send", "within-send", "after-send"], &sent(), at));
}

#[test]
fn at_each_message_that_it_takes() {
    run(cases(&["before-take", "after-take"], &taken(), at));
}

/// What a dead process has not read resets the line under its parent.
#[test]
fn with_a_message_unread() {
    let mut plays = vec![("read", waits()), ("read", reads_a_large_goal())];
    // The first two were its task.
    plays.push(("read:2", is_interrupted()));
    run(cases(&["unread"], &plays, at));
}

fn of_worker(records: &[(&'static str, Result<Option<Then>, &str>)]) -> Vec<(&'static str, Play)> {
    let played = |(record, then): &(&'static str, Result<Option<Then>, &str>)| {
        Some((*record, asks(then.ok()?)))
    };
    records.iter().filter_map(played).collect()
}

#[test]
fn at_each_request_to_the_supervisor() {
    run(cases(&["before-ask", "after-ask"], &of_worker(&ASKED), at_supervisor));
}

#[test]
fn at_each_word_of_the_supervisor() {
    run(cases(&["before-hear", "after-hear"], &of_worker(&HEARD), at_supervisor));
}

/// The kinds of records are private to their crate: read from its source, so that none is forgotten here.
#[test]
fn every_record_to_and_from_the_supervisor_has_its_point() {
    let source = include_str!("../../crates/ownership/src/protocol.rs");
    let named = |after: &str| -> BTreeSet<&str> {
        let list = &source[source.find(after).expect(after)..];
        let list = &list[list.find("fn name").unwrap()..];
        let list = &list[..list.find("\n    }").unwrap()];
        list.lines().filter_map(|line| line.split('"').nth(1)).collect()
    };
    assert_eq!(named("impl Request {"), ASKED.iter().map(|(name, _)| *name).collect());
    assert_eq!(named("impl Reply {"), HEARD.iter().map(|(name, _)| *name).collect());
}

/// Negative control: nobody dies where no point is named, and the plays come to their ends.
#[test]
fn a_worker_without_a_point_lives() {
    for (play, summary) in [(every(10), Some(10)), (every(LARGE), Some(LARGE)), (asks(None), None)]
    {
        let mut scene = Scene::start(&play, WORKER_DIE_AT, "", "");
        if summary.is_none() {
            scene.owner.text("asked");
            // Its worker, two trees of two, and a group that was not adopted.
            wait_for("all that it started", || (scene.started().len() == 6).then_some(()));
            scene.owner.tell("interrupt");
        }
        let outcome = scene.outcome(if summary.is_none() { "interrupted" } else { "completed" });
        assert_eq!(
            outcome["summary"].as_str().filter(|_| summary.is_some()).map(str::len),
            summary
        );
        let status = if summary.is_none() { "interrupted" } else { "completed" };
        assert_eq!(outcome["status"], status, "{outcome}");
    }
}

/// Negative control: where guards do not adopt what a dead worker leaves, it is left, and this sees it.
#[test]
fn without_subreapers_what_a_worker_started_is_left() {
    if !cfg!(debug_assertions) {
        eprintln!(
            "SKIPPED: NOTHING CAN BE SWITCHED OFF IN A RELEASE BUILD; run it in a debug build"
        );
        return;
    }
    // On a busy machine the worker may be dead before its helper has a session of its own.
    let is_left = |_| {
        let off = "subreaper,cgroup";
        let mut scene = Scene::start(&every(10), WORKER_DIE_AT, "after-send:text", off);
        scene.owner.completed(0);
        !scene.started().is_empty()
    };
    assert!((0..5).any(is_left), "the helper of its own session lives on");
}

//! The process that runs a batch is killed, by itself (`DELEGATE_TEST_DIE_AT`), before and after each fact that
//! its loop waits for and at each place of its own, and by the test at random moments.
//!
//! Each time: every outcome that was announced is readable, once, and as it was; every other task is `unknown`,
//! cause `lost`, with what is known of it; nothing that it started is left; and a resume runs what is missing
//! and nothing else.

use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use delegate_protocol::{Cause, Outcome, Status};
use delegate_runtime::store::{RunRecord, Store};
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::program::{Bystanders, OwnerProgram, index, pause, random, seed, step, wait_gone};
use crate::step::Step;
use crate::support::{Identity, helper};

const DIE_AT: &str = "DELEGATE_TEST_DIE_AT";

/// What is played so that the loop comes to a point.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Play {
    /// Four answers, two at once.
    Answers,
    /// The same where nobody follows.
    Background,
    /// A program that cannot be started.
    NoProgram,
    /// One that speaks nonsense.
    Nonsense,
    /// One that closes its line and runs on.
    Closes,
    /// Each says and asks one of everything.
    Every,
    /// Children that delegate one task each.
    Delegates,
    /// Children that wait, one of which is asked to stop.
    Wish,
    /// Children that are quiet until their limit, and are asked what they do.
    Quiet,
}

/// Facts of the loop by name ([`Incoming::name`] there), and what leads to them.
const FACTS: [(&str, Result<Play, &str>); 20] = [
    ("launched", Ok(Play::Answers)),
    ("launch-failed", Ok(Play::NoProgram)),
    ("exited", Ok(Play::Answers)),
    ("emptied", Ok(Play::Answers)),
    (
        "other-system",
        Err("the supervisor is gone, or a stop of a terminal's child: nothing is done"),
    ),
    ("hello", Ok(Play::Answers)),
    ("asked", Ok(Play::Every)),
    ("violation", Ok(Play::Nonsense)),
    ("finish", Ok(Play::Answers)),
    ("line-closed", Ok(Play::Closes)),
    ("over", Ok(Play::Answers)),
    ("recorded", Ok(Play::Answers)),
    ("diagnosed", Ok(Play::Quiet)),
    ("planned", Ok(Play::Delegates)),
    ("delegation-over", Ok(Play::Delegates)),
    ("followed", Err("an answer to a child that follows what it delegated: nothing is stored")),
    ("over-budget", Err("it stops a child, as a wish does")),
    ("wish", Ok(Play::Wish)),
    ("time", Ok(Play::Quiet)),
    ("eased", Err("of a consumer that reads again after its queue was full: no fact of a child")),
];

/// Places of the loop's own.
const PLACES: [(&str, Play); 10] = [
    ("begin", Play::Answers),
    ("begun", Play::Answers),
    ("settle", Play::Answers),
    ("outcome", Play::Answers),
    ("stored", Play::Answers),
    ("completion", Play::Background),
    ("end", Play::Answers),
    ("end-queued", Play::Answers),
    ("flushed", Play::Answers),
    ("told", Play::Answers),
];

const TASKS: u32 = 4;

fn start(play: Play, variables: &[(&str, &str)]) -> OwnerProgram {
    let answer = |n: u32| step(&Step::Answer(format!("answer {n}")));
    let mut tasks: Vec<Value> = (0..TASKS).map(answer).collect();
    let mut settings = json!({"places": 2, "grace_seconds": 1});
    match play {
        Play::Answers => {}
        Play::Background => settings["background"] = json!("a conversation"),
        Play::NoProgram => settings["worker_command"] = json!(["/no/such/program"]),
        Play::Nonsense => settings["worker_command"] = json!([helper("garbler"), "undecodable"]),
        Play::Closes => settings["worker_command"] = json!([helper("garbler"), "close"]),
        Play::Every => tasks.fill(step(&Step::Every(10))),
        Play::Delegates => {
            let below = serde_json::to_value(Step::Answer("below".to_owned())).unwrap();
            let below = serde_json::from_value(below).unwrap();
            tasks.fill(step(&Step::Delegate(vec![("step".to_owned(), below)])));
            settings["depth"] = json!(2);
        }
        Play::Wish => tasks.fill(step(&Step::Wait)),
        Play::Quiet => {
            tasks.fill(step(&Step::Wait));
            settings["inactivity_seconds"] = json!(1);
        }
    }
    OwnerProgram::start_with(&tasks, &settings, variables)
}

/// Lets it run until it is dead; asks for what the play needs meanwhile.
fn until_dead(owner: &mut OwnerProgram, play: Play) -> bool {
    if play == Play::Wish {
        owner.text("waiting");
        owner.tell("interrupt");
    }
    // After a report it waits for a word; then it has not come to the point.
    let mut reported = false;
    let status = crate::support::wait_for("its end", || {
        owner.pending();
        if !reported && owner.seen().iter().any(|line| line.get("report").is_some()) {
            reported = true;
            owner.signal(Signal::KILL);
        }
        owner.ended()
    });
    owner.drain();
    !reported && std::os::unix::process::ExitStatusExt::signal(&status) == Some(9)
}

/// What is on record of its one run.
fn record(owner: &OwnerProgram) -> Option<RunRecord> {
    let mut runs = Store::open_existing(owner.state.path()).runs(9).unwrap();
    assert!(runs.len() <= 1, "{runs:?}");
    runs.pop()
}

/// See the module.
fn assert_kept(owner: &OwnerProgram) {
    // Those below a child are stored with a run of their own.
    let below = owner.seen().iter().filter(|line| line["identity"]["parent_id"].is_string());
    let below: BTreeSet<&str> = below.filter_map(|line| line["child"].as_str()).collect();
    let announced: Vec<(u32, Value)> = owner
        .seen()
        .iter()
        .filter(|line| line["event"] == "subagent.complete")
        .filter(|line| line["child"].as_str().is_none_or(|child| !below.contains(child)))
        .map(|line| (index(line), line["end"].clone()))
        .collect();
    let tasks: BTreeSet<u32> = announced.iter().map(|(task, _)| *task).collect();
    assert_eq!(tasks.len(), announced.len(), "each is announced once");
    let workers = owner.seen().iter().filter_map(|line| line["pid"].as_u64());
    let workers: Vec<_> =
        workers.filter_map(|pid| Identity::of(u32::try_from(pid).unwrap())).collect();
    wait_gone(&workers);
    let Some(run) = record(owner) else {
        assert!(announced.is_empty(), "{announced:?} of a run that nobody knows");
        return;
    };
    let reader = Store::open_existing(owner.state.path());
    let entries: Vec<Outcome> = (0..run.tasks).map(|task| entry(&reader, &run, task)).collect();
    let missing = entries.iter().filter(|entry| entry.status == Status::Unknown).count();
    if missing == 0 {
        assert!(["completed", "failed"].contains(&run.status.as_str()), "{run:?}");
    } else {
        assert_eq!((run.status.as_str(), run.duration_seconds), ("unknown", None), "{run:?}");
    }
    for (task, end) in announced {
        let entry = &entries[task as usize];
        assert_eq!(entry.status.word(), end["status"], "task {task}: {entry:?}");
        assert_eq!(json!(entry.summary), end["summary"], "task {task}");
    }
    for entry in entries.iter().filter(|entry| entry.status == Status::Unknown) {
        assert_eq!(entry.cause, Some(Cause::Lost), "{entry:?}");
        assert!(!entry.notes.is_empty() && entry.error.is_some(), "its evidence: {entry:?}");
    }
    let counted: u32 = run.counts.iter().map(|(_, count)| count).sum();
    assert_eq!(counted, run.tasks, "{run:?}");
}

fn entry(reader: &delegate_runtime::store::Reader, run: &RunRecord, task: u32) -> Outcome {
    reader.entry(run, task).unwrap_or_else(|error| panic!("task {task} of {run:?}: {error}"))
}

fn at(point: &str, play: Play) {
    let mut owner = start(play, &[(DIE_AT, point)]);
    assert!(until_dead(&mut owner, play), "it did not come to {point}: {:?}", owner.seen());
    assert_kept(&owner);
}

/// Beside one living control owner and one living stranger.
fn each(cases: Vec<(String, Play)>) {
    if !cfg!(debug_assertions) {
        eprintln!("SKIPPED: NOTHING DIES BY ITSELF IN A RELEASE BUILD; run it in a debug build");
        return;
    }
    let bystanders = Bystanders::start();
    let failed = |(point, play): &(String, Play)| {
        catch_unwind(AssertUnwindSafe(|| at(point, *play))).is_err().then(|| point.clone())
    };
    let failures: Vec<String> = cases.iter().filter_map(failed).collect();
    assert!(failures.is_empty(), "{} of {}: {failures:?}", failures.len(), cases.len());
    bystanders.assert_untouched();
}

#[test]
fn rb_44_before_and_after_each_fact_of_the_loop() {
    let facts = FACTS.iter().filter_map(|(fact, play)| Some((fact, play.ok()?)));
    let points = facts.flat_map(|(fact, play)| {
        // Those of every child are met again in the middle of the batch.
        let turns: &[u32] = if play == Play::Answers { &[1, 3] } else { &[1] };
        let after =
            if *fact == "time" { &["before-fact"][..] } else { &["before-fact", "after-fact"] };
        let point = move |(turn, side): (u32, &str)| (format!("{side}:{fact}:{turn}"), play);
        turns.iter().flat_map(move |turn| after.iter().map(move |side| (*turn, *side))).map(point)
    });
    each(points.collect());
}

#[test]
fn rb_44_at_each_place_of_the_loop() {
    let point = |(place, play): &(&str, Play)| {
        let last = ["settle", "outcome", "stored"]
            .contains(place)
            .then(|| (format!("place:{place}:3"), *play));
        [Some((format!("place:{place}"), *play)), last]
    };
    each(PLACES.iter().flat_map(point).flatten().collect());
}

/// The names are private to their crate: read from its source, so that none is forgotten here.
#[test]
fn every_fact_and_place_of_the_loop_has_its_point() {
    let named = |source: &'static str, after: &str| -> BTreeSet<&'static str> {
        let list = &source[source.find(after).expect(after)..];
        let list = &list[list.find("fn name").unwrap()..];
        let list = &list[..list.find("\n    }").unwrap()];
        list.lines().filter_map(|line| line.split('"').nth(1)).collect()
    };
    let incoming = include_str!("../../crates/delegate-core/src/run/batch/incoming.rs");
    let facts = named(incoming, "impl Incoming {");
    // The last three are no messages.
    assert_eq!(facts, FACTS[..17].iter().map(|(name, _)| *name).collect());
    let places = named(include_str!("../../crates/delegate-core/src/run/crash.rs"), "impl Place {");
    let known = PLACES.iter().map(|(name, _)| *name);
    let of_sessions = crate::sessions::PLACES.iter().map(|at| at.split(':').next().unwrap());
    assert_eq!(places, known.chain(of_sessions).collect());
}

/// 200 moments from before the first child to after the end.
#[test]
fn rb_44_killed_at_200_random_moments() {
    let bystanders = Bystanders::start();
    let mut seed = seed();
    println!("seed {seed}");
    let (mut before, mut within, mut after) = (0, 0, 0);
    // As long as a batch takes here, and a little more.
    let mut longest = 60_000;
    for _ in 0..200 {
        let mut owner = start(Play::Answers, &[]);
        pause(Duration::from_micros(random(&mut seed, longest)));
        owner.signal(Signal::KILL);
        owner.wait();
        owner.drain();
        assert_kept(&owner);
        match record(&owner) {
            None => {
                before += 1;
                longest += 2_000;
            }
            Some(run) if run.status == "unknown" => within += 1,
            Some(_) => {
                after += 1;
                longest = (longest - 500).max(20_000);
            }
        }
    }
    println!("{before} before its row, {within} within, {after} after its end");
    assert!(within > 20, "the moments do not meet the batch: {before}, {within}, {after}");
    bystanders.assert_untouched();
}

/// The owner of a background run is killed with one child done and another at work: its completion is for its
/// conversation, once, with the real result and the lost one.
#[test]
fn c31_a_dead_owners_completion_is_offered_to_its_conversation() {
    let bystanders = Bystanders::start();
    let folder = tempfile::tempdir().unwrap();
    let gate = folder.path().join("gate");
    let tasks =
        [step(&Step::Answer("real".to_owned())), step(&Step::Gate { open: gate, bytes: 1 })];
    let mut owner = OwnerProgram::start(&tasks, &json!({"background": "ours"}));
    owner.run_id();
    crate::support::wait_for("the first outcome", || {
        record(&owner)?.counts.iter().any(|(word, _)| word == "completed").then_some(())
    });
    let state = owner.state.path().to_owned();
    let ours = || {
        delegate_runtime::blocking::Delegator::builder()
            .isolation(delegate_runtime::Isolation::Thread)
            .state_dir(&state)
            .build()
            .unwrap()
    };
    let delegator = ours();
    let completions = |session| delegator.completions(session);
    assert!(completions(Some("ours")).try_next_blocking().is_none(), "its owner lives");
    owner.signal(Signal::KILL);
    crate::support::wait_for("its end", || owner.ended());
    assert!(completions(None).try_next_blocking().is_none());
    assert!(completions(Some("theirs")).try_next_blocking().is_none());
    let told = completions(Some("ours")).try_next_blocking();
    let Some(delegate_runtime::Announced::Ended(completion)) = told else { panic!("{told:?}") };
    assert!(completion.restored() && completion.status() == "unknown");
    let results: Vec<_> = completion.results().collect();
    assert_eq!(results[0].summary.as_deref(), Some("real"));
    assert_eq!((results[1].status, &results[1].cause), (Status::Unknown, &Some(Cause::Lost)));
    assert!(ours().completions(Some("ours")).try_next_blocking().is_none(), "one consumer has it");
    completion.complete_blocking().unwrap();
    bystanders.assert_untouched();
}

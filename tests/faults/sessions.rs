//! Owners of sessions that are killed, by the test in whatever state the session is, and by themselves at each place of
//! its driver. Each time: what was announced of a turn is in its database, as it was; what was not is *lost*, and the
//! session with it; nothing of its worker, or of what that started, is left; nobody else is touched.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use delegate_runtime::session::{TurnRecord, list};
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::program::{Bystanders, OwnerProgram, TREE, TREE_SIZE, step, wait_gone};
use crate::step::Step;
use crate::support::{Identity, wait_for};

fn owner(prompts: &[Step], variables: &[(&str, &str)]) -> OwnerProgram {
    let prompts: Vec<String> =
        prompts.iter().map(|step| serde_json::to_string(step).unwrap()).collect();
    let settings = json!({"prompts": prompts, "grace_seconds": 1});
    OwnerProgram::start_with(&[step(&Step::Wait)], &settings, variables)
}

fn say(text: &str) -> Step {
    Step::Answer(text.to_owned())
}

fn whole_tree() -> Step {
    Step::Tree { script: TREE.to_owned(), lines: TREE_SIZE }
}

/// What is on record of its one session.
fn stored(state: &Path) -> (String, Vec<TurnRecord>) {
    let session = list::find(state, "latest").unwrap();
    (session.status.to_owned(), list::turns(state, &session).unwrap())
}

/// owner → launcher → program → helpers, started in one turn, while another runs.
#[test]
fn a_killed_owner_leaves_nothing_of_its_session() {
    let bystanders = Bystanders::start();
    for way in ["exit", "abort", "TERM", "KILL"] {
        let mut owner = owner(&[say("before"), whole_tree(), Step::Wait], &[]);
        let members = owner.tree(1);
        owner.text("waiting");
        crate::program::assert_alive(&members);
        match way {
            "TERM" => owner.signal(Signal::TERM),
            "KILL" => owner.signal(Signal::KILL),
            word => owner.tell(word),
        }
        owner.wait();
        println!("{way}");
        wait_gone(&members);
        let (status, turns) = stored(owner.state.path());
        let words: Vec<&str> = turns.iter().map(|turn| turn.status.as_str()).collect();
        assert_eq!(
            (status.as_str(), &words[..]),
            ("lost", &["completed", "completed", "lost"][..])
        );
        assert_eq!(turns[0].outcome.as_ref().unwrap().answer, "before");
    }
    bystanders.assert_untouched();
}

/// Between two turns: its worker waits for a prompt, and what it has started lives on until then.
#[test]
fn an_owner_that_is_killed_between_two_turns_leaves_nothing() {
    let bystanders = Bystanders::start();
    let mut owner = owner(&[whole_tree()], &[]);
    let members = owner.tree(1);
    owner.expect("the turn", |line| line.get("turn").map(|_| ()));
    crate::program::assert_alive(&members);
    owner.signal(Signal::KILL);
    owner.wait();
    wait_gone(&members);
    let (status, turns) = stored(owner.state.path());
    assert_eq!((status.as_str(), turns[0].status.as_str()), ("lost", "completed"));
    bystanders.assert_untouched();
}

/// The supervisor of a worker is killed: the session's turn goes on or is over, and the session is as before.
#[test]
fn a_killed_supervisor_ends_no_session() {
    let bystanders = Bystanders::start();
    let mut owner = owner(&[say("before"), Step::Wait, say("after"), Step::History], &[]);
    let (_, worker) = owner.started();
    owner.text("waiting");
    let supervisor = owner.supervisor();
    rustix::process::kill_process(crate::program::raw(supervisor), Signal::KILL).unwrap();
    rustix::process::kill_process(crate::program::raw(worker), Signal::KILL).unwrap();
    let history = owner.expect("the history", |line| {
        let turn = line.get("turn").filter(|turn| turn["turn"] == 4)?;
        Some(turn["answer"].as_str().unwrap_or_default().to_owned())
    });
    assert!(history.starts_with("1:completed 2:") && history.ends_with("3:completed"), "{history}");
    owner.tell("end");
    owner.expect("the end", |line| line.get("session_end").cloned());
    bystanders.assert_untouched();
}

/// Places of the driver, in the order in which they come first, and at which turn of them.
pub(crate) const PLACES: [&str; 12] = [
    "prompted:1",
    "prompted:2",
    "given:1",
    "given:3",
    "turn-stored:1",
    "turn-stored:2",
    "turn-stored:3",
    "turn-told:1",
    "turn-told:3",
    "worker-gone",
    "replaced",
    "session-over",
];

fn at(place: &str) {
    let point = format!("place:{place}");
    let prompts = [say("first"), Step::Panic("lost".to_owned()), whole_tree(), Step::History];
    let mut owner = owner(&prompts, &[("DELEGATE_TEST_DIE_AT", &point)]);
    let mut ending = false;
    let status = wait_for("its end", || {
        let fresh = owner.pending();
        if !ending && fresh.iter().any(|line| line["turn"]["turn"] == 4) {
            ending = true;
            owner.tell("end");
        }
        assert!(
            !fresh.iter().any(|line| line.get("session_end").is_some()),
            "it did not come to {place}"
        );
        owner.ended()
    });
    owner.drain();
    let signal = std::os::unix::process::ExitStatusExt::signal(&status);
    assert_eq!(signal, Some(9), "{place}: {status:?} {:?}", owner.seen());
    let mut members: Vec<Identity> = Vec::new();
    for line in owner.seen() {
        members.extend(line["pid"].as_u64().and_then(|pid| Identity::of(pid.try_into().ok()?)));
        for line in line["text"].as_str().unwrap_or_default().lines() {
            let pid = line.strip_prefix("tree ").and_then(|rest| rest.split(' ').nth(1));
            members.extend(pid.and_then(|pid| Identity::of(pid.parse().ok()?)));
        }
    }
    wait_gone(&members);
    let (status, turns) = stored(owner.state.path());
    assert_eq!(status, if place == "session-over" { "ended" } else { "lost" }, "{place}");
    let told: Vec<&Value> = owner.seen().iter().filter_map(|line| line.get("turn")).collect();
    for outcome in told.iter().filter(|turn| turn.is_object()) {
        let number = outcome["turn"].as_u64().unwrap();
        let turn = turns.iter().find(|turn| turn.number == number).unwrap();
        let kept = serde_json::to_value(turn.outcome.as_ref().unwrap()).unwrap();
        assert_eq!(&&kept, outcome, "{place}: what was told is what is stored");
    }
    for turn in &turns {
        assert_eq!(turn.outcome.is_none(), turn.status == "lost", "{place}: {turn:?}");
    }
    // Each prompt came before its turn, and the next one only behind its end.
    let open = turns.iter().filter(|turn| turn.outcome.is_none()).count();
    assert!(open <= 1, "{place}: {turns:?}");
}

#[test]
fn killed_at_each_place_of_a_session() {
    if !cfg!(debug_assertions) {
        eprintln!("SKIPPED: NOTHING DIES BY ITSELF IN A RELEASE BUILD; run it in a debug build");
        return;
    }
    let bystanders = Bystanders::start();
    let fails = |place: &&str| catch_unwind(AssertUnwindSafe(|| at(place))).is_err();
    let failures: Vec<&str> = PLACES.into_iter().filter(fails).collect();
    assert!(failures.is_empty(), "{failures:?}");
    bystanders.assert_untouched();
}

/// What a worker of a session says and hears, and dies of: each time it comes to it, so that those that take its place die
/// as well.
const WORDS: [&str; 8] = [
    "before-send:ask",
    "after-send:ask",
    "after-send:ask:2",
    "after-send:ask:3",
    "after-take:answer",
    "after-take:answer:2",
    "after-take:answer:3",
    "after-send:finish",
];

#[test]
fn workers_that_die_at_each_word_end_turns_and_no_owner() {
    if !cfg!(debug_assertions) {
        eprintln!("SKIPPED: NOTHING DIES BY ITSELF IN A RELEASE BUILD; run it in a debug build");
        return;
    }
    let bystanders = Bystanders::start();
    for word in WORDS {
        let prompts: Vec<Step> = (1..=4).map(|number| say(&number.to_string())).collect();
        let mut owner = owner(&prompts, &[("DELEGATE_TEST_DIE_AT", word)]);
        let mut told = Vec::new();
        let mut ended = false;
        let status = wait_for("its end", || {
            for line in owner.pending() {
                told.extend(line.get("turn").filter(|turn| turn.is_object()).cloned());
                ended |= line.get("session_end").is_some();
            }
            // One more word than it waits for does no harm.
            owner.tell_if_alive("end");
            owner.ended()
        });
        owner.drain();
        println!("{word}: {} turns told, its end {ended}, {status:?}", told.len());
        let workers = owner.seen().iter().filter_map(|line| line["pid"].as_u64());
        let workers: Vec<Identity> =
            workers.filter_map(|pid| Identity::of(u32::try_from(pid).unwrap())).collect();
        wait_gone(&workers);
        let (status, turns) = stored(owner.state.path());
        assert!(["ended", "lost"].contains(&status.as_str()), "{word}: {status}");
        for outcome in &told {
            let number = outcome["turn"].as_u64().unwrap();
            let turn = turns.iter().find(|turn| turn.number == number).unwrap();
            let kept = serde_json::to_value(&turn.outcome).unwrap();
            assert_eq!(&kept, outcome, "{word}: {turns:?}");
        }
    }
    bystanders.assert_untouched();
}

//! Sessions from outside of the command that holds them: stopped, steered and waited for by id, shown, damaged; and what
//! becomes of them when their program, or whoever reads their answers, goes.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::process::{ChildStdin, Stdio};

use serde_json::Value;

use crate::rig::{Rig, Running, Said};
use crate::sessions::rig;
use crate::support::wait_for;

/// A session that reads its standard input, and that.
fn start(rig: &Rig, options: &[&str]) -> (Running, ChildStdin) {
    let mut command =
        rig.command(["session"].iter().chain(options).chain(&["--", "sh", "talk.sh"]));
    command.stdin(Stdio::piped());
    let mut running = Running::apart(command);
    let stdin = running.child().stdin.take().unwrap();
    (running, stdin)
}

/// The newest session on record, once this holds.
fn record(rig: &Rig, what: &str, holds: impl Fn(&Value) -> bool) -> Value {
    wait_for(what, || {
        let said = rig.run(["sessions", "latest", "--json"]);
        let session = (said.code == Some(0)).then(|| said.json())?;
        holds(&session).then_some(session)
    })
}

fn id(session: &Value) -> String {
    session["id"].as_str().unwrap().to_owned()
}

fn run_of(session: &Value) -> String {
    session["run_id"].as_str().unwrap().to_owned()
}

/// By its own id, by the run of its worker, and by its only child: each time the session ends, and is not replaced.
#[test]
fn whoever_stops_a_session_or_its_worker_ends_the_session() {
    for (way, now) in [("session", false), ("run", false), ("child", false), ("session", true)] {
        let rig = rig();
        let (running, mut stdin) = start(&rig, &[]);
        writeln!(stdin, "wait").unwrap();
        let session = record(&rig, "the turn", |it| it["turn"] == 1);
        let name = match way {
            "session" => id(&session)[..8].to_owned(),
            "run" => run_of(&session),
            _ => format!("{}/0", run_of(&session)),
        };
        let mut words = vec!["stop", &name, "--json"];
        words.extend(now.then_some("--now"));
        let stopped = rig.run(words).expect(0).json();
        assert_eq!(stopped["session_id"], id(&session), "{way}: {stopped}");
        let said = running.end();
        said.expect(1).says("stopped").says("0 processes left");
        assert!(!said.err.contains("replaced"), "{way}: {}", said.err);
        let ended = record(&rig, "its end", |it| it["status"] == "ended");
        assert_eq!((&ended["why"], &ended["restarts"]), (&"stopped".into(), &0.into()), "{way}");
        assert_eq!(ended["turns"][0]["status"], "interrupted", "{way}");
        drop(stdin);
        rig.wait_for_nobody();
    }
}

#[test]
fn a_session_is_steered_and_waited_for_by_id_and_other_verbs_name_its_run() {
    let rig = rig();
    let (running, mut stdin) = start(&rig, &[]);
    writeln!(stdin, "one").unwrap();
    let session = record(&rig, "a turn", |it| it["completed"] == 1);
    let (id, run) = (id(&session), run_of(&session));
    rig.run(["steer", &id, "shorter"]).expect(0).says("accepted for sa-0-");
    for verb in ["watch", "pause", "show", "logs", "resume"] {
        rig.run([verb, &id]).expect(2).says("is a session").says(&run);
    }
    rig.run(["extend", &id, "1m"]).expect(2).says(&run);
    rig.run(["steer", &format!("{id}/0"), "x"]).expect(2).says(&run);
    rig.run(["wait", &id, "--timeout", "100ms"]).expect(124);
    // It is listed by its process when that lives, and waited for on record when that does not listen.
    let waits = rig.start(["wait", &id, "--json"]);
    drop(stdin);
    running.end().expect(0);
    let waited = waits.end();
    assert_eq!(waited.expect(0).json()["runs"][0]["exit_code"], 0, "{waited:?}");
    rig.run(["wait", &id]).expect(0);
    rig.run(["wait", "zzzz"]).expect(4);
    let failed =
        rig.run(["session", "-p", "a", "--max-turns", "1", "-p", "b", "--", "sh", "talk.sh"]);
    failed.expect(1);
    let second = record(&rig, "the second", |it| it["id"] != *id && it["status"] == "ended");
    rig.run(["wait", second["id"].as_str().unwrap()]).expect(1);
    rig.wait_for_nobody();
}

#[test]
fn ps_shows_that_it_is_a_session_and_its_turns() {
    let rig = rig();
    let (running, mut stdin) = start(&rig, &[]);
    writeln!(stdin, "one").unwrap();
    let session = record(&rig, "a turn", |it| it["completed"] == 1);
    let short = &id(&session)[..8];
    let shows = |text: &str| {
        wait_for(text, || rig.run(["ps"]).out.contains(text).then_some(()));
    };
    shows(&format!("session {short}, between turns (1 so far), "));
    writeln!(stdin, "wait").unwrap();
    shows(&format!("session {short}, turn 2, running"));
    let seen = wait_for("the session in the object", || {
        let told = rig.run(["ps", "--json"]).json();
        let children = told["owners"][0]["children"].as_array()?.clone();
        let task = children.iter().map(|child| &child["task"]).find(|task| !task.is_null())?;
        Some(task["session"].clone())
    });
    assert_eq!(seen["session_id"], session["id"], "{seen}");
    assert_eq!((&seen["turns"], &seen["completed"]), (&2.into(), &1.into()), "{seen}");
    rig.run(["stop", short]).expect(0);
    running.end().expect(1);
    rig.wait_for_nobody();
}

/// A program that ends between two turns costs no prompt: its worker is replaced while nobody waits for it.
#[test]
fn a_program_that_ends_between_two_turns_costs_no_prompt() {
    let rig = rig();
    let (mut running, mut stdin) = start(&rig, &[]);
    let mut answers = BufReader::new(running.child().stdout.take().unwrap()).lines();
    writeln!(stdin, "bye").unwrap();
    assert_eq!(answers.next().unwrap().unwrap(), "bye");
    record(&rig, "another worker", |it| it["restarts"] == 1);
    writeln!(stdin, "next").unwrap();
    assert_eq!(answers.next().unwrap().unwrap(), "answer 1yes");
    drop(stdin);
    running.end().expect(0).says("2 turns, 2 completed").says("1 worker replaced");
    rig.wait_for_nobody();
}

/// Whoever reads the answers goes, between two turns or in one: it ends, and says what was not asked.
#[test]
fn a_session_ends_when_nobody_reads_its_answers_any_more() {
    let rig = rig();
    for prompt in ["hello", "wait"] {
        let (mut running, mut stdin) = start(&rig, &[]);
        let stdout = running.child().stdout.take().unwrap();
        writeln!(stdin, "{prompt}").unwrap();
        let session = record(&rig, "the turn", |it| {
            it["completed"] == u64::from(prompt == "hello")
                && it["turns"][0].is_object()
                && it["status"] == "running"
        });
        if prompt == "wait" {
            record(&rig, "the turn that runs", |it| it["id"] == session["id"] && it["turn"] == 1);
        }
        drop(stdout);
        // Its standard input is open all the time.
        let said = running.end();
        said.expect(i32::from(prompt == "wait")).says("0 processes left");
        drop(stdin);
    }
    let command = rig.command(["session", "-p", "wait", "-p", "never", "--", "sh", "talk.sh"]);
    let mut running = Running::apart(command);
    record(&rig, "the turn", |it| it["turn"] == 1);
    drop(running.child().stdout.take());
    running.end().expect(1).says("1 prompt was not asked: whoever read the answers has gone");
    let turns = record(&rig, "its end", |it| it["status"] == "ended")["turns"].clone();
    assert_eq!((&turns[1]["prompt"], &turns[1]["run_id"]), (&"never".into(), &Value::Null));
    rig.wait_for_nobody();
}

/// Prompts that were not asked are on record, and in what programs read.
#[test]
fn what_was_not_asked_is_told_to_programs_and_kept() {
    let rig = rig();
    let session = |form: &str| -> Said {
        let prompts = ["-p", "a", "-p", "b", "-p", "c", "-p", " "];
        let options = ["session", form, "--max-turns", "1"];
        rig.run(options.iter().chain(&prompts).chain(&["--", "sh", "talk.sh"]))
    };
    let whole = session("--json").expect(1).json();
    assert_eq!((&whole["turns"].as_array().unwrap().len(), &whole["refused"]), (&3, &2.into()));
    assert_eq!((&whole["begun"], &whole["why"]), (&1.into(), &"max_turns".into()));
    for at in [1, 2] {
        let outcome = &whole["turns"][at]["outcome"];
        let error = outcome["error"].as_str().unwrap();
        assert!(error.contains("has had its 1 turns") || error.contains("ended"), "{error}");
        assert_eq!((&outcome["turn"], &outcome["run_id"]), (&(at + 1).into(), &Value::Null));
    }
    let said = session("--jsonl");
    let lines: Vec<Value> =
        said.expect(1).out.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let turns: Vec<_> = lines.iter().filter_map(|line| line["outcome"]["turn"].as_u64()).collect();
    assert_eq!(turns, [1, 2, 3], "each once: {lines:?}");
    assert!(lines.last().unwrap()["end"].is_object(), "{lines:?}");
    let shown = rig.run(["sessions", "latest"]);
    shown.expect(0).says("2  not asked  b: its session").says("3  not asked  c: its session");
    rig.run(["sessions"]).expect(0).says("1 turn (1 completed, 2 not asked, ");
    let blank = rig.run(["session", "--jsonl", "-p", " ", "--", "sh", "talk.sh"]);
    blank.expect(1).says(r#"{"not_asked":"the prompt is blank"}"#);
    rig.wait_for_nobody();
}

#[test]
fn a_damaged_session_is_named_with_what_can_be_done_and_hides_no_other() {
    let rig = rig();
    for _ in 0..3 {
        rig.run(["session", "-p", "a", "--", "sh", "talk.sh"]).expect(0);
    }
    let listed = rig.run(["sessions", "--json"]).expect(0).json();
    assert_eq!(listed["damaged"], serde_json::json!([]));
    let ids: Vec<String> = listed["sessions"].as_array().unwrap().iter().map(id).collect();
    let file = |id: &str| rig.path("state").join("sessions").join(id).join("session.sqlite");
    fs::write(file(&ids[0]), "no database at all, but for a few words").unwrap();
    // Only its head is as it was.
    let mut bytes = fs::read(file(&ids[1])).unwrap();
    bytes[100..].fill(0xff);
    fs::write(file(&ids[1]), bytes).unwrap();
    let listed = rig.run(["sessions"]);
    listed.expect(3).says("1 turn (1 completed, closed)");
    for id in &ids[..2] {
        listed
            .says(&format!("session {id} cannot be read: "))
            .says(&file(id).display().to_string());
        rig.run(["sessions", id]).expect(1).says("reading the session in");
    }
    listed.says(".recover").says("it is forgotten");
    assert_eq!(listed.out.lines().count(), 1, "{}", listed.out);
    let damaged = rig.run(["sessions", "--json"]).expect(3).json()["damaged"].clone();
    assert_eq!(damaged.as_array().map(Vec::len), Some(2), "{damaged}");
    rig.run(["sessions", &ids[2]]).expect(0).says("answer 1");
}

//! `delegate session` and `delegate sessions`: a program that takes prompts, from options and from standard input.

use std::io::{BufRead, BufReader, Write};
use std::process::Stdio;

use rustix::process::Signal;
use serde_json::Value;

use crate::rig::{Rig, Said};

/// Answers each prompt with its number and what it was, in a shell. `wait` waits for a stop, `crash` ends it, as `bye` does when
/// that is answered.
const PROGRAM: &str = r#"
while read -r line; do
    case $line in
    *history*) echo "{\"progress\":\"it knows what was\"}"; known=yes;;
    *stop*) number=${line##*:}; echo "{\"stopped\":${number%\}}}";;
    *late*) echo '{"stopped":1}'; echo '{"answer":"of another","turn":1}'; echo '{"answer":"its own","turn":2,"error":null}';;
    *wait*) echo '{"text":"up"}';;
    *crash*) echo "it breaks" >&2; exit 7;;
    *bye*) echo '{"answer":"bye"}'; exit 3;;
    *fail*) echo '{"error":"no luck"}';;
    *) count=$((count + 1)); echo "{\"answer\":\"answer $count$known\"}";;
    esac
done
"#;

/// With that program as `talk.sh`.
pub(crate) fn rig() -> Rig {
    let rig = Rig::new();
    rig.file("talk.sh", PROGRAM);
    rig
}

fn session(rig: &Rig, options: &[&str]) -> Said {
    let program = ["--", "sh", "talk.sh"];
    rig.run(["session"].iter().chain(options).chain(&program))
}

#[test]
fn prompts_of_options_are_answered_in_order_by_one_program() {
    let rig = rig();
    let said = session(&rig, &["-p", "first", "-p", "second", "-p", "third"]);
    said.expect(0).says("3 turns, 3 completed").says("0 processes left");
    assert_eq!(said.out, "answer 1\nanswer 2\nanswer 3\n");
    let listed = rig.run(["sessions"]);
    listed.expect(0).says("ended").says("3 turns (3 completed, closed)");
    let turns = rig.run(["sessions", "latest"]);
    turns.expect(0).says("1  completed in").says("first: answer 1").says("third: answer 3");
    rig.run(["sessions", "none"]).expect(4);
    let prune = ["runs", "prune", "--older-than", "0s"];
    let dry = rig.run(prune.into_iter().chain(["--dry-run", "--json"])).expect(0).json();
    assert_eq!(dry["sessions"].as_array().map(Vec::len), Some(1), "{dry}");
    rig.run(["sessions", "latest"]).expect(0);
    rig.run(prune).expect(0).says("1 session forgotten");
    rig.run(["sessions", "latest"]).expect(4);
    rig.wait_for_nobody();
}

#[test]
fn a_failed_turn_is_in_the_exit_code_and_a_crash_is_replaced() {
    let rig = rig();
    let said = session(&rig, &["-p", "fail", "-p", "one", "-p", "crash", "-p", "two"]);
    said.expect(1).says("no luck").says("exit code 7").says("it breaks").says("1 worker replaced");
    // The next one knows what was, and counts anew.
    assert_eq!(said.out, "answer 1\nanswer 1yes\n");
    let whole = rig.run(["sessions", "latest", "--json"]).expect(0).json();
    assert_eq!((&whole["schema"], &whole["restarts"]), (&"delegate.session/1".into(), &1.into()));
    let statuses: Vec<_> =
        whole["turns"].as_array().unwrap().iter().map(|it| &it["status"]).collect();
    assert_eq!(statuses, ["failed", "completed", "failed", "completed"]);
    let gave_up = session(&rig, &["--max-restarts", "0", "-p", "crash", "-p", "never"]);
    gave_up.expect(1).says("gave up").says("the last one by: ").says("it breaks");
}

/// A prompt that is in line when the session gives up is refused, one that comes later is not taken; which it is, is a matter
/// of moments.
#[test]
fn no_prompt_is_passed_over_in_silence_when_a_session_gives_up() {
    let rig = rig();
    let said = session(&rig, &["--max-restarts", "0", "-p", "crash", "-p", "a", "-p", "b"]);
    said.expect(1).says("the last one by: ");
    assert_eq!(said.out, "");
    let told = |text: &str| said.err.lines().filter(|line| line.contains(text)).count();
    let not_asked = told("2 prompts were not asked") * 2 + told("1 prompt was not asked");
    assert_eq!(not_asked + told("turn 2 ") + told("turn 3 "), 2, "{}", said.err);
}

#[test]
fn json_is_one_object_and_jsonl_a_line_for_each_event_and_outcome() {
    let rig = rig();
    let whole = session(&rig, &["--json", "-p", "first"]).expect(0).json();
    assert_eq!((&whole["status"], &whole["completed"]), (&"ended".into(), &1.into()));
    assert_eq!(whole["turns"][0]["outcome"]["answer"], "answer 1");
    let said = session(&rig, &["--jsonl", "-p", "first"]);
    let lines: Vec<Value> =
        said.expect(0).out.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines[0]["schema"], "delegate.session/1");
    assert!(lines.iter().any(|line| line["event"] == "subagent.turn" && line["turn"] == 1));
    let [.., outcome, end] = &lines[..] else { panic!("{lines:?}") };
    assert_eq!(
        (&outcome["outcome"]["answer"], &end["end"]["why"]),
        (&"answer 1".into(), &"closed".into())
    );
}

#[test]
fn what_cannot_be_started_says_what_to_do() {
    let rig = rig();
    rig.run(["session", "-p", "x"]).expect(2).says("delegate session -- PROGRAM");
    let none = rig.run(["session", "--agent", "none", "-p", "x"]);
    none.expect(2).says("there is no agent `none`").says("nothing was started");
    rig.run(["session", "--idle", "1", "--", "true"]).expect(2).says("at least 1s");
    let gone = rig.run(["session", "--max-restarts", "1", "-p", "x", "--", "/no/such/program"]);
    gone.expect(1).says("gave up");
    assert_eq!(
        rig.run(["sessions", "--json"]).expect(0).json()["sessions"].as_array().unwrap().len(),
        1
    );
}

/// Lines of standard input as they come; Ctrl-C stops the turn, and between two turns the session.
#[test]
fn a_conversation_over_standard_input_is_stopped_turn_by_turn() {
    let rig = rig();
    let mut command = rig.command(["session", "--", "sh", "talk.sh"]);
    let mut process = command.stdin(Stdio::piped()).spawn().unwrap();
    let (mut stdin, stdout) = (process.stdin.take().unwrap(), process.stdout.take().unwrap());
    let stderr = BufReader::new(process.stderr.take().unwrap());
    let (mut told, mut answers) = (stderr.lines(), BufReader::new(stdout).lines());
    let mut hears = |part: &str| {
        told.by_ref().map(Result::unwrap).find(|line| line.contains(part)).expect(part)
    };
    let interrupt = |process: &std::process::Child| {
        rustix::process::kill_process(rustix::process::Pid::from_child(process), Signal::INT)
            .unwrap();
    };
    hears("session ");
    writeln!(stdin, "hello\n").unwrap();
    assert_eq!(answers.next().unwrap().unwrap(), "answer 1");
    hears("turn 1 completed");
    writeln!(stdin, "wait").unwrap();
    // It is known to run when it is on record as running.
    crate::support::wait_for("the turn", || {
        let sessions = rig.run(["sessions", "latest", "--json"]).expect(0).json();
        (sessions["turns"][1]["status"] == "running").then_some(())
    });
    interrupt(&process);
    hears("turn 2 interrupted");
    assert_eq!(answers.next().unwrap().unwrap(), "up", "what it had said");
    writeln!(stdin, "again").unwrap();
    assert_eq!(answers.next().unwrap().unwrap(), "answer 2");
    hears("turn 3 completed");
    interrupt(&process);
    hears("3 turns, 2 completed");
    assert_eq!(process.wait().unwrap().code(), Some(130));
    rig.wait_for_nobody();
}

/// What the program says of another turn is the answer to no prompt; and a line that is no text costs no other one.
#[test]
fn no_prompt_has_the_answer_of_another() {
    let rig = rig();
    let said = session(&rig, &["-p", "first", "-p", "late", "-p", "third"]);
    assert_eq!(said.expect(0).out, "answer 1\nits own\nanswer 2\n");
    let mut command = rig.command(["session", "--", "sh", "talk.sh"]);
    let mut process = command.stdin(Stdio::piped()).spawn().unwrap();
    let mut stdin = process.stdin.take().unwrap();
    stdin.write_all(b"first\nbad \xff\nlast\n").unwrap();
    drop(stdin);
    let said = process.wait_with_output().unwrap();
    let told = String::from_utf8_lossy(&said.stderr);
    assert!(told.contains("line 2 of standard input is not UTF-8"), "{told}");
    assert_eq!(String::from_utf8_lossy(&said.stdout), "answer 1\nanswer 2\n", "{told}");
    assert_eq!(said.status.code(), Some(1), "{told}");
    rig.wait_for_nobody();
}

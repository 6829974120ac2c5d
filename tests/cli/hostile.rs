//! Text of children, goals and file names that would drive a terminal if it got there.

use std::fs;

use crate::rig::{Rig, Said};
use crate::terminal::Terminal;

/// Clears the screen, sets a title, rings, turns the direction of text, and one of the other range.
const EVIL: &str = "\x1b[2J\x1b]0;owned\x07\u{202e}\u{9b}31m\r";

/// Asserts that nothing of it is left as it was.
#[track_caller]
fn harmless(said: &Said) {
    for text in [&said.out, &said.err] {
        let bad = |c: char| (c.is_control() && c != '\n') || c == '\u{202e}';
        assert!(!text.contains(bad), "{text:?}");
    }
}

fn evil_batch(rig: &Rig) {
    let script = "printf '%s\\n' \"$1\"; printf '%s\\n' \"$1\" >&2; printf '\\377\\n'; exit 3";
    let task = serde_json::json!({
        "goal": format!("goal {EVIL}"), "params": {"argv": ["sh", "-c", script, "sh", EVIL]},
    });
    let missing = serde_json::json!({"goal": "missing", "params": {"argv": [format!("no{EVIL}")]}});
    // YAML takes the controls of the second range only escaped.
    let text = serde_json::json!({ "tasks": [task, missing] }).to_string();
    rig.file("b.yaml", text.replace('\u{9b}', "\\u009b"));
}

#[test]
fn a_pipe_shows_it_escaped_everywhere() {
    let rig = Rig::new();
    evil_batch(&rig);
    for args in [
        &["run", "b.yaml"][..],
        &["run", "b.yaml", "--explain", "--dry-run"],
        &["run", "b.yaml", "--json"],
        &["run", "b.yaml", "--jsonl"],
        &["runs"],
        &["show", "latest"],
        &["show", "latest", "--json"],
        &["logs", "latest"],
    ] {
        harmless(&rig.run(args));
    }
    assert_eq!(rig.runs().len(), 3, "the batch is not the fault");
    let said = rig.run(["logs", "latest", "0"]);
    said.expect(0).says("\\x1b[2J").says("\\xff");
}

#[test]
fn a_terminal_gets_nothing_of_it_either() {
    let rig = Rig::new();
    evil_batch(&rig);
    for args in [&["run", "b.yaml"][..], &["logs", "latest", "0", "--stdout"], &["show", "latest"]]
    {
        let screen = Terminal::start(&rig, args).end().screen;
        assert!(screen.contains("\\x1b[2J"), "{args:?}: it is shown: {screen:?}");
        for part in ["\x1b[2J", "\x1b]", "\x07", "\u{202e}", "\u{9b}"] {
            assert!(!screen.contains(part), "{args:?} {part:?}: {screen:?}");
        }
    }
}

#[test]
fn names_of_files_are_escaped_too() {
    let rig = Rig::new();
    let name = "b\x1b[2J.yaml";
    harmless(&rig.run(["run", name]));
    rig.file(name, "tasks: [{gaol: x}]\n");
    let said = rig.run(["run", name]);
    harmless(said.expect(2));
    rig.batch(name, &["true"]);
    harmless(rig.run(["run", name]).expect(0));
    harmless(rig.run(["runs"]).expect(0));
    harmless(&rig.run(["run", name, "--config", "c\x1b[2J.yaml"]));
    harmless(&rig.run(["show", "\x1b[2J"]));
    harmless(&rig.run(["logs", "latest", "\x1b[2J"]));
    harmless(&rig.run(["trust", "\x1b[2J"]));
    harmless(&rig.run(["\x1b[2J"]));
    harmless(&rig.run(["exec", "\x1b[2J"]));
    let state = rig.path("st\x1b[2J");
    let state = state.to_str().unwrap();
    harmless(&rig.run(["run", name, "--state-dir", state]));
    fs::write(rig.path("state\x1b[2Jfile"), "").unwrap();
    harmless(&rig.run([
        "run",
        name,
        "--state-dir",
        rig.path("state\x1b[2Jfile").to_str().unwrap(),
    ]));
}

#[test]
fn output_that_is_no_utf8_becomes_text_and_is_kept_as_it_was() {
    let rig = Rig::new();
    rig.batch("b.yaml", &["printf 'caf\\351 \\377\\376'"]);
    let report = rig.run(["run", "b.yaml", "--json"]).expect(0).json();
    assert_eq!(report["results"][0]["summary"], "caf\u{fffd} \u{fffd}\u{fffd}");
    let raw = rig.command(["logs", "-", "0", "--stdout"]).output().unwrap();
    assert_eq!(raw.stdout, b"caf\xe9 \xff\xfe");
}

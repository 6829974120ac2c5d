//! The families and miniatures of `examples/families`, each with what must hold: nothing is left under `delegate
//! own` and in spawn mode, something is left without us where that is known, and nobody else is touched. What
//! cannot be run here is said on stderr, past the capture of the test harness.
#![expect(clippy::disallowed_methods, reason = "runs the program that measures")]

use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Output};
use std::sync::{Mutex, PoisonError};

use serde_json::Value;

/// One run at a time: each keeps the machine busy.
static TURN: Mutex<()> = Mutex::new(());

/// A program of `examples/`, as cargo has built it for this run.
fn families() -> Command {
    let own = std::env::current_exe().expect("this program");
    let target = own.ancestors().nth(2).expect("target directory");
    let path: PathBuf = target.join("examples/families");
    assert!(path.exists(), "families is not built: cargo build --workspace --examples");
    Command::new(path)
}

/// Runs it, says what is skipped, and gives a value for each case; `None` where nothing can be run.
fn run(what: &str, command: &mut Command) -> Option<Vec<Value>> {
    let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let output = command.arg("--jsonl").output().expect("families");
    drop(turn);
    let Output { status, stdout, stderr } = output;
    let (said, error) = (String::from_utf8_lossy(&stdout), String::from_utf8_lossy(&stderr));
    if error.contains("no pid namespace") || error.contains(" can be had here ") {
        loudly(&format!("{what} SKIPPED: {}", error.trim()));
        return None;
    }
    assert!(status.code().is_some_and(|code| code < 2), "{status}: {error}");
    let lines = said.lines().map(|line| serde_json::from_str(line).expect("a JSON object"));
    let (skipped, cases): (Vec<Value>, Vec<Value>) =
        lines.partition(|line: &Value| line.get("skipped").is_some());
    for one in skipped {
        loudly(&format!("{what} SKIPPED {}: {}", text(&one["row"]), text(&one["skipped"])));
    }
    Some(cases)
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

/// Past the capture: a skip that nobody sees is a test that nobody misses.
fn loudly(what: &str) {
    writeln!(std::io::stderr(), "!! {what}").expect("stderr");
}

/// Every case is as it must be; some were run.
fn assert_faultless(cases: &[Value]) {
    let faulty: Vec<String> = cases
        .iter()
        .filter(|case| case["faults"].as_array().is_none_or(|faults| !faults.is_empty()))
        .map(Value::to_string)
        .collect();
    assert!(faulty.is_empty(), "\n{}\n", faulty.join("\n"));
}

fn left(case: &Value) -> u64 {
    case["seen"]["left"].as_u64().expect("a number")
}

fn of<'a>(cases: &'a [Value], mode: &'a str) -> impl Iterator<Item = &'a Value> {
    cases.iter().filter(move |case| case["mode"] == mode)
}

#[test]
fn families_end_with_their_owner() {
    let Some(cases) = run("families", &mut families()) else { return };
    assert_faultless(&cases);
    // What can be run without any program of others: seven families, each end, each mode.
    assert!(cases.len() >= 7 * 2 * 3, "only {} cases", cases.len());
    let before: u64 = of(&cases, "before").map(left).sum();
    let with: u64 = of(&cases, "own").chain(of(&cases, "spawn")).map(left).sum();
    assert!(before >= 28 && with == 0, "{before} left without us, {with} with us");
}

#[test]
fn miniatures_end_as_expected() {
    let Some(cases) = run("miniatures", families().arg("--miniatures")) else { return };
    assert_faultless(&cases);
    assert!(cases.len() >= 15 * 3, "only {} cases", cases.len());
}

/// Both again where a cgroup holds the trees.
#[test]
fn families_and_miniatures_end_on_the_cgroup_tier() {
    end_on("cgroup");
}

/// And where each tree has a pid namespace.
#[test]
fn families_and_miniatures_end_on_the_pid_namespace_tier() {
    end_on("pid-namespace");
}

fn end_on(tier: &str) {
    for what in [&[][..], &["--miniatures"]] {
        let mut command = families();
        command.args(what).args(["--tier", tier]);
        let Some(cases) = run(&format!("{tier} tier"), &mut command) else { return };
        assert_faultless(&cases);
        assert!(cases.len() >= 42, "only {} cases", cases.len());
    }
}

/// Negative control: with the mechanism off the same harness sees the daemon that escapes. The parent of a
/// daemon is then PID 1, and not a guard.
#[test]
fn without_subreapers_the_harness_sees_who_escapes() {
    if !cfg!(debug_assertions) {
        return loudly("families SKIPPED: nothing can be switched off in a release build");
    }
    let mut command = families();
    command.args(["screen driver", "M05"]).env("OWNERSHIP_TEST_OFF", "subreaper");
    command.env("FAMILIES_PATIENCE", "5");
    let Some(cases) = run("families", &mut command) else { return };
    for mode in ["own", "spawn"] {
        let left: Vec<_> = of(&cases, mode).map(left).collect();
        assert!(!left.is_empty() && left.iter().all(|left| *left == 1), "{mode}: {left:?}");
    }
    assert!(
        of(&cases, "own").all(|case| case["faults"].as_array().is_some_and(|all| !all.is_empty()))
    );
}

/// Negative control: whoever hits a bystander is noticed.
#[test]
fn a_bystander_that_is_hit_is_noticed() {
    for (victim, seen) in [("stranger", "stranger"), ("control", "control")] {
        let mut command = families();
        let Some(cases) = run("families", command.arg("M02").env("FAMILIES_HIT", victim)) else {
            return;
        };
        assert_eq!(cases.len(), 3);
        assert!(cases.iter().all(|case| case["seen"][seen] == false), "{cases:?}");
        let faults = |case: &Value| case["faults"].as_array().map_or(0, Vec::len);
        assert!(cases.iter().all(|case| faults(case) > 0), "{cases:?}");
    }
}

/// A short form of `families --storms`: few rounds of each kind. Left-over counts are in what it prints.
#[test]
fn storms_end_with_their_owner() {
    let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let output = families().args(["--storms", "3"]).output().expect("families");
    drop(turn);
    let (said, error) =
        (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    if error.contains("no pid namespace") {
        return loudly(&format!("storms SKIPPED: {}", error.trim()));
    }
    print!("{said}");
    assert!(output.status.success(), "{said}{error}");
}

#[test]
fn nothing_runs_outside_a_namespace() {
    let dir = tempfile::tempdir().expect("dir");
    let mut command = families();
    command.args(["@inside", "M02", "kill", "before", "subreaper"]).arg(dir.path());
    let output = command.output().expect("families");
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("only as PID 1"));
    let mut command = families();
    command.args(["@storm", "hop 2 ms", "before", "1"]).arg(dir.path());
    assert_eq!(command.output().expect("families").status.code(), Some(2));
    assert_eq!(std::fs::read_dir(dir.path()).expect("dir").count(), 0, "nothing was started");
}

#[test]
fn what_is_not_understood_is_said() {
    for (words, part) in [(["M99", "redis"], "no row \"M99\""), (["--tier", "none"], "no tier")] {
        let output = families().args(words).output().expect("families");
        assert_eq!(output.status.code(), Some(2));
        assert!(String::from_utf8_lossy(&output.stderr).contains(part), "{output:?}");
    }
}

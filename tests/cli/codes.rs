//! Exit codes that no other topic shows, and stores that cannot keep what they should.

use std::fs;
use std::process::{Command, Stdio};

use crate::rig::{DELEGATE, Rig, Said};

#[test]
fn one_when_some_task_did_not_complete_and_zero_when_all_did() {
    let rig = Rig::new();
    rig.batch("bad.yaml", &["true", "false"]);
    rig.batch("good.yaml", &["true", "true"]);
    rig.run(["run", "bad.yaml"]).expect(1).says("0 processes left");
    rig.run(["run", "good.yaml"]).expect(0).says("0 processes left");
}

#[test]
fn four_for_what_is_not_there() {
    let rig = Rig::new();
    rig.run(["show", "latest"]).expect(4);
    rig.run(["runs"]).expect(0).says("no runs yet");
    rig.batch("b.yaml", &["true"]);
    rig.run(["run", "b.yaml"]).expect(0);
    for args in [
        &["show", "zzzzzz"][..],
        &["show", "no-such-id"],
        &["show", ""],
        &["logs", "zzzzzz"],
        &["logs", "latest", "7"],
    ] {
        let said = rig.run(args);
        said.expect(4);
        assert!(said.out.is_empty() && said.err.starts_with("error: "), "{args:?}: {said:?}");
    }
    let error = rig.run(["show", "zzzzzz", "--json"]).expect(4).json();
    assert_eq!(error["error"]["code"], "not_found");
}

/// The run goes on, one warning says what is not kept, and the promise is seen to be broken.
#[track_caller]
fn not_kept(said: &Said) {
    said.expect(3).says("kept me").says("1 completed in ").says("0 processes left");
    assert_eq!(said.err.matches("warning:").count(), 1, "once, not twice:\n{}", said.err);
    assert!(said.err.contains("kept") && said.err.contains("memory"), "{}", said.err);
}

#[test]
fn three_when_the_state_directory_is_a_file() {
    let rig = Rig::new();
    rig.batch("b.yaml", &["echo kept me"]);
    rig.file("state", "I was here first");
    not_kept(&rig.run(["run", "b.yaml"]));
    let said = rig.run(["run", "b.yaml", "--json"]);
    let report = said.expect(3).json();
    assert_eq!(report["results"][0]["summary"], "kept me");
    assert_eq!(report["durable"], false);
    assert_eq!(fs::read_to_string(rig.path("state")).unwrap(), "I was here first");
}

/// Runs the command in a mount namespace, after a script that prepares `state`. `None`, loudly, where
/// this system does not allow that.
fn in_namespace(rig: &Rig, prepare: &str, args: &str) -> Option<Said> {
    let unshare = ["--user", "--map-root-user", "--mount"];
    let probe = Command::new("unshare").args(unshare).arg("true").stderr(Stdio::null()).status();
    if !probe.is_ok_and(|status| status.success()) {
        eprintln!("SKIPPED: this system gives no mount namespace; a full disk was not tried");
        return None;
    }
    fs::create_dir_all(rig.path("state")).unwrap();
    let mut command = rig.program("unshare");
    command.args(unshare).args(["sh", "-ec", &format!("{prepare}\nexec '{DELEGATE}' {args}")]);
    Some(Said::of(command.output().unwrap()))
}

#[test]
fn three_when_the_state_directory_cannot_be_written() {
    let rig = Rig::new();
    rig.batch("b.yaml", &["echo kept me"]);
    let prepare = "mount -t tmpfs -o size=64k none state; mount -o remount,ro state";
    let Some(said) = in_namespace(&rig, prepare, "run b.yaml") else { return };
    not_kept(&said);
}

#[test]
fn three_when_the_disk_is_full() {
    let rig = Rig::new();
    rig.batch("b.yaml", &["echo kept me"]);
    let prepare =
        "mount -t tmpfs -o size=64k none state; cat /dev/zero >state/fill 2>/dev/null || true";
    let Some(said) = in_namespace(&rig, prepare, "run b.yaml") else { return };
    not_kept(&said);
}

#[test]
fn three_when_the_disk_fills_up_while_a_run_goes_on() {
    let rig = Rig::new();
    let fill = "cat /dev/zero >state/fill 2>/dev/null; echo kept me";
    let task = |goal: &str, script: &str| serde_json::json!({"goal": goal, "params": {"argv": ["sh", "-c", script]}});
    let long = "head -c 300000 /dev/zero | tr '\\0' x";
    let tasks = [task("fill", fill), task("long", long)];
    rig.file("b.yaml", serde_json::json!({ "tasks": tasks }).to_string());
    let prepare = "mount -t tmpfs -o size=1m none state";
    let Some(said) = in_namespace(&rig, prepare, "run b.yaml -j 1 --json") else { return };
    let report = said.expect(3).json();
    assert_eq!(report["durable"], false, "{}", said.err);
    assert_eq!(report["results"][0]["summary"], "kept me");
    assert_eq!(report["results"][1]["summary"].as_str().unwrap().len(), 300_000);
    // Logs may be the first that the disk refuses; then outcomes are worth a word of their own.
    for what in ["kept in memory only", "not all output and events"] {
        assert!(said.err.matches(what).count() <= 1, "once, not twice:\n{}", said.err);
    }
    said.says("kept in memory only").says("0 processes left");
}

/// The same of a run that nobody follows: who asks later is told what happened, and not that its owner died.
#[test]
fn a_background_run_whose_disk_filled_up_says_so_afterwards() {
    let rig = Rig::new();
    let fill = "until test -e go; do sleep 0.02; done; cat /dev/zero >state/fill 2>/dev/null; echo kept me";
    let task = |goal: &str, script: &str| serde_json::json!({"goal": goal, "params": {"argv": ["sh", "-c", script]}});
    let long = "head -c 300000 /dev/zero | tr '\\0' x";
    let tasks = [task("fill the disk", fill), task("say much", long)];
    rig.file("b.yaml", serde_json::json!({ "tasks": tasks }).to_string());
    let all = format!(
        "mount -t tmpfs -o size=1m none state
         run=$('{DELEGATE}' run b.yaml -j 1 --background)
         touch go
         '{DELEGATE}' wait $run && echo waited 0 || echo waited $?
         for look in $(seq 100); do '{DELEGATE}' runs --json | grep -q '\"running\"' || break; sleep 0.1; done
         '{DELEGATE}' wait $run && echo again 0 || echo again $?
         '{DELEGATE}' show $run"
    );
    let Some(said) = in_namespace(&rig, &all, "runs") else { return };
    said.expect(0).says("waited 3").says("again 3");
    assert_eq!(said.err.matches("not every outcome could be kept on disk").count(), 2, "{said:?}");
    said.says("without an outcome: it could not be kept on disk");
    assert!(!said.out.contains("parent died"), "{said:?}");
}

#[test]
fn three_when_the_state_directory_is_deleted_while_a_run_goes_on() {
    let gone = |rig: &Rig| rig.path("state/runs.sqlite").to_str().unwrap().to_owned();
    for scripts in [&["rm -rf state; echo kept me"][..], &["echo first", "rm -rf state"]] {
        let rig = Rig::new();
        rig.batch("b.yaml", scripts);
        let said = rig.run(["run", "b.yaml", "-j", "1"]);
        said.expect(3).says("0 processes left").says(&gone(&rig)).says("was deleted or replaced");
        said.says("not all outcomes are stored").says(if scripts.len() > 1 {
            "\"first\""
        } else {
            "kept me"
        });
        let once = said.err.matches("warning: outcomes").count();
        assert_eq!(once, 1, "once, not twice:\n{}", said.err);
        assert!(!said.out.contains("delegate show"), "{}", said.out);
    }
    let rig = Rig::new();
    rig.batch("b.yaml", &["rm -rf state; echo kept me"]);
    let said = rig.run(["run", "b.yaml", "--json"]);
    let report = said.expect(3).says("was deleted or replaced").json();
    assert_eq!(report["results"][0]["summary"], "kept me");
    assert_eq!(report["durable"], false);
}

/// Whoever reads standard output is gone, or there never was one: what is left is said all the same.
#[test]
fn a_closed_standard_output_does_not_cost_the_last_line() {
    let rig = Rig::new();
    rig.batch("b.yaml", &["until test -e gone; do sleep 0.01; done; echo one"]);
    let delegate = |before: &str, args: &str, after: &str| {
        let mut shell = rig.program("sh");
        shell.args(["-c", &format!("{before}; '{DELEGATE}' run b.yaml {args} {after}")]);
        Said::of(shell.output().unwrap())
    };
    let reader_leaves = "| { exec <&-; touch gone; }";
    for args in ["", "--quiet", "--json", "--json --quiet", "--jsonl"] {
        for (before, after) in [("touch gone", ">&-"), ("rm -f gone", reader_leaves)] {
            let said = delegate(before, args, after);
            said.expect(0);
            assert_eq!(said.err.matches("0 processes left").count(), 1, "{args} {after} {said:?}");
        }
    }
    // Nobody misses what was sent away on purpose.
    assert!(!delegate("touch gone", "", ">/dev/null").err.contains("0 processes left"));
}

#[test]
fn three_when_the_results_cannot_be_printed() {
    let rig = Rig::new();
    rig.batch("b.yaml", &["echo lost"]);
    let mut command = rig.command(["run", "b.yaml"]);
    command.stdout(fs::File::options().write(true).open("/dev/full").unwrap());
    let said = Said::of(command.output().unwrap());
    said.expect(3).says("results could not be written to standard output");
    assert!(said.err.contains("0 processes left"), "{}", said.err);
    // The record is whole all the same.
    rig.run(["show", "latest"]).expect(0).says("lost");
}

#[test]
fn json_that_cannot_be_written_is_said_on_standard_error() {
    let rig = Rig::new();
    rig.batch("b.yaml", &["echo one"]);
    let mut command = rig.command(["run", "b.yaml", "--json"]);
    command.stdout(fs::File::options().write(true).open("/dev/full").unwrap());
    let said = Said::of(command.output().unwrap());
    said.expect(3);
    assert!(said.err.contains("results could not be written to standard output"), "{}", said.err);
}

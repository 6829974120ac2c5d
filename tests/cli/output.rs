//! What `delegate run` prints, where, and in which form.

use std::fs;

use serde_json::Value;

use crate::rig::{Rig, Said};

/// The last line of a run that left nothing.
const NOTHING_LEFT: &str = "0 processes left";

fn checkout(rig: &Rig, args: &[&str]) -> Said {
    let mut command = rig.command(["run", "examples/quickstart.yaml"].iter().chain(args));
    Said::of(command.current_dir(env!("CARGO_MANIFEST_DIR")).output().unwrap())
}

#[test]
fn the_quickstart_runs_from_the_repository_root() {
    let rig = Rig::new();
    let said = checkout(&rig, &[]);
    said.expect(0).is_plain();
    let rows: Vec<_> = said.out.lines().collect();
    assert_eq!(rows.len(), 4, "{}", said.out);
    assert!(rows[0].contains(" tests in ") && rows[1].contains(" lines\""), "{}", said.out);
    assert!(rows[3].starts_with("3 completed in ") && rows[3].contains(NOTHING_LEFT));
    // Progress is no result: it has a stream of its own.
    assert!(said.err.starts_with("run "), "{}", said.err);
    assert_eq!(said.err.matches(" running, process ").count(), 3, "{}", said.err);
    assert_eq!(said.err.matches(" completed in ").count(), 3, "{}", said.err);
    assert!(!said.out.contains("running"));
}

#[test]
fn the_hint_of_the_ending_is_a_command_that_works() {
    let rig = Rig::new();
    rig.batch("ok.yaml", &["echo fine"]);
    rig.batch("bad.yaml", &["echo fine", "exit 3"]);
    for (file, code, verb) in [("ok.yaml", 0, "show"), ("bad.yaml", 1, "logs")] {
        let said = rig.run(["run", file]);
        let line = said.expect(code).out.lines().last().unwrap().to_owned();
        let hint = line.rsplit(" · ").next().unwrap();
        let words: Vec<_> = hint.split(' ').collect();
        assert_eq!(words[..2], ["delegate", verb], "{hint}");
        rig.run(&words[1..]).expect(0);
    }
}

#[test]
fn an_ending_whose_run_was_not_stored_names_no_command_to_look_at_it() {
    let rig = Rig::new();
    rig.batch("b.yaml", &["echo fine"]);
    fs::write(rig.path("file"), "").unwrap();
    let said = rig.run(["run", "b.yaml", "--state-dir", "file"]);
    let line = said.expect(3).out.lines().last().unwrap().to_owned();
    assert!(line.contains(NOTHING_LEFT) && line.ends_with("not all outcomes are stored"), "{line}");
}

#[test]
fn an_answer_of_several_lines_is_shown_by_its_last() {
    let rig = Rig::new();
    rig.batch("b.yaml", &["echo 1 of 2 read; echo; echo 'most used: self'; echo"]);
    let said = rig.run(["run", "b.yaml"]);
    said.expect(0);
    let shown = "\"… most used: self\"";
    assert!(said.out.contains(shown) && said.err.contains(shown), "{}{}", said.out, said.err);
}

#[test]
fn quiet_prints_the_ending_only() {
    let rig = Rig::new();
    rig.batch("b.yaml", &["echo one", "echo two"]);
    let said = rig.run(["run", "b.yaml", "--quiet"]);
    said.expect(0);
    assert_eq!((said.out.lines().count(), said.err.as_str()), (1, ""));
    assert!(said.out.starts_with("2 completed in ") && said.out.contains(NOTHING_LEFT));
}

#[test]
fn json_is_one_object_with_every_field_and_type() {
    let rig = Rig::new();
    let scripts = ["printf 'a b'", "echo no >&2; exit 3", "sleep 60"];
    rig.batch("b.yaml", &scripts);
    for isolation in ["process", "thread"] {
        let said =
            rig.run(["run", "b.yaml", "--json", "--timeout", "1s", "--isolation", isolation]);
        let report = said.expect(1).json();
        assert_eq!(report["schema"], "delegate.report/1");
        assert_eq!(report["run_id"].as_str().unwrap().len(), 26);
        assert_eq!(report["status"], "failed");
        assert_eq!(report["left_running"], Value::Array(vec![]));
        assert!(report["total_duration_seconds"].as_f64().unwrap() >= 1.0);
        let results = report["results"].as_array().unwrap();
        let statuses: Vec<_> = results.iter().map(|entry| entry["status"].as_str()).collect();
        assert_eq!(statuses, [Some("completed"), Some("failed"), Some("timeout")]);
        for (index, entry) in results.iter().enumerate() {
            check_entry(index, entry, isolation);
        }
        assert_eq!(results[0]["summary"], "a b");
        assert_eq!(results[1]["summary"], Value::Null);
        assert!(results[1]["error"].as_str().unwrap().contains("exit code 3"));
        assert_eq!(results[2]["timeout_seconds"], 1.0);
        // The ending is for people, and so on the other stream.
        assert!(said.err.contains(NOTHING_LEFT), "{}", said.err);
    }
}

fn check_entry(index: usize, entry: &Value, isolation: &str) {
    assert_eq!(entry["task_index"], index);
    for text in ["exit_reason", "isolation", "launcher", "logs"] {
        assert!(entry[text].is_string(), "{text}: {entry}");
    }
    assert_eq!(entry["isolation"], isolation);
    assert_eq!(entry["launcher"], if isolation == "process" { "exec" } else { "thread" });
    assert_eq!(entry["pid"].is_u64(), isolation == "process", "{entry}");
    assert_eq!(entry["pid"].is_null(), isolation == "thread", "{entry}");
    assert!(entry["duration_seconds"].is_f64() && entry["api_calls"].is_u64(), "{entry}");
    assert!(entry["truncated"].is_boolean() && entry["tool_trace"].is_array(), "{entry}");
    assert!(entry["tokens"]["input"].is_u64() && entry["tokens"]["output"].is_u64(), "{entry}");
    let logs = entry["logs"].as_str().unwrap();
    assert!(fs::metadata(logs).unwrap().is_dir() && logs.ends_with(&format!("/{index}")));
}

#[test]
fn a_batch_that_completes_says_so_in_its_json() {
    let rig = Rig::new();
    rig.batch("b.yaml", &["true"]);
    let said = rig.run(["run", "b.yaml", "--json", "--quiet"]);
    assert_eq!(said.expect(0).json()["status"], "completed");
    // Exit 0 without output completes, with an answer that is empty and not absent.
    assert_eq!(said.json()["results"][0]["summary"], "");
    assert_eq!(said.err, "");
}

#[test]
fn jsonl_is_a_head_then_events_then_the_report() {
    let rig = Rig::new();
    rig.batch("b.yaml", &["echo one; echo two", "exit 4"]);
    let said = rig.run(["run", "b.yaml", "--jsonl"]);
    said.expect(1);
    let lines: Vec<Value> =
        said.out.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let (first, last) = (&lines[0], &lines[lines.len() - 1]);
    assert_eq!(first["schema"], "delegate.events/1");
    assert_eq!(last["schema"], "delegate.report/1");
    assert_eq!(first["run_id"], last["run_id"]);
    for task in 0..2 {
        let events: Vec<_> = lines[1..lines.len() - 1]
            .iter()
            .filter(|line| line["task_index"] == task)
            .map(|line| line["event"].as_str().unwrap())
            .filter(|event| *event != "subagent.text")
            .collect();
        assert_eq!(events, ["subagent.spawn_requested", "subagent.start", "subagent.complete"]);
    }
    let text: String = lines
        .iter()
        .filter(|line| line["event"] == "subagent.text")
        .map(|line| line["text"].as_str().unwrap())
        .collect();
    assert_eq!(text, "one\ntwo\n");
}

#[test]
fn a_dry_run_starts_and_records_nothing() {
    let rig = Rig::new();
    rig.batch("b.yaml", &["touch ran; echo one", "touch ran"]);
    let said = rig.run(["run", "b.yaml", "--dry-run"]);
    said.expect(0).says("2 tasks, one process each").says("nothing was started (--dry-run)");
    assert!(said.out.contains("0 command  touch ran; echo one"), "{}", said.out);
    let plan = rig.run(["run", "b.yaml", "--dry-run", "--json"]).expect(0).json();
    assert_eq!(plan["schema"], "delegate.plan/1");
    assert_eq!(plan["tasks"][1]["goal"], "touch ran");
    assert!(!rig.path("ran").exists(), "a task ran");
    assert!(rig.runs().is_empty(), "a run was recorded");
    assert!(rig.processes().is_empty());
}

#[test]
fn explain_gives_each_decision_and_who_made_it() {
    let rig = Rig::new();
    rig.batch("b.yaml", &["echo one"]);
    rig.file("delegate.yaml", "delegation:\n  max_iterations: 7\n");
    let mut command = rig.command(["run", "b.yaml", "--explain", "-j", "3"]);
    command.env("DELEGATE_INTERRUPT_GRACE", "4s");
    let said = Said::of(command.output().unwrap());
    said.expect(0);
    for (what, is) in [
        ("isolation", "process ("),
        ("at once", "3"),
        ("worker", "this program, executed again"),
        ("interrupt grace", "4s"),
        ("max_concurrent_children", "set by flag --jobs"),
        ("interrupt_grace_seconds", "set by variable DELEGATE_INTERRUPT_GRACE"),
        ("max_iterations", "delegate.yaml:2"),
        ("configuration", "delegate.yaml"),
    ] {
        let found = said.err.lines().any(|line| line.starts_with(what) && line.contains(is));
        assert!(found, "{what} {is}\n{}", said.err);
    }
    assert_eq!(said.out.lines().count(), 2, "the results stay alone: {}", said.out);
}

#[test]
fn goals_of_the_command_line_go_to_an_agent() {
    let rig = Rig::new();
    let params = r#"{"argv": ["cat"]}"#;
    let said = rig.run(["run", "--agent", "command", "--params", params, "--json", "one", "two"]);
    let report = said.expect(0).json();
    assert_eq!(report["results"][0]["summary"], "one");
    assert_eq!(report["results"][1]["summary"], "two");
}

#[test]
fn a_batch_comes_from_standard_input_as_well() {
    let rig = Rig::new();
    rig.batch("b.yaml", &["echo from-stdin"]);
    let mut command = rig.command(["run", "-"]);
    command.stdin(fs::File::open(rig.path("b.yaml")).unwrap());
    Said::of(command.output().unwrap()).expect(0).says("from-stdin");
    assert_eq!(rig.runs()[0]["title"], "standard input");
}

#[test]
fn a_reader_that_has_enough_ends_nothing_but_the_printing() {
    let rig = Rig::new();
    rig.batch("b.yaml", &["yes | head -n 20000; touch ran"]);
    for form in ["--json", "--jsonl", "--quiet"] {
        let mut shell = rig.program("bash");
        shell.args(["-c", "\"$0\" run b.yaml $1 | head -c 1 >first; echo ${PIPESTATUS[0]}"]);
        shell.args([crate::rig::DELEGATE, form]);
        let said = Said::of(shell.output().unwrap());
        assert_eq!(said.expect(0).out, "0\n", "{form}: {}", said.err);
        assert!(!said.err.contains("panicked") && !said.err.contains("error"), "{}", said.err);
        assert!(rig.path("ran").exists());
    }
    for args in [&["runs"][..], &["logs", "latest"], &["show", "latest", "--json"], &["--help"]] {
        let mut shell = rig.program("bash");
        shell.args(["-c", "\"$0\" \"$@\" | true; echo ${PIPESTATUS[0]}", crate::rig::DELEGATE]);
        let said = Said::of(shell.args(args).output().unwrap());
        assert_eq!((said.out.as_str(), said.err.as_str()), ("0\n", ""), "{args:?}");
    }
}

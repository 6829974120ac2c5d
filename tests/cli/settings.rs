//! Where settings come from, and where tasks run because of them.

use std::fs;

use serde_json::Value;

use crate::rig::{Rig, Said};

fn isolations(report: &Value) -> Vec<&str> {
    let entries = report["results"].as_array().unwrap().iter();
    entries.map(|entry| entry["isolation"].as_str().unwrap()).collect()
}

fn with(rig: &Rig, args: &[&str], env: &[(&str, &str)]) -> Value {
    let mut command = rig.command(["run", "--json", "--quiet"].iter().chain(args));
    Said::of(command.envs(env.iter().copied()).output().unwrap()).expect(0).json()
}

#[test]
fn every_task_is_a_process_where_nothing_is_said() {
    let rig = Rig::new();
    rig.batch("one.yaml", &["echo $PPID"]);
    rig.batch("two.yaml", &["echo $PPID", "echo $PPID"]);
    assert_eq!(isolations(&with(&rig, &["one.yaml"], &[])), ["process"]);
    let report = with(&rig, &["two.yaml"], &[]);
    assert_eq!(isolations(&report), ["process", "process"]);
    assert_ne!(report["results"][0]["pid"], report["results"][1]["pid"]);
}

#[test]
fn what_a_file_says_counts_and_the_flag_wins() {
    let rig = Rig::new();
    rig.batch("one.yaml", &["true"]);
    rig.batch("two.yaml", &["true", "true"]);
    let run = |file: &str, args: &[&str]| {
        let report = with(&rig, &[&[file], args].concat(), &[]);
        isolations(&report)[0].to_owned()
    };
    for (says, one, two) in [
        ("false", "thread", "thread"),
        ("true", "thread", "process"),
        ("auto", "thread", "process"),
        ("null", "process", "process"),
    ] {
        rig.file("delegate.yaml", format!("delegation:\n  process_isolation: {says}\n"));
        assert_eq!([run("one.yaml", &[]), run("two.yaml", &[])], [one, two], "{says}");
        assert_eq!(run("one.yaml", &["--isolation", "process"]), "process", "{says}");
        assert_eq!(run("two.yaml", &["--isolation", "thread"]), "thread", "{says}");
        assert_eq!(run("one.yaml", &["--isolation", "auto"]), "thread", "{says}");
        assert_eq!(run("two.yaml", &["--isolation", "auto"]), "process", "{says}");
    }
}

/// The limit of the only task, as the plan has it.
fn limit(rig: &Rig, args: &[&str], env: &[(&str, &str)]) -> Value {
    with(rig, &[&["b.yaml", "--dry-run"], args].concat(), env)["tasks"][0]["timeout_seconds"]
        .clone()
}

#[test]
fn a_flag_beats_a_variable_beats_a_file_beats_the_default() {
    let rig = Rig::new();
    rig.batch("b.yaml", &["true"]);
    let ours = ("DELEGATE_CHILD_TIMEOUT", "30s");
    let theirs = ("DELEGATION_CHILD_TIMEOUT_SECONDS", "40");
    assert_eq!(limit(&rig, &[], &[]), Value::Null);
    rig.file("delegate.yaml", "delegation:\n  child_timeout: 50s\n");
    assert_eq!(limit(&rig, &[], &[]), 50.0);
    assert_eq!(limit(&rig, &[], &[theirs]), 40.0);
    assert_eq!(limit(&rig, &[], &[theirs, ours]), 30.0);
    assert_eq!(limit(&rig, &["--set", "child_timeout=20s"], &[theirs, ours]), 20.0);
    assert_eq!(limit(&rig, &["--timeout", "10s"], &[theirs, ours]), 10.0);
    assert_eq!(limit(&rig, &[], &[("DELEGATE_CHILD_TIMEOUT", "")]), 50.0);
}

#[test]
fn the_files_are_searched_as_documented_and_merged_per_key() {
    let rig = Rig::new();
    let nested = rig.path("repo/deep/down");
    fs::create_dir_all(&nested).unwrap();
    fs::create_dir_all(rig.path("repo/.git")).unwrap();
    rig.batch("repo/deep/down/b.yaml", &["true"]);
    rig.file("xdg/delegate/config.yaml", "delegation: {child_timeout: 60s, max_iterations: 1}\n");
    let explain = |args: &[&str], env: &[(&str, &str)]| {
        let mut command = rig.command(["run", "b.yaml", "--dry-run", "--json"].iter().chain(args));
        command.current_dir(&nested).env("XDG_CONFIG_HOME", rig.path("xdg"));
        Said::of(command.envs(env.iter().copied()).output().unwrap()).expect(0).json()
    };
    let plan = explain(&[], &[]);
    assert_eq!(plan["tasks"][0]["timeout_seconds"], 60.0);
    assert_eq!(plan["files"].as_array().unwrap().len(), 1);

    // Above the root of the repository nothing counts; in it, the nearest does.
    rig.file("delegate.yaml", "delegation: {child_timeout: 99s}\n");
    assert_eq!(explain(&[], &[])["tasks"][0]["timeout_seconds"], 60.0);
    rig.file("repo/delegate.yaml", "delegation: {child_timeout: 50s}\n");
    assert_eq!(explain(&[], &[])["tasks"][0]["timeout_seconds"], 50.0);
    rig.file("repo/deep/delegate.yaml", "delegation: {child_timeout: 40s}\n");
    let plan = explain(&[], &[]);
    assert_eq!(plan["tasks"][0]["timeout_seconds"], 40.0);
    assert_eq!(plan["files"].as_array().unwrap().len(), 2, "the user's own gives max_iterations");

    let other = rig.path(rig.file("other.yaml", "delegation: {child_timeout: 30s}\n"));
    let env = [("DELEGATE_CONFIG", other.to_str().unwrap())];
    assert_eq!(explain(&[], &env)["tasks"][0]["timeout_seconds"], 30.0);
    let flagged = rig.path(rig.file("flag.yaml", "delegation: {child_timeout: 20s}\n"));
    let flag = ["--config", flagged.to_str().unwrap()];
    assert_eq!(explain(&flag, &env)["tasks"][0]["timeout_seconds"], 20.0);
}

#[test]
fn a_named_configuration_file_must_exist_and_be_right() {
    let rig = Rig::new();
    rig.batch("b.yaml", &["touch ran"]);
    rig.run(["run", "b.yaml", "--config", "none.yaml"]).expect(2).says("none.yaml");
    rig.file("c.yaml", "delegation:\n  max_concurent_children: 4\n");
    let said = rig.run(["run", "b.yaml", "--config", "c.yaml"]);
    said.expect(2).says("c.yaml:2:3").says("did you mean `max_concurrent_children`?");
    rig.file("c.yaml", "delegation:\n  max_iterations: 4\n  max_iterations: 5\n");
    rig.run(["run", "b.yaml", "--config", "c.yaml"]).expect(2).says("c.yaml:3:3");
    rig.file("c.yaml", "delegation:\n  max_iterations: many\n");
    rig.run(["run", "b.yaml", "--config", "c.yaml"]).expect(2).says("c.yaml:2:19");
    assert!(!rig.path("ran").exists());
}

#[test]
fn no_more_children_run_at_once_than_asked_for() {
    let rig = Rig::new();
    // Each says how many are there when it comes.
    let script = "mkdir slots/$$; ls slots | wc -l; sleep 0.1; rmdir slots/$$";
    fs::create_dir(rig.path("slots")).unwrap();
    rig.batch("b.yaml", &[script; 6]);
    for (args, env, most) in [
        (&["-j", "2"][..], &[][..], 2),
        (&["-j", "1"], &[("DELEGATE_MAX_CONCURRENT_CHILDREN", "5")], 1),
        (&[], &[("DELEGATION_MAX_CONCURRENT_CHILDREN", "3")], 3),
    ] {
        let report = with(&rig, &[&["b.yaml"], args].concat(), env);
        let seen = report["results"].as_array().unwrap().iter();
        let seen = seen.map(|entry| entry["summary"].as_str().unwrap().trim().parse().unwrap());
        assert!(seen.max() <= Some(most), "{args:?} {env:?}: {report}");
    }
}

#[test]
fn the_limit_of_a_child_says_whose_it_was() {
    let rig = Rig::new();
    rig.file(
        "b.yaml",
        "tasks:\n  - goal: own\n    timeout: 1s\n    params: {argv: [sleep, '60']}\n  \
         - goal: general\n    params: {argv: [sleep, '60']}\n",
    );
    let mut command = rig.command(["run", "b.yaml", "--timeout", "1s", "--json"]);
    let report = Said::of(command.output().unwrap()).expect(1).json();
    let error = |task: usize| report["results"][task]["error"].as_str().unwrap().to_owned();
    assert!(error(0).contains("(b.yaml:3)"), "{}", error(0));
    assert!(!error(1).contains("b.yaml"), "the file did not set it: {}", error(1));
}

#[test]
fn a_variable_that_is_no_key_is_a_warning_that_names_the_nearest() {
    let rig = Rig::new();
    rig.batch("b.yaml", &["true"]);
    let mut command = rig.command(["run", "b.yaml"]);
    command.env("DELEGATE_MAX_ITERATION", "3");
    let said = Said::of(command.output().unwrap());
    said.expect(0).says("DELEGATE_MAX_ITERATIONS");
    assert_eq!(said.err.matches("warning:").count(), 1, "{}", said.err);
}

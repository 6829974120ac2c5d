//! A repository that is entered runs none of its code before somebody said so.

use crate::rig::{DELEGATE, Rig, Said};

/// A home with a `delegate.yaml` that names the worker, and a batch.
fn cloned() -> Rig {
    let rig = Rig::new();
    rig.batch("b.yaml", &["echo ran"]);
    // What it starts leaves a trace, and then is a worker like any other.
    let script = format!("#!/bin/sh\ntouch worker-ran\nexec '{DELEGATE}' \"$@\"\n");
    rig.file("worker.sh", script);
    rig.file(
        "delegate.yaml",
        "# settings\ndelegation:\n  worker:\n    command: [sh, ./worker.sh]\n",
    );
    rig
}

#[test]
fn an_untrusted_command_is_an_error_that_names_file_key_and_remedy() {
    let rig = cloned();
    for args in [&["run", "b.yaml"][..], &["run", "b.yaml", "--dry-run"]] {
        let said = rig.run(args);
        said.expect(2).says("delegate.yaml:4:5").says("worker.command").says("nothing was started");
        said.says("delegate trust ");
        assert!(!rig.path("worker-ran").exists());
    }
    let error = rig.run(["run", "b.yaml", "--json"]).expect(2).json();
    assert_eq!((&error["error"]["line"], &error["error"]["column"]), (&4.into(), &5.into()));
    assert!(rig.runs().is_empty() && rig.processes().is_empty());
}

#[test]
fn the_remedy_that_is_named_is_the_one_that_works() {
    let rig = cloned();
    let said = rig.run(["run", "b.yaml"]);
    let words = said.err.split("delegate trust ").nth(1).unwrap();
    let file = words.split_whitespace().next().unwrap().trim_matches(['`', '\'', '"', '.', ',']);
    rig.run(["trust", file]).expect(0).says("is trusted").says("worker.command");
    let said = rig.run(["run", "b.yaml"]);
    assert!(!said.err.contains("delegate trust"), "{}", said.err);
    assert!(rig.path("worker-ran").exists(), "the worker was not used: {}", said.err);
}

#[test]
fn a_change_withdraws_the_permission() {
    let rig = cloned();
    rig.run(["trust", "delegate.yaml"]).expect(0);
    rig.run(["run", "b.yaml", "--dry-run"]).expect(0);
    let text = std::fs::read_to_string(rig.path("delegate.yaml")).unwrap();
    rig.file("delegate.yaml", format!("{text}# one remark more\n"));
    rig.run(["run", "b.yaml"]).expect(2).says("delegate trust");
    assert!(!rig.path("worker-ran").exists());
    // Its old content is still what was trusted.
    rig.file("delegate.yaml", text);
    rig.run(["run", "b.yaml", "--dry-run"]).expect(0);
}

#[test]
fn a_file_that_somebody_named_is_trusted() {
    let rig = cloned();
    std::fs::rename(rig.path("delegate.yaml"), rig.path("mine.yaml")).unwrap();
    rig.run(["run", "b.yaml", "--config", "mine.yaml", "--dry-run"]).expect(0);
    let mut command = rig.command(["run", "b.yaml", "--dry-run"]);
    Said::of(command.env("DELEGATE_CONFIG", "mine.yaml").output().unwrap()).expect(0);
}

#[test]
fn a_search_result_without_commands_needs_no_trust() {
    let rig = Rig::new();
    rig.batch("b.yaml", &["echo ran"]);
    rig.file("delegate.yaml", "delegation:\n  max_concurrent_children: 2\n");
    rig.run(["run", "b.yaml"]).expect(0);
    rig.run(["trust", "delegate.yaml"]).expect(0).says("it sets no command, key or endpoint");
}

#[test]
fn only_a_configuration_can_be_trusted() {
    let rig = Rig::new();
    rig.file("b.yaml", "tasks: []\n");
    rig.run(["trust", "b.yaml"]).expect(2);
    rig.run(["trust", "none.yaml"]).expect(2).says("none.yaml");
}

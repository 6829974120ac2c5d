//! Long batches: the memory of the command grows by the task list and a small record per outcome.

use std::fmt::Write as _;
use std::fs;

use crate::rig::{Rig, Said};

/// Tasks of the long batch.
const MANY: usize = 3_000;

/// A batch of an agent that is cheap in a thread: a program that does not exist fails at once, and
/// answers of some length come from one that does.
fn generate(rig: &Rig, tasks: usize) {
    let mut text = String::from("defaults: {params: {argv: [/nowhere]}}\ntasks:\n");
    for task in 0..tasks {
        writeln!(text, "  - goal: \"task {task}\"").unwrap();
    }
    rig.file("many.yaml", text);
}

#[test]
fn a_long_batch_in_threads_is_reported_whole_and_in_order() {
    let rig = Rig::new();
    generate(&rig, MANY);
    let mut command = rig.command(["run", "many.yaml", "--isolation", "thread", "--json"]);
    let out = fs::File::create(rig.path("report.json")).unwrap();
    let said = Said::of(command.stdout(out).output().unwrap());
    said.expect(1).says(&format!("{MANY} failed in ")).says("0 processes left");
    let report: serde_json::Value =
        serde_json::from_reader(fs::File::open(rig.path("report.json")).unwrap()).unwrap();
    let results = report["results"].as_array().unwrap();
    assert_eq!(results.len(), MANY);
    for (index, entry) in results.iter().enumerate() {
        assert_eq!(entry["task_index"], index);
        assert!(entry["error"].as_str().unwrap().contains("/nowhere"), "{entry}");
    }
    let shown = rig.run(["show", "latest", "--json"]).expect(0).json();
    assert_eq!(shown["results"].as_array().unwrap().len(), MANY);
}

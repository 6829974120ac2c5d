//! What the command shows of a tree: a program whose children delegate has run, or runs.

use serde_json::Value;

use crate::rig::{Rig, Said};
use crate::support::helper;

/// The example of the library, whose outcomes this home keeps.
fn grow(rig: &Rig) -> Said {
    // Beside the helpers, without their prefix.
    let program = helper("agent").replace("helper-agent", "tree");
    Said::of(rig.program(program).output().unwrap())
}

#[test]
fn a_tree_is_listed_once_and_shown_with_what_was_delegated() {
    let rig = Rig::new();
    let said = grow(&rig);
    let out = said.expect(0).out.clone();
    assert!(out.ends_with("4203 primes\n"), "{out}");
    // Grandchildren before their parents, each once.
    let depths: Vec<usize> =
        out.lines().map(|line| (line.len() - line.trim_start().len()) / 2).collect();
    assert_eq!(depths.iter().filter(|depth| **depth == 2).count(), 4, "{out}");
    assert_eq!(depths[depths.len() - 2..], [1, 0], "{out}");

    let runs = rig.runs();
    assert_eq!(runs.len(), 1, "what children delegate is no run of a program: {runs:?}");
    let shown = rig.run(["show", "latest", "--json"]);
    let shown = shown.expect(0).json();
    assert_eq!(shown["run_id"], runs[0]["run_id"]);
    let below = shown["results"][0]["subtree"]["runs"][0].as_str().expect("it delegated");
    let nested = rig.run(["show", below, "--json"]);
    let nested = nested.expect(0).json();
    assert_eq!(
        (&nested["parent_run_id"], &nested["parent_task_index"]),
        (&shown["run_id"], &Value::from(0))
    );
    assert_eq!(nested["results"].as_array().unwrap().len(), 2);

    let text = rig.run(["show", "latest"]);
    let text = &text.expect(0).out;
    let rows: Vec<&str> = text.lines().skip(1).collect();
    let indents = rows.iter().map(|row| row.len() - row.trim_start().len());
    assert_eq!(indents.collect::<Vec<_>>(), [2, 4, 4, 2, 4, 4], "{text}");
}

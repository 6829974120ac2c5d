//! What README and the configuration reference promise, held against the command.

use std::fs;
use std::path::Path;

use crate::rig::{Rig, Said};

fn document(name: &str) -> String {
    fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(name)).unwrap()
}

/// Blocks of a language.
fn blocks<'a>(text: &'a str, language: &str) -> Vec<&'a str> {
    let open = format!("```{language}\n");
    text.split(open.as_str()).skip(1).map(|rest| rest.split("```").next().unwrap()).collect()
}

#[test]
fn the_commands_of_the_readme_run() {
    let rig = Rig::new();
    let readme = document("README.md");
    let yaml = blocks(&readme, "yaml");
    assert!(!yaml.is_empty());
    rig.file("BATCH.yaml", yaml[0]);
    rig.file("one.rs", "fn main() {}\n");
    rig.file("build.sh", "true\n");
    let mut tried = 0;
    for line in blocks(&readme, "sh").concat().lines() {
        let line = line.split('#').next().unwrap().trim();
        let Some(rest) = line.strip_prefix("delegate ") else { continue };
        // The reader's batch may have fewer tasks than the one of the example.
        let args = rest.split_whitespace().map(|word| if word == "2" { "0" } else { word });
        let ran = rig.run(args);
        // Another test may just have left something behind on purpose, which is said by 1.
        if !(rest == "janitor" && ran.code == Some(1)) {
            ran.expect(0);
        }
        tried += 1;
    }
    assert!(tried >= 5, "only {tried} commands were found");
    rig.run(["run", "BATCH.yaml"]).expect(0).says("\"1\"").says("0 processes left");
}

#[test]
fn the_quickstart_command_of_the_readme_is_the_one_of_the_example() {
    let command = "cargo run --release -- run examples/quickstart.yaml";
    assert!(document("README.md").contains(command));
    assert!(document("examples/quickstart.yaml").contains(command));
}

#[test]
fn the_table_of_exit_codes_is_the_one_of_the_help() {
    let rig = Rig::new();
    let help = rig.run(["--help"]).expect(0).out.clone();
    let codes = help.split("Exit codes:").nth(1).unwrap().lines().skip(1);
    let codes: Vec<String> = codes
        .map_while(|line| line.split_whitespace().next().map(str::to_owned))
        .filter(|word| word.chars().all(char::is_numeric))
        .collect();
    let readme = document("README.md");
    let table = readme.split("| exit code | means |").nth(1).unwrap().lines().skip(2);
    let listed: Vec<String> = table
        .map_while(|line| line.strip_prefix("| "))
        .flat_map(|row| row.split(" |").next().unwrap().split(", ").map(str::to_owned))
        .collect();
    assert_eq!(listed, codes);
}

#[test]
fn state_is_where_the_readme_says() {
    let rig = Rig::new();
    rig.batch("b.yaml", &["echo out"]);
    let under = |set: &[(&str, &str)], place: &str| {
        let mut command = rig.command(["run", "b.yaml"]);
        command.env_remove("DELEGATE_STATE_DIR").envs(set.iter().copied());
        Said::of(command.output().unwrap()).expect(0);
        assert!(rig.path(place).join("runs.sqlite").is_file(), "{place}");
        let run = fs::read_dir(rig.path(place).join("runs")).unwrap().next().unwrap().unwrap();
        for file in ["stdout", "events.jsonl"] {
            assert!(run.path().join("0").join(file).is_file(), "{file}");
        }
    };
    under(&[], ".local/state/delegate");
    let xdg = rig.path("xdg");
    let xdg = ("XDG_STATE_HOME", xdg.to_str().unwrap());
    under(&[xdg], "xdg/delegate");
    let own = rig.path("own");
    under(&[xdg, ("DELEGATE_STATE_DIR", own.to_str().unwrap())], "own");
    rig.run(["run", "b.yaml", "--state-dir", "flag"]).expect(0);
    assert!(rig.path("flag/runs.sqlite").is_file());
    rig.run(["show", "latest", "--state-dir", "flag"]).expect(0);
}

#[test]
fn what_is_kept_is_for_its_owner_only() {
    use std::os::unix::fs::PermissionsExt as _;
    let rig = Rig::new();
    rig.batch("b.yaml", &["echo secret"]);
    rig.run(["run", "b.yaml"]).expect(0);
    let mode = |name: &str| fs::metadata(rig.path(name)).unwrap().permissions().mode() & 0o077;
    assert_eq!(mode("state"), 0);
}

#[test]
fn the_example_configuration_is_taken_whole() {
    let rig = Rig::new();
    rig.batch("b.yaml", &["true"]);
    let example = Path::new(env!("CARGO_MANIFEST_DIR")).join("config.example.yaml");
    let said = rig.run(["run", "b.yaml", "--config", example.to_str().unwrap()]);
    said.expect(0);
    assert!(!said.err.contains("warning"), "{}", said.err);
}

/// What the reference calls ignored is ignored.
#[test]
fn the_keys_of_the_loop_are_the_ones_of_the_reference() {
    let rig = Rig::new();
    let page = document("docs/configuration.md");
    let text = page.split("These keys belong to the agent loop itself").nth(1).unwrap();
    // Behind the colon, every second piece stands between two marks.
    let list = text.split("\n\n").next().unwrap().split_once(": ").unwrap().1;
    let keys: Vec<&str> = list.split('`').skip(1).step_by(2).collect();
    assert!(keys.len() >= 6, "{keys:?}");
    for key in keys {
        rig.file("one.yaml", format!("delegation:\n  {key}: null\n"));
        rig.run(["config", "check", "one.yaml"]).expect(0).says(key);
    }
}

#[test]
fn every_variable_of_the_reference_is_known() {
    let rig = Rig::new();
    rig.batch("b.yaml", &["true"]);
    let text = document("docs/configuration.md");
    let names = text.split('`').filter(|word| {
        word.starts_with("DELEGATE_") && word.chars().all(|c| c.is_ascii_uppercase() || c == '_')
    });
    let names: std::collections::BTreeSet<&str> = names.filter(|name| name.len() > 9).collect();
    assert!(names.len() > 10, "{names:?}");
    let mut command = rig.command(["run", "b.yaml", "--dry-run"]);
    // An empty variable is as if it were not set, and an unknown one is a warning all the same.
    command.envs(names.iter().filter(|name| **name != "DELEGATE_STATE_DIR").map(|name| (name, "")));
    let said = Said::of(command.output().unwrap());
    said.expect(0);
    assert_eq!(said.err, "");
}

/// The batch of the page is run, and its entries hold what the page says of them.
#[test]
fn the_example_of_the_page_about_results_gives_what_it_says() {
    let rig = Rig::new();
    let page = document("docs/results.md");
    rig.file("b.yaml", blocks(&page, "yaml")[0]);
    rig.run(["run", "b.yaml"]).expect(0).says("not by its output_schema");
    let json = rig.run(["show", "latest", "--json"]).expect(0).json();
    let entries = json["results"].as_array().unwrap();
    assert_eq!(
        (&entries[0]["schema_valid"], &entries[0]["status"]),
        (&true.into(), &"completed".into())
    );
    let promised: serde_json::Value = serde_json::from_str(blocks(&page, "json")[0]).unwrap();
    for (field, value) in promised.as_object().unwrap() {
        assert_eq!(&entries[1][field], value, "{field}");
    }
    assert!(entries[1]["schema_note"].as_str().unwrap().contains("output_schema"));
    // A malformed one is refused, with its place, and nothing is started.
    let bad = blocks(&page, "yaml")[0].replace("type: integer", "type: nothing");
    rig.file("bad.yaml", &bad);
    let refused = rig.run(["run", "bad.yaml"]);
    refused.expect(2);
    assert!(refused.err.contains("output_schema is malformed"), "{}", refused.err);
    assert!(refused.err.contains("nothing was started"), "{}", refused.err);
}

#[test]
fn a_ceiling_cuts_an_answer_of_the_command_and_the_file_has_the_whole() {
    let rig = Rig::new();
    rig.batch("b.yaml", &["seq 1 5000"]);
    rig.run(["run", "b.yaml", "--set", "max_summary_chars=1000"]).expect(0);
    let json = rig.run(["show", "latest", "--json"]).expect(0).json();
    let entry = &json["results"][0];
    assert_eq!(entry["summary_truncated"], true);
    let whole = fs::read_to_string(entry["summary_full_path"].as_str().unwrap()).unwrap();
    assert_eq!(whole.lines().count(), 5000);
    assert!(entry["summary"].as_str().unwrap().len() < 1300);
    // Without it the answer is whole.
    rig.run(["run", "b.yaml"]).expect(0);
    let json = rig.run(["show", "latest", "--json"]).expect(0).json();
    assert_eq!(json["results"][0]["summary"], whole);
}

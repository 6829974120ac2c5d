//! `delegate keys`, faults of a file with keys, and that no child inherits a key (RB-50).

use std::fs;
use std::os::unix::fs::PermissionsExt as _;

use crate::rig::{Rig, Said};

const CANARY: &str = "sk-canary-0123456789abcdef";

/// A configuration whose pool has a key in a variable, one in a file and one that is missing.
fn world() -> Rig {
    let rig = Rig::new();
    rig.file("second.key", "sk-canary-second\n");
    fs::set_permissions(rig.path("second.key"), fs::Permissions::from_mode(0o600)).unwrap();
    rig.file(
        "keys.yaml",
        "pools:\n  custom:lab:\n    base_url: https://lab.example/v1\n    credentials:\n      - {api_key_env: LAB_KEY, label: first}\n      - {key_file: ~/second.key, priority: 2}\n      - api_key_env: NOT_SET\n",
    );
    rig.file(
        ".config/delegate/config.yaml",
        "delegation:\n  base_url: https://lab.example/v1\n  credential_pools: ~/keys.yaml\n",
    );
    rig
}

fn run(rig: &Rig, args: &[&str]) -> Said {
    Said::of(rig.command(args).env("LAB_KEY", CANARY).output().unwrap())
}

fn is_silent(said: &Said) {
    assert!(!said.out.contains("canary") && !said.err.contains("canary"), "{said:?}");
}

#[test]
fn keys_are_listed_by_fingerprint_and_can_be_forgotten() {
    let rig = world();
    let said = run(&rig, &["keys"]);
    said.expect(0).is_plain().says("custom:lab").says("first").says("missing");
    said.says("the variable NOT_SET is not set");
    is_silent(&said);
    let json = run(&rig, &["keys", "--json"]).expect(0).json();
    assert_eq!(json["schema"], "delegate.keys/1");
    let keys = json["pools"][0]["keys"].as_array().unwrap().clone();
    let of = |field: &str| keys.iter().map(|key| key[field].clone()).collect::<Vec<_>>();
    assert_eq!(of("status"), ["ok", "missing", "ok"], "in order of priority");
    assert_eq!(keys[0]["source"], "variable LAB_KEY");
    // Somebody has learned that the first is dead.
    let print = keys[0]["fingerprint"].as_str().unwrap().to_owned();
    let status = format!(
        r#"{{"pools": {{"custom:lab": {{"keys": {{"{print}": {{"state": "dead", "cause": "revoked", "code": 401}}}}}}}}}}"#
    );
    rig.file("state/keys/status.json", status);
    run(&rig, &["keys"]).expect(0).says("dead").says("revoked (401)");
    run(&rig, &["keys", "--forget", "000000"]).expect(4);
    run(&rig, &["keys", "--forget", &print[..6]]).expect(0).says("of 1 keys");
    assert!(!run(&rig, &["keys"]).expect(0).out.contains("dead"));
    // Without a pool.
    Rig::new().run(["keys"]).expect(0).says("credential_pools");
}

#[test]
fn a_file_with_keys_that_is_wrong_is_told_with_its_place_before_anything_starts() {
    let rig = world();
    run(&rig, &["config", "check"]).expect(0).says("nothing is wrong");
    rig.batch("batch.yaml", &["true"]);
    for (text, line, words) in [
        (
            "pools:\n  a:\n    credentials:\n      - apikey: sk-canary\n",
            4,
            "did you mean `api_key`?",
        ),
        ("pools:\n  a:\n    credentials:\n      - api_key: sk-canary\n", 4, "chmod 600"),
    ] {
        rig.file("keys.yaml", text);
        fs::set_permissions(rig.path("keys.yaml"), fs::Permissions::from_mode(0o644)).unwrap();
        for args in [&["config", "check"][..], &["run", "batch.yaml"], &["keys"]] {
            let said = run(&rig, args);
            said.expect(2).says(&format!("keys.yaml:{line}:")).says(words);
            is_silent(&said);
        }
    }
    assert!(rig.runs().is_empty(), "nothing was started");
}

/// A file that is nothing but a key, taken for another one by mistake: its place is told, not its text.
#[test]
fn a_file_with_a_bare_key_is_not_shown_whatever_it_is_taken_for() {
    let rig = world();
    rig.batch("batch.yaml", &["true"]);
    rig.file("bare", "sk-canary\n");
    fs::set_permissions(rig.path("bare"), fs::Permissions::from_mode(0o600)).unwrap();
    let bare = rig.path("bare");
    let bare = bare.to_str().unwrap();
    for args in
        [&["run", bare][..], &["config", "check", bare], &["run", "batch.yaml", "--config", bare]]
    {
        let said = run(&rig, args);
        said.expect(2).says("bare:1").says("not a text");
        is_silent(&said);
    }
}

/// A key in a variable of the parent is in no child, nor in anything that is kept; and it would be (the
/// control).
#[test]
fn rb_50_no_child_inherits_a_variable_with_a_key() {
    for (config, inherited) in [(true, false), (false, true)] {
        let rig = world();
        if !config {
            fs::remove_file(rig.path(".config/delegate/config.yaml")).unwrap();
        }
        rig.batch("batch.yaml", &["env", "sh -c env"]);
        let said = run(&rig, &["run", "batch.yaml", "--json"]);
        let report = said.expect(0).json();
        for result in report["results"].as_array().unwrap() {
            let text = result["summary"].as_str().unwrap();
            assert!(text.contains("CLI_TEST_MARK"), "{text}");
            assert_eq!(text.contains(CANARY), inherited, "{text}");
        }
        if config {
            scan(&rig.path("state"), &mut |text, path| {
                assert!(!text.contains("canary"), "{path}");
            });
        }
    }
}

fn scan(folder: &std::path::Path, look: &mut impl FnMut(&str, &str)) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            scan(&path, look);
        } else {
            look(&String::from_utf8_lossy(&fs::read(&path).unwrap()), &path.display().to_string());
        }
    }
}

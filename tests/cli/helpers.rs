//! `delegate helper`: programs of children reach one helper, and are told what is wrong when they cannot.

use std::fs;

use serde_json::{Value, json};

use crate::rig::{DELEGATE, Rig};
use crate::support::helper;

/// What an MCP client writes.
fn lines(words: &str) -> String {
    let hello = json!({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {}});
    let echo = json!({"jsonrpc": "2.0", "id": 2, "method": "echo", "params": {"say": words}});
    format!("{hello}\n{echo}\n")
}

#[test]
fn programs_of_children_share_one_helper_through_the_command() {
    let rig = Rig::new();
    let starts = rig.path("starts");
    let config = json!({"delegation": {"shared_helpers": {"docs": [helper("mcp"), starts]}}});
    rig.file("delegate.yaml", config.to_string());
    rig.run(["trust", "delegate.yaml"]).expect(0);
    let client = |number: u32| {
        rig.file(&format!("in{number}"), lines(&number.to_string()));
        // A client keeps its input open until it has its answers.
        format!(
            "(cat in{number}; until test -s out{number} && test $(wc -l <out{number}) -ge 2; do sleep 0.02; done) | {DELEGATE} helper docs >out{number}"
        )
    };
    let scripts: Vec<String> = (0..4).map(client).collect();
    let scripts: Vec<&str> = scripts.iter().map(String::as_str).collect();
    rig.batch("b.yaml", &scripts);
    rig.run(["run", "b.yaml"]).expect(0).says("4 completed").says("0 processes left");
    for number in 0..4 {
        let text = fs::read_to_string(rig.path(&format!("out{number}"))).unwrap();
        let said: Vec<Value> = text.lines().map(|l| serde_json::from_str(l).unwrap()).collect();
        assert_eq!(said[0]["result"]["greetings"], 1, "{text}");
        assert_eq!(said[1]["result"], json!({"say": number.to_string()}), "{text}");
    }
    assert_eq!(fs::read_to_string(starts).unwrap().lines().count(), 1);
    rig.wait_for_nobody();
}

#[test]
fn a_helper_that_cannot_be_reached_is_an_error_with_its_remedy() {
    let rig = Rig::new();
    rig.run(["helper", "docs"])
        .expect(2)
        .says("DELEGATE_HELPERS is not set")
        .says("shared_helpers");
    let said = rig.run(["helper", "docs", "--address", "nobody"]);
    said.expect(2).says("`docs` cannot be reached");
}

/// A server of somebody else's make does not get the keys that children lease; and it would (the control).
#[test]
fn a_helper_gets_no_variable_that_holds_a_key() {
    for (pools, inherited) in [(true, false), (false, true)] {
        let rig = Rig::new();
        rig.file("keys.yaml", "pools:\n  a:\n    credentials:\n      - {api_key_env: LAB_KEY}\n");
        let script = "env >seen.new; mv seen.new seen; cat";
        let mut settings = json!({"shared_helpers": {"docs": ["sh", "-c", script]}});
        if pools {
            settings["credential_pools"] = json!("~/keys.yaml");
        }
        let config = json!({ "delegation": settings }).to_string();
        rig.file(".config/delegate/config.yaml", config);
        rig.file("in", lines("x"));
        let client =
            format!("(cat in; until test -e seen; do sleep 0.02; done) | {DELEGATE} helper docs");
        rig.batch("b.yaml", &[&client]);
        let mut command = rig.command(["run", "b.yaml"]);
        crate::rig::Said::of(command.env("LAB_KEY", "sk-canary").output().unwrap()).expect(0);
        let seen = fs::read_to_string(rig.path("seen")).unwrap();
        assert_eq!(seen.contains("sk-canary"), inherited, "{seen}");
    }
}

//! `delegate doctor`: what it says, its exit code, and that what it says is so.

use std::fs;
use std::process::Command;

use ownership::Machine;
use ownership::containment::{Containment, Tier};
use ownership::ration::{Limit, Means, Offers};

use crate::rig::{DELEGATE, Rig, Said};

#[test]
fn a_machine_that_has_what_is_needed_is_fine() {
    let rig = Rig::new();
    let said = rig.run(["doctor"]);
    said.expect(0).is_plain().says("everything that is needed works");
    said.says("a program was started, held and ended").says("subreaper     used");
    assert_eq!(said.err, "");
}

#[test]
fn json_has_every_field_and_agrees_with_the_machine() {
    let rig = Rig::new();
    let said = rig.run(["doctor", "--json"]);
    let found: serde_json::Value = serde_json::from_str(&said.expect(0).out).expect("one object");
    assert_eq!(found["schema"], "delegate.doctor/1");
    assert_eq!(found["ok"], true);
    let choice = Machine::look().choose(Containment::Auto);
    assert_eq!(found["containment"]["used"], choice.used.map(Tier::word).expect("one"));
    let tiers = found["containment"]["tiers"].as_array().expect("tiers");
    assert_eq!(tiers.len(), Tier::ALL.len());
    for row in tiers {
        assert_ne!(row["used"].as_bool().expect("said"), row["why"].is_string(), "{row}");
    }
    assert_eq!(found["guards"]["works"], true);
    assert_eq!(found["guards"]["kind"], "self");
    let linked = if cfg!(target_feature = "crt-static") { "static" } else { "dynamic" };
    assert_eq!(found["guards"]["linked"], linked);
    let remarks = found["remarks"].to_string();
    assert_eq!(remarks.contains("the guards load libraries"), linked == "dynamic", "{remarks}");
    assert_eq!(found["state_dir"]["writable"], true);
    assert!(found["limits"]["open_files"].as_u64().is_some_and(|files| files > 0));
    assert_eq!(found["kernel"]["pidfd"], true);
    let offers = Offers::look(Containment::Auto);
    let rows = found["child_limits"].as_array().expect("limits");
    assert_eq!(rows.len(), Limit::ALL.len());
    for (limit, row) in Limit::ALL.into_iter().zip(rows) {
        let held = offers.decide(limit);
        assert_eq!(row["means"].as_str(), held.means.map(Means::word), "{row}");
        assert_eq!(row["not"].as_array().map(Vec::len), Some(held.not.len()), "{row}");
    }
}

#[test]
fn a_state_directory_that_cannot_be_is_a_broken_promise() {
    let rig = Rig::new();
    fs::write(rig.path("file"), "").unwrap();
    let said = rig.run(["doctor", "--state-dir", "file"]);
    said.expect(3).says("PROBLEM").says("cannot be written: give --state-dir");
    assert!(!said.out.contains("everything that is needed works"));
}

#[test]
fn a_containment_that_nobody_has_heard_of_is_bad_input() {
    let rig = Rig::new();
    let said = rig.run(["doctor", "--containment", "jail"]);
    said.expect(2);
    assert!(said.err.contains("auto, subreaper, cgroup or pid-namespace"), "{}", said.err);
}

/// A machine without cgroups, made from this one: auto does without, and what was asked for by name is a promise
/// that cannot be kept.
#[test]
fn a_tier_that_cannot_be_had_is_said_with_its_reason() {
    let machine = Machine::look();
    if machine.refusal(Tier::Cgroup).is_some() {
        let rig = Rig::new();
        rig.run(["doctor", "--containment", "cgroup"]).expect(3).says("PROBLEM");
        return;
    }
    let mount = machine.cgroup.mount.expect("a mount").display().to_string();
    for (asked, code) in [("auto", 0), ("subreaper", 0), ("cgroup", 3)] {
        let rig = Rig::new();
        let script = format!("umount {mount} && exec {DELEGATE} doctor --containment {asked}");
        let mut command = Command::new("unshare");
        command.args(["--mount", "sh", "-c", &script]).env("DELEGATE_STATE_DIR", rig.path("state"));
        let said = Said::of(command.output().unwrap());
        said.expect(code).says("no cgroup2 hierarchy is mounted");
    }
}

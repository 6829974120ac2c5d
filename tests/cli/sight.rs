//! `delegate ps` and `delegate log --kills`: what lives and whose it is, and who was ended by whom.

use std::fs;

use rustix::process::Signal;
use serde_json::Value;

use crate::rig::{Rig, Running};
use crate::support::{Identity, wait_for};

/// A run of two children, each with one below it, once these run.
fn start(rig: &Rig) -> Running {
    let script =
        |name: &str| format!("sleep 600 & echo $! > {name}.new; mv {name}.new {name}; wait");
    rig.batch("b.yaml", &[&script("one"), &script("two")]);
    let running = rig.start(["run", "b.yaml", "--timeout", "10m"]);
    for name in ["one", "two"] {
        wait_for("a sleeper", || rig.path(name).exists().then_some(()));
    }
    running
}

fn sleeper(rig: &Rig, name: &str) -> u64 {
    fs::read_to_string(rig.path(name)).unwrap().trim().parse().unwrap()
}

/// Every process of a picture.
fn processes(picture: &Value) -> Vec<&Value> {
    let owners = picture["owners"].as_array().unwrap().iter();
    let children = owners.flat_map(|owner| owner["children"].as_array().unwrap());
    children.flat_map(|child| child["processes"].as_array().unwrap()).collect()
}

#[test]
fn a_run_is_seen_as_a_tree_and_its_end_is_told() {
    let rig = Rig::new();
    let running = start(&rig);
    let owner = running.identity().pid;
    let stranger = Running::of({
        let mut command = rig.program("sleep");
        command.arg("600");
        command
    });
    let said = rig.run(["ps", "--json"]);
    let picture = said.expect(0).json();
    assert_eq!(picture["schema"], "delegate.ps/1");
    let [shown] = &picture["owners"].as_array().unwrap()[..] else { panic!("{picture}") };
    assert_eq!((&shown["pid"], &shown["state"]), (&owner.into(), &"lives".into()));
    assert_eq!((&shown["guarding"], &shown["in_ledger"]), (&"guarded".into(), &true.into()));
    assert_eq!(shown["run_id"], rig.runs()[0]["run_id"]);
    // Two workers, which have rows, and what these started over their lines.
    let with_purpose = |child: &&Value| !child["purpose"].is_null();
    let children = shown["children"].as_array().unwrap();
    assert_eq!(children.iter().filter(with_purpose).count(), 2, "{picture}");
    let pids: Vec<u64> = processes(&picture).iter().filter_map(|p| p["pid"].as_u64()).collect();
    for name in ["one", "two"] {
        assert!(pids.contains(&sleeper(&rig, name)), "{name}: {picture}");
    }
    assert!(!pids.contains(&u64::from(stranger.identity().pid)), "{picture}");
    for process in processes(&picture) {
        assert!(process["rss_bytes"].as_u64().unwrap() > 0, "{process}");
        assert!(process["age_seconds"].as_f64().unwrap() < 3600.0, "{process}");
        assert!(["row", "place"].iter().any(|known| process["known_by"] == *known), "{process}");
    }

    let one = sleeper(&rig, "one");
    let filter = format!("pid={one}");
    let picture = rig.run(["ps", "--json", "--filter", &filter, "--filter", "name=sleep"]).json();
    assert_eq!(processes(&picture).len(), 1, "{picture}");
    let picture = rig.run(["ps", "--json", "--filter", "why=left-over"]).json();
    assert_eq!(picture["owners"], serde_json::json!([]));
    rig.run(["ps"]).expect(0).is_plain().says("guarded").says("sleep 600").says("1 owner");
    let flat = rig.run(["ps", "--flat", "--sort", "pid"]);
    flat.expect(0).is_plain();
    let lines = flat.out.lines().filter(|line| line.starts_with(' '));
    let flat: Vec<u64> =
        lines.filter_map(|line| line.split_whitespace().next()?.parse().ok()).collect();
    assert!(flat.is_sorted() && flat.len() >= 4, "{flat:?}");
    let out = rig.run(["log", "--kills"]);
    out.expect(0).says("nobody was ended");

    let one = Identity::of(u32::try_from(one).unwrap()).unwrap();
    running.signal(Signal::TERM);
    running.end();
    rig.wait_for_nobody_but(&stranger);
    assert!(!one.is_alive());
    rig.run(["ps"]).expect(0).says("nothing that is owned lives here");
    let kills = rig.run(["log", "--kills", "--json"]);
    let kills = kills.expect(0).json();
    assert_eq!(kills["schema"], "delegate.kills/1");
    let kills = kills["kills"].as_array().unwrap();
    assert!(kills.len() >= 2, "{kills:?}");
    let sent = |kill: &&Value| {
        kill["acts"].as_array().unwrap().iter().any(|act| act["what"] == "sent TERM")
    };
    assert!(kills.iter().any(|kill| sent(&kill)), "{kills:?}");
    rig.run(["log", "--kills", "--since", "1h"]).expect(0).is_plain().says("sent TERM");
    let later = rig.run(["log", "--kills", "--since", "0s", "--json"]).json();
    assert_eq!(later["kills"], serde_json::json!([]));
}

#[test]
fn what_is_wrong_is_said_and_with_a_remedy() {
    let rig = Rig::new();
    rig.run(["ps"]).expect(0).says("no ledger").says("--all");
    rig.run(["ps", "--all", "--json"]).expect(0).json();
    rig.run(["ps", "--filter", "colour=red"]).expect(2).says("purpose");
    rig.run(["ps", "--filter", "port"]).expect(2).says("KEY=VALUE");
    rig.run(["ps", "--watch"]).expect(2).says("terminal");
    rig.run(["log"]).expect(2).says("--kills");
    rig.run(["log", "--kills"]).expect(0).says("nobody was ended");
    assert!(!rig.path("state/ledger.sqlite").exists(), "looking makes nothing");
    rig.file("state/ledger.sqlite", "this is no database, and long enough to be seen as none");
    rig.run(["ps"]).expect(0).says("warning: ledger");
    rig.run(["log", "--kills"]).expect(2).says("ledger");
    assert!(rig.path("state/ledger.sqlite").exists(), "nor does it move anything aside");
}

/// One row in which something stands that cannot stand there is told, exits with 3, and hides no other.
#[test]
fn a_row_that_cannot_be_read_hides_no_other() {
    let rig = Rig::new();
    let running = start(&rig);
    let ledger = rusqlite::Connection::open(rig.path("state/ledger.sqlite")).unwrap();
    let spoil = |column: &str, value: &str| {
        let sql = format!(
            "UPDATE children SET {column} = {value} WHERE id = (SELECT max(id) FROM children)"
        );
        assert_eq!(ledger.execute(&sql, []).unwrap(), 1);
    };
    let picture = rig.run(["ps", "--json"]).expect(0).json();
    let whole = picture["owners"][0]["children"].as_array().unwrap().len();
    let before: String = ledger
        .query_row("SELECT argv FROM children ORDER BY id DESC LIMIT 1", [], |row| row.get(0))
        .unwrap();
    for (column, value) in [("intent_at", "'soon'"), ("state", "'odd'"), ("argv", "x'ff00'")] {
        spoil(column, value);
        let said = rig.run(["ps", "--json"]);
        let picture = said.expect(3).json();
        let rows = picture["ledger_rows_unreadable"].as_array().unwrap();
        assert_eq!(rows.len(), 1, "{column}: {picture}");
        assert!(rows[0].as_str().unwrap().contains("of children"), "{picture}");
        let seen = picture["owners"][0]["children"].as_array().unwrap().len();
        assert!(seen + 1 >= whole && seen > 0, "{column}: {picture}");
        rig.run(["ps"]).expect(3).says("left alone").says("guarded");
        rig.run(["log", "--kills"]).expect(3).says("left alone").says("nobody was ended");
        let found = rig.run(["janitor", "--json"]);
        let found = found.expect(3).json();
        assert_eq!(found["ledger_rows_unreadable"].as_array().unwrap().len(), 1, "{found}");
        assert_eq!(found["ledger_trouble"], Value::Null, "{found}");
    }
    // As it was: nothing is told any more.
    for (column, value) in [("intent_at", "1"), ("state", "'running'")] {
        spoil(column, value);
    }
    let sql = "UPDATE children SET argv = ?1 WHERE id = (SELECT max(id) FROM children)";
    ledger.execute(sql, [before]).unwrap();
    rig.run(["ps"]).expect(0);
    running.signal(Signal::TERM);
    running.end();
    rig.wait_for_nobody();
}

/// What holds a child together is told of each, and number 1 of a pid namespace is nobody's process.
#[test]
fn the_tier_of_a_child_is_shown() {
    use ownership::containment::{Machine, Tier};
    for tier in Tier::ALL {
        if let Some(why) = Machine::look().refusal(tier) {
            eprintln!("SKIPPED: NO {} ON THIS MACHINE: {why}", tier.word());
            continue;
        }
        let rig = Rig::new();
        let running = rig.start([
            "own",
            "--containment",
            tier.word(),
            "--",
            "sh",
            "-c",
            "touch one; exec sleep 600",
        ]);
        wait_for("it runs", || rig.path("one").exists().then_some(()));
        let picture = wait_for("it is a sleeper", || {
            let picture = rig.run(["ps", "--json"]).expect(0).json();
            (processes(&picture).first()?["name"] == "sleep").then_some(picture)
        });
        assert_eq!(processes(&picture).len(), 1, "{picture}");
        assert_eq!(picture["owners"][0]["children"][0]["tier"], tier.word(), "{picture}");
        let said = rig.run(["ps"]);
        said.expect(0).says("TIER");
        let line = said.out.lines().find(|line| line.contains("sleep 600")).unwrap();
        assert_eq!(line.split_whitespace().nth(6), Some(tier.word()), "{line}");
        running.signal(Signal::KILL);
        running.end();
        rig.wait_for_nobody();
    }
}

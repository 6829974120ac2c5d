//! Past and present runs: the list, one run, its logs, while it runs and after.

use std::fs;

use serde_json::Value;

use crate::rig::Rig;
use crate::support::wait_for;

fn run_id(rig: &Rig, batch: &str) -> String {
    let report = rig.run(["run", batch, "--json"]).json();
    report["run_id"].as_str().unwrap().to_owned()
}

#[test]
fn a_run_is_found_by_id_prefix_latest_and_dash() {
    let rig = Rig::new();
    rig.batch("one.yaml", &["echo first"]);
    rig.batch("two.yaml", &["echo second", "exit 5"]);
    let (first, second) = (run_id(&rig, "one.yaml"), run_id(&rig, "two.yaml"));
    for name in [first.as_str(), &first[..8], &first[..4]] {
        rig.run(["show", name]).expect(0).says("first");
    }
    for name in ["latest", "-", second.as_str()] {
        rig.run(["show", name]).expect(0).says("second").says("exit code 5");
    }
    let shown = rig.run(["show", "-", "--json"]).expect(0).json();
    assert_eq!(
        (&shown["run_id"], &shown["status"]),
        (&Value::from(second.as_str()), &"failed".into())
    );
    assert_eq!(shown["results"][0]["summary"], "second");
    let runs = rig.runs();
    let ids: Vec<_> = runs.iter().map(|run| run["run_id"].as_str().unwrap()).collect();
    assert_eq!(ids, [second.as_str(), first.as_str()], "newest first");
    assert_eq!(runs[0]["counts"], serde_json::json!({"completed": 1, "failed": 1}));
    let list = rig.run(["runs"]);
    list.expect(0).is_plain().says("two.yaml").says("(1 completed, 1 failed)");
    assert_eq!(rig.run(["runs", "--limit", "1"]).out.lines().count(), 1);
}

#[test]
fn an_ambiguous_prefix_lists_what_it_could_mean() {
    let rig = Rig::new();
    rig.batch("b.yaml", &["true"]);
    let ids: Vec<_> = (0..2).map(|_| run_id(&rig, "b.yaml")).collect();
    // Two ids that begin alike are made, not waited for.
    let database = rusqlite::Connection::open(rig.path("state/runs.sqlite")).unwrap();
    database.pragma_update(None, "foreign_keys", false).unwrap();
    let twin = format!("{}{}", &ids[0][..6], &ids[1][6..]);
    let tables: Vec<String> = database
        .prepare("select name from sqlite_master where type = 'table' and name not like 'sqlite%'")
        .unwrap()
        .query_map([], |row| row.get(0))
        .unwrap()
        .map(Result::unwrap)
        .collect();
    for table in tables {
        let columns: Vec<String> = database
            .prepare(&format!("select name from pragma_table_info('{table}')"))
            .unwrap()
            .query_map([], |row| row.get(0))
            .unwrap()
            .map(Result::unwrap)
            .collect();
        for column in columns {
            let update = format!("update {table} set {column} = ?1 where {column} = ?2");
            database.execute(&update, [&twin, &ids[1]]).unwrap();
        }
    }
    drop(database);
    let said = rig.run(["show", &ids[0][..4]]);
    said.expect(4).says(&ids[0][..7]).says(&twin[..7]);
    rig.run(["show", &ids[0]]).expect(0);
    // What is shown as short must be long enough.
    let list = rig.run(["runs"]);
    for line in list.out.lines() {
        rig.run(["show", line.split(' ').next().unwrap()]).expect(0);
    }
}

#[test]
fn stdout_stderr_and_events_of_each_child_are_kept() {
    for isolation in ["process", "thread"] {
        let rig = Rig::new();
        rig.batch("b.yaml", &["echo out one; echo err one >&2", "printf 'a\\377b'; exit 1"]);
        let args = ["run", "b.yaml", "--json", "--isolation", isolation];
        let report = rig.run(args).expect(1).json();
        let logs = report["results"][0]["logs"].as_str().unwrap();
        assert_eq!(
            fs::read_to_string(format!("{logs}/stdout")).unwrap(),
            "out one\n",
            "{isolation}"
        );
        assert_eq!(fs::read_to_string(format!("{logs}/stderr")).unwrap(), "err one\n");

        let out =
            |args: &[&str]| rig.run([&["logs", "latest"], args].concat()).expect(0).out.clone();
        assert_eq!(out(&["0", "--stdout"]), "out one\n");
        assert_eq!(out(&["0", "--stderr"]), "err one\n");
        let events = out(&["0", "--events"]);
        let events: Vec<Value> =
            events.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        let names: Vec<_> = events.iter().map(|event| event["event"].as_str().unwrap()).collect();
        assert_eq!(names.first(), Some(&"subagent.spawn_requested"));
        assert_eq!(names.last(), Some(&"subagent.complete"));
        let all = out(&[]);
        for part in ["==> 0 stdout <==\nout one\n", "==> 0 stderr <==\nerr one\n", "a\\xffb"] {
            assert!(all.contains(part), "{part}\n{all}");
        }
        // One file of one child, byte for byte.
        let raw = rig.command(["logs", "latest", "1", "--stdout"]).output().unwrap();
        assert_eq!(raw.stdout, b"a\xffb");
    }
}

#[test]
fn logs_follow_a_running_batch_to_its_end() {
    let rig = Rig::new();
    rig.batch(
        "b.yaml",
        &["echo begun; touch begun; until test -e go; do sleep 0.02; done; echo over"],
    );
    let running = rig.start(["run", "b.yaml"]);
    wait_for("the task to begin", || rig.path("begun").exists().then_some(()));
    let log = rig.path("log");
    let mut command = rig.command(["logs", "latest", "0", "--stdout", "-f"]);
    command.stdout(fs::File::create(&log).unwrap());
    let follower = crate::rig::Running::of(command);
    wait_for("the first line", || (fs::read_to_string(&log).ok()? == "begun\n").then_some(()));
    assert_eq!(rig.runs()[0]["status"], "running");
    rig.run(["show", "latest"]).expect(0).says("1 without an outcome");
    rig.file("go", "");
    running.end().expect(0);
    follower.end().expect(0);
    assert_eq!(fs::read_to_string(&log).unwrap(), "begun\nover\n");
}

#[test]
fn two_runs_share_one_state_directory() {
    let rig = Rig::new();
    let wait = |own: &str, other: &str| {
        format!("touch {own}; until test -e {other}; do sleep 0.02; done; echo met {other}")
    };
    rig.batch("a.yaml", &[&wait("a", "b"), "echo side a"]);
    rig.batch("b.yaml", &[&wait("b", "a"), "echo side b"]);
    // Each ends only when the other runs.
    let both =
        [rig.start(["run", "a.yaml"]), rig.start(["run", "b.yaml", "--isolation", "thread"])];
    for (running, met) in both.into_iter().zip(["met b", "met a"]) {
        running.end().expect(0).says(met).says("0 processes left");
    }
    let mut seen: Vec<_> = rig.runs().iter().map(|run| run["isolation"].to_string()).collect();
    seen.sort();
    assert_eq!(seen, ["\"process\"", "\"thread\""]);
    rig.wait_for_nobody();
}

#[test]
fn a_run_in_threads_is_kept_like_any_other() {
    let rig = Rig::new();
    rig.batch("b.yaml", &["echo in a thread", "exit 2"]);
    let said = rig.run(["run", "b.yaml", "--isolation", "thread"]);
    said.expect(1).says("2 tasks, in threads").says("0 processes left");
    rig.run(["show", "latest"]).expect(0).says("in a thread").says("exit code 2");
    rig.wait_for_nobody();
}

//! A writer killed with -9: every outcome that it was told is stored is there, once.

#![expect(clippy::disallowed_methods, reason = "a test starts and kills a process of its own")]

use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError};

use rusqlite::Connection;

use super::*;

const STATE: &str = "DELEGATE_TEST_STORE_CRASH";

/// The writer: this test program again, when the variable is set. Says each index that is stored.
#[test]
fn writer_to_be_killed() {
    let Some(state) = std::env::var_os(STATE) else { return };
    let store = Store::open(Path::new(&state));
    store.begin_run(NewRun { tasks: 10_000_000, ..new_run(run(1)) });
    let output = Arc::new(Mutex::new(std::io::stdout()));
    for index in 0..10_000_000 {
        let output = output.clone();
        store.put_outcome(run(1), outcome(index, &"x".repeat(200)), move |stored| {
            assert!(stored);
            let mut output = output.lock().unwrap_or_else(PoisonError::into_inner);
            writeln!(output, "\nstored {index}").unwrap();
        });
        if index % 500 == 499 {
            store.flush(LONG);
        }
    }
}

#[test]
fn a_killed_writer_leaves_every_acknowledged_outcome_once() {
    let dir = tempfile::tempdir().unwrap();
    let mut writer = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "store::tests::crash::writer_to_be_killed", "--nocapture"])
        .env(STATE, dir.path())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(writer.stdout.take().unwrap()).lines();
    let index_of = |line: String| line.strip_prefix("stored ").and_then(|n| n.parse().ok());
    let stored = lines.by_ref().map_while(Result::ok).filter_map(index_of);
    let acknowledged: Vec<u32> = stored.take(3000).collect();
    writer.kill().unwrap();
    writer.wait().unwrap();
    assert_eq!(acknowledged.len(), 3000, "the writer ended by itself");

    let reader = Store::open_existing(dir.path());
    for index in &acknowledged {
        assert_eq!(reader.outcome(run(1), *index).unwrap().task_index, *index);
    }
    if cfg!(target_os = "linux") {
        assert_eq!(reader.find_run("latest").unwrap().status, "unknown");
    }
    let store = Store::open(dir.path());
    assert_eq!(warnings(&store), Vec::<String>::new());
    assert!(put(&store, run(2), outcome(0, "after")));
    let database = Connection::open(dir.path().join("runs.sqlite")).unwrap();
    let twice = "SELECT count(*) FROM (SELECT 1 FROM results GROUP BY run_id, task_index
                 HAVING count(*) > 1)";
    assert_eq!(database.query_row(twice, [], |row| row.get::<_, i64>(0)).unwrap(), 0);
}

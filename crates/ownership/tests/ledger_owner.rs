//! An owner with a ledger: what it starts stands there before it is started, and how it ended after.
#![cfg(feature = "ledger")]

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use ownership::exit::ExitStatus;
use ownership::ledger::{End, EndedBy, Row, Standing, State};
use ownership::{Ledger, Spawn};
use rusqlite::Connection;
use support::{DEADLINE, owner, shell, start, wait_for};

mod support;

fn scratch() -> (tempfile::TempDir, PathBuf, Arc<Ledger>) {
    let dir = tempfile::tempdir().expect("dir");
    let file = dir.path().join("ledger.sqlite");
    let ledger = Arc::new(Ledger::open(&file));
    (dir, file, ledger)
}

/// The rows once all is written, oldest first.
fn rows(ledger: &Ledger) -> Vec<Row> {
    assert!(ledger.flush(DEADLINE), "{:?}", ledger.trouble());
    let mut rows = ledger.history(99).expect("read");
    rows.reverse();
    rows
}

/// How each one ended, once they have.
fn ends(ledger: &Ledger, count: usize) -> Vec<(Option<End>, Option<EndedBy>, String)> {
    wait_for("all rows have ended", || {
        let rows = rows(ledger);
        let ended = rows.iter().filter(|row| row.state == State::Ended).count() == count;
        ended.then(|| rows.into_iter().map(|row| (row.end, row.ended_by, row.why)).collect())
    })
}

#[test]
fn the_intent_is_on_disk_before_the_program_runs() {
    let (dir, file, ledger) = scratch();
    let owner = owner().with_ledger(Arc::clone(&ledger));
    // What the program finds in the file when it runs; while the file is locked, it must not run.
    let seen = dir.path().join("seen");
    let (file, seen) = (file.display(), seen.display());
    let script = format!("cat '{file}' '{file}-wal' > '{seen}'; echo > '{seen}.done'; sleep 600");
    let spawn = shell(&script).purpose("marked-purpose").dir("/tmp");
    let other = Connection::open(file.to_string()).expect("open");
    other.execute_batch("BEGIN IMMEDIATE").expect("lock");
    let done = PathBuf::from(format!("{seen}.done"));
    let (owned, _events) = std::thread::scope(|scope| {
        let spawning = scope.spawn(|| start(&owner, spawn));
        // Long enough for a start that does not wait; what is asserted is what it found.
        (0..50).take_while(|_| !done.exists()).for_each(|_| {
            std::thread::park_timeout(Duration::from_millis(10));
        });
        other.execute_batch("COMMIT").expect("unlock");
        spawning.join().expect("spawn")
    });
    wait_for("it has looked", || done.exists().then_some(()));
    let found = std::fs::read(seen.to_string()).expect("what it found");
    let word = b"marked-purpose";
    assert!(
        found.windows(word.len()).any(|piece| piece == word),
        "it ran before it was written down"
    );
    let row = rows(&ledger).remove(0);
    assert_eq!((row.state, row.dir.as_str()), (State::Running, "/tmp"));
    assert_eq!(row.argv[..2], ["/bin/sh", "-c"]);
    assert_eq!(row.identity.as_ref().map(|who| who.pid), Some(owned.pid()));
    assert_eq!(row.verify().child, Standing::Same);
}

#[test]
fn each_end_has_its_reason() {
    let (_dir, _file, ledger) = scratch();
    let owner = owner().with_ledger(Arc::clone(&ledger));
    let (itself, _events) = start(&owner, shell("exit 7"));
    itself.wait_empty();
    let (asked, _events) = start(&owner, Spawn::new("sleep").arg("600"));
    asked.end(Duration::from_secs(5));
    asked.wait_empty();
    let (dropped, events) = start(&owner, Spawn::new("sleep").arg("600"));
    drop(dropped);
    while events.recv().is_ok() {}
    let error = owner.spawn(Spawn::new("/nowhere/at-all"), |_| {}).expect_err("no such program");
    let term = End::Exited(ExitStatus::Signal { signal: 15, core_dumped: false });
    let expected = [
        (Some(End::Exited(ExitStatus::Code(7))), Some(EndedBy::Itself), String::new()),
        (Some(term), Some(EndedBy::Owner), "asked".to_owned()),
        (Some(term), Some(EndedBy::Owner), "dropped".to_owned()),
        (Some(End::NotStarted), Some(EndedBy::Itself), error.to_string()),
    ];
    assert_eq!(ends(&ledger, 4), expected);
    assert_eq!(ledger.living().expect("read"), []);
}

#[test]
fn a_child_that_is_gone_at_once_has_an_identity_all_the_same() {
    let (_dir, _file, ledger) = scratch();
    let owner = owner().with_ledger(Arc::clone(&ledger));
    for _ in 0..50 {
        let (owned, _events) = start(&owner, Spawn::new("true"));
        owned.wait_empty();
    }
    ends(&ledger, 50);
    let rows = rows(&ledger);
    assert!(rows.iter().all(|row| row.identity.is_some()), "{rows:?}");
}

#[test]
fn a_spawn_goes_on_without_a_ledger_that_is_busy() {
    let (_dir, file, ledger) = scratch();
    let owner = owner().with_ledger(Arc::clone(&ledger));
    let other = Connection::open(&file).expect("open");
    other.execute_batch("BEGIN EXCLUSIVE").expect("lock");
    let children: Vec<_> = (0..3).map(|_| start(&owner, Spawn::new("sleep").arg("600"))).collect();
    assert!(ledger.trouble().is_some(), "it was busy all the time");
    other.execute_batch("COMMIT").expect("unlock");
    let rows = rows(&ledger);
    assert_eq!(rows.len(), children.len());
    for (row, (owned, _)) in rows.iter().zip(&children) {
        assert_eq!(row.identity.as_ref().map(|who| who.pid), Some(owned.pid()));
        assert_eq!(row.verify().child, Standing::Same);
    }
}

#[test]
fn what_a_scope_starts_is_in_the_ledger_too() {
    let (_dir, _file, ledger) = scratch();
    let owner = owner().with_ledger(Arc::clone(&ledger));
    let scope = owner.scope("thread", |_| {}).expect("scope");
    let (owned, _events) = start(&scope.owner(), Spawn::new("true"));
    owned.wait_empty();
    assert_eq!(ends(&ledger, 1).len(), 1);
    assert!(Path::new(&rows(&ledger)[0].executable).ends_with("true"));
}

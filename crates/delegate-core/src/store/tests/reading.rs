//! Finding runs, reading beside a writer, making nothing.

use rusqlite::Connection;

use super::*;
use crate::store::StoreError;

#[test]
fn reading_makes_nothing() {
    let outer = tempfile::tempdir().unwrap();
    let state = outer.path().join("state");
    let reader = Store::open_existing(&state);
    assert_eq!(reader.runs(10).unwrap(), []);
    assert!(matches!(reader.find_run("latest"), Err(StoreError::NotFound(_))));
    assert!(matches!(reader.outcome(run(1), 0), Err(StoreError::NotFound(_))));
    assert_eq!(reader.short_id(run(1)).len(), 4);
    assert_eq!(reader.child_dir(run(1), 0), None);
    assert_eq!(files_in(outer.path()), Vec::<String>::new());
    // And sees what comes later.
    let store = Store::open(&state);
    assert!(put(&store, run(1), outcome(0, "late")));
    assert_eq!(reader.outcome(run(1), 0).unwrap().summary.as_deref(), Some("late"));
}

#[test]
fn a_run_is_listed_from_its_beginning_to_its_end() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path());
    let reader = Store::open_existing(dir.path());
    let id = run(1);
    store.begin_run(new_run(id));
    store.flush(LONG);
    let record = reader.find_run("-").unwrap();
    assert_eq!((record.status.as_str(), record.duration_seconds), ("running", None));
    assert_eq!((record.title.as_str(), record.tasks), ("a title", 3));
    assert!(record.started_at > 1.6e9);
    let mut failed = outcome(2, "");
    failed.status = Status::Failed;
    for one in [outcome(0, ""), outcome(1, ""), failed] {
        assert!(put(&store, id, one));
    }
    store.end_run(id, "failed", Duration::from_millis(1500));
    store.flush(LONG);
    let record = reader.find_run("latest").unwrap();
    assert_eq!((record.status.as_str(), record.duration_seconds), ("failed", Some(1.5)));
    assert_eq!(record.counts, [("completed".to_owned(), 2), ("failed".to_owned(), 1)]);
    assert_eq!(store.runs(5).unwrap(), [record]);
}

#[test]
fn a_run_whose_owner_died_is_unknown() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path());
    for id in [1, 2] {
        store.begin_run(new_run(run(id)));
    }
    store.end_run(run(2), "completed", Duration::ZERO);
    store.flush(LONG);
    let other = Connection::open(dir.path().join("runs.sqlite")).unwrap();
    // The number lives on, as another process.
    other.execute("UPDATE runs SET owner_start = owner_start - 1", []).unwrap();
    let status = |id| store.find_run(&run(id).to_string()).unwrap().status;
    if cfg!(target_os = "linux") {
        assert_eq!(status(1), "unknown");
    }
    assert_eq!(status(2), "completed");
}

#[test]
fn runs_are_found_by_unique_prefix() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path());
    // Alike in their first 6 characters (30 bits), and one apart.
    let (a, b, c) = (run(7 << 98), run(7 << 98 | 1 << 97), run(9 << 120));
    for id in [a, b, c] {
        store.begin_run(new_run(id));
    }
    store.flush(LONG);
    let reader = Store::open_existing(dir.path());
    for id in [a, b, c] {
        let short = store.short_id(id);
        assert_eq!(store.find_run(&short).unwrap().id, id);
        assert_eq!(reader.find_run(&short.to_uppercase()).unwrap().id, id);
        assert_eq!(reader.short_id(id), short);
        assert_eq!(store.find_run(&id.to_string()).unwrap().id, id);
    }
    assert_eq!(store.short_id(c).len(), 4);
    assert_eq!(store.short_id(a).len(), 7);
    let error = store.find_run(&a.to_string()[..5]).unwrap_err();
    let StoreError::Ambiguous { found, .. } = &error else { panic!("{error}") };
    let mut found = found.clone();
    found.sort();
    let mut expected = [store.short_id(a), store.short_id(b)];
    expected.sort();
    assert_eq!(found, expected);
    for wrong in ["", "abc", "zzzz", "%%%%", "0189", "aaaa'", "last", &"a".repeat(27)] {
        assert!(matches!(store.find_run(wrong), Err(StoreError::NotFound(_))), "{wrong}");
    }
    let newest = store.find_run("latest").unwrap().id;
    assert_eq!(newest, c);
    assert_eq!(store.runs(2).unwrap().len(), 2);
}

#[test]
fn readers_and_writers_do_not_stop_each_other() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path());
    let second = Store::open(dir.path());
    let reader = Store::open_existing(dir.path());
    for (writer, id) in [(&store, 1), (&second, 2)] {
        writer.begin_run(new_run(run(id)));
        for index in 0..2000 {
            writer.put_outcome(run(id), outcome(index, "x"), |stored| assert!(stored));
        }
    }
    let mut reads = 0;
    let complete = || reader.outcome(run(1), 1999).is_ok() && reader.outcome(run(2), 1999).is_ok();
    while !complete() {
        reader.runs(10).unwrap();
        reads += 1;
        assert!(reads < 1_000_000);
    }
    let counts: Vec<_> = reader.runs(10).unwrap().into_iter().flat_map(|run| run.counts).collect();
    assert_eq!(counts, vec![("completed".to_owned(), 2000); 2]);
    assert!(store.is_durable() && second.is_durable());
}

#[test]
fn many_openers_of_a_fresh_or_damaged_place_agree() {
    for damaged in [false, true] {
        let dir = tempfile::tempdir().unwrap();
        if damaged {
            std::fs::write(dir.path().join("runs.sqlite"), "junk ".repeat(1000)).unwrap();
        }
        std::thread::scope(|scope| {
            for index in 0..8 {
                let path = dir.path();
                scope.spawn(move || assert!(put(&Store::open(path), run(1), outcome(index, ""))));
            }
        });
        let reader = Store::open_existing(dir.path());
        assert!((0..8).all(|index| reader.outcome(run(1), index).is_ok()));
        let parked = files_in(dir.path()).iter().filter(|name| name.contains("corrupt")).count();
        assert_eq!(parked, usize::from(damaged));
    }
}

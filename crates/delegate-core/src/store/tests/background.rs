//! Completions between two consumers, runs of dead owners, the older schema, forgetting.

use std::collections::BTreeSet;
use std::fs;
use std::time::SystemTime;

use rusqlite::Connection;

use super::*;
use crate::run::block_on;
use crate::store::delivery::{ATTEMPTS, Delivery, EXPIRY, State, Verdict};
use crate::store::retention::Retention;
use crate::store::{Begun, Limits, RunRecord, schema, seconds_now};

const SESSION: &str = "a conversation";

fn due(run_id: RunId) -> Delivery {
    Delivery {
        run_id,
        unit: 0,
        tasks: Vec::new(),
        origin: r#"{"chat":7}"#.to_owned(),
        session: Some(SESSION.to_owned()),
        state: State::Running,
        attempts: 0,
        claimed_at: None,
        dispatched_at: seconds_now(),
        changed_at: seconds_now(),
        finished_at: None,
        restored: false,
        why: None,
    }
}

fn dispatch(store: &Store, id: RunId) {
    let begun = Some(Arc::new(Begun { kept: None, deliveries: vec![due(id)] }));
    store.begin_run(NewRun { background: true, begun, ..new_run(id) });
}

/// Waits until its completion is written; whether that is on disk.
fn finish(store: &Store, id: RunId) -> bool {
    let (said, heard) = mpsc::channel();
    store.finish_unit(due(id), seconds_now(), move |stored| said.send(stored).unwrap());
    heard.recv_timeout(LONG).unwrap()
}

fn claim_at(store: &Store, session: Option<&str>, now: f64) -> Option<Delivery> {
    block_on(store.claim(session.map(str::to_owned), None, now))
}

fn claim(store: &Store, session: Option<&str>) -> Option<Delivery> {
    claim_at(store, session, seconds_now())
}

fn settle(store: &Store, claimed: &Delivery, verdict: Verdict) -> bool {
    let key = (claimed.run_id, claimed.unit, claimed.attempts);
    block_on(store.settle(key, verdict, seconds_now())).is_ok()
}

fn standing(store: &Store, id: RunId) -> Delivery {
    store.reader().deliveries(id).unwrap().remove(0)
}

fn sql(dir: &Path, text: &str) {
    Connection::open(dir.join("runs.sqlite")).unwrap().execute_batch(text).unwrap();
}

/// As if the process that began everything here had died, and its number been given to another.
fn kill_owners(dir: &Path) {
    sql(dir, "UPDATE runs SET owner_start = owner_start + 1");
}

#[test]
fn c27_a_completion_is_on_disk_before_anybody_is_told() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path());
    let reader = Store::open_existing(dir.path());
    dispatch(&store, run(1));
    store.flush(LONG);
    assert_eq!(reader.deliveries(run(1)).unwrap()[0].state, State::Running);
    assert!(claim(&store, None).is_none(), "its children work");
    let (said, heard) = mpsc::channel();
    store.finish_unit(due(run(1)), seconds_now(), move |stored| {
        // Consumers are woken from here.
        said.send((stored, reader.deliveries(run(1)).unwrap().remove(0).state)).unwrap();
    });
    assert_eq!(heard.recv_timeout(LONG), Ok((true, State::Pending)));
}

#[test]
fn c28_of_two_consumers_one_gets_it() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path());
    let other = Store::open(dir.path());
    for id in 0..60 {
        dispatch(&store, run(id));
        assert!(finish(&store, run(id)));
    }
    let taken: Vec<Delivery> = std::thread::scope(|scope| {
        let consumer = |number: usize| {
            let store = if number.is_multiple_of(2) { &store } else { &other };
            scope.spawn(move || std::iter::from_fn(|| claim(store, None)).collect::<Vec<_>>())
        };
        let threads: Vec<_> = (0..6).map(consumer).collect();
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    });
    let distinct: BTreeSet<RunId> = taken.iter().map(|one| one.run_id).collect();
    assert_eq!((taken.len(), distinct.len()), (60, 60));
    assert!(taken.iter().all(|one| settle(&other, one, Verdict::Complete)));
    assert!(!settle(&store, &taken[0], Verdict::Complete), "once");
}

#[test]
fn c29_what_was_dropped_can_still_be_looked_at() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path());
    dispatch(&store, run(1));
    finish(&store, run(1));
    for _ in 0..ATTEMPTS {
        let claimed = claim(&store, Some(SESSION)).unwrap();
        assert!(settle(&store, &claimed, Verdict::Release));
    }
    assert!(claim(&store, Some(SESSION)).is_none());
    let left = standing(&store, run(1));
    assert_eq!((left.state, left.attempts), (State::Dropped, 8));
    assert_eq!((left.why.as_deref(), left.origin.as_str()), (Some("8 attempts"), r#"{"chat":7}"#));
}

#[test]
fn c32_an_old_completion_is_dropped_where_it_lies() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path());
    dispatch(&store, run(1));
    finish(&store, run(1));
    assert!(claim_at(&store, None, seconds_now() + EXPIRY + 60.0).is_none());
    assert_eq!(standing(&store, run(1)).state, State::Dropped);
}

#[test]
fn c34_a_recycled_pid_is_no_living_owner_and_c33_proof_is_needed() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path());
    dispatch(&store, run(1));
    put(&store, run(1), outcome(0, "real"));
    assert!(claim(&store, Some(SESSION)).is_none(), "its owner lives: this process");
    kill_owners(dir.path());
    assert!(claim(&store, None).is_none() && claim(&store, Some("other")).is_none());
    let claimed = claim(&store, Some(SESSION)).unwrap();
    assert!(claimed.restored && claimed.attempts == 1);
    let record = store.find_run(&run(1).to_string()).unwrap();
    assert_eq!(record.counts, [("completed".to_owned(), 1), ("unknown".to_owned(), 2)]);
    assert_eq!(store.entry(run(1), 0).unwrap().summary.as_deref(), Some("real"));
    let lost = store.entry(run(1), 2).unwrap();
    assert_eq!(lost.cause, Some(delegate_protocol::Cause::Lost));
    assert!(store.outcome(run(1), 2).is_err(), "it is made when it is read");
}

#[test]
fn whoever_knows_the_id_may_take_what_a_dead_owner_left() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path());
    dispatch(&store, run(1));
    store.flush(LONG);
    sql(dir.path(), "UPDATE deliveries SET session = NULL");
    kill_owners(dir.path());
    assert!(claim(&store, None).is_none());
    let by_id = |id| block_on(store.claim(None, Some(run(id)), seconds_now()));
    assert!(by_id(2).is_none());
    assert!(by_id(1).is_some());
}

/// Another process writes all the time: nothing is lost, and what this process dispatched is handed on.
#[test]
fn a_completion_is_handed_on_in_memory_where_the_disk_takes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path());
    dispatch(&store, run(1));
    dispatch(&store, run(2));
    assert!(finish(&store, run(1)));
    // A trigger refuses every write, as a full disk does.
    sql(
        dir.path(),
        "CREATE TRIGGER full_1 BEFORE UPDATE ON deliveries BEGIN SELECT RAISE(FAIL, 'full'); END;
         CREATE TRIGGER full_2 BEFORE INSERT ON deliveries BEGIN SELECT RAISE(FAIL, 'full'); END;",
    );
    assert!(!finish(&store, run(2)), "not on disk");
    let mut taken: Vec<_> = std::iter::from_fn(|| claim(&store, None)).collect();
    assert_eq!(taken.len(), 2, "{taken:?}");
    assert!(taken.drain(..).all(|one| settle(&store, &one, Verdict::Complete)));
    assert!(claim(&store, None).is_none());
    assert!(warnings(&store)[0].contains("completions"), "said once");
}

#[test]
fn a_store_without_a_disk_hands_completions_on_too() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("file");
    fs::write(&file, "").unwrap();
    let store = Store::open(&file);
    dispatch(&store, run(1));
    assert!(claim(&store, None).is_none());
    assert!(!finish(&store, run(1)));
    let claimed = claim(&store, None).unwrap();
    assert!(settle(&store, &claimed, Verdict::Defer) && claim(&store, None).is_some());
}

#[test]
fn a_full_database_takes_a_completion_into_memory() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open_with(dir.path(), Limits { pages: Some(1), ..Limits::default() });
    for id in 0..200 {
        dispatch(&store, run(id));
        finish(&store, run(id));
    }
    let taken: BTreeSet<_> =
        std::iter::from_fn(|| claim(&store, None)).map(|one| one.run_id).collect();
    assert_eq!(taken.len(), 200);
    assert!(!store.is_durable());
}

#[test]
fn of_two_who_take_a_run_over_one_gets_it_and_nobody_gets_a_living_one() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path());
    store.begin_run(new_run(run(1)));
    store.flush(LONG);
    let take = |id| block_on(store.take_over(run(id))).unwrap();
    assert!(take(1).unwrap_err().contains("runs it"));
    kill_owners(dir.path());
    assert_eq!(take(1), Ok(()));
    assert!(take(1).unwrap_err().contains(&format!("process {}", std::process::id())));
    assert!(take(2).is_err(), "there is none");
    let record = store.find_run(&run(1).to_string()).unwrap();
    assert_eq!((record.status.as_str(), record.resumed), ("running", 1));
}

/// A file of the schema before, as a program of then wrote it: three results, and a run whose owner died.
fn old_place() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let old = include_bytes!("../fixtures/runs-1.sqlite");
    fs::write(dir.path().join("runs.sqlite"), old).unwrap();
    dir
}

fn assert_old_runs(runs: &[RunRecord], outcome: impl Fn(RunId, u32) -> Option<Status>) {
    let [killed, whole] = runs else { panic!("{runs:?}") };
    assert_eq!((killed.title.as_str(), killed.status.as_str()), ("killed", "unknown"));
    assert_eq!(killed.counts, [("completed".to_owned(), 1), ("unknown".to_owned(), 2)]);
    assert_eq!((whole.status.as_str(), whole.tasks), ("failed", 3));
    assert!(!whole.background && whole.resumed == 0 && whole.rerun_of.is_none());
    let statuses = [0, 1, 2].map(|task| outcome(whole.id, task));
    let (completed, failed) = (Some(Status::Completed), Some(Status::Failed));
    assert_eq!(statuses, [completed, failed, completed]);
}

#[test]
fn a_file_of_the_schema_before_is_read_as_it_is_and_brought_up_by_who_writes() {
    let dir = old_place();
    let before = fs::read(dir.path().join("runs.sqlite")).unwrap();
    let reader = Store::open_existing(dir.path());
    let status = |id, task| reader.outcome(id, task).ok().map(|entry| entry.status);
    assert_old_runs(&reader.runs(9).unwrap(), status);
    let record = reader.find_run("latest").unwrap();
    assert!(reader.kept(record.clone()).unwrap().is_none(), "nothing is known of its tasks");
    assert_eq!(reader.deliveries(record.id).unwrap(), []);
    assert_eq!(reader.entry(&record, 2).unwrap().status, Status::Unknown);
    assert_eq!(
        fs::read(dir.path().join("runs.sqlite")).unwrap(),
        before,
        "a reader changes nothing"
    );

    let store = Store::open(dir.path());
    assert_eq!(store.take_warning(), None);
    dispatch(&store, run(1));
    assert!(finish(&store, run(1)) && claim(&store, None).is_some());
    // The reader from before sees what was added.
    let all = reader.runs(9).unwrap();
    assert!(all[0].background, "{all:?}");
    assert_old_runs(&all[1..], |id, task| reader.outcome(id, task).ok().map(|it| it.status));
    drop(store);
    let opened = Connection::open(dir.path().join("runs.sqlite")).unwrap();
    assert_eq!(schema::version(&opened), Ok(schema::VERSION));
}

#[test]
fn many_who_bring_one_file_up_agree() {
    let dir = old_place();
    std::thread::scope(|scope| {
        for id in 0..8 {
            let dir = dir.path();
            scope.spawn(move || {
                let store = Store::open(dir);
                assert_eq!(store.take_warning(), None);
                dispatch(&store, run(id));
                assert!(finish(&store, run(id)));
            });
        }
    });
    assert_eq!(Store::open_existing(dir.path()).runs(99).unwrap().len(), 10);
}

fn keep(count: usize) -> Retention {
    Retention { keep: Some(count), ..Retention::default() }
}

fn prune(store: &Store, limits: Retention) -> Vec<RunId> {
    let pruned = store.prune(limits, false, SystemTime::now()).unwrap();
    assert_eq!(pruned.failed, Vec::<String>::new());
    pruned.forgotten.iter().map(|one| one.run.id).collect()
}

#[test]
fn what_is_pruned_is_gone_with_its_files_and_what_lives_or_waits_stays() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path());
    for id in [1, 2, 3] {
        store.begin_run(new_run(run(id)));
        store.append(run(id), 0, crate::store::Log::Stdout, vec![b'x'; 1000]);
        put(&store, run(id), outcome(0, "s"));
    }
    dispatch(&store, run(4));
    finish(&store, run(4));
    for id in [1, 2, 4] {
        store.end_run(run(id), "completed", Duration::ZERO);
    }
    store.flush(LONG);
    // Oldest first: 3 lives, 4 waits to be taken.
    sql(dir.path(), "UPDATE runs SET started_at = rowid");
    let dry = store.prune(keep(0), true, SystemTime::now()).unwrap();
    assert_eq!((dry.forgotten.len(), dry.held.len(), dry.kept), (2, 2, 2));
    assert!(dry.forgotten.iter().all(|one| one.bytes >= 1000), "{dry:?}");
    assert_eq!(store.runs(9).unwrap().len(), 4, "a dry run forgets nothing");
    assert_eq!(prune(&store, keep(3)), [run(1)]);
    assert_eq!(prune(&store, keep(0)), [run(2)]);
    let left: Vec<_> = store.runs(9).unwrap().iter().map(|run| run.id).collect();
    assert_eq!(left, [run(4), run(3)]);
    assert_eq!(files_in(&dir.path().join("runs")), [run(3).to_string()]);
    assert!(store.outcome(run(1), 0).is_err() && store.outcome(run(3), 0).is_ok());
    // The dead do not live.
    kill_owners(dir.path());
    assert_eq!(prune(&store, keep(0)), [run(3)]);
}

/// Killed between the rows and the folders: the next pruning finds the folder.
#[test]
fn a_pruning_that_was_killed_is_finished_by_the_next() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path());
    store.begin_run(new_run(run(1)));
    store.append(run(1), 0, crate::store::Log::Stdout, b"x".to_vec());
    store.end_run(run(1), "completed", Duration::ZERO);
    store.flush(LONG);
    sql(dir.path(), "INSERT INTO pruned SELECT id FROM runs; DELETE FROM runs;");
    assert_eq!(files_in(&dir.path().join("runs")).len(), 1);
    assert_eq!(prune(&store, keep(0)), Vec::<RunId>::new());
    assert_eq!(files_in(&dir.path().join("runs")), Vec::<String>::new());
}

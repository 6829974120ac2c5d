//! Outcomes are stored once, all of them, or kept in memory with one warning.

use std::fs;
use std::path::Path;
use std::sync::atomic::Ordering;

use rusqlite::Connection;

use super::*;
use crate::store::{Limits, database, schema};

#[test]
fn what_is_put_is_read_back_whole() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path());
    let mut put_in = outcome(4, "text with \0, \u{1f600} and \"quotes\"");
    put_in.logs = store.child_dir(run(1), 4);
    assert!(put_in.logs.as_ref().is_some_and(|logs| !logs.exists()), "asking makes no folder");
    assert!(put(&store, run(1), put_in.clone()));
    assert!(put_in.logs.as_ref().is_some_and(|logs| logs.is_dir()));
    assert_eq!(store.outcome(run(1), 4).unwrap(), put_in);
    assert!(store.outcome(run(1), 5).is_err());
    assert!(store.is_durable());
    assert_eq!(warnings(&store), Vec::<String>::new());
}

#[test]
fn an_outcome_names_no_folder_that_is_not_there() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path());
    let mut put_in = outcome(0, "text");
    put_in.logs = store.child_dir(run(1), 0);
    fs::write(dir.path().join("runs").join(run(1).to_string()), "in the way").unwrap();
    assert!(put(&store, run(1), put_in));
    assert_eq!(store.outcome(run(1), 0).unwrap().logs, None);
    assert!(warnings(&store)[0].contains("not all output"));
}

#[test]
fn a_large_summary_is_stored() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path());
    let large = outcome(0, &"x".repeat(crate::store::spill::MAX_SUMMARY));
    assert!(put(&store, run(1), large.clone()));
    assert!(store.outcome(run(1), 0).unwrap() == large);
}

#[test]
fn eight_threads_lose_no_outcome() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path());
    let (stored, count) = counter();
    std::thread::scope(|scope| {
        for thread in 0..8_u32 {
            let (store, stored) = (store.clone(), stored.clone());
            scope.spawn(move || {
                for index in 0..1000 {
                    let stored = stored.clone();
                    let one = outcome(thread * 1000 + index, &index.to_string());
                    store.put_outcome(run(1), one, move |on_disk| {
                        assert!(on_disk);
                        stored.fetch_add(1, Ordering::SeqCst);
                    });
                }
            });
        }
    });
    store.flush(LONG);
    assert_eq!(count(), 8000);
    for index in 0..8000 {
        let summary = store.outcome(run(1), index).unwrap().summary;
        assert_eq!(summary, Some((index % 1000).to_string()));
    }
}

#[test]
fn outcomes_that_wait_together_are_stored_in_one_transaction() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path());
    let release = stall(&store);
    let (said, heard) = mpsc::channel();
    for index in 0..1000 {
        let (said, reader) = (said.clone(), Store::open_existing(dir.path()));
        // At the first acknowledgement the last one is stored too.
        store.put_outcome(run(1), outcome(index, "short"), move |_| {
            // The test may have failed, and so stopped listening, before the last one.
            let _ = said.send(index > 0 || reader.outcome(run(1), 999).is_ok());
        });
    }
    drop(release);
    assert!((0..1000).all(|_| heard.recv_timeout(LONG).unwrap()));
}

#[test]
fn a_second_outcome_of_a_child_changes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path());
    assert!(put(&store, run(1), outcome(0, "first")));
    assert!(put(&store, run(1), outcome(0, "second")));
    assert_eq!(store.outcome(run(1), 0).unwrap().summary.as_deref(), Some("first"));
}

#[test]
fn dropping_the_last_handle_writes_what_is_queued() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path());
    (0..500).for_each(|index| store.put_outcome(run(1), outcome(index, "x"), |_| ()));
    drop(store);
    let reader = Store::open_existing(dir.path());
    assert!((0..500).all(|index| reader.outcome(run(1), index).is_ok()));
    // Neither a writer nor a reader leaves its files behind.
    drop(reader);
    assert_eq!(files_in(dir.path()), ["runs", "runs.sqlite", "runs.sqlite.lock"]);
}

#[test]
fn a_callback_may_drop_the_last_handle() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path());
    let (said, heard) = mpsc::channel();
    let release = stall(&store);
    let held = store.clone();
    store.put_outcome(run(1), outcome(0, ""), move |_| {
        drop(held);
        said.send(()).unwrap();
    });
    drop(store);
    drop(release);
    heard.recv_timeout(LONG).unwrap();
}

#[cfg(unix)]
#[test]
fn everything_is_private() {
    use std::os::unix::fs::PermissionsExt;
    let outer = tempfile::tempdir().unwrap();
    let state = outer.path().join("a/state");
    let store = Store::open(&state);
    assert!(put(&store, run(1), outcome(0, "secret")));
    store.append(run(1), 0, crate::store::Log::Stdout, b"secret".to_vec());
    store.flush(LONG);
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    let child = store.child_dir(run(1), 0).unwrap();
    for folder in [&outer.path().join("a"), &state, &state.join("runs"), &child] {
        assert_eq!(mode(folder), 0o700, "{}", folder.display());
    }
    for file in ["runs.sqlite", "runs.sqlite-wal", "runs.sqlite-shm", "runs.sqlite.lock"] {
        assert_eq!(mode(&state.join(file)), 0o600, "{file}");
    }
    assert_eq!(mode(&child.join("stdout")), 0o600);
}

/// A fresh database stands where an unusable one was, and the old one is beside it, untouched.
fn assert_parked(dir: &Path, old: &[u8], reason: &str) {
    let store = Store::open(dir);
    assert!(put(&store, run(1), outcome(0, "new")));
    assert_eq!(store.outcome(run(1), 0).unwrap().summary.as_deref(), Some("new"));
    assert!(store.is_durable());
    let warnings = warnings(&store);
    assert_eq!(warnings.len(), 1, "{warnings:?}");
    assert!(warnings[0].contains(reason) && warnings[0].contains("moved to"), "{warnings:?}");
    let names = files_in(dir);
    let aside = names.iter().find(|name| name.starts_with("runs.sqlite.corrupt-"));
    let aside = dir.join(aside.expect("nothing was moved aside"));
    assert!(fs::read(aside).unwrap() == old);
    assert_eq!(Store::open(dir).take_warning(), None);
}

#[test]
fn a_file_that_is_no_database_is_moved_aside() {
    let dir = tempfile::tempdir().unwrap();
    let junk = b"this is not a database, but it is long enough to look like one".repeat(100);
    fs::write(dir.path().join("runs.sqlite"), &junk).unwrap();
    assert_parked(dir.path(), &junk, "damaged");
}

#[test]
fn a_damaged_database_is_moved_aside() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path());
    (0..100).for_each(|index| store.put_outcome(run(1), outcome(index, "x"), |_| ()));
    drop(store);
    let path = dir.path().join("runs.sqlite");
    let mut bytes = fs::read(&path).unwrap();
    bytes[100..].fill(0xa5);
    fs::write(&path, &bytes).unwrap();
    assert_parked(dir.path(), &bytes, "damaged");
}

#[test]
fn a_database_of_a_newer_schema_is_moved_aside() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("runs.sqlite");
    let newer = Connection::open(&path).unwrap();
    newer.pragma_update(None, "user_version", schema::VERSION + 1).unwrap();
    drop(newer);
    let bytes = fs::read(&path).unwrap();
    let read = Store::open_existing(dir.path()).runs(1).unwrap_err();
    assert!(read.to_string().contains("use a newer one"), "{read}");
    assert_parked(dir.path(), &bytes, "has schema 3");
}

/// Everything works, nothing is on disk, and one warning says so.
fn assert_in_memory(store: &Store, reason: &str) {
    let id = run(9);
    store.begin_run(new_run(id));
    store.append(id, 0, crate::store::Log::Stdout, b"lost".to_vec());
    assert!(!put(store, id, outcome(0, "kept")));
    assert_eq!(store.outcome(id, 0).unwrap().summary.as_deref(), Some("kept"));
    store.end_run(id, "completed", Duration::from_secs(2));
    store.flush(LONG);
    assert!(!store.is_durable());
    assert_eq!(store.child_dir(id, 0), None);
    let found = store.find_run("latest").unwrap();
    assert_eq!((found.id, found.status.as_str()), (id, "completed"));
    assert_eq!(found.counts, [("completed".to_owned(), 1)]);
    assert_eq!(store.find_run(&store.short_id(id)).unwrap(), found);
    let warnings = warnings(store);
    assert_eq!(warnings.len(), 1, "{warnings:?}");
    assert!(warnings[0].contains("memory only") && warnings[0].contains(reason), "{warnings:?}");
}

/// Another process writes for longer than one statement waits.
#[test]
fn a_lock_that_is_held_long_is_waited_for_again() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path());
    let other = Connection::open(dir.path().join(database::FILE_NAME)).unwrap();
    other.execute_batch("BEGIN IMMEDIATE").unwrap();
    let (said, heard) = mpsc::channel();
    store.put_outcome(run(1), outcome(0, "x"), move |stored| said.send(stored).unwrap());
    let longer = database::BUSY + database::BUSY / 4;
    assert_eq!(heard.recv_timeout(longer), Err(mpsc::RecvTimeoutError::Timeout), "given up");
    other.execute_batch("COMMIT").unwrap();
    assert_eq!(heard.recv_timeout(LONG), Ok(true));
    assert!(store.is_durable());
}

/// SQLite writes on into a file without a name; nobody would find it.
#[test]
fn a_database_that_is_deleted_or_replaced_stores_nothing_any_more() {
    for replaced in [false, true] {
        let dir = tempfile::tempdir().unwrap();
        let state = dir.path().join("state");
        let store = Store::open(&state);
        let id = run(9);
        store.begin_run(new_run(id));
        assert!(put(&store, id, outcome(0, "stored")));
        assert!(store.is_durable() && !store.is_misplaced());
        fs::remove_dir_all(&state).unwrap();
        if replaced {
            assert!(Store::open(&state).take_warning().is_none());
        }
        assert!(!put(&store, id, outcome(1, "kept")), "replaced: {replaced}");
        assert!(!store.is_durable() && store.is_misplaced());
        assert_eq!(store.outcome(id, 1).unwrap().summary.as_deref(), Some("kept"));
        let warnings = warnings(&store);
        assert_eq!(warnings.len(), 1, "{warnings:?}");
        let place = state.join("runs.sqlite");
        assert!(warnings[0].contains(place.to_str().unwrap()), "{warnings:?}");
        assert!(warnings[0].contains("was deleted or replaced"), "{warnings:?}");
    }
}

/// The end of a run is a record as well: it meets what was deleted behind the last outcome.
#[test]
fn a_database_that_is_deleted_after_the_last_outcome_is_met_at_the_end_of_the_run() {
    let dir = tempfile::tempdir().unwrap();
    let state = dir.path().join("state");
    let store = Store::open(&state);
    store.begin_run(new_run(run(9)));
    assert!(put(&store, run(9), outcome(0, "stored")));
    fs::remove_dir_all(&state).unwrap();
    store.end_run(run(9), "completed", Duration::from_secs(2));
    store.flush(LONG);
    assert!(!store.is_durable() && store.is_misplaced());
}

#[test]
fn a_state_directory_that_cannot_be_is_memory_with_one_warning() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("file");
    fs::write(&file, "").unwrap();
    assert_in_memory(&Store::open(&file), "file");
    assert_in_memory(&Store::open(&file.join("below/it")), "below");
    if cfg!(target_os = "linux") {
        assert_in_memory(&Store::open(Path::new("/proc/self/state")), "/proc");
    }
}

#[test]
fn a_full_database_keeps_what_does_not_fit_in_memory_and_tries_again() {
    let dir = tempfile::tempdir().unwrap();
    let limits = Limits { pages: Some(64), ..Limits::default() };
    let store = Store::open_with(dir.path(), limits);
    assert!(put(&store, run(1), outcome(0, "fits")));
    assert!(!put(&store, run(1), outcome(1, &"x".repeat(1 << 20))));
    assert!(!put(&store, run(1), outcome(2, &"x".repeat(1 << 20))));
    assert!(put(&store, run(1), outcome(3, "fits again")));
    assert!(!store.is_durable());
    for index in 0..4 {
        assert_eq!(store.outcome(run(1), index).unwrap().task_index, index);
    }
    let warnings = warnings(&store);
    assert_eq!(warnings.len(), 1, "{warnings:?}");
    for text in ["outcomes from now on are kept in memory only", "database or disk is full"] {
        assert!(warnings[0].contains(text), "{warnings:?}");
    }
    let reader = Store::open_existing(dir.path());
    assert!(reader.outcome(run(1), 3).is_ok() && reader.outcome(run(1), 1).is_err());
}

#[test]
fn one_outcome_that_does_not_fit_takes_no_other_with_it() {
    let dir = tempfile::tempdir().unwrap();
    let limits = Limits { pages: Some(64), ..Limits::default() };
    let store = Store::open_with(dir.path(), limits);
    let release = stall(&store);
    let (said, heard) = mpsc::channel();
    for index in 0..10 {
        let summary = if index == 4 { "x".repeat(1 << 20) } else { "small".into() };
        let said = said.clone();
        let tell = move |stored| said.send((index, stored)).unwrap();
        store.put_outcome(run(1), outcome(index, &summary), tell);
    }
    drop(release);
    for _ in 0..10 {
        let (index, stored) = heard.recv_timeout(LONG).unwrap();
        assert_eq!(stored, index != 4, "{index}");
    }
}

#[test]
fn an_opener_that_is_stopped_holds_nobody_up() {
    let dir = tempfile::tempdir().unwrap();
    let lock = fs::File::create(dir.path().join(database::LOCK_NAME)).unwrap();
    lock.lock().unwrap();
    assert!(put(&Store::open(dir.path()), run(1), outcome(0, "")));
}

/// A real full disk and a real read-only one, where this test may mount.
#[cfg(target_os = "linux")]
#[test]
fn a_full_and_a_read_only_file_system() {
    let dir = tempfile::tempdir().unwrap();
    let Some(mount) = Mount::tmpfs(dir.path()) else {
        eprintln!("SKIPPED: no right to mount; a full and a read-only file system are not tested");
        return;
    };
    let state = dir.path().join("state");
    let store = Store::open(&state);
    assert!(put(&store, run(1), outcome(0, "before")));
    fs::write(dir.path().join("filler"), vec![0; 1 << 20]).unwrap_err();
    assert!(!put(&store, run(1), outcome(1, &"x".repeat(100_000))));
    store.append(run(1), 1, crate::store::Log::Stdout, vec![b'x'; 100_000]);
    store.flush(LONG);
    let told = warnings(&store);
    // One disk, one warning, though both outcomes and output are concerned.
    assert_eq!(told.len(), 1, "{told:?}");
    assert!(told[0].contains("outcomes from now on") && told[0].contains("output and events"));
    fs::remove_file(dir.path().join("filler")).unwrap();
    assert!(put(&store, run(1), outcome(2, "after")));
    assert!((0..3).all(|index| store.outcome(run(1), index).is_ok()));
    drop(store);

    mount.make_read_only();
    let store = Store::open(&state);
    assert_eq!(store.outcome(run(1), 2).unwrap().summary.as_deref(), Some("after"));
    assert_in_memory(&store, "Read-only");
    assert!(Store::open_existing(&state).outcome(run(1), 0).is_ok());
}

#[cfg(target_os = "linux")]
struct Mount<'a>(&'a Path);

#[cfg(target_os = "linux")]
#[expect(clippy::disallowed_methods, reason = "a test mounts a disk of its own")]
impl<'a> Mount<'a> {
    fn command(program: &str, arguments: &[&str], path: &Path) -> bool {
        let mut command = std::process::Command::new(program);
        let output = command.args(arguments).arg(path).output();
        output.is_ok_and(|output| output.status.success())
    }

    fn tmpfs(path: &'a Path) -> Option<Self> {
        let arguments = ["-t", "tmpfs", "-o", "size=512k", "none"];
        Self::command("mount", &arguments, path).then_some(Self(path))
    }

    fn make_read_only(&self) {
        assert!(Self::command("mount", &["-o", "remount,ro"], self.0));
    }
}

#[cfg(target_os = "linux")]
impl Drop for Mount<'_> {
    fn drop(&mut self) {
        // Lazy: a connection may still be open when an assertion failed.
        Self::command("umount", &["-l"], self.0);
    }
}

/// Whoever waits for an outcome waits for its commit, and not for the log to be copied into the file behind it.
#[test]
fn the_log_is_copied_into_the_file_behind_the_commit_that_made_it_long() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path());
    let file = dir.path().join("runs.sqlite");
    let length = move || fs::metadata(&file).unwrap().len();
    let (told, at_the_commit) = crossbeam_channel::bounded(1);
    let large = "x".repeat(8 << 20);
    let seen = length.clone();
    store.put_outcome(run(1), outcome(0, &large), move |durable| {
        assert!(durable);
        told.send(seen()).unwrap();
    });
    let at_the_commit = at_the_commit.recv_timeout(LONG).unwrap();
    assert!(at_the_commit < 1 << 20, "{at_the_commit}");
    // The recorder goes on to the next thing once that is done.
    store.flush(LONG);
    assert!(length() > 8 << 20, "{}", length());
    assert_eq!(store.outcome(run(1), 0).unwrap().summary.as_deref(), Some(&*large));
}

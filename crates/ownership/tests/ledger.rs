//! The ledger over real files: what it keeps, what becomes of files that are damaged, foreign, older or newer, and
//! what waits when nothing can be written.
#![cfg(feature = "ledger")]
#![expect(clippy::disallowed_methods, reason = "tests run programs and wait with deadlines")]

use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use ownership::exit::ExitStatus;
use ownership::ledger::{
    End, EndedBy, Intent, Ledger, PATIENCE, Policy, Row, Standing, State, history, living,
    next_spawn,
};
use ownership::{BootId, Identity};
use rusqlite::Connection;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use support::{DEADLINE, wait_for};

mod support;

fn scratch() -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().expect("dir");
    let file = dir.path().join("state").join("ledger.sqlite");
    (dir, file)
}

fn intent(purpose: &str) -> Intent {
    Intent::new(next_spawn(), Path::new("/bin/sleep"), &["sleep".into(), "600".into()])
        .purpose(purpose)
}

fn written(ledger: &Ledger) {
    assert!(ledger.flush(DEADLINE), "{:?}", ledger.trouble());
}

fn purposes(rows: &[Row]) -> Vec<&str> {
    rows.iter().map(|row| row.purpose.as_str()).collect()
}

struct Sleeper(std::process::Child);

impl Sleeper {
    fn new() -> Self {
        Self(Command::new("sleep").arg("600").spawn().expect("sleep"))
    }

    fn end(&mut self) {
        self.0.kill().expect("kill");
        self.0.wait().expect("wait");
    }
}

impl Drop for Sleeper {
    fn drop(&mut self) {
        self.end();
    }
}

/// Tells the ledger that `child` was started.
fn started(ledger: &Ledger, spawn: u64, child: &Sleeper) {
    let pid = child.0.id();
    let number = Pid::from_raw(pid.cast_signed()).expect("pid");
    let pidfd = pidfd_open(number, PidfdFlags::empty()).expect("pidfd");
    ledger.started(spawn, pid, Arc::new(pidfd));
}

#[test]
fn a_child_is_followed_from_intent_to_end() {
    let (_dir, file) = scratch();
    let ledger = Ledger::open(&file);
    let spawn = next_spawn();
    let argv = ["sleep", "--token", "hunter2"].map(OsString::from);
    let release = vec![OsString::from("docker"), "rm".into(), "".into()];
    let soon = SystemTime::now() + Duration::from_secs(60);
    let intent = Intent::new(spawn, Path::new("/bin/sleep"), &argv)
        .purpose("wait")
        .dir(Path::new("/tmp"))
        .exempt("outlives us", Some(soon))
        .release(release.clone());
    assert!(ledger.intent(intent).wait(PATIENCE), "on disk before anything is started");
    let row = living(&file).expect("read").remove(0);
    assert_eq!((row.state, row.spawn, &row.identity), (State::Intent, spawn, &None));
    assert_eq!((row.argv.join(" "), row.dir.as_str()), ("sleep --token ***".into(), "/tmp"));
    assert_eq!(row.release, release);
    assert!(matches!(row.policy, Policy::Exempt { expires: Some(_), .. }), "{row:?}");
    assert_eq!(row.verify().child, Standing::Unknown);

    let mut child = Sleeper::new();
    started(&ledger, spawn, &child);
    written(&ledger);
    let row = ledger.living().expect("read").remove(0);
    assert_eq!((row.state, &row.owner), (State::Running, &Identity::own()));
    let who = row.identity.clone().expect("identity");
    assert_eq!(who.pid, child.0.id());
    assert!(who.start.is_some() && who.boot == BootId::current());
    assert_eq!((row.verify().child, row.verify().owner), (Standing::Same, Standing::Same));
    assert!(row.open().is_some() && !row.verify().is_leftover());

    child.end();
    assert_eq!(row.verify().child, Standing::Gone);
    assert!(row.open().is_none());
    ledger.ending(spawn, EndedBy::Owner, "asked");
    ledger.exited(spawn, ExitStatus::Signal { signal: 9, core_dumped: false });
    written(&ledger);
    assert_eq!(ledger.living().expect("read").len(), 1, "its scope is not empty yet");
    ledger.ended(spawn, None, EndedBy::Itself, "");
    written(&ledger);
    assert_eq!(ledger.living().expect("read"), []);
    let row = ledger.history(9).expect("read").remove(0);
    let killed = ExitStatus::Signal { signal: 9, core_dumped: false };
    assert_eq!((row.state, row.end), (State::Ended, Some(End::Exited(killed))));
    assert_eq!((row.ended_by, row.why.as_str()), (Some(EndedBy::Owner), "asked"));
}

#[test]
fn it_is_private_and_does_not_sync_for_each_row() {
    let (_dir, file) = scratch();
    let ledger = Ledger::open(&file);
    assert!(ledger.intent(intent("a")).wait(PATIENCE));
    let mode = |path: &Path| fs::metadata(path).expect("metadata").permissions().mode() & 0o777;
    assert_eq!(mode(file.parent().expect("dir")), 0o700);
    for suffix in ["", "-wal", "-shm", ".lock"] {
        let mut name = file.clone().into_os_string();
        name.push(suffix);
        assert_eq!(mode(Path::new(&name)), 0o600, "{name:?}");
    }
    let mode: String = Connection::open(&file)
        .expect("open")
        .pragma_query_value(None, "journal_mode", |row| row.get(0))
        .expect("mode");
    assert_eq!(mode, "wal");
}

/// Another user's state directory, or one that cannot be reached: that there is no ledger would be a guess.
#[test]
fn one_that_cannot_be_seen_is_not_one_that_is_not_there() {
    let (dir, file) = scratch();
    assert!(living(&file).expect("none is no error").is_empty());
    let around = dir.path().join("around");
    std::os::unix::fs::symlink(&around, &around).expect("link");
    let error = living(&around.join("ledger.sqlite")).expect_err("it cannot be known");
    assert!(error.to_string().contains("symbolic link"), "{error}");
}

#[test]
fn a_clock_that_was_set_back_changes_no_order() {
    let (_dir, file) = scratch();
    let ledger = Ledger::open(&file);
    for purpose in ["a", "b", "c"] {
        assert!(ledger.intent(intent(purpose)).wait(PATIENCE));
    }
    let connection = Connection::open(&file).expect("open");
    connection
        .execute("UPDATE children SET intent_at = 9 WHERE purpose = 'c'", [])
        .expect("update");
    assert_eq!(purposes(&ledger.living().expect("read")), ["a", "b", "c"]);
    assert_eq!(purposes(&ledger.history(2).expect("read")), ["c", "b"]);
}

#[test]
fn a_spawn_waits_two_seconds_for_a_busy_ledger_and_the_row_is_written_later() {
    let (_dir, file) = scratch();
    let ledger = Ledger::open(&file);
    let other = Connection::open(&file).expect("open");
    other.execute_batch("BEGIN EXCLUSIVE").expect("lock");
    let spawn = next_spawn();
    let began = Instant::now();
    let late =
        ledger.intent(Intent::new(spawn, Path::new("x"), &[]).purpose("late")).wait(PATIENCE);
    assert!(!late && began.elapsed() >= Duration::from_millis(1500), "{:?}", began.elapsed());
    assert!(began.elapsed() < Duration::from_secs(8), "the spawn goes on: {:?}", began.elapsed());
    wait_for("it is said", || ledger.trouble());
    let began = Instant::now();
    assert!(!ledger.intent(intent("later")).wait(PATIENCE));
    assert!(
        began.elapsed() < Duration::from_millis(1500),
        "known to be busy: {:?}",
        began.elapsed()
    );
    let child = Sleeper::new();
    started(&ledger, spawn, &child);
    other.execute_batch("COMMIT").expect("unlock");
    written(&ledger);
    let rows = ledger.living().expect("read");
    assert_eq!(purposes(&rows), ["late", "later"]);
    assert_eq!((rows[0].verify().child, ledger.trouble()), (Standing::Same, None));
    assert!(ledger.intent(intent("again")).wait(PATIENCE));
}

/// Where a file was moved to.
fn aside(file: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(file.parent().expect("dir")).expect("dir");
    let paths = entries.map(|entry| entry.expect("entry").path());
    paths.filter(|path| path.to_string_lossy().contains(".aside-")).collect()
}

/// What is at `file` is moved aside, and a fresh ledger works in its place.
fn assert_moved_aside(file: &Path, what: &str) {
    let ledger = Ledger::open(file);
    assert!(ledger.intent(intent(what)).wait(PATIENCE), "{what}: {:?}", ledger.trouble());
    assert_eq!(purposes(&ledger.living().expect("read")), [what], "nothing old is taken over");
    let aside = aside(file);
    assert_eq!(aside.len(), 1, "{what}: {aside:?}");
    let remarks = ledger.remarks();
    assert!(remarks[0].contains(&*aside[0].to_string_lossy()), "{what}: {remarks:?}");
    let sql = "SELECT detail FROM events WHERE what = 'opened'";
    let noted: String =
        Connection::open(file).expect("open").query_row(sql, [], |row| row.get(0)).expect("note");
    assert_eq!(noted, remarks[0]);
}

#[test]
fn c58_a_file_that_is_not_a_ledger_is_moved_aside() {
    let (_dir, file) = scratch();
    fs::create_dir_all(file.parent().expect("dir")).expect("dir");
    let remove_aside = || {
        aside(&file).iter().for_each(|path| {
            let _gone = fs::remove_file(path).or_else(|_| fs::remove_dir(path));
        })
    };
    let fresh = || {
        remove_aside();
        for suffix in ["", "-wal", "-shm"] {
            let mut name = file.clone().into_os_string();
            name.push(suffix);
            let _gone = fs::remove_file(name);
        }
    };
    fs::write(&file, b"something else, long enough to have a header of its own".repeat(40))
        .expect("write");
    assert_moved_aside(&file, "garbage");

    fresh();
    fs::create_dir(&file).expect("dir");
    assert_moved_aside(&file, "directory");

    fresh();
    Connection::open(&file)
        .expect("open")
        .execute_batch("CREATE TABLE songs (name)")
        .expect("table");
    assert_moved_aside(&file, "foreign");

    fresh();
    drop(Ledger::open(&file).intent(intent("old")));
    let whole = fs::read(&file).expect("read");
    fs::write(&file, &whole[..5000]).expect("write");
    assert_moved_aside(&file, "truncated");

    fresh();
    fs::write(&file, b"").expect("write");
    let ledger = Ledger::open(&file);
    assert!(ledger.intent(intent("empty")).wait(PATIENCE));
    assert_eq!((ledger.remarks(), aside(&file)), (vec![], vec![]), "an empty file is a fresh one");
}

#[test]
fn damage_that_is_met_while_writing_moves_the_file_and_the_living_are_written_again() {
    let (_dir, file) = scratch();
    let ledger = Ledger::open(&file);
    for number in 0..50 {
        assert!(ledger.intent(intent(&number.to_string())).wait(PATIENCE));
    }
    // All pages but the first become noise, in the file and in its log.
    let connection = Connection::open(&file).expect("open");
    connection.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(())).expect("checkpoint");
    let mut bytes = fs::read(&file).expect("read");
    bytes[4096..].fill(0x5a);
    fs::write(&file, bytes).expect("write");
    drop(connection);
    let _late = ledger.intent(intent("after")).wait(PATIENCE);
    written(&ledger);
    assert!(!aside(&file).is_empty());
    let rows = ledger.living().expect("read");
    assert_eq!(rows.len(), 51, "{:?}", ledger.remarks());
    assert!(
        ledger.remarks().iter().any(|remark| remark.contains(".aside-")),
        "{:?}",
        ledger.remarks()
    );
}

#[test]
fn a_file_that_is_taken_away_is_begun_again_with_all_that_lives() {
    let (_dir, file) = scratch();
    let ledger = Ledger::open(&file);
    assert!(ledger.intent(intent("a")).wait(PATIENCE));
    for suffix in ["", "-wal", "-shm"] {
        let mut name = file.clone().into_os_string();
        name.push(suffix);
        fs::remove_file(name).expect("remove");
    }
    let _late = ledger.intent(intent("b")).wait(PATIENCE);
    written(&ledger);
    let rows = ledger.living().expect("read");
    let mut purposes = purposes(&rows);
    purposes.sort_unstable();
    assert_eq!(purposes, ["a", "b"]);
}

/// A folder that was deleted stays so, whoever still has something to write; made again, it gets all that lives.
#[test]
fn a_folder_that_is_taken_away_is_not_made_again() {
    let (_dir, file) = scratch();
    let folder = file.parent().expect("a folder");
    let ledger = Ledger::begin(&file);
    assert!(folder.is_dir(), "at once: nobody who deletes it is too early");
    assert!(ledger.intent(intent("a")).wait(PATIENCE));
    fs::remove_dir_all(folder).expect("remove");
    let _late = ledger.intent(intent("b")).wait(PATIENCE);
    wait_for("it is said", || {
        assert!(!folder.exists());
        ledger.trouble().filter(|why| why.contains("it was deleted"))
    });
    fs::create_dir(folder).expect("make");
    written(&ledger);
    assert_eq!(ledger.living().expect("read").len(), 2);
    fs::remove_dir_all(folder).expect("remove");
    drop(ledger.intent(intent("c")));
    drop(ledger);
    assert!(!folder.exists());
}

#[test]
fn a_place_that_takes_nothing_holds_nobody_up_and_gets_the_rows_later() {
    let dir = tempfile::tempdir().expect("dir");
    // A file where its directory would be; read-only modes do not stop root.
    let place = dir.path().join("state");
    fs::write(&place, b"").expect("write");
    let file = place.join("ledger.sqlite");
    let ledger = Ledger::open(&file);
    let began = Instant::now();
    assert!(ledger.trouble().is_some());
    for number in 0..20 {
        assert!(!ledger.intent(intent(&number.to_string())).wait(PATIENCE));
    }
    assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
    fs::remove_file(&place).expect("remove");
    written(&ledger);
    assert_eq!(ledger.living().expect("read").len(), 20);
}

#[test]
fn a_read_only_directory_is_trouble_and_no_failure() {
    // As somebody whom modes stop.
    let (dir, file) = scratch();
    let state = file.parent().expect("dir");
    fs::create_dir(state).expect("dir");
    fs::set_permissions(state, fs::Permissions::from_mode(0o500)).expect("mode");
    let ledger = Ledger::open(&file);
    let wrote = ledger.intent(intent("a")).wait(PATIENCE);
    assert_eq!(wrote, ledger.trouble().is_none());
    if wrote {
        eprintln!("NOT SHOWN: this user may write into read-only directories");
    }
    fs::set_permissions(state, fs::Permissions::from_mode(0o700)).expect("mode");
    written(&ledger);
    assert_eq!(purposes(&ledger.living().expect("read")), ["a"]);
    drop(dir);
}

/// Runs a script of the shell in a mount namespace of its own, or says that this machine has none.
fn in_mounts(script: &str, arguments: &[&Path]) -> Option<String> {
    let mut command = Command::new("unshare");
    command
        .args(["--user", "--map-root-user", "--mount", "sh", "-c", script, "sh"])
        .args(arguments);
    let output = command.output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).into_owned())
}

#[test]
fn a_full_disk_holds_nobody_up_and_gets_the_rows_later() {
    let dir = tempfile::tempdir().expect("dir");
    let script = r#"
        mount -t tmpfs -o size=400k tmpfs "$1" || exit 9
        dd if=/dev/zero of="$1/ballast" bs=1k count=320 2>/dev/null
        { sleep 3; rm "$1/ballast"; } >/dev/null 2>&1 &
        exec "$2" "$1/ledger.sqlite" 300"#;
    let began = Instant::now();
    match in_mounts(script, &[dir.path(), &support::example("ledger-writer")]) {
        Some(longest) => {
            let took = began.elapsed();
            assert!(took > Duration::from_secs(2), "it was never full: {took:?}");
            let longest: u64 = longest.trim().parse().expect("the writer flushed all");
            assert!(longest < 8000, "a spawn waited {longest} ms");
        }
        None => eprintln!("NOT SHOWN: no mount namespace here, so no small disk"),
    }
}

#[test]
fn a_version_1_file_is_read_and_brought_up_to_date() {
    let (_dir, file) = scratch();
    fs::create_dir_all(file.parent().expect("dir")).expect("dir");
    let fixture = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/ledger-v1.sqlite");
    fs::copy(fixture, &file).expect("copy");
    let check = |rows: Vec<Row>| {
        assert_eq!(rows.iter().map(|row| row.spawn).collect::<Vec<_>>(), [14, 13, 12, 11]);
        assert_eq!(rows[3].end, Some(End::Exited(ExitStatus::Code(1))));
        assert_eq!(
            (rows[3].argv.join(" "), &rows[3].ended_by),
            ("cc -c".into(), &Some(EndedBy::Itself))
        );
        assert_eq!(
            (rows[2].end, rows[2].ended_by),
            (Some(End::Left(2)), Some(EndedBy::Supervisor))
        );
        assert!(
            matches!(&rows[1].policy, Policy::Exempt { reason, .. } if reason.contains("warm"))
        );
        assert_eq!((rows[0].state, &rows[0].identity), (State::Intent, &None));
        // Of another boot: gone, whatever has these numbers now.
        assert_eq!(
            (rows[1].verify().child, rows[1].verify().owner),
            (Standing::Stale, Standing::Stale)
        );
        assert!(rows[1].open().is_none() && !rows[1].verify().is_leftover());
        assert!(rows.iter().all(|row| row.release.is_empty()));
    };
    check(history(&file, 9).expect("as it is"));
    let ledger = Ledger::open(&file);
    check(ledger.history(9).expect("brought up to date"));
    assert_eq!(ledger.remarks(), [] as [String; 0]);
    assert!(ledger.intent(intent("new").release(vec!["true".into()])).wait(PATIENCE));
    let row = ledger.history(1).expect("read").remove(0);
    assert_eq!(row.release, ["true"]);
}

#[test]
fn a_newer_file_is_left_alone_and_rows_go_beside_it() {
    let (_dir, file) = scratch();
    drop(Ledger::open(&file).intent(intent("theirs")));
    let connection = Connection::open(&file).expect("open");
    connection.pragma_update(None, "user_version", 99).expect("version");
    drop(connection);
    let before = fs::read(&file).expect("read");
    let ledger = Ledger::open(&file);
    assert!(ledger.intent(intent("ours")).wait(PATIENCE), "{:?}", ledger.trouble());
    assert!(ledger.remarks()[0].contains("version 99"), "{:?}", ledger.remarks());
    assert_ne!(ledger.path(), file);
    assert_eq!(purposes(&ledger.living().expect("read")), ["ours"]);
    assert_eq!(fs::read(&file).expect("read"), before);
    let error = living(&file).expect_err("newer");
    assert!(error.to_string().contains("newer"), "{error}");
}

#[test]
fn a_row_of_another_boot_is_stale() {
    let (_dir, file) = scratch();
    let ledger = Ledger::open(&file);
    let (spawn, child) = (next_spawn(), Sleeper::new());
    assert!(ledger.intent(Intent::new(spawn, Path::new("sleep"), &[])).wait(PATIENCE));
    started(&ledger, spawn, &child);
    written(&ledger);
    let other = "f".repeat(32);
    let connection = Connection::open(&file).expect("open");
    connection.execute("UPDATE owners SET boot = ?1", [other]).expect("update");
    let row = ledger.living().expect("read").remove(0);
    assert_eq!((row.verify().child, row.verify().owner), (Standing::Stale, Standing::Stale));
    assert!(row.open().is_none() && !row.verify().is_leftover(), "the child that lives is not it");
}

#[test]
fn two_processes_of_one_tick_are_told_apart() {
    let (_dir, file) = scratch();
    let output = Command::new("setsid")
        .args(["-w", "unshare", "--pid", "--fork", "--mount-proc", "--kill-child"])
        .arg(support::example("ledger-writer"))
        .arg("twins")
        .arg(&file)
        .stdin(Stdio::null())
        .output()
        .expect("setsid");
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    match said.trim() {
        "Another inode:true" => {}
        "" | "no twins" => eprintln!(
            "NOT SHOWN: no pid namespace whose numbers can be chosen: {said} {}",
            String::from_utf8_lossy(&output.stderr)
        ),
        "Same inode:false" => eprintln!("NOT SHOWN: pidfds have no inodes of their own here"),
        other => panic!("{other}"),
    }
}

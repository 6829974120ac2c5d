//! A journal gets into the tables exactly once, wherever the folding is killed, and says there what became of
//! the children.
#![expect(
    clippy::disallowed_methods,
    reason = "the folding that is killed is a process of its own"
)]

use std::process::Command;

use super::*;
use crate::identity::BootId;
use crate::journal::Journal;
use crate::ledger::Ledger;

const STEPS: [Step; 6] =
    [Step::Read, Step::Applied, Step::Named, Step::Committed, Step::Removed, Step::Forgotten];

/// An owner that is dead: of another boot.
fn dead_owner() -> Identity {
    Identity { boot: BootId::parse(&"7".repeat(32)), cgroup: None, ..Identity::own() }
}

fn record(at: u64, event: Event) -> Record {
    Record { at, guard: Guard::Supervisor, event }
}

fn started(spawn: u64) -> Event {
    Event::Started {
        spawn,
        pid: 100 + u32::try_from(spawn).expect("small"),
        start: 5,
        inode: 2 + spawn,
    }
}

/// What a supervisor saw: 1 exits, 2 is killed, 3 cannot die, 4 is there at the end.
fn write_journal(dir: &Path) {
    let journal = Journal::open(dir, &dead_owner()).expect("journal");
    let killed = ExitStatus::Signal { signal: 15, core_dumped: false };
    let kill = |spawn, why| Event::KillSent { spawn, pid: 1, signal: 15, why };
    for (at, event) in (10..).zip([
        started(1),
        Event::Exited { spawn: 1, pid: 101, status: ExitStatus::Code(7) },
        kill(1, Why::Leftover),
        Event::Emptied { spawn: 1, leftovers: 1 },
        started(2),
        kill(2, Why::Asked),
        Event::Exited { spawn: 2, pid: 102, status: killed },
        Event::Emptied { spawn: 2, leftovers: 0 },
        started(3),
        started(4),
        Event::OwnerGone,
        Event::SweepBegun,
        kill(3, Why::OwnerGone),
        Event::Left { spawn: 3, pid: 103 },
        Event::SweepEnded { left: 1 },
    ]) {
        journal.append(&record(at, event)).expect("append");
    }
}

fn connection(dir: &Path) -> Connection {
    let path = dir.join("ledger");
    if !path.exists() {
        assert!(Ledger::open(&path).trouble().is_none());
    }
    Connection::open(path).expect("open")
}

fn told(connection: &Connection) -> Vec<(u64, State, Option<End>, Option<EndedBy>)> {
    let rows = database::select(connection, &Which::Newest(99)).expect("rows");
    rows.iter().rev().map(|row| (row.spawn, row.state, row.end, row.ended_by)).collect()
}

fn count(connection: &Connection, table: &str) -> i64 {
    let sql = format!("SELECT count(*) FROM {table}");
    connection.query_row(&sql, [], |row| row.get(0)).expect("count")
}

fn assert_folded(connection: &Connection, dir: &Path) {
    let killed = ExitStatus::Signal { signal: 15, core_dumped: false };
    assert_eq!(
        told(connection),
        [
            (1, State::Ended, Some(End::Exited(ExitStatus::Code(7))), Some(EndedBy::Itself)),
            (2, State::Ended, Some(End::Exited(killed)), Some(EndedBy::Owner)),
            (3, State::Ended, Some(End::Left(1)), Some(EndedBy::Supervisor)),
            (4, State::Running, None, None),
        ]
    );
    assert_eq!(count(connection, "events"), 7, "three signals, one left, three of the owner");
    assert_eq!(count(connection, "folded"), 0);
    assert_eq!(journal::files(dir).expect("files"), [] as [PathBuf; 0]);
}

#[test]
fn a_finished_journal_is_folded_once() {
    let dir = tempfile::tempdir().expect("dir");
    write_journal(dir.path());
    let mut connection = connection(dir.path());
    assert_eq!(fold(&mut connection, dir.path(), &mut |_| {}), Ok(1));
    assert_folded(&connection, dir.path());
    assert_eq!(fold(&mut connection, dir.path(), &mut |_| {}), Ok(0));
    let row = &database::select(&connection, &Which::Living).expect("rows")[0];
    let identity = row.identity.clone().expect("identity");
    assert_eq!((identity.pid, identity.start, identity.inode), (104, Some(5), Some(6)));
    assert!(row.purpose.contains("journal"), "{row:?}");
}

#[test]
fn what_the_owner_wrote_stays() {
    let dir = tempfile::tempdir().expect("dir");
    write_journal(dir.path());
    let mut connection = connection(dir.path());
    let transaction = connection.transaction().expect("transaction");
    let owner = database::owner_id(&transaction, &dead_owner()).expect("owner");
    let intent = |spawn, purpose: &str| {
        let intent = Intent::new(spawn, Path::new("/bin/x"), &[]).purpose(purpose);
        Row::of(intent, &dead_owner(), 1)
    };
    let mut ended = intent(1, "ended");
    ended.finish(Some(End::Lost), EndedBy::Owner, "mine", 2);
    // 4 by another number: the owner counts differently. It was gone before its start time was read.
    let mut other = intent(40, "by another number");
    other.identity = Some(Identity { pid: 104, start: None, inode: Some(6), ..dead_owner() });
    let mut gone = intent(30, "has ended, by another number");
    gone.identity = Some(Identity { pid: 103, start: Some(5), inode: None, ..dead_owner() });
    gone.finish(Some(End::Lost), EndedBy::Owner, "", 2);
    for row in [ended, intent(2, "meant"), intent(9, "never started"), other, gone] {
        database::upsert(&transaction, owner, &row).expect("row");
    }
    transaction.commit().expect("commit");
    fold(&mut connection, dir.path(), &mut |_| {}).expect("fold");
    let rows = database::select(&connection, &Which::Newest(99)).expect("rows");
    let row = |spawn| rows.iter().find(|row| row.spawn == spawn).expect("row");
    assert_eq!((row(1).end, row(1).why.as_str()), (Some(End::Lost), "mine"));
    assert_eq!((row(2).purpose.as_str(), row(2).ended_by), ("meant", Some(EndedBy::Owner)));
    assert_eq!(row(9).state, State::Intent);
    assert_eq!(row(40).state, State::Running);
    assert_eq!(rows.len(), 5, "nothing is there twice: {rows:?}");
}

#[test]
fn a_sweep_that_left_nothing_ends_all_that_is_owned() {
    let dir = tempfile::tempdir().expect("dir");
    let journal = Journal::open(dir.path(), &dead_owner()).expect("journal");
    for event in [started(1), Event::OwnerGone, Event::SweepEnded { left: 0 }] {
        journal.append(&record(9, event)).expect("append");
    }
    drop(journal);
    let mut connection = connection(dir.path());
    fold(&mut connection, dir.path(), &mut |_| {}).expect("fold");
    let expected = (1, State::Ended, Some(End::Lost), Some(EndedBy::Supervisor));
    assert_eq!(told(&connection), [expected]);
}

#[test]
fn a_journal_of_a_living_owner_or_a_writing_guard_is_left_alone() {
    let dir = tempfile::tempdir().expect("dir");
    drop(Journal::open(dir.path(), &Identity::own()).expect("journal"));
    let held = Journal::open(dir.path(), &dead_owner()).expect("journal");
    let mut connection = connection(dir.path());
    assert_eq!(fold(&mut connection, dir.path(), &mut |_| {}), Ok(0));
    drop(held);
    assert_eq!(fold(&mut connection, dir.path(), &mut |_| {}), Ok(1));
    assert_eq!(journal::files(dir.path()).expect("files").len(), 1);
}

#[test]
fn killed_at_any_step_it_is_folded_once_all_the_same() {
    for (number, step) in STEPS.iter().enumerate() {
        let dir = tempfile::tempdir().expect("dir");
        write_journal(dir.path());
        drop(connection(dir.path()));
        let status = Command::new(std::env::current_exe().expect("this program"))
            .args(["--exact", "ledger::fold::tests::folds_until_it_is_killed", "--ignored"])
            .env("FOLD_DIR", dir.path())
            .env("FOLD_STEP", number.to_string())
            .output()
            .expect("this program")
            .status;
        use std::os::unix::process::ExitStatusExt;
        assert_eq!(status.signal(), Some(libc::SIGKILL), "{step:?}");
        let mut connection = connection(dir.path());
        fold(&mut connection, dir.path(), &mut |_| {}).expect("fold");
        assert_folded(&connection, dir.path());
    }
}

/// Not a test: the process that the one above kills.
#[test]
#[ignore = "ends this process; started by another test"]
fn folds_until_it_is_killed() {
    let (Some(dir), Ok(step)) = (std::env::var_os("FOLD_DIR"), std::env::var("FOLD_STEP")) else {
        return;
    };
    let dir = PathBuf::from(dir);
    let last = STEPS[step.parse::<usize>().expect("a step")];
    let mut connection = Connection::open(dir.join("ledger")).expect("open");
    let mut kill = |step| {
        if step == last {
            use rustix::process::{Signal, getpid, kill_process};
            kill_process(getpid(), Signal::KILL).expect("kill");
        }
    };
    panic!("not killed: {:?}", fold(&mut connection, &dir, &mut kill));
}

#[test]
fn a_row_is_settled_once() {
    let dir = tempfile::tempdir().expect("dir");
    write_journal(dir.path());
    let mut connection = connection(dir.path());
    fold(&mut connection, dir.path(), &mut |_| {}).expect("fold");
    let row = database::select(&connection, &Which::Living).expect("rows").remove(0);
    let (end, by, why) = (End::Lost, EndedBy::Janitor, "its owner is of another boot");
    let settled = [Settled { row, end, by, why }];
    assert_eq!(settle(&mut connection, &settled, 99).expect("settle"), 1);
    assert_eq!(settle(&mut connection, &settled, 99).expect("settle"), 0);
    assert_eq!(told(&connection)[3], (4, State::Ended, Some(End::Lost), Some(EndedBy::Janitor)));
}

/// What a rule has let live becomes a row of its own, which may outlive its owner; once, however often it is folded.
#[test]
fn what_a_rule_keeps_has_a_row_with_the_reason() {
    let dir = tempfile::tempdir().expect("dir");
    let journal = Journal::open(dir.path(), &dead_owner()).expect("journal");
    let rule = crate::journal::RuleName::of("tmux");
    let spared = Event::Spared { spawn: 1, pid: 7, start: 5, inode: 9, rule };
    for (at, event) in (10..).zip([
        started(1),
        spared,
        // The other guard has met it too.
        spared,
        Event::Emptied { spawn: 1, leftovers: 0 },
        Event::SweepEnded { left: 0 },
    ]) {
        journal.append(&record(at, event)).expect("append");
    }
    drop(journal);
    let mut connection = connection(dir.path());
    let previewed = preview(&connection, dir.path()).expect("preview");
    assert_eq!(fold(&mut connection, dir.path(), &mut |_| ()), Ok(1));
    let rows = database::select(&connection, &Which::Living).expect("rows");
    let shown = |rows: &[Row]| -> Vec<_> {
        let identity =
            |row: &Row| row.identity.clone().map(|identity| (identity.pid, identity.start));
        rows.iter().map(|row| (row.policy.clone(), identity(row), row.state)).collect()
    };
    let reason = "--keep tmux".to_owned();
    let policy = Policy::Exempt { reason, expires: None };
    assert_eq!(shown(&rows), [(policy, Some((7, Some(5))), State::Running)]);
    assert_eq!(shown(&rows), shown(&previewed));
}

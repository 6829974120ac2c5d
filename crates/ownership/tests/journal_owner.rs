//! What both guards write down of an owner: so that a ledger which the owner could not finish is finished by
//! whoever folds the journal, and so that what escaped is known.
#![cfg(feature = "ledger")]
#![expect(clippy::disallowed_methods, reason = "tests run programs and wait with deadlines")]

use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use ownership::journal::{Contents, Event, Guard, Record, Why, read};
use ownership::ledger::{End, EndedBy, Row, State, living};
use ownership::{ExitStatus, Ledger, Owned, Spawn};
use support::{DEADLINE, Identity, owner, shell, start, supervisor_of, wait_for};

mod support;

/// The file names of the journals in a state directory.
fn journals(dir: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(dir.join("journal")).into_iter().flatten();
    entries.map(|entry| entry.expect("entry").path()).collect()
}

/// The only journal of a state directory.
fn contents(dir: &Path) -> Contents {
    let files = journals(dir);
    assert_eq!(files.len(), 1, "{files:?}");
    read(&std::fs::read(&files[0]).expect("read"))
}

fn events(dir: &Path) -> Vec<Event> {
    contents(dir).records.iter().map(|record| record.event).collect()
}

fn sleeper() -> Spawn {
    Spawn::new("sleep").arg("600").grace(Duration::from_millis(300))
}

#[test]
fn guards_write_down_what_they_see_and_do() {
    let dir = tempfile::tempdir().expect("dir");
    let ledger = Arc::new(Ledger::open(dir.path().join("ledger.sqlite")));
    let owner = owner().with_ledger(Arc::clone(&ledger));
    let (asked, _events) = start(&owner, sleeper());
    asked.end(Duration::from_secs(5));
    asked.wait_empty();
    let (mut read_end, write) = std::io::pipe().expect("pipe");
    let script = "trap '' TERM; echo; while :; do sleep 1; done";
    let (stubborn, _events) = start(&owner, shell(script).fd(1, write.into()));
    read_end.read_exact(&mut [0]).expect("it ignores TERM");
    stubborn.end(Duration::from_millis(300));
    stubborn.wait_empty();
    let left = "setsid sleep 600 & exit 7";
    let (leaver, _events) = start(&owner, shell(left).grace(Duration::from_millis(300)));
    leaver.wait_empty();
    assert!(ledger.flush(DEADLINE));
    let mut rows = ledger.history(9).expect("rows");
    rows.reverse();
    let told = events(dir.path());
    for (row, owned) in rows.iter().zip([&asked, &stubborn, &leaver]) {
        let who = row.identity.clone().expect("identity");
        // The ledger may have come too late for the start time.
        let is_it = |event: &&Event| {
            matches!(**event, Event::Started { spawn, pid, start, inode }
                if (spawn, pid, inode) == (row.spawn, owned.pid(), who.inode.unwrap_or(0))
                    && start > 0
                    && who.start.is_none_or(|known| known == start))
        };
        assert_eq!(told.iter().filter(is_it).count(), 1, "{row:?} {told:?}");
    }
    let [asked, stubborn, leaver] = [&rows[0], &rows[1], &rows[2]].map(|row| row.spawn);
    let signals = |of| -> Vec<_> {
        let sent = told.iter().filter_map(|event| {
            let Event::KillSent { spawn, signal, why, .. } = *event else { return None };
            (spawn == of).then_some((signal, why))
        });
        let mut sent: Vec<_> = sent.collect();
        sent.dedup();
        sent
    };
    assert_eq!(signals(asked), [(libc::SIGTERM, Why::Asked)]);
    assert_eq!(signals(stubborn), [(libc::SIGTERM, Why::Asked), (libc::SIGKILL, Why::GraceOver)]);
    assert_eq!(signals(leaver), [(libc::SIGTERM, Why::Leftover)]);
    assert!(told.contains(&Event::Emptied { spawn: leaver, leftovers: 1 }), "{told:?}");
    let seven = ExitStatus::Code(7);
    let exited = |event: &Event| matches!(*event, Event::Exited { spawn, status, .. } if spawn == leaver && status == seven);
    assert!(told.iter().any(exited), "{told:?}");
    assert_eq!(contents(dir.path()).skipped, 0);
}

#[test]
fn a_guard_that_takes_over_writes_on_and_says_so() {
    let dir = tempfile::tempdir().expect("dir");
    let owner = owner().with_journal(dir.path());
    let (first, _events) = start(&owner, sleeper());
    let supervisor = supervisor_of(&first);
    let keeper = supervisor.parent().expect("keeper");
    supervisor.kill();
    let (second, _events) = next(&owner, supervisor);
    let successor = supervisor_of(&second);
    assert_eq!(successor.parent(), Some(keeper), "the keeper went on");
    Identity::of(keeper).expect("keeper").kill();
    let (third, _events) = next(&owner, successor);
    let children = [first, second, third];
    for child in &children {
        child.kill();
        child.wait_empty();
    }
    let dead = |who: i32| who.cast_unsigned();
    let records = contents(dir.path()).records;
    let dead_guard = |record: &Record| {
        let Event::Takeover { pid, .. } = record.event else { return None };
        Some(pid)
    };
    let takeovers: Vec<_> = records.iter().filter_map(dead_guard).collect();
    assert_eq!(takeovers, [dead(supervisor.pid), dead(keeper)]);
    let count = |guard, wanted: fn(&Event) -> bool| {
        records.iter().filter(|r| r.guard == guard && wanted(&r.event)).count()
    };
    for child in &children {
        // By the keeper, where its supervisor was killed before it could.
        let of_child =
            |event: &Event| matches!(event, Event::Started { pid, .. } if *pid == child.pid());
        assert!(records.iter().any(|record| of_child(&record.event)), "{records:?}");
    }
    let is_end = |event: &Event| matches!(event, Event::Emptied { .. });
    assert!(count(Guard::Keeper, is_end) >= 1, "the first one came to the keeper: {records:?}");
}

/// A child of the supervisor that follows this one.
fn next(
    owner: &ownership::Owner,
    before: Identity,
) -> (Owned, std::sync::mpsc::Receiver<ownership::ChildEvent>) {
    wait_for("another supervisor", || {
        let (child, events) = start(owner, sleeper());
        (supervisor_of(&child) != before).then_some((child, events))
    })
}

#[test]
fn no_child_learns_of_the_journal() {
    let dir = tempfile::tempdir().expect("dir");
    let owner = owner().with_journal(dir.path());
    let (read, write) = std::io::pipe().expect("pipe");
    let script = "env; ls -l /proc/self/fd/";
    let (_child, _events) = start(&owner, shell(script).fd(1, write.into()));
    let said = std::io::read_to_string(read).expect("read");
    assert!(said.contains("OWNERSHIP_TAG="), "{said}");
    assert!(!said.contains("JOURNAL") && !said.contains("journal"), "{said}");
    assert_eq!(journals(dir.path()).len(), 1);
}

/// A `record-owner` and the numbers of its children.
fn record_owner(dir: &Path) -> (Child, Vec<u32>) {
    let mut owner = Command::new(support::example("record-owner"));
    let owner = owner.arg("own").arg(dir).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut owner = owner.spawn().expect("record-owner");
    let mut line = String::new();
    BufReader::new(owner.stdout.take().expect("stdout")).read_line(&mut line).expect("read");
    (owner, line.split_whitespace().map(|pid| pid.parse().expect("pid")).collect())
}

#[test]
fn a_killed_owner_has_its_rows_ended_by_its_guards() {
    let dir = tempfile::tempdir().expect("dir");
    let file = dir.path().join("ledger.sqlite");
    let (mut owner, children) = record_owner(dir.path());
    // An intent whose start nobody could write down any more.
    let stuck = "UPDATE children SET state = 'intent', pid = NULL, start = NULL, inode = NULL
                 WHERE purpose = 'second'";
    rusqlite::Connection::open(&file).expect("open").execute(stuck, []).expect("update");
    owner.kill().expect("kill");
    owner.wait().expect("wait");
    let ledger = Ledger::open(&file);
    wait_for("the journal is folded", || {
        (ledger.review(dir.path()).expect("review").folded == 1).then_some(())
    });
    assert_eq!(living(&file).expect("rows"), []);
    let mut rows = ledger.history(9).expect("rows");
    rows.sort_by_key(|row: &Row| row.spawn);
    let told: Vec<_> = rows.iter().map(|row| (row.state, row.ended_by, row.why.as_str())).collect();
    let expected = (State::Ended, Some(EndedBy::Supervisor), "its owner was gone");
    assert_eq!(told, [expected; 4], "one row each: {rows:?}");
    let term = End::Exited(ExitStatus::Signal { signal: libc::SIGTERM, core_dumped: false });
    assert!(rows.iter().all(|row| row.end == Some(term)), "{rows:?}");
    let pids: Vec<_> = rows.iter().filter_map(|row| Some(row.identity.as_ref()?.pid)).collect();
    assert_eq!(pids, children, "the stuck one is known again");
    assert_eq!(journals(dir.path()), [] as [PathBuf; 0]);
}

/// Owner and both guards killed together: nobody is there who could end its children. The ledger says which
/// these are.
#[test]
fn what_escapes_a_triple_kill_is_named_and_left_alone() {
    let dir = tempfile::tempdir().expect("dir");
    let mut fence = Command::new("setsid");
    fence.args(["-w", "unshare", "--pid", "--fork", "--mount-proc", "--kill-child"]);
    fence.arg(support::example("record-owner")).arg("escape").arg(dir.path());
    let output = fence.output().expect("unshare");
    let said = String::from_utf8_lossy(&output.stdout);
    let wrong = String::from_utf8_lossy(&output.stderr);
    if wrong.contains("unshare: unshare failed") {
        println!("SKIPPED: no pid namespace can be made here");
        return;
    }
    assert!(output.status.success() && said.ends_with("seen\n"), "{said}\n{wrong}");
    let named = said.lines().filter(|line| line.starts_with("sleep (pid ")).count();
    assert_eq!(named, 4, "three rows, and one by its mark: {said}");
    assert!(said.contains("which is dead"), "{said}");
}

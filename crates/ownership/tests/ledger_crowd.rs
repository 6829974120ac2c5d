//! Many writers on one ledger: none of their rows is lost, one that is stopped holds up nobody for long, and one
//! that is killed leaves no half rows.
#![cfg(feature = "ledger")]
#![expect(clippy::disallowed_methods, reason = "tests run programs and wait with deadlines")]

use std::collections::BTreeMap;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use ownership::ledger::{End, Ledger, PATIENCE, Row, State, history, living};
use rusqlite::Connection;
use rustix::process::{Pid, Signal, kill_process};
use support::wait_for;

mod support;

fn writer(file: &Path, children: usize) -> Child {
    Command::new(support::example("ledger-writer"))
        .arg(file)
        .arg(children.to_string())
        .stdout(Stdio::piped())
        .spawn()
        .expect("ledger-writer")
}

/// Waits for it; the longest wait of one of its spawns.
fn longest(mut writer: Child) -> Duration {
    let mut said = String::new();
    writer.stdout.take().expect("stdout").read_to_string(&mut said).expect("read");
    assert!(writer.wait().expect("wait").success());
    Duration::from_millis(said.trim().parse().expect("a number"))
}

fn signal(writer: &Child, signal: Signal) {
    let pid = Pid::from_raw(writer.id().cast_signed()).expect("pid");
    kill_process(pid, signal).expect("signal");
}

fn by_owner(rows: &[Row]) -> BTreeMap<u32, Vec<&Row>> {
    let mut owners = BTreeMap::<_, Vec<_>>::new();
    for row in rows {
        owners.entry(row.owner.pid).or_default().push(row);
    }
    owners
}

fn scratch() -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().expect("dir");
    let file = dir.path().join("ledger.sqlite");
    (dir, file)
}

#[test]
fn c57_sixteen_writers_with_one_stopped_lose_no_row() {
    const WRITERS: usize = 16;
    const ROWS: usize = 1000;
    let (_dir, file) = scratch();
    let mut writers: Vec<_> = (0..WRITERS).map(|_| writer(&file, ROWS)).collect();
    let stopped = writers.remove(0);
    let pid = stopped.id();
    let of_stopped = || {
        let rows = history(&file, u32::MAX).unwrap_or_default();
        rows.iter().filter(|row| row.owner.pid == pid).count()
    };
    let all = || history(&file, u32::MAX).unwrap_or_default().len();
    // One of sixteen times it holds the lock when it is stopped, and then all wait for it: see the next test.
    for tenth in 1.. {
        wait_for("it is in the middle of its rows", || {
            (of_stopped() > tenth * ROWS / 10).then_some(())
        });
        signal(&stopped, Signal::STOP);
        let (before, began) = (all(), Instant::now());
        while all() == before && began.elapsed() < Duration::from_secs(3) {
            std::thread::sleep(Duration::from_millis(10));
        }
        if all() > before {
            break;
        }
        signal(&stopped, Signal::CONT);
    }
    assert!(of_stopped() < ROWS, "stopped in the middle");
    let waits: Vec<_> = writers.into_iter().map(longest).collect();
    // Generous: the bound is 2 s, the machine is crowded.
    let worst = waits.iter().max().expect("writers");
    assert!(*worst < PATIENCE + Duration::from_secs(4), "a spawn waited {worst:?}");
    signal(&stopped, Signal::CONT);
    longest(stopped);

    let rows = history(&file, u32::MAX).expect("read");
    let owners = by_owner(&rows);
    assert_eq!(owners.len(), WRITERS);
    for (owner, rows) in owners {
        let mut numbers: Vec<usize> =
            rows.iter().map(|row| row.purpose.parse().expect("number")).collect();
        numbers.sort_unstable();
        assert_eq!(numbers, (0..ROWS).collect::<Vec<_>>(), "owner {owner}");
        assert!(rows.iter().all(|row| row.state == State::Ended && row.identity.is_some()));
    }
    assert_eq!(living(&file).expect("read"), []);
}

#[test]
fn a_lock_that_is_held_loses_no_row_of_those_who_wait() {
    let (_dir, file) = scratch();
    drop(Ledger::open(&file));
    // The lock is held by this process, as a stopped one would hold it.
    let other = Connection::open(&file).expect("open");
    other.execute_batch("BEGIN IMMEDIATE").expect("lock");
    let crowd: Vec<_> = (0..4).map(|_| writer(&file, 200)).collect();
    wait_for("all of them have it open", || {
        let blocked = crowd.iter().filter(|writer| has_opened(writer.id())).count();
        (blocked == crowd.len()).then_some(())
    });
    other.execute_batch("COMMIT").expect("unlock");
    for writer in crowd {
        let wait = longest(writer);
        assert!(wait < PATIENCE + Duration::from_secs(4), "a spawn waited {wait:?}");
    }
    assert_eq!(history(&file, u32::MAX).expect("read").len(), 4 * 200);
}

/// Whether it runs and has opened its ledger's file.
fn has_opened(pid: u32) -> bool {
    std::fs::read_to_string(format!("/proc/{pid}/maps"))
        .is_ok_and(|maps| maps.contains("ledger.sqlite-shm"))
}

#[test]
fn a_writer_that_is_killed_leaves_whole_rows_and_a_file_that_opens() {
    let (_dir, file) = scratch();
    let mut kept = 0;
    for round in 1..=25_usize {
        let mut victim = writer(&file, 100_000);
        let pid = victim.id();
        let of_victim = || {
            let rows = history(&file, 200).unwrap_or_default();
            rows.iter().filter(|row| row.owner.pid == pid).count()
        };
        wait_for("it writes", || (of_victim() > round * 7 % 60).then_some(()));
        victim.kill().expect("kill");
        victim.wait().expect("wait");
        let ledger = Ledger::open(&file);
        assert_eq!((ledger.remarks(), ledger.trouble()), (vec![], None), "round {round}");
        let rows = ledger.history(u32::MAX).expect("read");
        assert!(rows.len() > kept, "what was there stays");
        kept = rows.len();
        for row in &rows {
            let is_whole = match row.state {
                State::Intent => row.end.is_none() && row.identity.is_none(),
                State::Running => row.end.is_none() && row.identity.is_some(),
                State::Ended => matches!(row.end, Some(End::Exited(_))) && row.identity.is_some(),
                _ => false,
            };
            assert!(is_whole && row.executable == "/bin/true", "{row:?}");
        }
    }
    let check = "PRAGMA integrity_check";
    let verdict: String = Connection::open(&file)
        .expect("open")
        .query_row(check, [], |row| row.get(0))
        .expect("check");
    assert_eq!(verdict, "ok");
}

//! Rows and journal records of what does not end with its child: release commands, and what was let live. And
//! what is missing where guards keep no journal.
#![cfg(feature = "ledger")]
#![expect(clippy::disallowed_methods, reason = "tests run programs and wait with deadlines")]

mod support;

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use ownership::journal::{Event, read};
use ownership::ledger::{End, EndedBy, Row, State, living};
use ownership::{ChildEvent, ExitStatus, Ledger, Leftovers, Released, Spawn};
use support::{DEADLINE, Identity, no_hooks, owner, recorded, shell, start, wait_for};

const GRACE: Duration = Duration::from_millis(200);

struct Scratch {
    dir: tempfile::TempDir,
    file: PathBuf,
    ledger: Arc<Ledger>,
}

impl Scratch {
    fn new() -> Self {
        let dir = tempfile::tempdir().expect("dir");
        let file = dir.path().join("ledger.sqlite");
        Self { ledger: Arc::new(Ledger::open(&file)), file, dir }
    }

    /// The newest row once all is written.
    fn row(&self) -> Row {
        assert!(self.ledger.flush(DEADLINE), "{:?}", self.ledger.trouble());
        self.ledger.history(1).expect("read").remove(0)
    }

    fn ended(&self) -> Row {
        wait_for("the row has ended", || Some(self.row()).filter(|row| row.state == State::Ended))
    }
}

fn events(dir: &Path) -> Vec<Event> {
    let files = std::fs::read_dir(dir.join("journal")).into_iter().flatten();
    let read_one = |entry: std::io::Result<std::fs::DirEntry>| {
        read(&std::fs::read(entry.expect("entry").path()).expect("read")).records
    };
    files.flat_map(read_one).map(|record| record.event).collect()
}

const CASES: [(&[&str], Released, &str); 4] = [
    (&["true"], Released::Ended(ExitStatus::Code(0)), ""),
    (
        &["sh", "-c", "exit 7"],
        Released::Ended(ExitStatus::Code(7)),
        "its release command ended with code 7",
    ),
    (
        &["sh", "-c", "trap '' TERM; sleep 600 & wait; wait"],
        Released::TimedOut,
        "its release command had not ended at its deadline",
    ),
    (
        &["/no/such/program"],
        Released::NotStarted { errno: 2 },
        "its release command was not started: No such file or directory (os error 2)",
    ),
];

/// The command stands in the row before it is run, and what became of it in row and journal.
#[test]
fn a_release_command_and_its_failure_are_written_down() {
    for (command, released, why) in CASES {
        let scratch = Scratch::new();
        let owner = owner().with_ledger(Arc::clone(&scratch.ledger));
        let spawn = Spawn::new("sleep").arg("600").release(command, Duration::from_millis(500));
        let (child, _events) = start(&owner, spawn);
        assert_eq!(scratch.row().release, command, "while it runs");
        child.end(GRACE);
        assert_eq!(child.wait_empty().expect("empty").release, Some(released));
        let row = scratch.ended();
        let all = if why.is_empty() { "asked".to_owned() } else { format!("asked; {why}") };
        assert_eq!((row.why, row.ended_by), (all, Some(EndedBy::Owner)), "{command:?}");
        let told = events(scratch.dir.path());
        let is_it = |event: &&Event| **event == Event::Released { spawn: row.spawn, released };
        assert_eq!(told.iter().filter(is_it).count(), 1, "{command:?}: {told:?}");
        // It is a process too, and nobody's child.
        let started = |event: &&Event| matches!(event, Event::Started { spawn: 0, .. });
        let starts = usize::from(!matches!(released, Released::NotStarted { .. }));
        assert_eq!(told.iter().filter(started).count(), starts, "{command:?}: {told:?}");
    }
}

/// A child without one has nothing of the kind.
#[test]
fn a_child_without_a_release_command_has_no_word_of_one() {
    let scratch = Scratch::new();
    let owner = owner().with_ledger(Arc::clone(&scratch.ledger));
    let (child, _events) = start(&owner, shell("exit 3"));
    child.wait_empty().expect("empty");
    let row = scratch.ended();
    assert_eq!((row.why.as_str(), row.release.len()), ("", 0));
    let told = events(scratch.dir.path());
    assert!(!told.iter().any(|event| matches!(event, Event::Released { .. })), "{told:?}");
}

/// What was let live keeps the row running, so that it is evidence; the row ends with the last of it, as the
/// child itself had ended. The child's owner is told one end.
#[test]
fn the_row_of_what_was_let_live_ends_with_it() {
    for policy in [Leftovers::Report, Leftovers::Keep] {
        let scratch = Scratch::new();
        let owner = owner().with_ledger(Arc::clone(&scratch.ledger));
        let script = r#"(setsid sh -c 'echo $$ > "$DIR/left"; exec sleep 600' &)
            while ! [ -s "$DIR/left" ]; do sleep 0.01; done; exit 5"#;
        let spawn = shell(script).env("DIR", scratch.dir.path()).leftovers(policy);
        let (child, told) = start(&owner, spawn.release(["sh", "-c", "exit 7"], DEADLINE));
        let left = recorded(scratch.dir.path(), "left");
        assert_eq!(child.wait_empty().expect("empty").kept, 1);
        drop(child);
        let row = scratch.row();
        let five = ExitStatus::Code(5);
        assert_eq!(
            (row.state, row.exit, row.end),
            (State::Running, Some(five), None),
            "{policy:?}"
        );
        assert_eq!(living(&scratch.file).expect("read").len(), 1, "{policy:?}");
        left.kill();
        let row = scratch.ended();
        let why = "its release command ended with code 7";
        assert_eq!((row.end, row.why.as_str()), (Some(End::Exited(five)), why), "{policy:?}");
        let ends = told.try_iter().filter(|event| !matches!(event, ChildEvent::Exited(_)));
        assert_eq!(ends.count(), 1, "{policy:?}: a child ends once");
    }
}

/// A `record-owner` that lacks a mechanism, and its children.
fn record_owner(how: &str, dirs: &[&Path], off: &str) -> (Child, Vec<Identity>) {
    let mut owner = Command::new(support::example("record-owner"));
    owner.arg(how).args(dirs).env("OWNERSHIP_TEST_OFF", off);
    let mut owner = owner.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("owner");
    let mut line = String::new();
    BufReader::new(owner.stdout.take().expect("stdout")).read_line(&mut line).expect("read");
    let pids = line.split_whitespace().map(|pid| pid.parse().expect("pid"));
    (owner, pids.map(|pid: i32| Identity::of(pid).expect("a child")).collect())
}

/// Negative control of the guards' journal: without it the rows of a dead owner end as lost, and who ended its
/// children, and why, is known to nobody.
#[test]
fn without_a_journal_nobody_knows_how_they_ended() {
    if no_hooks() {
        return;
    }
    for (off, folded) in [("", 1), ("journal", 0)] {
        let dir = tempfile::tempdir().expect("dir");
        let file = dir.path().join("ledger.sqlite");
        let (mut owner, children) = record_owner("own", &[dir.path()], off);
        owner.kill().expect("kill");
        owner.wait().expect("wait");
        wait_for("its children are gone", || {
            (!children.iter().any(|child| child.lives())).then_some(())
        });
        let ledger = Ledger::open(&file);
        let mut taken = 0;
        wait_for("all rows have ended", || {
            taken += ledger.review(dir.path()).expect("review").folded;
            living(&file).expect("rows").is_empty().then_some(())
        });
        assert_eq!(taken, folded, "{off}");
        let rows = ledger.history(9).expect("rows");
        assert_eq!(rows.len(), 4, "{off}");
        let by_guard = rows.iter().all(|row| row.ended_by == Some(EndedBy::Supervisor));
        let lost = rows.iter().all(|row| row.end == Some(End::Lost) && row.exit.is_none());
        assert_eq!((by_guard, lost), (folded == 1, folded == 0), "{off}: {rows:?}");
    }
}

/// One pair of guards keeps one journal, which lies beside the ledger that its owner had first. What was started by
/// way of another one is ended all the same when the owner is killed; its rows end too, but who ended it stands in the
/// first ledger, where it is known from the journal only.
#[test]
fn of_two_ledgers_of_one_owner_the_first_one_has_the_journal() {
    let dirs = [tempfile::tempdir().expect("dir"), tempfile::tempdir().expect("dir")];
    let paths = [dirs[0].path(), dirs[1].path()];
    let (mut owner, children) = record_owner("two", &paths, "");
    owner.kill().expect("kill");
    owner.wait().expect("wait");
    wait_for("its children are gone", || {
        (!children.iter().any(|child| child.lives())).then_some(())
    });
    let [first, second] = paths.map(|dir| Ledger::open(dir.join("ledger.sqlite")));
    wait_for("the first one has the journal", || {
        (first.review(paths[0]).expect("review").folded == 1).then_some(())
    });
    let review = second.review(paths[1]).expect("review");
    assert_eq!((review.folded, review.leftovers.len()), (0, 0), "{review:?}");
    for ledger in [&first, &second] {
        assert_eq!(ledger.living().expect("rows"), []);
    }
    let told = |ledger: &Ledger| -> Vec<_> {
        let rows = ledger.history(9).expect("rows").into_iter().rev();
        rows.map(|row| (row.identity.map(|who| who.pid.cast_signed()), row.ended_by, row.purpose))
            .collect()
    };
    let [one, other] = [children[0].pid, children[1].pid];
    let by_guard = Some(EndedBy::Supervisor);
    let journal_only = "known from a journal only".to_owned();
    assert_eq!(
        told(&first),
        [(Some(one), by_guard, String::new()), (Some(other), by_guard, journal_only)]
    );
    let lost = second.history(9).expect("rows").remove(0);
    assert_eq!((lost.end, lost.exit), (Some(End::Lost), None), "{lost:?}");
}

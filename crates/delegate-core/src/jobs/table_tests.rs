//! The table of jobs over every state in which something may be asked.

use super::*;
use delegate_protocol::SubagentId;

fn child(index: u32) -> Who {
    Who::Child(SubagentId::new(index, 1))
}

fn root() -> Who {
    Who::Parent("".into())
}

fn command() -> Vec<String> {
    ["sleep", "600"].map(str::to_owned).into()
}

fn running(table: &mut Table, who: &Who) -> u64 {
    let job = table.reserve(who, &command(), None, 1_000).unwrap();
    assert!(table.started(job, 7));
    job
}

const DONE: ExitStatus = ExitStatus::Code(3);

/// Starting, running, ended, handed over, a stranger's, and one that nobody knows.
#[test]
fn only_a_running_job_of_its_own_is_handed_over_with_one_sentence() {
    let purpose = "It serves the page.";
    type Make = fn(&mut Table) -> u64;
    let states: [(&str, Make); 6] = [
        ("starting", |table| table.reserve(&child(0), &command(), None, 0).unwrap()),
        ("running", |table| running(table, &child(0))),
        ("ended", |table| {
            let job = running(table, &child(0));
            table.ended(job, DONE, 2_000);
            job
        }),
        ("handed over", |table| {
            let job = running(table, &child(0));
            table.hand_off(&child(0), job, "It runs.", &root()).unwrap();
            job
        }),
        ("a sibling's", |table| running(table, &child(1))),
        ("unknown", |_| 99),
    ];
    for (name, make) in states {
        for (words, fits) in
            [(purpose, true), (" ", false), ("one\ntwo", false), (&*"x".repeat(201), false)]
        {
            let mut table = Table::default();
            let job = make(&mut table);
            let handed = table.hand_off(&child(0), job, words, &root());
            assert_eq!(handed.is_ok(), fits && name == "running", "{name}, {words:?}: {handed:?}");
            let is_roots = (fits && name == "running") || name == "handed over";
            assert_eq!(table.is_of(&root(), job), is_roots, "{name}, {words:?}");
        }
    }
}

#[test]
fn c51_the_fourth_hand_over_is_refused_and_the_job_stays_its_own() {
    let mut table = Table::default();
    for _ in 0..HAND_OFFS {
        let job = running(&mut table, &child(0));
        table.hand_off(&child(0), job, "It runs.", &root()).unwrap();
    }
    let fourth = running(&mut table, &child(0));
    let refused = table.hand_off(&child(0), fourth, "It runs.", &root()).unwrap_err();
    assert!(refused.contains("3 jobs"), "{refused}");
    let other = running(&mut table, &child(1));
    table.hand_off(&child(1), other, "Another child has its own share.", &root()).unwrap();
    let left = table.leave(&child(0));
    assert_eq!((left.handed, left.orphaned, left.unread), (vec![1, 2, 3], vec![fourth], vec![]));
}

#[test]
fn an_end_is_told_once_and_what_was_not_told_is_unread() {
    let mut table = Table::default();
    let (read, unread) = (running(&mut table, &child(0)), running(&mut table, &child(0)));
    for job in [read, unread] {
        assert!(!table.is_over(job));
        table.ended(job, DONE, 3_500);
        table.ended(job, ExitStatus::Code(0), 9_000);
        assert!(table.is_over(job));
    }
    let shown = table.show(read, &"é".repeat(700), 99_000, true).unwrap();
    assert_eq!((shown.exit_code, shown.ended, shown.pid), (Some(3), true, Some(7)));
    assert_eq!((shown.seconds, shown.tail.chars().count()), (2.5, TAIL_CHARS));
    drop(table.show(unread, "", 99_000, false));
    assert_eq!(table.leave(&child(0)).unread, [unread]);
    table.forget_all(&child(0));
    assert!(table.of(&child(0)).is_empty());
    assert!(!table.started(read, 8), "who asked for it is gone");
}

#[test]
fn no_more_run_than_may_and_what_ended_is_kept_for_a_while() {
    let mut table = Table::default();
    let jobs: Vec<u64> = (0..JOBS).map(|_| running(&mut table, &child(0))).collect();
    let refused = table.reserve(&child(1), &command(), None, 0).unwrap_err();
    assert!(refused.contains("64 jobs"), "{refused}");
    for job in &jobs {
        table.ended(*job, DONE, 0);
    }
    for _ in 0..FINISHED {
        let job = running(&mut table, &child(1));
        table.ended(job, DONE, 0);
    }
    assert!(table.of(&child(0)).is_empty(), "the oldest are gone");
    assert_eq!(table.of(&child(1)).len(), FINISHED);
    assert!(table.reserve(&child(0), &[], None, 0).is_err());
    assert!(table.reserve(&child(0), &[String::new()], None, 0).is_err());
}

/// One that lives on is no orphan: it is its parent's when its child ends, and counts among those that are handed over.
#[test]
fn what_lives_on_is_the_parents_when_its_child_ends() {
    let mut table = Table::default();
    let root = root();
    let reserve = |table: &mut Table, reason: &str| {
        table.reserve(&child(0), &command(), Some((reason, &root)), 0)
    };
    for bad in ["", " ", "a\nb", &"x".repeat(201)] {
        assert!(reserve(&mut table, bad).unwrap_err().contains("needs its reason"), "{bad:?}");
    }
    let jobs: Vec<u64> = (0..3).map(|_| reserve(&mut table, "It serves on.").unwrap()).collect();
    assert!(reserve(&mut table, "One more.").unwrap_err().contains("3 jobs were handed over"));
    let plain = running(&mut table, &child(0));
    assert!(table.hand_off(&child(0), plain, "It runs.", &self::root()).is_err());
    // One is not started yet, one has ended: neither lives on.
    assert!(table.started(jobs[1], 8) && table.started(jobs[2], 9));
    table.ended(jobs[2], DONE, 10);
    let left = table.leave(&child(0));
    let expected =
        Left { handed: vec![jobs[1]], orphaned: vec![jobs[0], plain], unread: vec![jobs[2]] };
    assert_eq!(left, expected);
    table.forget_all(&child(0));
    assert_eq!(table.of(&self::root()), [jobs[1]]);
    let shown = table.show(jobs[1], "", 0, false).unwrap();
    assert_eq!(shown.purpose.as_deref(), Some("It serves on."));
    assert!(!table.started(jobs[0], 7), "whoever starts it is told that nobody wants it");
}

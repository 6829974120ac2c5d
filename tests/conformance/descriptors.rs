//! Descriptors: what a child is born with, none is left behind, and the limit is a typed error.

use std::collections::BTreeSet;

use delegate_runtime::config::Settings;
use delegate_runtime::{Cause, Isolation, Status, Task};

use crate::agents::{Descriptors, End, answer, script};
use crate::alone::{alone, descriptors};
use crate::support::{BOTH, command, helper, rig, rig_with, run, wait_for};

/// Starts 8 batches from 8 threads at once.
fn from_eight_threads(
    isolation: Isolation,
    each: usize,
    task: impl Fn() -> Task,
) -> Vec<delegate_runtime::Outcome> {
    let settings = Settings { max_concurrent_children: 8, ..Settings::default() };
    let rig = rig_with(isolation, settings);
    let runs: Vec<_> = (0..8)
        .map(|_| {
            let batch = rig.delegator.batch((0..each).map(|_| task()));
            std::thread::spawn(move || batch.run().unwrap())
        })
        .collect();
    let reports: Vec<_> = runs.into_iter().map(|run| run.join().unwrap()).collect();
    reports.iter().flat_map(|report| report.results().collect::<Vec<_>>()).collect()
}

#[test]
fn rb_19_200_workers_started_side_by_side_have_exactly_their_own_descriptors() {
    let outcomes = from_eight_threads(Isolation::Process, 25, || Task::of::<Descriptors>("d", ()));
    assert_eq!(outcomes.len(), 200);
    for outcome in outcomes {
        let open = outcome.answer::<Descriptors>().unwrap();
        // 5 and 6 are the worker's own copies of 1 and 2, for the output of its commands.
        let numbers: Vec<u32> = open.iter().map(|(number, _)| *number).collect();
        assert_eq!(numbers, [0, 1, 2, 3, 4, 5, 6], "{open:?}");
        assert_eq!((&open[5].1, &open[6].1), (&open[1].1, &open[2].1), "{open:?}");
        assert_eq!(open[0].1, "/dev/null");
        assert!(open[1].1.starts_with("pipe:") && open[2].1.starts_with("pipe:"), "{open:?}");
        assert!(open[3].1.starts_with("socket:") && open[4].1.starts_with("socket:"), "{open:?}");
        // No two of them are the same.
        let own: BTreeSet<&str> = open.iter().map(|(_, target)| target.as_str()).collect();
        assert_eq!(own.len(), 5, "{open:?}");
    }
}

#[test]
fn rb_19_programs_started_side_by_side_have_their_three_descriptors_and_no_other() {
    let lister = helper("lister");
    for (isolation, each) in [(Isolation::Process, 6), (Isolation::Thread, 25)] {
        let outcomes = from_eight_threads(isolation, each, || command("g", [lister.clone()]));
        let mut pipes = BTreeSet::new();
        for outcome in &outcomes {
            let text = outcome.summary.as_ref().expect("a list");
            let open: Vec<_> = text.lines().filter_map(|line| line.strip_prefix("fd ")).collect();
            assert_eq!(open.len(), 3, "{isolation:?} {open:?}");
            for (number, line) in open.iter().enumerate() {
                let (found, target) = line.split_once(' ').unwrap();
                assert_eq!(found, number.to_string());
                assert!(target.starts_with("pipe:"), "{line}");
            }
            pipes.extend(open);
        }
        assert_eq!(outcomes.len(), 8 * each);
        assert!(pipes.len() > 3);
    }
}

#[test]
fn rb_08_descriptors_are_the_same_after_hundreds_of_children() {
    alone("descriptors::inner_count");
}

#[test]
#[ignore = "run by rb_08_descriptors_are_the_same_after_hundreds_of_children, in a process of its own"]
fn inner_count() {
    let bad = script([], End::Panic("p".to_owned()));
    for isolation in BOTH {
        let rig = rig(isolation);
        let round = |count: usize| {
            let tasks = (0..count).map(|index| match index % 10 {
                0 => command("g", ["/nowhere/program"]),
                1 => bad.task("panics"),
                2 => command("g", [helper("crasher"), "kill".to_owned()]),
                3 => command("g", ["true"]),
                _ => script([], answer("ok")).task("well"),
            });
            let (outcomes, report) = run(&rig, tasks);
            assert_eq!(outcomes.len(), count);
            assert!(report.verified_empty());
        };
        // The first round opens what stays open: store, files of logs, supervisor.
        round(40);
        let before = settled();
        round(200);
        let after = settled();
        assert_eq!(after, before, "{isolation:?}");
    }
}

/// Descriptors once their number stands still: threads of ours may still be closing some.
fn settled() -> usize {
    let mut last = (0, 0);
    wait_for("a steady number of descriptors", || {
        let now = descriptors();
        last = if now == last.0 { (now, last.1 + 1) } else { (now, 0) };
        (last.1 > 20).then_some(now)
    })
}

#[test]
fn rb_08_failing_workers_leave_no_descriptor_either() {
    alone("descriptors::inner_failing_count");
}

#[test]
#[ignore = "run by rb_08_failing_workers_leave_no_descriptor_either, in a process of its own"]
fn inner_failing_count() {
    let folder = tempfile::tempdir().unwrap();
    let missing = folder.path().join("worker").display().to_string();
    let settings = Settings { worker_command: Some(vec![missing]), ..Settings::default() };
    let rig = rig_with(Isolation::Process, settings);
    let round = |count: usize| {
        let (outcomes, _) = run(&rig, (0..count).map(|_| Task::new("any", "g")));
        assert!(outcomes.iter().all(|outcome| outcome.status == Status::Error));
    };
    round(20);
    let before = settled();
    round(200);
    assert_eq!(settled(), before);
}

#[test]
fn rb_08_too_many_open_files_is_a_typed_error_and_goes_away() {
    alone("descriptors::inner_limit");
}

#[test]
#[ignore = "run by rb_08_too_many_open_files_is_a_typed_error_and_goes_away, in a process of its own"]
fn inner_limit() {
    use rustix::process::{Resource, Rlimit, setrlimit};
    let rig = rig(Isolation::Process);
    let well = script([], answer("ok"));
    let (outcomes, _) = run(&rig, [well.task("warm")]);
    assert_eq!(outcomes[0].status, Status::Completed);
    // Below the hard limit the delegator would make itself room.
    let tight = Rlimit { current: Some(256), maximum: Some(256) };
    setrlimit(Resource::Nofile, tight).unwrap();
    let mut ballast: Vec<_> =
        std::iter::from_fn(|| std::fs::File::open("/dev/null").ok()).collect();
    ballast.truncate(ballast.len() - 2);
    let report = rig.delegator.batch((0..5).map(|_| well.task("tight"))).run().unwrap();
    drop(ballast);
    let outcomes: Vec<_> = report.results().collect();
    let typed = outcomes.iter().filter(|outcome| {
        matches!(outcome.cause, Some(Cause::StartFailed { errno: Some(24), .. }))
    });
    assert!(
        typed.count() > 0,
        "{:?}",
        outcomes.iter().map(|o| (&o.cause, &o.error)).collect::<Vec<_>>()
    );
    for outcome in &outcomes {
        // A worker that waited needs no new descriptor.
        let waited = outcome.launcher.as_deref() == Some("pool");
        assert!(outcome.status == Status::Error || waited, "{:?}", **outcome);
    }
    // With descriptors free it works again, in the same delegator.
    let (outcomes, report) = run(&rig, (0..5).map(|_| well.task("again")));
    assert!(outcomes.iter().all(|outcome| outcome.status == Status::Completed), "{outcomes:?}");
    assert!(report.verified_empty());
}

#[test]
fn rb_30_places_are_given_back_however_children_end() {
    for isolation in BOTH {
        let settings = Settings { max_concurrent_children: 2, ..Settings::default() };
        let rig = rig_with(isolation, settings);
        let tasks = (0..30).map(|index| match index % 3 {
            0 => script([], End::Panic("p".to_owned())).task("panics"),
            1 => command("g", ["/nowhere/program"]),
            _ => script([], answer("ok")).task("well"),
        });
        let (outcomes, _) = run(&rig, tasks);
        assert_eq!(outcomes.len(), 30);
        let (outcomes, _) = run(&rig, [script([], answer("ok")).task("after")]);
        assert_eq!(outcomes[0].status, Status::Completed);
    }
}

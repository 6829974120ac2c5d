//! Interrupts at any moment, pauses, and handles that are dropped.

use std::time::{Duration, Instant};

use delegate_runtime::config::Settings;
use delegate_runtime::{Event, Isolation, Status, SubagentId, Task, blocking};

use crate::program::{pause, random, seed, state, wait_gone};
use crate::step::{Step, Stepper};
use crate::support::{BOTH, Identity, LIMIT, command, helper, rig, rig_with, run, wait_for};

fn wait() -> Task {
    Task::of::<Stepper>("wait", Step::Wait)
}

fn places(places: u32) -> Settings {
    Settings { max_concurrent_children: places, ..Settings::default() }
}

/// Reads until so many children wait; gives their processes.
fn until_waiting(batch: &mut blocking::Run, count: usize) -> Vec<Identity> {
    let (mut workers, mut waiting) = (Vec::new(), 0);
    while waiting < count {
        match batch.events().next().expect("children that wait") {
            Event::Start { pid, .. } => workers.extend(pid.and_then(Identity::of)),
            Event::Text { .. } => waiting += 1,
            _ => {}
        }
    }
    workers
}

/// From before the launch until after the result.
#[test]
fn rb_28_a_stop_at_any_moment_gives_one_record_each_interrupted_or_completed() {
    let mut seed = seed();
    for isolation in BOTH {
        let rig = rig_with(isolation, places(2));
        let (rounds, window) = match isolation {
            Isolation::Process => (40, 120_000),
            _ => (150, 40_000),
        };
        let mut seen = [0; 2];
        for round in 0..rounds {
            let step = Step::Sleep(random(&mut seed, 15));
            let tasks = (0..4).map(|_| Task::of::<Stepper>("sleep", step.clone()));
            let mut batch = rig.delegator.batch(tasks).start().unwrap();
            let control = batch.control();
            let moment = Duration::from_micros(random(&mut seed, window));
            let how = random(&mut seed, 3);
            let children: Vec<SubagentId> =
                batch.events().take(4).map(|event| event.child()).collect();
            let stopper = std::thread::spawn(move || {
                pause(moment);
                match how {
                    0 => control.interrupt(),
                    1 => control.kill(),
                    _ => children.iter().for_each(|child| control.stop(*child)),
                }
            });
            let mut completes = [0; 4];
            for event in batch.events() {
                if let Event::Complete { child, .. } = event {
                    completes[child.task_index() as usize] += 1;
                }
            }
            stopper.join().unwrap();
            assert_eq!(completes, [1; 4], "{isolation:?} round {round}");
            let report = batch.finish();
            for outcome in report.results() {
                match outcome.status {
                    Status::Completed => seen[0] += 1,
                    Status::Interrupted => seen[1] += 1,
                    _ => panic!("{isolation:?} round {round} how {how}: {outcome:?}"),
                }
            }
            assert!(report.verified_empty(), "{isolation:?} {:?}", report.warnings());
        }
        assert!(
            seen.iter().all(|count| *count > 0),
            "{isolation:?}: both kinds were met: {seen:?}"
        );
    }
}

#[test]
fn rb_31_n_children_have_n_announcements_in_any_order() {
    let mut seed = seed();
    for (isolation, counts) in
        [(Isolation::Thread, (1..=40).collect::<Vec<_>>()), (Isolation::Process, vec![1, 2, 7, 40])]
    {
        let rig = rig_with(isolation, places(8));
        for count in counts {
            let tasks: Vec<_> = (0..count)
                .map(|_| Task::of::<Stepper>("sleep", Step::Sleep(random(&mut seed, 8))))
                .collect();
            let mut batch = rig.delegator.batch(tasks).start().unwrap();
            let mut announced = vec![0; count];
            for event in batch.events() {
                if let Event::Complete { child, .. } = event {
                    announced[child.task_index() as usize] += 1;
                }
            }
            assert_eq!(announced, vec![1; count], "{isolation:?} {count}");
            assert!(batch.finish().all_completed());
        }
    }
}

#[test]
fn dropping_a_run_ends_its_children() {
    let rig = rig(Isolation::Process);
    let mut batch = rig.delegator.batch([wait(), wait()]).start().unwrap();
    let workers = until_waiting(&mut batch, 2);
    drop(batch);
    wait_gone(&workers);
    assert!(run(&rig, [Task::of::<Stepper>("next", Step::Answer("x".into()))]).1.all_completed());
}

#[test]
fn dropping_a_suspended_run_ends_its_children_too() {
    let rig = rig(Isolation::Process);
    let mut batch = rig.delegator.batch([wait(), wait()]).start().unwrap();
    let workers = until_waiting(&mut batch, 2);
    batch.control().suspend();
    wait_stopped(&workers);
    drop(batch);
    wait_gone(&workers);
}

#[test]
fn dropping_the_delegator_leaves_a_running_batch_alone() {
    for isolation in BOTH {
        let rig = rig(isolation);
        let mut batch = rig.delegator.batch([wait()]).start().unwrap();
        until_waiting(&mut batch, 1);
        let crate::support::Rig { delegator, state } = rig;
        drop(delegator);
        batch.control().interrupt();
        assert_eq!(batch.finish().statuses(), [Status::Interrupted]);
        drop(state);
    }
}

#[test]
fn dropping_everything_at_once_ends_the_children_and_does_not_hang() {
    let rig = rig(Isolation::Process);
    let mut batch = rig.delegator.batch([wait()]).start().unwrap();
    let workers = until_waiting(&mut batch, 1);
    drop((rig, batch));
    wait_gone(&workers);
}

#[test]
fn a_control_does_nothing_after_the_end() {
    for isolation in BOTH {
        let rig = rig(isolation);
        let task = Task::of::<Stepper>("answer", Step::Answer("x".to_owned()));
        let mut batch = rig.delegator.batch([task]).start().unwrap();
        let control = batch.control();
        let child = batch.events().last().unwrap().child();
        for _ in 0..2 {
            control.suspend();
            control.stop(child);
            control.interrupt();
            control.kill();
            assert!(control.settle(Duration::from_secs(5)), "nothing to wait for");
            control.resume();
        }
        let report = batch.finish();
        assert!(report.all_completed(), "{isolation:?}");
        control.kill();
        let next = Task::of::<Stepper>("next", Step::Answer("y".to_owned()));
        assert!(run(&rig, [next]).1.all_completed(), "another batch is not touched");
    }
}

fn wait_stopped(workers: &[Identity]) {
    let stopped = |worker: &Identity| state(worker.pid) == Some('T');
    wait_for("state T", || workers.iter().all(stopped).then_some(()));
}

/// Workers and what they started stand still, and so do the clocks.
#[test]
fn rb_54_a_suspended_batch_stands_still_and_its_limit_with_it() {
    let rig = rig_with(Isolation::Process, places(2));
    let limit = Duration::from_secs(3);
    let program = command("sleeper", [helper("sleeper").as_str(), "600"]).timeout(limit);
    let mut batch = rig.delegator.batch([wait().timeout(limit), program, wait()]).start().unwrap();
    let (mut members, mut texts) = (Vec::new(), 0);
    while texts < 2 {
        match batch.events().next().unwrap() {
            Event::Start { pid, .. } => members.extend(pid.and_then(Identity::of)),
            Event::Text { text, .. } => {
                texts += 1;
                members.extend(text.trim().parse().ok().and_then(Identity::of));
            }
            _ => {}
        }
    }
    assert_eq!(members.len(), 3, "two workers and a program");
    let control = batch.control();
    control.suspend();
    assert!(control.settle(LIMIT));
    wait_stopped(&members);
    // Not a wait for a fact: the time in which the limit would run out, if it ran.
    let stood = Duration::from_millis(3500);
    pause(stood);
    assert!(members.iter().all(|member| state(member.pid) == Some('T')), "still");
    control.resume();
    let (mut ended, mut third) = (0, false);
    for event in batch.events() {
        match event {
            Event::Complete { child, .. } if child.task_index() < 2 => ended += 1,
            Event::Start { child, .. } if child.task_index() == 2 => {
                third = true;
                assert!(ended > 0, "the third had no place before");
                control.stop(child);
            }
            _ => {}
        }
    }
    assert!(third);
    let report = batch.finish();
    let statuses = [Status::Timeout, Status::Timeout, Status::Interrupted];
    assert_eq!(report.statuses(), statuses);
    // Started and suspended takes a moment of the limit; the rest of it comes after the pause.
    let least = stood + limit.mul_f64(0.5);
    assert!(report.total_duration() > least, "{:?}", report.total_duration());
}

/// The pause is asked for while the worker is being started: whichever comes first, it stands still. So
/// it cannot greet, and nobody hears of it before the batch goes on.
#[test]
fn rb_54_a_worker_that_is_born_in_a_pause_stands_still() {
    let folder = tempfile::tempdir().unwrap();
    for round in 0..10 {
        let rig = rig(Isolation::Process);
        let path = folder.path().join(format!("count-{round}"));
        let count = Task::of::<Stepper>("count", Step::Count(path.clone()));
        let mut batch = rig.delegator.batch([count]).start().unwrap();
        let control = batch.control();
        control.suspend();
        assert!(control.settle(LIMIT));
        // Not a wait for a fact: the time in which it would have begun to count.
        pause(Duration::from_millis(150));
        let seen = std::fs::read_to_string(&path).ok();
        pause(Duration::from_millis(20));
        assert_eq!(std::fs::read_to_string(&path).ok(), seen, "round {round}: it counts");
        control.resume();
        let _workers = until_waiting(&mut batch, 1);
        std::fs::write(path.with_extension("stop"), "").unwrap();
        assert_eq!(batch.finish().statuses(), [Status::Completed]);
    }
}

/// A program that a kill has ended did not fail by itself, whoever hears of it first: the one who runs it, that it
/// has ended, or the child, that it is to end.
#[test]
fn a_program_that_a_kill_ends_was_interrupted_and_has_not_failed() {
    for isolation in BOTH {
        let rig = rig(isolation);
        for round in 0..40 {
            let script = "trap '' INT TERM; echo waiting; while :; do sleep 10; done";
            let mut batch =
                rig.delegator.batch([command("stays", ["sh", "-c", script])]).start().unwrap();
            let control = batch.control();
            for event in batch.events() {
                if matches!(event, Event::Text { .. }) {
                    control.kill();
                }
            }
            let report = batch.finish();
            assert_eq!(report.statuses(), [Status::Interrupted], "{isolation:?}, round {round}");
        }
    }
}

#[test]
fn a_kill_reaches_a_suspended_batch() {
    let rig = rig(Isolation::Process);
    let mut batch = rig.delegator.batch([wait(), wait()]).start().unwrap();
    let workers = until_waiting(&mut batch, 2);
    batch.control().suspend();
    wait_stopped(&workers);
    batch.control().kill();
    assert_eq!(batch.finish().statuses(), [Status::Interrupted; 2]);
    wait_gone(&workers);
}

/// A consumer that does not read slows its own batch only: the other one ends meanwhile.
#[test]
fn a_consumer_that_stops_reading_slows_no_other_batch() {
    for isolation in BOTH {
        let rig = rig_with(isolation, places(4));
        // More lifecycle events than a queue holds, and nobody reads.
        let many = (0..3000).map(|_| Task::of::<Stepper>("a", Step::Answer("a".to_owned())));
        let unread = match isolation {
            Isolation::Thread => Some(rig.delegator.batch(many).start().unwrap()),
            _ => None,
        };
        let mut talker = rig
            .delegator
            .batch([command("talk", [helper("chatty").as_str(), "lines", "300000"])])
            .start()
            .unwrap();
        assert!(talker.events().any(|event| matches!(event, Event::Text { .. })));
        let began = Instant::now();
        let quick = (0..20).map(|n| Task::of::<Stepper>("b", Step::Answer(n.to_string())));
        let (outcomes, report) = run(&rig, quick);
        assert!(report.all_completed(), "{isolation:?} {outcomes:?}");
        assert!(began.elapsed() < LIMIT);
        // And it loses nothing: its result is there as soon as somebody wants it.
        let report = talker.finish();
        assert!(report.all_completed());
        let summary = report.results().next().unwrap().summary.clone().unwrap();
        assert!(summary.ends_with("line 299999"), "{isolation:?}");
        if let Some(unread) = unread {
            let report = unread.finish();
            assert!(report.all_completed(), "{:?}", report.counts());
            assert_eq!(report.statuses().len(), 3000);
        }
    }
}

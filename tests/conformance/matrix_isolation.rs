//! Matrix 11.15, process isolation. What a thread can have, it must have as well.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use delegate_runtime::config::{ProcessIsolation, Settings};
use delegate_runtime::{Cause, Event, Isolation, Status, Task, Value, blocking};

use crate::agents::{End, Op, answer, script};
use crate::seen::{watch, watch_with};
use crate::support::{BOTH, Identity, LIMIT, helper, rig, rig_with, run};

/// Short graces, so that a stubborn child does not hold the suite.
fn impatient() -> Settings {
    Settings {
        interrupt_grace: Duration::from_secs(1),
        terminate_grace: Duration::from_secs(1),
        ..Settings::default()
    }
}

fn waiting() -> crate::agents::Script {
    script([Op::Text("here".to_owned()), Op::AwaitInterrupt], End::Interrupted)
}

#[test]
fn m138_three_children_complete_each_in_a_process_of_its_own() {
    let tasks = || (0..3).map(|index| script([], answer("ok")).task(format!("task {index}")));
    let (outcomes, _) = run(&rig(Isolation::Process), tasks());
    let mut pids: BTreeSet<u32> = outcomes.iter().filter_map(|outcome| outcome.pid).collect();
    pids.insert(std::process::id());
    assert_eq!(pids.len(), 4, "{outcomes:?}");
    let (outcomes, _) = run(&rig(Isolation::Thread), tasks());
    for outcome in outcomes {
        assert_eq!((outcome.status, outcome.pid), (Status::Completed, None));
    }
}

#[test]
fn m139_child_events_reach_the_parent_with_the_tools_name() {
    for isolation in BOTH {
        let work = script([Op::Tool("web_search".to_owned())], answer("ok"));
        let seen = watch(&rig(isolation), (0..3).map(|index| work.task(format!("task {index}"))));
        for index in 0..3 {
            let events = seen.of(index);
            assert!(events.iter().any(|event| matches!(event, Event::Start { .. })));
            assert!(
                events
                    .iter()
                    .any(|event| matches!(event, Event::Tool { name, .. } if name == "web_search"))
            );
        }
    }
}

#[test]
fn m140_a_waiting_child_ends_soon_after_an_interrupt() {
    for isolation in BOTH {
        let begun = Instant::now();
        let seen = watch_with(&rig(isolation), [waiting().task("wait")], |event, control| {
            if matches!(event, Event::Text { .. }) {
                control.interrupt();
            }
        });
        assert_eq!(seen.outcomes[0].status, Status::Interrupted, "{isolation:?}");
        assert!(begun.elapsed() < Duration::from_secs(20));
    }
}

#[test]
fn m141_a_child_that_obeys_its_limit_ends_as_timeout_and_its_process_is_gone() {
    for isolation in BOTH {
        let task = waiting().task("wait").timeout(Duration::from_secs(1));
        let (outcomes, report) = run(&rig(isolation), [task]);
        assert_eq!(outcomes[0].status, Status::Timeout, "{:?}", *outcomes[0]);
        assert_eq!(outcomes[0].cause, Some(Cause::Exited { code: 0 }));
        assert!(report.verified_empty());
        if let Some(pid) = outcomes[0].pid {
            assert!(Identity::of(pid).is_none_or(|process| !process.is_alive()));
        }
    }
}

#[test]
fn m142_a_child_that_ignores_interrupts_is_killed_within_limit_and_graces() {
    let deaf = script([Op::Sleep(600_000)], answer("never"));
    let task = || deaf.task("sleep").timeout(Duration::from_secs(1));
    let begun = Instant::now();
    let (outcomes, report) = run(&rig_with(Isolation::Process, impatient()), [task()]);
    let outcome = &outcomes[0];
    assert_eq!(outcome.status, Status::Timeout, "{:?}", **outcome);
    assert!(matches!(outcome.cause, Some(Cause::Signaled { signal: 15 | 9, .. })), "{outcome:?}");
    assert!(begun.elapsed() < LIMIT && report.verified_empty());
    assert!(Identity::of(outcome.pid.unwrap()).is_none_or(|process| !process.is_alive()));
}

#[test]
fn m142_a_thread_that_ignores_interrupts_is_abandoned_and_said_to_be() {
    // Longer than every limit: the thread ends with this test binary.
    let deaf = script([Op::Sleep(600_000)], answer("late"));
    let rig = rig_with(Isolation::Thread, impatient());
    let (outcomes, report) = run(&rig, [deaf.task("sleep").timeout(Duration::from_secs(1))]);
    let outcome = &outcomes[0];
    assert_eq!((outcome.status, &outcome.cause), (Status::Timeout, &Some(Cause::Abandoned)));
    assert!(!report.verified_empty());
    assert_eq!(report.left_running()[0].task_index, 0);
}

#[test]
fn m143_isolation_is_off_by_default_and_true_selects_processes() {
    let state = tempfile::tempdir().unwrap();
    for (setting, expected) in [
        (None, delegate_protocol::Isolation::Thread),
        (Some(ProcessIsolation::Off), delegate_protocol::Isolation::Thread),
        (Some(ProcessIsolation::On), delegate_protocol::Isolation::Process),
        (Some(ProcessIsolation::Auto), delegate_protocol::Isolation::Process),
    ] {
        let settings = Settings { process_isolation: setting, ..Settings::default() };
        let delegator = blocking::Delegator::builder()
            .settings(settings)
            .state_dir(state.path())
            .build()
            .unwrap();
        let tasks = (0..2).map(|index| script([], answer("ok")).task(format!("task {index}")));
        for outcome in delegator.batch(tasks).run().unwrap().results() {
            assert_eq!(outcome.isolation, expected, "{setting:?}");
            assert_eq!(
                outcome.launcher.as_deref(),
                Some(match expected {
                    delegate_protocol::Isolation::Thread => "thread",
                    delegate_protocol::Isolation::Process => "exec",
                })
            );
        }
    }
}

#[test]
fn m144_results_are_in_task_order_though_children_end_the_other_way() {
    for isolation in BOTH {
        let folder = tempfile::tempdir().unwrap();
        let file = |index: u32| folder.path().join(index.to_string()).display().to_string();
        let rig = rig(isolation);
        // Each waits for the Complete event of the next one.
        let tasks = (0..3).map(|index: u32| {
            let ops = (index < 2).then(|| Op::AwaitFile(file(index + 1)));
            script(ops, answer(&index.to_string())).task(format!("task {index}"))
        });
        let mut finished = Vec::new();
        let seen = watch_with(&rig, tasks, |event, _| {
            if let Event::Complete { child, .. } = event {
                finished.push(child.task_index());
                std::fs::write(file(child.task_index()), "").unwrap();
            }
        });
        assert_eq!(finished, [2, 1, 0]);
        for (index, outcome) in (0..).zip(&seen.outcomes) {
            assert_eq!((outcome.task_index, outcome.status), (index, Status::Completed));
            assert_eq!(outcome.summary, Some(index.to_string()));
        }
    }
}

#[test]
fn m145_after_the_batch_no_process_of_it_is_alive() {
    let rig = rig_with(Isolation::Process, impatient());
    let forker = helper("forker");
    let mut processes = Vec::new();
    let tasks = [
        script([], answer("ok")).task("well"),
        script([Op::Text("x".to_owned())], End::Panic("no".to_owned())).task("panics"),
        crate::support::command("family", [forker.as_str(), "leave"]),
    ];
    let seen = watch_with(&rig, tasks, |event, _| match event {
        Event::Start { pid: Some(pid), .. } => processes.extend(Identity::of(*pid)),
        Event::Text { text, .. } if text.contains("plain") => {
            let pids: std::collections::BTreeMap<String, u32> = serde_json::from_str(text).unwrap();
            processes.extend(pids.values().filter_map(|pid| Identity::of(*pid)));
        }
        _ => {}
    });
    assert!(processes.len() >= 3, "{processes:?}");
    assert!(seen.report.verified_empty(), "{:?}", seen.report);
    for process in processes {
        assert!(!process.is_alive(), "{process:?}");
    }
}

#[test]
fn m146_children_that_burn_cpu_do_not_stop_the_parents_loop() {
    let rig = rig(Isolation::Process);
    let work = script([Op::Burn(1_000)], answer("burnt"));
    let run = rig.delegator.batch((0..3).map(|index| work.task(format!("task {index}"))));
    let run = run.start().unwrap();
    // The parent's own loop: it does something every 5 ms while the children burn.
    let done = std::thread::spawn(move || run.finish());
    let mut turns = 0;
    while !done.is_finished() {
        std::thread::sleep(Duration::from_millis(5));
        turns += 1;
    }
    assert!(done.join().unwrap().all_completed());
    assert!(turns > 50, "{turns} turns");
}

#[test]
fn m147_a_child_that_panics_is_an_error_entry_and_the_parent_lives() {
    for isolation in BOTH {
        let rig = rig(isolation);
        let bad = script([], End::Panic("the sky fell".to_owned()));
        let (outcomes, _) = run(&rig, [bad.task("panic")]);
        assert_eq!(outcomes[0].status, Status::Error);
        assert!(outcomes[0].error.as_ref().unwrap().contains("the sky fell"));
        let (outcomes, _) = run(&rig, [script([], answer("alive")).task("again")]);
        assert_eq!(outcomes[0].summary.as_deref(), Some("alive"));
    }
}

#[test]
fn m148_the_spec_arrives_as_it_was_sent() {
    for isolation in BOTH {
        let tasks = (0..2).map(|index| {
            Task::of::<crate::agents::Spec>(format!("goal {index} é\0"), Value::Int(index))
        });
        let (outcomes, _) = run(&rig(isolation), tasks);
        for (index, outcome) in outcomes.iter().enumerate() {
            let text = outcome.summary.as_ref().unwrap();
            let spec: delegate_protocol::TaskSpec = serde_json::from_str(text).unwrap();
            assert_eq!(spec.goal, format!("goal {index} é\0"));
            assert_eq!((spec.task_index as usize, spec.task_count), (index, 2));
            assert_eq!(spec.params, Value::Int(i64::try_from(index).unwrap()));
        }
    }
}

//! Threads, floods and zombies on the side of the owner.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use delegate_runtime::{Delegator, Event, Isolation, Status, Task, Value};
use rustix::process::Signal;
use serde_json::json;

use crate::program::{
    OwnerProgram, all_pids, assert_one_complete_each, children_of, pause, random, seed, stat, step,
    task,
};
use crate::step::{Step, Stepper};
use crate::support::{Identity, helper, rig, run, wait_for};

fn answers(count: usize) -> Vec<Task> {
    (0..count).map(|n| Task::of::<Stepper>("answer", Step::Answer(n.to_string()))).collect()
}

#[test]
fn rb_10_no_child_is_stuck_beside_threads_that_hammer_malloc_a_lock_and_the_log() {
    let subscriber = tracing_subscriber::fmt().with_writer(std::io::sink).finish();
    tracing::subscriber::set_global_default(subscriber).unwrap();
    let stop = Arc::new(AtomicBool::new(false));
    let lock = Arc::new(Mutex::new(Vec::<String>::new()));
    let threads: Vec<_> = (0..32)
        .map(|number| {
            let (stop, lock) = (Arc::clone(&stop), Arc::clone(&lock));
            std::thread::spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    let text = format!("{number} {}", "x".repeat(number * 100));
                    tracing::info!(%text, "hammer");
                    let mut held = lock.lock().unwrap();
                    held.push(text);
                    if held.len() > 1000 {
                        held.clear();
                    }
                    drop(held);
                    // So that two cores get on with the children too.
                    std::thread::sleep(Duration::from_micros(200));
                }
            })
        })
        .collect();
    let (outcomes, report) = run(&rig(Isolation::Process), answers(150));
    stop.store(true, Ordering::Relaxed);
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    assert!(report.all_completed() && report.verified_empty(), "{:?}", report.counts());
    for (number, outcome) in outcomes.iter().enumerate() {
        assert_eq!(outcome.summary, Some(number.to_string()));
    }
}

#[test]
fn rb_14_children_outlive_the_thread_that_started_them() {
    let rig = rig(Isolation::Process);
    let delegator = rig.delegator.clone();
    let started = std::thread::spawn(move || {
        let waits = (0..3).map(|_| Task::of::<Stepper>("wait", Step::Wait));
        let mut batch = delegator.batch(waits).start().unwrap();
        let mut workers = Vec::new();
        let mut waiting = 0;
        while waiting < 3 {
            match batch.events().next().unwrap() {
                Event::Start { pid, .. } => workers.extend(pid.and_then(Identity::of)),
                Event::Text { .. } => waiting += 1,
                _ => {}
            }
        }
        (batch, workers, gettid())
    });
    let (batch, workers, thread) = started.join().unwrap();
    wait_for("the thread is gone", || {
        (!std::path::Path::new(&format!("/proc/self/task/{thread}")).exists()).then_some(())
    });
    assert_eq!(workers.len(), 3);
    // A death signal would be there at the thread's end; the workers have to live on past it.
    pause(Duration::from_millis(200));
    assert!(workers.iter().all(|worker| worker.is_alive()));
    batch.control().interrupt();
    assert_eq!(batch.finish().statuses(), [Status::Interrupted; 3], "and not killed");
}

fn gettid() -> i32 {
    rustix::thread::gettid().as_raw_nonzero().get()
}

#[test]
fn rb_14_children_outlive_a_blocking_pool_and_the_runtime_around_it() {
    let state = tempfile::tempdir().unwrap();
    let delegator =
        Delegator::builder().isolation(Isolation::Process).state_dir(state.path()).build().unwrap();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .thread_keep_alive(Duration::from_millis(1))
        .build()
        .unwrap();
    let mut batch = runtime.block_on(async {
        let starter = delegator.clone();
        let wait = Task::of::<Stepper>("wait", Step::Wait);
        let started = tokio::task::spawn_blocking(move || starter.batch([wait]).start_blocking());
        started.await.unwrap().unwrap()
    });
    let mut worker = None;
    loop {
        match batch.next_blocking().unwrap() {
            Event::Start { pid, .. } => worker = pid.and_then(Identity::of),
            Event::Text { .. } => break,
            _ => {}
        }
    }
    drop(runtime);
    pause(Duration::from_millis(200));
    assert!(worker.unwrap().is_alive());
    batch.control().interrupt();
    assert_eq!(batch.finish_blocking().statuses(), [Status::Interrupted]);
}

/// Zombies of the owner, its supervisor and our workers; a process is a zombie for a moment before it
/// is reaped, so one counts that is still there three seconds later.
#[test]
fn rb_16_no_zombie_stays_among_owner_supervisor_and_workers() {
    let forker = json!({"argv": [helper("forker"), "leave"]});
    let tasks: Vec<_> = (0..250)
        .map(|number| match number % 10 {
            // Long enough to tell who its supervisor is.
            _ if number == 0 => step(&Step::Sleep(500)),
            0 => task("command", "forker", forker.clone()),
            1 => task("command", "false", json!({"argv": ["false"]})),
            2 => step(&Step::Panic("on purpose".to_owned())),
            _ => step(&Step::Answer(number.to_string())),
        })
        .collect();
    let mut owner = OwnerProgram::start(&tasks, &json!({"places": 8, "grace_seconds": 1}));
    owner.started();
    let supervisor = owner.supervisor().pid;
    let mut first_seen: HashMap<u32, Instant> = HashMap::new();
    let report = loop {
        let zombies = zombies(owner.pid(), supervisor);
        first_seen.retain(|pid, _| zombies.contains(pid));
        for pid in zombies {
            let since = *first_seen.entry(pid).or_insert_with(Instant::now);
            assert!(since.elapsed() < Duration::from_secs(3), "{:?} stays a zombie", stat(pid));
        }
        if let Some(report) = owner.pending().iter().find_map(|line| line.get("report").cloned()) {
            break report;
        }
        pause(Duration::from_millis(5));
    };
    assert_one_complete_each(owner.seen(), 250);
    assert_eq!(report["verified_empty"], true, "{}", report["warnings"]);
    wait_for("the last one is reaped", || {
        zombies(owner.pid(), supervisor).is_empty().then_some(())
    });
    // The templates of its agents wait for the next batch.
    let is_template = |pid: &u32| {
        let line = std::fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        line.contains("@delegate-template=")
    };
    let mut left = children_of(supervisor);
    left.retain(|pid| !is_template(pid));
    assert_eq!(left, Vec::<u32>::new(), "the supervisor has no other child left");
}

fn zombies(owner: u32, supervisor: u32) -> Vec<u32> {
    let is_ours = |pid: &u32| {
        let Some(fields) = stat(*pid).filter(|fields| fields[0] == "Z") else { return false };
        let parent: u32 = fields[1].parse().unwrap();
        let of_a_worker = || {
            stat(parent).is_some_and(|fields| fields[1] == supervisor.to_string())
                && std::fs::read_to_string(format!("/proc/{parent}/cmdline"))
                    .is_ok_and(|name| name.contains("delegate-worker"))
        };
        parent == owner || parent == supervisor || of_a_worker()
    };
    all_pids().into_iter().filter(is_ours).collect()
}

#[test]
fn rb_54_a_storm_of_stops_while_spawning_leaves_nobody_stuck() {
    let mut tasks = vec![step(&Step::Answer("a".to_owned())); 60];
    tasks.extend(vec![task("command", "true", json!({"argv": ["sh", "-c", "echo done"]})); 30]);
    let mut owner = OwnerProgram::start(&tasks, &json!({"places": 6}));
    let mut seed = seed();
    let mut storms = 0;
    let report = loop {
        let stop = if random(&mut seed, 2) == 0 { Signal::TSTP } else { Signal::STOP };
        if random(&mut seed, 2) == 0 {
            owner.signal(stop);
        } else {
            owner.signal_group(stop);
        }
        pause(Duration::from_micros(random(&mut seed, 3000)));
        owner.signal_group(Signal::CONT);
        pause(Duration::from_micros(random(&mut seed, 5000)));
        storms += 1;
        if let Some(report) = owner.pending().iter().find_map(|line| line.get("report").cloned()) {
            break report;
        }
    };
    assert!(storms > 10, "{storms}");
    assert_one_complete_each(owner.seen(), 90);
    for outcome in report["results"].as_array().unwrap() {
        assert_eq!(outcome["status"], "completed", "{outcome}");
    }
    assert_eq!(report["verified_empty"], true);
}

/// The fact: the call is back although the child cannot have taken one byte, because its place is
/// held by a sibling that waits.
#[test]
fn rb_56_a_start_with_64_mib_of_parameters_waits_for_no_child() {
    let settings =
        delegate_runtime::config::Settings { max_concurrent_children: 1, ..Default::default() };
    let rig = crate::support::rig_with(Isolation::Process, settings);
    let big = "b".repeat(64 << 20);
    let tasks = [
        Task::of::<Stepper>("wait", Step::Wait),
        Task::new("step", "big")
            .params(Value::Map([("Answer".to_owned(), Value::Text(big))].into())),
    ];
    let mut batch = rig.delegator.batch(tasks).start().unwrap();
    let control = batch.control();
    let mut first = None;
    let mut started = Vec::new();
    for event in batch.events() {
        match event {
            Event::Start { child, .. } => {
                started.push(child.task_index());
                first.get_or_insert(child);
            }
            Event::Text { .. } => control.stop(first.expect("it has started")),
            _ => {}
        }
    }
    assert_eq!(started, [0, 1]);
    let report = batch.finish();
    assert_eq!(report.statuses(), [Status::Interrupted, Status::Completed]);
    let outcome = report.results().nth(1).unwrap();
    assert_eq!(outcome.result_bytes, Some(64 << 20), "the whole of it came back");
}

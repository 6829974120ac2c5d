//! Criterion benches of delegation: starts, batches, events, results, interrupts and kills; then starts and empty tasks by
//! each launcher, and agents that prepare something.
//!
//! `cargo bench --bench delegation`, with a filter behind `--` where one is enough. The same beside bare programs and
//! other libraries, in turns: `cargo bench --bench table`.
#![expect(clippy::disallowed_methods, reason = "a bench reads the clock and starts bare programs")]

mod support;

use std::process::ExitCode;
use std::time::Duration;

use criterion::{Criterion, Throughput};
use delegate_runtime::config::{LauncherWish, Settings};
use delegate_runtime::{Isolation, Task};

use support::Rig;
use support::agents::{Costly, Empty, Large};

/// Rounds per sample count: a round is a process or more, so few of them must do.
const SAMPLES: usize = 15;
const EVENTS: usize = 100_000;
const BATCH: usize = 64;
const PLACES: usize = 10;

fn main() -> ExitCode {
    support::main(|| {
        let criterion = Criterion::default()
            .sample_size(SAMPLES)
            .warm_up_time(Duration::from_millis(300))
            .measurement_time(Duration::from_secs(2));
        let mut criterion = criterion.configure_from_args();
        for (name, isolation) in [("process", Isolation::Process), ("thread", Isolation::Thread)] {
            let rig = Rig::new(isolation, PLACES);
            children(&mut criterion, name, &rig);
            streams(&mut criterion, name, &rig);
            interrupt(&mut criterion, name, &rig);
        }
        let rig = Rig::new(Isolation::Process, PLACES);
        criterion.bench_function("process/killed to record", |bench| {
            bench.iter_custom(|rounds| (0..rounds).map(|_| rig.killed()).sum());
        });
        launchers(&mut criterion);
        criterion.final_summary();
    })
}

/// Empty tasks of one round.
const TASKS: usize = 64;

fn launchers(criterion: &mut Criterion) {
    for launcher in [LauncherWish::Exec, LauncherWish::Zygote, LauncherWish::Pool] {
        let name = launcher.word();
        let rig = Rig::launched(launcher);
        let mut first = |what: &str, task: &dyn Fn() -> Task| {
            criterion.bench_function(&format!("{name}/{what} to first event"), |bench| {
                bench.iter_custom(|rounds| (0..rounds).map(|_| rig.first_and_last(task()).0).sum());
            });
        };
        first("delegate", &|| Task::of::<support::Sender>("one", 1));
        first("300 ms of preparing", &|| Task::of::<Costly>("one", ()));
        first("256 MiB of preparing", &|| Task::of::<Large>("one", ()));
        for at_once in [1, 4] {
            let settings =
                Settings { launcher, max_concurrent_children: at_once, ..Settings::default() };
            let rig = Rig::with(Isolation::Process, settings);
            let mut group = criterion.benchmark_group(name);
            group.throughput(Throughput::Elements(TASKS as u64));
            group.bench_function(format!("empty tasks, {at_once} at once"), |bench| {
                bench.iter(|| {
                    let task = |index| Task::of::<Empty>(format!("task {index}"), ());
                    let report = rig.delegator.batch((0..TASKS).map(task)).run();
                    assert!(report.is_ok_and(|report| report.all_completed()));
                });
            });
            group.finish();
        }
    }
}

fn children(criterion: &mut Criterion, name: &str, rig: &Rig) {
    criterion.bench_function(&format!("{name}/delegate to first event"), |bench| {
        bench.iter_custom(|rounds| (0..rounds).map(|_| rig.start_and_outcome().0).sum());
    });
    criterion.bench_function(&format!("{name}/delegate to outcome"), |bench| {
        bench.iter_custom(|rounds| (0..rounds).map(|_| rig.start_and_outcome().1).sum());
    });
    criterion.bench_function(&format!("{name}/batch of {BATCH}"), |bench| {
        bench.iter_custom(|rounds| (0..rounds).map(|_| rig.batch(BATCH, 1)).sum());
    });
}

fn streams(criterion: &mut Criterion, name: &str, rig: &Rig) {
    let mut group = criterion.benchmark_group(name);
    group.throughput(Throughput::Elements(EVENTS as u64));
    group.bench_function("events of one child", |bench| {
        bench.iter_custom(|rounds| (0..rounds).map(|_| rig.events(EVENTS)).sum());
    });
    for mib in [1, 64] {
        let bytes = mib << 20;
        group.throughput(Throughput::Bytes(bytes as u64));
        group.bench_function(format!("result of {mib} MiB"), |bench| {
            bench.iter_custom(|rounds| (0..rounds).map(|_| rig.batch(1, bytes)).sum());
        });
    }
    group.finish();
}

fn interrupt(criterion: &mut Criterion, name: &str, rig: &Rig) {
    criterion.bench_function(&format!("{name}/interrupt to seen"), |bench| {
        bench.iter_custom(|rounds| (0..rounds).map(|_| rig.interrupt()).sum());
    });
}

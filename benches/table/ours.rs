//! Our side of a comparison: one delegator in a process of its own, asked over its input as every participant is.
//! `crowd` counts what many children cost, `ticker` how late a loop beside them is.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use delegate_runtime::config::{LauncherWish, Pool, Settings};
use delegate_runtime::{Event, Isolation, Status, Task};

use crate::support::agents::{Costly, Empty, Large};
use crate::support::{Heavy, Rig, Sender, Tools};
use crate::{crowd, ticker};

/// Answers rounds until its input ends: launcher, children at once, MiB to hold.
pub(crate) fn serve(words: &[String]) -> ExitCode {
    let [launcher, places, held] = words else { return ExitCode::from(2) };
    let (Ok(places), Ok(held)) = (places.parse(), held.parse::<usize>()) else {
        return ExitCode::from(2);
    };
    let _held = hold(held);
    let rig = rig(launcher, places);
    println!("ready");
    for line in std::io::stdin().lines() {
        let Ok(line) = line else { return ExitCode::FAILURE };
        match round(&rig, launcher, &line) {
            Ok(numbers) => {
                let numbers: Vec<_> = numbers.iter().map(u128::to_string).collect();
                println!("ok {}", numbers.join(" "));
            }
            Err(why) => println!("failed {why}"),
        }
    }
    ExitCode::SUCCESS
}

/// Memory in small pages, written to, as a parent's heap is.
fn hold(mib: usize) -> Vec<u8> {
    // Off for as long as it is filled: what is copied later may have huge ones as ever.
    let small = |small: bool| {
        #[cfg(target_os = "linux")]
        rustix::thread::disable_transparent_huge_pages(small).expect("a kernel with small pages");
        #[cfg(not(target_os = "linux"))]
        drop(small);
    };
    small(true);
    let held = vec![1; mib << 20];
    small(false);
    std::hint::black_box(held)
}

fn rig(launcher: &str, places: u32) -> Rig {
    let isolation = if launcher == "thread" { Isolation::Thread } else { Isolation::Process };
    // A worker of the pool that carries one task after the other.
    let max_uses = if launcher == "again" { u32::MAX } else { 1 };
    let launcher = match launcher {
        "exec" => LauncherWish::Exec,
        "zygote" => LauncherWish::Zygote,
        "pool" | "again" => LauncherWish::Pool,
        _ => LauncherWish::Auto,
    };
    let pool = Pool { max_uses, ..Pool::default() };
    let settings =
        Settings { launcher, pool, max_concurrent_children: places, ..Settings::default() };
    Rig::with(isolation, settings)
}

fn round(rig: &Rig, launcher: &str, line: &str) -> Result<Vec<u128>, String> {
    let (what, words) = line.split_once(' ').unwrap_or((line, ""));
    let count = || words.parse::<usize>().map_err(|_| format!("no number: {words}"));
    let both = |(first, last): (Duration, Duration)| vec![first.as_nanos(), last.as_nanos()];
    let one = |took: Duration| vec![took.as_nanos()];
    Ok(match what {
        "start" => started(rig, launcher)?,
        "heavy" => both(rig.first_and_last(Task::of::<Heavy>("one", 1))),
        "large" => both(rig.first_and_last(Task::of::<Large>("one", ()))),
        "costly" => costly(rig, launcher)?,
        "batch" => one(rig.batch(count()?, 1)),
        "result" => one(rig.batch(1, count()?)),
        "tasks" => one(tasks(rig, launcher, count()?)?),
        "events" => one(rig.events(count()?)),
        "killed" => one(rig.killed()),
        "interrupt" => one(rig.interrupt()),
        "early" => vec![early(rig, count()?)],
        "unread" => unread(rig, count()?)?,
        "alive" => crowd::ours(rig, launcher, count()?)?,
        "ticker" => ticker::round(words)?,
        _ => return Err(format!("no such round: {line}")),
    })
}

/// To the first event and to the end; the worker must have been started in the way that is measured.
fn started(rig: &Rig, launcher: &str) -> Result<Vec<u128>, String> {
    let began = Instant::now();
    let mut run = rig.start(Task::of::<Sender>("one", 1));
    let spoke = run.events().any(|event| matches!(event, Event::Text { .. }));
    let first = began.elapsed();
    let report = run.finish();
    let last = began.elapsed();
    if !spoke || !report.all_completed() {
        return Err(format!("{:?}", report.statuses()));
    }
    let how = report.results().next().and_then(|outcome| outcome.launcher.clone());
    let how = how.unwrap_or_else(|| "thread".to_owned());
    match launcher {
        "exec" | "zygote" | "pool" if how != launcher => {
            Err(format!("the worker was started by {how}"))
        }
        _ => Ok(vec![first.as_nanos(), last.as_nanos()]),
    }
}

/// An agent that is costly to build: with a template it was built in another process.
fn costly(rig: &Rig, launcher: &str) -> Result<Vec<u128>, String> {
    let began = Instant::now();
    let mut run = rig.start(Task::of::<Costly>("one", ()));
    let spoke = run.events().any(|event| matches!(event, Event::Text { .. }));
    let first = began.elapsed();
    let report = run.finish();
    let outcome = report.results().next().ok_or("no outcome")?;
    let (built, own) = outcome.answer::<Costly>().map_err(|error| error.to_string())?;
    if !spoke || (launcher == "zygote") == (built == own) {
        return Err(format!("built in {built}, and it ran in {own}"));
    }
    Ok(vec![first.as_nanos()])
}

/// Tasks that do nothing, in one batch. Those of a zygote must all have been copied; a shelf may be empty for a moment.
fn tasks(rig: &Rig, launcher: &str, count: usize) -> Result<Duration, String> {
    let began = Instant::now();
    let tasks = (0..count).map(|index| Task::of::<Empty>(format!("task {index}"), ()));
    let report = rig.delegator.batch(tasks).run().map_err(|error| error.to_string())?;
    let took = began.elapsed();
    if !report.all_completed() {
        return Err(format!("{:?}", report.statuses()));
    }
    let other = report.results().filter(|one| one.launcher.as_deref() != Some("zygote"));
    match other.count() {
        others if others > 0 && launcher == "zygote" => {
            Err(format!("{others} of {count} were not started by zygote"))
        }
        _ => Ok(took),
    }
}

/// How many of so many children were interrupted that were asked before they could be ready. Each would go on for ever.
fn early(rig: &Rig, count: usize) -> u128 {
    let honoured = (0..count).filter(|_| {
        let run = rig.start(Task::of::<crate::support::Spinner>("spin", ()));
        run.control().interrupt();
        run.finish().statuses().contains(&Status::Interrupted)
    });
    honoured.count() as u128
}

/// Events that nobody reads: KiB that the parent's greatest resident size grew by, and the time to the result.
fn unread(rig: &Rig, events: usize) -> Result<Vec<u128>, String> {
    let before = crowd::status(std::process::id(), "VmHWM:");
    let began = Instant::now();
    let report = rig.start(Task::of::<Tools>("events", events)).finish();
    let took = began.elapsed();
    if !report.all_completed() {
        return Err(format!("{:?}", report.statuses()));
    }
    let grown = crowd::status(std::process::id(), "VmHWM:").saturating_sub(before);
    Ok(vec![u128::from(grown), took.as_nanos()])
}

//! Soak: children that send a result and leave at once, over and over. None may be lost, and nothing
//! may grow: `cargo run --release --example soak -- [CHILDREN] [--thread] [--long]`, 10,000 without a
//! number. With `--long` it is one long batch of short answers: the memory of the parent may grow by the
//! task list and a small record per outcome, and every answer is read back from the store.
//!
//! Sizes go round from 0 B to 64 MiB (large ones rarely). Prints what it saw and fails when a result
//! is missing or wrong, a zombie or a process is left, descriptors have leaked, or memory grows with the
//! number of children. With `MALLOC_MMAP_THRESHOLD_=131072` in the environment glibc gives back at once
//! what a large answer took, and a growth of 1 KiB per child shows.
#![expect(clippy::print_stdout, reason = "an example talks to whoever started it")]

use std::collections::BTreeMap;
use std::error::Error;
use std::fs;
use std::process::ExitCode;
use std::time::Instant;

use delegate_runtime::{Agent, Failure, Isolation, Session, Status, Task, blocking};

/// Answers with a text of the asked size.
struct Sender;

impl Agent for Sender {
    const NAME: &'static str = "sender";
    type Params = usize;
    type Answer = String;

    fn run(&mut self, size: usize, session: &mut Session) -> Result<String, Failure> {
        if size == 0 {
            session.allow_empty_answer();
        }
        Ok("x".repeat(size))
    }
}

/// The size matrix; one child in 1,000 gets one of the large ones.
const SMALL: [usize; 8] = [0, 1, 100, 65_535, 65_536, 65_537, 212_992, 219_262];
const LARGE: [usize; 3] = [1 << 20, 17 << 20, 64 << 20];

/// Tasks of one batch: several batches show that nothing adds up between them.
const BATCH: usize = 1_000;

fn size_of(child: usize) -> usize {
    if child % 1_000 == 999 {
        LARGE[child / 1_000 % LARGE.len()]
    } else {
        SMALL[child % SMALL.len()]
    }
}

fn main() -> ExitCode {
    delegate_runtime::workers().agent(|| Sender).or_else(host)
}

fn host() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let isolation = if arguments.iter().any(|argument| argument == "--thread") {
        Isolation::Thread
    } else {
        Isolation::Process
    };
    let number = arguments.iter().find(|argument| !argument.starts_with('-'));
    let children: usize = number.map_or(Ok(10_000), |number| number.parse())?;
    let state = tempfile::tempdir()?;
    let delegator =
        blocking::Delegator::builder().isolation(isolation).state_dir(state.path()).build()?;

    // The first child starts the supervisor and opens what stays open.
    run(&delegator, 0, 1)?;
    if arguments.iter().any(|argument| argument == "--long") {
        return long(&delegator, children);
    }
    let before = Seen::now()?;
    #[expect(clippy::disallowed_methods, reason = "a soak tells how long it took")]
    let began = Instant::now();
    let mut bytes = 0;
    let mut resident = Vec::new();
    for first in (0..children).step_by(BATCH) {
        bytes += run(&delegator, first, BATCH.min(children - first))?;
        resident.push(Seen::now()?.resident_kib);
    }
    let took = began.elapsed();
    let after = Seen::now()?;
    println!(
        "{children} children, {bytes} bytes of results in {:.1} s ({:.0} per second)",
        took.as_secs_f64(),
        children as f64 / took.as_secs_f64()
    );
    for (when, seen) in [("before", &before), ("after", &after)] {
        let Seen { descriptors, zombies, resident_kib, peak_kib: _ } = seen;
        println!(
            "{when}: {descriptors} descriptors, {zombies} zombies, {resident_kib} KiB resident"
        );
    }
    if after.zombies > 0 || after.descriptors > before.descriptors {
        return Err("something was left behind".into());
    }
    println!("KiB resident after each batch: {resident:?}");
    if grows(&resident) {
        return Err("memory grows with the number of children".into());
    }
    println!("0 lost, 0 hangs, 0 zombies, 0 descriptors leaked");
    Ok(())
}

/// Whether the last batches hold more than the ones before, after every size has come by twice: an
/// allocator keeps what large answers took, but not more of it with each lap. The least of several
/// batches counts, since what it gives back, and when, is its own affair.
fn grows(resident: &[u64]) -> bool {
    let told = std::env::var_os("MALLOC_MMAP_THRESHOLD_").is_some();
    let noise_kib = if told { 2 * 1024 } else { 32 * 1024 };
    let settled = resident.get(2 * LARGE.len()..).unwrap_or_default();
    let (before, after) = settled.split_at(settled.len() / 2);
    let least = |batches: &[u64]| batches.iter().min().copied();
    least(before).zip(least(after)).is_some_and(|(before, after)| after > before + noise_kib)
}

/// Runs some children and checks every result; gives the bytes that arrived.
fn run(
    delegator: &blocking::Delegator,
    first: usize,
    count: usize,
) -> Result<usize, Box<dyn Error>> {
    let sizes: Vec<usize> = (first..first + count).map(size_of).collect();
    let tasks = sizes.iter().map(|size| Task::of::<Sender>(format!("{size} bytes"), *size));
    let report = delegator.batch(tasks.collect::<Vec<_>>()).run()?;
    if !report.verified_empty() || !report.warnings().is_empty() {
        return Err(format!("not clean: {:?}", report.warnings()).into());
    }
    let mut seen = BTreeMap::new();
    for (size, outcome) in sizes.iter().zip(report.results()) {
        let answer = outcome.answer::<Sender>().map_err(|error| format!("lost: {error}"))?;
        if outcome.status != Status::Completed || answer.len() != *size {
            return Err(format!("{size} bytes were sent, {} came", answer.len()).into());
        }
        *seen.entry(size).or_insert(0) += 1;
    }
    if seen.values().sum::<usize>() != count {
        return Err("an outcome is missing".into());
    }
    Ok(sizes.iter().sum())
}

/// What one task of a long batch may cost: its entry in the task list, its record, and a share of the
/// queues and caches on the way.
const LONG_BYTES_PER_TASK: u64 = 512;

/// What a long batch may cost whatever its length: queues, SQLite's cache, stacks of threads.
const LONG_BYTES: u64 = 24 * 1024 * 1024;

/// One batch of short answers, read back one by one.
fn long(delegator: &blocking::Delegator, children: usize) -> Result<(), Box<dyn Error>> {
    let size = |child: usize| 1 + child % 100;
    let before = Seen::now()?;
    #[expect(clippy::disallowed_methods, reason = "a soak tells how long it took")]
    let began = Instant::now();
    let tasks = (0..children).map(|child| Task::of::<Sender>("short", size(child)));
    let report = delegator.batch(tasks).run()?;
    let took = began.elapsed();
    let after = Seen::now()?;
    if !report.verified_empty() || !report.is_durable() || !report.all_completed() {
        return Err(format!("{:?}, {:?}", report.counts(), report.warnings()).into());
    }
    let mut read = 0;
    for (child, outcome) in report.results().enumerate() {
        if outcome.answer::<Sender>()?.len() != size(child) {
            return Err(format!("task {child} has another answer").into());
        }
        read += 1;
    }
    if read != children {
        return Err(format!("{read} of {children} answers were read back").into());
    }
    let peak = Seen::now()?.peak_kib;
    let rate = children as f64 / took.as_secs_f64();
    println!("{children} tasks in one batch in {:.1} s ({rate:.0} per second)", took.as_secs_f64());
    let (first, last) = (before.resident_kib, after.resident_kib);
    println!("KiB resident: {first} before, {last} after, {peak} at most, reading back included");
    let allowed = (children as u64 * LONG_BYTES_PER_TASK + LONG_BYTES) / 1024;
    if peak > first + allowed {
        return Err(format!("memory grew by more than {allowed} KiB").into());
    }
    println!("0 lost, every answer read back");
    Ok(())
}

/// What must not grow.
struct Seen {
    descriptors: usize,
    zombies: usize,
    resident_kib: u64,
    /// The most that was ever resident.
    peak_kib: u64,
}

impl Seen {
    fn now() -> Result<Self, Box<dyn Error>> {
        let status = fs::read_to_string("/proc/self/status")?;
        let kib = |field| {
            let line = status.lines().find_map(|line| line.strip_prefix(field));
            line.and_then(|text| text.split_whitespace().next()).unwrap_or("0").parse()
        };
        Ok(Self {
            descriptors: fs::read_dir("/proc/self/fd")?.count(),
            zombies: zombies()?,
            resident_kib: kib("VmRSS:")?,
            peak_kib: kib("VmHWM:")?,
        })
    }
}

/// Zombies of these names, whoever's they are: run one soak at a time.
fn zombies() -> Result<usize, Box<dyn Error>> {
    let mut zombies = 0;
    for entry in fs::read_dir("/proc")? {
        let Ok(stat) = fs::read_to_string(entry?.path().join("stat")) else { continue };
        let Some((name, rest)) = stat.rsplit_once(')') else { continue };
        if rest.trim_start().starts_with('Z')
            && (name.contains("soak") || name.contains("delegate"))
        {
            zombies += 1;
        }
    }
    Ok(zombies)
}

//! Soak: children that send a result and leave at once, over and over. None may be lost, and nothing
//! may grow: `cargo run --release --example soak -- [CHILDREN] [--thread | --launcher exec|zygote|pool] [--uses N]
//! [--long]`, 10,000 without a number. `--uses` lets a worker of the pool carry so many children. With `--long` it is one long batch of short answers: the memory of the parent may grow by the
//! task list and a small record per outcome, and every answer is read back from the store.
//!
//! Sizes go round from 0 B to 64 MiB (large ones rarely). Prints what it saw and fails when a result
//! is missing or wrong, a zombie or a process is left, descriptors have leaked, a row of the ledger is open or a cgroup
//! there that was not there at first, or memory grows with the number of children. With `MALLOC_MMAP_THRESHOLD_=131072` in the environment glibc gives back at once
//! what a large answer took, and a growth of 1 KiB per child shows.
#![expect(clippy::print_stdout, reason = "an example talks to whoever started it")]

use std::collections::BTreeMap;
use std::error::Error;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use delegate_runtime::config::{LauncherWish, Pool, Settings};
use delegate_runtime::{Agent, Failure, Isolation, Session, Status, Task, blocking};
use ownership::containment::Machine;

/// Answers with a text of the asked size.
struct Sender;

impl Agent for Sender {
    const NAME: &'static str = "sender";
    const REUSABLE: bool = true;
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
    let number = arguments.iter().find_map(|argument| argument.parse().ok());
    let (launcher, uses) = (value(&arguments, "--launcher"), value(&arguments, "--uses"));
    // The number that is no value of an option.
    let children: usize = match (number, uses) {
        (Some(_), Some(_)) => arguments[0].parse()?,
        (number, _) => number.unwrap_or(10_000),
    };
    let launcher = match launcher {
        None => LauncherWish::Auto,
        Some(word) => {
            let known = LauncherWish::ALL.into_iter().find(|wish| wish.word() == word);
            known.ok_or_else(|| format!("no launcher: {word}"))?
        }
    };
    let pool = Pool { max_uses: uses.map_or(Ok(1), str::parse)?, ..Pool::default() };
    let state = tempfile::tempdir()?;
    let settings = Settings { launcher, pool, ..Settings::default() };
    let builder = blocking::Delegator::builder().isolation(isolation).settings(settings);
    let delegator = builder.state_dir(state.path()).build()?;

    // The first children start the supervisor, the template and the shelf, and open what stays open: as many as in each
    // batch, since `auto` makes a template for many.
    run(&delegator, 0, BATCH.min(children))?;
    let full = if launcher == LauncherWish::Pool { pool.max_idle as usize } else { 0 };
    let settle = || settled(&delegator, &state.path().join("ledger.sqlite"), full);
    if arguments.iter().any(|argument| argument == "--long") {
        return long(&delegator, children);
    }
    let open_before = settle()?;
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
    let open_after = settle()?;
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
    println!("open rows of the ledger and cgroups: {open_before:?} before, {open_after:?} after");
    if open_after != open_before {
        return Err("rows or cgroups were left behind".into());
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

/// What stands behind an option.
fn value<'a>(arguments: &'a [String], option: &str) -> Option<&'a str> {
    let at = arguments.iter().position(|argument| argument == option)?;
    arguments.get(at + 1).map(String::as_str)
}

/// Waits until the shelf is full and what has ended is written down; open rows, and cgroups.
fn settled(
    delegator: &blocking::Delegator,
    ledger: &Path,
    full: usize,
) -> Result<(i64, usize), Box<dyn Error>> {
    let mut last = (i64::MAX, usize::MAX);
    // The same twice: nothing is on its way any more.
    for _ in 0..600 {
        std::thread::park_timeout(Duration::from_millis(100));
        let open = open(ledger)?;
        if delegator.waiting_workers(Sender::NAME).len() == full && open == last {
            return Ok(open);
        }
        last = open;
    }
    Err(format!("it does not come to rest: {last:?}").into())
}

fn open(ledger: &Path) -> Result<(i64, usize), Box<dyn Error>> {
    if !ledger.exists() {
        return Ok((0, 0));
    }
    let ledger = rusqlite::Connection::open(ledger)?;
    ledger.busy_timeout(Duration::from_secs(5))?;
    let rows =
        ledger.query_row("SELECT count(*) FROM children WHERE ended_at IS NULL", [], |row| {
            row.get(0)
        })?;
    Ok((rows, cgroups()))
}

/// Cgroups of what this process has started.
fn cgroups() -> usize {
    let inside = |dir: PathBuf| std::fs::read_dir(dir).into_iter().flatten().flatten();
    let own = format!("ownership-{}.", std::process::id());
    let places = Machine::look().cgroup.dir.into_iter().flat_map(inside);
    let places = places.filter(|place| place.file_name().to_string_lossy().starts_with(&own));
    places.flat_map(|place| inside(place.path())).filter(|cell| cell.path().is_dir()).count()
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

/// Zombies below this process. Their parents are read as they are met.
fn zombies() -> Result<usize, Box<dyn Error>> {
    let (mut zombies, mut parents) = (Vec::new(), BTreeMap::new());
    for entry in fs::read_dir("/proc")? {
        let Ok(stat) = fs::read_to_string(entry?.path().join("stat")) else { continue };
        let Some((name, rest)) = stat.rsplit_once(')') else { continue };
        let pid = name.split_whitespace().next().and_then(|pid| pid.parse::<u32>().ok());
        let mut rest = rest.split_whitespace();
        let (state, parent) = (rest.next(), rest.next().and_then(|pid| pid.parse::<u32>().ok()));
        let (Some(pid), Some(parent)) = (pid, parent) else { continue };
        parents.insert(pid, parent);
        if state == Some("Z") {
            zombies.push(pid);
        }
    }
    let own = std::process::id();
    let is_ours = |pid: &u32| {
        let line = std::iter::successors(Some(*pid), |pid| parents.get(pid).copied());
        line.take(64).any(|pid| pid == own)
    };
    Ok(zombies.into_iter().filter(is_ours).count())
}

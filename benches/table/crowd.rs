//! What many children cost that live at once: ours, and as many bare processes of the same program. Counted from outside,
//! by `/proc`; memory is what each process has of it by proportion, page tables and kernel stacks beside it.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::Read;
use std::process::{Child, Command, ExitCode, Stdio, id};
use std::time::Instant;

use delegate_runtime::{Event, Task};

use crate::support::agents::Held;
use crate::support::{Rig, STAYS};

/// A kernel stack of one thread, as on every 64-bit architecture with 4 KiB pages.
const KERNEL_STACK_KIB: u64 = 16;

/// The numbers of a round of `alive`, by their places.
pub(crate) mod place {
    /// Nanoseconds until all were there, until all had ended.
    pub(crate) const THERE: usize = 0;
    pub(crate) const ENDED: usize = 1;
    /// KiB of the children alone: proportional memory, and page tables with kernel stacks.
    pub(crate) const CHILDREN: usize = 2;
    pub(crate) const KERNEL: usize = 3;
    /// KiB of everything that serves them, guards, template and parent among them, the kernel's side too.
    pub(crate) const ALL: usize = 4;
    // 5: KiB by which `MemAvailable` is less, whoever else took some.
    /// Open descriptors of the parent; of its guards.
    pub(crate) const DESCRIPTORS: usize = 6;
    pub(crate) const GUARDS_DESCRIPTORS: usize = 7;
    /// Processor time in ms from the start to the end: the parent's; its guards'.
    pub(crate) const CPU: usize = 8;
    pub(crate) const GUARDS_CPU: usize = 9;
}

/// A number of `/proc/PID/status`, 0 where the process is gone.
pub(crate) fn status(pid: u32, key: &str) -> u64 {
    field(&fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default(), key)
}

fn field(text: &str, key: &str) -> u64 {
    let line = text.lines().find_map(|line| line.strip_prefix(key));
    line.and_then(|rest| rest.split_whitespace().next()?.parse().ok()).unwrap_or(0)
}

fn proportional(pid: u32) -> u64 {
    let rollup = fs::read_to_string(format!("/proc/{pid}/smaps_rollup"));
    field(&rollup.unwrap_or_default(), "Pss:")
}

fn kernel(pid: u32) -> u64 {
    status(pid, "VmPTE:") + KERNEL_STACK_KIB * status(pid, "Threads:")
}

fn available() -> u64 {
    field(&fs::read_to_string("/proc/meminfo").unwrap_or_default(), "MemAvailable:")
}

fn descriptors(pid: u32) -> usize {
    fs::read_dir(format!("/proc/{pid}/fd")).map_or(0, Iterator::count)
}

/// Fields of `/proc/PID/stat` behind the name, which may hold anything.
fn stat(pid: u32) -> Vec<u64> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let rest = text.rsplit_once(')').map_or("", |(_, rest)| rest);
    rest.split_whitespace().map(|field| field.parse().unwrap_or(0)).collect()
}

/// User and system time in ms: clock ticks are 10 ms on every Linux that we know.
fn cpu(pid: u32) -> u64 {
    let stat = stat(pid);
    10 * (stat.get(11).unwrap_or(&0) + stat.get(12).unwrap_or(&0))
}

/// Everybody below this process, with the processor time of each in ms.
fn below() -> BTreeMap<u32, u64> {
    let mut found = BTreeMap::new();
    let mut next = vec![id()];
    while let Some(pid) = next.pop() {
        // Children hang on the thread that started them.
        let tasks = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
        for task in tasks {
            let text = fs::read_to_string(task.path().join("children")).unwrap_or_default();
            let pids = text.split_whitespace().filter_map(|pid| pid.parse::<u32>().ok());
            for pid in pids.filter(|pid| !found.contains_key(pid)).collect::<Vec<_>>() {
                found.insert(pid, cpu(pid));
                next.push(pid);
            }
        }
    }
    found
}

/// What stands while all children live.
struct Standing {
    there: u128,
    memory: [u64; 4],
    descriptors: [usize; 2],
    /// Guards and templates.
    guards: Vec<u32>,
}

fn standing(began: Instant, available_before: u64, children: &[u32]) -> Standing {
    let there = began.elapsed().as_nanos();
    let known: BTreeSet<_> = children.iter().copied().collect();
    let guards: Vec<_> = below().into_keys().filter(|pid| !known.contains(pid)).collect();
    let sum = |of: fn(u32) -> u64, pids: &mut dyn Iterator<Item = u32>| pids.map(of).sum::<u64>();
    let own = sum(proportional, &mut children.iter().copied());
    let in_kernel = sum(kernel, &mut children.iter().copied());
    let mut others = guards.iter().copied().chain([id()]).collect::<Vec<_>>().into_iter();
    let beside = sum(|pid| proportional(pid) + kernel(pid), &mut others);
    let less = available_before.saturating_sub(available());
    let held = guards.iter().map(|pid| descriptors(*pid)).sum();
    let descriptors = [descriptors(id()), held];
    Standing {
        there,
        memory: [own, in_kernel, own + in_kernel + beside, less],
        descriptors,
        guards,
    }
}

fn numbers(standing: &Standing, ended: u128, cpu: [u64; 2]) -> Vec<u128> {
    let memory = standing.memory.into_iter().map(u128::from);
    let descriptors = standing.descriptors.map(|count| count as u128);
    let times = [standing.there, ended].into_iter().chain(memory);
    times.chain(descriptors).chain(cpu.map(u128::from)).collect()
}

/// So many children of ours that say one word and wait for one another.
pub(crate) fn ours(rig: &Rig, count: usize) -> Result<Vec<u128>, String> {
    let gate = tempfile::NamedTempFile::new().map_err(|error| error.to_string())?;
    gate.as_file().lock().map_err(|error| error.to_string())?;
    let (before, cpu_before, guards_before) = (available(), cpu(id()), below());
    let began = Instant::now();
    let tasks =
        (0..count).map(|index| Task::of::<Held>(format!("child {index}"), gate.path().to_owned()));
    let mut run = rig.delegator.batch(tasks).start().map_err(|error| error.to_string())?;
    let (mut pids, mut spoke) = (Vec::new(), BTreeSet::new());
    for event in run.events() {
        if let Event::Start { pid: Some(pid), .. } = event {
            pids.push(pid);
        } else if let Event::Text { child, .. } = event {
            spoke.insert(child);
        }
        if spoke.len() == count {
            break;
        }
    }
    let standing = standing(began, before, &pids);
    let released = Instant::now();
    gate.as_file().unlock().map_err(|error| error.to_string())?;
    let report = run.finish();
    let ended = released.elapsed().as_nanos();
    if spoke.len() < count || !report.all_completed() {
        return Err(format!(
            "{} of {count} spoke, {} outcomes",
            spoke.len(),
            report.statuses().len()
        ));
    }
    let guards = standing.guards.iter();
    let guards = guards.map(|pid| cpu(*pid) - guards_before.get(pid).unwrap_or(&0)).sum();
    Ok(numbers(&standing, ended, [cpu(id()) - cpu_before, guards]))
}

/// Bare processes of this program: says so, and answers `alive N`.
pub(crate) fn serve_still() -> ExitCode {
    println!("ready");
    for line in std::io::stdin().lines().map_while(Result::ok) {
        let count = line.strip_prefix("alive ").and_then(|count| count.parse().ok());
        match count.ok_or_else(|| format!("no such round: {line}")).and_then(still) {
            Ok(numbers) => {
                let numbers: Vec<_> = numbers.iter().map(u128::to_string).collect();
                println!("ok {}", numbers.join(" "));
            }
            Err(why) => println!("failed {why}"),
        }
    }
    ExitCode::SUCCESS
}

fn still(count: usize) -> Result<Vec<u128>, String> {
    let program = std::env::current_exe().map_err(|error| error.to_string())?;
    let (before, cpu_before) = (available(), cpu(id()));
    let began = Instant::now();
    let mut children: Vec<Child> = Vec::new();
    for _ in 0..count {
        let mut command = Command::new(&program);
        command.arg(STAYS).stdin(Stdio::piped()).stdout(Stdio::piped());
        children.push(command.spawn().map_err(|error| error.to_string())?);
    }
    for child in &mut children {
        let output = child.stdout.as_mut().ok_or("no output")?;
        output.read_exact(&mut [0]).map_err(|error| error.to_string())?;
    }
    let pids: Vec<_> = children.iter().map(Child::id).collect();
    let standing = standing(began, before, &pids);
    let released = Instant::now();
    children.iter_mut().for_each(|child| drop(child.stdin.take()));
    for child in &mut children {
        child.wait().map_err(|error| error.to_string())?;
    }
    let ended = released.elapsed().as_nanos();
    Ok(numbers(&standing, ended, [cpu(id()) - cpu_before, 0]))
}

//! What many children cost that live at once: ours, and as many bare processes of the same program. Counted from outside,
//! by `/proc`; memory is what each process has of it by proportion, page tables and kernel stacks beside it.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::Read;
use std::process::{Child, Command, ExitCode, Stdio, id};
use std::time::{Duration, Instant};

use delegate_runtime::blocking::Run;
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

/// By what names guards go.
const GUARDS: [&str; 2] = ["warden", "minder"];

/// The guards above these children, and what else they have started: templates, workers that wait.
fn guards(children: &[u32]) -> Vec<u32> {
    let mut guards = Vec::new();
    let above = |pid: u32| stat(pid).get(1).and_then(|pid| u32::try_from(*pid).ok());
    let mut at = children.first().copied().and_then(above);
    while let Some(pid) = at {
        let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
        if !GUARDS.contains(&name.trim()) {
            break;
        }
        guards.push(pid);
        at = above(pid);
    }
    let known: BTreeSet<_> = children.iter().chain(&guards).copied().collect();
    let started = guards.iter().flat_map(|pid| {
        let path = format!("/proc/{pid}/task/{pid}/children");
        let text = fs::read_to_string(path).unwrap_or_default();
        text.split_whitespace().filter_map(|pid| pid.parse().ok()).collect::<Vec<u32>>()
    });
    let started: Vec<_> = started.filter(|pid| !known.contains(pid)).collect();
    guards.into_iter().chain(started).collect()
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
    let guards = guards(children);
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

/// A run of children that have said one word and wait for one another.
struct Waiting {
    run: Run,
    gate: tempfile::NamedTempFile,
    pids: Vec<u32>,
}

impl Waiting {
    fn start(rig: &Rig, count: usize) -> Result<Self, String> {
        let gate = tempfile::NamedTempFile::new().map_err(|error| error.to_string())?;
        gate.as_file().lock().map_err(|error| error.to_string())?;
        let tasks = (0..count)
            .map(|index| Task::of::<Held>(format!("child {index}"), gate.path().to_owned()));
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
        if spoke.len() < count {
            return Err(format!("{} of {count} children spoke", spoke.len()));
        }
        Ok(Self { run, gate, pids })
    }

    /// How long they take to end, all of them with their answer, and all started in the way that is measured.
    fn end(self, launcher: &str) -> Result<Duration, String> {
        let released = Instant::now();
        self.gate.as_file().unlock().map_err(|error| error.to_string())?;
        let report = self.run.finish();
        let ended = released.elapsed();
        if !report.all_completed() {
            return Err("not all have completed".to_owned());
        }
        let other = report.results().filter(|one| one.launcher.as_deref() != Some(launcher));
        match other.count() {
            0 => Ok(ended),
            count => Err(format!("{count} of {} were not started by {launcher}", self.pids.len())),
        }
    }
}

/// So many children of ours at once, after one that shows who its guards are, and for which a template is made.
pub(crate) fn ours(rig: &Rig, launcher: &str, count: usize) -> Result<Vec<u128>, String> {
    let first = Waiting::start(rig, 1)?;
    let of_guards: BTreeMap<u32, u64> =
        guards(&first.pids).into_iter().map(|pid| (pid, cpu(pid))).collect();
    first.end(launcher)?;
    if of_guards.is_empty() {
        return Err("its guards were not found".to_owned());
    }
    let (before, cpu_before) = (available(), cpu(id()));
    let began = Instant::now();
    let waiting = Waiting::start(rig, count)?;
    let standing = standing(began, before, &waiting.pids);
    let ended = waiting.end(launcher)?.as_nanos();
    let guards = standing.guards.iter();
    let used = guards.map(|pid| cpu(*pid).saturating_sub(*of_guards.get(pid).unwrap_or(&0)));
    Ok(numbers(&standing, ended, [cpu(id()) - cpu_before, used.sum()]))
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

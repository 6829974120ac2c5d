//! Files by which cgroups hold a scope to its ration, of both versions: limits written, what was met read, and
//! controllers handed on from our own cgroup of version 2, for which owner and guards move into a leaf of it.
//! Decides nothing; [`crate::ration`] does.

use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags, open};

use super::make_dir;
use crate::containment::LEAF;
use crate::exit::Reached;
use crate::ration::leaf::{Own, Refusal, Way};
use crate::ration::{Controller, Limit, Means, Ration};
use crate::sys::Pid;

/// Rounds of moving who stands in a cgroup: who forks meanwhile leaves a child there.
const MOVE_ROUNDS: usize = 16;

/// A directory of a cgroup that holds limits.
#[derive(Debug, Clone)]
pub(crate) struct Bounds {
    pub(crate) dir: PathBuf,
    pub(crate) version: Means,
}

impl Bounds {
    /// Writes one limit.
    pub(crate) fn set(&self, limit: Limit, ration: &Ration) -> io::Result<()> {
        let write = |file: &str, value: String| fs::write(self.dir.join(file), value);
        let two = self.version == Means::CgroupV2;
        match limit {
            Limit::Memory => {
                let bytes = ration.memory.unwrap_or(u64::MAX).to_string();
                if two {
                    write("memory.max", bytes)?;
                    // Missing where nothing is swapped.
                    return without(write("memory.swap.max", "0".into()));
                }
                write("memory.limit_in_bytes", bytes.clone())?;
                without(write("memory.memsw.limit_in_bytes", bytes))
            }
            Limit::Processes => write("pids.max", ration.processes.unwrap_or(u64::MAX).to_string()),
            Limit::CpuWeight => {
                let weight = ration.cpu_weight.unwrap_or(100);
                if two {
                    return write("cpu.weight", weight.to_string());
                }
                write("cpu.shares", shares(weight).to_string())
            }
            // Not by cgroups.
            Limit::OpenFiles | Limit::Cpu | Limit::Nice => Ok(()),
        }
    }

    /// What was met here.
    pub(crate) fn reached(&self) -> Reached {
        let count = |file: &str, name: &str| {
            let text = fs::read_to_string(self.dir.join(file)).unwrap_or_default();
            counter(&text, name)
        };
        let two = self.version == Means::CgroupV2;
        let file = if two { "memory.events" } else { "memory.oom_control" };
        let memory = count(file, "oom_kill");
        let small = |count: u64| u32::try_from(count).unwrap_or(u32::MAX);
        let processes = small(count("pids.events", "max"));
        Reached { memory: small(memory), processes, cpu: false }
    }

    /// Microseconds of processor time that were used in it, which every cgroup of version 2 counts.
    pub(crate) fn cpu_micros(&self) -> Option<u64> {
        let text = fs::read_to_string(self.dir.join("cpu.stat")).ok()?;
        Some(counter(&text, "usage_usec"))
    }

    /// Whether it takes one more process.
    pub(crate) fn is_full(&self) -> bool {
        let number = |file: &str| -> Option<u64> {
            fs::read_to_string(self.dir.join(file)).ok()?.trim().parse().ok()
        };
        // `max` is no number.
        number("pids.max").zip(number("pids.current")).is_some_and(|(max, now)| now >= max)
    }

    /// What a process writes itself into.
    pub(crate) fn door(&self) -> io::Result<OwnedFd> {
        let flags = OFlags::WRONLY | OFlags::CLOEXEC;
        Ok(open(self.dir.join("cgroup.procs"), flags, Mode::empty())?)
    }
}

/// A file that is missing is no failure.
fn without(written: io::Result<()>) -> io::Result<()> {
    match written {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

/// Version 1 counts from 2 to 262,144 with 1,024 for who has none; version 2 from 1 to 10,000 with 100. As the
/// kernel maps one to the other.
fn shares(weight: u16) -> u64 {
    (u64::from(weight) * 1024 / 100).clamp(2, 262_144)
}

/// A line `NAME NUMBER`.
fn counter(text: &str, name: &str) -> u64 {
    let rest = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    rest.and_then(|rest| rest.trim().parse().ok()).unwrap_or(0)
}

/// Hands a controller on from our own cgroup to what is inside of it. Where that needs it, whoever stands in it moves into
/// a leaf first: all must be `ours`, else it is busy.
pub(crate) fn hand_on(
    base: &Path,
    controller: Controller,
    ours: impl Fn(Pid) -> bool,
) -> io::Result<Way> {
    hand_on_named(base, controller.word(), ours)
}

fn hand_on_named(base: &Path, controller: &str, ours: impl Fn(Pid) -> bool) -> io::Result<Way> {
    let way = Own::read(base).way(controller, &ours).map_err(|refusal| {
        io::Error::from_raw_os_error(match refusal {
            Refusal::NotThere => libc::ENOENT,
            Refusal::Others(_) => libc::EBUSY,
        })
    })?;
    if way == Way::Already {
        return Ok(way);
    }
    let enable = || fs::write(base.join("cgroup.subtree_control"), format!("+{controller}"));
    if way == Way::AfterLeaf {
        let leaf = base.join(LEAF);
        make_dir(&leaf)?;
        for _ in 0..MOVE_ROUNDS {
            let inside = Own::read(base).inside;
            if inside.is_empty() {
                break;
            }
            for pid in inside.into_iter().filter(|pid| ours(*pid)) {
                match fs::write(leaf.join("cgroup.procs"), pid.to_string()) {
                    // It is gone.
                    Err(error) if error.raw_os_error() == Some(libc::ESRCH) => {}
                    other => other?,
                }
            }
        }
    }
    enable()?;
    Ok(way)
}

/// Removes the leaf of a cgroup where nobody stands in it any more and nothing is handed on that would need it.
pub(crate) fn remove_empty_leaf(base: &Path) {
    // Fails while somebody stands there.
    drop(fs::remove_dir(base.join(LEAF)));
}

#[cfg(test)]
#[path = "rationed_tests.rs"]
mod tests;

//! Processes as `/proc` shows them, by identity, and the guards above a child. Also used by examples and
//! benches, so it stands on its own.
#![allow(dead_code, reason = "each program that uses it has its own part")]
#![allow(clippy::allow_attributes, reason = "an expectation would fail in some of them")]

use std::collections::HashSet;
use std::fs;
use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

/// Number and start time of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Identity {
    pub(crate) pid: i32,
    pub(crate) start: u64,
}

/// The fields of `/proc/PID/stat` after the name.
fn stat(pid: i32) -> Option<Vec<String>> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let rest = text.get(text.rfind(')')? + 2..)?;
    Some(rest.split(' ').map(str::to_owned).collect())
}

impl Identity {
    pub(crate) fn of(pid: i32) -> Option<Self> {
        let start = stat(pid)?.get(19)?.parse().ok()?;
        Some(Self { pid, start })
    }

    /// Whether it is this process and not dead. One whose main thread has ended while others run is shown
    /// as a zombie and is not dead.
    pub(crate) fn lives(self) -> bool {
        let Some(fields) = stat(self.pid) else { return false };
        let field = |at: usize| fields.get(at).map(String::as_str);
        let dead = matches!(field(0), Some("Z" | "X") | None);
        field(19) == Some(&self.start.to_string()) && !(dead && field(17) == Some("1"))
    }

    pub(crate) fn state(self) -> Option<String> {
        stat(self.pid)?.first().cloned()
    }

    pub(crate) fn parent(self) -> Option<i32> {
        stat(self.pid)?.get(1)?.parse().ok()
    }

    /// Whether it lives and no signal waits for it.
    pub(crate) fn is_untold(self) -> bool {
        let status = fs::read_to_string(format!("/proc/{}/status", self.pid)).unwrap_or_default();
        let waiting = status.lines().find_map(|line| line.strip_prefix("ShdPnd:"));
        let none = waiting.is_some_and(|mask| mask.trim().bytes().all(|digit| digit == b'0'));
        none && self.lives()
    }

    /// Its name, at most 15 bytes.
    pub(crate) fn name(self) -> String {
        let name = fs::read_to_string(format!("/proc/{}/comm", self.pid)).unwrap_or_default();
        name.trim_end().to_owned()
    }

    /// A handle, if it still is this process.
    pub(crate) fn handle(self) -> Option<OwnedFd> {
        let handle = pidfd_open(Pid::from_raw(self.pid)?, PidfdFlags::empty()).ok()?;
        (Self::of(self.pid) == Some(self)).then_some(handle)
    }

    /// Sends a signal through a handle; whether it was this process and could be reached.
    pub(crate) fn signal(self, signal: Signal) -> bool {
        self.handle().is_some_and(|handle| pidfd_send_signal(handle, signal).is_ok())
    }

    /// Sends KILL through a handle, if it still is this process.
    pub(crate) fn kill(self) {
        self.signal(Signal::KILL);
    }

    /// Whether its environment holds `entry`. The dead have none, and some clear theirs.
    pub(crate) fn has_variable(self, entry: &str) -> bool {
        self.environment().split(|byte| *byte == 0).any(|one| one == entry.as_bytes())
    }

    /// Whether its environment has something under `key`.
    pub(crate) fn has_key(self, key: &str) -> bool {
        let head = format!("{key}=");
        self.environment().split(|byte| *byte == 0).any(|one| one.starts_with(head.as_bytes()))
    }

    fn environment(self) -> Vec<u8> {
        fs::read(format!("/proc/{}/environ", self.pid)).unwrap_or_default()
    }
}

/// All processes.
pub(crate) fn everybody() -> impl Iterator<Item = Identity> {
    let entries = fs::read_dir("/proc").expect("proc").flatten();
    entries.filter_map(|entry| Identity::of(entry.file_name().to_str()?.parse().ok()?))
}

/// Processes with this parent.
pub(crate) fn children_of(parent: i32) -> HashSet<i32> {
    everybody().filter(|who| who.parent() == Some(parent)).map(|who| who.pid).collect()
}

/// Names under which guards show themselves.
const NAMES: [&str; 2] = ["warden", "minder"];

/// Whether it is a guard, by its name.
pub(crate) fn is_guard(who: Identity) -> bool {
    NAMES.contains(&who.name().as_str()) && who.lives()
}

/// Who guards a child.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Guards {
    /// `None` where one supervisor stands alone.
    pub(crate) keeper: Option<Identity>,
    pub(crate) supervisor: Identity,
}

impl Guards {
    /// The guards of a child that they started: its parent is one of them, whichever has outlived the
    /// other. `None` where its parent is no guard, or is just starting somebody: a child that has not
    /// executed anything yet bears its parent's name.
    pub(crate) fn of(child: Identity) -> Option<Self> {
        let parent = Identity::of(child.parent()?).filter(|parent| is_guard(*parent))?;
        let above = parent.parent().and_then(Identity::of).filter(|above| is_guard(*above));
        if let Some(keeper) = above {
            return Some(Self { keeper: Some(keeper), supervisor: parent });
        }
        let mut below = children_of(parent.pid).into_iter().filter_map(Identity::of);
        let Some(supervisor) = below.find(|one| is_guard(*one)) else {
            return Some(Self { keeper: None, supervisor: parent });
        };
        // Whoever starts somebody sleeps until that has executed (man 2 vfork).
        let settled = parent.state()? != "D" && is_guard(supervisor);
        settled.then_some(Self { keeper: Some(parent), supervisor })
    }

    /// A pair of guards with this variable in its environment. Finds those that replaced a pair of which
    /// both had died: they are nobody's parent.
    pub(crate) fn marked(entry: &str) -> Option<Self> {
        let guards = everybody().filter(|who| is_guard(*who));
        let mut marked = guards.filter(|who| who.has_variable(entry));
        marked.find_map(|supervisor| {
            let keeper = Identity::of(supervisor.parent()?).filter(|above| is_guard(*above))?;
            let settled = keeper.state()? != "D" && is_guard(supervisor);
            let top = keeper.parent().and_then(Identity::of).is_none_or(|above| !is_guard(above));
            (settled && top).then_some(Self { keeper: Some(keeper), supervisor })
        })
    }
}

/// The process with this number in a pid namespace below ours, in which somebody is about `dir`: its environment or its
/// command line names that. Else the one that has it here, if it is about `dir` or a guard's child.
pub(crate) fn from_inside(number: i32, dir: &Path) -> Option<Identity> {
    let dir = dir.to_str()?.as_bytes().to_vec();
    let namespace = |who: &Identity| fs::read_link(format!("/proc/{}/ns/pid", who.pid)).ok();
    let number_inside = |who: &Identity| {
        let status = fs::read_to_string(format!("/proc/{}/status", who.pid)).ok()?;
        let numbers = status.lines().find_map(|line| line.strip_prefix("NSpid:"))?;
        numbers.split_whitespace().last()?.parse::<i32>().ok()
    };
    let own = fs::read_link("/proc/self/ns/pid").ok();
    let names_it = |who: &Identity| {
        ["environ", "cmdline"].iter().any(|file| {
            let text = fs::read(format!("/proc/{}/{file}", who.pid)).unwrap_or_default();
            text.windows(dir.len()).any(|part| part == dir)
        })
    };
    let about: Vec<_> = everybody()
        .filter(|who| names_it(who))
        .filter_map(|who| namespace(&who))
        .filter(|namespace| Some(namespace) != own.as_ref())
        .collect();
    // Each scope has such a number: of several, who came last.
    let inside = everybody().filter(|who| {
        number_inside(who) == Some(number) && namespace(who).is_some_and(|its| about.contains(&its))
    });
    let inside = inside.max_by_key(|who| who.start);
    // Whoever wrote it may have been told it by a guard, or stand outside.
    let outside = Identity::of(number).filter(|who| {
        let root = who.parent().and_then(Identity::of).is_some_and(is_guard);
        root || names_it(who)
    });
    inside.or(outside)
}

/// The process whose number, as its pid namespace has it, stands in `file`; it is that of the process `beside`.
pub(crate) fn from_inside_of(file: &Path, beside: u32) -> Identity {
    let namespace = |pid: i32| fs::read_link(format!("/proc/{pid}/ns/pid")).ok();
    let its = namespace(beside.cast_signed());
    let number = fs::read_to_string(file).expect("read");
    let ends = |who: &Identity| {
        let status = fs::read_to_string(format!("/proc/{}/status", who.pid)).unwrap_or_default();
        let line = status.lines().find(|line| line.starts_with("NSpid:")).unwrap_or_default();
        line.split_whitespace().last() == Some(number.trim())
    };
    everybody().find(|who| namespace(who.pid) == its && ends(who)).expect("somebody inside")
}

//! Who is there, as `/proc` shows it, by identity: number and start time. Used inside a namespace, where
//! everybody who was not there before the owner is of the owner.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use rustix::process::{Pid, PidfdFlags, Signal, WaitOptions, pidfd_open, pidfd_send_signal};

/// Number and start time of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Identity {
    pub(crate) pid: i32,
    start: u64,
}

/// The fields of `/proc/PID/stat` after the name.
fn stat(pid: i32) -> Option<Vec<String>> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let rest = text.get(text.rfind(')')? + 2..)?;
    Some(rest.split(' ').map(str::to_owned).collect())
}

impl Identity {
    /// Who has this number now, dead ones too.
    pub(crate) fn of(pid: i32) -> Option<Self> {
        Some(Self { pid, start: stat(pid)?.get(19)?.parse().ok()? })
    }

    /// Who has this number in a pid namespace below ours, with `dir` in its environment.
    pub(crate) fn from_inside(number: i32, dir: &Path) -> Option<Self> {
        let entry = format!("DIR={}", dir.display());
        everybody().into_iter().find(|who| {
            let read =
                |file: &str| fs::read(format!("/proc/{}/{file}", who.pid)).unwrap_or_default();
            let (status, environ) = (read("status"), read("environ"));
            let status = String::from_utf8_lossy(&status);
            let numbers = status.lines().find_map(|line| line.strip_prefix("NSpid:"));
            let numbers: Vec<_> = numbers.unwrap_or_default().split_whitespace().collect();
            numbers.len() > 1
                && numbers.last().and_then(|last| last.parse().ok()) == Some(number)
                && environ.split(|byte| *byte == 0).any(|one| one == entry.as_bytes())
        })
    }

    /// One who had this number and is reaped.
    pub(crate) fn gone(pid: i32) -> Self {
        Self { pid, start: 0 }
    }

    /// Whether it is this process, and not dead.
    pub(crate) fn lives(self) -> bool {
        let Some(fields) = stat(self.pid) else { return false };
        let state = fields.first().map_or("X", String::as_str);
        !matches!(state, "Z" | "X") && Self::of(self.pid) == Some(self)
    }

    /// Its name, at most 15 bytes; empty when it is gone.
    pub(crate) fn name(self) -> String {
        let name = fs::read_to_string(format!("/proc/{}/comm", self.pid)).unwrap_or_default();
        name.trim_end().to_owned()
    }

    /// Sends a signal through a handle, if it still is this process.
    pub(crate) fn signal(self, signal: Signal) -> bool {
        let handle =
            Pid::from_raw(self.pid).and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok());
        let handle = handle.filter(|_| Self::of(self.pid) == Some(self));
        handle.is_some_and(|handle| pidfd_send_signal(handle, signal).is_ok())
    }
}

/// Everybody who lives.
pub(crate) fn everybody() -> BTreeSet<Identity> {
    let entries = fs::read_dir("/proc").expect("proc").flatten();
    let all = entries.filter_map(|entry| Identity::of(entry.file_name().to_str()?.parse().ok()?));
    all.filter(|who| who.lives()).collect()
}

/// The dead that nobody has reaped.
pub(crate) fn unreaped() -> BTreeSet<Identity> {
    let entries = fs::read_dir("/proc").expect("proc").flatten();
    let all = entries.filter_map(|entry| Identity::of(entry.file_name().to_str()?.parse().ok()?));
    all.filter(|who| stat(who.pid).is_some_and(|fields| fields[0] == "Z")).collect()
}

/// Names under which guards show themselves.
const GUARDS: [&str; 3] = ["warden", "minder", FIRST];

/// What number 1 of a scope's pid namespace calls itself: it is a guard's child.
pub(crate) const FIRST: &str = "porter";

/// Whether it is a guard, by its name: to leave guards out, never to end anybody.
pub(crate) fn is_guard(who: Identity) -> bool {
    GUARDS.contains(&who.name().as_str())
}

/// Its parent.
pub(crate) fn parent(who: Identity) -> Option<i32> {
    stat(who.pid)?.get(1)?.parse().ok()
}

/// Reaps what has been left to PID 1, which this is: the dead that are none of `own` children.
pub(crate) fn reap(own: &[u32]) {
    for entry in fs::read_dir("/proc").expect("proc").flatten() {
        let pid: Option<i32> = entry.file_name().to_str().and_then(|name| name.parse().ok());
        let Some(pid) = pid.filter(|pid| !own.contains(&pid.cast_unsigned())) else { continue };
        let orphan = stat(pid).is_some_and(|fields| fields[0] == "Z" && fields[1] == "1");
        if orphan {
            rustix::process::waitpid(Pid::from_raw(pid), WaitOptions::NOHANG).ok();
        }
    }
}

//! Whether what stands in a row is still so: a judgement over facts, and the reading of the facts.
//!
//! A row is an address, not an identity, until it was checked through a handle that was opened first. What cannot
//! be known is [`Standing::Unknown`] and never grounds to end anything.

use std::os::fd::{AsFd, OwnedFd};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid as RawPid, PidfdFlags, pidfd_open};

use super::row::Row;
use crate::identity::{self, BootId, Identity, Stat};

/// What is left of a process that was written down.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Standing {
    /// It lives: number, start time and, where the kernel gives one, the pidfd's inode are the same.
    Same,
    /// It has ended.
    Gone,
    /// It has ended, and its number is another process.
    Another,
    /// It was written in another boot: it has ended.
    Stale,
    /// Its number counts in another pid namespace.
    Elsewhere,
    /// It cannot be told.
    Unknown,
}

impl Standing {
    /// Whether it has certainly ended.
    #[must_use]
    pub fn has_ended(self) -> bool {
        matches!(self, Self::Gone | Self::Another | Self::Stale)
    }
}

/// What is known of a row's child and its owner.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Evidence {
    /// The child.
    pub child: Standing,
    /// Its owner.
    pub owner: Standing,
}

impl Evidence {
    /// Whether the child certainly lives and its owner certainly does not.
    #[must_use]
    pub fn is_leftover(self) -> bool {
        self.child == Standing::Same && self.owner.has_ended()
    }
}

/// What the system says about a number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Facts {
    pub(super) boot: Option<BootId>,
    pub(super) namespace: Option<u64>,
    pub(super) process: Process,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Process {
    Absent,
    Unreadable,
    Found { start: u64, inode: Option<u64>, ended: bool },
}

/// The judgement. An inode, where both know one, decides between two processes of one tick.
pub(super) fn judge(recorded: &Identity, facts: &Facts) -> Standing {
    match (recorded.boot, facts.boot) {
        (Some(then), Some(now)) if then != now => return Standing::Stale,
        (Some(_), Some(_)) => {}
        (None, _) | (_, None) => return Standing::Unknown,
    }
    match (recorded.namespace, facts.namespace) {
        (Some(then), Some(now)) if then != now => return Standing::Elsewhere,
        (Some(_), Some(_)) => {}
        (None, _) | (_, None) => return Standing::Unknown,
    }
    let (start, inode, ended) = match facts.process {
        Process::Absent => return Standing::Gone,
        Process::Unreadable => return Standing::Unknown,
        Process::Found { start, inode, ended } => (start, inode, ended),
    };
    let differ = recorded.inode.zip(inode).is_some_and(|(then, now)| then != now);
    match recorded.start {
        Some(then) if then != start || differ => Standing::Another,
        None if differ => Standing::Another,
        Some(_) if ended => Standing::Gone,
        Some(_) => Standing::Same,
        // Its start time was not read in time, which says that it ended early; but it proves nothing.
        None => Standing::Unknown,
    }
}

/// Reads the facts about a number, and hands back the handle through which they were read.
fn look(pid: u32) -> (Facts, Option<OwnedFd>) {
    let (process, handle) = look_at(pid);
    let facts = Facts { boot: BootId::current(), namespace: identity::own_namespace(), process };
    (facts, handle)
}

fn look_at(pid: u32) -> (Process, Option<OwnedFd>) {
    let number = pid.cast_signed();
    let opened = RawPid::from_raw(number).ok_or(Errno::SRCH);
    let handle = match opened.and_then(|pid| pidfd_open(pid, PidfdFlags::empty())) {
        Ok(handle) => handle,
        // Not a process any more; INVAL: now the number of a thread.
        Err(Errno::SRCH | Errno::INVAL) => return (Process::Absent, None),
        Err(_) => return (Process::Unreadable, None),
    };
    // Read *after* the handle was opened: another process of this number would have to be reaped first, which
    // the handle shows.
    let stat = Stat::read(number);
    if identity::pid_of(handle.as_fd()) != Some(number) {
        return (Process::Absent, None);
    }
    let Some(stat) = stat else { return (Process::Unreadable, None) };
    let inode = identity::pidfd_inode(handle.as_fd());
    let ended = has_ended(&handle) || stat.is_dead();
    (Process::Found { start: stat.start, inode, ended }, Some(handle))
}

/// A pidfd is readable when its process has ended (man 2 pidfd_open).
fn has_ended(handle: &OwnedFd) -> bool {
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut [PollFd::new(handle, PollFlags::IN)], Some(&now)).is_ok_and(|ready| ready > 0)
}

/// The inode of the pidfd of whoever has this number now, where the kernel gives each its own.
pub(crate) fn inode_of(pid: u32) -> Option<u64> {
    look_at(pid).1.and_then(|handle| identity::pidfd_inode(handle.as_fd()))
}

/// What is left of a process that was written down.
#[must_use]
pub fn standing(recorded: &Identity) -> Standing {
    judge(recorded, &look(recorded.pid).0)
}

impl Row {
    /// Checks the row against the system, now.
    #[must_use]
    pub fn verify(&self) -> Evidence {
        Evidence {
            child: self.identity.as_ref().map_or(Standing::Unknown, standing),
            owner: standing(&self.owner),
        }
    }

    /// A handle of the child, if it is the same process: signals through it reach nobody else.
    #[must_use]
    pub fn open(&self) -> Option<OwnedFd> {
        let recorded = self.identity.as_ref()?;
        let (facts, handle) = look(recorded.pid);
        handle.filter(|_| judge(recorded, &facts) == Standing::Same)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn recorded() -> Identity {
        Identity { inode: Some(7), ..Identity::own() }
    }

    fn facts(process: Process) -> Facts {
        Facts { boot: recorded().boot, namespace: recorded().namespace, process }
    }

    fn found(start: u64, inode: Option<u64>, ended: bool) -> Facts {
        facts(Process::Found { start, inode, ended })
    }

    #[test]
    fn every_fact_has_its_judgement() {
        let own = recorded();
        let start = own.start.expect("start");
        let other_boot = BootId::parse(&"1".repeat(32));
        for (facts, expected) in [
            (found(start, Some(7), false), Standing::Same),
            (found(start, None, false), Standing::Same),
            (found(start, Some(8), false), Standing::Another),
            (found(start + 1, Some(7), false), Standing::Another),
            (found(start + 1, None, true), Standing::Another),
            (found(start, Some(7), true), Standing::Gone),
            (facts(Process::Absent), Standing::Gone),
            (facts(Process::Unreadable), Standing::Unknown),
            (Facts { boot: other_boot, ..found(start, Some(7), false) }, Standing::Stale),
            (Facts { boot: None, ..found(start, Some(7), false) }, Standing::Unknown),
            (Facts { namespace: Some(1), ..found(start, Some(7), false) }, Standing::Elsewhere),
            (Facts { namespace: None, ..found(start, Some(7), false) }, Standing::Unknown),
        ] {
            assert_eq!(judge(&own, &facts), expected, "{facts:?}");
        }
    }

    #[test]
    fn what_was_not_written_proves_nothing() {
        let now = found(recorded().start.expect("start"), Some(7), false);
        for unknown in [
            Identity { boot: None, ..recorded() },
            Identity { namespace: None, ..recorded() },
            Identity { start: None, ..recorded() },
        ] {
            assert_eq!(judge(&unknown, &now), Standing::Unknown, "{unknown:?}");
        }
        let without_inode = Identity { inode: None, ..recorded() };
        assert_eq!(judge(&without_inode, &now), Standing::Same);
    }

    #[test]
    fn the_system_is_asked() {
        assert_eq!(standing(&Identity::own()), Standing::Same);
        let other = Identity { start: Some(1), ..Identity::own() };
        assert_eq!(standing(&other), Standing::Another);
        // Above every pid_max.
        let nobody = Identity { pid: 1 << 30, ..Identity::own() };
        assert_eq!(standing(&nobody), Standing::Gone);
    }
}

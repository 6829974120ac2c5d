//! Who a process is: its number is an address that is handed out again; number and start time together
//! are an identity, checked again *after* a pidfd was opened ([`Handle::open`]).
//!
//! Reads `/proc/PID/stat` (man 5 proc_pid_stat) without trusting it: a name may hold spaces and brackets.

use std::fs;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::process::{Pid as RawPid, PidfdFlags, pidfd_open};

use crate::exit::Process;
use crate::sys::Pid;

/// What `/proc/PID/stat` says, as far as we need it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Stat {
    pub(crate) name: String,
    pub(crate) state: u8,
    pub(crate) parent: Pid,
    pub(crate) group: Pid,
    /// Those that have not ended; the main thread counts until the process is reaped.
    pub(crate) threads: u32,
    /// In clock ticks since boot.
    pub(crate) start: u64,
}

impl Stat {
    /// `None` when there is no such process.
    pub(crate) fn read(pid: Pid) -> Option<Self> {
        Self::parse(&fs::read(format!("/proc/{pid}/stat")).ok()?)
    }

    fn parse(text: &[u8]) -> Option<Self> {
        let open = text.iter().position(|byte| *byte == b'(')?;
        let close = text.iter().rposition(|byte| *byte == b')')?;
        let name = String::from_utf8_lossy(text.get(open + 1..close)?).into_owned();
        let rest = std::str::from_utf8(text.get(close + 1..)?).ok()?;
        // From the third field on: state, ppid, pgrp, ...; the start time is field 22.
        let mut fields = rest.split_ascii_whitespace();
        Some(Self {
            name,
            state: *fields.next()?.as_bytes().first()?,
            parent: fields.next()?.parse().ok()?,
            group: fields.next()?.parse().ok()?,
            threads: fields.nth(14)?.parse().ok()?,
            start: fields.nth(1)?.parse().ok()?,
        })
    }

    /// Dead, and waits for its parent. One whose main thread has ended while others run looks the same
    /// but for their number.
    pub(crate) fn is_dead(&self) -> bool {
        matches!(self.state, b'Z' | b'X') && self.threads <= 1
    }

    /// For reports.
    pub(crate) fn process(&self, pid: Pid) -> Process {
        Process { pid: pid.cast_unsigned(), name: self.name.clone() }
    }
}

/// A process that is held: signals through it never reach another one.
#[derive(Debug)]
pub(crate) struct Handle {
    pidfd: OwnedFd,
}

impl Handle {
    /// Opens the process that was `expected` a moment ago; `None` when it is gone or another one.
    pub(crate) fn open(pid: Pid, expected: &Stat) -> Option<Self> {
        let pidfd = pidfd_open(RawPid::from_raw(pid)?, PidfdFlags::empty()).ok()?;
        let now = Stat::read(pid)?;
        (now.start == expected.start).then_some(Self { pidfd })
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.pidfd.as_fd()
    }
}

/// A pidfd of the calling process.
pub(crate) fn own_pidfd() -> io::Result<OwnedFd> {
    Ok(pidfd_open(rustix::process::getpid(), PidfdFlags::empty())?)
}

/// The number of the process that a pidfd stands for (man 2 pidfd_open); `None` when it is dead.
pub(crate) fn pid_of(pidfd: BorrowedFd<'_>) -> Option<Pid> {
    use std::os::fd::AsRawFd;
    let info = fs::read_to_string(format!("/proc/self/fdinfo/{}", pidfd.as_raw_fd())).ok()?;
    let number = info.lines().find_map(|line| line.strip_prefix("Pid:"))?;
    number.trim().parse().ok().filter(|pid| *pid > 0)
}

/// Whether `/proc` is there and speaks of the pid namespace that this process is in: in another one our
/// numbers are other processes.
pub(crate) fn proc_is_ours() -> bool {
    let shown = fs::read_link("/proc/self").ok();
    shown.is_some_and(|shown| shown.to_str() == Some(&own_pid().to_string()))
}

/// The calling process's number.
pub(crate) fn own_pid() -> Pid {
    rustix::process::getpid().as_raw_nonzero().get()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_name_with_brackets_does_not_shift_the_fields() {
        let text = b"42 (a) S 1 (b)) R 7 8 9 0 -1 1 2 3 4 5 6 7 8 9 10 11 1 0 12345 99";
        let stat = Stat::parse(text).expect("stat");
        assert_eq!(stat.name, "a) S 1 (b)");
        assert_eq!((stat.state, stat.parent, stat.group), (b'R', 7, 8));
        assert_eq!((stat.threads, stat.start), (1, 12345));
    }

    #[test]
    fn this_process_is_known_to_itself() {
        let own = own_pid();
        let stat = Stat::read(own).expect("stat");
        assert!(Handle::open(own, &stat).is_some());
        let other = Stat { start: stat.start + 1, ..stat };
        assert!(Handle::open(own, &other).is_none(), "another start time is another process");
        assert_eq!(pid_of(own_pidfd().expect("pidfd").as_fd()), Some(own));
    }

    proptest! {
        #[test]
        fn parsing_is_total(text in prop::collection::vec(any::<u8>(), 0..200)) {
            drop(Stat::parse(&text));
        }
    }
}

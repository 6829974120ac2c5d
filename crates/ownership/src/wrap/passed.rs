//! What a front finds when it starts and hands on to its program: descriptors, and what becomes of signals. Directory
//! and environment go with every spawn, limits and the rest are inherited through the guards.

use std::fs;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd, RawFd};

use rustix::io::FdFlags;

use crate::identity::{self, Stat};
use crate::spawn::Joins;
use crate::sys::{front, process};

/// Descriptors and signals of this process as it was executed.
#[derive(Debug)]
pub(super) struct Passed {
    /// Numbers of inherited descriptors: what this process opened itself is close-on-exec.
    numbers: Vec<RawFd>,
    pub(super) joins: Joins,
}

impl Passed {
    pub(super) fn find() -> io::Result<Self> {
        let status = fs::read_to_string("/proc/self/status")?;
        let pipe = 1 << (libc::SIGPIPE - 1);
        let ignored = mask(&status, "SigIgn") & !pipe;
        let ignored = if front::pipe_was_ignored() { ignored | pipe } else { ignored };
        let blocked = mask(&status, "SigBlk");
        let group = own_group()?;
        Ok(Self { numbers: inherited()?, joins: Joins { group, ignored, blocked } })
    }

    /// Whether this signal was ignored.
    pub(super) fn ignores(&self, number: i32) -> bool {
        self.joins.ignored >> (number - 1) & 1 == 1
    }

    /// A copy of each, with its number.
    pub(super) fn copies(&self) -> io::Result<Vec<(RawFd, OwnedFd)>> {
        let copy = |number: &RawFd| {
            // Held open by nobody else here: it is closed in [`Passed::let_go`] only.
            let fd = process::borrowed(*number);
            Ok((*number, rustix::io::fcntl_dupfd_cloexec(fd, 3)?))
        };
        self.numbers.iter().map(copy).collect()
    }

    /// Closes them: a reader waits for the end of a pipe until its last writer is gone, and a lock stays as long.
    /// Standard error stays if it is still needed.
    pub(super) fn let_go(self, keeps_error: bool) -> io::Result<()> {
        let null = fs::File::options().read(true).write(true).open("/dev/null")?;
        rustix::stdio::dup2_stdin(&null)?;
        rustix::stdio::dup2_stdout(&null)?;
        if !keeps_error {
            rustix::stdio::dup2_stderr(&null)?;
        }
        for number in self.numbers.into_iter().filter(|number| *number > 2) {
            drop(process::inherited(number));
        }
        Ok(())
    }
}

/// The group of this process, for the program to join. One that was made outside of our pid namespace has no number
/// in here: then we lead a group of our own, which is shown the terminal if the other one was.
fn own_group() -> io::Result<i32> {
    // Not by getpgrp: its number is taken for one that exists.
    let stat = Stat::read(identity::own_pid()).ok_or(io::ErrorKind::NotFound)?;
    if stat.group > 0 {
        return Ok(stat.group);
    }
    let own = rustix::process::getpid();
    let terminal = super::terminal::of_session();
    let shown = terminal.as_ref().is_some_and(super::terminal::is_shown_to_us);
    // detached-spawn: ok — this process itself, in its session; the program joins it there
    rustix::process::setpgid(None, None)?;
    if let Some(terminal) = terminal.filter(|_| shown) {
        super::terminal::show_to(&terminal, own);
    }
    Ok(own.as_raw_nonzero().get())
}

/// A line of `/proc/PID/status` that holds signals (man 5 proc_pid_status).
fn mask(status: &str, name: &str) -> u64 {
    let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    line.and_then(|hex| u64::from_str_radix(hex.trim(), 16).ok()).unwrap_or(0)
}

fn inherited() -> io::Result<Vec<RawFd>> {
    let mut numbers: Vec<RawFd> = fs::read_dir("/proc/self/fd")?
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .collect();
    numbers.retain(|number| is_inherited(process::borrowed(*number)));
    numbers.sort_unstable();
    Ok(numbers)
}

fn is_inherited(fd: BorrowedFd<'_>) -> bool {
    // The list that was read is closed by now.
    rustix::io::fcntl_getfd(fd).is_ok_and(|flags| !flags.contains(FdFlags::CLOEXEC))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signals_are_read_from_the_status() {
        let status = "Name:\tx\nSigBlk:\t0000000000000001\nSigIgn:\t8000000000001000\n";
        assert_eq!(mask(status, "SigBlk"), 1);
        assert_eq!(mask(status, "SigIgn"), 1 << 63 | 1 << (libc::SIGPIPE - 1));
        assert_eq!(mask(status, "SigCgt"), 0);
        assert_eq!(mask("SigIgn:\tx", "SigIgn"), 0);
    }

    #[test]
    fn what_this_process_opened_itself_is_not_inherited() {
        let own = fs::File::open("/dev/null").expect("null");
        use std::os::fd::{AsFd, AsRawFd};
        assert!(!inherited().expect("list").contains(&own.as_raw_fd()));
        rustix::io::fcntl_setfd(own.as_fd(), FdFlags::empty()).expect("flags");
        assert!(inherited().expect("list").contains(&own.as_raw_fd()));
    }
}

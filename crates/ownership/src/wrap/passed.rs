//! What a front finds when it starts and hands on to its program: descriptors, and what becomes of signals. Directory
//! and environment go with every spawn, limits and the rest are inherited through the guards.

use std::fs;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd, RawFd};
use std::path::Path;

use rustix::io::FdFlags;

use super::terminal;
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
        // Asked in the group that we were started in, and only where it has no number.
        let terminal = match Stat::read(identity::own_pid()) {
            Some(stat) if stat.group == 0 => terminal::of_session(),
            Some(_) | None => None,
        };
        let shown = terminal.as_ref().is_some_and(terminal::is_shown_to_us);
        let (group, made_group) = front::group()?;
        if let Some(terminal) = terminal.filter(|_| shown && made_group) {
            terminal::show_to(&terminal, rustix::process::getpid());
        }
        let joins = Joins { group, ignored, blocked };
        Ok(Self { numbers: inherited()?, joins })
    }

    /// Whether this signal was ignored.
    pub(super) fn ignores(&self, number: i32) -> bool {
        self.joins.ignored >> (number - 1) & 1 == 1
    }

    /// The file that a report goes to. One that was inherited is written where it stands: opened by its name it would be
    /// another file, cut off at its start and not appended to.
    pub(super) fn report(&self, path: &Path) -> io::Result<fs::File> {
        match number_of(path) {
            None => created(path),
            Some(number) if self.numbers.contains(&number) => {
                let fd = process::borrowed(number);
                Ok(rustix::io::fcntl_dupfd_cloexec(fd, 3)?.into())
            }
            Some(_) => Err(rustix::io::Errno::BADF.into()),
        }
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

/// A file for a report. A named pipe that nobody reads is an error at once (`ENXIO`): to open it would wait for somebody.
fn created(path: &Path) -> io::Result<fs::File> {
    use rustix::fs::{Mode, OFlags};
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC | OFlags::CLOEXEC;
    let mode = Mode::from_raw_mode(0o666);
    let file: fs::File = rustix::fs::open(path, flags | OFlags::NONBLOCK, mode)
        .map_err(|errno| match errno {
            rustix::io::Errno::NXIO => io::Error::other("nobody reads this pipe"),
            errno => errno.into(),
        })?
        .into();
    rustix::fs::fcntl_setfl(&file, OFlags::empty())?;
    Ok(file)
}

/// The descriptor that a path names (man 4 fd).
fn number_of(path: &Path) -> Option<RawFd> {
    match path.to_str()? {
        "/dev/stdout" => Some(1),
        "/dev/stderr" => Some(2),
        path => {
            let number =
                ["/dev/fd/", "/proc/self/fd/"].iter().find_map(|dir| path.strip_prefix(dir));
            number?.parse().ok()
        }
    }
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
    fn descriptors_are_known_by_their_paths() {
        let numbers = ["/dev/fd/3", "/proc/self/fd/12", "/dev/stdout", "/dev/stderr"];
        assert_eq!(numbers.map(|path| number_of(Path::new(path))), [3, 12, 1, 2].map(Some));
        for other in ["/dev/fd/x", "/dev/fd/3/x", "/dev/stdin", "/tmp/3", "3", ""] {
            assert_eq!(number_of(Path::new(other)), None, "{other}");
        }
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

//! Who a process is: its number is an address that is handed out again; number and start time together
//! are an identity, checked again *after* a pidfd was opened ([`Handle::open`]).
//!
//! Reads `/proc/PID/stat` (man 5 proc_pid_stat) without trusting it: a name may hold spaces and brackets.
//! What outlives us in a file is an [`Identity`]; whether it still holds is judged by [`crate::ledger`].

use std::fmt;
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
    pub(crate) session: Pid,
    /// It is on its way out, or out: `PF_EXITING` of the kernel's flags.
    pub(crate) exiting: bool,
    /// Those that have not ended; the main thread counts until the process is reaped.
    pub(crate) threads: u32,
    /// In clock ticks since boot.
    pub(crate) start: u64,
}

/// `include/linux/sched.h`; the word is field 9 in proc_pid_stat(5), for all to see.
const EXITING: u64 = 4;

/// The fields up to the start time: a name of 64 bytes, each of which may be written as four, and 20 numbers of at most
/// 20 digits.
const STAT_ROOM: usize = 1024;

impl Stat {
    /// `None` when there is no such process. Every look at a tree reads this for each member, so it is one read: the
    /// kernel makes the whole text for the first one, and what we need ends long before the room does.
    pub(crate) fn read(pid: Pid) -> Option<Self> {
        use rustix::fs::{Mode, OFlags, open};
        let path = format!("/proc/{pid}/stat");
        let file = open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).ok()?;
        let mut text = [0; STAT_ROOM];
        let length = rustix::io::retry_on_intr(|| rustix::io::read(&file, &mut text)).ok()?;
        Self::parse(text.get(..length)?)
    }

    pub(crate) fn parse(text: &[u8]) -> Option<Self> {
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
            session: fields.next()?.parse().ok()?,
            exiting: fields.nth(2)?.parse::<u64>().ok()? & EXITING != 0,
            threads: fields.nth(10)?.parse().ok()?,
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

/// Nobody is looked for further up: what moves while it is climbed could go on for ever.
const MAX_DEPTH: usize = 256;

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
        // Start times tick a hundred times a second, so another process may have the same; it has another
        // parent then, and not one of ours.
        let kept = now.parent == expected.parent || stands_below(now.parent, own_pid());
        (now.start == expected.start && kept).then_some(Self { pidfd })
    }

    pub(crate) fn into_fd(self) -> OwnedFd {
        self.pidfd
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.pidfd.as_fd()
    }
}

/// Whether a process is another one or stands somewhere below it.
fn stands_below(pid: Pid, above: Pid) -> bool {
    let parent = |pid: &Pid| Stat::read(*pid).map(|stat| stat.parent).filter(|parent| *parent > 0);
    std::iter::successors(Some(pid), parent).take(MAX_DEPTH).any(|pid| pid == above)
}

/// One boot of one kernel (`/proc/sys/kernel/random/boot_id`): numbers and start times of another boot
/// say nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct BootId([u8; 16]);

impl BootId {
    /// This boot; `None` where `/proc` does not tell.
    #[must_use]
    pub fn current() -> Option<Self> {
        Self::parse(&fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?)
    }

    /// From 32 hexadecimal digits, with or without hyphens.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let digits = || text.trim().bytes().filter(|byte| *byte != b'-');
        if digits().count() != 32 || !digits().all(|digit| digit.is_ascii_hexdigit()) {
            return None;
        }
        let hex: String = digits().map(char::from).collect();
        u128::from_str_radix(&hex, 16).ok().map(|number| Self(number.to_be_bytes()))
    }

    pub(crate) fn from_bytes(bytes: [u8; 16]) -> Option<Self> {
        (bytes != [0; 16]).then_some(Self(bytes))
    }

    pub(crate) fn bytes(self) -> [u8; 16] {
        self.0
    }
}

impl fmt::Display for BootId {
    /// 32 hexadecimal digits.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", u128::from_be_bytes(self.0))
    }
}

/// Who a process is, in a form that can be written down and checked later. What was not known is `None`
/// and proves nothing.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Identity {
    /// The boot that `start` counts from.
    pub boot: Option<BootId>,
    /// Its number, as the pid namespace `namespace` counts.
    pub pid: u32,
    /// Start time in clock ticks since boot (man 5 proc_pid_stat, field 22). Two processes of one tick
    /// have the same.
    pub start: Option<u64>,
    /// Inode of its pidfd, where the kernel gives each process one of its own (pidfs, Linux 6.9).
    pub inode: Option<u64>,
    /// Inode of the pid namespace that the number was seen in.
    pub namespace: Option<u64>,
    /// Its cgroup (v2 path, man 7 cgroups) when it was seen. It may move, so it is no part of the check.
    pub cgroup: Option<String>,
}

impl Identity {
    /// The calling process.
    #[must_use]
    pub fn own() -> Self {
        Self::gather(own_pid(), own_pidfd().ok().as_ref().map(AsFd::as_fd))
    }

    /// The process that a pidfd stands for. `pid` is its number; what is read by number counts only
    /// if the handle says afterwards that the number still is this process.
    #[must_use]
    pub fn of(pid: u32, pidfd: BorrowedFd<'_>) -> Self {
        let pid = pid.cast_signed();
        let seen = Self::gather(pid, Some(pidfd));
        if pid_of(pidfd) == Some(pid) { seen } else { Self { start: None, cgroup: None, ..seen } }
    }

    fn gather(pid: Pid, pidfd: Option<BorrowedFd<'_>>) -> Self {
        Self {
            boot: BootId::current(),
            pid: pid.cast_unsigned(),
            start: Stat::read(pid).map(|stat| stat.start),
            inode: pidfd.and_then(pidfd_inode),
            namespace: own_namespace(),
            cgroup: cgroup_of(pid),
        }
    }
}

/// Inode of a pidfd on pidfs. Elsewhere all pidfds share one, which says nothing.
pub(crate) fn pidfd_inode(pidfd: BorrowedFd<'_>) -> Option<u64> {
    /// `PID_FS_MAGIC` (linux/magic.h).
    const PIDFS: u64 = 0x5049_4446;
    let kind = rustix::fs::fstatfs(pidfd).ok()?.f_type;
    if u64::try_from(kind).ok()? != PIDFS {
        return None;
    }
    Some(rustix::fs::fstat(pidfd).ok()?.st_ino)
}

/// Inode of the pid namespace that our numbers are counted in (man 7 namespaces).
pub(crate) fn own_namespace() -> Option<u64> {
    use std::os::unix::fs::MetadataExt;
    fs::metadata("/proc/self/ns/pid").ok().map(|file| file.ino())
}

fn cgroup_of(pid: Pid) -> Option<String> {
    let text = fs::read_to_string(format!("/proc/{pid}/cgroup")).ok()?;
    text.lines().find_map(|line| line.strip_prefix("0::")).map(str::to_owned)
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

/// How many threads this process has; `None` without `/proc`.
pub(crate) fn own_threads() -> Option<u64> {
    use std::os::unix::fs::MetadataExt;
    // A directory has one link for itself, one of its parent, and one of each directory in it.
    std::fs::metadata("/proc/self/task").ok()?.nlink().checked_sub(2)
}

/// The process group of this process; 0 where its leader is in a pid namespace above, and nobody here can name it.
pub(crate) fn own_group() -> Pid {
    Stat::read(own_pid()).map_or(0, |own| own.group)
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
        assert_eq!(stat.session, 9);
        assert_eq!((stat.threads, stat.start), (1, 12345));
    }

    #[test]
    fn this_process_is_known_to_itself() {
        let own = own_pid();
        let stat = Stat::read(own).expect("stat");
        assert!(Handle::open(own, &stat).is_some());
        let other = Stat { start: stat.start + 1, ..stat.clone() };
        assert!(Handle::open(own, &other).is_none(), "another start time is another process");
        let other = Stat { parent: stat.parent + 1, ..Stat::read(own).expect("stat") };
        assert!(Handle::open(own, &other).is_none(), "so is one with another parent, in one tick");
        assert_eq!(pid_of(own_pidfd().expect("pidfd").as_fd()), Some(own));
    }

    #[test]
    fn an_identity_is_the_same_from_both_sides() {
        let own = Identity::own();
        assert!(own.boot.is_some() && own.start.is_some() && own.namespace.is_some());
        assert_eq!(own, Identity::of(std::process::id(), own_pidfd().expect("pidfd").as_fd()));
    }

    #[test]
    fn a_handle_of_another_process_lends_its_number_no_start_time() {
        let own = own_pidfd().expect("pidfd");
        let parent = rustix::process::getppid().expect("parent").as_raw_nonzero().get();
        let parent = parent.cast_unsigned();
        assert_eq!(Identity::of(parent, own.as_fd()).start, None);
    }

    proptest! {
        #[test]
        fn parsing_is_total(text in prop::collection::vec(any::<u8>(), 0..200)) {
            drop(Stat::parse(&text));
        }

        #[test]
        fn a_boot_id_survives_its_text(bytes: [u8; 16], text in ".{0,40}") {
            let id = BootId(bytes);
            prop_assert_eq!(BootId::parse(&id.to_string()), Some(id));
            prop_assert!(BootId::parse(&text).is_none() || text.len() >= 32);
        }
    }
}

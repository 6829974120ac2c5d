//! Who is who among the processes of a job: identities, handles that were checked after they were opened,
//! and what follows for a job's status. Asks `/proc` and pidfds, signals nobody.

use std::fs;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid as RawPid, PidfdFlags, pidfd_open};

use super::record::{self, Place, Record, Who};
use super::{EXEMPT, Ended, ReattachError, Status, files};
use crate::identity::{self, Stat};
use crate::sys::Pid;

/// `PIDFS_MAGIC` (linux/magic.h): there, each process has an inode of its own, unique until the next boot.
const PIDFS: rustix::fs::FsWord = 0x5049_4446;

/// Where this process is.
pub(super) fn here() -> io::Result<Place> {
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id")?.trim_end().to_owned();
    Ok(Place { boot, pidns: fs::metadata("/proc/self/ns/pid")?.ino() })
}

/// The identity of a process whose number cannot change hands meanwhile: our own, or our unreaped child's.
pub(super) fn identify(pid: Pid) -> Option<Who> {
    let pidfd = pidfd_open(RawPid::from_raw(pid)?, PidfdFlags::empty()).ok()?;
    let start = Stat::read(pid)?.start;
    Some(Who { pid, start, inode: inode(pidfd.as_fd()) })
}

/// The inode of a pidfd; `None` where all pidfds share one.
fn inode(pidfd: BorrowedFd<'_>) -> Option<u64> {
    let own = rustix::fs::fstatfs(pidfd).ok()?.f_type == PIDFS;
    own.then(|| rustix::fs::fstat(pidfd).map(|stat| stat.st_ino).ok()).flatten()
}

/// A process that is alive, and the one that was meant.
#[derive(Debug)]
pub(super) struct Held {
    pub(super) who: Who,
    pub(super) pidfd: OwnedFd,
}

impl Held {
    /// `None` when it is dead, or its number is another process's by now. The checks come after the open:
    /// what they see is what the handle holds, as long as it is alive afterwards.
    pub(super) fn open(who: &Who) -> Option<Self> {
        let pidfd = pidfd_open(RawPid::from_raw(who.pid)?, PidfdFlags::empty()).ok()?;
        let stat = Stat::read(who.pid)?;
        let found = inode(pidfd.as_fd());
        let same = stat.start == who.start && !stat.is_dead();
        let differs = who.inode.zip(found).is_some_and(|(known, found)| known != found);
        let held = Self { who: *who, pidfd };
        (same && !differs && held.lives()).then_some(held)
    }

    /// Whether it has not ended; so long, its number is its own.
    pub(super) fn lives(&self) -> bool {
        !readable(self.pidfd.as_fd(), Duration::ZERO)
    }
}

/// Whether it becomes readable in time.
pub(super) fn readable(fd: BorrowedFd<'_>, limit: Duration) -> bool {
    let mut asked = [PollFd::from_borrowed_fd(fd, PollFlags::IN)];
    let limit = Timespec::try_from(limit).ok();
    loop {
        match poll(&mut asked, limit.as_ref()) {
            Err(rustix::io::Errno::INTR) => {}
            other => return other.is_ok_and(|ready| ready > 0),
        }
    }
}

/// Whether numbers in a record mean something here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Reach {
    Here,
    /// Nothing of that boot is left.
    OtherBoot,
    /// It may run, where we cannot see it.
    OtherNamespace,
}

pub(super) fn reach(record: &Record) -> Reach {
    match here() {
        Ok(here) if here == record.place => Reach::Here,
        Ok(here) if here.boot != record.place.boot => Reach::OtherBoot,
        Ok(_) | Err(_) => Reach::OtherNamespace,
    }
}

pub(super) fn lives(who: Option<Who>) -> bool {
    who.and_then(|who| Held::open(&who)).is_some()
}

/// How a job is.
pub(super) fn status(dir: &Path, id: &str) -> Status {
    let record = match read(dir, id) {
        Ok(record) => record,
        Err(status) => return status,
    };
    if let Some(ended) = ended(&record) {
        return Status::Exited(ended);
    }
    match reach(&record) {
        Reach::Here => {}
        Reach::OtherBoot => return Status::Gone,
        Reach::OtherNamespace => {
            return Status::Unknown { why: "it was started in another pid namespace".into() };
        }
    }
    // While its shim lives, an end that is not written will be in a moment.
    if lives(record.job) || lives(record.shim) {
        return Status::Running;
    }
    // Written between the two looks.
    match read(dir, id) {
        Err(status) => status,
        Ok(record) => match ended(&record) {
            Some(ended) => Status::Exited(ended),
            None => Status::Unknown {
                why: "its shim was killed, and nobody else knows how it ended".into(),
            },
        },
    }
}

/// Whether something of a job may run. Where that cannot be seen, it may.
pub(super) fn may_run(dir: &Path, id: &str) -> bool {
    let record = match files::load(dir, id) {
        Ok(record) => complete(record),
        Err(error) => return !matches!(error, ReattachError::NotFound { .. }),
    };
    match reach(&record) {
        _ if record.empty => false,
        Reach::OtherBoot => false,
        Reach::OtherNamespace => true,
        Reach::Here => lives(record.shim) || lives(record.job) || !marked(id).is_empty(),
    }
}

fn read(dir: &Path, id: &str) -> Result<Record, Status> {
    files::load(dir, id).map(complete).map_err(|error| match error {
        ReattachError::NotFound { .. } => Status::Gone,
        ReattachError::TooNew { .. } | ReattachError::Corrupt { .. } | ReattachError::Io { .. } => {
            Status::Unknown { why: error.to_string() }
        }
    })
}

fn ended(record: &Record) -> Option<Ended> {
    let end = record.end?;
    let empty = match (record.empty, reach(record)) {
        (true, _) | (_, Reach::OtherBoot) => Some(true),
        (false, Reach::Here) if lives(record.shim) => Some(false),
        (false, Reach::Here | Reach::OtherNamespace) => None,
    };
    Some(Ended { status: end.status, cause: end.cause, at: record::time(end.at), empty })
}

/// A record whose shim was killed between starting the job and writing that down names no job. Its
/// process is known all the same: it leads a session and bears the job's mark, a random number that
/// it has from that shim alone.
pub(super) fn complete(mut record: Record) -> Record {
    let unnamed = record.job.is_none() && record.end.is_none();
    if unnamed && reach(&record) == Reach::Here && !lives(record.shim) {
        let leads = |pid: &Pid| session_of(*pid) == Some(*pid);
        let mut found = marked(&record.id).into_iter().filter(leads);
        record.job = found.find_map(|pid| {
            let who = identify(pid)?;
            // Its number was not pinned: what was seen must be true of what was opened.
            (Held::open(&who).is_some() && bears(pid, &record.id)).then_some(who)
        });
    }
    record
}

/// Processes that bear a job's mark.
pub(super) fn marked(id: &str) -> Vec<Pid> {
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    let pids = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    pids.filter(|pid| bears(*pid, id)).collect()
}

/// Whether a process has the job's mark in the environment that it was executed with. A shim has none.
pub(super) fn bears(pid: Pid, id: &str) -> bool {
    let Ok(environment) = fs::read(format!("/proc/{pid}/environ")) else { return false };
    let mark = format!("{EXEMPT}={id}");
    environment.split(|byte| *byte == 0).any(|entry| entry == mark.as_bytes())
}

pub(super) fn session_of(pid: Pid) -> Option<Pid> {
    // Not by getsid: one of outside our pid namespace is 0.
    Stat::read(pid).map(|stat| stat.session).filter(|session| *session > 0)
}

/// Who has adopted this process, when that is not init.
pub(super) fn adopter() -> Option<crate::exit::Process> {
    let parent = rustix::process::getppid().map_or(0, |parent| parent.as_raw_nonzero().get());
    let foreign = parent > 1;
    foreign.then(|| Stat::read(parent).map(|stat| stat.process(parent))).flatten()
}

/// This process, as an owner in a record.
pub(super) fn own() -> Option<Who> {
    identify(identity::own_pid())
}

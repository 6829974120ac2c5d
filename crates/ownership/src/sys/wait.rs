//! Looking at dead children, and reaping them: two steps, so that what a child leaves can be recorded
//! while its number is still taken.
#![expect(unsafe_code, reason = "waitid with resource usage is only there as a raw call")]

use std::mem;
use std::os::fd::{AsRawFd, OwnedFd};
use std::ptr;
use std::time::Duration;

use super::{Pid, errno};
use crate::exit::{Exit, ExitStatus, Usage};

/// A child that is dead and not reaped.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Dead {
    pub(crate) pid: Pid,
    pub(crate) exit: Exit,
}

/// What a look found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Look {
    /// There are children; none is dead.
    Alive,
    /// This one is dead.
    Dead(Dead),
    /// There is no child at all: the kernel's word that nothing is left.
    NoChild,
}

/// Looks for any dead child and leaves it as it is.
pub(crate) fn look() -> Look {
    wait(libc::P_ALL, 0, libc::WNOWAIT)
}

/// Looks at one child and leaves it as it is; `None` when it lives.
pub(crate) fn look_at(pid: Pid) -> Option<Dead> {
    match wait(libc::P_PID, libc::id_t::try_from(pid).ok()?, libc::WNOWAIT) {
        Look::Dead(dead) => Some(dead),
        Look::Alive | Look::NoChild => None,
    }
}

/// Reaps a dead child: from here on its number may be anybody's.
pub(crate) fn reap(pid: Pid) {
    if let Ok(id) = libc::id_t::try_from(pid) {
        wait(libc::P_PID, id, 0);
    }
}

/// Waits for the end of a child and reaps it by its handle. A host that reaps everything may have
/// been faster: that is fine.
pub(crate) fn reap_handle(pidfd: &OwnedFd) {
    // SAFETY: zero is a valid value of this plain structure.
    let mut info: libc::siginfo_t = unsafe { mem::zeroed() };
    let Ok(id) = libc::id_t::try_from(pidfd.as_raw_fd()) else { return };
    loop {
        // SAFETY: the descriptor is open, `info` is writable.
        let result =
            unsafe { libc::waitid(libc::P_PIDFD, id, &raw mut info, libc::WEXITED | libc::__WALL) };
        if result == 0 || errno() != libc::EINTR {
            return;
        }
    }
}

fn wait(kind: libc::idtype_t, id: libc::id_t, extra: libc::c_int) -> Look {
    let options = libc::WEXITED | libc::WNOHANG | libc::__WALL | extra;
    // SAFETY: zero is a valid value of this plain structure.
    let mut info: libc::siginfo_t = unsafe { mem::zeroed() };
    // SAFETY: as above.
    let mut usage: libc::rusage = unsafe { mem::zeroed() };
    // SAFETY: both structures are writable and of the kernel's layout.
    let result = unsafe {
        libc::syscall(
            libc::SYS_waitid,
            kind,
            id,
            ptr::from_mut(&mut info),
            options,
            ptr::from_mut(&mut usage),
        )
    };
    if result != 0 {
        return if errno() == libc::ECHILD { Look::NoChild } else { Look::Alive };
    }
    // SAFETY: the call succeeded, so this member is set (0 when nothing was found).
    let pid = unsafe { info.si_pid() };
    if pid == 0 {
        return Look::Alive;
    }
    // SAFETY: as above.
    let status = unsafe { info.si_status() };
    let status = match info.si_code {
        libc::CLD_EXITED => ExitStatus::Code(status),
        code => ExitStatus::Signal { signal: status, core_dumped: code == libc::CLD_DUMPED },
    };
    Look::Dead(Dead { pid, exit: Exit { status, usage: convert(&usage) } })
}

fn convert(usage: &libc::rusage) -> Usage {
    Usage {
        user: duration(usage.ru_utime),
        system: duration(usage.ru_stime),
        max_rss_kib: u64::try_from(usage.ru_maxrss).unwrap_or(0),
    }
}

fn duration(time: libc::timeval) -> Duration {
    Duration::from_secs(u64::try_from(time.tv_sec).unwrap_or(0))
        + Duration::from_micros(u64::try_from(time.tv_usec).unwrap_or(0))
}

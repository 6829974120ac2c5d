//! Looking at dead children, and reaping them: two steps, so that what a child leaves can be recorded
//! while its number is still taken.
#![expect(unsafe_code, reason = "waitid with resource usage is only there as a raw call")]

use std::mem;
use std::os::fd::{AsRawFd, OwnedFd};
use std::ptr;
use std::time::Duration;

use super::{Pid, errno};
use crate::exit::{Exit, ExitStatus, Reached, Usage};

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

/// Whether this number is that of a child of ours, living or not reaped.
pub(crate) fn is_child(pid: Pid) -> bool {
    libc::id_t::try_from(pid).is_ok_and(|id| wait(libc::P_PID, id, libc::WNOWAIT) != Look::NoChild)
}

/// The signal by which a child was stopped since this was last asked.
pub(crate) fn stopped_by(pid: Pid) -> Option<i32> {
    // SAFETY: zero is a valid value of this plain structure.
    let mut info: libc::siginfo_t = unsafe { mem::zeroed() };
    let id = libc::id_t::try_from(pid).ok()?;
    let options = libc::WSTOPPED | libc::WNOHANG | libc::__WALL;
    // SAFETY: the structure is writable.
    let result = unsafe { libc::waitid(libc::P_PID, id, &raw mut info, options) };
    if result != 0 {
        return None;
    }
    // SAFETY: the call succeeded, so this member is set (0 when nothing was found).
    let found = unsafe { info.si_pid() };
    // SAFETY: as above.
    let signal = unsafe { info.si_status() };
    (found == pid && info.si_code == libc::CLD_STOPPED).then_some(signal)
}

/// Reaps a dead child: from here on its number may be anybody's.
pub(crate) fn reap(pid: Pid) {
    if let Ok(id) = libc::id_t::try_from(pid) {
        wait(libc::P_PID, id, 0);
    }
}

/// A handle for a child that is not reaped: its number is its own.
pub(crate) fn open_child(pid: Pid) -> rustix::io::Result<OwnedFd> {
    let pid = rustix::process::Pid::from_raw(pid).ok_or(rustix::io::Errno::SRCH)?;
    rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty())
}

/// Waits for the end of a child and reaps it.
pub(crate) fn reap_blocking(pid: Pid) {
    // SAFETY: no status is wanted.
    unsafe { libc::waitpid(pid, ptr::null_mut(), libc::__WALL) };
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

/// Reaps a child that is dead. Whether there is nothing more to wait for: it was reaped, or is no child of
/// ours.
pub(crate) fn try_reap_handle(pidfd: &OwnedFd) -> bool {
    let Ok(id) = libc::id_t::try_from(pidfd.as_raw_fd()) else { return true };
    !matches!(wait(libc::P_PIDFD, id, 0), Look::Alive)
}

/// How a process ended that is no child of ours, where the kernel tells (Linux 6.15, `PIDFD_GET_INFO`): only
/// after its parent has reaped it, for which this waits as often as `patience` says. What was used of it is
/// gone: of many that died at once, those that are asked for later have had their time.
pub(crate) fn exit_of_other(pidfd: &OwnedFd, patience: &mut usize) -> Option<Exit> {
    /// What the kernel fills in as `struct pidfd_info` in its first version.
    #[repr(C)]
    #[derive(Default)]
    struct Info {
        mask: u64,
        cgroup: u64,
        ids: [u32; 11],
        exit: i32,
    }
    const EXIT: u64 = 1 << 3;
    const GET_INFO: libc::c_ulong = 0xc040_ff0b;
    loop {
        let mut info = Info { mask: EXIT, ..Info::default() };
        // Not `libc::ioctl`: the type of its number differs between C libraries.
        // SAFETY: the structure is as large as the number of the call says.
        let result =
            unsafe { libc::syscall(libc::SYS_ioctl, pidfd.as_raw_fd(), GET_INFO, &raw mut info) };
        if result == 0 && info.mask & EXIT != 0 {
            let signal = info.exit & 0x7f;
            let status = match signal {
                0 => ExitStatus::Code(info.exit >> 8 & 0xff),
                signal => ExitStatus::Signal { signal, core_dumped: info.exit & 0x80 != 0 },
            };
            return Some(Exit { status, usage: Usage::default(), reached: Reached::default() });
        }
        if result != 0 && errno() != libc::ESRCH {
            return None;
        }
        *patience = patience.checked_sub(1)?;
        let _ = rustix::event::poll(&mut [], Some(&A_MOMENT));
    }
}

/// How often a dead process's parent is waited for, a moment each, in one turn.
pub(crate) const PATIENCE: usize = 10;

const A_MOMENT: rustix::event::Timespec = rustix::event::Timespec { tv_sec: 0, tv_nsec: 500_000 };

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
    Look::Dead(Dead {
        pid,
        exit: Exit { status, usage: convert(&usage), reached: Reached::default() },
    })
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

//! Signals: blocking, ignoring, receiving by descriptor, and sending through handles only.
#![expect(unsafe_code, reason = "signal sets, signalfd and group signals through a pidfd")]

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr;

use rustix::io::Errno;

use super::{Pid, errno};

/// `PIDFD_SIGNAL_PROCESS_GROUP` (Linux 6.9): the pidfd names the group that its process leads.
const TO_GROUP: libc::c_uint = 1 << 2;

/// What a supervisor ignores: nothing that a terminal or a careless `pkill` sends may end it.
pub(crate) const IGNORED: [i32; 8] = [
    libc::SIGINT,
    libc::SIGQUIT,
    libc::SIGHUP,
    libc::SIGTERM,
    libc::SIGTSTP,
    libc::SIGTTIN,
    libc::SIGTTOU,
    libc::SIGPIPE,
];

fn set_of(fill: unsafe extern "C" fn(*mut libc::sigset_t) -> libc::c_int) -> libc::sigset_t {
    let mut set = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: fills the whole set.
    unsafe { fill(set.as_mut_ptr()) };
    // SAFETY: just filled.
    unsafe { set.assume_init() }
}

/// All signals of this thread are blocked while it lives.
pub(crate) struct Blocked {
    before: libc::sigset_t,
}

impl Blocked {
    pub(crate) fn all() -> Self {
        let all = set_of(libc::sigfillset);
        let mut before = set_of(libc::sigemptyset);
        // SAFETY: both sets are initialised.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut before) };
        Self { before }
    }
}

impl Drop for Blocked {
    fn drop(&mut self) {
        // SAFETY: the set was filled by the call that it undoes.
        unsafe {
            libc::pthread_sigmask(libc::SIG_SETMASK, &raw const self.before, ptr::null_mut())
        };
    }
}

/// Empties this thread's signal mask. Async-signal-safe.
pub(crate) fn unblock_all() {
    let none = set_of(libc::sigemptyset);
    // SAFETY: the set is initialised.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const none, ptr::null_mut()) };
}

/// Default disposition; what the system does not allow stays as it is. Async-signal-safe.
///
/// Past the C library, which refuses to touch the two real-time signals that it keeps for itself;
/// where somebody's parent ignored those, its children would inherit it.
pub(crate) fn set_default(number: i32) {
    /// Not smaller than the kernel's `struct sigaction` on any architecture; all zeros is SIG_DFL
    /// without flags.
    const DEFAULT: [u64; 16] = [0; 16];
    /// Bytes of the kernel's signal set.
    const SET_BYTES: usize = 8;
    let old = ptr::null_mut::<u64>();
    // SAFETY: reads the constant, installs no handler.
    unsafe { libc::syscall(libc::SYS_rt_sigaction, number, DEFAULT.as_ptr(), old, SET_BYTES) };
}

/// Ignores what a supervisor ignores.
pub(crate) fn ignore_terminal() {
    for number in IGNORED {
        // SAFETY: installs no handler.
        unsafe { libc::signal(number, libc::SIG_IGN) };
    }
}

/// A descriptor that is readable when a child has died. Blocks SIGCHLD and gives it its default
/// disposition: where it is ignored, children vanish without a trace.
pub(crate) fn child_deaths() -> io::Result<OwnedFd> {
    set_default(libc::SIGCHLD);
    let mut set = set_of(libc::sigemptyset);
    // SAFETY: the set is initialised.
    unsafe { libc::sigaddset(&raw mut set, libc::SIGCHLD) };
    // SAFETY: the set is initialised.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const set, ptr::null_mut()) };
    // SAFETY: opens a new descriptor.
    let fd = unsafe { libc::signalfd(-1, &raw const set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: just opened, and ours.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Sends to one process through its handle.
pub(crate) fn send(pidfd: BorrowedFd<'_>, number: i32) -> Result<(), Errno> {
    pidfd_send(pidfd, number, 0)
}

/// Sends to the group that the handle's process leads. `INVAL` before Linux 6.9.
pub(crate) fn send_group(pidfd: BorrowedFd<'_>, number: i32) -> Result<(), Errno> {
    pidfd_send(pidfd, number, TO_GROUP)
}

/// Sends to a group by number. Only for a group whose leader is our unreaped child, which pins it.
pub(crate) fn send_group_number(leader: Pid, number: i32) -> Result<(), Errno> {
    // SAFETY: plain system call.
    checked(unsafe { libc::kill(-leader, number) }.into())
}

fn pidfd_send(pidfd: BorrowedFd<'_>, number: i32, flags: libc::c_uint) -> Result<(), Errno> {
    let info = ptr::null::<libc::siginfo_t>();
    // SAFETY: an open pidfd, no information structure.
    checked(unsafe {
        libc::syscall(libc::SYS_pidfd_send_signal, pidfd.as_raw_fd(), number, info, flags)
    })
}

fn checked(result: libc::c_long) -> Result<(), Errno> {
    if result == 0 { Ok(()) } else { Err(Errno::from_raw_os_error(errno())) }
}

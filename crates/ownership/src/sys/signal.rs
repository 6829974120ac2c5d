//! Signals: blocking, ignoring, hearing of deaths, and sending through handles only.
#![expect(unsafe_code, reason = "signal sets, a handler and group signals through a pidfd")]

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::ptr;
use std::sync::atomic::{AtomicI32, Ordering};

use rustix::io::Errno;

use super::{Pid, errno};

/// Bytes of the kernel's signal set.
const SET_BYTES: usize = 8;

/// The highest signal of the kernel (man 7 signal).
pub(crate) const LAST_SIGNAL: i32 = 64;

/// Not smaller than the kernel's `struct sigaction` on any architecture, in words.
pub(crate) const ACTION_WORDS: usize = 16;

/// `PIDFD_SIGNAL_PROCESS_GROUP` (Linux 6.9): the pidfd names the group that its process leads.
const TO_GROUP: libc::c_uint = 1 << 2;

/// What a supervisor ignores: nothing that a terminal or a careless `pkill` sends may end it, and no full file.
pub(crate) const IGNORED: [i32; 9] = [
    libc::SIGINT,
    libc::SIGQUIT,
    libc::SIGHUP,
    libc::SIGTERM,
    libc::SIGTSTP,
    libc::SIGTTIN,
    libc::SIGTTOU,
    libc::SIGPIPE,
    libc::SIGXFSZ,
];

fn set_of(fill: unsafe extern "C" fn(*mut libc::sigset_t) -> libc::c_int) -> libc::sigset_t {
    let mut set = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: fills the whole set.
    unsafe { fill(set.as_mut_ptr()) };
    // SAFETY: just filled.
    unsafe { set.assume_init() }
}

/// From now on these signals (bit 0 is signal 1) are blocked in this thread.
pub(crate) fn block(signals: u64) {
    let set = set_with(signals);
    // SAFETY: the set is initialised.
    unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, ptr::null_mut()) };
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

/// A set of these signals: bit 0 is signal 1. Async-signal-safe.
pub(super) fn set_with(signals: u64) -> libc::sigset_t {
    let mut set = set_of(libc::sigemptyset);
    for number in (1..=LAST_SIGNAL).filter(|number| signals >> (number - 1) & 1 == 1) {
        // SAFETY: the set is initialised.
        unsafe { libc::sigaddset(&raw mut set, number) };
    }
    set
}

/// Blocks these signals in this thread and no others. Async-signal-safe.
pub(crate) fn block_only(signals: u64) {
    let set = set_with(signals);
    // SAFETY: the set is initialised.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const set, ptr::null_mut()) };
}

/// Ignores these signals. Async-signal-safe.
pub(crate) fn ignore_each(signals: u64) {
    /// SIG_IGN; else as in [`set_default`].
    const IGNORE: [u64; 16] = [1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    let old = ptr::null_mut::<u64>();
    for number in (1..=LAST_SIGNAL).filter(|number| signals >> (number - 1) & 1 == 1) {
        // SAFETY: reads the constant, installs no handler.
        unsafe { libc::syscall(libc::SYS_rt_sigaction, number, IGNORE.as_ptr(), old, SET_BYTES) };
    }
}

/// Default disposition; what the system does not allow stays as it is. Async-signal-safe.
///
/// Past the C library, which refuses to touch the two real-time signals that it keeps for itself;
/// where somebody's parent ignored those, its children would inherit it.
pub(crate) fn set_default(number: i32) {
    /// Not smaller than the kernel's `struct sigaction` on any architecture; all zeros is SIG_DFL
    /// without flags.
    const DEFAULT: [u64; 16] = [0; 16];
    let old = ptr::null_mut::<u64>();
    // SAFETY: reads the constant, installs no handler.
    unsafe { libc::syscall(libc::SYS_rt_sigaction, number, DEFAULT.as_ptr(), old, SET_BYTES) };
}

/// What this process does with a signal, as the kernel has it.
pub(crate) fn action(number: i32) -> [u64; ACTION_WORDS] {
    let mut action = [0; ACTION_WORDS];
    let new = ptr::null::<u64>();
    let into = action.as_mut_ptr();
    // SAFETY: installs nothing; writes no more than the words that are there.
    unsafe { libc::syscall(libc::SYS_rt_sigaction, number, new, into, SET_BYTES) };
    action
}

/// Does with a signal what this process did when [`action`] was asked.
pub(crate) fn set_action(number: i32, action: &[u64; ACTION_WORDS]) {
    let old = ptr::null_mut::<u64>();
    // SAFETY: reads what the kernel wrote for this very process: a handler in it is still there.
    unsafe { libc::syscall(libc::SYS_rt_sigaction, number, action.as_ptr(), old, SET_BYTES) };
}

/// Forgets stops by a terminal that wait, unless they are ignored anyway. One that stood still before it executes would
/// keep its parent, which sleeps until then. Async-signal-safe.
pub(crate) fn discard_stops(ignored: u64) {
    let stops = [libc::SIGTSTP, libc::SIGTTIN, libc::SIGTTOU];
    for number in stops.into_iter().filter(|number| ignored >> (number - 1) & 1 == 0) {
        ignore_each(1 << (number - 1));
        set_default(number);
    }
}

/// Ignores what a supervisor ignores.
pub(crate) fn ignore_terminal() {
    for number in IGNORED {
        // SAFETY: installs no handler.
        unsafe { libc::signal(number, libc::SIG_IGN) };
    }
}

/// Where [`on_child_death`] writes to.
static DEATHS: AtomicI32 = AtomicI32::new(-1);

/// Tells that a child has died. Async-signal-safe, and leaves the error number as it was.
extern "C" fn on_child_death(_number: libc::c_int) {
    // SAFETY: this thread's own.
    let place = unsafe { libc::__errno_location() };
    // SAFETY: as above.
    let before = unsafe { *place };
    let one = 1_u64.to_ne_bytes();
    // Full, it is readable all the same.
    // SAFETY: eight bytes that live long enough.
    unsafe { libc::write(DEATHS.load(Ordering::Relaxed), one.as_ptr().cast(), one.len()) };
    // SAFETY: as above.
    unsafe { *place = before };
}

/// A descriptor that is readable when a child has died. By a handler, since the signal may come to any
/// thread: in a test program the guard is not the only one. With `stops`, also when one has stopped. Once per
/// process.
pub(crate) fn child_deaths(stops: bool) -> io::Result<OwnedFd> {
    use rustix::event::{EventfdFlags, eventfd};
    let fd = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
    DEATHS.store(fd.as_raw_fd(), Ordering::Relaxed);
    // SAFETY: zero is a valid value of this plain structure.
    let mut action: libc::sigaction = unsafe { MaybeUninit::zeroed().assume_init() };
    action.sa_sigaction = on_child_death as *const () as libc::sighandler_t;
    action.sa_flags = libc::SA_RESTART | if stops { 0 } else { libc::SA_NOCLDSTOP };
    // SAFETY: the handler is async-signal-safe.
    if unsafe { libc::sigaction(libc::SIGCHLD, &raw const action, ptr::null_mut()) } != 0 {
        return Err(io::Error::last_os_error());
    }
    let mut set = set_of(libc::sigemptyset);
    // SAFETY: the set is initialised.
    unsafe { libc::sigaddset(&raw mut set, libc::SIGCHLD) };
    // Somebody's parent may have blocked it.
    // SAFETY: the set is initialised.
    unsafe { libc::pthread_sigmask(libc::SIG_UNBLOCK, &raw const set, ptr::null_mut()) };
    Ok(fd)
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

/// KILL to our unreaped child, for which no handle could be opened.
pub(crate) fn kill_child(pid: Pid) {
    // SAFETY: plain system call.
    unsafe { libc::kill(pid, libc::SIGKILL) };
}

/// Sends to everybody else whom this process may signal, for number 1 of a pid namespace alone, where these are all others
/// in there. `SRCH` when there is nobody.
pub(crate) fn send_all_others(number: i32) -> Result<(), Errno> {
    if rustix::process::getpid() != rustix::process::Pid::INIT {
        return Err(Errno::PERM);
    }
    // SAFETY: plain system call.
    checked(unsafe { libc::kill(-1, number) }.into())
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

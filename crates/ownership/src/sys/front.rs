//! Signals of a front ([`crate::wrap`]): hears them instead of being acted on, and does to itself what was done to the
//! program that it stands for.
#![expect(unsafe_code, reason = "signal sets, signalfd, and a note taken before main")]

use std::io;
use std::mem::{self, MaybeUninit};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};

use super::{Pid, signal};

/// A signal that came.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Came {
    pub(crate) number: i32,
    /// A process sent it; otherwise the kernel did, for a terminal, or we did: to the whole group.
    pub(crate) by_process: bool,
}

/// Whether SIGPIPE was ignored when this program was executed.
static PIPE_WAS_IGNORED: AtomicBool = AtomicBool::new(false);

/// Rust ignores SIGPIPE before `main`; a program that is passed on what we found must not be.
extern "C" fn note_disposition() {
    let mut found = MaybeUninit::<libc::sigaction>::uninit();
    // SAFETY: changes nothing, and the structure is writable.
    let result = unsafe { libc::sigaction(libc::SIGPIPE, ptr::null(), found.as_mut_ptr()) };
    if result == 0 {
        // SAFETY: the call succeeded, so it was filled.
        let found = unsafe { found.assume_init() };
        PIPE_WAS_IGNORED.store(found.sa_sigaction == libc::SIG_IGN, Ordering::Relaxed);
    }
}

#[used]
// SAFETY: the section holds functions of this shape, which are called once before `main`; this one makes one
// system call and stores one word.
#[unsafe(link_section = ".init_array")]
static NOTE_DISPOSITION: extern "C" fn() = note_disposition;

pub(crate) fn pipe_was_ignored() -> bool {
    PIPE_WAS_IGNORED.load(Ordering::Relaxed)
}

/// The group of this process, and whether it was made for it: one of outside of this pid namespace has no number
/// here, so that nobody could join it.
pub(crate) fn group() -> io::Result<(Pid, bool)> {
    // SAFETY: plain system call. (A group without a number is 0, which rustix takes for a broken kernel.)
    let group = unsafe { libc::getpgrp() };
    if group > 0 {
        return Ok((group, false));
    }
    rustix::process::setpgid(None, None)?;
    Ok((rustix::process::getpid().as_raw_nonzero().get(), true))
}

/// From now on these signals (bit 0 is signal 1) are blocked in this thread and in those that it starts, and are
/// read from the descriptor. What blocked signals are sent waits, even if they are ignored.
pub(crate) fn hear(signals: u64) -> io::Result<OwnedFd> {
    let set = signal::set_with(signals);
    // SAFETY: the set is initialised.
    unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, ptr::null_mut()) };
    let flags = libc::SFD_CLOEXEC | libc::SFD_NONBLOCK;
    // SAFETY: the set is initialised; a new descriptor is asked for.
    let fd = unsafe { libc::signalfd(-1, &raw const set, flags) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: just opened, and nobody else's.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// The next signal that waits.
pub(crate) fn next(fd: &OwnedFd) -> Option<Came> {
    // SAFETY: zero is a valid value of this plain structure.
    let mut info: libc::signalfd_siginfo = unsafe { mem::zeroed() };
    let size = size_of_val(&info);
    // SAFETY: as many bytes as the structure has.
    let read = unsafe { libc::read(fd.as_raw_fd(), (&raw mut info).cast(), size) };
    if usize::try_from(read) != Ok(size) {
        return None;
    }
    let number = i32::try_from(info.ssi_signo).ok()?;
    let own = std::process::id();
    Some(Came { number, by_process: info.ssi_code <= 0 && info.ssi_pid != own })
}

/// From now on this process goes on when its parent dies. Not where its death means something else already.
pub(crate) fn wake_with_parents_death() {
    let mut before: libc::c_int = 0;
    // SAFETY: writes one number.
    let asked = unsafe { libc::prctl(libc::PR_GET_PDEATHSIG, &raw mut before) };
    if asked == 0 && before == 0 {
        // SAFETY: plain system call.
        unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGCONT) };
    }
}

/// Stops this process by this signal, which is blocked; returns when it goes on. Where the kernel does not stop it (its
/// group is orphaned), at once.
pub(crate) fn stop_by(number: i32) {
    signal::set_default(number);
    let set = signal::set_with(1 << (number - 1));
    // SAFETY: plain system call.
    unsafe { libc::raise(number) };
    // SAFETY: the set is initialised. Here it stops.
    unsafe { libc::pthread_sigmask(libc::SIG_UNBLOCK, &raw const set, ptr::null_mut()) };
    // SAFETY: the set is initialised.
    unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, ptr::null_mut()) };
}

/// Dies of this signal, without a core of its own. Returns if that is no signal to die of.
pub(crate) fn die_of(number: i32) {
    let none = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: reads one structure on our stack.
    unsafe { libc::setrlimit(libc::RLIMIT_CORE, &raw const none) };
    signal::set_default(number);
    if !(1..=64).contains(&number) {
        return;
    }
    let set = signal::set_with(1 << (number - 1));
    // SAFETY: plain system call.
    unsafe { libc::raise(number) };
    // SAFETY: the set is initialised.
    unsafe { libc::pthread_sigmask(libc::SIG_UNBLOCK, &raw const set, ptr::null_mut()) };
}

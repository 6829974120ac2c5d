//! A process that goes on as two, the second one a child of the first one's *parent* (`CLONE_PARENT`),
//! and what the copy must put right before it is a process like any other. For [`crate::template`].
//!
//! The libc knows nothing of such a fork. Two things follow: it is only for a process with one thread, so
//! that no lock is held by a thread that the copy does not have; and the thread number that the libc keeps
//! in the thread's block must be corrected, which the kernel does (`CLONE_CHILD_SETTID`) once we know the
//! place. Where that is not found exactly once there is no such fork.
#![expect(
    unsafe_code,
    reason = "clone3, the libc's block of a thread, and the environment in place"
)]

use std::ffi::CStr;
use std::fs;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::ptr;

use super::{Pid, signal};

/// `CLONE_INTO_CGROUP` (linux/sched.h, 5.7).
const INTO_CGROUP: u64 = 0x2_0000_0000;

/// How far the libc's block of a thread is searched: inside the block of every libc that is known
/// (2,304 bytes in glibc 2.36, where the number is at 720; 200 in musl, where it is at 48).
const BLOCK_BYTES: usize = if cfg!(target_env = "gnu") { 1024 } else { 128 };

/// Where the libc keeps the number of its first thread.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ThreadWord(*mut libc::pid_t);

impl ThreadWord {
    /// `None` unless the number stands in the block of this thread exactly once.
    pub(crate) fn find() -> Option<Self> {
        let own = rustix::thread::gettid().as_raw_nonzero().get();
        // SAFETY: asks for the address of this thread's block.
        let block = unsafe { libc::pthread_self() } as *mut libc::pid_t;
        let words = BLOCK_BYTES / size_of::<libc::pid_t>();
        let mut found = (0..words).map(|at| block.wrapping_add(at)).filter(|word| {
            // SAFETY: aligned, and inside the block of this thread, which nobody else writes meanwhile.
            unsafe { ptr::read_volatile(*word) == own }
        });
        let word = found.next()?;
        found.next().is_none().then_some(Self(word))
    }
}

/// Which of the two this is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Side {
    /// The first one; the number of the second.
    Before(Pid),
    After,
}

/// Goes on as two. The caller has one thread, and the copy may not return into code that believes itself
/// the first one.
pub(crate) fn fork_sibling(word: ThreadWord, cgroup: Option<BorrowedFd<'_>>) -> io::Result<Side> {
    // SAFETY: a structure of integers, for which zero means "nothing".
    let mut args: libc::clone_args = unsafe { std::mem::zeroed() };
    let flags = libc::CLONE_PARENT | libc::CLONE_CHILD_SETTID | libc::CLONE_CHILD_CLEARTID;
    args.flags = u64::from(flags.cast_unsigned());
    args.child_tid = word.0 as u64;
    if let Some(cgroup) = cgroup {
        args.flags |= INTO_CGROUP;
        args.cgroup = u64::try_from(cgroup.as_raw_fd()).unwrap_or(u64::MAX);
    }
    // SAFETY: the structure is as large as we say. Memory is copied, so the copy goes on with this stack as
    // after `fork`; the process has one thread.
    let result =
        unsafe { libc::syscall(libc::SYS_clone3, &raw const args, size_of::<libc::clone_args>()) };
    match i32::try_from(result) {
        Ok(0) => Ok(Side::After),
        Ok(pid) if pid > 0 => Ok(Side::Before(pid)),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Forks a copy that leaves at once, and waits for it: what copying this process costs.
pub(crate) fn fork_and_leave() -> io::Result<()> {
    // SAFETY: one thread; the copy does nothing but leave.
    match unsafe { libc::fork() } {
        -1 => Err(io::Error::last_os_error()),
        // SAFETY: leaves without running anything of the process that it is a copy of.
        0 => unsafe { libc::_exit(0) },
        pid => {
            super::wait::reap_blocking(pid);
            Ok(())
        }
    }
}

/// Leaves without running anything of the process that this is a copy of.
pub(crate) fn leave(code: i32) -> ! {
    // SAFETY: runs no handler, flushes nothing.
    unsafe { libc::_exit(code) }
}

/// Puts a copy of `source` at one of the numbers 0, 1 and 2, which belong to nobody in particular.
pub(crate) fn put_stream(source: BorrowedFd<'_>, number: RawFd) -> io::Result<()> {
    // SAFETY: the caller names a standard stream; no owned descriptor has its number.
    let result = unsafe { libc::dup2(source.as_raw_fd(), number) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// The process leads a session and a group of its own, and its orphans stay below it.
pub(crate) fn stand_alone(subreaper: bool) -> io::Result<()> {
    // SAFETY: plain system call.
    if unsafe { libc::setsid() } < 0 {
        return Err(io::Error::last_os_error());
    }
    if subreaper {
        // SAFETY: plain system call.
        let result = unsafe { libc::prctl(libc::PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) };
        if result < 0 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(())
}

unsafe extern "C" {
    static environ: *const *mut libc::c_char;
}

/// A variable where the kernel shows it (`/proc/PID/environ`), which is where the process found it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Shown {
    value: *mut u8,
    length: usize,
}

impl Shown {
    /// The variable `NAME=`, before anything was set in this process.
    pub(crate) fn find(name: &CStr) -> Option<Self> {
        // SAFETY: one thread, and nothing has changed the list.
        let mut next = unsafe { environ };
        while !next.is_null() {
            // SAFETY: an entry of the list, which ends with null.
            let entry = unsafe { *next };
            if entry.is_null() {
                return None;
            }
            // SAFETY: entries are terminated strings.
            let text = unsafe { CStr::from_ptr(entry) }.to_bytes();
            if let Some(value) = text.strip_prefix(name.to_bytes()) {
                let value = value.as_ptr().cast_mut();
                return Some(Self { value, length: text.len() - name.to_bytes().len() });
            }
            next = next.wrapping_add(1);
        }
        None
    }

    /// Writes a value of the same length over it.
    pub(crate) fn write(self, value: &[u8]) {
        if value.len() == self.length {
            // SAFETY: inside the text that was found, which nobody else looks at meanwhile: one thread.
            unsafe { ptr::copy_nonoverlapping(value.as_ptr(), self.value, value.len()) };
        }
    }
}

/// Sets or removes a variable. Only while the process has one thread.
pub(crate) fn set_variable(name: &std::ffi::OsStr, value: Option<&std::ffi::OsStr>) {
    match value {
        // SAFETY: one thread.
        Some(value) => unsafe { std::env::set_var(name, value) },
        // SAFETY: one thread.
        None => unsafe { std::env::remove_var(name) },
    }
}

/// What a program may change of its process that others inherit: dispositions and mask of signals,
/// umask and working directory.
pub(crate) struct Habits {
    actions: Vec<[u64; signal::ACTION_WORDS]>,
    umask: rustix::fs::Mode,
}

impl Habits {
    pub(crate) fn of_process() -> Self {
        let umask = rustix::process::umask(rustix::fs::Mode::empty());
        rustix::process::umask(umask);
        Self { actions: (1..=signal::LAST_SIGNAL).map(signal::action).collect(), umask }
    }

    /// As it was; no signal is blocked.
    pub(crate) fn restore(&self) {
        for (number, action) in (1..=signal::LAST_SIGNAL).zip(&self.actions) {
            signal::set_action(number, action);
        }
        signal::block_only(0);
        rustix::process::umask(self.umask);
    }
}

/// Asks for huge pages for what this process has written to: a fork copies one entry for each page. Gives
/// the bytes that were asked for. Whether it helps is the caller's to measure.
pub(crate) fn collapse_heap() -> u64 {
    /// `MADV_COLLAPSE` (Linux 6.1): now, and not when the kernel comes by.
    const COLLAPSE: libc::c_int = 25;
    const HUGE: usize = 2 * 1024 * 1024;
    let maps = fs::read_to_string("/proc/self/maps").unwrap_or_default();
    let mut asked = 0;
    for line in maps.lines() {
        let mut words = line.split_ascii_whitespace();
        let (Some(range), Some(access)) = (words.next(), words.next()) else { continue };
        let (inode, name) = (words.nth(2), words.next());
        let private = access == "rw-p" && inode == Some("0");
        if !private || !matches!(name, None | Some("[heap]")) {
            continue;
        }
        let Some((from, to)) = range.split_once('-') else { continue };
        let (Ok(from), Ok(to)) = (usize::from_str_radix(from, 16), usize::from_str_radix(to, 16))
        else {
            continue;
        };
        let (from, to) = (from.next_multiple_of(HUGE), to / HUGE * HUGE);
        if from >= to {
            continue;
        }
        let start = ptr::without_provenance_mut::<libc::c_void>(from);
        // SAFETY: advice about whole pages of our own mapping; their content stays.
        let advised = unsafe { libc::madvise(start, to - from, libc::MADV_HUGEPAGE) };
        // SAFETY: as above. What fails leaves the pages as they are.
        unsafe { libc::madvise(start, to - from, COLLAPSE) };
        if advised == 0 {
            asked += u64::try_from(to - from).unwrap_or(0);
        }
    }
    asked
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A test runs on a thread of its own, whose block is as the first one's.
    #[test]
    fn the_thread_number_is_found_once() {
        assert!(ThreadWord::find().is_some());
    }

    #[test]
    fn a_variable_is_found_where_the_kernel_shows_it() {
        let path = std::env::var("PATH").expect("PATH");
        let shown = Shown::find(c"PATH=").expect("found");
        assert_eq!(shown.length, path.len());
        assert!(Shown::find(c"NO_SUCH_VARIABLE_HERE=").is_none());
    }
}

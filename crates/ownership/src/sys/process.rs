//! What a process does to itself: inherited descriptors, and the one fork, of a supervisor's stage.
#![expect(unsafe_code, reason = "descriptors by number and fork")]

use std::io;
use std::os::fd::{BorrowedFd, FromRawFd, OwnedFd, RawFd};

/// Takes over a descriptor that this process inherited under an agreed number; `None` if it is not
/// open. Only for numbers that nothing else in this process owns.
pub(crate) fn inherited(number: RawFd) -> Option<OwnedFd> {
    // SAFETY: asks about a number; does nothing to it.
    let flags = unsafe { libc::fcntl(number, libc::F_GETFD) };
    if flags < 0 {
        return None;
    }
    // SAFETY: it is open, and the caller says that nothing else owns it.
    Some(unsafe { OwnedFd::from_raw_fd(number) })
}

/// Closes every descriptor from `first` on. Only before anything of this process was opened there.
pub(crate) fn close_from(first: RawFd) {
    let Ok(first) = u32::try_from(first) else { return };
    // SAFETY: the caller has opened nothing there yet.
    let result = unsafe { libc::syscall(libc::SYS_close_range, first, u32::MAX, 0) };
    if result == 0 {
        return;
    }
    // Before Linux 5.9: one by one, up to a limit that covers what anybody inherits.
    for number in first.cast_signed()..1024 {
        // SAFETY: as above.
        unsafe { libc::close(number) };
    }
}

/// Puts `/dev/null` on 0, 1 and 2.
pub(crate) fn quiet_standard_streams() -> io::Result<()> {
    let null = std::fs::File::options().read(true).write(true).open("/dev/null")?;
    rustix::stdio::dup2_stdin(&null)?;
    rustix::stdio::dup2_stdout(&null)?;
    rustix::stdio::dup2_stderr(&null)?;
    Ok(())
}

/// Leaves this process and goes on in a copy of it, which its parent is not told of. Only while it
/// has a single thread.
pub(crate) fn go_on_in_a_copy() -> io::Result<()> {
    // SAFETY: the process has one thread, so the copy is whole.
    match unsafe { libc::fork() } {
        0 => Ok(()),
        -1 => Err(io::Error::last_os_error()),
        // SAFETY: the stage has nothing to clean up.
        _ => unsafe { libc::_exit(0) },
    }
}

/// The descriptor with this number, which its caller knows to be open.
pub(crate) fn borrowed(number: RawFd) -> BorrowedFd<'static> {
    // SAFETY: not -1; what is asked of a number that is not open fails with EBADF and does nothing.
    unsafe { BorrowedFd::borrow_raw(number.max(0)) }
}

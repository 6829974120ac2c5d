//! The terminal of this session, for [`front`](super::front) and [`passed`](super::passed): which there is, and to which
//! group it is shown.

use std::os::fd::OwnedFd;

use rustix::io::Errno;
use rustix::process::Pid;

use crate::sys::front;

pub(super) fn of_session() -> Option<OwnedFd> {
    use rustix::fs::{Mode, OFlags, open};
    let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC;
    open("/dev/tty", flags, Mode::empty()).ok()
}

/// Whether it is shown to our group, which may have no number here. The kernel refuses to let others read, before it looks
/// for what there is to be read (`job_control` in `n_tty.c`).
pub(super) fn is_shown_to_us(terminal: &OwnedFd) -> bool {
    front::blocked(libc::SIGTTIN, || rustix::io::read(terminal, &mut [0; 0])) != Err(Errno::IO)
}

/// Shows it to a group of this session, from whichever group we are in.
pub(super) fn show_to(terminal: &OwnedFd, group: Pid) {
    // Where it cannot be, the program is told by the kernel when it reads.
    let _ = front::blocked(libc::SIGTTOU, || rustix::termios::tcsetpgrp(terminal, group));
}

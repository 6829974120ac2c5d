//! What the kernel says of a socket of this machine: who is at its other end, and what that has not read.
#![expect(unsafe_code, reason = "these are only there as raw calls")]

use std::mem;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

use super::Pid;

/// Number and user of the process that connected, as they were at that moment (man 7 unix). The number is 0 where
/// it has none in our pid namespace.
pub(crate) fn peer(socket: BorrowedFd<'_>) -> Option<(Pid, u32)> {
    let mut peer = libc::ucred { pid: 0, uid: u32::MAX, gid: u32::MAX };
    option(socket, libc::SO_PEERCRED, &mut peer)?;
    Some((peer.pid, peer.uid))
}

/// A pidfd of the process that connected. `None` before Linux 6.5.
pub(crate) fn peer_pidfd(socket: BorrowedFd<'_>) -> Option<OwnedFd> {
    /// `asm-generic/socket.h`.
    const SO_PEERPIDFD: libc::c_int = 77;
    let mut number: RawFd = -1;
    option(socket, SO_PEERPIDFD, &mut number)?;
    // SAFETY: the call succeeded, so this is a new descriptor, and nothing else owns it.
    (number >= 0).then(|| unsafe { OwnedFd::from_raw_fd(number) })
}

/// Whether everything that was sent was read. `false` where that cannot be asked.
pub(crate) fn is_all_read(socket: BorrowedFd<'_>) -> bool {
    let mut unread: libc::c_int = 1;
    // SAFETY: the descriptor is open, and `unread` is writable and what the call fills (man 7 unix).
    let result = unsafe { libc::ioctl(socket.as_raw_fd(), libc::TIOCOUTQ, &raw mut unread) };
    result == 0 && unread == 0
}

/// Only for plain numbers and structures of them: any bytes are a valid value.
fn option<T: Copy>(socket: BorrowedFd<'_>, name: libc::c_int, value: &mut T) -> Option<()> {
    let mut length = libc::socklen_t::try_from(mem::size_of::<T>()).ok()?;
    // SAFETY: the descriptor is open, `value` is writable, and `length` is its size.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            name,
            std::ptr::from_mut(value).cast(),
            &raw mut length,
        )
    };
    (result == 0).then_some(())
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;
    use crate::{identity, line};

    #[test]
    fn the_other_end_is_known_and_what_it_has_not_read() {
        let (ours, theirs) = line::pair().expect("pair");
        let own = rustix::process::geteuid().as_raw();
        assert_eq!(peer(ours.as_fd()), Some((identity::own_pid(), own)));
        if let Some(handle) = peer_pidfd(ours.as_fd()) {
            assert_eq!(identity::pid_of(handle.as_fd()), Some(identity::own_pid()));
        }
        assert!(is_all_read(ours.as_fd()));
        line::send(ours.as_fd(), b"a word", &[], false).expect("send");
        assert!(!is_all_read(ours.as_fd()));
        line::receive(theirs.as_fd(), &mut [0; 16], false).expect("receive");
        assert!(is_all_read(ours.as_fd()));
    }
}

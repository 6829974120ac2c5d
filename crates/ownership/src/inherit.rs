//! Takes over descriptors that a process inherited under an agreed number: a worker's line to its
//! parent, and its line to the supervisor.

#![expect(unsafe_code, reason = "a number becomes an owned descriptor here, and nowhere else")]

use std::io;
use std::os::fd::{FromRawFd, IntoRawFd, OwnedFd, RawFd};
use std::sync::{Mutex, PoisonError};

use rustix::fs::{FileType, fstat};
use rustix::io::{FdFlags, fcntl_setfd};

/// Numbers that have an owner already.
static TAKEN: Mutex<Vec<RawFd>> = Mutex::new(Vec::new());

/// Takes over the inherited socket with this number, once per process, and marks it close-on-exec.
/// Call it before anything else opens descriptors.
///
/// # Errors
/// `EBADF` when the number is not open, `ENOTSOCK` when it is not a socket (it is left as it is),
/// `InvalidInput` for 0, 1 and 2, `AlreadyExists` when it was taken before (man 2 fcntl, fstat).
pub fn take(fd: RawFd) -> io::Result<OwnedFd> {
    if fd <= 2 {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "0, 1 and 2 are not inherited"));
    }
    let mut taken = TAKEN.lock().unwrap_or_else(PoisonError::into_inner);
    if taken.contains(&fd) {
        return Err(io::Error::new(
            io::ErrorKind::AlreadyExists,
            "the descriptor was taken before",
        ));
    }
    // SAFETY: F_GETFD takes no pointer and changes nothing; a number that is not open is an error.
    if unsafe { libc::fcntl(fd, libc::F_GETFD) } == -1 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the number is open, as was just seen, and this process was started with it: nothing of
    // Rust owns it, and the table above gives it out only once.
    let owned = unsafe { OwnedFd::from_raw_fd(fd) };
    match prepare(&owned) {
        Ok(()) => {
            taken.push(fd);
            Ok(owned)
        }
        Err(error) => {
            // Not ours after all: give the number back without closing it.
            let _fd: RawFd = owned.into_raw_fd();
            Err(error)
        }
    }
}

fn prepare(fd: &OwnedFd) -> io::Result<()> {
    if FileType::from_raw_mode(fstat(fd)?.st_mode) != FileType::Socket {
        return Err(io::Error::from_raw_os_error(libc::ENOTSOCK));
    }
    Ok(fcntl_setfd(fd, FdFlags::CLOEXEC)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::io::fcntl_getfd;
    use std::fs::File;
    use std::os::fd::AsRawFd;
    use std::os::unix::net::UnixStream;

    #[test]
    fn only_open_sockets_are_taken_and_only_once() {
        assert_eq!(take(2).unwrap_err().kind(), io::ErrorKind::InvalidInput);
        assert_eq!(take(9999).unwrap_err().raw_os_error(), Some(libc::EBADF));
        let file = File::open("/dev/null").unwrap();
        assert_eq!(take(file.as_raw_fd()).unwrap_err().raw_os_error(), Some(libc::ENOTSOCK));
        assert!(file.metadata().is_ok(), "it is still open");

        let (socket, _peer) = UnixStream::pair().unwrap();
        let number = OwnedFd::from(socket).into_raw_fd();
        let owned = take(number).unwrap();
        assert!(fcntl_getfd(&owned).unwrap().contains(FdFlags::CLOEXEC));
        assert_eq!(take(number).unwrap_err().kind(), io::ErrorKind::AlreadyExists);
    }
}

//! Takes over descriptors that a process inherited under an agreed number: a worker's line to its
//! parent, its line to the supervisor, and the page that it shares with its parent.

use std::io;
use std::os::fd::{OwnedFd, RawFd};

/// Takes over the inherited socket with this number, once per process, and marks it close-on-exec.
/// Call it before anything else opens descriptors.
///
/// # Errors
/// `EBADF` when the number is not open, `ENOTSOCK` when it is not a socket (it is left as it is),
/// `InvalidInput` for 0, 1 and 2, `AlreadyExists` when it was taken before, `Unsupported` where there
/// is no ownership.
#[cfg(target_os = "linux")]
pub fn take(number: RawFd) -> io::Result<OwnedFd> {
    take_if(number, rustix::fs::FileType::Socket, libc::ENOTSOCK)
}

/// The same of memory ([`crate::page`]).
#[cfg(target_os = "linux")]
pub(crate) fn take_memory(number: RawFd) -> io::Result<OwnedFd> {
    take_if(number, rustix::fs::FileType::RegularFile, libc::EINVAL)
}

#[cfg(target_os = "linux")]
fn take_if(number: RawFd, kind: rustix::fs::FileType, other: i32) -> io::Result<OwnedFd> {
    use std::os::fd::IntoRawFd;
    use std::sync::{Mutex, PoisonError};

    /// Numbers that have an owner already.
    static TAKEN: Mutex<Vec<RawFd>> = Mutex::new(Vec::new());

    if (0..=2).contains(&number) {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "0, 1 and 2 are not inherited"));
    }
    let mut taken = TAKEN.lock().unwrap_or_else(PoisonError::into_inner);
    if taken.contains(&number) {
        return Err(io::Error::new(io::ErrorKind::AlreadyExists, "it was taken before"));
    }
    let fd = crate::sys::process::inherited(number)
        .ok_or_else(|| io::Error::from_raw_os_error(libc::EBADF))?;
    match prepare(&fd, kind, other) {
        Ok(()) => {
            taken.push(number);
            Ok(fd)
        }
        Err(error) => {
            // Not ours after all: given back without closing it.
            let _number: RawFd = fd.into_raw_fd();
            Err(error)
        }
    }
}

#[cfg(target_os = "linux")]
fn prepare(fd: &OwnedFd, kind: rustix::fs::FileType, other: i32) -> io::Result<()> {
    use rustix::fs::{FileType, fstat};
    if FileType::from_raw_mode(fstat(fd)?.st_mode) != kind {
        return Err(io::Error::from_raw_os_error(other));
    }
    if kind == FileType::RegularFile {
        // Only memory has seals (man 2 fcntl); a file of somebody else's is not ours to take.
        rustix::fs::fcntl_get_seals(fd)?;
    }
    Ok(rustix::io::fcntl_setfd(fd, rustix::io::FdFlags::CLOEXEC)?)
}

/// As on Linux, where there is ownership.
///
/// # Errors
/// Always `Unsupported`.
#[cfg(not(target_os = "linux"))]
pub fn take(_number: RawFd) -> io::Result<OwnedFd> {
    Err(io::ErrorKind::Unsupported.into())
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use std::fs::File;
    use std::os::fd::{AsRawFd, IntoRawFd};
    use std::os::unix::net::UnixStream;

    use rustix::io::{FdFlags, fcntl_getfd};

    use super::*;

    #[test]
    fn only_open_sockets_are_taken_and_only_once() {
        assert_eq!(take(2).unwrap_err().kind(), io::ErrorKind::InvalidInput);
        assert_eq!(take(9999).unwrap_err().raw_os_error(), Some(libc::EBADF));
        let file = File::open("/dev/null").unwrap();
        assert_eq!(take(file.as_raw_fd()).unwrap_err().raw_os_error(), Some(libc::ENOTSOCK));
        assert!(file.metadata().is_ok(), "it is still open");
        let (socket, _peer) = UnixStream::pair().unwrap();
        let number = OwnedFd::from(socket).into_raw_fd();
        let taken = take(number).unwrap();
        assert!(fcntl_getfd(&taken).unwrap().contains(FdFlags::CLOEXEC));
        assert_eq!(take(number).unwrap_err().kind(), io::ErrorKind::AlreadyExists);
    }
}

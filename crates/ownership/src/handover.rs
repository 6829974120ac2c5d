//! A line between a process and one that it owns, over which descriptors are handed: whole records, each with the
//! descriptors that belong to it. Nothing is known here of what they are.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use crate::line::{self, Received};

/// Longest record, in bytes.
pub const RECORD: usize = 1024;

/// What was handed over.
#[derive(Debug)]
pub struct Handed {
    /// The record.
    pub bytes: Vec<u8>,
    /// Its descriptors, close-on-exec; none of them where this process has no room for all.
    pub fds: Vec<OwnedFd>,
}

/// Both ends, closed on exec.
///
/// # Errors
/// When there is no descriptor left.
pub fn pair() -> io::Result<(OwnedFd, OwnedFd)> {
    Ok(line::pair()?)
}

/// Hands over a record and descriptors; does not wait for the other side.
///
/// # Errors
/// When the other side is gone, reads nothing, or the record is longer than [`RECORD`].
pub fn send(to: impl AsFd, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<()> {
    if bytes.is_empty() || bytes.len() > RECORD {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    Ok(line::send(to.as_fd(), bytes, fds, false)?)
}

/// Waits for the next record; `None` at the end of the line.
///
/// # Errors
/// What cannot be read, and what is no record.
pub fn receive(from: impl AsFd) -> io::Result<Option<Handed>> {
    let mut buffer = [0; RECORD];
    match line::receive(from.as_fd(), &mut buffer, true)? {
        Received::Record { bytes, fds } => Ok(Some(Handed { bytes, fds })),
        Received::End => Ok(None),
        Received::Bodiless { .. } | Received::Junk => Err(io::ErrorKind::InvalidData.into()),
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};

    use super::*;

    #[test]
    fn a_record_comes_with_its_descriptors_and_the_end_is_told() {
        let (ours, theirs) = pair().expect("a pair");
        let (mut read, write) = io::pipe().expect("a pipe");
        send(&ours, b"one", &[write.as_fd()]).expect("it is handed over");
        drop(write);
        let handed = receive(&theirs).expect("a record").expect("one");
        assert_eq!((&*handed.bytes, handed.fds.len()), (&b"one"[..], 1));
        let mut file = std::fs::File::from(handed.fds.into_iter().next().expect("a descriptor"));
        file.write_all(b"x").expect("the pipe");
        drop(file);
        let mut text = String::new();
        read.read_to_string(&mut text).expect("what was written");
        assert_eq!(text, "x");
        assert!(send(&ours, b"", &[]).is_err() && send(&ours, &[0; RECORD + 1], &[]).is_err());
        drop(ours);
        assert!(receive(&theirs).expect("an end").is_none());
    }
}

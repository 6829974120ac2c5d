//! Moves records over a `SOCK_SEQPACKET` pair: whole records, with descriptors. Both ends use it:
//! [`crate::client`] and [`crate::supervisor_loop`]. What the records mean is in [`crate::protocol`].

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{MemfdFlags, SealFlags};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags,
    SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketFlags, SocketType,
};

use crate::file_size;
use crate::protocol::{MAX_FDS, MAX_INLINE, MAX_RECORD};

/// Most descriptors in one record: those of a spawn, its directory, program, release command and memfd.
const MAX_CARRIED: usize = MAX_FDS + 4;

/// First byte of a message whose record is in the memfd that comes first; the record's number follows.
const IN_MEMFD: u8 = 0xff;

/// What must hold of a memfd so that its sender cannot change it under us.
const SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::WRITE);

/// Something that was received.
#[derive(Debug)]
pub(crate) enum Received {
    /// Without any of its descriptors when one of them could not be received (this process has too
    /// many): what a record is about is known all the same, so that nobody waits for an answer.
    Record { bytes: Vec<u8>, fds: Vec<OwnedFd> },
    /// A record with this number whose body could not be received for the same reason.
    Bodiless { id: u64 },
    /// Truncated, without bytes, or with a body that cannot be trusted.
    Junk,
    /// The other end is closed.
    End,
}

/// A new pair of lines, closed on exec.
pub(crate) fn pair() -> rustix::io::Result<(OwnedFd, OwnedFd)> {
    rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
}

/// Makes a large record into a small one with a sealed memfd in front.
pub(crate) fn pack(
    record: Vec<u8>,
    id: u64,
    fds: &mut Vec<OwnedFd>,
) -> rustix::io::Result<Vec<u8>> {
    if record.len() <= MAX_INLINE {
        return Ok(record);
    }
    if record.len() > MAX_RECORD {
        return Err(Errno::TOOBIG);
    }
    fds.insert(0, sealed(&record)?);
    Ok([&[IN_MEMFD][..], &id.to_le_bytes()].concat())
}

/// A memfd with this content that nobody can change.
pub(crate) fn sealed(content: &[u8]) -> rustix::io::Result<OwnedFd> {
    if content.len() > MAX_RECORD {
        return Err(Errno::TOOBIG);
    }
    // The limit holds for memory too, and a write beyond it would end this process.
    if file_size::limit()
        .is_some_and(|limit| usize::try_from(limit).is_ok_and(|limit| limit < content.len()))
    {
        return Err(Errno::FBIG);
    }
    let memfd =
        rustix::fs::memfd_create("record", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    let mut rest = content;
    while !rest.is_empty() {
        let written = rustix::io::write(&memfd, rest)?;
        rest = &rest[written..];
    }
    rustix::fs::fcntl_add_seals(&memfd, SEALS)?;
    Ok(memfd)
}

/// Sends one packed record.
pub(crate) fn send(
    line: BorrowedFd<'_>,
    bytes: &[u8],
    fds: &[BorrowedFd<'_>],
    wait: bool,
) -> rustix::io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_CARRIED))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    // The space alone may have room for one more, by alignment.
    let fits = fds.len() <= MAX_CARRIED;
    if !fits || !fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(fds)) {
        return Err(Errno::TOOBIG);
    }
    let flags = if wait { SendFlags::NOSIGNAL } else { SendFlags::NOSIGNAL | SendFlags::DONTWAIT };
    loop {
        match rustix::net::sendmsg(line, &[IoSlice::new(bytes)], &mut control, flags) {
            Err(Errno::INTR) => {}
            other => return other.map(drop),
        }
    }
}

/// Receives one record into `buffer`. `Err(AGAIN)` when there is none and `wait` is false.
pub(crate) fn receive(
    line: BorrowedFd<'_>,
    buffer: &mut [u8],
    wait: bool,
) -> rustix::io::Result<Received> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_CARRIED))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut flags = RecvFlags::CMSG_CLOEXEC;
    flags.set(RecvFlags::DONTWAIT, !wait);
    let message = loop {
        let mut into = [IoSliceMut::new(buffer)];
        match rustix::net::recvmsg(line, &mut into, &mut control, flags) {
            Err(Errno::INTR) => {}
            // Told once by a socket whose peer left with something unread; what it said is still there.
            Err(Errno::CONNRESET) => {}
            other => break other?,
        }
    };
    let fds: Vec<OwnedFd> = control
        .drain()
        .filter_map(|message| {
            if let RecvAncillaryMessage::ScmRights(fds) = message { Some(fds) } else { None }
        })
        .flatten()
        .collect();
    if message.flags.contains(ReturnFlags::TRUNC) {
        return Ok(Received::Junk);
    }
    let fds = if message.flags.contains(ReturnFlags::CTRUNC) { Vec::new() } else { fds };
    // An empty record cannot be told from the end; `poll` shows the hang-up beside it.
    let Some(bytes) = buffer.get(..message.bytes).filter(|bytes| !bytes.is_empty()) else {
        return Ok(if is_closed(line) { Received::End } else { Received::Junk });
    };
    Ok(unpack(bytes, fds))
}

/// Whether the other end is closed.
pub(crate) fn is_closed(line: BorrowedFd<'_>) -> bool {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let mut asked = [PollFd::from_borrowed_fd(line, PollFlags::RDHUP)];
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    // When it cannot be asked it is of no more use.
    poll(&mut asked, Some(&now)).is_err()
        || asked[0].revents().intersects(PollFlags::HUP | PollFlags::RDHUP | PollFlags::ERR)
}

fn unpack(bytes: &[u8], mut fds: Vec<OwnedFd>) -> Received {
    let Some(id) = bytes.strip_prefix(&[IN_MEMFD]) else {
        return Received::Record { bytes: bytes.to_vec(), fds };
    };
    let Ok(id) = id.try_into().map(u64::from_le_bytes) else { return Received::Junk };
    if fds.is_empty() {
        return Received::Bodiless { id };
    }
    let memfd = fds.remove(0);
    match read_sealed(memfd.as_fd()) {
        Some(bytes) => Received::Record { bytes, fds },
        None => Received::Junk,
    }
}

/// The content of a memfd that nobody can change or shrink any more.
pub(crate) fn read_sealed(memfd: BorrowedFd<'_>) -> Option<Vec<u8>> {
    if !rustix::fs::fcntl_get_seals(memfd).ok()?.contains(SEALS) {
        return None;
    }
    let size = usize::try_from(rustix::fs::fstat(memfd).ok()?.st_size).ok()?;
    if size > MAX_RECORD {
        return None;
    }
    let mut bytes = vec![0; size];
    let mut read = 0;
    while read < size {
        let offset = u64::try_from(read).ok()?;
        match rustix::io::pread(memfd, &mut bytes[read..], offset) {
            Ok(0) | Err(_) => return None,
            Ok(more) => read += more,
        }
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn round(bytes: Vec<u8>, fds: Vec<OwnedFd>) -> Received {
        let (a, b) = pair().expect("pair");
        let borrowed: Vec<_> = fds.iter().map(AsFd::as_fd).collect();
        send(a.as_fd(), &bytes, &borrowed, false).expect("send");
        receive(b.as_fd(), &mut vec![0; MAX_INLINE], false).expect("receive")
    }

    #[test]
    fn small_and_large_records_arrive_whole() {
        for size in [1, MAX_INLINE, MAX_INLINE + 1, MAX_RECORD] {
            let record: Vec<u8> = (0..size).map(|at| (at % 251).to_le_bytes()[0]).collect();
            let mut fds = Vec::new();
            let packed = pack(record.clone(), 7, &mut fds).expect("pack");
            match round(packed, fds) {
                Received::Record { bytes, fds } => {
                    assert!(bytes == record && fds.is_empty());
                }
                other @ (Received::Bodiless { .. } | Received::Junk | Received::End) => {
                    panic!("{size}: {other:?}")
                }
            }
        }
        assert_eq!(pack(vec![0; MAX_RECORD + 1], 7, &mut Vec::new()), Err(Errno::TOOBIG));
    }

    #[test]
    fn a_memfd_that_can_still_change_is_junk() {
        let memfd = rustix::fs::memfd_create("x", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)
            .expect("memfd");
        rustix::io::write(&memfd, b"hello").expect("write");
        let message = [&[IN_MEMFD][..], &7_u64.to_le_bytes()].concat();
        assert!(matches!(round(message.clone(), vec![memfd]), Received::Junk));
        assert!(matches!(round(message, vec![]), Received::Bodiless { id: 7 }));
        assert!(matches!(round(vec![IN_MEMFD], vec![]), Received::Junk));
    }

    #[test]
    fn an_empty_record_is_junk_and_a_closed_line_is_the_end() {
        let (a, b) = pair().expect("pair");
        send(a.as_fd(), b"", &[], false).expect("send");
        let mut buffer = [0; 16];
        assert!(matches!(receive(b.as_fd(), &mut buffer, false), Ok(Received::Junk)));
        drop(a);
        assert!(matches!(receive(b.as_fd(), &mut buffer, false), Ok(Received::End)));
    }

    #[test]
    fn truncated_records_are_junk() {
        let (a, b) = pair().expect("pair");
        send(a.as_fd(), &[7; 64], &[], false).expect("send");
        assert!(matches!(receive(b.as_fd(), &mut [0; 16], false), Ok(Received::Junk)));
    }
    /// More come without any, as where this process has too many, and none of them stays open.
    #[test]
    fn rb_09_a_record_brings_all_of_its_descriptors_or_none_and_leaks_none() {
        use rustix::event::{PollFd, PollFlags, Timespec, poll};
        for count in 0..=300 {
            let (a, b) = pair().expect("pair");
            let (read, write) =
                rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).expect("pipe");
            let many = vec![write.as_fd(); count];
            let refused = send(a.as_fd(), b"x", &many, false).is_err();
            assert_eq!(refused, count > MAX_CARRIED, "{count}");
            if refused {
                // What a peer that is not ours can send.
                let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(300))];
                let mut control = SendAncillaryBuffer::new(&mut space);
                assert!(control.push(SendAncillaryMessage::ScmRights(&many)));
                let text = [IoSlice::new(b"x")];
                let sent = rustix::net::sendmsg(&a, &text, &mut control, SendFlags::DONTWAIT);
                // SCM_MAX_FD, man 7 unix.
                assert_eq!(sent.is_ok(), count <= 253, "{count}: {sent:?}");
            }
            drop(write);
            match receive(b.as_fd(), &mut [0; 16], false) {
                Ok(Received::Record { bytes, fds }) => {
                    let whole = fds.len() == count || refused && fds.is_empty();
                    assert!(bytes == b"x" && whole, "{count}: {}", fds.len());
                }
                Err(Errno::AGAIN) if count > 253 => {}
                other => panic!("{count}: {other:?}"),
            }
            // A process that another test starts just now has it until its exec.
            let mut hung_up = [PollFd::new(&read, PollFlags::empty())];
            let patience = Timespec { tv_sec: 20, tv_nsec: 0 };
            assert_eq!(poll(&mut hung_up, Some(&patience)), Ok(1), "{count}: it was kept open");
        }
    }
}

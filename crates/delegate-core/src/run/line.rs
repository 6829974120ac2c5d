//! The parent's end of a line, asynchronous: bytes of a socket (process) or frames of a channel
//! (thread), and the pipes of a process.
//!
//! A reader ends at the end of the stream, or, once its child is [`Over`], when nothing more can be
//! read: a grandchild that kept a descriptor is never waited for.

use std::cell::RefCell;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use delegate_child::link::{Next, ParentHalf, Refused};
use tokio::io::AsyncWriteExt;
use tokio::net::UnixStream;
use tokio::net::unix::pipe;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::{Notify, watch};

use crate::launch::Line;

/// Bytes of one read. One buffer for the whole loop: readers copy out what they keep.
const READ: usize = 64 * 1024;

thread_local! {
    static SCRATCH: RefCell<Box<[u8]>> = RefCell::new(vec![0; READ].into_boxed_slice());
}

/// Tells readers that their child has ended: whatever can be read now is all there is.
pub(super) type Over = watch::Receiver<bool>;

/// Both directions of a line.
pub(super) fn split(line: Line, wake: &Arc<Notify>) -> io::Result<(LineReader, LineWriter)> {
    match line {
        Line::Socket(stream) => {
            stream.set_nonblocking(true)?;
            let (read, write) = UnixStream::from_std(stream)?.into_split();
            Ok((LineReader::Socket(read), LineWriter::Socket(write)))
        }
        Line::Memory(half) => {
            let half = Arc::new(half);
            let reader = LineReader::Memory(Arc::clone(&half), Arc::clone(wake));
            Ok((reader, LineWriter::Memory(half, Arc::clone(wake))))
        }
    }
}

/// The receiving direction.
pub(super) enum LineReader {
    Socket(OwnedReadHalf),
    Memory(Arc<ParentHalf>, Arc<Notify>),
}

impl LineReader {
    /// Hands the next bytes to `take`; `false` when there are no more.
    pub(super) async fn read(
        &mut self,
        over: &mut Over,
        mut take: impl FnMut(&[u8]),
    ) -> io::Result<bool> {
        match self {
            Self::Socket(socket) => {
                read_ready(
                    over,
                    socket.as_ref().as_fd(),
                    async || socket.readable().await,
                    |buffer| socket.try_read(buffer),
                    take,
                )
                .await
            }
            Self::Memory(half, wake) => loop {
                let woken = wake.notified();
                let last_look = *over.borrow();
                match half.try_next() {
                    Next::Frame(frame) => {
                        take(&frame);
                        return Ok(true);
                    }
                    Next::Closed => return Ok(false),
                    Next::Empty if last_look => return Ok(false),
                    Next::Empty => {}
                }
                tokio::select! {
                    () = woken => {}
                    _changed = over.changed() => {}
                }
            },
        }
    }
}

/// The sending direction.
pub(super) enum LineWriter {
    Socket(OwnedWriteHalf),
    Memory(Arc<ParentHalf>, Arc<Notify>),
}

impl LineWriter {
    /// Writes one encoded frame. A child that is gone is not an error here: its end is told
    /// elsewhere.
    pub(super) async fn write(&mut self, mut frame: Vec<u8>) {
        match self {
            Self::Socket(socket) => {
                if let Err(error) = socket.write_all(&frame).await {
                    tracing::debug!(target: "delegate::run", %error, "a frame was not taken");
                }
            }
            Self::Memory(half, wake) => loop {
                let woken = wake.notified();
                match half.send(frame) {
                    Err(Refused::Full(refused)) => frame = refused,
                    Ok(()) | Err(Refused::Closed) => return,
                }
                woken.await;
            },
        }
    }
}

/// Reads one pipe to its end, handing the bytes to `take`.
pub(super) async fn drain(fd: OwnedFd, mut over: Over, mut take: impl FnMut(&[u8])) {
    let pipe = match pipe::Receiver::from_owned_fd(fd) {
        Ok(pipe) => pipe,
        Err(error) => {
            tracing::warn!(target: "delegate::run", %error, "a pipe cannot be read");
            return;
        }
    };
    loop {
        let next = read_ready(
            &mut over,
            pipe.as_fd(),
            async || pipe.readable().await,
            |buffer| pipe.try_read(buffer),
            &mut take,
        );
        match next.await {
            Ok(true) => {}
            Ok(false) => return,
            Err(error) => {
                tracing::debug!(target: "delegate::run", %error, "a pipe ended");
                return;
            }
        }
    }
}

/// Waits for bytes and takes one read of them; `false` at the end of the stream, or when the child
/// is over and nothing can be read.
///
/// Tokio answers `WouldBlock` from what its reactor has seen so far, without asking the system. That
/// will do while there is somebody to wait for; the last look must see what the child left behind,
/// so it asks the system itself.
async fn read_ready(
    over: &mut Over,
    fd: BorrowedFd<'_>,
    readable: impl AsyncFn() -> io::Result<()>,
    mut try_read: impl FnMut(&mut [u8]) -> io::Result<usize>,
    mut take: impl FnMut(&[u8]),
) -> io::Result<bool> {
    loop {
        // Asked before the read: what came before the end was said is then surely seen.
        let last_look = *over.borrow();
        let result = SCRATCH.with_borrow_mut(|buffer| {
            let count = match try_read(buffer) {
                Err(error) if last_look && error.kind() == io::ErrorKind::WouldBlock => {
                    rustix::io::read(fd, &mut **buffer)?
                }
                read => read?,
            };
            take(&buffer[..count]);
            Ok::<_, io::Error>(count)
        });
        match result {
            Ok(count) => return Ok(count > 0),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) if error.kind() == io::ErrorKind::ConnectionReset => return Ok(false),
            Err(error) if error.kind() != io::ErrorKind::WouldBlock => return Err(error),
            Err(_) if last_look => return Ok(false),
            Err(_) => tokio::select! {
                ready = readable() => ready?,
                _changed = over.changed() => {}
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    /// Runs on a loop that has not looked at any descriptor yet.
    fn at_once<T>(work: impl Future<Output = T>) -> T {
        tokio::runtime::Builder::new_current_thread().enable_io().build().unwrap().block_on(work)
    }

    #[test]
    fn the_last_look_sees_what_the_reactor_has_not_seen_yet() {
        let said = at_once(async {
            let (ours, mut childs) = std::os::unix::net::UnixStream::pair().unwrap();
            let (mut reader, _writer) = split(Line::Socket(ours), &Arc::default()).unwrap();
            childs.write_all(b"the result").unwrap();
            drop(childs);
            let (mut said, mut over) = (Vec::new(), watch::Sender::new(true).subscribe());
            while reader.read(&mut over, |bytes| said.extend_from_slice(bytes)).await.unwrap() {}
            said
        });
        assert_eq!(said, b"the result");
    }

    #[test]
    fn the_last_look_at_a_pipe_that_a_grandchild_keeps_takes_what_is_there_and_ends() {
        let said = at_once(async {
            let (ours, mut childs) = io::pipe().unwrap();
            childs.write_all(b"last words").unwrap();
            let mut said = Vec::new();
            let over = watch::Sender::new(true).subscribe();
            drain(ours.into(), over, |bytes| said.extend_from_slice(bytes)).await;
            drop(childs);
            said
        });
        assert_eq!(said, b"last words");
    }
}

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
                let socket: &UnixStream = (*socket).as_ref();
                read_ready(
                    over,
                    socket.as_fd(),
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
            // The runtime's `try_read` does not ask the kernel before an event has come, and the news of
            // the child's end may overtake the event of its last bytes: the last look asks the kernel.
            let count =
                if last_look { rustix::io::read(fd, &mut **buffer)? } else { try_read(buffer)? };
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

    #[tokio::test(flavor = "current_thread")]
    async fn the_last_look_finds_bytes_that_no_event_has_told_of_yet() {
        let (ours, mut childs) = std::os::unix::net::UnixStream::pair().unwrap();
        let (pipe, mut childs_pipe) = io::pipe().unwrap();
        let (mut reader, _writer) = split(Line::Socket(ours), &Arc::default()).unwrap();
        childs.write_all(b"last words").unwrap();
        childs_pipe.write_all(b"last line").unwrap();
        // Both ends stay open, as with a grandchild that keeps them. The loop has not waited since.
        let (_sender, mut over) = watch::channel(true);
        let (mut line, mut output) = (Vec::new(), Vec::new());
        assert!(reader.read(&mut over, |bytes| line.extend_from_slice(bytes)).await.unwrap());
        assert!(!reader.read(&mut over, |_| panic!("no more")).await.unwrap());
        drain(pipe.into(), over, |bytes| output.extend_from_slice(bytes)).await;
        assert_eq!((line.as_slice(), output.as_slice()), (&b"last words"[..], &b"last line"[..]));
        drop((childs, childs_pipe));
    }
}

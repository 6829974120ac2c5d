//! The parent's end of a line, asynchronous: bytes of a socket (process) or frames of a channel
//! (thread), and the pipes of a process.
//!
//! A reader ends at the end of the stream, or, once its child is [`Over`], when nothing more can be
//! read: a grandchild that kept a descriptor is never waited for.

use std::cell::RefCell;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use delegate_child::link::{Next, ParentHalf, Refused};
use tokio::io::AsyncWriteExt;
use tokio::net::UnixStream;
use tokio::net::unix::pipe;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::{Notify, watch};
use tokio::task::coop::consume_budget;

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
                let ready = async || socket.readable().await;
                let stream: &UnixStream = socket.as_ref();
                read_ready(over, ready, |buffer| socket.try_read(buffer), stream, take).await
            }
            Self::Memory(half, wake) => loop {
                consume_budget().await;
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
        let ready = async || pipe.readable().await;
        let next =
            read_ready(&mut over, ready, |buffer| pipe.try_read(buffer), &pipe, &mut take).await;
        match next {
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
/// The last look asks the kernel: the runtime answers "nothing there" from what it has heard so far,
/// and it may not have heard yet of the last bytes of a child that left behind them.
///
/// A child that talks faster than we read never lets a read wait; so that it holds up nobody else of
/// this thread, deadlines and kills least of all, every read takes from the task's budget.
async fn read_ready(
    over: &mut Over,
    readable: impl AsyncFn() -> io::Result<()>,
    mut try_read: impl FnMut(&mut [u8]) -> io::Result<usize>,
    fd: impl AsFd,
    mut take: impl FnMut(&[u8]),
) -> io::Result<bool> {
    loop {
        consume_budget().await;
        // Asked before the read: what came before the end was said is then surely seen.
        let last_look = *over.borrow();
        let result = SCRATCH.with_borrow_mut(|buffer| {
            let count =
                if last_look { rustix::io::read(&fd, &mut **buffer)? } else { try_read(buffer)? };
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
    use std::io::Write as _;

    fn runtime() -> tokio::runtime::Runtime {
        tokio::runtime::Builder::new_current_thread().enable_io().build().unwrap()
    }

    #[test]
    fn the_last_bytes_are_seen_before_the_runtime_has_heard_of_them() {
        runtime().block_on(async {
            let (ours, mut theirs) = std::os::unix::net::UnixStream::pair().unwrap();
            let (mut reader, _writer) = split(Line::Socket(ours), &Arc::default()).unwrap();
            theirs.write_all(b"the result").unwrap();
            // A grandchild that kept the line: no end of the stream will come.
            let (_kept, mut over) = (theirs, watch::channel(true).1);
            let mut seen = Vec::new();
            while reader.read(&mut over, |bytes| seen.extend_from_slice(bytes)).await.unwrap() {}
            assert_eq!(seen, b"the result");
        });
    }

    #[test]
    fn the_last_output_is_seen_as_well() {
        runtime().block_on(async {
            let (ours, mut theirs) = io::pipe().unwrap();
            theirs.write_all(b"last words").unwrap();
            let mut seen = Vec::new();
            drain(ours.into(), watch::channel(true).1, |bytes| seen.extend_from_slice(bytes)).await;
            assert_eq!(seen, b"last words");
            drop(theirs);
        });
    }

    #[test]
    fn rb_17_a_line_that_is_never_empty_lets_others_have_their_turn() {
        runtime().block_on(async {
            let (_ours, fd) = io::pipe().unwrap();
            let mut over = watch::channel(false).1;
            let endless = async {
                for _ in 0..100_000 {
                    let ready = async || Ok(());
                    let next = read_ready(&mut over, ready, |_| Ok(1), &fd, |_| {});
                    assert!(next.await.unwrap());
                }
            };
            tokio::select! {
                biased;
                () = endless => panic!("it never gave way"),
                () = std::future::ready(()) => {}
            }
        });
    }
}

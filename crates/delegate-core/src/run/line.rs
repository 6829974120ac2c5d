//! The parent's end of a line, asynchronous: bytes of a socket (process) or frames of a channel
//! (thread), and the pipes of a process.
//!
//! A reader ends at the end of the stream, or, once its child is [`Over`], behind what was there by
//! then: a grandchild that kept a descriptor is never waited for, be it silent or talking without end.

use std::cell::RefCell;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use delegate_child::link::{Next, ParentHalf, Refused};
use rustix::io::ioctl_fionread;
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

/// What a reader may still take: everything, until its child is over.
#[derive(Debug, Clone, Copy)]
pub(super) enum Rest {
    All,
    /// Bytes (of a socket or pipe) or pieces (of a channel) that were there when it was over.
    Last(u64),
}

impl Rest {
    /// Whether nothing is left to be taken. `there` counts what is there at the first call after the
    /// child was over.
    fn is_used_up(&mut self, over: bool, there: impl FnOnce() -> u64) -> bool {
        if over && matches!(self, Self::All) {
            *self = Self::Last(there());
        }
        matches!(self, Self::Last(0))
    }

    const fn take(&mut self, count: u64) {
        if let Self::Last(rest) = self {
            *rest = rest.saturating_sub(count);
        }
    }
}

/// Both directions of a line.
pub(super) fn split(line: Line, wake: &Arc<Notify>) -> io::Result<(LineReader, LineWriter)> {
    match line {
        Line::Socket(stream) => {
            stream.set_nonblocking(true)?;
            let (read, write) = UnixStream::from_std(stream)?.into_split();
            Ok((LineReader::Socket(read, Rest::All), LineWriter::Socket(write)))
        }
        Line::Memory(half) => {
            let half = Arc::new(half);
            let reader = LineReader::Memory(Arc::clone(&half), Arc::clone(wake), Rest::All);
            Ok((reader, LineWriter::Memory(half, Arc::clone(wake))))
        }
    }
}

/// The receiving direction.
pub(super) enum LineReader {
    Socket(OwnedReadHalf, Rest),
    Memory(Arc<ParentHalf>, Arc<Notify>, Rest),
}

impl LineReader {
    /// Hands the next bytes to `take`; `false` when there are no more.
    pub(super) async fn read(
        &mut self,
        over: &mut Over,
        mut take: impl FnMut(&[u8]),
    ) -> io::Result<bool> {
        match self {
            Self::Socket(socket, rest) => {
                let ready = async || socket.readable().await;
                let stream: &UnixStream = socket.as_ref();
                let try_read = |buffer: &mut [u8]| socket.try_read(buffer);
                read_ready((over, rest), ready, try_read, stream, take).await
            }
            Self::Memory(half, wake, rest) => loop {
                consume_budget().await;
                let woken = wake.notified();
                let last_look = *over.borrow();
                if rest.is_used_up(last_look, || half.waiting() as u64) {
                    return Ok(false);
                }
                match half.try_next() {
                    Next::Frame(frame) => {
                        rest.take(1);
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
    let mut rest = Rest::All;
    loop {
        let ready = async || pipe.readable().await;
        let try_read = |buffer: &mut [u8]| pipe.try_read(buffer);
        let next = read_ready((&mut over, &mut rest), ready, try_read, &pipe, &mut take).await;
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
/// is over and what was there by then (man 2const FIONREAD) was read.
///
/// The last reads ask the kernel: the runtime answers "nothing there" from what it has heard so far,
/// and it may not have heard yet of the last bytes of a child that left behind them.
///
/// A child that talks faster than we read never lets a read wait; so that it holds up nobody else of
/// this thread, deadlines and kills least of all, every read takes from the task's budget.
async fn read_ready(
    (over, rest): (&mut Over, &mut Rest),
    readable: impl AsyncFn() -> io::Result<()>,
    mut try_read: impl FnMut(&mut [u8]) -> io::Result<usize>,
    fd: impl AsFd,
    mut take: impl FnMut(&[u8]),
) -> io::Result<bool> {
    loop {
        consume_budget().await;
        // Asked before the read: what came before the end was said is then surely seen.
        let last_look = *over.borrow();
        if rest.is_used_up(last_look, || ioctl_fionread(&fd).unwrap_or(u64::MAX)) {
            return Ok(false);
        }
        let result = SCRATCH.with_borrow_mut(|buffer| {
            let count =
                if last_look { rustix::io::read(&fd, &mut **buffer)? } else { try_read(buffer)? };
            take(&buffer[..count]);
            Ok::<_, io::Error>(count)
        });
        match result {
            Ok(count) => {
                rest.take(count as u64);
                return Ok(count > 0);
            }
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
    use delegate_child::link::MEMORY_FRAMES;
    use delegate_protocol::{Beat, ChildMessage};
    use std::io::Write as _;
    use std::time::Duration;

    const DEADLINE: Duration = Duration::from_secs(10);

    fn runtime() -> tokio::runtime::Runtime {
        tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
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
    fn a_pipe_that_is_written_without_end_ends_with_its_child() {
        runtime().block_on(async {
            let (ours, mut theirs) = io::pipe().unwrap();
            // A grandchild that outlived the child: it ends when nobody reads any more.
            let flood =
                std::thread::spawn(move || while theirs.write_all(&[b'y'; 4096]).is_ok() {});
            // As much as a pipe holds.
            while ioctl_fionread(&ours).unwrap() < READ as u64 {
                pause();
            }
            let mut seen = 0;
            let drained = drain(ours.into(), watch::channel(true).1, |bytes| {
                seen += bytes.len();
                pause();
            });
            tokio::time::timeout(DEADLINE, drained).await.expect("it reads for ever");
            assert_eq!(seen, READ, "what was there, and nothing that came later");
            flood.join().unwrap();
        });
    }

    #[test]
    fn a_thread_that_talks_without_end_is_let_go_when_it_is_given_up() {
        runtime().block_on(async {
            let wake = Arc::new(Notify::new());
            let waked = Arc::clone(&wake);
            let (link, half) =
                delegate_child::link::memory(Arc::new(move || waked.notify_waiters()));
            let flood = std::thread::spawn(move || {
                let mut line = link.outgoing;
                while line.send(&ChildMessage::Beat(Beat::default())).is_ok() {}
            });
            while half.waiting() < MEMORY_FRAMES {
                pause();
            }
            let (mut reader, writer) = split(Line::Memory(half), &wake).unwrap();
            let mut over = watch::channel(true).1;
            let mut seen = 0;
            let read = async {
                while reader.read(&mut over, |_| pause()).await.unwrap() {
                    seen += 1;
                }
            };
            tokio::time::timeout(DEADLINE, read).await.expect("it reads for ever");
            assert_eq!(seen, MEMORY_FRAMES, "what was there, and nothing that came later");
            drop((reader, writer));
            flood.join().unwrap();
        });
    }

    /// A reader is slower than who floods it: it decodes and writes down what it reads.
    fn pause() {
        std::thread::park_timeout(Duration::from_millis(1));
    }

    #[test]
    fn rb_17_a_line_that_is_never_empty_lets_others_have_their_turn() {
        runtime().block_on(async {
            let (_ours, fd) = io::pipe().unwrap();
            let mut over = watch::channel(false).1;
            let endless = async {
                for _ in 0..100_000 {
                    let ready = async || Ok(());
                    let mut rest = Rest::All;
                    let next = read_ready((&mut over, &mut rest), ready, |_| Ok(1), &fd, |_| {});
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

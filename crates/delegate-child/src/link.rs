//! A line to the parent, as the child sees it: a [`socket`] in a worker, a channel ([`memory`]) in
//! a thread. Both carry the very same encoded frames, so a thread decodes what a process decodes.
//!
//! Talks to `delegate_protocol::frame`; `serve` owns both halves, the thread executor of the parent
//! holds the [`ParentHalf`].

use std::fmt;
use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use crossbeam_channel::{Receiver, Sender, TryRecvError, TrySendError, bounded, select};
use delegate_protocol::frame::{Decoder, Encoder};
use delegate_protocol::value::Bytes;
use delegate_protocol::{ChildEnd, ChildMessage, FrameError, ParentMessage};

use crate::hook::{self, Crash};

/// Pieces (one frame, or some small ones) that a memory link holds in each direction. The largest
/// that really come are parts of 1 MiB, so 16 of them bound a child to 16 MiB in flight; a socket
/// would hold 0.2 MiB.
pub const MEMORY_FRAMES: usize = 16;

/// Bytes that one read of a socket takes at most.
const READ: usize = 64 * 1024;

/// Bytes of encoded events that go out in one piece. One system call for some hundred events pays for
/// their encoding; more would only make the first of them wait.
const PIECE: usize = 64 * 1024;

/// The child's end: two halves that live on different threads.
pub struct Link {
    /// From the parent.
    pub incoming: Box<dyn Incoming>,
    /// To the parent.
    pub outgoing: Box<dyn Outgoing>,
}

impl fmt::Debug for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Link")
    }
}

/// The receiving half.
pub trait Incoming: Send {
    /// Blocks for the next message; `None` when the parent is gone or has closed its end, also in
    /// the middle of a frame.
    ///
    /// # Errors
    /// When the parent sent what is not the protocol.
    fn receive(&mut self) -> Result<Option<ParentMessage>, LinkError>;
}

/// The sending half. When it is dropped the parent sees the end of the stream, and a blocked
/// [`Incoming::receive`] of the same link returns.
pub trait Outgoing: Send {
    /// Encodes a message behind those that wait. They go out together: now when they are many, else
    /// with [`Outgoing::flush`].
    ///
    /// # Errors
    /// When the parent is gone, or the message cannot be encoded; then it is left out, and the line
    /// stays usable.
    fn put(&mut self, message: &ChildMessage) -> Result<(), LinkError>;

    /// Returns only after the other side (the kernel, or the channel) took every byte.
    ///
    /// # Errors
    /// When the parent is gone.
    fn flush(&mut self) -> Result<(), LinkError>;

    /// Sends a part of a result behind what waits. It is large: nothing is copied that need not be.
    ///
    /// # Errors
    /// Those of [`Outgoing::send`].
    fn part(&mut self, bytes: &[u8]) -> Result<(), LinkError>;

    /// Both.
    ///
    /// # Errors
    /// Those of both; a message that cannot be encoded holds back what waits before it.
    fn send(&mut self, message: &ChildMessage) -> Result<(), LinkError> {
        self.put(message)?;
        self.flush()
    }
}

/// A line that does not carry on.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LinkError {
    /// The parent is gone.
    #[error("the parent is gone")]
    Closed,
    /// The system refused.
    #[error("the line failed: {0}")]
    Io(#[from] io::Error),
    /// A frame is wrong.
    #[error(transparent)]
    Frame(#[from] FrameError),
    /// The parent sent a message that may not come now.
    #[error("the parent broke the order of the protocol: {0}")]
    OutOfOrder(&'static str),
    /// A spec in parts grew over what is accepted.
    #[error("the spec is over the cap of {cap} bytes")]
    SpecTooLarge {
        /// The cap, in bytes.
        cap: usize,
    },
}

impl LinkError {
    /// Errors that only say that nobody is there.
    fn of_io(error: io::Error) -> Self {
        if matches!(error.kind(), io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset) {
            Self::Closed
        } else {
            Self::Io(error)
        }
    }
}

/// The line over a connected stream socket (blocking).
#[must_use]
pub fn socket(fd: OwnedFd) -> Link {
    let stream = Arc::new(UnixStream::from(fd));
    let incoming = SocketIncoming {
        stream: Arc::clone(&stream),
        decoder: Decoder::default(),
        buffer: vec![0; READ].into_boxed_slice(),
        crash: Crash::from_environment(),
        last: None,
    };
    let outgoing = SocketOutgoing {
        stream,
        encoder: Encoder::default(),
        frames: Vec::new(),
        crash: Crash::from_environment(),
    };
    Link { incoming: Box::new(incoming), outgoing: Box::new(outgoing) }
}

struct SocketIncoming {
    stream: Arc<UnixStream>,
    decoder: Decoder<ChildEnd>,
    buffer: Box<[u8]>,
    crash: Crash,
    /// The message that was taken before, by name.
    last: Option<&'static str>,
}

impl SocketIncoming {
    /// In tests the end may come here.
    fn comes(&mut self, point: &str, message: &str) {
        if self.crash.comes(point, message) {
            hook::die();
        }
    }

    /// The same where nothing is read before something is there.
    fn comes_unread(&mut self) {
        use rustix::event::{PollFd, PollFlags, poll};
        if self.crash.comes("unread", "read") {
            let mut asked = [PollFd::new(&*self.stream, PollFlags::IN)];
            while poll(&mut asked, None) != Ok(1) {}
            hook::die();
        }
    }
}

impl Incoming for SocketIncoming {
    fn receive(&mut self) -> Result<Option<ParentMessage>, LinkError> {
        if let Some(last) = self.last.take() {
            self.comes("after-take", last);
        }
        loop {
            if let Some(message) = self.decoder.next_message() {
                let mut message = message?;
                hook::lose_down(&mut message);
                if hook::hears_no(&message) {
                    continue;
                }
                let name = hook::taken(&message);
                self.comes("before-take", name);
                self.last = Some(name);
                return Ok(Some(message));
            }
            self.comes_unread();
            let count = match (&*self.stream).read(&mut self.buffer) {
                Ok(count) => count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) if error.kind() == io::ErrorKind::ConnectionReset => 0,
                Err(error) => return Err(error.into()),
            };
            if count == 0 {
                return Ok(None);
            }
            self.decoder.push(&self.buffer[..count]);
        }
    }
}

struct SocketOutgoing {
    stream: Arc<UnixStream>,
    encoder: Encoder<ChildEnd>,
    /// Encoded, and not yet written.
    frames: Vec<u8>,
    crash: Crash,
}

impl SocketOutgoing {
    /// In tests the end may come here, once everything up to this many bytes of `frames` is out.
    fn comes(&mut self, point: &str, message: &ChildMessage, up_to: usize) {
        if self.crash.comes(point, hook::sent(message)) {
            self.frames.truncate(up_to);
            if let Err(error) = self.flush() {
                tracing::debug!(%error, "the parent was gone before");
            }
            hook::die();
        }
    }
}

impl Outgoing for SocketOutgoing {
    fn put(&mut self, message: &ChildMessage) -> Result<(), LinkError> {
        let message = &*hook::lose_up(message);
        if matches!(message, ChildMessage::Beat(_)) && hook::is_off("frames") {
            return Ok(());
        }
        let begin = self.frames.len();
        self.comes("before-send", message, begin);
        self.encoder.frame(message, &mut self.frames)?;
        let end = self.frames.len();
        self.comes("within-send", message, begin.midpoint(end));
        self.comes("after-send", message, end);
        if self.frames.len() < PIECE { Ok(()) } else { self.flush() }
    }

    fn part(&mut self, bytes: &[u8]) -> Result<(), LinkError> {
        if self.crash.is_set() {
            return self.send(&ChildMessage::ResultPart(Bytes(bytes.to_vec())));
        }
        self.encoder.part_head(bytes.len(), &mut self.frames)?;
        self.flush()?;
        (&*self.stream).write_all(bytes).map_err(LinkError::of_io)
    }

    fn flush(&mut self) -> Result<(), LinkError> {
        let written = (&*self.stream).write_all(&self.frames);
        self.frames.clear();
        written.map_err(LinkError::of_io)
    }
}

impl Drop for SocketOutgoing {
    fn drop(&mut self) {
        // The receiving half keeps the socket open. What was sent stays readable.
        if let Err(error) = self.stream.shutdown(Shutdown::Both) {
            tracing::debug!(%error, "the line was closed before");
        }
    }
}

/// Tells the parent's side that something changed; must not block.
pub type Waker = Arc<dyn Fn() + Send + Sync>;

/// The line within one process. `waker` is called after the child queued a frame, took one, or went
/// away: then look at the [`ParentHalf`] again.
#[must_use]
pub fn memory(waker: Waker) -> (Link, ParentHalf) {
    let (to_child, from_parent) = bounded(MEMORY_FRAMES);
    let (to_parent, from_child) = bounded(MEMORY_FRAMES);
    let (alive, left) = bounded(0);
    let incoming = MemoryIncoming {
        frames: from_parent,
        left,
        decoder: Decoder::default(),
        waker: Arc::clone(&waker),
    };
    let sender = Some((to_parent, alive));
    let outgoing =
        MemoryOutgoing { sender, encoder: Encoder::default(), frames: Vec::new(), waker };
    let link = Link { incoming: Box::new(incoming), outgoing: Box::new(outgoing) };
    (link, ParentHalf { to_child, from_child })
}

/// The parent's end of a [`memory`] link. It never blocks; dropping it is the parent's death.
#[derive(Debug)]
pub struct ParentHalf {
    to_child: Sender<Vec<u8>>,
    from_child: Receiver<Vec<u8>>,
}

/// What came from the child.
#[derive(Debug, PartialEq, Eq)]
pub enum Next {
    /// One encoded frame, or some that the child sent in one piece.
    Frame(Vec<u8>),
    /// Nothing yet; the waker will be called.
    Empty,
    /// The child has left, and everything that it sent was taken.
    Closed,
}

/// A frame that was not queued for the child.
#[derive(Debug, PartialEq, Eq)]
pub enum Refused {
    /// There is no room ([`MEMORY_FRAMES`]); the frame comes back. The waker will be called.
    Full(Vec<u8>),
    /// The child has left.
    Closed,
}

impl ParentHalf {
    /// Queues one encoded frame for the child.
    ///
    /// # Errors
    /// [`Refused`].
    pub fn send(&self, frame: Vec<u8>) -> Result<(), Refused> {
        self.to_child.try_send(frame).map_err(|error| match error {
            TrySendError::Full(frame) => Refused::Full(frame),
            TrySendError::Disconnected(_) => Refused::Closed,
        })
    }

    /// Pieces of the child that wait; at most [`MEMORY_FRAMES`].
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.from_child.len()
    }

    /// Takes the next frame of the child, if there is one.
    #[must_use]
    pub fn try_next(&self) -> Next {
        match self.from_child.try_recv() {
            Ok(frame) => Next::Frame(frame),
            Err(TryRecvError::Empty) => Next::Empty,
            Err(TryRecvError::Disconnected) => Next::Closed,
        }
    }
}

struct MemoryIncoming {
    frames: Receiver<Vec<u8>>,
    /// Disconnected when the sending half is dropped; nothing is ever sent on it.
    left: Receiver<std::convert::Infallible>,
    decoder: Decoder<ChildEnd>,
    waker: Waker,
}

impl Incoming for MemoryIncoming {
    fn receive(&mut self) -> Result<Option<ParentMessage>, LinkError> {
        loop {
            if let Some(message) = self.decoder.next_message() {
                return Ok(Some(message?));
            }
            let frame = select! {
                recv(self.frames) -> frame => frame.ok(),
                recv(self.left) -> _ => None,
            };
            let Some(frame) = frame else { return Ok(None) };
            (self.waker)();
            self.decoder.push(&frame);
        }
    }
}

struct MemoryOutgoing {
    /// `None` only while it is dropped.
    sender: Option<(Sender<Vec<u8>>, Sender<std::convert::Infallible>)>,
    encoder: Encoder<ChildEnd>,
    /// Encoded, and not yet queued.
    frames: Vec<u8>,
    waker: Waker,
}

impl Outgoing for MemoryOutgoing {
    fn put(&mut self, message: &ChildMessage) -> Result<(), LinkError> {
        self.encoder.frame(message, &mut self.frames)?;
        if self.frames.len() < PIECE { Ok(()) } else { self.flush() }
    }

    fn part(&mut self, bytes: &[u8]) -> Result<(), LinkError> {
        self.encoder.part_head(bytes.len(), &mut self.frames)?;
        self.frames.extend_from_slice(bytes);
        self.flush()
    }

    fn flush(&mut self) -> Result<(), LinkError> {
        let frames = std::mem::take(&mut self.frames);
        if frames.is_empty() {
            return Ok(());
        }
        let (sender, _) = self.sender.as_ref().ok_or(LinkError::Closed)?;
        sender.send(frames).map_err(|_| LinkError::Closed)?;
        (self.waker)();
        Ok(())
    }
}

impl Drop for MemoryOutgoing {
    fn drop(&mut self) {
        // First gone, then said: who is woken finds `Closed`.
        drop(self.sender.take());
        (self.waker)();
    }
}

//! A line to the parent, as the child sees it: a socket in a worker, a channel in a thread.

use std::fmt;

use delegate_protocol::{ChildMessage, FrameError, ParentMessage};

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
    /// Blocks for the next message; `None` when the parent is gone or has closed its end.
    ///
    /// # Errors
    /// When the parent sent what is not the protocol.
    fn receive(&mut self) -> Result<Option<ParentMessage>, LinkError>;
}

/// The sending half.
pub trait Outgoing: Send {
    /// Returns only after the other side (the kernel, or the channel) took every byte.
    ///
    /// # Errors
    /// When the parent is gone, or the message cannot be encoded.
    fn send(&mut self, message: &ChildMessage) -> Result<(), LinkError>;
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
    Io(#[from] std::io::Error),
    /// A frame is wrong.
    #[error(transparent)]
    Frame(#[from] FrameError),
}

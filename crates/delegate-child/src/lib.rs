//! The child side of delegation: the [`Agent`] trait, the [`Session`] it works with, and [`serve`],
//! which carries one task over one [`Link`], in a process or in a thread.
//!
//! Talks to `delegate-protocol` (what crosses the line) and `ownership` (the one way to start a
//! program). It needs no async runtime.

pub mod agent;
pub mod agents;
pub mod link;
pub mod registry;
pub mod serve;
pub mod session;
pub mod worker;

pub use agent::{Agent, Failure, Interrupted};
pub use link::{Incoming, Link, LinkError, Outgoing};
pub use registry::Registry;
pub use serve::{Host, serve};
pub use session::Session;

//! The child side of delegation: the [`Agent`] trait, the [`Session`] it works with, and [`serve()`],
//! which carries one task over one [`Link`], in a process or in a thread.
//!
//! Talks to `delegate-protocol` (what crosses the line) and `ownership` (the one way to start a
//! program). It needs no async runtime.
//!
//! ```
//! use delegate_child::{Agent, Failure, Registry, Session};
//! use serde::{Deserialize, Serialize};
//!
//! #[derive(Serialize, Deserialize)]
//! struct Range {
//!     from: u64,
//!     below: u64,
//! }
//!
//! struct Primes;
//!
//! impl Agent for Primes {
//!     const NAME: &'static str = "primes";
//!     type Params = Range;
//!     type Answer = u64;
//!
//!     fn run(&mut self, range: Range, session: &mut Session) -> Result<u64, Failure> {
//!         let mut count = 0;
//!         for n in range.from..range.below {
//!             session.checkpoint()?; // one atomic load; unwinds when asked to stop
//!             count += u64::from(n > 1 && (2..n).all(|d| n % d != 0));
//!         }
//!         session.progress("counted");
//!         Ok(count)
//!     }
//! }
//!
//! let registry = Registry::shipped().with(|| Primes);
//! assert_eq!(registry.names(), ["command", "primes"]);
//! ```
//!
//! # How one child is carried
//!
//! Three threads. The caller of [`serve()`] greets, waits for the task, and is then the only writer
//! on the line; a reader turns what the parent says into one token; the agent has a thread of its
//! own, so that beats go out while it computes.
//!
//! ```text
//! parent ──► reader ──► token ──► Session::checkpoint, a waiting sender, the running program
//! agent ──► Session ──► outbox (bounded, coalescing) ──► writer (+ beats) ──► parent
//! ```
//!
//! | module | holds |
//! |---|---|
//! | [`agent`], [`session`] | what a user writes, and what it works with |
//! | `turns` | the turns of a child that takes several prompts |
//! | [`delegation`], [`outcome`] | a child that delegates itself, and what it gets |
//! | [`registry`], [`agents`] | agents by name, and those that ship |
//! | [`link`] | the line: a socket in a worker, a channel in a thread; the same bytes on both |
//! | [`mod@serve`], [`worker`] | one task over one line; the worker role of a program |
//! | [`helper`] | helpers that children share |
//! | [`dump`] | what a process and its threads are doing, for people |
//! | [`answer`] | an answer that may be larger than memory should hold |
//! | [`schema`] | the JSON Schema that an answer must meet |

mod account;
pub mod agent;
pub mod agents;
pub mod answer;
mod asks;
mod beat;
mod cancel;
pub mod delegation;
pub mod dump;
pub mod files;
mod finish;
mod greeting;
mod guard;
pub mod helper;
mod hook;
#[doc(hidden)]
pub mod hot;
pub mod jobs;
mod kept;
pub mod keys;
pub mod link;
pub mod look;
mod mail;
mod outbox;
pub mod outcome;
mod owner_source;
mod pace;
mod queue;
pub mod registry;
pub mod schema;
mod second_turn;
pub mod serve;
pub mod session;
mod tail;
mod turns;
pub mod worker;

pub use agent::{Agent, AskError, Failure, Interrupted};
pub use answer::LongText;
pub use delegation::{Delegation, IntoOrder};
pub use files::{FileError, FileLock, Files};
pub use jobs::{Jobs, NewJob};
pub use kept::Kept;
pub use link::{Incoming, Link, LinkError, Outgoing};
pub use outcome::Outcome;
pub use owner_source::OwnerSource;
pub use registry::Registry;
pub use serve::{Ending, Host, serve, serve_beside};
pub use session::Session;
pub use turns::Bell;

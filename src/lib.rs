//! Delegate tasks to subagents, each in an OS process of its own that cannot outlive its owner.
//!
//! A parent hands a batch of [`Task`]s to a [`Delegator`]. Each runs in a worker: an OS process, or a
//! thread of this process (the same code, the oracle of every parity test). What a worker says comes
//! back as [`Event`]s and exactly one [`Outcome`] per task. Every process is started by a supervisor
//! that is its ancestor, and dies with its owner, however that ends.
//!
//! ```standalone_crate
//! use delegate_runtime::{Agent, Delegator, Event, Failure, Isolation, Session, Task};
//! use std::{error::Error, process::ExitCode, time::Duration};
//!
//! #[derive(serde::Serialize, serde::Deserialize)]
//! struct Range { from: u64, to: u64 }
//!
//! struct Primes;                                    // an agent of our own: one OS process per task
//! impl Agent for Primes {
//!     const NAME: &'static str = "primes";
//!     type Params = Range;                          // typed at both ends; a map only on the wire
//!     type Answer = u64;
//!     fn run(&mut self, r: Range, s: &mut Session) -> Result<u64, Failure> {
//!         let mut found = 0;
//!         for n in r.from..r.to {
//!             s.checkpoint()?;                      // one atomic load; Err(Interrupted) unwinds cleanly
//!             if n % 1_000 == 0 { s.progress(n) }   // content, so it counts as life
//!             found += (2..).take_while(|d| d * d <= n).all(|d| n % d != 0) as u64;
//!         }
//!         Ok(found)
//!     }
//! }
//!
//! fn main() -> ExitCode {                           // all that `main` needs; no thread exists before it
//!     delegate_runtime::workers().agent(|| Primes).or_else(host)
//! }
//!
//! #[tokio::main]
//! async fn host() -> Result<(), Box<dyn Error>> {
//!     let d = Delegator::builder().isolation(Isolation::Process).build()?;
//!     let tasks = (0..8).map(|i| Task::of::<Primes>(format!("part {i}"), Range { from: i << 10, to: (i + 1) << 10 })
//!         .timeout(Duration::from_secs(60)));
//!     let mut run = d.batch(tasks).start().await?;  // Err: nothing was started, and why
//!     let stop = run.control();                     // Clone + Send: other thread, signal handler, UI
//!     tokio::spawn(async move { tokio::signal::ctrl_c().await.ok(); stop.interrupt() });
//!     while let Some(event) = run.next().await {    // stop reading: only this batch slows down
//!         if let Event::Text { child, text } = event { println!("{child}: {text}") }
//!     }
//!     let mut primes = 0;
//!     for o in run.finish().await.results() { primes += o.answer::<Primes>()? }
//!     assert_eq!(primes, 1030);                     // 0 and 1 count here, as they have no divisor
//!     Ok(())
//! }
//! ```
//!
//! The ladder: `d.batch(tasks).run().await?` in one line, then [`Batch::start`] with events and
//! [`Control`], then [`Batch::background`] with [`Completions`]. [`blocking`] has the same without a runtime.
//!
//! Two kinds of failure: [`StartError`] means that nothing was started, and why; a child's failure is
//! a value in its [`Outcome`].

pub mod blocking;
mod workers;

pub use delegate_child::{
    Agent, AskError, Bell, Delegation, Failure, FileError, FileLock, Files, Interrupted, Jobs,
    LongText, NewJob, Registry, Session,
};
pub use delegate_core::background::{self, Announced, Completion, Completions, Dispatched, Notice};
pub use delegate_core::config;
pub use delegate_core::control;
pub use delegate_core::delegator::{Batch, Builder, Delegator, NewSession, WaitError, Which};
#[cfg(target_os = "linux")]
pub use delegate_core::launch::zygote::Account as TemplateAccount;
pub use delegate_core::monitor::Liveness;
pub use delegate_core::plan::{self, Isolation, Parent, Plan, StartError, Task};
pub use delegate_core::report::{LeftRunning, Outcome, Report, TaskFailed};
pub use delegate_core::run::{
    Branch, Control, Ended, List, Listener, LiveChild, LiveSession, ManualClock, Run, Sign,
    SteerError, Stopped, WaitingTask,
};
pub use delegate_core::session::{
    self, PromptError, SessionControl, SessionEnd, SessionHandle, Turn, TurnOutcome, Why,
};
pub use delegate_core::store;
pub use delegate_core::{file_state, jobs};
pub use delegate_protocol::envelope::{Identity, Relayed};
pub use delegate_protocol::file::{Busy, Staleness};
pub use delegate_protocol::job::Job;
pub use delegate_protocol::outcome::{AnswerError, Cause, ExitReason, Worktree};
pub use delegate_protocol::{
    ApiKey, Event, Fallback, Limit, PastTurn, Role, Routing, RunId, Status, SubagentId, TaskSpec,
    Value,
};
pub use ownership::{Containment, Ration};
pub use workers::{Workers, workers};

/// Keys of providers: pools for [`Builder::credential_pool`], and what an agent does with its own
/// ([`Session::rotate`], [`Session::permit`]).
pub mod credentials {
    pub use delegate_child::keys::{Permit, Rotation};
    pub use delegate_core::config::{CallLimits, PoolStrategy};
    pub use delegate_core::lease::authority::Authority;
    pub use delegate_core::lease::desk::look;
    pub use delegate_core::lease::pool::{Entry, PoolSpec};
    pub use delegate_core::lease::status::State;
    pub use delegate_protocol::{Fingerprint, KeyFailure};
}

/// Pages with examples in Rust, which are doctests; `tests/cli/pages.rs` looks that none is missing.
#[cfg(doctest)]
#[doc(hidden)]
pub mod pages {
    #[doc = include_str!("../docs/agents.md")]
    pub mod agents {}
    #[doc = include_str!("../docs/background.md")]
    pub mod background {}
    #[doc = include_str!("../docs/events.md")]
    pub mod events {}
    #[doc = include_str!("../docs/files.md")]
    pub mod files {}
    #[doc = include_str!("../docs/janitor.md")]
    pub mod janitor {}
    #[doc = include_str!("../docs/jobs.md")]
    pub mod jobs {}
    #[doc = include_str!("../docs/launchers.md")]
    pub mod launchers {}
    #[doc = include_str!("../docs/migration.md")]
    pub mod migration {}
    #[doc = include_str!("../docs/sessions.md")]
    pub mod sessions {}
    #[doc = include_str!("../docs/trees.md")]
    pub mod trees {}
    #[doc = include_str!("../docs/watchdog.md")]
    pub mod watchdog {}
}

#[doc(hidden)]
pub mod internal {
    //! What `test_support!` expands to. No part of the public API.
    pub use crate::workers::run_role_in_test;
    pub use delegate_core::launch::program::TestRoles;
    pub use inventory::submit;
}

//! What you start dies with you, unless you said otherwise.
//!
//! An [`Owner`] asks a *supervisor* (a small process of its own, started at the first need) to start
//! programs. The supervisor is the ancestor of everything that it starts, so `setsid` and double
//! forks do not escape; it watches the owner through a pidfd and, when the owner is gone in any way,
//! ends all of its descendants and leaves only when the kernel says that none is left.

#![cfg_attr(
    not(target_os = "linux"),
    expect(dead_code, reason = "what a spawn says is read where there is a supervisor")
)]

pub mod containment;
pub mod exempt;
pub mod exit;
pub mod file_size;
pub mod group;
#[cfg(target_os = "linux")]
pub mod handover;
#[cfg(target_os = "linux")]
#[doc(hidden)]
pub mod hot;
pub mod inherit;
#[cfg(all(target_os = "linux", feature = "ledger"))]
pub mod janitor;
#[cfg(target_os = "linux")]
pub mod journal;
#[cfg(target_os = "linux")]
pub mod keep;
#[cfg(all(target_os = "linux", feature = "ledger"))]
pub mod ledger;
pub mod owner;
pub mod page;
pub mod program;
pub mod ration;
#[cfg(target_os = "linux")]
pub mod re_executed;
#[cfg(all(target_os = "linux", feature = "ledger"))]
pub mod sight;
pub mod spawn;
#[cfg(target_os = "linux")]
pub mod template;
#[cfg(target_os = "linux")]
pub mod watchdog;
#[cfg(target_os = "linux")]
pub mod wrap;

#[cfg(target_os = "linux")]
mod attach;
#[cfg(target_os = "linux")]
mod cgroup;
#[cfg(target_os = "linux")]
mod child;
#[cfg(target_os = "linux")]
mod client;
#[cfg(not(target_os = "linux"))]
#[path = "unsupported.rs"]
mod client;
#[cfg(target_os = "linux")]
mod connection;
#[cfg(target_os = "linux")]
mod crash;
#[cfg(target_os = "linux")]
mod door;
#[cfg(target_os = "linux")]
mod escalation;
#[cfg(target_os = "linux")]
mod hook;
#[cfg(target_os = "linux")]
mod identity;
#[cfg(target_os = "linux")]
mod launch;
#[cfg(target_os = "linux")]
mod line;
#[cfg(target_os = "linux")]
mod membership;
mod number;
#[cfg(target_os = "linux")]
mod order;
#[cfg(target_os = "linux")]
mod peer;
#[cfg(target_os = "linux")]
mod pid_one;
#[cfg(target_os = "linux")]
mod protocol;
#[cfg(all(target_os = "linux", feature = "ledger"))]
mod recorder;
#[cfg(not(all(target_os = "linux", feature = "ledger")))]
#[path = "recorder_off.rs"]
mod recorder;
#[cfg(target_os = "linux")]
mod registry;
#[cfg(target_os = "linux")]
mod succession;
#[cfg(target_os = "linux")]
mod supervisor;
#[cfg(target_os = "linux")]
mod supervisor_loop;
#[cfg(target_os = "linux")]
mod sys;
#[cfg(target_os = "linux")]
mod systemd;
#[cfg(target_os = "linux")]
mod table;

pub use containment::{Containment, Machine};
pub use exempt::{ExemptJob, Exemption, Gateway, list_exempt, reattach, spawn_exempt};
pub use exit::{ChildEvent, Emptied, Exit, ExitStatus, Process, Reached, Released, Usage};
pub use group::GroupError;
#[cfg(target_os = "linux")]
pub use identity::{BootId, Identity};
#[cfg(all(target_os = "linux", feature = "ledger"))]
pub use ledger::Ledger;
pub use owner::{Owned, Owner, Scope, spawn_owned};
pub use program::Program;
pub use ration::Ration;
#[cfg(target_os = "linux")]
pub use re_executed::{NotReattached, Reattached, Returned};
pub use spawn::{Leftovers, Phase, Spawn, SpawnError};

/// The programs of the README, compiled.
#[cfg(all(doctest, feature = "ledger"))]
#[doc = include_str!("../README.md")]
mod readme {}

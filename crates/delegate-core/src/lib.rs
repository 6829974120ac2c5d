//! The parent side of delegation: configuration, plan, launch, monitor, collect, report, run.
//!
//! Imports point one way, left to right:
//! `config < plan < {tree, file_state, worktree} < jobs < lease < store < launch < monitor < collect < report < run <
//! control < {background, helper} < session < delegator`.

pub mod background;
pub mod collect;
pub mod config;
pub mod control;
pub mod delegator;
pub mod file_state;
mod helper;
pub mod jobs;
pub mod launch;
pub mod lease;
pub mod monitor;
pub mod plan;
pub mod report;
pub mod run;
pub mod session;
pub mod store;
pub mod tree;
pub mod worktree;

//! The `delegate` command as somebody meets it: the real program, real processes, real terminals.
//!
//! `rig` gives every test a home of its own; each other module is one topic.
#![expect(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    clippy::print_stderr,
    reason = "tests start the command itself, wait for facts with a deadline, and say what they skip"
)]

#[path = "../support/mod.rs"]
mod support;

mod background;
mod batch_files;
mod codes;
mod config;
mod config_edit;
mod control;
#[cfg(target_os = "linux")]
mod crowd;
mod death;
mod doctor;
mod documents;
#[cfg(target_os = "linux")]
mod environments;
#[cfg(target_os = "linux")]
mod full_files;
mod help;
mod helpers;
mod hostile;
#[cfg(target_os = "linux")]
mod janitor;
#[cfg(target_os = "linux")]
mod keys;
mod ledger;
mod many;
mod output;
mod own;
mod pages;
mod records;
mod rig;
mod sessions;
mod sessions_apart;
mod settings;
#[cfg(target_os = "linux")]
mod sight;
mod signals;
mod stock;
#[cfg(target_os = "linux")]
mod tasks;
mod terminal;
mod trees;
mod trust;
#[cfg(target_os = "linux")]
mod worktrees;

//! Runs a program that knows nothing of us under guards of its own, as if nobody stood above it: terminal, signals,
//! streams and exit status pass through, and whatever it leaves ends with it, however it ends and however we do.
//!
//! This process is the *front*: it stays the caller's child, in the caller's job. The guards are its children, in
//! its session and out of its group; the program is the supervisor's child and joins the front's group, so that
//! a terminal's signals and stops reach both. `machine` decides what follows from a signal, a stop and an end, `front`
//! waits and acts, `passed` is what was found at the start and is handed on, `report` says what was ended,
//! `terminal` knows the terminal.

mod front;
mod machine;
mod passed;
mod report;
mod terminal;

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use crate::containment::Containment;
use crate::keep::Rules;
use crate::spawn::DEFAULT_GRACE;

pub use report::EndedReport;

/// Exit status when we failed ourselves, as of env(1) and nohup(1).
pub const FAILED: u8 = 125;
/// Exit status when the program was found and could not be executed.
pub const NOT_EXECUTABLE: u8 = 126;
/// Exit status when there is no such program.
pub const NOT_FOUND: u8 = 127;

/// A program to be run under guards of its own.
#[derive(Debug)]
#[must_use = "nothing is started before Wrap::run"]
pub struct Wrap {
    program: OsString,
    args: Vec<OsString>,
    grace: Duration,
    quiet: bool,
    name: &'static str,
    report: Option<PathBuf>,
    ledger: Option<PathBuf>,
    keep: Rules,
    could_keep: Rules,
    containment: Containment,
}

impl Wrap {
    /// A program by name (looked up in `PATH`) or by path. `name` is how this command calls itself in its messages.
    pub fn new(name: &'static str, program: OsString, args: Vec<OsString>) -> Self {
        Self {
            program,
            args,
            grace: DEFAULT_GRACE,
            quiet: false,
            name,
            report: None,
            ledger: None,
            keep: Rules::default(),
            could_keep: Rules::default(),
            containment: Containment::Auto,
        }
    }

    /// Time between TERM and KILL for what is left.
    pub fn grace(mut self, grace: Duration) -> Self {
        self.grace = grace;
        self
    }

    /// Says nothing about what was ended, and keeps no copy of standard error. Failures are told all the same.
    pub fn quiet(mut self, quiet: bool) -> Self {
        self.quiet = quiet;
        self
    }

    /// Writes an [`EndedReport`] as one JSON object to this file at the end, `/dev/fd/N` included.
    pub fn report_to(mut self, file: Option<PathBuf>) -> Self {
        self.report = file;
        self
    }

    /// Writes down in this ledger what is started and how it ends. Nothing where this crate is built without one.
    pub fn ledger(mut self, file: Option<PathBuf>) -> Self {
        self.ledger = file;
        self
    }

    /// Lets live what these rules keep, with all that stands below it, however program and front end. Of the rules that
    /// there are, `all`, the line at the end names those that would have kept something.
    pub fn keep(mut self, rules: Rules, all: Rules) -> Self {
        self.keep = rules;
        self.could_keep = all;
        self
    }

    /// What holds its tree together; where it cannot be had, nothing is started.
    pub fn containment(mut self, containment: Containment) -> Self {
        self.containment = containment;
        self
    }

    /// Runs it to its end, and to the end of all that it has left. Call it while this process has one thread: it
    /// takes over the process's signals, and closes what descriptors it inherited.
    ///
    /// Gives the program's exit code, [`FAILED`], [`NOT_EXECUTABLE`] or [`NOT_FOUND`]. When a signal has ended the
    /// program, this process dies of the same one.
    #[must_use]
    pub fn run(self) -> ExitCode {
        front::run(&self)
    }
}

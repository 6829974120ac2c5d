//! Background programs of a child. The parent starts them for it and holds them, so that one can be handed over
//! while it runs; until then it is the child's, and ends with it.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// Jobs of a tree that run at once, at most.
pub const JOBS: usize = 64;

/// Jobs that one child may hand over.
pub const HAND_OFFS: usize = 3;

/// Characters of a command that are shown.
pub const COMMAND_CHARS: usize = 200;

/// Characters of the end of a job's output that are shown.
pub const TAIL_CHARS: usize = 600;

/// Characters of the purpose of a hand-over.
pub const PURPOSE_CHARS: usize = 200;

/// What is to be started.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobSpec {
    /// Program, by name or absolute path, and arguments.
    pub command: Vec<String>,
    /// Its working directory; `None`: the child's.
    pub cwd: Option<PathBuf>,
    /// Variables on top of the parent's environment. They are on no disk.
    pub env: Vec<(String, String)>,
    /// It lives on when whoever holds it has ended, and why: a sentence of at most [`PURPOSE_CHARS`], which is written
    /// down.
    #[serde(default)]
    pub persist: Option<String>,
}

/// Asked by a child.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum JobQuestion {
    /// Start this. Answered by [`JobAnswer::Job`].
    Start(JobSpec),
    /// What have I? Answered by [`JobAnswer::Jobs`].
    List,
    /// Tell me when it has ended, or how it stands by then. Answered by [`JobAnswer::Job`]; an end that is told
    /// counts as read.
    Wait {
        /// Which.
        job: u64,
        /// In milliseconds.
        wait_ms: u64,
    },
    /// End it, and all that it started. Answered by [`JobAnswer::Job`], at once.
    End {
        /// Which.
        job: u64,
    },
    /// Let it be my parent's: it runs, and lives on when I end. Answered by [`JobAnswer::Job`].
    HandOff {
        /// Which.
        job: u64,
        /// What it is for: one sentence, at most [`PURPOSE_CHARS`].
        purpose: String,
    },
}

/// Answered by the parent.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum JobAnswer {
    /// One.
    Job(Job),
    /// All of the one who asks, oldest first.
    Jobs(Vec<Job>),
}

/// A background program as it stands.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Job {
    /// Names it within its tree.
    pub id: u64,
    /// What was started; at most [`COMMAND_CHARS`].
    pub command: String,
    /// Its process: an address for messages, not an identity.
    pub pid: Option<u32>,
    /// It has ended.
    pub ended: bool,
    /// Its exit code; `None` while it runs, or when a signal ended it.
    pub exit_code: Option<i32>,
    /// The signal that ended it.
    pub signal: Option<i32>,
    /// How long it has run, in seconds.
    pub seconds: f64,
    /// What it was handed over for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub purpose: Option<String>,
    /// The end of what it has printed; at most [`TAIL_CHARS`].
    pub tail: String,
    /// Of one that lives on when whoever holds it has ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub persists: Option<Persists>,
}

/// By what a job that lives on is found again.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Persists {
    /// The id of its exemption.
    pub id: String,
    /// Why it may.
    pub reason: String,
    /// All that it prints.
    pub log: PathBuf,
}

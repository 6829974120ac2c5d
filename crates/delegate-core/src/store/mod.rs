//! Runs and results on disk: `runs.sqlite`, and one folder per child with stdout, stderr, events.
//!
//! One thread writes (the *recorder*); nothing here blocks the loop that watches deadlines.

use std::path::{Path, PathBuf};
use std::time::Duration;

use delegate_protocol::{Outcome, RunId};

/// Which file of a child.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Log {
    /// Its standard output.
    Stdout,
    /// Its standard error.
    Stderr,
    /// Its events, one JSON object per line.
    Events,
}

impl Log {
    /// Name of the file.
    #[must_use]
    pub const fn file_name(self) -> &'static str {
        match self {
            Self::Stdout => "stdout",
            Self::Stderr => "stderr",
            Self::Events => "events.jsonl",
        }
    }
}

/// One run, for lists.
#[derive(Debug, Clone, PartialEq)]
pub struct RunRecord {
    /// Its id.
    pub id: RunId,
    /// Seconds since the epoch.
    pub started_at: f64,
    /// Seconds; `None` while it runs, or when its parent died.
    pub duration_seconds: Option<f64>,
    /// `running`, `completed`, `failed`, or `unknown` when its parent died before the end.
    pub status: String,
    /// Tasks in the batch.
    pub tasks: u32,
    /// Outcomes by status word.
    pub counts: Vec<(String, u32)>,
    /// What was run, for people (a file name, or the first goal).
    pub title: String,
    /// `process` or `thread`.
    pub isolation: String,
}

/// The store could not do what was asked.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// No such run, child or file.
    #[error("{0}")]
    NotFound(String),
    /// A prefix that fits more than one run.
    #[error("`{prefix}` fits {} runs: {}", found.len(), found.join(", "))]
    Ambiguous {
        /// What was typed.
        prefix: String,
        /// Ids that fit, shortened, at most 8.
        found: Vec<String>,
    },
    /// The disk or the database refused.
    #[error("{what} {}: {reason}", path.display())]
    Io {
        /// What was tried.
        what: &'static str,
        /// Where.
        path: PathBuf,
        /// Why not.
        reason: String,
    },
}

/// Handle to the store. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Store {}

/// What a run is recorded with.
#[derive(Debug, Clone)]
pub struct NewRun {
    /// Its id.
    pub id: RunId,
    /// For people.
    pub title: String,
    /// `process` or `thread`.
    pub isolation: String,
    /// Tasks in the batch.
    pub tasks: u32,
}

impl Store {
    /// Opens the store under `state_dir` and starts its recorder thread. Never fails: where nothing
    /// can be kept on disk, outcomes live in memory until the process ends, and
    /// [`Store::take_warning`] says so.
    #[must_use]
    pub fn open(_state_dir: &Path) -> Self {
        Self {}
    }

    /// The next thing to tell a person, each once: a read-only or full disk, a network file system.
    #[must_use]
    pub fn take_warning(&self) -> Option<String> {
        None
    }

    /// Whether everything that should have been kept on disk so far was.
    #[must_use]
    pub fn is_durable(&self) -> bool {
        true
    }

    /// Records a run. Returns at once.
    pub fn begin_run(&self, _run: NewRun) {}

    /// Folder of one child, `None` when it cannot be made.
    #[must_use]
    pub fn child_dir(&self, _run: RunId, _task_index: u32) -> Option<PathBuf> {
        None
    }

    /// Appends to a file of a child. Returns at once; a slow disk drops log bytes (and says how many
    /// in the file) before it holds anybody up.
    pub fn append(&self, _run: RunId, _task_index: u32, _log: Log, _bytes: Vec<u8>) {}

    /// Stores an outcome, then calls `stored` on the recorder thread: `true` when it is on disk,
    /// `false` when it is only in memory. Later log bytes of this child are still taken.
    pub fn put_outcome(
        &self,
        _run: RunId,
        _outcome: Outcome,
        _stored: impl FnOnce(bool) + Send + 'static,
    ) {
    }

    /// Ends a run. Returns at once.
    pub fn end_run(&self, _run: RunId, _status: &'static str, _duration: Duration) {}

    /// Waits until everything said so far is written, at most this long.
    pub fn flush(&self, _at_most: Duration) {}

    /// Reads one outcome back.
    ///
    /// # Errors
    /// When there is none.
    pub fn outcome(&self, _run: RunId, _task_index: u32) -> Result<Outcome, StoreError> {
        Err(StoreError::NotFound("skeleton".into()))
    }

    /// The run that a person means by `text`: a whole id, a unique prefix of 4 or more, `latest`
    /// or `-`.
    ///
    /// # Errors
    /// None, or more than one.
    pub fn find_run(&self, _text: &str) -> Result<RunRecord, StoreError> {
        Err(StoreError::NotFound("skeleton".into()))
    }

    /// Runs, newest first.
    ///
    /// # Errors
    /// When the database cannot be read.
    pub fn runs(&self, _limit: usize) -> Result<Vec<RunRecord>, StoreError> {
        Ok(Vec::new())
    }

    /// The shortest unique prefix of a run id (4 at least).
    #[must_use]
    pub fn short_id(&self, run: RunId) -> String {
        run.to_string()[..4].to_owned()
    }
}

//! What the store takes and hands out: plain data and its error.

use std::path::PathBuf;

use delegate_protocol::RunId;
use std::sync::Arc;

use super::delivery::Delivery;
use crate::plan::Plan;

use super::database::RunRow;

/// Which file of a child.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Log {
    /// Its standard output.
    Stdout,
    /// Its standard error.
    Stderr,
    /// Its events, one JSON object per line.
    Events,
    /// The one of the run, not of a child: a JSON object per line for its begin and for each begin and end
    /// of a child.
    Manifest,
}

impl Log {
    /// Name of the file.
    #[must_use]
    pub const fn file_name(self) -> &'static str {
        match self {
            Self::Stdout => "stdout",
            Self::Stderr => "stderr",
            Self::Events => "events.jsonl",
            Self::Manifest => "manifest.jsonl",
        }
    }
}

/// The status of a run whose parent died before its end.
const UNKNOWN: &str = "unknown";

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
    /// The run and the task whose child has delegated it; `None` for one that a program started.
    pub above: Option<(RunId, u32)>,
    /// Number and start time (clock ticks since boot) of the process that began it, where they are known.
    pub process: Option<(u32, u64)>,
    /// Whoever started it does not wait for it.
    pub background: bool,
    /// How often it was resumed.
    pub resumed: u32,
    /// The run whose tasks it repeats.
    pub rerun_of: Option<RunId>,
}

impl RunRecord {
    pub(super) fn from_row(row: RunRow) -> Self {
        let RunRow {
            id,
            started_at,
            owner,
            title,
            isolation,
            tasks,
            status,
            duration_seconds,
            above,
            background,
            resumed,
            rerun_of,
            ending: _,
            begun: _,
        } = row;
        let lost = status == "running" && owner.is_gone();
        let status = if lost { UNKNOWN.to_owned() } else { status };
        let counts = Vec::new();
        let process = owner.start.map(|start| (owner.pid, start));
        let rerun_of = rerun_of.map(|(run, _)| run);
        Self {
            id,
            started_at,
            duration_seconds,
            status,
            tasks,
            counts,
            title,
            isolation,
            above,
            process,
            background,
            resumed,
            rerun_of,
        }
    }

    /// With all its counts: of a run whose parent died the tasks without an outcome are `unknown`. One that
    /// has them all had only its end to write.
    pub(super) fn settled(mut self) -> Self {
        if self.status != UNKNOWN {
            return self;
        }
        let known: u32 = self.counts.iter().map(|(_, count)| count).sum();
        match self.tasks.saturating_sub(known) {
            0 => {
                let completed = self.counts.iter().all(|(word, _)| word == "completed");
                (if completed { "completed" } else { "failed" }).clone_into(&mut self.status);
            }
            missing => self.count(UNKNOWN, missing),
        }
        self
    }

    pub(super) fn count(&mut self, status: &str, more: u32) {
        match self.counts.iter_mut().find(|(word, _)| word == status) {
            Some((_, count)) => *count += more,
            None => self.counts.push((status.to_owned(), more)),
        }
    }
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
    /// The run and the task whose child has delegated it.
    pub above: Option<(RunId, u32)>,
    /// Whoever started it does not wait for it.
    pub background: bool,
    /// The run whose tasks these are, and their positions there.
    pub rerun_of: Option<(RunId, Vec<u32>)>,
    /// What there is to store with its begin.
    pub begun: Option<Arc<Begun>>,
}

impl NewRun {
    /// One in the foreground, of which nothing is kept but its outcomes.
    #[must_use]
    pub fn new(id: RunId, title: &str, isolation: &str, tasks: u32) -> Self {
        let (title, isolation) = (title.to_owned(), isolation.to_owned());
        Self {
            id,
            title,
            isolation,
            tasks,
            background: false,
            rerun_of: None,
            begun: None,
            above: None,
        }
    }
}

/// What is stored once, with the begin of a run.
#[derive(Debug, Clone, Default)]
pub struct Begun {
    /// The tasks are kept, so that the run can be resumed; with what is known besides them, as JSON.
    pub kept: Option<(Arc<Plan>, String)>,
    /// Completions that will be due.
    pub deliveries: Vec<Delivery>,
}

//! What a batch hands back: [`Report`], plain data for consumers. Texts are read back from the store.

use std::ops::Deref;
use std::time::Duration;

use delegate_child::Agent;
use delegate_protocol::outcome::AnswerError;
use delegate_protocol::{RunId, Status};

use crate::store::Store;

/// The outcome of one task. Derefs to its entry ([`delegate_protocol::Outcome`]).
#[derive(Debug, Clone, PartialEq)]
pub struct Outcome(pub(crate) delegate_protocol::Outcome);

impl Outcome {
    /// The typed answer of an agent.
    ///
    /// # Errors
    /// When the task did not complete, or the answer is of another type.
    pub fn answer<A: Agent>(&self) -> Result<A::Answer, AnswerError> {
        self.0.parse_answer()
    }

    /// The entry.
    #[must_use]
    pub fn into_entry(self) -> delegate_protocol::Outcome {
        self.0
    }
}

impl Deref for Outcome {
    type Target = delegate_protocol::Outcome;
    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

/// Something that could not be ended: a process that waits in the kernel.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct LeftRunning {
    /// Which task started it.
    pub task_index: u32,
    /// Its pid when it was seen.
    pub pid: Option<u32>,
    /// Its name, or what is known of it.
    pub name: String,
    /// Why it is still there.
    pub why: String,
}

/// The end of a batch.
#[derive(Debug)]
#[must_use]
pub struct Report {
    pub(crate) run_id: RunId,
    pub(crate) store: Store,
    /// Status of each task, in task order: the one small record per outcome that stays in memory.
    pub(crate) statuses: Vec<Status>,
    pub(crate) left_running: Vec<LeftRunning>,
    /// Whether the kernel confirmed that every scope is empty.
    pub(crate) verified: bool,
    pub(crate) warnings: Vec<String>,
    pub(crate) total: Duration,
}

impl Report {
    /// Id of the run.
    #[must_use]
    pub const fn run_id(&self) -> RunId {
        self.run_id
    }

    /// Results in task order, read back from the store one at a time.
    pub fn results(&self) -> impl Iterator<Item = Outcome> + '_ {
        (0_u32..)
            .take(self.statuses.len())
            .filter_map(|index| self.store.outcome(self.run_id, index).ok().map(Outcome))
    }

    /// Status of each task, in task order.
    #[must_use]
    pub fn statuses(&self) -> &[Status] {
        &self.statuses
    }

    /// Whether every task completed.
    #[must_use]
    pub fn all_completed(&self) -> bool {
        self.statuses.iter().all(|status| *status == Status::Completed)
    }

    /// What is still there, and why. Empty in the normal case.
    #[must_use]
    pub fn left_running(&self) -> &[LeftRunning] {
        &self.left_running
    }

    /// Whether the kernel confirmed that nothing of this batch is left.
    #[must_use]
    pub const fn verified_empty(&self) -> bool {
        self.verified
    }

    /// Things that a person should know: outcomes that could not be stored, and such.
    #[must_use]
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }

    /// From start to end.
    #[must_use]
    pub const fn total_duration(&self) -> Duration {
        self.total
    }
}

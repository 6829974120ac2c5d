//! [`Dispatched`]: what whoever dispatches a background run gets back at once.

use std::path::PathBuf;

use delegate_protocol::{RunId, SubagentId};
use serde::Serialize;

/// A part of a run with a completion of its own.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Unit {
    /// `<run>-1`, `<run>-2` and so on.
    pub delegation_id: String,
    /// The group of its tasks.
    pub group: Option<String>,
    /// Its tasks.
    pub task_indexes: Vec<u32>,
}

/// The handle of a background run. Nothing depends on it: dropping it changes nothing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Dispatched {
    /// `dispatched`.
    pub status: &'static str,
    /// `background`.
    pub mode: &'static str,
    /// The run.
    pub delegation_id: RunId,
    /// Tasks.
    pub count: usize,
    /// What they are to do.
    pub goals: Vec<String>,
    /// Their children.
    pub subagent_ids: Vec<SubagentId>,
    /// What can be followed of each child, once it runs.
    pub live_transcripts: Vec<PathBuf>,
    /// With independent completions: the parts. Empty: the run has one completion.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub units: Vec<Unit>,
    /// From 1: it waits in line for a place.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub position: Option<usize>,
    /// Why it waits.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}

impl Dispatched {
    /// The run.
    #[must_use]
    pub const fn id(&self) -> RunId {
        self.delegation_id
    }
}

impl From<&Dispatched> for RunId {
    fn from(dispatched: &Dispatched) -> Self {
        dispatched.delegation_id
    }
}

impl From<Dispatched> for RunId {
    fn from(dispatched: Dispatched) -> Self {
        dispatched.delegation_id
    }
}

/// The name of a completion: that of the run, with the number of its unit where it has several.
pub(super) fn delegation_id(run: RunId, unit: u32) -> String {
    if unit == 0 { run.to_string() } else { format!("{run}-{unit}") }
}

impl Unit {
    pub(crate) fn new(run: RunId, unit: u32, group: Option<String>, tasks: Vec<u32>) -> Self {
        Self { delegation_id: delegation_id(run, unit), group, task_indexes: tasks }
    }
}

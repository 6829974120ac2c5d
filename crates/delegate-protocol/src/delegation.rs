//! What crosses the line when a child delegates: what it wants done, and what it is told of it. Asked and
//! answered through [`crate::ask`]; the root launches, and so decides.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::event::Event;
use crate::id::RunId;
use crate::outcome::Outcome;
use crate::value::Value;

/// Bytes of a summary in one [`Told`]; a longer one comes in pieces before its outcome.
pub const SUMMARY_PIECE: usize = 4 * 1024 * 1024;

/// One task of a child that delegates. Plain data with the names that a batch has; built by the `Task` of the
/// delegating API.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Order {
    /// Name of the agent.
    pub agent: String,
    /// What to do.
    pub goal: String,
    /// What to know.
    pub context: Option<String>,
    /// Parameters of the agent.
    pub params: Value,
    /// Wall clock of its own, in milliseconds.
    pub timeout_ms: Option<u64>,
    /// Working directory; `None` is that of the child that delegates.
    pub cwd: Option<PathBuf>,
    /// Paths or URLs.
    pub images: Vec<String>,
    /// Delivery bucket.
    pub group: Option<String>,
    /// Toolsets, of those that the child that delegates has.
    pub toolsets: Option<Vec<String>>,
    /// W3C trace context.
    pub traceparent: Option<String>,
    /// Opaque.
    pub metadata: BTreeMap<String, Value>,
    /// JSON Schema of the answer.
    pub output_schema: Option<Value>,
    /// Whether it works in a git worktree of its own; `None` is the setting.
    pub worktree_isolation: Option<bool>,
}

impl Order {
    /// A task with nothing but an agent, a goal and parameters.
    #[must_use]
    pub fn new(agent: impl Into<String>, goal: impl Into<String>, params: Value) -> Self {
        Self {
            agent: agent.into(),
            goal: goal.into(),
            context: None,
            params,
            timeout_ms: None,
            cwd: None,
            images: Vec::new(),
            group: None,
            toolsets: None,
            traceparent: None,
            metadata: BTreeMap::new(),
            output_schema: None,
            worktree_isolation: None,
        }
    }
}

/// What a child wants done.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Work {
    /// These tasks.
    Tasks(Vec<Order>),
    /// What its model asked for: the arguments of a `delegate_task` call.
    Call {
        /// As the model gave them.
        arguments: Value,
        /// The agent of each task.
        agent: String,
    },
}

/// The next thing to know of a delegation.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Told {
    /// What its children did since the last time, in order; only where events were asked for.
    Events(Vec<Event>),
    /// A piece of the summary of the outcome that follows.
    Summary(String),
    /// The next outcome, in the order of the tasks; only after the last event.
    Outcome(Box<Outcome>),
    /// That was all; the delegation is forgotten.
    Over,
}

/// A delegation that was started.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Delegated {
    /// Its run: outcomes and logs are kept under this id.
    pub run: RunId,
    /// Tasks in it.
    pub tasks: u32,
}

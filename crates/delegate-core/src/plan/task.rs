//! [`Task`]: one task as a caller gives it.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use delegate_child::Agent;
use delegate_protocol::Value;

/// One task of a batch.
#[derive(Debug, Clone, PartialEq)]
#[must_use]
pub struct Task {
    pub(crate) agent: String,
    pub(crate) goal: String,
    pub(crate) context: Option<String>,
    pub(crate) params: Result<Value, String>,
    pub(crate) timeout: Option<Duration>,
    pub(crate) cwd: Option<PathBuf>,
    pub(crate) images: Vec<String>,
    pub(crate) group: Option<String>,
    pub(crate) traceparent: Option<String>,
    pub(crate) metadata: BTreeMap<String, Value>,
    /// Where it was written, such as `quickstart.yaml:14`, for messages about its limit.
    pub(crate) origin: Option<String>,
}

impl Task {
    /// A task for an agent by name, without parameters.
    pub fn new(agent: impl Into<String>, goal: impl Into<String>) -> Self {
        Self {
            agent: agent.into(),
            goal: goal.into(),
            context: None,
            params: Ok(Value::Null),
            timeout: None,
            cwd: None,
            images: Vec::new(),
            group: None,
            traceparent: None,
            metadata: BTreeMap::new(),
            origin: None,
        }
    }

    /// A task for an agent of this program, with its typed parameters.
    pub fn of<A: Agent>(goal: impl Into<String>, params: A::Params) -> Self {
        let params = Value::from_typed(&params).map_err(|error| error.to_string());
        Self { params, ..Self::new(A::NAME, goal) }
    }

    /// Untyped parameters.
    pub fn params(mut self, params: Value) -> Self {
        self.params = Ok(params);
        self
    }

    /// What to know.
    pub fn context(mut self, context: impl Into<String>) -> Self {
        self.context = Some(context.into());
        self
    }

    /// Wall clock from the child's own start; instead of `child_timeout_seconds`.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }

    /// Working directory of what the agent starts.
    pub fn cwd(mut self, cwd: impl Into<PathBuf>) -> Self {
        self.cwd = Some(cwd.into());
        self
    }

    /// W3C trace context.
    pub fn traceparent(mut self, traceparent: impl Into<String>) -> Self {
        self.traceparent = Some(traceparent.into());
        self
    }

    /// Something opaque to us that the agent gets.
    pub fn metadata(mut self, key: impl Into<String>, value: Value) -> Self {
        self.metadata.insert(key.into(), value);
        self
    }
}

//! [`Task`]: one task as a caller gives it. Made by a builder here or by `batch_file`; checked by
//! [`crate::plan::plan`].

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use delegate_child::Agent;
use delegate_protocol::Value;

/// Where in a batch file something was written. Shows itself as `file:line`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Origin {
    /// The file as it was named.
    pub file: Arc<Path>,
    /// Line, from 1.
    pub line: u32,
    /// Column, from 1.
    pub column: u32,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.file.display(), self.line)
    }
}

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
    /// Where it was written, for messages about it.
    pub(crate) origin: Option<Origin>,
    /// Where its own limit was written: with it, or in `defaults`.
    pub(crate) timeout_origin: Option<Origin>,
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
            timeout_origin: None,
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

    /// Paths or URLs of images, at most [`crate::plan::MAX_IMAGES`].
    pub fn images(mut self, images: impl IntoIterator<Item = impl Into<String>>) -> Self {
        self.images = images.into_iter().map(Into::into).collect();
        self
    }

    /// Delivery bucket.
    pub fn group(mut self, group: impl Into<String>) -> Self {
        self.group = Some(group.into());
        self
    }

    /// Name of its agent.
    #[must_use]
    pub fn agent(&self) -> &str {
        &self.agent
    }

    /// What to do.
    #[must_use]
    pub fn goal(&self) -> &str {
        &self.goal
    }

    /// Its own limit, as given.
    #[must_use]
    pub const fn own_timeout(&self) -> Option<Duration> {
        self.timeout
    }

    /// Where it was written; `None` for a task that a program built.
    #[must_use]
    pub const fn origin(&self) -> Option<&Origin> {
        self.origin.as_ref()
    }

    /// Where its own limit was written; `None` when it has none, or a program built it.
    #[must_use]
    pub const fn timeout_origin(&self) -> Option<&Origin> {
        self.timeout_origin.as_ref()
    }
}

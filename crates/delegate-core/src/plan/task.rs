//! [`Task`]: one task as a caller gives it. Made by a builder here or by `batch_file`; checked by
//! [`crate::plan::plan`].

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use delegate_child::Agent;
use delegate_protocol::{Value, codec};

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

/// Parameters (or a schema), encoded as they cross the line: as a tree they take ten times the memory, and a batch
/// may be long. Clones share them, so those of `defaults` are there once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Params(Result<Option<Arc<[u8]>>, String>);

impl Default for Params {
    /// None, which is [`Value::Null`].
    fn default() -> Self {
        Self(Ok(None))
    }
}

impl Params {
    pub(crate) fn new(value: &Value) -> Self {
        if *value == Value::Null {
            return Self::default();
        }
        match codec::to_bytes(value) {
            Ok(bytes) => Self(Ok(Some(bytes.into()))),
            Err(error) => Self::refused(error.to_string()),
        }
    }

    /// Those that could not become data, and why.
    pub(crate) const fn refused(reason: String) -> Self {
        Self(Err(reason))
    }

    /// As data again.
    ///
    /// # Errors
    /// Why they cannot be.
    pub(crate) fn value(&self) -> Result<Value, String> {
        match &self.0 {
            Ok(None) => Ok(Value::Null),
            Ok(Some(bytes)) => codec::from_bytes(bytes).map_err(|error| error.to_string()),
            Err(reason) => Err(reason.clone()),
        }
    }
}

/// One task of a batch.
#[derive(Debug, Clone, PartialEq)]
#[must_use]
pub struct Task {
    pub(crate) agent: String,
    pub(crate) goal: String,
    pub(crate) context: Option<String>,
    pub(crate) params: Params,
    pub(crate) timeout: Option<Duration>,
    pub(crate) cwd: Option<PathBuf>,
    pub(crate) images: Vec<String>,
    pub(crate) group: Option<String>,
    pub(crate) toolsets: Option<Vec<String>>,
    /// `None`: as the setting says.
    pub(crate) worktree_isolation: Option<bool>,
    pub(crate) traceparent: Option<String>,
    pub(crate) metadata: BTreeMap<String, Value>,
    /// It is the task of a session: its agent takes prompts.
    pub(crate) in_turns: bool,
    pub(crate) output_schema: Params,
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
            params: Params::default(),
            timeout: None,
            cwd: None,
            images: Vec::new(),
            group: None,
            toolsets: None,
            worktree_isolation: None,
            traceparent: None,
            metadata: BTreeMap::new(),
            in_turns: false,
            output_schema: Params::default(),
            origin: None,
            timeout_origin: None,
        }
    }

    /// A task for an agent of this program, with its typed parameters.
    pub fn of<A: Agent>(goal: impl Into<String>, params: A::Params) -> Self {
        let params = match Value::from_typed(&params) {
            Ok(value) => Params::new(&value),
            Err(error) => Params::refused(error.to_string()),
        };
        Self { params, ..Self::new(A::NAME, goal) }
    }

    /// Untyped parameters.
    pub fn params(mut self, params: Value) -> Self {
        self.params = Params::new(&params);
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

    /// JSON Schema that the answer must meet. One that is malformed refuses the whole batch.
    pub fn output_schema(mut self, schema: Value) -> Self {
        self.output_schema = Params::new(&schema);
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

    /// Toolsets that it may use, of those that its parent has. Without a list: all of them.
    pub fn toolsets(mut self, names: impl IntoIterator<Item = impl Into<String>>) -> Self {
        self.toolsets = Some(names.into_iter().map(Into::into).collect());
        self
    }

    /// Whether it works in a git worktree of its own. Default: the setting `worktree_isolation`.
    pub const fn worktree_isolation(mut self, isolated: bool) -> Self {
        self.worktree_isolation = Some(isolated);
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

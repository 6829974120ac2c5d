//! [`Batch`]: what is to be started, and how; decided by [`crate::plan`], started by its delegator.

use std::sync::Arc;

use delegate_protocol::Value;

use super::Delegator;
use crate::plan::{Parent, Plan, StartError, Task};
use crate::report::Report;
use crate::run::{Branch, Listener, Run};

/// A batch to be started.
#[must_use = "nothing runs before start"]
pub struct Batch {
    pub(super) listener: Option<Arc<dyn Listener>>,
    pub(super) delegator: Delegator,
    /// Empty once they are planned.
    pub(super) tasks: Vec<Task>,
    /// Instead of tasks: a model's arguments, and the agent.
    pub(super) call: Option<(Value, String)>,
    pub(super) parent: Option<Box<Parent>>,
    /// Made once, however often it is asked for: the tasks may be many.
    pub(super) plan: Option<Plan>,
    pub(super) title: Option<String>,
    pub(super) session: Option<String>,
    pub(super) branch: Option<Branch>,
}

impl std::fmt::Debug for Batch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Batch").field("title", &self.title).finish_non_exhaustive()
    }
}

impl Batch {
    /// What lists show for it. Default: the first goal.
    pub fn title(mut self, title: impl Into<String>) -> Self {
        self.title = Some(title.into());
        self
    }

    /// The conversation that it belongs to: an opaque key, for [`Delegator::operator`]. Default: the
    /// session of its parent.
    pub fn session(mut self, key: impl Into<String>) -> Self {
        self.session = Some(key.into());
        self
    }

    /// Where it hangs in the tree: it is stopped with that branch, also when that was stopped before.
    pub fn branch(mut self, branch: &Branch) -> Self {
        self.branch = Some(branch.clone());
        self
    }

    /// Who is called when a child starts, has stopped, or is still there.
    pub fn listener(mut self, listener: impl Listener + 'static) -> Self {
        self.listener = Some(Arc::new(listener));
        self
    }

    /// The agent that delegates, of which the children inherit. Default: a program of its own, at
    /// depth 0. Forgets a plan that was made before.
    pub fn parent(mut self, parent: Parent) -> Self {
        if let Some(mut plan) = self.plan.take() {
            self.tasks = std::mem::take(&mut plan.tasks);
        }
        self.parent = Some(Box::new(parent));
        self
    }

    /// Its tasks in order.
    pub fn tasks(&self) -> &[Task] {
        self.plan.as_ref().map_or(&self.tasks, |plan| &plan.tasks)
    }

    /// The decisions, without starting anything. Made once: [`Batch::start`] carries out these.
    ///
    /// # Errors
    /// As [`Batch::start`].
    pub fn plan(&mut self) -> Result<&Plan, StartError> {
        let plan = self.made(When::ToLook)?;
        Ok(self.plan.insert(plan))
    }

    fn made(&mut self, when: When) -> Result<Plan, StartError> {
        match (self.plan.take(), &self.call) {
            (Some(plan), _) => Ok(plan),
            (None, None) => self.delegator.plan(&mut self.tasks, self.parent.as_deref(), when),
            (None, Some((arguments, agent))) => {
                self.delegator.plan_call(arguments, agent, self.parent.as_deref(), when)
            }
        }
    }

    /// Starts it.
    ///
    /// # Errors
    /// Nothing was started, and why.
    pub async fn start(self) -> Result<Run, StartError> {
        self.start_blocking()
    }

    /// Blocking twin of [`Batch::start`].
    ///
    /// # Errors
    /// Nothing was started, and why.
    pub fn start_blocking(mut self) -> Result<Run, StartError> {
        let plan = self.made(When::ToStart)?;
        let title = self.title.or_else(|| plan.tasks.first().map(|task| task.goal().to_owned()));
        let parent = self.parent.as_ref().and_then(|parent| parent.session_id.clone());
        let beginning = Beginning {
            title: title.unwrap_or_default(),
            listener: self.listener,
            session: self.session.or(parent),
            branch: self.branch,
        };
        self.delegator.start(plan, beginning)
    }

    /// Starts it and waits for the end.
    ///
    /// # Errors
    /// Nothing was started, and why.
    pub async fn run(self) -> Result<Report, StartError> {
        Ok(self.start().await?.finish().await)
    }
}

/// What a plan is made for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum When {
    ToLook,
    ToStart,
}

/// What a batch brings along besides its plan.
#[derive(Default)]
pub(super) struct Beginning {
    pub(super) title: String,
    pub(super) listener: Option<Arc<dyn Listener>>,
    pub(super) session: Option<String>,
    pub(super) branch: Option<Branch>,
}

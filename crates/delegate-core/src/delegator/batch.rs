//! [`Batch`]: what is to be started, and how; decided by [`crate::plan`], started by its delegator.

use std::sync::Arc;

use delegate_protocol::{RunId, Value};

use super::Delegator;
use super::again::Earlier;
use super::background::Captured;
use crate::plan::{Isolation, Parent, Plan, StartError, Task};
use crate::report::Report;
use crate::run::turns::Turns;
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
    /// Instead of the delegator's.
    pub(super) isolation: Option<Isolation>,
    pub(super) resumable: bool,
    pub(super) detached: bool,
    pub(super) note: Option<String>,
    /// It goes on with an earlier run, or repeats it.
    pub(super) from: Option<Earlier>,
    /// Its one task takes prompts, from there.
    pub(super) turns: Option<Turns>,
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

    /// Stores its tasks, so that the run can be resumed ([`Delegator::resume_run`]) or repeated
    /// ([`Delegator::rerun`]): all of them but texts that may be secrets (each value of `env`, and what is
    /// named as a secret), and tasks of more than 4 MiB. Without this nothing of a task is stored.
    pub fn resumable(mut self) -> Self {
        self.resumable = true;
        self
    }

    /// The same, with a text of yours, such as the options that it was started with
    /// ([`crate::store::KeptRun::facts`]).
    pub fn resumable_with(mut self, note: impl Into<String>) -> Self {
        self.note = Some(note.into());
        self.resumable()
    }

    /// Whoever wants it does not wait for it, because this process was made for it: lists say so. To have
    /// this process go on, see [`Batch::background`].
    pub fn detached(mut self) -> Self {
        self.detached = true;
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
            (None, None) => {
                let again = self.from.as_ref().and_then(|from| from.again.clone());
                let (parent, again) = (self.parent.as_deref(), again.as_deref());
                let stored = (self.isolation, again);
                let plan = self.delegator.plan(&mut self.tasks, parent, stored, when)?;
                self.check_given(plan)
            }
            (None, Some((arguments, agent))) => {
                self.delegator.plan_call(arguments, agent, self.parent.as_deref(), when)
            }
        }
    }

    /// What is never stored must have been given again.
    fn check_given(&mut self, mut plan: Plan) -> Result<Plan, StartError> {
        let wrong = self.from.as_ref().and_then(|Earlier { run, keyed, by_agent, .. }| {
            let run = *run;
            match keyed {
                _ if *by_agent && self.parent.is_none() => Some(StartError::ParentNotGiven { run }),
                Some(route) if !plan.is_keyed() => {
                    Some(StartError::KeyNotGiven { run, route: route.clone() })
                }
                _ => None,
            }
        });
        match wrong {
            None => Ok(plan),
            Some(error) => {
                self.tasks = std::mem::take(&mut plan.tasks);
                Err(error)
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
    pub fn start_blocking(self) -> Result<Run, StartError> {
        Ok(self.start_with(None)?.0)
    }

    /// Starts it with what was captured for its completions; also its place in line.
    pub(super) fn start_captured(
        self,
        origin: String,
    ) -> Result<(Run, Arc<Plan>, Option<usize>), StartError> {
        let (run, position) = self.start_with(Some(origin))?;
        let plan = run.plan();
        Ok((run, plan, position))
    }

    fn start_with(mut self, origin: Option<String>) -> Result<(Run, Option<usize>), StartError> {
        let mut plan = self.made(When::ToStart)?;
        let turns = self.turns.take();
        if turns.is_some() {
            // Between two turns it does nothing: limits of time are those of its turns.
            plan.settings.child_timeout = None;
            plan.settings.child_inactivity = None;
        }
        let note = self.note.take();
        let kept = self.resumable.then(|| serde_json::to_string(&plan.kept_facts(note)).ok());
        let from = self.from.take();
        let title = self.title.or_else(|| plan.tasks.first().map(|task| task.goal().to_owned()));
        let parent = self.parent.as_ref().and_then(|parent| parent.session_id.clone());
        let session = self.session.or(parent);
        let resumes = from.as_ref().filter(|from| from.again.is_some()).map(|from| from.run);
        let rerun_of = from.filter(|from| from.again.is_none()).map(|from| (from.run, from.tasks));
        let beginning = Beginning {
            title: title.unwrap_or_default(),
            listener: self.listener,
            background: self.detached || origin.is_some(),
            captured: origin.map(|origin| Captured { origin, session: session.clone() }),
            session,
            branch: self.branch,
            kept: kept.flatten(),
            resumes,
            rerun_of,
            turns,
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
    /// It is in the background of this process.
    pub(super) captured: Option<Captured>,
    /// What is stored besides its tasks.
    pub(super) kept: Option<String>,
    pub(super) background: bool,
    pub(super) resumes: Option<RunId>,
    pub(super) rerun_of: Option<(RunId, Vec<u32>)>,
    pub(super) turns: Option<Turns>,
}

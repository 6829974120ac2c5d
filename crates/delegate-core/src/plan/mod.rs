//! From tasks and settings to decisions: what runs, how it is isolated, with which limits.

pub mod batch_file;
pub mod task;

use delegate_protocol::TaskSpec;

use crate::config::{Diagnostic, Settings};

pub use task::Task;

/// What the caller asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Isolation {
    /// An OS process per task. A requirement: where it cannot be met nothing starts.
    Process,
    /// A thread of this process per task.
    Thread,
    /// Processes for a batch of two or more, a thread for a single task.
    #[default]
    Auto,
}

/// Nothing was started, and why.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// No task was given.
    #[error("the batch has no task; nothing was started")]
    EmptyBatch,
    /// More tasks than `max_batch_size`.
    #[error("the batch has {given} tasks, max_batch_size is {limit}; nothing was started")]
    TooManyTasks {
        /// Tasks given.
        given: usize,
        /// The setting.
        limit: u32,
    },
    /// A task without a goal.
    #[error("task {task}: the goal is blank; nothing was started")]
    BlankGoal {
        /// Which task.
        task: usize,
    },
    /// A task names an agent that this program does not have.
    #[error("task {task} ({goal:?}): there is no agent `{agent}` here; known: {}; nothing was started", known.join(", "))]
    UnknownAgent {
        /// Which task.
        task: usize,
        /// Its goal, shortened.
        goal: String,
        /// The name.
        agent: String,
        /// Names that exist.
        known: Vec<String>,
    },
    /// A task that would not arrive as it is.
    #[error("task {task} ({goal:?}): {source}; nothing was started")]
    Crossing {
        /// Which task.
        task: usize,
        /// Its goal, shortened.
        goal: String,
        /// The field and the reason.
        source: delegate_protocol::spec::CrossingError,
    },
    /// This system has no process isolation yet.
    #[error(
        "process isolation is not available on {os} yet: set isolation to thread; nothing was started"
    )]
    Unsupported {
        /// Name of the system.
        os: &'static str,
    },
    /// This program is not its own worker.
    #[error(
        "cannot isolate tasks: this program is not its own worker. Begin main with \
         delegate_runtime::workers().agent(…).or_else(host) (in tests: \
         delegate_runtime::test_support!()), or set isolation to thread, or give worker.command; \
         nothing was started"
    )]
    NotItsOwnWorker,
    /// A setting is wrong.
    #[error("{0}; nothing was started")]
    Config(Box<Diagnostic>),
    /// The delegator was made in another process (a fork).
    #[error(
        "this delegator belongs to process {owner}; a forked copy cannot use it; nothing was started"
    )]
    ForeignProcess {
        /// The process that opened it.
        owner: u32,
    },
    /// The system refused something that is needed before any child.
    #[error("{what}: {source}; nothing was started")]
    System {
        /// What was tried.
        what: &'static str,
        /// The system's answer.
        source: std::io::Error,
    },
}

/// Decisions for one batch. Specs are built one at a time ([`Plan::spec`]), so that a long batch
/// costs its task list and no more.
#[derive(Debug)]
pub struct Plan {
    /// Where every child runs.
    pub isolation: delegate_protocol::Isolation,
    /// Why, for `--explain`.
    pub reason: String,
    /// The tasks in order.
    pub tasks: Vec<Task>,
    /// The settings that were used.
    pub settings: Settings,
}

impl Plan {
    /// The spec of one task; a new subagent id at each call.
    ///
    /// # Panics
    /// When `index` is not a task of this plan.
    #[must_use]
    pub fn spec(&self, _index: usize) -> TaskSpec {
        unimplemented!("skeleton")
    }
}

/// Decides. Checks every task, and that every spec survives the line, before anything starts.
///
/// # Errors
/// [`StartError`]; nothing was started.
pub fn plan(
    tasks: Vec<Task>,
    settings: &Settings,
    asked: Option<Isolation>,
    agents: &[String],
) -> Result<Plan, StartError> {
    let _ = (asked, agents);
    Ok(Plan {
        isolation: delegate_protocol::Isolation::Thread,
        reason: String::new(),
        tasks,
        settings: settings.clone(),
    })
}

//! [`StartError`]: nothing was started, and why.

use std::fmt;

use delegate_protocol::RunId;

use crate::config::Diagnostic;

/// Nothing was started, and why.
///
/// Its `Debug` is its text: a `main` that returns an error shows that form, and the remedy must not be
/// lost there.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// A call that a model made, and nobody said which agent it was.
    #[error(
        "the call has no parent agent: give the agent that delegates (Batch::parent); nothing was \
         started"
    )]
    NoParent,
    /// The arguments of a call are wrong.
    #[error("{reason}; nothing was started")]
    InvalidCall {
        /// What is wrong, with the number of the task.
        reason: String,
    },
    /// The caller is as deep as agents may be.
    #[error(
        "an agent at depth {depth} may not delegate, max_spawn_depth is {limit}; nothing was started"
    )]
    TooDeep {
        /// Of the caller; 0 is the root.
        depth: u32,
        /// The setting.
        limit: u32,
    },
    /// A child wants to delegate, and none may.
    #[error(
        "an agent at depth {depth} may not delegate, orchestrator_enabled is false; nothing was started"
    )]
    NoOrchestrators {
        /// Of the caller.
        depth: u32,
    },
    /// Model, endpoint and key of the children cannot be found.
    #[error("{source}; nothing was started")]
    NoRoute {
        /// Why.
        source: super::routing::RouteError,
    },
    /// What an agent loop does for a child before its start has failed.
    #[error("task {task} ({goal:?}) cannot be built: {reason}; nothing was started")]
    NotBuilt {
        /// Which task.
        task: usize,
        /// Its goal, shortened.
        goal: String,
        /// In the builder's words.
        reason: String,
    },
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
    /// A session of an agent that does not take prompts.
    #[error(
        "agent `{agent}` takes no turns, so it has no sessions: give it `Agent::turn` and `TAKES_TURNS`, or \
         delegate a task to it; nothing was started"
    )]
    TakesNoTurns {
        /// The name.
        agent: String,
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
    /// A task that is wrong in itself.
    #[error("task {task} ({goal:?}): {reason}; nothing was started")]
    InvalidTask {
        /// Which task.
        task: usize,
        /// Its goal, shortened.
        goal: String,
        /// What is wrong with it.
        reason: String,
    },
    /// This system has no process isolation yet.
    #[error(
        "process isolation is not available on {os} yet: set isolation to thread; nothing was started"
    )]
    Unsupported {
        /// Name of the system.
        os: &'static str,
    },
    /// What is to hold children together cannot be had here.
    #[error(
        "containment {asked} cannot be had here: {why}; set containment to auto, or see `delegate \
         doctor`; nothing was started"
    )]
    NoContainment {
        /// What was asked for.
        asked: &'static str,
        /// Why not.
        why: String,
    },
    /// A limit of what a child may use cannot be held here.
    #[error(
        "{key} cannot be held here: {why}; set it to null, or see `delegate doctor`; nothing was started"
    )]
    NoLimit {
        /// The setting.
        key: &'static str,
        /// Why not.
        why: String,
    },
    /// A task is to have a git worktree of its own, and can have none.
    #[error(
        "task {task} can have no git worktree of its own in {}: {why}; give it a `cwd` in a repository with a \
         commit, or set worktree_isolation to false; nothing was started", dir.display()
    )]
    NoWorktree {
        /// Which task.
        task: usize,
        /// Its directory.
        dir: std::path::PathBuf,
        /// Why not.
        why: String,
    },
    /// This program is not its own worker.
    #[error(
        "cannot isolate tasks: this program is not its own worker. Begin main with \
         delegate_runtime::workers().agent(…).or_else(host) (in tests: \
         delegate_runtime::test_support!()), or set isolation to thread, or give worker.command; \
         nothing was started"
    )]
    NotItsOwnWorker,
    /// Every place of background runs is taken, and `background_overflow` is `refuse`.
    #[error(
        "{running} background runs go on, max_concurrent_children is {limit}: wait for one of them, or set \
         background_overflow to wait; nothing was started"
    )]
    BackgroundFull {
        /// Those that have a place.
        running: usize,
        /// The setting.
        limit: u32,
    },
    /// What is stored of the run does not name its tasks.
    #[error(
        "the tasks of run {run} are not stored: give its batch file to a new run; nothing was started"
    )]
    NotKept {
        /// The run.
        run: RunId,
    },
    /// There is nothing to go on with.
    #[error("{what} of run {run}; nothing was started")]
    NothingLeft {
        /// The run.
        run: RunId,
        /// What it has none of.
        what: &'static str,
    },
    /// Somebody runs it, or it cannot be made ours.
    #[error("run {run} cannot be resumed: {reason}; nothing was started")]
    NotResumable {
        /// The run.
        run: RunId,
        /// Why not.
        reason: String,
    },
    /// A stored task needs something that is never stored.
    #[error("task {task} of run {run}: {source}; nothing was started")]
    NotGiven {
        /// The run.
        run: RunId,
        /// Which of its tasks.
        task: u32,
        /// What is missing, and how it is given.
        source: super::kept::ReviveError,
    },
    /// Its children had a key, and those of now would have none.
    #[error(
        "the children of run {run} had a key ({route}), and a key is never stored: give it again in the \
         configuration; nothing was started"
    )]
    KeyNotGiven {
        /// The run.
        run: RunId,
        /// Where it came from.
        route: String,
    },
    /// An agent delegated the run, and it was not given again.
    #[error(
        "run {run} was delegated by an agent: give that again (Batch::parent); nothing was started"
    )]
    ParentNotGiven {
        /// The run.
        run: RunId,
    },
    /// What is stored cannot be read.
    #[error("{0}; nothing was started")]
    Unreadable(String),
    /// A setting is wrong.
    #[error("{0}; nothing was started")]
    Config(Box<Diagnostic>),
    /// The delegator starts nothing at the moment.
    #[error("starting is paused: call Delegator::resume first; nothing was started")]
    Paused,
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

impl fmt::Debug for StartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl StartError {
    /// The task that is wrong, where it is one.
    #[must_use]
    pub const fn task(&self) -> Option<usize> {
        match self {
            Self::BlankGoal { task }
            | Self::UnknownAgent { task, .. }
            | Self::Crossing { task, .. }
            | Self::NotBuilt { task, .. }
            | Self::NoWorktree { task, .. }
            | Self::InvalidTask { task, .. } => Some(*task),
            Self::EmptyBatch
            | Self::TakesNoTurns { .. }
            | Self::NoParent
            | Self::InvalidCall { .. }
            | Self::TooDeep { .. }
            | Self::NoOrchestrators { .. }
            | Self::NoRoute { .. }
            | Self::TooManyTasks { .. }
            | Self::Unsupported { .. }
            | Self::NoContainment { .. }
            | Self::NoLimit { .. }
            | Self::NotItsOwnWorker
            | Self::BackgroundFull { .. }
            | Self::NotKept { .. }
            | Self::NothingLeft { .. }
            | Self::NotResumable { .. }
            | Self::NotGiven { .. }
            | Self::KeyNotGiven { .. }
            | Self::ParentNotGiven { .. }
            | Self::Unreadable(_)
            | Self::Config(_)
            | Self::Paused
            | Self::ForeignProcess { .. }
            | Self::System { .. } => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_main_that_returns_it_shows_says_what_to_do() {
        let boxed: Box<dyn std::error::Error> = StartError::NotItsOwnWorker.into();
        let shown = format!("{boxed:?}");
        assert!(shown.contains("Begin main with delegate_runtime::workers()"), "{shown}");
    }
}

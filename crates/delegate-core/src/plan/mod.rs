//! From tasks and settings to decisions: what runs, how it is isolated, with which limits.
//!
//! [`plan`] checks everything that can be checked before anything starts; `launch` and `run` carry
//! the [`Plan`] out. `batch_file` makes tasks from YAML, `decide` picks threads or processes.

pub mod batch_file;
mod decide;
pub mod error;
mod session;
pub mod task;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::mem;
use std::time::{Duration, SystemTime};

use delegate_protocol::spec::CrossingError;
use delegate_protocol::{Role, Routing, SubagentId, TaskSpec};

use crate::config::{Settings, duration, shorten};
use decide::{Lack, Question, decide};

pub use error::StartError;
pub use task::{Origin, Task};

/// Most images of one task.
pub const MAX_IMAGES: usize = 8;

/// Shortest limit of a task's own.
pub const MIN_TIMEOUT: Duration = Duration::from_secs(1);

/// Characters of a goal that an error shows.
const SHOWN_GOAL: usize = 40;

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

/// Decisions for one batch. Specs are built one at a time ([`Plan::spec`]), so that a long batch
/// costs its task list and no more.
#[derive(Debug)]
pub struct Plan {
    /// Where every child runs.
    pub isolation: delegate_protocol::Isolation,
    /// Why, for `--explain`.
    pub reason: String,
    /// The tasks in order; every working directory is absolute.
    pub tasks: Vec<Task>,
    /// The settings that were used.
    pub settings: Settings,
    /// When it was made; part of the session ids.
    pub started: SystemTime,
    /// One id per task: events and launch name the same child.
    ids: Vec<SubagentId>,
    /// First session nonce of this batch, random.
    nonce: u32,
}

impl Plan {
    /// The id of one task's child; the same at each call.
    ///
    /// # Panics
    /// When `index` is not a task of this plan.
    #[must_use]
    pub fn subagent_id(&self, index: usize) -> SubagentId {
        self.ids[index]
    }

    /// Wall clock of one child: its task's own limit, else the setting's.
    ///
    /// # Panics
    /// When `index` is not a task of this plan.
    #[must_use]
    pub fn timeout(&self, index: usize) -> Option<Duration> {
        self.tasks[index].timeout.or(self.settings.child_timeout)
    }

    /// The spec of one task; the same at each call.
    ///
    /// # Panics
    /// When `index` is not a task of this plan.
    #[must_use]
    pub fn spec(&self, index: usize) -> TaskSpec {
        let task = &self.tasks[index];
        let subagent_id = self.ids[index];
        let task_index = subagent_id.task_index();
        TaskSpec {
            task_index,
            task_count: u32::try_from(self.tasks.len()).unwrap_or(u32::MAX),
            subagent_id,
            parent_subagent_id: None,
            child_depth: 1,
            role: Role::Leaf,
            session_id: session::id(self.started, self.nonce.wrapping_add(task_index)),
            parent_session_id: None,
            parent_turn_id: None,
            session_db_path: None,
            delegation_id: None,
            live_transcript: None,
            agent: task.agent.clone(),
            goal: task.goal.clone(),
            context: task.context.clone(),
            // A task whose parameters could not be turned into data was refused by `plan`.
            params: task.params.value().unwrap_or_default(),
            system_prompt: None,
            images: task.images.clone(),
            output_schema: None,
            group: task.group.clone(),
            cwd: task.cwd.clone(),
            workspace_hint: None,
            container: None,
            skip_context_files: true,
            skip_memory: true,
            platform: "subagent".to_owned(),
            log_prefix: format!("[subagent-{task_index}]"),
            quiet: true,
            relay_events: true,
            auto_approve: false,
            cache_ttl: None,
            enabled_toolsets: None,
            disabled_toolsets: Vec::new(),
            blocked_tools: Vec::new(),
            max_iterations: self.settings.max_iterations,
            heartbeat_interval_ms: milliseconds(self.settings.heartbeat_interval),
            timeout_ms: self.timeout(index).map(milliseconds),
            max_result_bytes: self.settings.max_result_bytes,
            routing: Routing::default(),
            traceparent: task.traceparent.clone(),
            metadata: task.metadata.clone(),
        }
    }

    /// The decisions as pairs of a name and a sentence, for `--explain` and `--dry-run`.
    #[must_use]
    pub fn explain(&self) -> Vec<(&'static str, String)> {
        let settings = &self.settings;
        let own = self.tasks.iter().filter(|task| task.timeout.is_some()).count();
        let timeout = match (settings.child_timeout, own) {
            (Some(limit), 0) => duration::show(limit),
            (Some(limit), own) => {
                format!("{}; {own} with a limit of their own", duration::show(limit))
            }
            (None, 0) => "none".to_owned(),
            (None, own) => format!("none; {own} with a limit of their own"),
        };
        let agents: BTreeSet<&str> = self.tasks.iter().map(Task::agent).collect();
        vec![
            ("tasks", self.tasks.len().to_string()),
            ("agents", agents.into_iter().collect::<Vec<_>>().join(", ")),
            ("isolation", format!("{} ({})", self.isolation.word(), self.reason)),
            ("at once", settings.max_concurrent_children.to_string()),
            ("timeout per child", timeout),
            ("interrupt grace", duration::show(settings.interrupt_grace)),
            ("terminate grace", duration::show(settings.terminate_grace)),
            ("start timeout", duration::show(settings.start_timeout)),
            ("heartbeat interval", duration::show(settings.heartbeat_interval)),
            ("largest result", format!("{} bytes", settings.max_result_bytes)),
        ]
    }
}

fn milliseconds(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// What the delegating program has.
#[derive(Debug, Clone, Copy)]
pub struct Means<'a> {
    /// Names of the agents; `None` when only a worker of another make knows them.
    pub agents: Option<&'a [String]>,
    /// Whether there is a program that can be a worker.
    pub has_worker: bool,
}

/// Decides. Checks every task, and that every spec survives the line, before anything starts.
/// Relative working directories become absolute ones below this process's own. Takes the tasks when
/// they become a plan, and leaves them where they are otherwise.
///
/// # Errors
/// [`StartError`]; nothing was started.
pub fn plan(
    tasks: &mut Vec<Task>,
    settings: &Settings,
    asked: Option<Isolation>,
    means: Means<'_>,
) -> Result<Plan, StartError> {
    if tasks.is_empty() {
        return Err(StartError::EmptyBatch);
    }
    let limit = settings.max_batch_size.unwrap_or(u32::MAX);
    let count = u32::try_from(tasks.len())
        .ok()
        .filter(|count| *count <= limit)
        .ok_or(StartError::TooManyTasks { given: tasks.len(), limit })?;
    let (isolation, reason) = decide(Question {
        asked,
        setting: settings.process_isolation,
        isolate_single_task: settings.isolate_single_task,
        tasks: tasks.len(),
        lacks: Lack::of(means.has_worker),
    })?;
    let mut plan = Plan {
        isolation,
        reason,
        tasks: mem::take(tasks),
        settings: settings.clone(),
        started: SystemTime::now(),
        ids: (0..count).map(SubagentId::random).collect(),
        nonce: uuid::Uuid::new_v4().as_fields().0,
    };
    let known: Option<BTreeSet<&str>> =
        means.agents.map(|agents| agents.iter().map(String::as_str).collect());
    if let Err(error) = check_all(&mut plan, known.as_ref()) {
        *tasks = plan.tasks;
        return Err(error);
    }
    Ok(plan)
}

/// One spec at a time: it is dropped again, so memory stays that of the task list.
fn check_all(plan: &mut Plan, known: Option<&BTreeSet<&str>>) -> Result<(), StartError> {
    for index in 0..plan.tasks.len() {
        check(index, &mut plan.tasks[index], known)?;
        plan.spec(index)
            .check_crossing()
            .map_err(|source| crossing(index, &plan.tasks[index], source))?;
    }
    Ok(())
}

/// What is wrong with one task in itself.
fn check(index: usize, task: &mut Task, known: Option<&BTreeSet<&str>>) -> Result<(), StartError> {
    if task.goal.trim().is_empty() {
        return Err(StartError::BlankGoal { task: index });
    }
    if let Some(known) = known
        && !known.contains(task.agent.as_str())
    {
        return Err(StartError::UnknownAgent {
            task: index,
            goal: shorten(&task.goal, SHOWN_GOAL),
            agent: shorten(&task.agent, SHOWN_GOAL),
            known: known.iter().map(|&name| name.to_owned()).collect(),
        });
    }
    if let Err(reason) = task.params.value() {
        let source = CrossingError { field: "params", reason };
        return Err(crossing(index, task, source));
    }
    let invalid = |task: &Task, reason: String| {
        Err(StartError::InvalidTask { task: index, goal: shorten(&task.goal, SHOWN_GOAL), reason })
    };
    if let Some(timeout) = task.timeout.filter(|timeout| *timeout < MIN_TIMEOUT) {
        let reason = format!("its timeout is {}, at least 1s is needed", duration::show(timeout));
        return invalid(task, reason);
    }
    if task.images.len() > MAX_IMAGES {
        return invalid(
            task,
            format!("it has {} images, at most {MAX_IMAGES} are taken", task.images.len()),
        );
    }
    if let Some(cwd) = task.cwd.as_mut().filter(|cwd| !cwd.is_absolute()) {
        match std::path::absolute(&cwd) {
            Ok(whole) => *cwd = whole,
            Err(error) => {
                let reason = format!("its cwd {} cannot be resolved: {error}", cwd.display());
                return invalid(task, reason);
            }
        }
    }
    Ok(())
}

fn crossing(index: usize, task: &Task, source: CrossingError) -> StartError {
    StartError::Crossing { task: index, goal: shorten(&task.goal, SHOWN_GOAL), source }
}

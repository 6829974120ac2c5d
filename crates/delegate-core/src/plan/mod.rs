//! From tasks and settings to decisions: what runs, how it is isolated, with which limits.
//!
//! [`plan`] checks everything that can be checked before anything starts; `launch` and `run` carry
//! the [`Plan`] out. Checks stand in one order ([`admit`], then the tasks, then what is built for each
//! child), so that a caller always hears of the first thing that is wrong, and nothing is started when
//! anything is refused.
//!
//! | module | holds |
//! |---|---|
//! | [`task`], [`batch_file`], `call` | tasks as a program, a YAML file or a model gives them |
//! | [`parent`], `nested` | what the delegating agent has; a child as one |
//! | [`routing`], [`toolsets`] | which model, endpoint, key and tools a child gets of it |
//! | [`goals`] | goals that say nothing |
//! | [`build`] | what an agent loop does per child before the start, and undoes |
//! | `decide` | threads or processes |
//! | `check` | what is wrong with tasks in themselves |
//! | [`kept`] | tasks as they may be stored, and back |
//! | `explain` | the decisions in sentences |
//! | `answers` | what is asked of an answer: schema and length |
//! | [`error`] | why nothing was started |

mod answers;
pub mod batch_file;
pub mod build;
mod call;
#[cfg(test)]
mod call_tests;
mod check;
mod decide;
pub mod error;
mod explain;
pub mod goals;
pub mod kept;
mod launching;
mod nested;
pub mod parent;
pub mod routing;
mod session;
pub mod task;
#[cfg(test)]
mod tests;
pub mod toolsets;

use std::collections::{BTreeMap, BTreeSet};
use std::mem;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use delegate_protocol::{Role, Status, SubagentId, TaskSpec, Value};

use crate::config::{Settings, shorten};
use answers::{check_schema, schema_of};
use build::Built;
use check::{check, check_blank, check_count, check_images, crossing};
use decide::{Lack, Question, decide};
use routing::Routed;

pub use build::{Addition, ChildBuilder};
pub(crate) use call::control_action;
pub use error::StartError;
pub use launching::Launching;
pub(crate) use nested::plan_nested;
pub use parent::{Endpoint, Headroom, Parent, Tools};
pub use routing::{NoProviders, Providers, Resolved};
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
    /// How the processes are started, and why; `None` where there are none.
    pub launching: Option<(Launching, String)>,
    /// The tasks in order; every working directory is absolute.
    pub tasks: Vec<Task>,
    /// The settings that were used.
    pub settings: Settings,
    /// When it was made; part of the session ids.
    pub started: SystemTime,
    /// Tasks that have their outcome from before ([`Again`]): they are not launched.
    pub(crate) ended: BTreeMap<u32, Status>,
    /// It goes on with a run that was begun before.
    pub(crate) resumed: bool,
    /// One id per task: events and launch name the same child.
    ids: Vec<SubagentId>,
    /// First session nonce of this batch, random.
    nonce: u32,
    /// What the children share of their parent.
    frame: Frame,
    /// What the agent loop built for each.
    built: Built,
    /// Where children work that have a worktree of their own, by task; empty where none has.
    worktrees: Vec<Option<PathBuf>>,
}

/// What was decided before any task was looked at; the same for every child of a batch.
#[derive(Debug, Clone)]
pub struct Frame {
    parent: Parent,
    /// An agent delegates, whose context the answers go into.
    by_agent: bool,
    routed: Routed,
    child_depth: u32,
    role: Role,
    helpers: Option<PathBuf>,
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

    /// The delegation that the batch belongs to, if its parent names one.
    #[must_use]
    pub fn delegation_id(&self) -> Option<&str> {
        self.frame.parent.delegation_id.as_deref()
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
        self.spec_with(index, &self.built)
    }

    fn spec_with(&self, index: usize, built: &Built) -> TaskSpec {
        let task = &self.tasks[index];
        let Frame { parent, by_agent: _, routed, child_depth, role, helpers } = &self.frame;
        let settings = &self.settings;
        let subagent_id = self.ids[index];
        let task_index = subagent_id.task_index();
        let tools = toolsets::child_tools(
            &parent.tools,
            task.toolsets.as_deref(),
            settings.inherit_mcp_toolsets,
            *role,
        );
        let mut spec = TaskSpec {
            task_index,
            task_count: u32::try_from(self.tasks.len()).unwrap_or(u32::MAX),
            subagent_id,
            parent_subagent_id: parent.subagent_id,
            child_depth: *child_depth,
            role: *role,
            session_id: session::id(self.started, self.nonce.wrapping_add(task_index)),
            parent_session_id: parent.session_id.clone(),
            parent_turn_id: parent.turn_id.clone(),
            session_db_path: parent.session_db_path.clone(),
            delegation_id: parent.delegation_id.clone(),
            live_transcript: None,
            agent: task.agent.clone(),
            goal: task.goal.clone(),
            context: task.context.clone(),
            // A task whose parameters could not be turned into data was refused by `plan`.
            params: task.params.value().unwrap_or_default(),
            system_prompt: None,
            images: task.images.clone(),
            // What cannot be data was refused by `plan`, as for `params`.
            output_schema: schema_of(task),
            group: task.group.clone(),
            in_turns: task.in_turns,
            cwd: task.cwd.clone().or_else(|| parent.cwd.clone()),
            workspace_hint: parent.workspaces.first().cloned(),
            container: parent.container.clone(),
            skip_context_files: true,
            skip_memory: true,
            platform: "subagent".to_owned(),
            log_prefix: format!("[subagent-{task_index}]"),
            quiet: true,
            relay_events: parent.relay_events,
            auto_approve: settings.subagent_auto_approve,
            helpers: helpers.clone(),
            cache_ttl: parent.child_cache_ttl(),
            enabled_toolsets: tools.enabled,
            disabled_toolsets: tools.disabled,
            blocked_tools: tools.blocked,
            max_iterations: settings.max_iterations,
            heartbeat_interval_ms: milliseconds(settings.heartbeat_interval),
            timeout_ms: self.timeout(index).map(milliseconds),
            max_result_bytes: settings.max_result_bytes,
            routing: routed.routing.clone(),
            traceparent: task.traceparent.clone(),
            metadata: task.metadata.clone(),
        };
        built.add_to(index, &mut spec);
        if let Some(Some(own)) = self.worktrees.get(index) {
            spec.cwd = Some(own.clone());
            spec.workspace_hint = Some(own.clone());
        }
        spec
    }

    /// The child that delegates, if it is one.
    #[must_use]
    pub fn caller(&self) -> Option<SubagentId> {
        self.frame.parent.subagent_id
    }

    /// For each task that is to have a git worktree of its own the directory that it is made from; `None` where no
    /// task is.
    #[must_use]
    pub fn isolated_dirs(&self) -> Option<Vec<Option<PathBuf>>> {
        let here = || std::env::current_dir().unwrap_or_else(|_| PathBuf::from("/"));
        let dir = |task: &Task| {
            let own = || task.cwd.clone().or_else(|| self.frame.parent.cwd.clone());
            let wanted = task.worktree_isolation.unwrap_or(self.settings.worktree_isolation);
            wanted.then(|| own().unwrap_or_else(here))
        };
        let dirs: Vec<_> = self.tasks.iter().map(dir).collect();
        dirs.iter().any(Option::is_some).then_some(dirs)
    }

    /// Where these children work instead.
    pub(crate) fn work_in(&mut self, worktrees: Vec<Option<PathBuf>>) {
        self.worktrees = worktrees;
    }

    /// The children start now: what was built for them is theirs, and is not undone when the plan goes.
    pub(crate) fn keep_built(&self) {
        self.built.keep();
    }

    fn undo_built(&mut self) {
        let mut built = mem::take(&mut self.built);
        built.undo(|index, built| self.spec_with(index, built));
    }
}

/// A plan that nobody starts leaves nothing behind.
impl Drop for Plan {
    fn drop(&mut self) {
        self.undo_built();
    }
}

const fn role_word(role: Role) -> &'static str {
    match role {
        Role::Leaf => "leaf",
        Role::Orchestrator => "orchestrator",
    }
}

fn milliseconds(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// What is known of a run that is resumed.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Again {
    /// The ids of its children, by task.
    pub ids: Vec<SubagentId>,
    /// Tasks that have their outcome.
    pub ended: BTreeMap<u32, Status>,
}

/// What the delegating program has.
#[derive(Debug, Clone, Copy, Default)]
pub struct Means<'a> {
    /// The run that is resumed with these tasks.
    pub again: Option<&'a Again>,
    /// Names of the agents; `None` when only a worker of another make knows them.
    pub agents: Option<&'a [String]>,
    /// Whether there is a program that can be a worker.
    pub has_worker: bool,
    /// The agent that delegates; `None` for a program of its own.
    pub parent: Option<&'a Parent>,
    /// What is known of providers; `None` knows none.
    pub providers: Option<&'a dyn Providers>,
    /// What is to be built for each child.
    pub builder: Option<&'a Arc<dyn ChildBuilder>>,
    /// Nothing is started now.
    pub paused: bool,
    /// Where the shared helpers are reached.
    pub helpers: Option<&'a Path>,
}

/// Decides what every child of a batch shares: its depth and role, then its route. Comes before any
/// look at the tasks.
///
/// # Errors
/// [`StartError::Paused`], [`StartError::TooDeep`], [`StartError::NoOrchestrators`], then
/// [`StartError::NoRoute`].
pub fn admit(settings: &Settings, means: Means<'_>) -> Result<Frame, StartError> {
    if means.paused {
        return Err(StartError::Paused);
    }
    let mut parent = means.parent.cloned().unwrap_or_default();
    let limit = settings.max_spawn_depth;
    if parent.depth >= limit {
        return Err(StartError::TooDeep { depth: parent.depth, limit });
    }
    // The root is an agent loop of its own; below it the switch holds.
    if parent.subagent_id.is_some() && !settings.orchestrator_enabled {
        return Err(StartError::NoOrchestrators { depth: parent.depth });
    }
    let child_depth = parent.depth + 1;
    let may = settings.orchestrator_enabled && child_depth < limit;
    let role = if may { Role::Orchestrator } else { Role::Leaf };
    let routed = routing::route(settings, &parent, means.providers.unwrap_or(&NoProviders))
        .map_err(|source| StartError::NoRoute { source })?;
    // Looked at once: all children of a batch are told the same directory.
    parent.workspaces = parent.workspace().into_iter().collect();
    let (by_agent, helpers) = (means.parent.is_some(), means.helpers.map(Path::to_owned));
    Ok(Frame { parent, by_agent, routed, child_depth, role, helpers })
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
    let frame = admit(settings, means)?;
    plan_within(frame, tasks, settings, asked, means, Ok(()))
}

/// Decides about a call that a model made: `arguments` are those of `delegate_task`. Checks in this
/// order: parent, action, pause, depth, route, tasks, schemas, images, and what is built.
///
/// # Errors
/// [`StartError`]; nothing was started.
pub fn plan_call(
    arguments: &Value,
    agent: &str,
    settings: &Settings,
    asked: Option<Isolation>,
    means: Means<'_>,
) -> Result<Plan, StartError> {
    if means.parent.is_none() {
        return Err(StartError::NoParent);
    }
    let arguments = call::arguments(arguments)?;
    call::check_action(arguments)?;
    let frame = admit(settings, means)?;
    let (mut tasks, images) = call::tasks(arguments, agent)?;
    check_count(&tasks, settings)?;
    check_blank(&tasks)?;
    call::check_goals(&tasks)?;
    plan_within(frame, &mut tasks, settings, asked, means, images)
}

fn plan_within(
    frame: Frame,
    tasks: &mut Vec<Task>,
    settings: &Settings,
    asked: Option<Isolation>,
    means: Means<'_>,
    images: Result<(), StartError>,
) -> Result<Plan, StartError> {
    let count = check_count(tasks, settings)?;
    let (isolation, reason) = decide(Question {
        asked,
        setting: settings.process_isolation,
        isolate_single_task: settings.isolate_single_task,
        tasks: tasks.len(),
        lacks: Lack::of(means.has_worker),
    })?;
    let launching = (isolation == delegate_protocol::Isolation::Process).then(|| {
        launching::decide(launching::Question {
            wish: settings.launcher,
            pool: settings.pool,
            tasks: tasks.len(),
            own_program: settings.worker_command.is_none(),
            namespace: settings.containment == ownership::Containment::PidNamespace,
        })
    });
    let fresh = || (0..count).map(SubagentId::random).collect();
    let (ids, ended) = match means.again {
        Some(again) if again.ids.len() == tasks.len() => (again.ids.clone(), again.ended.clone()),
        _ => (fresh(), BTreeMap::new()),
    };
    let mut plan = Plan {
        isolation,
        reason,
        launching,
        tasks: mem::take(tasks),
        settings: settings.clone(),
        started: SystemTime::now(),
        ended,
        resumed: means.again.is_some(),
        ids,
        nonce: uuid::Uuid::new_v4().as_fields().0,
        frame,
        built: Built::by(means.builder.cloned()),
        worktrees: Vec::new(),
    };
    let known: Option<BTreeSet<&str>> =
        means.agents.map(|agents| agents.iter().map(String::as_str).collect());
    if let Err(error) = check_all(&mut plan, known.as_ref(), images) {
        // While it still has its tasks, which those who undo are told.
        plan.undo_built();
        *tasks = mem::take(&mut plan.tasks);
        return Err(error);
    }
    Ok(plan)
}

/// Each check over all tasks before the next, so that what is built is built for tasks that are known
/// to be right. One spec at a time: it is dropped again, so memory stays that of the task list.
/// `images` is what is wrong with those of a call in their form.
fn check_all(
    plan: &mut Plan,
    known: Option<&BTreeSet<&str>>,
    images: Result<(), StartError>,
) -> Result<(), StartError> {
    check_blank(&plan.tasks)?;
    for (index, task) in plan.tasks.iter_mut().enumerate() {
        check(index, task, known)?;
    }
    for index in 0..plan.tasks.len() {
        // Those of `defaults` are all the same: looked at once.
        let (before, task) = plan.tasks.split_at(index);
        if before.last().map(|task| &task.output_schema) != task.first().map(|t| &t.output_schema) {
            check_schema(index, &plan.tasks[index])?;
        }
    }
    images?;
    for (index, task) in plan.tasks.iter().enumerate() {
        check_images(index, task)?;
    }
    for index in 0..plan.tasks.len() {
        check_crossing(plan, index)?;
    }
    let Some(builder) = plan.built.builder.clone() else { return Ok(()) };
    for index in 0..plan.tasks.len() {
        if u32::try_from(index).is_ok_and(|index| plan.ended.contains_key(&index)) {
            plan.built.push(Addition::default());
            continue;
        }
        let addition = builder.build(&plan.spec(index)).map_err(|reason| StartError::NotBuilt {
            task: index,
            goal: shorten(&plan.tasks[index].goal, SHOWN_GOAL),
            reason,
        })?;
        plan.built.push(addition);
        check_crossing(plan, index)?;
    }
    Ok(())
}

fn check_crossing(plan: &Plan, index: usize) -> Result<(), StartError> {
    let crossed = plan.spec(index).check_crossing();
    crossed.map_err(|source| crossing(index, &plan.tasks[index], source))
}

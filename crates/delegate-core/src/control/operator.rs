//! [`Operator`]: finds what an id names among the runs of a delegator, and does what is asked.

use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use delegate_protocol::id::MIN_PREFIX;
use delegate_protocol::{RunId, SubagentId};
use serde::{Deserialize, Serialize};

use super::protocol::ControlError;
use crate::run::live::{Live, LiveRun};
use crate::run::{Control, Ended, List, block_on};

/// A run that goes on.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LiveRunInfo {
    /// Its id.
    pub run_id: RunId,
    /// For people.
    pub title: String,
    /// The conversation that it belongs to.
    pub session: Option<String>,
    /// The child whose batch it is, and that one's run; none for a run of the program itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent_run_id: Option<RunId>,
    /// See there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent_id: Option<SubagentId>,
    /// Seconds since the epoch.
    pub started_at: f64,
    /// `process` or `thread`.
    pub isolation: String,
    /// Tasks in the batch.
    pub tasks: usize,
    /// Its children.
    #[serde(flatten)]
    pub list: List,
}

/// What an id names.
#[derive(Debug, Clone)]
pub(crate) struct Target {
    pub(crate) run: Arc<LiveRun>,
    pub(crate) child: Option<SubagentId>,
}

impl Target {
    fn control(&self) -> Control {
        Control::new(Arc::clone(&self.run.control), Arc::clone(&self.run.plan))
    }

    /// The child, or every child that has no result yet.
    fn children(&self) -> Vec<SubagentId> {
        let all = (0..self.run.plan.tasks.len()).map(|index| self.run.plan.subagent_id(index));
        match self.child {
            Some(child) => vec![child],
            None => all.filter(|child| self.run.control.is_open(child.task_index())).collect(),
        }
    }

    /// A child that has its result takes no orders.
    fn check_open(&self) -> Result<(), ControlError> {
        match self.child {
            Some(child) if !self.run.control.is_open(child.task_index()) => {
                Err(ControlError::Steer(crate::run::SteerError::Ended))
            }
            Some(_) | None => Ok(()),
        }
    }
}

/// Lists, steers, stops and waits by id. Made by [`crate::delegator::Delegator::operator`].
#[derive(Debug, Clone)]
pub struct Operator {
    live: Arc<Live>,
    session: Option<String>,
}

impl Operator {
    pub(crate) const fn new(live: Arc<Live>, session: Option<String>) -> Self {
        Self { live, session }
    }

    /// Those that exist for this conversation, oldest first.
    fn runs(&self) -> Vec<Arc<LiveRun>> {
        let mut runs = self.live.runs();
        runs.retain(|run| self.session.is_none() || run.session == self.session);
        runs
    }

    /// What an id names.
    pub(crate) fn find(&self, id: &str) -> Result<Target, ControlError> {
        let not_found = || ControlError::NotFound(id.chars().take(128).collect());
        let runs = self.runs();
        if let Ok(child) = id.parse::<SubagentId>() {
            let run = runs.into_iter().find(|run| has(run, child)).ok_or_else(not_found)?;
            return Ok(Target { run, child: Some(child) });
        }
        let (run, child) = id.split_once('/').map_or((id, None), |(run, child)| (run, Some(child)));
        let run = match run {
            // What a child has delegated is no run that somebody has just started.
            "latest" | "-" => {
                let last = runs.iter().rfind(|run| run.above.is_none());
                last.cloned().ok_or_else(not_found)?
            }
            prefix if prefix.len() < MIN_PREFIX => return Err(not_found()),
            prefix => {
                let fits = |run: &Arc<LiveRun>| run.id.to_string().starts_with(prefix);
                let mut found: Vec<_> = runs.into_iter().filter(fits).collect();
                if found.len() > 1 {
                    let found = found.iter().take(8).map(|run| run.id.to_string()).collect();
                    return Err(ControlError::Ambiguous { id: id.to_owned(), found });
                }
                found.pop().ok_or_else(not_found)?
            }
        };
        let Some(child) = child else { return Ok(Target { run, child: None }) };
        let child = match (child.parse::<usize>(), child.parse::<SubagentId>()) {
            (Ok(index), _) if index < run.plan.tasks.len() => run.plan.subagent_id(index),
            (_, Ok(child)) if has(&run, child) => child,
            _ => return Err(not_found()),
        };
        Ok(Target { run, child: Some(child) })
    }

    /// The runs that go on, with their children.
    pub async fn list(&self) -> Vec<LiveRunInfo> {
        let mut told = Vec::new();
        for run in self.runs() {
            // One that ends meanwhile is no more.
            let Some(list) = run.control.list().await else { continue };
            let since = run.started.duration_since(UNIX_EPOCH).unwrap_or_default();
            told.push(LiveRunInfo {
                run_id: run.id,
                title: run.title.clone(),
                session: run.session.clone(),
                parent_run_id: run.above.map(|above| above.run),
                parent_id: run.above.map(|above| above.child),
                started_at: since.as_secs_f64(),
                isolation: run.plan.isolation.word().to_owned(),
                tasks: run.plan.tasks.len(),
                list,
            });
        }
        told
    }

    /// Blocking twin of [`Operator::list`].
    #[must_use]
    pub fn list_blocking(&self) -> Vec<LiveRunInfo> {
        block_on(self.list())
    }

    /// Says something to a child ([`Control::steer`]). Gives its id.
    ///
    /// # Errors
    /// No such child, or it was not accepted.
    pub fn steer(&self, id: &str, text: &str) -> Result<SubagentId, ControlError> {
        let target = self.find(id)?;
        let tasks = target.run.plan.tasks.len();
        let child = match target.child {
            Some(child) => child,
            None if tasks == 1 => target.run.plan.subagent_id(0),
            None => return Err(ControlError::NeedsChild { id: id.to_owned(), tasks }),
        };
        target.control().steer(child, text)?;
        Ok(child)
    }

    /// Asks a run or a child to unwind; with `now` it is ended at once.
    ///
    /// # Errors
    /// No such run or child, or it has ended.
    pub fn stop(&self, id: &str, now: bool) -> Result<RunId, ControlError> {
        let target = self.find(id)?;
        target.check_open()?;
        let control = target.control();
        match (target.child, now) {
            (None, false) => control.interrupt(),
            (None, true) => control.kill(),
            (Some(child), false) => control.stop(child),
            (Some(child), true) => control.kill_child(child),
        }
        Ok(target.run.id)
    }

    /// Of a run: launches nothing more (`true`), or goes on. Of a child: stops its processes and its
    /// clocks, or lets them go on.
    ///
    /// # Errors
    /// No such run or child, or it has ended.
    pub fn pause(&self, id: &str, paused: bool) -> Result<RunId, ControlError> {
        let target = self.find(id)?;
        target.check_open()?;
        let control = target.control();
        match (target.child, paused) {
            (None, true) => control.pause_launches(),
            (None, false) => control.resume_launches(),
            (Some(child), true) => control.pause(child),
            (Some(child), false) => control.unpause(child),
        }
        Ok(target.run.id)
    }

    /// More time, for a child or for each of a run that has no result.
    ///
    /// # Errors
    /// No such run or child, or it has ended.
    pub fn extend(&self, id: &str, by: Duration) -> Result<RunId, ControlError> {
        let target = self.find(id)?;
        target.check_open()?;
        let control = target.control();
        target.children().into_iter().for_each(|child| control.extend(child, by));
        Ok(target.run.id)
    }

    /// Waits until a run has heard what it was told: who is answered may rely on it.
    pub(crate) async fn settled(&self, run: RunId) -> Result<RunId, ControlError> {
        if let Some(run) = self.runs().into_iter().find(|known| known.id == run) {
            // One that has ended meanwhile hears nothing more.
            drop(run.control.list().await);
        }
        Ok(run)
    }

    /// Waits for the end of a run.
    ///
    /// # Errors
    /// No such run goes on, or how it ended is not known.
    pub async fn wait(&self, id: &str) -> Result<Ended, ControlError> {
        let target = self.find(id)?;
        if target.child.is_some() {
            return Err(ControlError::NeedsRun(id.to_owned()));
        }
        target.run.control.ended().await.ok_or(ControlError::Unknown)
    }

    /// Blocking twin of [`Operator::wait`].
    ///
    /// # Errors
    /// As there.
    pub fn wait_blocking(&self, id: &str) -> Result<Ended, ControlError> {
        block_on(self.wait(id))
    }
}

fn has(run: &LiveRun, child: SubagentId) -> bool {
    let index = child.task_index() as usize;
    index < run.plan.tasks.len() && run.plan.subagent_id(index) == child
}

//! [`Operator`]: finds what an id names among the runs of a delegator, and does what is asked.

use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use delegate_protocol::id::MIN_PREFIX;
use delegate_protocol::{RunId, SubagentId};
use serde::{Deserialize, Serialize};

use super::protocol::ControlError;
use crate::run::live::{Live, LiveRun};
use crate::run::sessions::Talks;
use crate::run::{Control, Ended, List, LiveSession, SteerError, block_on};

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

/// What an id may name: a session goes on over several runs, one for each of its workers.
enum Named {
    Run(Target),
    Session(Arc<dyn Talks>),
}

/// Whom an id meant.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Meant {
    /// The run; of a session that of its worker, while it has one.
    pub run_id: Option<RunId>,
    /// The session: that was named, or that the run is a worker of.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub session_id: Option<RunId>,
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

    /// The run or the child that an id names.
    pub(crate) fn find(&self, id: &str) -> Result<Target, ControlError> {
        match self.named(id)? {
            Named::Run(target) => Ok(target),
            Named::Session(session) => {
                Err(ControlError::Session { id: id.to_owned(), run: session.look().run_id })
            }
        }
    }

    /// Whom an id means.
    pub(crate) fn meant(&self, id: &str) -> Result<Meant, ControlError> {
        Ok(match self.named(id)? {
            Named::Run(target) => Meant { run_id: Some(target.run.id), session_id: None },
            Named::Session(session) => meant(&*session),
        })
    }

    /// What an id names.
    fn named(&self, id: &str) -> Result<Named, ControlError> {
        let not_found = || ControlError::NotFound(id.chars().take(128).collect());
        let runs = self.runs();
        if let Ok(child) = id.parse::<SubagentId>() {
            let run = runs.into_iter().find(|run| has(run, child)).ok_or_else(not_found)?;
            return Ok(Named::Run(Target { run, child: Some(child) }));
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
                let fits = |id: RunId| id.to_string().starts_with(prefix);
                let mut found: Vec<_> = runs.into_iter().filter(|run| fits(run.id)).collect();
                let sessions = self.talks().into_iter();
                let mut talks: Vec<_> =
                    sessions.filter(|one| fits(one.look().session_id)).collect();
                if found.len() + talks.len() > 1 {
                    let talks = talks.iter().map(|one| one.look().session_id);
                    let found = found.iter().map(|run| run.id).chain(talks).take(8);
                    let found = found.map(|id| id.to_string()).collect();
                    return Err(ControlError::Ambiguous { id: id.to_owned(), found });
                }
                match (talks.pop(), child) {
                    (Some(session), None) => return Ok(Named::Session(session)),
                    (Some(session), Some(_)) => {
                        let run = session.look().run_id;
                        return Err(ControlError::Session { id: prefix.to_owned(), run });
                    }
                    (None, _) => found.pop().ok_or_else(not_found)?,
                }
            }
        };
        let Some(child) = child else { return Ok(Named::Run(Target { run, child: None })) };
        let child = match (child.parse::<usize>(), child.parse::<SubagentId>()) {
            (Ok(index), _) if index < run.plan.tasks.len() => run.plan.subagent_id(index),
            (_, Ok(child)) if has(&run, child) => child,
            _ => return Err(not_found()),
        };
        Ok(Named::Run(Target { run, child: Some(child) }))
    }

    /// Sessions that exist for this conversation, oldest first.
    fn talks(&self) -> Vec<Arc<dyn Talks>> {
        let mut all = self.live.sessions.all();
        all.retain(|one| self.session.is_none() || one.look().conversation == self.session);
        all
    }

    /// The session that this run is a worker of.
    fn session_of(&self, run: RunId) -> Option<Arc<dyn Talks>> {
        self.talks().into_iter().find(|one| one.look().run_id == Some(run))
    }

    /// The sessions that go on.
    #[must_use]
    pub fn sessions(&self) -> Vec<LiveSession> {
        self.talks().iter().map(|one| one.look()).collect()
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

    /// Says something to a child, or to the worker of a session ([`Control::steer`]). Gives the child's id.
    ///
    /// # Errors
    /// No such child, or it was not accepted.
    pub fn steer(&self, id: &str, text: &str) -> Result<SubagentId, ControlError> {
        let target = match self.named(id)? {
            Named::Run(target) => target,
            Named::Session(session) => {
                let worker = session.look().run_id.map(|run| run.to_string());
                let worker = worker.ok_or(ControlError::Steer(SteerError::NoWorker))?;
                self.find(&worker)?
            }
        };
        let tasks = target.run.plan.tasks.len();
        let child = match target.child {
            Some(child) => child,
            None if tasks == 1 => target.run.plan.subagent_id(0),
            None => return Err(ControlError::NeedsChild { id: id.to_owned(), tasks }),
        };
        target.control().steer(child, text)?;
        Ok(child)
    }

    /// Asks a run, a child or a session to unwind; with `now` it is ended at once. Whoever stops the worker of a session ends
    /// the session: it would take another one.
    ///
    /// # Errors
    /// No such run, child or session, or it has ended.
    pub fn stop(&self, id: &str, now: bool) -> Result<Meant, ControlError> {
        let target = match self.named(id)? {
            Named::Run(target) => target,
            Named::Session(session) => return Ok(stop(&*session, now)),
        };
        target.check_open()?;
        if let Some(session) = self.session_of(target.run.id) {
            return Ok(stop(&*session, now));
        }
        let control = target.control();
        match (target.child, now) {
            (None, false) => control.interrupt(),
            (None, true) => control.kill(),
            (Some(child), false) => control.stop(child),
            (Some(child), true) => control.kill_child(child),
        }
        Ok(Meant { run_id: Some(target.run.id), session_id: None })
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

    /// Waits for the end of a run or of a session.
    ///
    /// # Errors
    /// No such run goes on, or how it ended is not known.
    pub async fn wait(&self, id: &str) -> Result<Ended, ControlError> {
        let target = match self.named(id)? {
            Named::Run(target) => target,
            Named::Session(session) => {
                let mut end = session.end();
                drop(session);
                let end = end.wait_for(Option::is_some).await.map_err(|_| ControlError::Unknown)?;
                return (*end).ok_or(ControlError::Unknown);
            }
        };
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

fn stop(session: &dyn Talks, now: bool) -> Meant {
    let meant = meant(session);
    session.stop(now);
    meant
}

fn meant(session: &dyn Talks) -> Meant {
    let LiveSession { session_id, run_id, .. } = session.look();
    Meant { run_id, session_id: Some(session_id) }
}

fn has(run: &LiveRun, child: SubagentId) -> bool {
    let index = child.task_index() as usize;
    index < run.plan.tasks.len() && run.plan.subagent_id(index) == child
}

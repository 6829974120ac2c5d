//! What runs now: the runs of one delegator ([`Live`]), and the children of one run ([`List`]) as its
//! loop tells them. Read by [`crate::control`].

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use delegate_protocol::{RunId, SubagentId};
use serde::{Deserialize, Serialize};

use super::control::ControlState;
use super::nest::Above;
use super::sessions::{Sessions, Talks};
use super::sets::Sets;
use crate::plan::Plan;

/// A child that has a place now.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LiveChild {
    /// Its id.
    pub child: SubagentId,
    /// Position in the batch, 0-based.
    pub task_index: u32,
    /// What it is to do.
    pub goal: String,
    /// Its agent.
    pub agent: String,
    /// `starting`, `running`, `waiting` (for children of its own), `paused`, `stopping` or `ending`.
    pub state: String,
    /// Its own session.
    pub session_id: String,
    /// The child that it is a child of.
    pub parent_id: Option<SubagentId>,
    /// 1 is a child of the root.
    pub depth: u32,
    /// Which delegation it belongs to.
    pub delegation_id: Option<String>,
    /// The model that it was given.
    pub model: Option<String>,
    /// Its process; null in a thread.
    pub pid: Option<u32>,
    /// From its own start, in seconds.
    pub running_seconds: Option<f64>,
    /// Without progress, in seconds.
    pub quiet_seconds: Option<f64>,
    /// Model calls so far.
    pub api_calls: u64,
    /// The tool that runs now.
    pub tool: Option<String>,
    /// Tools that it has started.
    #[serde(default)]
    pub tool_count: u64,
    /// The last of them.
    #[serde(default)]
    pub last_tool: Option<String>,
    /// Whether it can still be steered.
    pub accepts_steer: bool,
    /// Words to it that it has not taken yet.
    pub steers_waiting: usize,
}

/// The children of a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct List {
    /// Those that have a place, in order.
    pub children: Vec<LiveChild>,
    /// Tasks that wait for one.
    pub waiting: usize,
    /// The first of them, in their order.
    #[serde(default)]
    pub line: Vec<WaitingTask>,
    /// Tasks that have their outcome.
    pub ended: usize,
    /// No waiting task is launched.
    pub launches_paused: bool,
}

/// A task that waits for a place, or for a slot of the tree.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WaitingTask {
    /// Its id.
    pub child: SubagentId,
    /// Position in the batch, 0-based.
    pub task_index: u32,
    /// What it is to do.
    pub goal: String,
    /// Launches until its turn, its own included: 1 is the next of all. Those of other parts of the tree that
    /// come before it count, as far as they are known.
    pub position: u32,
}

/// A run that goes on.
#[derive(Debug)]
pub(crate) struct LiveRun {
    pub(crate) id: RunId,
    pub(crate) title: String,
    /// The conversation that it belongs to.
    pub(crate) session: Option<String>,
    /// The child whose batch it is, and that one's run.
    pub(crate) above: Option<Above>,
    pub(crate) started: SystemTime,
    pub(crate) plan: Arc<Plan>,
    pub(crate) control: Arc<ControlState>,
}

/// The runs of a delegator that go on, oldest first.
#[derive(Debug, Default)]
pub(crate) struct Live {
    runs: Mutex<Vec<Arc<LiveRun>>>,
    paused: AtomicBool,
    sets: Mutex<Sets>,
    pub(crate) sessions: Sessions,
}

impl Live {
    /// Lists a run until what is given back is dropped.
    pub(crate) fn add(self: &Arc<Self>, run: LiveRun) -> Listed {
        let run = Arc::new(run);
        let mut runs = self.lock();
        // Under the lock, as in `pause`: either finds the other.
        if self.is_paused() {
            run.control.want(|wanted| wanted.launches_held = true);
        }
        runs.push(Arc::clone(&run));
        Listed { live: Arc::clone(self), id: run.id }
    }

    pub(crate) fn runs(&self) -> Vec<Arc<LiveRun>> {
        self.lock().clone()
    }

    /// Lists a session until what is given back is dropped.
    pub(crate) fn add_session(self: &Arc<Self>, session: Arc<dyn Talks>) -> ListedSession {
        self.sessions.add(Arc::clone(&session));
        ListedSession { live: Arc::clone(self), session }
    }

    /// The number of a new batch in its conversation.
    pub(crate) fn set_number(&self, session: Option<&str>, delegation: Option<&str>) -> u64 {
        let mut sets = self.sets.lock().unwrap_or_else(PoisonError::into_inner);
        sets.number(session, delegation)
    }

    pub(crate) fn is_paused(&self) -> bool {
        self.paused.load(Ordering::Acquire)
    }

    /// No launches in any run, now and later.
    pub(crate) fn pause(&self, paused: bool) {
        let runs = self.lock();
        self.paused.store(paused, Ordering::Release);
        for run in runs.iter() {
            run.control.want(|wanted| wanted.launches_held = paused);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Arc<LiveRun>>> {
        self.runs.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Keeps a run on the list.
#[derive(Debug)]
pub(crate) struct Listed {
    live: Arc<Live>,
    id: RunId,
}

impl Drop for Listed {
    fn drop(&mut self) {
        self.live.lock().retain(|run| run.id != self.id);
    }
}

/// Keeps a session on the list.
#[derive(Debug)]
pub(crate) struct ListedSession {
    live: Arc<Live>,
    session: Arc<dyn Talks>,
}

impl Drop for ListedSession {
    fn drop(&mut self) {
        self.live.sessions.remove(&self.session);
    }
}

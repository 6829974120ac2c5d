//! What a caller wants of a running batch: said from any thread, taken by the loop.
//!
//! Wishes are state, not messages: saying one twice changes nothing, and nobody can flood the loop. Words
//! that steer are the exception: each is kept until it is taken or missed ([`super::steers`]).

use std::collections::BTreeMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::Duration;

use delegate_protocol::SubagentId;
use serde::{Deserialize, Serialize};
use tokio::sync::{Notify, oneshot};

use super::branch::Branch;
use super::feed::Feed;
use super::live::List;
use super::steers::{SteerError, Steers};
use crate::monitor::CancelReason;

/// Who may wait at once for a list of what runs.
const QUESTIONS: usize = 64;

/// The wishes that hold now.
#[derive(Debug, Default, Clone)]
pub(crate) struct Wanted {
    /// Stop every child.
    pub(crate) all: Option<CancelReason>,
    /// Stop these.
    pub(crate) stops: BTreeMap<SubagentId, CancelReason>,
    /// More time for these.
    pub(crate) extensions: BTreeMap<SubagentId, Duration>,
    /// These stand still (`true`), or go on.
    pub(crate) holds: BTreeMap<SubagentId, bool>,
    /// Clocks and workers stand still.
    pub(crate) suspended: bool,
    /// The turns of the one child up to this one are to end.
    pub(crate) stopped_turn: u64,
    /// No waiting task is launched.
    pub(crate) launches_held: bool,
    /// The same, until a place among the background runs is free.
    pub(crate) in_line: bool,
}

/// How a run ended, in a few facts.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Ended {
    /// Every task completed.
    pub all_completed: bool,
    /// The kernel confirmed that nothing is left.
    pub verified_empty: bool,
    /// Every outcome is on disk.
    pub durable: bool,
    /// From its start, in seconds.
    pub total: f64,
}

type Question = oneshot::Sender<List>;

#[derive(Debug, Default)]
struct State {
    wanted: Wanted,
    said: u64,
    taken: u64,
    applied: u64,
    ended: bool,
    end: Option<Ended>,
    steers: Steers,
    questions: Vec<Question>,
}

/// Shared by a batch's loop and its handles.
#[derive(Debug, Default)]
pub(crate) struct ControlState {
    state: Mutex<State>,
    changed: Notify,
    settled: Condvar,
    gone: Notify,
    /// Keeps the place in the tree that it hangs in.
    pub(super) branch: OnceLock<Branch>,
    /// Who watches the run.
    pub(crate) feed: Arc<Feed>,
    /// Runs of its children, which take over some of its wishes.
    below: Mutex<Vec<Weak<ControlState>>>,
}

impl ControlState {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a wish.
    pub(crate) fn want(&self, wish: impl FnOnce(&mut Wanted)) {
        let mut state = self.state();
        if state.ended {
            return;
        }
        wish(&mut state.wanted);
        state.said += 1;
        drop(state);
        self.changed.notify_one();
    }

    /// Wishes every child to stop.
    pub(crate) fn cancel_all(&self, reason: CancelReason) {
        self.want(|wanted| wanted.all = Some(CancelReason::strongest(wanted.all, reason)));
    }

    /// Waits until what was wanted so far took effect; `false` when it did not in time.
    pub(crate) fn settle(&self, at_most: Duration) -> bool {
        self.settle_here(at_most) && {
            // What holds for them was said to them before it took effect here.
            let below = self.below().clone();
            below.iter().filter_map(Weak::upgrade).all(|run| run.settle(at_most))
        }
    }

    /// A run of one of its children.
    pub(super) fn hang_below(&self, run: &Arc<Self>) {
        let mut below = self.below();
        below.retain(|run| run.strong_count() > 0);
        below.push(Arc::downgrade(run));
    }

    fn below(&self) -> MutexGuard<'_, Vec<Weak<Self>>> {
        self.below.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn settle_here(&self, at_most: Duration) -> bool {
        let state = self.state();
        let said = state.said;
        let wait = self
            .settled
            .wait_timeout_while(state, at_most, |state| !state.ended && state.applied < said);
        let (state, _) = wait.unwrap_or_else(PoisonError::into_inner);
        state.ended || state.applied >= said
    }

    /// For the loop: something was wanted.
    pub(super) async fn changed(&self) {
        self.changed.notified().await;
    }

    /// For the loop: the wishes that hold; those about single children are handed over once.
    pub(super) fn take(&self) -> Wanted {
        let mut state = self.state();
        state.taken = state.said;
        let wanted = state.wanted.clone();
        state.wanted.stops.clear();
        state.wanted.extensions.clear();
        state.wanted.holds.clear();
        wanted
    }

    /// For the loop: what was taken took effect.
    pub(super) fn applied(&self) {
        let mut state = self.state();
        state.applied = state.taken;
        drop(state);
        self.settled.notify_all();
    }

    /// For the loop: nothing more takes effect. `None` after a panic of ours; the first word counts.
    pub(super) fn end(&self, end: Option<Ended>) {
        let mut state = self.state();
        if !state.ended {
            state.ended = true;
            state.end = end;
        }
        state.questions.clear();
        drop(state);
        self.settled.notify_all();
        self.gone.notify_waiters();
        self.feed.end();
    }

    /// Waits for the end of the run; `None` when how it ended is not known.
    pub(crate) async fn ended(&self) -> Option<Ended> {
        loop {
            let gone = self.gone.notified();
            {
                let state = self.state();
                if state.ended {
                    return state.end;
                }
            }
            gone.await;
        }
    }

    /// What runs and what waits; `None` once the run has ended.
    pub(crate) async fn list(&self) -> Option<List> {
        let (ask, answer) = oneshot::channel();
        {
            let mut state = self.state();
            if state.ended || state.questions.len() >= QUESTIONS {
                return None;
            }
            state.questions.push(ask);
        }
        self.changed.notify_one();
        answer.await.ok()
    }

    /// Accepts a word for a task.
    pub(crate) fn steer(&self, index: u32, text: String) -> Result<(), SteerError> {
        let mut state = self.state();
        if state.ended {
            return Err(SteerError::Ended);
        }
        state.steers.accept(index, text)?;
        drop(state);
        self.changed.notify_one();
        Ok(())
    }

    /// For the loop: who wants to know what runs.
    pub(super) fn questions(&self) -> Vec<Question> {
        std::mem::take(&mut self.state().questions)
    }

    /// For the loop: the tasks for which there is something to send.
    pub(super) fn unsent(&self) -> Vec<u32> {
        self.state().steers.unsent()
    }

    /// For the loop: what is to be sent to one.
    pub(super) fn send(&self, index: u32) -> Vec<(u64, String)> {
        self.state().steers.send(index)
    }

    /// For the reader of a line: the agent has taken a word.
    pub(super) fn steered(&self, index: u32, number: u64) {
        self.state().steers.taken(index, number);
    }

    /// For the loop: a child has its result.
    pub(super) fn close(&self, index: u32) {
        self.state().steers.close(index);
    }

    /// For the loop: what a child did not take; it is closed.
    pub(super) fn missed(&self, index: u32) -> Vec<String> {
        self.state().steers.missed(index)
    }

    /// Whether a task has no result yet.
    pub(crate) fn is_open(&self, index: u32) -> bool {
        let state = self.state();
        !state.ended && !state.steers.is_closed(index)
    }

    /// Whether a task can be steered, and how many words wait for it.
    pub(super) fn steering(&self, index: u32) -> (bool, usize) {
        let state = self.state();
        (!state.steers.is_closed(index), state.steers.waiting(index))
    }
}

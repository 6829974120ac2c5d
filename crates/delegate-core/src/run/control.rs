//! What a caller wants of a running batch: said from any thread, taken by the loop.
//!
//! Wishes are state, not messages: saying one twice changes nothing, and nobody can flood the loop.

use std::collections::BTreeMap;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use delegate_protocol::SubagentId;
use tokio::sync::Notify;

use crate::monitor::CancelReason;

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
}

#[derive(Debug, Default)]
struct State {
    wanted: Wanted,
    said: u64,
    taken: u64,
    applied: u64,
    ended: bool,
}

/// Shared by a batch's loop and its handles.
#[derive(Debug, Default)]
pub(crate) struct ControlState {
    state: Mutex<State>,
    changed: Notify,
    settled: Condvar,
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

    /// Waits until what was wanted so far took effect; `false` when it did not in time.
    pub(crate) fn settle(&self, at_most: Duration) -> bool {
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

    /// For the loop: nothing more takes effect.
    pub(super) fn end(&self) {
        self.state().ended = true;
        self.settled.notify_all();
    }
}

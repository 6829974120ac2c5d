//! Sessions that go on, as others see and end them: [`Talks`] is what [`crate::session`] lets be done from outside,
//! [`LiveSession`] what it tells. Listed in `live`, read by [`crate::control`].

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use delegate_protocol::RunId;
use serde::{Deserialize, Serialize};
use tokio::sync::watch;

use super::control::Ended;

/// A session that goes on.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LiveSession {
    /// Its id.
    pub session_id: RunId,
    /// What it is for.
    pub goal: String,
    /// The conversation that it belongs to.
    pub conversation: Option<String>,
    /// Seconds since the epoch.
    pub started_at: f64,
    /// The run of its worker; null while a lost one is replaced.
    pub run_id: Option<RunId>,
    /// The turn that runs.
    pub turn: Option<u64>,
    /// Turns that were begun.
    pub turns: u64,
    /// Those that completed.
    pub completed: u64,
    /// Prompts that wait in line.
    pub waiting: usize,
    /// Workers that took the place of lost ones.
    pub restarts: u32,
}

/// What can be done with one from outside, from any thread.
pub(crate) trait Talks: fmt::Debug + Send + Sync {
    /// What it does now.
    fn look(&self) -> LiveSession;

    /// Ends it: interrupt, grace, kill; or at once.
    fn stop(&self, now: bool);

    /// How it ended, once it has.
    fn end(&self) -> watch::Receiver<Option<Ended>>;
}

/// The sessions of a delegator, oldest first.
#[derive(Debug, Default)]
pub(crate) struct Sessions(Mutex<Vec<Arc<dyn Talks>>>);

impl Sessions {
    pub(crate) fn all(&self) -> Vec<Arc<dyn Talks>> {
        self.lock().clone()
    }

    pub(super) fn add(&self, session: Arc<dyn Talks>) {
        self.lock().push(session);
    }

    pub(super) fn remove(&self, session: &Arc<dyn Talks>) {
        self.lock().retain(|known| !Arc::ptr_eq(known, session));
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Arc<dyn Talks>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

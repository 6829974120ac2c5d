//! Sessions without a runtime: wrappers of [`crate::NewSession`], [`crate::SessionHandle`] and [`crate::Turn`].

use std::time::Duration;

use crate::{
    Event, Isolation, PastTurn, PromptError, RunId, SessionControl, SessionEnd, StartError,
    TurnOutcome,
};

/// [`crate::NewSession`], blocking.
#[derive(Debug)]
#[must_use = "nothing runs before start"]
pub struct NewSession(crate::NewSession);

/// [`crate::SessionHandle`], blocking. Dropping it ends its worker.
#[derive(Debug)]
#[must_use = "dropping a session ends its worker"]
pub struct SessionHandle(crate::SessionHandle);

/// [`crate::Turn`], blocking. Dropped, it goes on.
#[derive(Debug)]
#[must_use = "its events and its outcome are read through it"]
pub struct Turn<'session>(crate::Turn<'session>);

impl NewSession {
    pub(super) const fn new(session: crate::NewSession) -> Self {
        Self(session)
    }

    /// As [`crate::NewSession::title`].
    pub fn title(self, title: impl Into<String>) -> Self {
        Self(self.0.title(title))
    }

    /// As [`crate::NewSession::isolation`].
    pub fn isolation(self, isolation: Isolation) -> Self {
        Self(self.0.isolation(isolation))
    }

    /// As [`crate::NewSession::parent`].
    pub fn parent(self, parent: crate::Parent) -> Self {
        Self(self.0.parent(parent))
    }

    /// As [`crate::NewSession::conversation`].
    pub fn conversation(self, key: impl Into<String>) -> Self {
        Self(self.0.conversation(key))
    }

    /// As [`crate::NewSession::turn_timeout`].
    pub fn turn_timeout(self, limit: Duration) -> Self {
        Self(self.0.turn_timeout(limit))
    }

    /// As [`crate::NewSession::idle_timeout`].
    pub fn idle_timeout(self, limit: Duration) -> Self {
        Self(self.0.idle_timeout(limit))
    }

    /// As [`crate::NewSession::max_turns`].
    pub fn max_turns(self, turns: u64) -> Self {
        Self(self.0.max_turns(turns))
    }

    /// As [`crate::NewSession::max_restarts`].
    pub fn max_restarts(self, restarts: u32, within: Duration) -> Self {
        Self(self.0.max_restarts(restarts, within))
    }

    /// Starts it.
    ///
    /// # Errors
    /// Nothing was started, and why.
    pub fn start(self) -> Result<SessionHandle, StartError> {
        self.0.start_blocking().map(SessionHandle)
    }
}

impl SessionHandle {
    /// As [`crate::SessionHandle::id`].
    #[must_use]
    pub const fn id(&self) -> RunId {
        self.0.id()
    }

    /// As [`crate::SessionHandle::prompt`].
    ///
    /// # Errors
    /// As there.
    pub fn prompt(&mut self, text: impl Into<String>) -> Result<Turn<'_>, PromptError> {
        self.0.prompt(text).map(Turn)
    }

    /// As [`crate::SessionHandle::control`].
    #[must_use]
    pub fn control(&self) -> SessionControl {
        self.0.control()
    }

    /// As [`crate::SessionHandle::history`].
    #[must_use]
    pub fn history(&self) -> Vec<PastTurn> {
        self.0.history()
    }

    /// As [`crate::SessionHandle::close`].
    pub fn close(self) -> SessionEnd {
        self.0.close_blocking()
    }

    /// As [`crate::SessionHandle::stop`].
    pub fn stop(self) -> SessionEnd {
        self.0.stop_blocking()
    }

    /// As [`crate::SessionHandle::ended`].
    pub fn ended(self) -> SessionEnd {
        self.0.ended_blocking()
    }
}

impl Turn<'_> {
    /// As [`crate::Turn::number`].
    #[must_use]
    pub const fn number(&self) -> u64 {
        self.0.number()
    }

    /// As [`crate::Turn::control`].
    #[must_use]
    pub fn control(&self) -> SessionControl {
        self.0.control()
    }

    /// As [`crate::Turn::stop`].
    pub fn stop(&self) {
        self.0.stop();
    }

    /// Events as they come, until the end of the turn.
    pub fn events(&mut self) -> impl Iterator<Item = Event> + '_ {
        std::iter::from_fn(|| self.0.next_blocking())
    }

    /// As [`crate::Turn::finish`].
    #[must_use]
    pub fn finish(self) -> TurnOutcome {
        self.0.finish_blocking()
    }
}

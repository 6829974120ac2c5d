//! What a child has delegated itself, as far as its own machine ([`super::child`]) must know: it has no outcome
//! before its delegations are over, and while it waits for one its clocks of progress stand still. Pure.

use std::time::Duration;

/// The delegations of one child.
#[derive(Debug, Clone, Default)]
pub(super) struct Below {
    running: u32,
    /// It waits for them, since then.
    waits_since: Option<Duration>,
}

impl Below {
    /// One more.
    pub(super) const fn begins(&mut self) {
        self.running = self.running.saturating_add(1);
    }

    /// One less.
    pub(super) const fn ends(&mut self) {
        self.running = self.running.saturating_sub(1);
    }

    /// Whether none goes on.
    pub(super) const fn is_over(&self) -> bool {
        self.running == 0
    }

    /// Whether it does nothing but wait.
    pub(super) const fn waits(&self) -> bool {
        self.waits_since.is_some()
    }

    /// It waits, or goes on; gives since when it had waited.
    pub(super) fn wait(&mut self, waits: bool, now: Duration) -> Option<Duration> {
        if waits {
            self.waits_since.get_or_insert(now);
            return None;
        }
        self.waits_since.take()
    }
}

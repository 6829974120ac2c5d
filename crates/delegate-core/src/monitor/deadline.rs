//! A moment that a child's machine ([`super::child`]) waits for.

use std::time::Duration;

/// A moment, and since when it is waited for: only the part of a pause that lies behind that moves it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Deadline {
    since: Duration,
    pub(super) at: Duration,
}

impl Deadline {
    /// A limit may be as long as a program likes, so it ends where the clock does.
    pub(super) const fn after(now: Duration, limit: Duration) -> Self {
        Self { since: now, at: now.saturating_add(limit) }
    }

    pub(super) fn is_due(self, now: Duration) -> bool {
        now >= self.at
    }

    /// The clocks stood still from `paused` until `now`.
    pub(super) fn shift(&mut self, paused: Duration, now: Duration) {
        self.extend(now.saturating_sub(paused.max(self.since)));
    }

    /// It comes so much later.
    pub(super) const fn extend(&mut self, by: Duration) {
        self.at = self.at.saturating_add(by);
    }
}

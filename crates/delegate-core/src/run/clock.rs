//! The only clock of this crate: everything else takes the time as an argument.

use std::time::{Duration, Instant};

/// Time since the batch began.
#[derive(Debug, Clone, Copy)]
pub(super) struct Clock(Instant);

impl Clock {
    #[expect(clippy::disallowed_methods, reason = "the clock of the loop that waits")]
    pub(super) fn start() -> Self {
        Self(Instant::now())
    }

    /// Now.
    pub(super) fn now(self) -> Duration {
        self.0.elapsed()
    }

    /// When that is, for a timer; `None` where that is beyond what the clock can tell.
    pub(super) fn instant(self, at: Duration) -> Option<tokio::time::Instant> {
        self.0.checked_add(at).map(Into::into)
    }
}

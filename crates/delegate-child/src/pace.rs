//! When what was put on the line goes out: [`Pace`]. Pure: `serve`, which waits, brings the time.
//!
//! The first event after a pause goes out at once. Those that follow closely wait for each other, [`GATHER`] at most:
//! every piece wakes the parent, then its store and its consumer, and each of these costs more than an event.

use std::time::{Duration, Instant};

/// The longest that an event waits for others.
pub(crate) const GATHER: Duration = Duration::from_micros(200);

/// The pieces of one line.
#[derive(Debug, Default)]
pub(crate) struct Pace {
    /// When the last piece went out.
    last: Option<Instant>,
    unsent: Unsent,
}

/// What was put, and did not go out yet.
#[derive(Debug, Default, PartialEq, Eq)]
enum Unsent {
    #[default]
    Nothing,
    Events,
    /// Somebody waits for it.
    Urgent,
}

impl Pace {
    /// An event was put.
    pub(crate) fn event(&mut self) {
        if self.unsent == Unsent::Nothing {
            self.unsent = Unsent::Events;
        }
    }

    /// Something else was put.
    pub(crate) const fn urgent(&mut self) {
        self.unsent = Unsent::Urgent;
    }

    /// All of it goes out at `now`.
    pub(crate) const fn sent(&mut self, now: Instant) {
        self.last = Some(now);
        self.unsent = Unsent::Nothing;
    }

    /// Whether what was put is to go out now, if nothing more is there.
    pub(crate) fn is_due(&self, now: Instant) -> bool {
        match self.unsent {
            Unsent::Nothing => false,
            Unsent::Events => self.gather(now).is_none(),
            Unsent::Urgent => true,
        }
    }

    /// For how long events are to be gathered from now on; `None`: the next may go out as it comes.
    pub(crate) fn gather(&self, now: Instant) -> Option<Duration> {
        let left = GATHER.checked_sub(now.saturating_duration_since(self.last?))?;
        (!left.is_zero()).then_some(left)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[expect(clippy::disallowed_methods, reason = "an Instant has no other source")]
    fn the_first_goes_out_at_once_and_those_that_follow_within_the_bound() {
        let start = Instant::now();
        let mut pace = Pace::default();
        assert_eq!((pace.is_due(start), pace.gather(start)), (false, None));
        pace.event();
        assert!(pace.is_due(start));
        pace.sent(start);
        let soon = start + GATHER / 4;
        assert_eq!((pace.is_due(soon), pace.gather(soon)), (false, Some(GATHER - GATHER / 4)));
        pace.event();
        assert!(!pace.is_due(soon));
        assert!(pace.is_due(start + GATHER));
        assert_eq!(pace.gather(start + GATHER), None);
        // What somebody waits for takes the events before it along.
        pace.urgent();
        pace.event();
        assert!(pace.is_due(soon));
        pace.sent(soon);
        assert_eq!(pace.gather(soon), Some(GATHER));
    }
}

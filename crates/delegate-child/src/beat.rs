//! When beats are due. Pure: `serve`, which waits, brings the time.

use std::time::{Duration, Instant};

/// The shortest interval between two beats. A shorter one (a spec may say 0) would keep the writer
/// busy with nothing else.
pub(crate) const MIN_INTERVAL: Duration = Duration::from_millis(10);

/// The beats of one child.
#[derive(Debug)]
pub(crate) struct Beats {
    interval: Duration,
    /// `None` when it is beyond what the clock can tell.
    next: Option<Instant>,
    sequence: u64,
}

impl Beats {
    /// The first beat is due one interval after `now`.
    pub(crate) fn new(interval: Duration, now: Instant) -> Self {
        let interval = interval.max(MIN_INTERVAL);
        Self { interval, next: now.checked_add(interval), sequence: 0 }
    }

    /// Time until the next beat; `None` means never.
    pub(crate) fn wait(&self, now: Instant) -> Option<Duration> {
        self.next.map(|next| next.saturating_duration_since(now))
    }

    /// The sequence number of the beat that is due now. Missed ones are not made up for.
    pub(crate) fn due(&mut self, now: Instant) -> Option<u64> {
        if self.next.is_none_or(|next| now < next) {
            return None;
        }
        self.next = now.checked_add(self.interval);
        self.sequence += 1;
        Some(self.sequence)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[expect(clippy::disallowed_methods, reason = "an Instant has no other source")]
    fn beats_come_once_per_interval_and_are_not_made_up_for() {
        let start = Instant::now();
        let second = Duration::from_secs(1);
        let mut beats = Beats::new(second, start);
        assert_eq!(beats.due(start), None);
        assert_eq!(beats.wait(start), Some(second));
        assert_eq!(beats.due(start + second), Some(1));
        assert_eq!(beats.due(start + second), None);
        assert_eq!(beats.due(start + 9 * second), Some(2));
        assert_eq!(beats.wait(start + 9 * second), Some(second));

        let mut never = Beats::new(Duration::MAX, start);
        assert_eq!((never.wait(start), never.due(start + 9 * second)), (None, None));
        assert_eq!(Beats::new(Duration::ZERO, start).wait(start), Some(MIN_INTERVAL));
    }
}

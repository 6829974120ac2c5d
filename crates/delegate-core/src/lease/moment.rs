//! [`Moment`]: wall-clock time as data. Cooldowns outlive a process, so they count on the wall clock; who
//! keeps one keeps when it was made too, since that clock may be set back ([`Until`]).

use std::fmt;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

/// Milliseconds since 1970, UTC.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct Moment(u64);

impl Moment {
    /// From milliseconds since 1970.
    #[must_use]
    pub const fn from_ms(ms: u64) -> Self {
        Self(ms)
    }

    /// Milliseconds since 1970.
    #[must_use]
    pub const fn as_ms(self) -> u64 {
        self.0
    }

    /// So much later.
    #[must_use]
    pub fn after(self, time: Duration) -> Self {
        Self(self.0.saturating_add(u64::try_from(time.as_millis()).unwrap_or(u64::MAX)))
    }

    /// The time since `earlier`; zero when that is later.
    #[must_use]
    pub const fn since(self, earlier: Self) -> Duration {
        Duration::from_millis(self.0.saturating_sub(earlier.0))
    }
}

impl From<SystemTime> for Moment {
    fn from(time: SystemTime) -> Self {
        Self::default().after(time.duration_since(UNIX_EPOCH).unwrap_or_default())
    }
}

/// `2026-12-01 04:05:06 UTC`.
impl fmt::Display for Moment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = self.0 / 1000;
        let (days, rest) = (seconds / 86_400, seconds % 86_400);
        let (year, month, day) = civil(days);
        let (hour, minute, second) = (rest / 3600, rest % 3600 / 60, rest % 60);
        write!(f, "{year:04}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02} UTC")
    }
}

/// Year, month and day of a day since 1970-01-01 (Gregorian; a year here begins in March, so that the
/// leap day is its last).
fn civil(days: u64) -> (u64, u64, u64) {
    let shifted = days + 719_468;
    let (era, day_of_era) = (shifted / 146_097, shifted % 146_097);
    let year_of_era =
        (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * from_march + 2) / 5 + 1;
    let month = if from_march < 10 { from_march + 3 } else { from_march - 9 };
    (era * 400 + year_of_era + u64::from(month <= 2), month, day)
}

/// Days from 1970-01-01 to a date of the Gregorian calendar; `None` before that, and for what is no date.
pub(super) fn days_to(year: u64, month: u64, day: u64) -> Option<u64> {
    let valid = (1970..=9999).contains(&year) && (1..=12).contains(&month) && day >= 1;
    if !valid {
        return None;
    }
    let shifted = year - u64::from(month <= 2);
    let (era, year_of_era) = (shifted / 400, shifted % 400);
    let from_march = (month + 9) % 12;
    let day_of_year = (153 * from_march + 2) / 5 + day - 1;
    let day_of_era = year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year;
    let days = (era * 146_097 + day_of_era).checked_sub(719_468)?;
    // 31 February comes out as a day of March.
    (civil(days) == (year, month, day)).then_some(days)
}

/// A time span on the wall clock that a clock set back cannot make longer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Until {
    /// When it was set.
    pub at: Moment,
    /// When it is over.
    pub until: Moment,
}

impl Until {
    /// From `now` for so long.
    #[must_use]
    pub fn lasting(now: Moment, time: Duration) -> Self {
        Self { at: now, until: now.after(time) }
    }

    /// From `now` to `until`.
    #[must_use]
    pub const fn ending(now: Moment, until: Moment) -> Self {
        Self { at: now, until }
    }

    /// The same as it holds now: when the clock stands before `at` it was set back, and the span begins
    /// anew, as long as it was.
    #[must_use]
    pub fn seen(self, now: Moment) -> Self {
        if now < self.at { Self::lasting(now, self.until.since(self.at)) } else { self }
    }

    /// Whether it is over.
    #[must_use]
    pub fn is_over(self, now: Moment) -> bool {
        self.seen(now).until <= now
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn days_and_dates_agree() {
        for (days, date) in [
            (0, (1970, 1, 1)),
            (59, (1970, 3, 1)),
            (11_016, (2000, 2, 29)),
            (11_017, (2000, 3, 1)),
            (20_788, (2026, 12, 1)),
        ] {
            assert_eq!(civil(days), date);
            assert_eq!(days_to(date.0, date.1, date.2), Some(days));
        }
        for days in 0..60_000 {
            let (year, month, day) = civil(days);
            assert_eq!(days_to(year, month, day), Some(days));
        }
        for (year, month, day) in [(2026, 2, 29), (2026, 13, 1), (2026, 4, 31), (1969, 1, 1)] {
            assert_eq!(days_to(year, month, day), None, "{year}-{month}-{day}");
        }
        let noon = Moment::from_ms((20_788 * 86_400 + 43_200) * 1000 + 999);
        assert_eq!(noon.to_string(), "2026-12-01 12:00:00 UTC");
    }

    #[test]
    fn a_clock_that_is_set_back_makes_no_span_longer() {
        let set = Moment::from_ms(10_000_000);
        let span = Until::lasting(set, Duration::from_secs(300));
        let earlier = Moment::from_ms(1_000_000);
        assert_eq!(span.seen(earlier).until.since(earlier), Duration::from_secs(300));
        assert!(!span.is_over(earlier) && !span.is_over(set));
        assert!(span.is_over(set.after(Duration::from_secs(300))));
        // Set forward: over at once, as a cooldown on the wall clock is.
        assert!(span.is_over(Moment::from_ms(u64::MAX)));
    }
}

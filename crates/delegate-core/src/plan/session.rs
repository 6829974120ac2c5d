//! Session ids of children: `YYYYmmdd_HHMMSS_<6 hex>`, made by the parent so that events carry them
//! before the child starts.

use std::time::{SystemTime, UNIX_EPOCH};

const DAY: u64 = 86_400;

/// The id of one child. `nonce` counts up within a batch, so that 16.7 million children of one
/// second differ. Time is UTC; a clock before 1970 counts as 1970.
pub(super) fn id(started: SystemTime, nonce: u32) -> String {
    let seconds = started.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let (year, month, day) = date(seconds / DAY);
    let time = seconds % DAY;
    let (hour, minute, second) = (time / 3600, time / 60 % 60, time % 60);
    let nonce = nonce & 0x00ff_ffff;
    format!("{year:04}{month:02}{day:02}_{hour:02}{minute:02}{second:02}_{nonce:06x}")
}

/// The civil date of a day since 1970-01-01 (Gregorian). Counted in years that begin in March, so
/// that the leap day is the last of its year.
fn date(days: u64) -> (u64, u64, u64) {
    const ERA: u64 = 146_097; // days of 400 years
    const TO_MARCH_0: u64 = 719_468; // from 0000-03-01 to 1970-01-01
    let days = days + TO_MARCH_0;
    let (era, day) = (days / ERA, days % ERA);
    let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let shifted = (5 * day + 2) / 153; // 0 is March
    let month = if shifted < 10 { shifted + 3 } else { shifted - 9 };
    let year = era * 400 + year + u64::from(month <= 2);
    (year, month, day - (153 * shifted + 2) / 5 + 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn known_times() {
        for (seconds, text) in [
            (0, "19700101_000000_000000"),
            (951_782_400, "20000229_000000_000000"),
            (1_709_251_199, "20240229_235959_000000"),
            (1_796_023_845, "20261130_073045_000000"),
            (4_107_542_400, "21000301_000000_000000"),
        ] {
            assert_eq!(id(UNIX_EPOCH + Duration::from_secs(seconds), 0), text);
        }
        assert_eq!(id(UNIX_EPOCH, 0xab_cdef), "19700101_000000_abcdef");
        assert_eq!(id(UNIX_EPOCH, 0xff00_0001), "19700101_000000_000001");
    }

    #[test]
    fn every_day_of_four_centuries_follows_the_one_before() {
        let long = |y: u64| y % 4 == 0 && (y % 100 != 0 || y % 400 == 0);
        let (mut year, mut month, mut day) = (1970, 1, 1);
        for days in 0..146_097 {
            assert_eq!(date(days), (year, month, day));
            let last = match month {
                2 => 28 + u64::from(long(year)),
                4 | 6 | 9 | 11 => 30,
                _ => 31,
            };
            (year, month, day) = match (month, day) {
                (12, 31) => (year + 1, 1, 1),
                (_, day) if day == last => (year, month + 1, 1),
                (_, day) => (year, month, day + 1),
            };
        }
    }
}

//! When a provider says that a key works again: [`reset_time`] reads the forms that providers use. Pure;
//! the text comes from a child, so it may be anything. Used by `status` and `gate`.

use std::time::Duration;

use super::moment::{Moment, days_to};

/// The longest time that is believed: a month, which is as long as quotas last.
pub const LONGEST: Duration = Duration::from_secs(31 * 24 * 60 * 60);

/// The shortest: a time that is over already must not become a busy loop.
pub const SHORTEST: Duration = Duration::from_secs(1);

/// Numbers from here on are no seconds from now but epoch seconds (2001), then epoch milliseconds.
const EPOCH_SECONDS: f64 = 1e9;
const EPOCH_MS: f64 = 1e12;

/// Bytes of a text that are looked at.
const LOOKED_AT: usize = 4096;

/// The time in `text`: a number (seconds from now as in `Retry-After`, epoch seconds, epoch
/// milliseconds), a date (ISO 8601, or that of an HTTP header), or a sentence that holds a time span or a
/// date (`reset_at` and the like, "retry after N seconds", "resets in 4 hr 5 min", "quotaResetDelay:
/// 3.5s"). Between [`SHORTEST`] and [`LONGEST`] from `now`; `None` when there is no time in it.
#[must_use]
pub fn reset_time(text: &str, now: Moment) -> Option<Moment> {
    let mut end = text.len().min(LOOKED_AT);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    let text = text[..end].trim();
    let found = number(text, now)
        .or_else(|| iso_date(text))
        .or_else(|| http_date(text))
        .or_else(|| in_sentence(&text.to_ascii_lowercase(), now))?;
    Some(found.clamp(now.after(SHORTEST), now.after(LONGEST)))
}

fn number(text: &str, now: Moment) -> Option<Moment> {
    let plain = text.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
    let value: f64 = text.parse().ok().filter(|_| plain)?;
    if value >= EPOCH_MS {
        Some(Moment::default().after(span(value, 0.001)?))
    } else if value >= EPOCH_SECONDS {
        Some(Moment::default().after(span(value, 1.0)?))
    } else {
        Some(now.after(span(value, 1.0)?))
    }
}

/// `value` times so many seconds.
fn span(value: f64, seconds: f64) -> Option<Duration> {
    Duration::try_from_secs_f64(value * seconds).ok()
}

/// `2026-12-01T04:05:06.789Z`, with an offset instead of `Z`, a blank instead of `T`, or no zone (UTC).
fn iso_date(text: &str) -> Option<Moment> {
    let mut rest = Cursor(text);
    let year = rest.digits(4)?;
    rest.one_of("-")?;
    let month = rest.digits(2)?;
    rest.one_of("-")?;
    let day = rest.digits(2)?;
    rest.one_of("Tt ")?;
    let clock = rest.clock()?;
    let mut fraction = 0.0;
    if rest.one_of(".,").is_some() {
        let digits = rest.0.len() - rest.0.trim_start_matches(|c: char| c.is_ascii_digit()).len();
        fraction = format!("0.{}", &rest.0[..digits]).parse().ok()?;
        rest.0 = &rest.0[digits..];
    }
    let west = rest.0.starts_with('-');
    let offset = if rest.one_of("+-").is_some() {
        let hours = rest.digits(2)?;
        // The colon may be missing.
        let _ = rest.one_of(":");
        hours * 3600 + rest.digits(2).unwrap_or(0) * 60
    } else {
        0
    };
    let local = days_to(year, month, day)? * 86_400 + clock;
    let utc = if west { local.checked_add(offset)? } else { local.checked_sub(offset)? };
    Some(Moment::default().after(Duration::from_secs(utc)).after(span(fraction, 1.0)?))
}

/// `Tue, 01 Dec 2026 04:05:06 GMT` (RFC 9110, 5.6.7).
fn http_date(text: &str) -> Option<Moment> {
    const MONTHS: [&str; 12] =
        ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"];
    let mut rest = Cursor(text.split_once(", ")?.1);
    let day = rest.digits(2)?;
    rest.one_of(" ")?;
    let name = rest.0.get(..3)?.to_ascii_lowercase();
    let month = (1..).zip(MONTHS).find(|(_, month)| *month == name)?.0;
    rest.0 = &rest.0[3..];
    rest.one_of(" ")?;
    let year = rest.digits(4)?;
    rest.one_of(" ")?;
    let clock = rest.clock()?;
    (rest.0 == " GMT").then_some(())?;
    Some(Moment::default().after(Duration::from_secs(days_to(year, month, day)? * 86_400 + clock)))
}

/// Reads from the front of a text.
struct Cursor<'a>(&'a str);

impl Cursor<'_> {
    fn digits(&mut self, count: usize) -> Option<u64> {
        let (digits, rest) = self.0.split_at_checked(count)?;
        let number = digits.bytes().all(|byte| byte.is_ascii_digit()).then(|| digits.parse());
        self.0 = rest;
        number?.ok()
    }

    fn one_of(&mut self, any: &str) -> Option<()> {
        let first = self.0.chars().next().filter(|first| any.contains(*first))?;
        self.0 = &self.0[first.len_utf8()..];
        Some(())
    }

    /// `04:05:06` in seconds.
    fn clock(&mut self) -> Option<u64> {
        let hour = self.digits(2)?;
        self.one_of(":")?;
        let minute = self.digits(2)?;
        self.one_of(":")?;
        let second = self.digits(2)?;
        (hour < 24 && minute < 60 && second <= 60).then_some(hour * 3600 + minute * 60 + second)
    }
}

/// Words after which a time stands.
const NAMES: [&str; 10] = [
    "retry-after",
    "retry after",
    "retry_after",
    "retry in",
    "try again in",
    "resets in",
    "reset in",
    "resetdelay",
    "reset_delay",
    "reset after",
];

/// Fields that hold a point in time.
const POINTS: [&str; 3] = ["resets_at", "reset_at", "retry_until"];

fn in_sentence(text: &str, now: Moment) -> Option<Moment> {
    let after = |name: &str| text.split_once(name).map(|(_, rest)| start_of_value(rest));
    let point = POINTS.iter().find_map(|name| {
        let value = after(name)?;
        let end = value.find(['"', '\'', ',', '}', ';', ')']).unwrap_or(value.len());
        let value = value[..end].trim();
        number(value, now).or_else(|| iso_date(&value.to_ascii_uppercase()))
    });
    let spans = || NAMES.iter().find_map(|name| spoken(after(name)?)).map(|span| now.after(span));
    point.or_else(spans)
}

/// Without what stands between a name and its value.
fn start_of_value(rest: &str) -> &str {
    let between = |c: char| c.is_whitespace() || matches!(c, ':' | '=' | '"' | '\'' | '(');
    rest.trim_start_matches("ms").trim_start_matches(between)
}

/// `4 hr 5 min`, `3.5s`, `250ms`, `30`: the sum of numbers with units, up to the first that is none.
fn spoken(text: &str) -> Option<Duration> {
    let mut rest = text;
    let mut sum = Duration::ZERO;
    let mut found = false;
    loop {
        rest = rest.trim_start_matches([' ', ',']).trim_start();
        rest = rest.strip_prefix("and ").unwrap_or(rest);
        let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(rest.len());
        // "in 5s." ends a sentence.
        let number = rest[..digits].trim_end_matches('.');
        let Ok(value) = number.parse::<f64>() else { break };
        rest = rest[digits..].trim_start();
        let letters = rest.find(|c: char| !c.is_ascii_alphabetic()).unwrap_or(rest.len());
        let unit = match &rest[..letters] {
            "ms" | "millisecond" | "milliseconds" => 0.001,
            "m" | "min" | "mins" | "minute" | "minutes" => 60.0,
            "h" | "hr" | "hrs" | "hour" | "hours" => 3600.0,
            "d" | "day" | "days" => 86_400.0,
            "s" | "sec" | "secs" | "second" | "seconds" => 1.0,
            _ if !found => 1.0,
            _ => break,
        };
        sum = sum.checked_add(span(value, unit)?)?;
        found = true;
        rest = &rest[letters..];
    }
    found.then_some(sum)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// 2026-12-01 04:05:06 UTC.
    const NOW: u64 = 1_796_097_906;

    fn now() -> Moment {
        Moment::from_ms(NOW * 1000)
    }

    /// Milliseconds from now.
    fn ms(text: &str) -> Option<u64> {
        reset_time(text, now()).map(|at| at.as_ms() - NOW * 1000)
    }

    #[test]
    fn c37_every_form_of_a_reset_time_is_read() {
        for (text, expected) in [
            ("30", 30_000),
            ("1.5", 1_500),
            (&(NOW + 90).to_string() as &str, 90_000),
            (&format!("{}", (NOW + 90) * 1000), 90_000),
            (&format!("{}.25", NOW + 90), 90_250),
            ("2026-12-01T04:06:06Z", 60_000),
            ("2026-12-01T04:06:06.250Z", 60_250),
            ("2026-12-01 05:06:06+01:00", 60_000),
            ("2026-11-30T23:06:06-0500", 60_000),
            ("2026-12-01T04:06:06", 60_000),
            ("Tue, 01 Dec 2026 04:06:06 GMT", 60_000),
            ("Rate limited: retry after 12 seconds.", 12_000),
            ("Please try again in 6.5s. Visit", 6_500),
            ("limit reached, resets in 4 hr 5 min", (4 * 3600 + 5 * 60) * 1000),
            ("resets in 1 hour, 2 minutes and 3 seconds", 3_723_000),
            (r#"{"quotaResetDelay": "3500ms"}"#, 3_500),
            (r#"{"quotaResetDelay":"2h"}"#, 7_200_000),
            ("Retry-After: 7", 7_000),
            (&format!(r#"{{"error": {{"resets_at": {}}}}}"#, NOW + 5), 5_000),
            (&format!(r#"reset_at={}, more"#, (NOW + 5) * 1000), 5_000),
            (r#"{"retry_until":"2026-12-01T04:06:06Z"}"#, 60_000),
        ] {
            assert_eq!(ms(text), Some(expected), "{text}");
        }
    }

    #[test]
    fn what_is_no_time_is_none_and_what_is_absurd_is_bounded() {
        for text in ["", "soon", "-5", "inf", "NaN", "1e400", "2026-02-30T00:00:00Z", "retry after"]
        {
            assert_eq!(ms(text), None, "{text}");
        }
        let shortest = u64::try_from(SHORTEST.as_millis()).unwrap();
        let longest = u64::try_from(LONGEST.as_millis()).unwrap();
        for past in ["0", "1999-01-01T00:00:00Z", "1000000001", "retry after 0 seconds"] {
            assert_eq!(ms(past), Some(shortest), "{past}");
        }
        for far in ["9999-01-01T00:00:00Z", "99999999999999999", "resets in 99999999 days"] {
            assert_eq!(ms(far), Some(longest), "{far}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_answered_within_the_bounds(text in ".{0,80}", digits in "[0-9.TZ: -]{0,40}") {
            for text in [text, digits] {
                if let Some(at) = reset_time(&text, now()) {
                    prop_assert!((now().after(SHORTEST)..=now().after(LONGEST)).contains(&at));
                }
            }
        }
    }
}

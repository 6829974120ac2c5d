//! Durations as text: `90s`, `5m`, `1h30m`, `250ms`. Used by settings, batch files and messages.

use std::fmt::Write as _;
use std::time::Duration;

use delegate_protocol::Value;

/// Units in the order in which they may stand, with their milliseconds.
const UNITS: [(&str, u64); 4] = [("h", 3_600_000), ("m", 60_000), ("s", 1_000), ("ms", 1)];

/// Ten years. Longer is a slip of the keyboard, and sums of deadlines stay far from overflow.
pub const LONGEST: Duration = Duration::from_secs(315_360_000);

/// What a duration looks like, for hints.
pub const EXAMPLES: &str = "`90s`, `5m`, `1h30m` or `250ms`";

/// Parses whole numbers with the units `h`, `m`, `s` and `ms`, the largest first, each once.
/// `None` for anything else, and for what does not fit into 64 bits of milliseconds.
#[must_use]
pub fn parse(text: &str) -> Option<Duration> {
    let mut rest = text;
    let mut units = UNITS.iter();
    let mut total: u64 = 0;
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit())?;
        let number: u64 = rest.get(..digits)?.parse().ok()?;
        rest = rest.get(digits..)?;
        let end = rest.find(|c: char| !c.is_ascii_alphabetic()).unwrap_or(rest.len());
        let unit = rest.get(..end)?;
        rest = rest.get(end..)?;
        let (_, milliseconds) = units.find(|(name, _)| *name == unit)?;
        total = total.checked_add(number.checked_mul(*milliseconds)?)?;
    }
    (!text.is_empty()).then(|| Duration::from_millis(total))
}

/// A number of seconds, whole or not; `None` when it is negative, too large or no number.
#[must_use]
pub fn from_number(value: &Value) -> Option<Duration> {
    match value {
        Value::Int(number) => u64::try_from(*number).ok().map(Duration::from_secs),
        Value::UInt(number) => Some(Duration::from_secs(*number)),
        Value::Float(number) => Duration::try_from_secs_f64(*number).ok(),
        Value::Null
        | Value::Bool(_)
        | Value::Text(_)
        | Value::Bytes(_)
        | Value::List(_)
        | Value::Map(_) => None,
    }
}

/// Shows a duration so that [`parse`] reads it again; parts below a millisecond are left out.
#[must_use]
pub fn show(duration: Duration) -> String {
    let mut rest = u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
    let mut text = String::new();
    for (unit, milliseconds) in UNITS {
        let number = rest / milliseconds;
        rest %= milliseconds;
        if number > 0 {
            let _ = write!(text, "{number}{unit}");
        }
    }
    if text.is_empty() { "0s".to_owned() } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_forms_of_the_documentation() {
        for (text, milliseconds) in [
            ("90s", 90_000),
            ("5m", 300_000),
            ("1h30m", 5_400_000),
            ("250ms", 250),
            ("1m250ms", 60_250),
            ("0s", 0),
        ] {
            assert_eq!(parse(text), Some(Duration::from_millis(milliseconds)), "{text}");
        }
    }

    #[test]
    fn everything_else_is_refused() {
        for text in [
            "",
            "90",
            "s",
            "1.5h",
            "-1s",
            "+1s",
            "1 s",
            " 1s",
            "1s1m",
            "1s1s",
            "1d",
            "1S",
            "1ss",
            "99999999999999999999s",
            "18446744073709551615h",
            "١s",
        ] {
            assert_eq!(parse(text), None, "{text}");
        }
    }

    proptest! {
        #[test]
        fn what_is_shown_is_read_again(milliseconds in any::<u64>()) {
            let duration = Duration::from_millis(milliseconds);
            prop_assert_eq!(parse(&show(duration)), Some(duration));
        }

        #[test]
        fn no_text_makes_it_panic(text in any::<String>()) {
            let _ = parse(&text);
        }
    }
}

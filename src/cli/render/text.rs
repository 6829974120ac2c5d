//! Text that others wrote, made safe and fit for one line: escapes, columns, durations.

use std::borrow::Cow;
use std::fmt::Write as _;
use std::time::Duration;

use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

/// Whether a character could drive a terminal or reorder what stands around it: controls of both
/// ranges, line and paragraph separators, marks without width, and those that turn the direction of
/// text.
pub(crate) const fn is_unsafe(c: char) -> bool {
    matches!(
        c,
        '\0'..='\x1f'
            | '\x7f'..='\u{9f}'
            | '\u{200b}'..='\u{200f}'
            | '\u{2028}'..='\u{202e}'
            | '\u{2060}'..='\u{2069}'
            | '\u{feff}'
    )
}

/// One line: characters that could drive a terminal are shown escaped.
pub(crate) fn escape(text: &str) -> Cow<'_, str> {
    escape_except(text, |_| false)
}

/// Many lines: line ends and tabs stay what they are.
pub(crate) fn escape_lines(text: &str) -> Cow<'_, str> {
    escape_except(text, |c| c == '\n' || c == '\t')
}

fn escape_except(text: &str, keep: impl Fn(char) -> bool) -> Cow<'_, str> {
    let bad = |c: char| is_unsafe(c) && !keep(c);
    if !text.contains(bad) {
        return Cow::Borrowed(text);
    }
    let mut safe = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        match c {
            c if !bad(c) => safe.push(c),
            '\n' => safe.push_str("\\n"),
            '\r' => safe.push_str("\\r"),
            '\t' => safe.push_str("\\t"),
            c if c.is_ascii() => push(&mut safe, format_args!("\\x{:02x}", u32::from(c))),
            c => push(&mut safe, format_args!("\\u{{{:x}}}", u32::from(c))),
        }
    }
    Cow::Owned(safe)
}

fn push(text: &mut String, part: std::fmt::Arguments<'_>) {
    // Writing to a `String` cannot fail.
    let _: std::fmt::Result = text.write_fmt(part);
}

/// Columns that a text takes.
pub(crate) fn columns(text: &str) -> usize {
    text.width()
}

/// At most `width` columns, with `ellipsis` where something was cut. Wide characters are never
/// halved.
pub(crate) fn clip<'a>(text: &'a str, width: usize, ellipsis: &str) -> Cow<'a, str> {
    if columns(text) <= width {
        return Cow::Borrowed(text);
    }
    let Some(room) = width.checked_sub(columns(ellipsis)) else {
        return Cow::Owned(ellipsis.chars().take(width).collect());
    };
    let mut used = 0;
    let mut clipped = String::new();
    for c in text.chars() {
        used += c.width().unwrap_or(0);
        if used > room {
            break;
        }
        clipped.push(c);
    }
    clipped.push_str(ellipsis);
    Cow::Owned(clipped)
}

/// Filled with spaces on the right up to `width` columns.
pub(crate) fn pad(text: &str, width: usize) -> String {
    format!("{text}{:fill$}", "", fill = width.saturating_sub(columns(text)))
}

/// The first line that is not blank, without blanks around it.
pub(crate) fn first_line(text: &str) -> &str {
    text.lines().map(str::trim).find(|line| !line.is_empty()).unwrap_or("")
}

/// What an answer comes to: its last line that is not empty, since a program concludes there, and
/// whether there are others before it. Looks at no more than the last `bytes`.
pub(crate) fn last_line(text: &str, bytes: usize) -> (&str, bool) {
    let text = text.trim();
    let start = (text.len().saturating_sub(bytes)..).find(|start| text.is_char_boundary(*start));
    let tail = start.and_then(|start| text.get(start..)).unwrap_or("");
    let line = tail.lines().next_back().unwrap_or("").trim();
    (line, line.len() < text.len())
}

/// The first bytes of a text, at most `bytes`, never half a character.
pub(crate) fn head(text: &str, bytes: usize) -> &str {
    let end = (0..=bytes.min(text.len())).rev().find(|end| text.is_char_boundary(*end));
    &text[..end.unwrap_or(0)]
}

/// A name for a task: the first line of its goal, safe and at most `width` columns.
pub(crate) fn label(goal: &str, width: usize) -> String {
    // Four bytes per column hold any text that fits.
    let line = escape(head(first_line(goal), 4 * width + 4)).into_owned();
    clip(&line, width, "…").into_owned()
}

/// How long something took: `0.3s`, `64.2s`, `12m05s`, `3h07m`.
pub(crate) fn took(duration: Duration) -> String {
    let seconds = duration.as_secs();
    match seconds {
        0..100 => format!("{:.1}s", duration.as_secs_f64()),
        100..3600 => format!("{}m{:02}s", seconds / 60, seconds % 60),
        _ => format!("{}h{:02}m", seconds / 3600, seconds / 60 % 60),
    }
}

/// Seconds of an entry as a duration; what cannot be one is zero.
pub(crate) fn from_seconds(seconds: f64) -> Duration {
    Duration::try_from_secs_f64(seconds).unwrap_or_default()
}

/// A running clock: `0:04`, `12:05`, `3:07:00`.
pub(crate) fn clock(duration: Duration) -> String {
    let seconds = duration.as_secs();
    let (hours, minutes, seconds) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    if hours > 0 {
        format!("{hours}:{minutes:02}:{seconds:02}")
    } else {
        format!("{minutes}:{seconds:02}")
    }
}

/// How long ago, in the largest unit: `3s ago`, `2h ago`.
pub(crate) fn ago(age: Duration) -> String {
    let seconds = age.as_secs();
    match seconds {
        0..60 => format!("{seconds}s ago"),
        60..3600 => format!("{}m ago", seconds / 60),
        3600..172_800 => format!("{}h ago", seconds / 3600),
        _ => format!("{}d ago", seconds / 86_400),
    }
}

/// A number with its noun: `1 task`, `3 tasks`.
pub(crate) fn count(number: usize, one: &str, many: &str) -> String {
    format!("{number} {}", if number == 1 { one } else { many })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn what_drives_a_terminal_is_shown() {
        for (text, shown) in [
            ("plain äß 漢字 ✔", "plain äß 漢字 ✔"),
            ("a\x1b[2Jb", "a\\x1b[2Jb"),
            ("\r\n\t\0\x7f", "\\r\\n\\t\\x00\\x7f"),
            ("\u{9b}31m", "\\u{9b}31m"),
            ("\u{202e}evil\u{2066}", "\\u{202e}evil\\u{2066}"),
            ("\x1b]0;title\x07", "\\x1b]0;title\\x07"),
        ] {
            assert_eq!(escape(text), shown);
        }
        assert_eq!(escape_lines("a\tb\n\x1bc\r\n"), "a\tb\n\\x1bc\\r\n");
    }

    #[test]
    fn clipping_counts_columns() {
        assert_eq!(clip("abcdef", 6, "…"), "abcdef");
        assert_eq!(clip("abcdef", 4, "…"), "abc…");
        assert_eq!(clip("漢字漢字", 5, "…"), "漢字…");
        assert_eq!(clip("漢字漢字", 4, "…"), "漢…");
        assert_eq!(clip("abcdef", 2, "..."), "..");
        assert_eq!(clip("abc", 0, "…"), "");
        assert_eq!(pad("漢字", 6), "漢字  ");
    }

    #[test]
    fn times() {
        let s = Duration::from_secs;
        assert_eq!(took(Duration::from_millis(320)), "0.3s");
        assert_eq!(took(Duration::from_millis(64_200)), "64.2s");
        assert_eq!([took(s(725)), took(s(11_220))], ["12m05s", "3h07m"]);
        assert_eq!([clock(s(4)), clock(s(725)), clock(s(11_220))], ["0:04", "12:05", "3:07:00"]);
        assert_eq!([ago(s(3)), ago(s(7300)), ago(s(200_000))], ["3s ago", "2h ago", "2d ago"]);
        assert_eq!(from_seconds(-1.0), Duration::ZERO);
    }

    #[test]
    fn an_answer_comes_to_its_last_line() {
        for (text, bytes, expected) in [
            ("", 9, ("", false)),
            (" \n\t\n", 9, ("", false)),
            ("one\n", 9, ("one", false)),
            ("one\ntwo \n\n", 99, ("two", true)),
            ("one\n漢字", 5, ("字", true)),
            ("one\n漢字", 0, ("", true)),
        ] {
            assert_eq!(last_line(text, bytes), expected, "{text:?} {bytes}");
        }
    }

    proptest! {
        #[test]
        fn an_escaped_text_has_nothing_left_to_escape(text in any::<String>()) {
            let once = escape(&text).into_owned();
            prop_assert!(!once.chars().any(is_unsafe));
            prop_assert_eq!(escape(&once), once.as_str());
        }

        #[test]
        fn a_clipped_text_fits(text in "[a-z漢é]{0,20}", width in 0_usize..12) {
            prop_assert!(columns(&clip(&text, width, "…")) <= width);
        }
    }
}

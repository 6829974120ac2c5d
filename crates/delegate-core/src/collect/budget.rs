//! How much of an answer its parent takes: the lower of a fixed ceiling and a share of the room that the
//! parent has left, and the cut that keeps head and tail. Pure; [`crate::run`] writes the whole to a file.

use std::path::Path;

use crate::plan::parent::Headroom;

/// The least that any answer may have, however full the parent is, in characters.
pub const FLOOR: u64 = 2_000;

/// Characters per token, about.
const CHARS_PER_TOKEN: u64 = 4;

/// Of the room that is left, all answers of one call together take one part in so many.
const SHARE: u64 = 2;

/// Characters of the head among 100 that are kept; the rest is the tail.
const HEAD: usize = 75;

/// Characters that each of `summaries` answers may have; `None`: all.
#[must_use]
pub fn cap(ceiling: Option<u64>, headroom: Option<Headroom>, summaries: u64) -> Option<u64> {
    let share = headroom.map(|Headroom { context_length, last_prompt_tokens, output_reserve }| {
        let left = context_length.saturating_sub(last_prompt_tokens).saturating_sub(output_reserve);
        (left / SHARE / summaries.max(1)).saturating_mul(CHARS_PER_TOKEN).max(FLOOR)
    });
    match (ceiling, share) {
        (Some(ceiling), Some(share)) => Some(ceiling.min(share)),
        (ceiling, share) => ceiling.or(share),
    }
}

/// Where a text is cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cut {
    /// Bytes of the head.
    pub head: usize,
    /// Byte at which the tail begins.
    pub tail: usize,
    /// The first line that is left out, wholly or partly, from 1.
    pub line: usize,
}

/// Cuts a text of more than `cap` characters: head and tail, at the end of a line where there is one in
/// the half that is nearer to the gap. `None`: it fits.
#[must_use]
pub fn cut(text: &str, cap: u64) -> Option<Cut> {
    let cap = usize::try_from(cap).unwrap_or(usize::MAX);
    // Bytes are at least as many as characters.
    let over = text.len() > cap && text.char_indices().nth(cap).is_some();
    over.then(|| {
        let head_chars = head_chars(cap);
        let head = head_end(text, head_chars);
        let tail = tail_start(text, cap - head_chars);
        Cut { head, tail, line: line_after(&text[..head]) }
    })
}

/// Characters of `cap` that are head.
#[must_use]
pub const fn head_chars(cap: usize) -> usize {
    // In this order it cannot overflow.
    cap / 100 * HEAD + cap % 100 * HEAD / 100
}

/// The number of the line behind a head, from 1.
#[must_use]
pub fn line_after(head: &str) -> usize {
    head.matches('\n').count() + 1
}

/// Bytes of the first `chars` characters, or fewer, so that a line ends there.
#[must_use]
pub fn head_end(text: &str, chars: usize) -> usize {
    let end = text.char_indices().nth(chars).map_or(text.len(), |(at, _)| at);
    text[..end].rfind('\n').map(|at| at + 1).filter(|at| *at > end / 2).unwrap_or(end)
}

/// Byte at which the last `chars` characters begin, or a later one at which a line begins.
#[must_use]
pub fn tail_start(text: &str, chars: usize) -> usize {
    let Some(last) = chars.checked_sub(1) else { return text.len() };
    let start = text.char_indices().rev().nth(last).map_or(0, |(at, _)| at);
    if start == 0 || text[..start].ends_with('\n') {
        return start;
    }
    let rest = &text[start..];
    let next = rest.find('\n').map(|at| at + 1).filter(|at| *at <= rest.len() / 2);
    start + next.unwrap_or(0)
}

/// What stands between head and tail.
#[must_use]
pub fn gap(left_out: u64) -> String {
    format!("\n[… {left_out} bytes are left out here …]\n")
}

/// What stands below a text that was cut: where the whole is, and where to go on reading.
#[must_use]
pub fn footer(path: &Path, line: usize) -> String {
    let path = path.display();
    format!("\n[The whole answer is in {path}; what is left out begins in line {line}.]")
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const fn headroom(context_length: u64, last_prompt_tokens: u64) -> Headroom {
        Headroom { context_length, last_prompt_tokens, output_reserve: 1_000 }
    }

    #[test]
    fn c48_the_cap_is_the_lower_of_ceiling_and_share_and_unknown_room_counts_for_nothing() {
        for (ceiling, room, summaries, expected) in [
            (None, None, 3, None),
            (Some(50_000), None, 3, Some(50_000)),
            // (101,000 - 50,000 - 1,000) / 2 / 5 * 4
            (None, Some(headroom(101_000, 50_000)), 5, Some(20_000)),
            (Some(5_000), Some(headroom(101_000, 50_000)), 5, Some(5_000)),
            (Some(50_000), Some(headroom(101_000, 50_000)), 5, Some(20_000)),
            // Full, and over full.
            (None, Some(headroom(10_000, 10_000)), 1, Some(FLOOR)),
            (None, Some(headroom(10_000, u64::MAX)), 0, Some(FLOOR)),
            (Some(100), Some(headroom(10_000, 10_000)), 1, Some(100)),
            (None, Some(headroom(u64::MAX, 0)), 1, Some(u64::MAX)),
        ] {
            assert_eq!(cap(ceiling, room, summaries), expected, "{ceiling:?} {room:?} {summaries}");
        }
    }

    #[test]
    fn c48_head_and_tail_are_whole_lines_and_the_line_of_the_gap_is_right() {
        let text: String = (1..=100).map(|line| format!("line number {line:04}\n")).collect();
        let Cut { head, tail, line } = cut(&text, 400).unwrap();
        assert_eq!(text[..head].lines().last(), Some("line number 0017"));
        assert!(text[..head].ends_with('\n') && text[tail..].starts_with("line number "));
        assert_eq!(line, 18);
        assert_eq!(text.lines().nth(line - 1), Some("line number 0018"));
        assert_eq!(cut(&text, 1_700), None);
        assert!(cut(&text, 1_699).is_some());
        // One line without an end is cut inside.
        assert_eq!(cut(&"x".repeat(101), 100), Some(Cut { head: 75, tail: 76, line: 1 }));
    }

    proptest! {
        #[test]
        fn a_cut_keeps_no_more_than_the_cap_and_not_much_less(
            text in "[a-zé\u{1f600}\n]{0,300}", cap in 1_u64..200,
        ) {
            let chars = text.chars().count() as u64;
            match cut(&text, cap) {
                None => prop_assert!(chars <= cap),
                Some(Cut { head, tail, line }) => {
                    prop_assert!(chars > cap && head <= tail);
                    let kept = (text[..head].chars().count() + text[tail..].chars().count()) as u64;
                    prop_assert!(kept <= cap, "{} of {}", kept, cap);
                    // Half of the bytes at least; a character has four at most.
                    prop_assert!(kept + 2 >= cap / 8, "{} of {}", kept, cap);
                    prop_assert_eq!(line, text[..head].split('\n').count());
                }
            }
        }
    }
}

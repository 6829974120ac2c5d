//! The quality gate for goals that a model wrote: [`fault`] finds those that say nothing. Used by
//! `call`. Generous: what might be meant passes.

/// Fewest characters of a goal where there are two tasks or more.
pub const MIN_GOAL: usize = 10;

/// Words that stand for a goal that was to follow.
const PLACEHOLDERS: [&str; 12] = [
    "todo",
    "tbd",
    "task",
    "goal",
    "subtask",
    "placeholder",
    "example",
    "test",
    "n/a",
    "none",
    "null",
    "...",
];

/// Why a goal says nothing; `tasks` is how many the call has.
#[must_use]
pub fn fault(goal: &str, tasks: usize) -> Option<String> {
    let goal = goal.trim();
    if is_placeholder(goal) {
        return Some("the goal is a placeholder".to_owned());
    }
    if let Some(marker) = marker(goal) {
        return Some(format!("the goal holds `{marker}`, which nobody filled in"));
    }
    let length = goal.chars().count();
    (tasks >= 2 && length < MIN_GOAL).then(|| {
        format!("the goal has {length} characters; at least {MIN_GOAL} are needed in a batch")
    })
}

/// `todo`, `Task 3`, `goal #2:`.
fn is_placeholder(goal: &str) -> bool {
    let lower = goal.to_lowercase();
    let bare = lower.trim_end_matches(|c: char| {
        c.is_ascii_digit() || c.is_whitespace() || matches!(c, '#' | ':' | '.' | '-' | '_' | '!')
    });
    PLACEHOLDERS.contains(&lower.as_str()) || PLACEHOLDERS.contains(&bare)
}

/// Longest text between two brackets that is taken for a marker.
const MARKER: usize = 80;

/// An unfilled marker of several words: `<name of file>`, `{the topic}`. Generics (`Vec<u8>`,
/// `Map<K, V>`), tags of HTML, and braces with one word or code in them are none.
fn marker(goal: &str) -> Option<&str> {
    [('<', '>'), ('{', '}')].into_iter().find_map(|(open, close)| {
        goal.match_indices(open).find_map(|(start, _)| {
            let inside = &goal[start + open.len_utf8()..];
            let inside = &inside[..inside.find([close, open])?];
            let whole = &goal[start..start + open.len_utf8() + inside.len()];
            let closed = goal[start + whole.len()..].starts_with(close);
            let glued = open == '<' && goal[..start].ends_with(|c: char| c.is_alphanumeric());
            let words = inside.split_whitespace().count();
            let wordy = inside.len() <= MARKER
                && inside
                    .chars()
                    .all(|c| c.is_alphanumeric() || matches!(c, ' ' | '_' | '-' | '\''))
                && inside.starts_with(|c: char| c.is_alphabetic());
            (closed && !glued && wordy && words >= 2)
                .then(|| &goal[start..start + whole.len() + close.len_utf8()])
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn goals_that_say_nothing_are_found() {
        for goal in [
            "todo",
            "TODO",
            "Task 3",
            "task #2:",
            "goal",
            "TBD.",
            "...",
            "Summarise <name of file>",
            "Research {the topic here} well",
        ] {
            assert!(fault(goal, 1).is_some(), "{goal}");
        }
    }

    #[test]
    fn goals_that_may_be_meant_pass() {
        for goal in [
            "Explain Vec<u8> and Map<String, Vec<u8>>",
            "Why does <div class=\"a b\"> break",
            "Fill {name} into the template",
            "Port fn f() { return 1; } to C",
            "Find out if a < b and c > d holds",
            "Test the parser with a long input",
            "Erkläre <br> und {x}",
        ] {
            assert_eq!(fault(goal, 5), None, "{goal}");
        }
    }

    #[test]
    fn a_short_goal_passes_alone_and_not_in_a_batch() {
        assert_eq!(fault("sum it", 1), None);
        assert!(fault("sum it", 2).unwrap().contains("6 characters; at least 10"));
        assert_eq!(fault("sum it all", 2), None);
    }

    proptest! {
        #[test]
        fn no_goal_makes_it_panic(goal in "[<>{} a-zé\u{202e}]{0,40}", tasks in 0..3_usize) {
            let _fault = fault(&goal, tasks);
        }
    }
}

//! What a parent is told of files that it has read and a child of its changed: at the end of the summary, or
//! beside it where there is none. Pure; [`crate::run`] applies it to an outcome.

use delegate_protocol::Outcome;
use delegate_protocol::file::Done;

/// Paths that are named; the rest is counted.
pub const NAMED: usize = 8;

/// A path, and what else than a write was done to it.
pub(super) fn line(path: &str, done: &Done) -> String {
    match done {
        Done::Written => path.to_owned(),
        Done::Deleted => format!("{path} (deleted)"),
        Done::Renamed { to } => format!("{path} (now {to})"),
    }
}

/// Puts what is stale into the outcome. Nothing stale: nothing changes.
pub fn remind(outcome: &mut Outcome, stale: Vec<String>) {
    if stale.is_empty() {
        return;
    }
    match &mut outcome.summary {
        Some(summary) if !outcome.answer_is_json => summary.push_str(&note(&stale)),
        // JSON with a sentence behind it is no JSON.
        _ => outcome.stale_paths = stale,
    }
}

fn note(stale: &[String]) -> String {
    let named = stale.iter().take(NAMED).map(String::as_str).collect::<Vec<_>>().join(", ");
    let more = match stale.len().saturating_sub(NAMED) {
        0 => String::new(),
        more => format!(", and {more} more"),
    };
    format!(
        "\n\n[This task changed files that you have read. Read them again before you rely on them or write \
         them: {named}{more}]"
    )
}

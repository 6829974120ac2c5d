//! The short form of an outcome, for the last event of a child; the whole comes from [`super`].

use delegate_protocol::Outcome;
use delegate_protocol::event::{
    COMPLETE_PATHS, COMPLETE_PREVIEW_CHARS, COMPLETE_SUMMARY_CHARS, Complete,
};

/// What `subagent.complete` carries of an outcome.
#[must_use]
pub fn complete(outcome: &Outcome) -> Complete {
    Complete {
        status: outcome.status,
        exit_reason: outcome.exit_reason,
        preview: preview(outcome.summary.as_ref().or(outcome.error.as_ref())),
        duration_seconds: outcome.duration_seconds,
        summary: outcome
            .summary
            .as_ref()
            .map(|text| text.chars().take(COMPLETE_SUMMARY_CHARS).collect()),
        error: outcome.error.clone(),
        api_calls: outcome.api_calls,
        tokens: outcome.tokens,
        reasoning_tokens: outcome.reasoning_tokens,
        cost_usd: outcome.cost_usd,
        files_read: outcome.files_read.iter().take(COMPLETE_PATHS).cloned().collect(),
        files_written: outcome.files_written.iter().take(COMPLETE_PATHS).cloned().collect(),
        output_tail: outcome.output_tail.clone(),
    }
}

/// The first characters on one line.
fn preview(text: Option<&String>) -> String {
    let chars = text.map_or("", String::as_str).trim().chars().take(COMPLETE_PREVIEW_CHARS);
    chars.map(|letter| if letter.is_control() { ' ' } else { letter }).collect()
}

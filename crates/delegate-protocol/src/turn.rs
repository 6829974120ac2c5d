//! A child that takes several prompts, one after another: what it asks of its parent between two turns, and
//! what it is told. Asked and answered through [`crate::ask`]; the parent gives the prompts, and keeps what came of
//! them.

use serde::{Deserialize, Serialize};

use crate::outcome::{ExitReason, SchemaWord, Status, Tokens};

/// Bytes of one prompt.
pub const PROMPT_BYTES: usize = 4 * 1024 * 1024;

/// Bytes of the answer of one turn. What is larger belongs in a file.
pub const TURN_ANSWER_BYTES: usize = 8 * 1024 * 1024;

/// Bytes of texts in one [`TurnAnswer::History`], beside the first turn in it.
pub const HISTORY_BYTES: usize = 1024 * 1024;

/// Turns in one [`TurnAnswer::History`].
pub const HISTORY_TURNS: usize = 256;

/// The classified cause ([`crate::Finish::failure_reason`]) of a worker whose agent takes no prompts.
pub const NO_TURNS: &str = "takes_no_turns";

/// That of a worker that has left between two turns by its own word: a prompt that was on its way to it was not begun.
/// Only its child says so, never an agent in a turn, whose failures are those of the turn.
pub const BETWEEN_TURNS: &str = "between_turns";

/// Asked by a child.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TurnQuestion {
    /// What next? Answered by [`TurnAnswer::Prompt`] when there is one, or [`TurnAnswer::NoMore`].
    Next,
    /// A turn is over. Answered by [`TurnAnswer::Noted`] once that is stored.
    Over(Box<TurnEnd>),
    /// What was before, after this turn? Answered by [`TurnAnswer::History`].
    History {
        /// A number of a turn; 0 for all.
        after: u64,
    },
}

/// Answered by the parent.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TurnAnswer {
    /// The next prompt.
    Prompt {
        /// Counts the turns of the session from 1, over all its workers.
        number: u64,
        /// At most [`PROMPT_BYTES`].
        text: String,
    },
    /// There will be none: finish.
    NoMore,
    /// It is stored.
    Noted,
    /// Turns that have ended, oldest first; none after the last.
    History(Vec<PastTurn>),
}

/// How a turn ended, in its agent's words.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TurnEnd {
    /// Which.
    pub number: u64,
    /// Completed, out of iterations, interrupted, or an error.
    pub exit_reason: ExitReason,
    /// The answer, or what there was; at most [`TURN_ANSWER_BYTES`].
    pub answer: String,
    /// Whether it is the agent's text, or JSON of its typed answer.
    pub answer_is_json: bool,
    /// It is empty on purpose.
    pub empty_on_purpose: bool,
    /// What went wrong.
    pub error: Option<String>,
    /// Classified cause of a failure.
    pub failure_reason: Option<String>,
    /// How the answer met the task's schema.
    pub schema: Option<SchemaWord>,
    /// Model calls of this turn.
    pub api_calls: u64,
    /// Tokens of this turn.
    pub tokens: Tokens,
    /// Money of this turn, in US dollars.
    pub cost_usd: Option<f64>,
}

/// A turn that has ended, as its successors see it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PastTurn {
    /// Which.
    pub number: u64,
    /// What was asked.
    pub prompt: String,
    /// How it ended.
    pub status: Status,
    /// The answer, or what there was of it.
    pub answer: String,
    /// What went wrong.
    pub error: Option<String>,
}

/// How a turn ended, in short: what [`crate::Event::Turn`] carries. The whole of it is in the session's database.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TurnOver {
    /// Status, as of a task.
    pub status: Status,
    /// Why it ended.
    pub exit_reason: ExitReason,
    /// The first 160 characters of the answer, else of the error, on one line.
    pub preview: String,
    /// What went wrong.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// How long it took, in seconds.
    pub duration_seconds: f64,
    /// Model calls.
    pub api_calls: u64,
    /// Tokens.
    pub tokens: Tokens,
    /// Money, in US dollars.
    pub cost_usd: Option<f64>,
}

impl TurnOver {
    pub(crate) fn weight(&self) -> usize {
        self.preview.len() + self.error.as_ref().map_or(0, String::len)
    }
}

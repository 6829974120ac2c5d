//! How a turn ended: [`TurnOutcome`], judged from its worker's word, or from how the worker ended. Pure.

use std::time::Duration;

use delegate_protocol::event::seconds;
use delegate_protocol::outcome::SchemaWord;
use delegate_protocol::{Cause, ExitReason, Outcome, RunId, Status, Tokens, TurnEnd, TurnOver};
use serde::{Deserialize, Serialize};

use super::machine::Stop;
use crate::collect::limits;

/// Characters of [`TurnOver::preview`].
const PREVIEW: usize = 160;

/// The answer that a model gives up with; it is no answer.
const GIVE_UP: &str = "(empty)";

/// The end of one turn of a session.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TurnOutcome {
    /// Which session.
    pub session: RunId,
    /// Which turn, from 1.
    pub turn: u64,
    /// The run of the worker that it was given to; `None`: it was never begun.
    pub run_id: Option<RunId>,
    /// As of a task.
    pub status: Status,
    /// Why it ended.
    pub exit_reason: ExitReason,
    /// How its worker ended, where that ended the turn.
    pub cause: Option<Cause>,
    /// The answer, or what there was of it.
    pub answer: String,
    /// Whether that is JSON of a typed answer.
    pub answer_is_json: bool,
    /// What went wrong.
    pub error: Option<String>,
    /// Classified cause of a failure.
    pub failure_reason: Option<String>,
    /// How the answer met the task's schema.
    pub schema: Option<SchemaWord>,
    /// From its begin, in seconds.
    pub duration_seconds: f64,
    /// Model calls.
    pub api_calls: u64,
    /// Tokens.
    pub tokens: Tokens,
    /// Money, in US dollars.
    pub cost_usd: Option<f64>,
    /// Whether it is on disk.
    pub durable: bool,
}

/// A turn that was begun.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Begun {
    pub(super) session: RunId,
    pub(super) turn: u64,
    pub(super) run: RunId,
    pub(super) lasted: Duration,
    pub(super) limit: Option<Duration>,
}

impl Begun {
    fn outcome(
        self,
        status: Status,
        exit_reason: ExitReason,
        error: Option<String>,
    ) -> TurnOutcome {
        TurnOutcome {
            session: self.session,
            turn: self.turn,
            run_id: Some(self.run),
            status,
            exit_reason,
            cause: None,
            answer: String::new(),
            answer_is_json: false,
            error,
            failure_reason: None,
            schema: None,
            duration_seconds: seconds(self.lasted),
            api_calls: 0,
            tokens: Tokens::default(),
            cost_usd: None,
            durable: false,
        }
    }

    fn limit_text(self) -> String {
        let limit = self.limit.unwrap_or_default().as_secs_f64();
        format!("its limit of {limit} s ran out")
    }
}

/// By its worker's own word.
pub(super) fn told(begun: Begun, stop: Option<Stop>, end: TurnEnd) -> TurnOutcome {
    let TurnEnd {
        number: _,
        exit_reason,
        answer,
        answer_is_json,
        empty_on_purpose,
        error,
        failure_reason,
        schema,
        api_calls,
        tokens,
        cost_usd,
    } = end;
    let (status, exit_reason, error) = match (exit_reason, stop) {
        (ExitReason::Completed | ExitReason::MaxIterations, _) => {
            let empty = answer.is_empty() || answer.trim() == GIVE_UP;
            if empty && !empty_on_purpose {
                (Status::Failed, exit_reason, Some("it gave no answer".to_owned()))
            } else {
                (Status::Completed, exit_reason, error)
            }
        }
        (ExitReason::Interrupted, Some(Stop::Timeout)) => {
            (Status::Timeout, ExitReason::Timeout, Some(begun.limit_text()))
        }
        (ExitReason::Interrupted, _) => {
            let error = error.unwrap_or_else(|| "it was stopped".to_owned());
            (Status::Interrupted, exit_reason, Some(error))
        }
        (ExitReason::Error | ExitReason::Timeout, _) => {
            let error = error.unwrap_or_else(|| "it failed and gave no reason".to_owned());
            (Status::Failed, ExitReason::Error, Some(error))
        }
    };
    TurnOutcome {
        answer,
        answer_is_json,
        failure_reason,
        schema,
        api_calls,
        tokens,
        cost_usd,
        ..begun.outcome(status, exit_reason, error)
    }
}

/// By the end of its worker; `None` where nothing is known of that.
pub(super) fn lost(begun: Begun, stop: Option<Stop>, worker: Option<Outcome>) -> TurnOutcome {
    let why = worker.as_ref().and_then(|worker| worker.error.clone());
    let mut why = why.unwrap_or_else(|| "it left without a word".to_owned());
    let met = worker.as_ref().and_then(limits::met).filter(|met| !why.contains(met));
    why.extend(met.map(|met| format!("; {met}")));
    let ended = worker.as_ref().map(|worker| (worker.status, worker.exit_reason));
    let (status, exit_reason, error) = match (stop, ended) {
        (Some(Stop::Timeout), _) => {
            let error =
                format!("{}; it did not unwind, and its worker was ended", begun.limit_text());
            (Status::Timeout, ExitReason::Timeout, error)
        }
        (Some(Stop::Asked), _) | (None, Some((Status::Interrupted, _))) => {
            let error = format!("it was stopped, and its worker with it: {why}");
            (Status::Interrupted, ExitReason::Interrupted, error)
        }
        (None, Some((status @ (Status::Timeout | Status::Failed), exit_reason))) => {
            (status, exit_reason, format!("its worker ended: {why}"))
        }
        (None, Some((Status::Completed | Status::Error | Status::Unknown, _)) | None) => {
            (Status::Error, ExitReason::Error, format!("its worker was lost: {why}"))
        }
    };
    let mut outcome = begun.outcome(status, exit_reason, Some(error));
    if let Some(worker) = worker {
        outcome.cause = worker.cause;
        outcome.failure_reason = worker.failure_reason;
        outcome.answer = worker.summary.unwrap_or_default();
    }
    outcome
}

/// One that was never given to a worker.
pub(super) fn refused(session: RunId, turn: u64, why: String) -> TurnOutcome {
    let (run, lasted) = (RunId::from_u128(0), Duration::ZERO);
    let begun = Begun { session, turn, run, lasted, limit: None };
    let outcome = begun.outcome(Status::Interrupted, ExitReason::Interrupted, Some(why));
    TurnOutcome { run_id: None, ..outcome }
}

impl TurnOutcome {
    /// Whether a worker had it.
    #[must_use]
    pub const fn was_begun(&self) -> bool {
        self.run_id.is_some()
    }

    /// The same in short, for everybody who listens.
    pub(super) fn in_short(&self) -> TurnOver {
        let text = if self.answer.is_empty() {
            self.error.as_deref().unwrap_or_default()
        } else {
            &self.answer
        };
        let line = text.split_whitespace().take(PREVIEW).collect::<Vec<_>>().join(" ");
        TurnOver {
            status: self.status,
            exit_reason: self.exit_reason,
            preview: line.chars().take(PREVIEW).collect(),
            error: self.error.clone(),
            duration_seconds: self.duration_seconds,
            api_calls: self.api_calls,
            tokens: self.tokens,
            cost_usd: self.cost_usd,
        }
    }
}

#[cfg(test)]
#[path = "outcome_tests.rs"]
mod tests;

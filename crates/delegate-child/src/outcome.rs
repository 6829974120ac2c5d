//! [`Outcome`]: an entry with the typed answer of an agent. What a delegating program gets of each task, and
//! what a child gets that delegates itself (`delegation`).

use std::ops::Deref;

use delegate_protocol::outcome::AnswerError;

use crate::agent::Agent;

/// The outcome of one task. Derefs to its entry ([`delegate_protocol::Outcome`]).
#[derive(Debug, Clone, PartialEq)]
pub struct Outcome(delegate_protocol::Outcome);

impl Outcome {
    /// The typed answer of an agent.
    ///
    /// # Errors
    /// When the task did not complete, or the answer is of another type.
    pub fn answer<A: Agent>(&self) -> Result<A::Answer, AnswerError> {
        self.0.parse_answer()
    }

    /// The entry.
    #[must_use]
    pub fn into_entry(self) -> delegate_protocol::Outcome {
        self.0
    }
}

impl From<delegate_protocol::Outcome> for Outcome {
    fn from(entry: delegate_protocol::Outcome) -> Self {
        Self(entry)
    }
}

impl Deref for Outcome {
    type Target = delegate_protocol::Outcome;
    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

//! What a child asks of its parent, and what it is answered: the only messages that one side waits for.
//!
//! `delegate-child` asks ([`crate::ChildMessage::Ask`]), `delegate-core` answers each question once
//! ([`crate::ParentMessage::Answer`]), in any order, when it can. Whoever ends takes its open questions along.

use serde::{Deserialize, Serialize};

use crate::delegation::{Delegated, Told, Work};
use crate::file::{FileAnswer, FileQuestion};
use crate::id::RunId;
use crate::job::{JobAnswer, JobQuestion};
use crate::lease::{KeyAnswer, KeyQuestion};
use crate::turn::{TurnAnswer, TurnQuestion};

/// Questions of one child that wait for an answer at once at most. A child waits by itself before it asks more;
/// one that does not is refused.
pub const QUESTIONS: usize = 16;

/// Bytes of the reason of [`Answer::Refused`].
pub const REASON_BYTES: usize = 4 * 1024;

/// What a child wants to know, or to have.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Question {
    /// How long it may run yet. Answered by [`Answer::TimeLeft`].
    TimeLeft,
    /// That something be done by children of its own. Answered by [`Answer::Delegated`].
    Delegate {
        /// What.
        work: Work,
        /// Whether it wants to see what they do.
        events: bool,
    },
    /// What came of a delegation since it asked last. Answered by [`Answer::Told`], when there is something; until
    /// then it waits for its children, and its slot is lent to others.
    Follow {
        /// Which one.
        run: RunId,
    },
    /// That a delegation be stopped: its children are asked to unwind, and it is told to the end. Answered by
    /// [`Answer::Stopping`].
    StopDelegation {
        /// Which one.
        run: RunId,
        /// It does not want to know how it ends.
        forget: bool,
    },
    /// About a background program. Answered by [`Answer::Job`].
    Job(JobQuestion),
    /// About a file that others work on, too. Answered by [`Answer::File`].
    File(FileQuestion),
    /// About keys and calls. Answered by [`Answer::Key`].
    Key(KeyQuestion),
    /// About its turns, by one that takes several prompts. Answered by [`Answer::Turn`].
    Turn(TurnQuestion),
}

/// What it is told. One that does not fit the question is the parent's fault, and taken for a refusal.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Answer {
    /// Not granted, and why; a sentence for people.
    Refused {
        /// At most [`REASON_BYTES`].
        reason: String,
    },
    /// Milliseconds until its wall clock is over, by the parent's clock; `None` when it has no limit. More can be
    /// given later, and a pause does not count.
    TimeLeft {
        /// Milliseconds.
        ms: Option<u64>,
    },
    /// It was started.
    Delegated(Delegated),
    /// What came of it.
    Told(Told),
    /// Its children are being stopped, or there are none any more.
    Stopping,
    /// How a background program stands.
    Job(JobAnswer),
    /// What the registry of files says.
    File(FileAnswer),
    /// About keys and calls.
    Key(KeyAnswer),
    /// About its turns.
    Turn(TurnAnswer),
}

impl Question {
    /// What is asked, for logs: the name of the variant.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Self::TimeLeft => "TimeLeft",
            Self::Delegate { .. } => "Delegate",
            Self::Follow { .. } => "Follow",
            Self::StopDelegation { .. } => "StopDelegation",
            Self::Job(_) => "Job",
            Self::File(_) => "File",
            Self::Key(KeyQuestion::Rotate { .. }) => "Rotate",
            Self::Key(KeyQuestion::Await) => "Await",
            Self::Key(KeyQuestion::Permit) => "Permit",
            Self::Key(KeyQuestion::GiveBack { .. }) => "GiveBack",
            Self::Turn(TurnQuestion::Next) => "NextTurn",
            Self::Turn(TurnQuestion::Over(_)) => "TurnOver",
            Self::Turn(TurnQuestion::History { .. }) => "History",
        }
    }
}

impl Answer {
    /// A refusal, cut to its bound.
    #[must_use]
    pub fn refused(reason: impl Into<String>) -> Self {
        let mut reason = reason.into();
        if reason.len() > REASON_BYTES {
            let mut cut = REASON_BYTES;
            while !reason.is_char_boundary(cut) {
                cut -= 1;
            }
            reason.truncate(cut);
        }
        Self::Refused { reason }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_is_cut_between_characters() {
        let Answer::Refused { reason } = Answer::refused("é".repeat(REASON_BYTES)) else {
            panic!("another answer");
        };
        assert!(reason.len() <= REASON_BYTES && reason.chars().all(|letter| letter == 'é'));
    }
}

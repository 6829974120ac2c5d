//! What a child makes of its parent's messages. Pure: `serve` reads the line and acts.

use delegate_protocol::{Answer, FrameError, ParentMessage, TaskSpec, codec};

use crate::link::LinkError;

/// The largest spec that is taken in parts, in bytes: as large as the largest answer, so that one
/// child's answer can always be another one's context. What is larger belongs in a file.
pub(crate) const SPEC_CAP: usize = 1 << 30;

/// What to do after a message.
#[derive(Debug, PartialEq)]
pub(crate) enum Step {
    /// Nothing yet.
    Wait,
    /// Carry out this task.
    Begin(Box<TaskSpec>),
    /// Unwind; before a `Begin`: do not even start.
    Interrupt,
    /// A word for the agent.
    Notice(String),
    /// A word of whoever steers it.
    Steer(u64, String),
    /// This turn is not wanted any more.
    StopTurn(u64),
    /// Tell what is being done.
    Dump,
    /// What was asked.
    Answer(u64, Answer),
}

/// What was heard so far.
#[derive(Debug, PartialEq)]
pub(crate) enum Greeting {
    /// No task yet; the parts of one that is on its way.
    Waiting(Vec<u8>),
    /// The task is known.
    Begun,
}

impl Default for Greeting {
    fn default() -> Self {
        Self::Waiting(Vec::new())
    }
}

impl Greeting {
    /// Takes one message.
    ///
    /// # Errors
    /// When it is not one that may come now. The parent is not to be trusted then.
    pub(crate) fn take(&mut self, message: ParentMessage) -> Result<Step, LinkError> {
        match (&mut *self, message) {
            (_, ParentMessage::Interrupt) => Ok(Step::Interrupt),
            (_, ParentMessage::Notice { text }) => Ok(Step::Notice(text)),
            (_, ParentMessage::Steer { number, text }) => Ok(Step::Steer(number, text)),
            (_, ParentMessage::StopTurn { turn }) => Ok(Step::StopTurn(turn)),
            (Self::Waiting(_), ParentMessage::Dump) => Ok(Step::Wait),
            (Self::Begun, ParentMessage::Dump) => Ok(Step::Dump),
            (Self::Begun, ParentMessage::Answer { number, answer }) => {
                Ok(Step::Answer(number, answer))
            }
            (Self::Waiting(_), ParentMessage::Answer { .. }) => {
                Err(LinkError::OutOfOrder("an answer before Begin"))
            }
            (Self::Waiting(parts), ParentMessage::SpecPart(part)) => {
                if parts.len() + part.0.len() > SPEC_CAP {
                    return Err(LinkError::SpecTooLarge { cap: SPEC_CAP });
                }
                parts.extend_from_slice(&part.0);
                Ok(Step::Wait)
            }
            (Self::Waiting(parts), ParentMessage::BeginFromParts) => {
                let spec = codec::from_bytes(parts).map_err(FrameError::from)?;
                *self = Self::Begun;
                Ok(Step::Begin(Box::new(spec)))
            }
            (Self::Waiting(parts), ParentMessage::Begin(spec)) if parts.is_empty() => {
                *self = Self::Begun;
                Ok(Step::Begin(spec))
            }
            (Self::Waiting(_), ParentMessage::Begin(_)) => {
                Err(LinkError::OutOfOrder("Begin after parts of a spec"))
            }
            (Self::Begun, ParentMessage::Begin(_) | ParentMessage::BeginFromParts) => {
                Err(LinkError::OutOfOrder("a second Begin"))
            }
            (Self::Begun, ParentMessage::SpecPart(_)) => {
                Err(LinkError::OutOfOrder("a part of a spec after Begin"))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use delegate_protocol::{spec::sample, value::Bytes};

    fn spec() -> Box<TaskSpec> {
        Box::new(sample(0, "a", "goal"))
    }

    fn messages() -> [ParentMessage; 9] {
        [
            ParentMessage::SpecPart(Bytes(codec::to_bytes(&spec()).unwrap())),
            ParentMessage::BeginFromParts,
            ParentMessage::Begin(spec()),
            ParentMessage::Interrupt,
            ParentMessage::Notice { text: "soon".to_owned() },
            ParentMessage::Dump,
            ParentMessage::Steer { number: 1, text: "left".to_owned() },
            ParentMessage::Answer { number: 1, answer: Answer::refused("no") },
            ParentMessage::StopTurn { turn: 1 },
        ]
    }

    /// Every state × message.
    #[test]
    fn every_message_in_every_state() {
        let parts = codec::to_bytes(&spec()).unwrap();
        let table = [
            (
                Greeting::default(),
                ["Wait", "Err", "Begin", "Interrupt", "Notice", "Wait", "Steer", "Err", "StopTurn"],
            ),
            (
                Greeting::Waiting(parts),
                ["Wait", "Begin", "Err", "Interrupt", "Notice", "Wait", "Steer", "Err", "StopTurn"],
            ),
            (
                Greeting::Begun,
                ["Err", "Err", "Err", "Interrupt", "Notice", "Dump", "Steer", "Answer", "StopTurn"],
            ),
        ];
        for (state, wanted) in table {
            for (message, want) in messages().into_iter().zip(wanted) {
                let mut greeting = match &state {
                    Greeting::Waiting(parts) => Greeting::Waiting(parts.clone()),
                    Greeting::Begun => Greeting::Begun,
                };
                let got = match greeting.take(message.clone()) {
                    Ok(Step::Wait) => "Wait",
                    Ok(Step::Begin(got)) => {
                        assert_eq!(got, spec());
                        assert_eq!(greeting, Greeting::Begun);
                        "Begin"
                    }
                    Ok(Step::Interrupt) => "Interrupt",
                    Ok(Step::Notice(_)) => "Notice",
                    Ok(Step::Steer(..)) => "Steer",
                    Ok(Step::StopTurn(_)) => "StopTurn",
                    Ok(Step::Dump) => "Dump",
                    Ok(Step::Answer(..)) => "Answer",
                    Err(_) => "Err",
                };
                assert_eq!(got, want, "{state:?} × {message:?}");
            }
        }
    }

    #[test]
    fn a_spec_over_the_cap_is_a_typed_error() {
        let mut greeting = Greeting::Waiting(vec![0; SPEC_CAP]);
        let error = greeting.take(ParentMessage::SpecPart(Bytes(vec![0]))).unwrap_err();
        assert!(matches!(error, LinkError::SpecTooLarge { cap: SPEC_CAP }), "{error}");
    }
}

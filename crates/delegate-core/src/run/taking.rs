//! [`Taking`]: the answer of a child as its parts come. Used by `child_io`.
//!
//! Only a part that goes to disk leaves this thread. While it is hashed and written the next one is read, and no more
//! than that: a child that is faster than the disk waits.

use std::fmt::Display;

use tokio::task::{JoinHandle, spawn_blocking};

use crate::collect::Answer as Taken;
use crate::store::spill::{Answer, AnswerText, Rest, TooLarge};

/// An answer in the making.
pub(super) struct Taking {
    state: State,
    /// Why it is no answer.
    fault: Option<String>,
}

enum State {
    Here(Answer),
    /// A part is being written.
    Away(JoinHandle<(Answer, Result<(), TooLarge>)>),
    /// It was finished, or is none.
    Gone,
}

impl Taking {
    pub(super) const fn new(answer: Answer) -> Self {
        Self { state: State::Here(answer), fault: None }
    }

    /// Takes a part.
    pub(super) async fn part(&mut self, bytes: Vec<u8>) {
        let Some(mut answer) = self.back().await else { return };
        if answer.needs_disk(bytes.len()) {
            self.state = State::Away(spawn_blocking(move || {
                let pushed = answer.push(&bytes);
                (answer, pushed)
            }));
            return;
        }
        match answer.push(&bytes) {
            Ok(()) => self.state = State::Here(answer),
            Err(too_large) => self.fail(&too_large),
        }
    }

    /// The end: what there is.
    pub(super) async fn finish(&mut self) -> Taken {
        let finished = match self.back().await {
            // A spilled answer has its last bytes to write.
            Some(answer) if answer.needs_disk(0) => {
                spawn_blocking(move || answer.finish()).await.map(Some)
            }
            answer => Ok(answer.map(Answer::finish)),
        };
        let taken = finished.unwrap_or_else(|error| {
            self.fail(&error);
            None
        });
        Taken { fault: self.fault.take(), ..taken.map(taken_in).unwrap_or_default() }
    }

    /// Nothing more comes of one that has no end; removing its file may block.
    pub(super) async fn give_up(&mut self) {
        let Some(answer) = self.back().await.filter(|answer| answer.needs_disk(0)) else { return };
        if let Err(error) = spawn_blocking(move || drop(answer)).await {
            tracing::warn!(target: "delegate::run", %error, "half an answer was not removed");
        }
    }

    /// Why it is no answer, for one that has no end.
    pub(super) fn take_fault(&mut self) -> Option<String> {
        self.fault.take()
    }

    /// The answer, once the part before is written.
    async fn back(&mut self) -> Option<Answer> {
        match std::mem::replace(&mut self.state, State::Gone) {
            State::Here(answer) => Some(answer),
            State::Gone => None,
            State::Away(writing) => match writing.await {
                Ok((answer, Ok(()))) => Some(answer),
                Ok((_, Err(too_large))) => {
                    self.fail(&too_large);
                    None
                }
                Err(error) => {
                    self.fail(&error);
                    None
                }
            },
        }
    }

    fn fail(&mut self, fault: &dyn Display) {
        self.fault.get_or_insert_with(|| fault.to_string());
    }
}

fn taken_in(text: AnswerText) -> Taken {
    let AnswerText { summary, lossy, bytes, rest } = text;
    let (file, not_kept) = match rest {
        Rest::None => (None, None),
        Rest::File { path, sha256 } => (Some((path, sha256)), None),
        Rest::NotKept { reason } => (None, Some(reason)),
    };
    Taken { text: summary, bytes, file, lossy, not_kept, fault: None }
}

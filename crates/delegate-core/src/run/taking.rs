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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::spill::MAX_SUMMARY;

    const PART: usize = 1 << 20;
    const PARTS: usize = MAX_SUMMARY / PART + 3;

    fn on_a_runtime<T>(work: impl Future<Output = T>) -> T {
        tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(work)
    }

    /// A part on its way to disk holds up the one after the next, and no other.
    #[test]
    fn a_part_is_written_while_the_next_one_comes_and_all_of_them_arrive() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("result");
        let taken = on_a_runtime(async {
            let mut taking = Taking::new(Answer::new(Some(path.clone()), u64::MAX));
            for number in 0..PARTS {
                taking.part(vec![b'a' + u8::try_from(number).unwrap(); PART]).await;
                let away = matches!(taking.state, State::Away(_));
                assert_eq!(away, number >= MAX_SUMMARY / PART, "{number}");
            }
            taking.finish().await
        });
        let whole = std::fs::read(&path).unwrap();
        let letters = whole.chunks(PART).map(|part| part[0]);
        assert!(letters.eq((0..PARTS).map(|number| b'a' + u8::try_from(number).unwrap())));
        assert_eq!((taken.bytes, taken.text.len()), (whole.len() as u64, MAX_SUMMARY));
        assert_eq!((taken.file.map(|(path, _)| path), taken.fault), (Some(path), None));
    }

    #[test]
    fn an_answer_that_grows_too_large_or_has_no_end_leaves_no_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("result");
        let limit = MAX_SUMMARY as u64 + 1;
        on_a_runtime(async {
            let mut taking = Taking::new(Answer::new(Some(path.clone()), limit));
            for len in [MAX_SUMMARY, 1, 1, 1] {
                taking.part(vec![b'x'; len]).await;
            }
            let taken = taking.finish().await;
            assert!(taken.fault.is_some_and(|fault| fault.contains("max_result_bytes")));
            assert!(!path.exists());

            let mut taking = Taking::new(Answer::new(Some(path.clone()), limit));
            for len in [MAX_SUMMARY, 1] {
                taking.part(vec![b'x'; len]).await;
            }
            taking.give_up().await;
            assert_eq!(taking.take_fault(), None);
            assert!(!path.exists());
        });
    }
}

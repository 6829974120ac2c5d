//! Words for the children of one batch: accepted, sent, taken by the agent, or missed. Pure;
//! `control` holds it under the lock that makes accepting and closing one order, the loop sends what
//! it holds.

use std::collections::BTreeMap;

use delegate_protocol::message::{STEER_BYTES, STEERS};

/// Why a child was not steered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SteerError {
    /// There is no such child in this run.
    #[error("there is no such child")]
    NoSuchChild,
    /// It has its result, or the run has ended.
    #[error("it has ended")]
    Ended,
    /// So many words wait for it already.
    #[error("{STEERS} words wait for it already: it does not read them")]
    Full,
    /// The worker of a session was lost, and another is on its way.
    #[error("its worker is being replaced: try again")]
    NoWorker,
    /// Nothing was said.
    #[error("the text is blank")]
    Blank,
    /// It is too long to be said at once.
    #[error("the text is over {STEER_BYTES} bytes")]
    TooLong,
}

#[derive(Debug)]
struct Letter {
    number: u64,
    text: String,
    sent: bool,
}

/// What was accepted and is not known to be taken.
#[derive(Debug, Default)]
pub(crate) struct Steers {
    waiting: BTreeMap<u32, Vec<Letter>>,
    /// One bit per task.
    closed: Vec<u64>,
    number: u64,
}

impl Steers {
    /// Accepts a word for a task, also for one that waits for its turn.
    pub(crate) fn accept(&mut self, index: u32, text: String) -> Result<u64, SteerError> {
        if text.trim().is_empty() {
            return Err(SteerError::Blank);
        }
        if text.len() > STEER_BYTES {
            return Err(SteerError::TooLong);
        }
        if self.is_closed(index) {
            return Err(SteerError::Ended);
        }
        let letters = self.waiting.entry(index).or_default();
        if letters.len() >= STEERS {
            return Err(SteerError::Full);
        }
        self.number += 1;
        letters.push(Letter { number: self.number, text, sent: false });
        Ok(self.number)
    }

    /// Tasks for which something was accepted and not sent.
    pub(crate) fn unsent(&self) -> Vec<u32> {
        let unsent = |letters: &Vec<Letter>| letters.iter().any(|letter| !letter.sent);
        self.waiting
            .iter()
            .filter(|(_, letters)| unsent(letters))
            .map(|(index, _)| *index)
            .collect()
    }

    /// What is to be sent now; it counts as sent from here on.
    pub(crate) fn send(&mut self, index: u32) -> Vec<(u64, String)> {
        let letters = self.waiting.get_mut(&index).into_iter().flatten();
        let unsent = letters.filter(|letter| !letter.sent).map(|letter| {
            letter.sent = true;
            (letter.number, letter.text.clone())
        });
        unsent.collect()
    }

    /// The agent has it. What was never sent nobody can have.
    pub(crate) fn taken(&mut self, index: u32, number: u64) {
        if let Some(letters) = self.waiting.get_mut(&index) {
            letters.retain(|letter| !letter.sent || letter.number != number);
        }
    }

    /// How many wait for it.
    pub(crate) fn waiting(&self, index: u32) -> usize {
        self.waiting.get(&index).map_or(0, Vec::len)
    }

    /// Nothing is accepted for it any more.
    pub(crate) fn close(&mut self, index: u32) {
        let (word, bit) = (index as usize / 64, index % 64);
        if self.closed.len() <= word {
            self.closed.resize(word + 1, 0);
        }
        self.closed[word] |= 1 << bit;
    }

    pub(crate) fn is_closed(&self, index: u32) -> bool {
        self.closed.get(index as usize / 64).is_some_and(|word| word >> (index % 64) & 1 == 1)
    }

    /// Closes it, and gives what it did not take.
    pub(crate) fn missed(&mut self, index: u32) -> Vec<String> {
        self.close(index);
        let letters = self.waiting.remove(&index).unwrap_or_default();
        letters.into_iter().map(|letter| letter.text).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn what_cannot_be_said_is_refused_with_its_reason() {
        let mut steers = Steers::default();
        let mut say = |text: &str| steers.accept(3, text.to_owned());
        assert_eq!(say(" \n"), Err(SteerError::Blank));
        assert_eq!(say(&"x".repeat(STEER_BYTES + 1)), Err(SteerError::TooLong));
        for _ in 0..STEERS {
            say("left").unwrap();
        }
        assert_eq!(say("left"), Err(SteerError::Full));
        steers.close(3);
        assert_eq!(steers.accept(3, "left".to_owned()), Err(SteerError::Ended));
        assert!(steers.accept(2, "other".to_owned()).is_ok() && !steers.is_closed(67));
    }

    #[derive(Debug, Clone)]
    enum Step {
        Accept,
        Send,
        Taken(usize),
        Close,
    }

    fn any_step() -> impl Strategy<Value = Step> {
        prop_oneof![
            3 => Just(Step::Accept),
            2 => Just(Step::Send),
            2 => (0_usize..8).prop_map(Step::Taken),
            1 => Just(Step::Close),
        ]
    }

    proptest! {
        /// Each accepted word is taken or missed: never both, never neither.
        #[test]
        fn c22_every_word_is_taken_or_missed_in_any_order(
            steps in prop::collection::vec(any_step(), 0..60)
        ) {
            let (mut steers, mut accepted, mut sent) = (Steers::default(), Vec::new(), Vec::new());
            let (mut taken, mut closed) = (Vec::new(), false);
            for (number, step) in steps.into_iter().enumerate() {
                match step {
                    Step::Accept => match steers.accept(9, number.to_string()) {
                        Ok(_) => {
                            prop_assert!(!closed);
                            accepted.push(number.to_string());
                        }
                        Err(error) => prop_assert!(closed || error == SteerError::Full),
                    },
                    Step::Send => sent.extend(steers.send(9)),
                    Step::Taken(at) if at < sent.len() => {
                        let (number, text) = sent.remove(at);
                        steers.taken(9, number);
                        taken.push(text);
                    }
                    // A number that nobody was given changes nothing.
                    Step::Taken(_) => steers.taken(9, u64::MAX),
                    Step::Close => {
                        steers.close(9);
                        closed = true;
                    }
                }
            }
            let mut known = steers.missed(9);
            known.extend(taken);
            known.sort();
            accepted.sort();
            prop_assert_eq!(known, accepted);
        }
    }
}

//! [`Reply`]: the one answer to one question of a child. `child_io` makes it and writes what was answered, the
//! loop hands it to whoever decides.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use delegate_protocol::ask::QUESTIONS;
use delegate_protocol::{Answer, ParentMessage};
use tokio::sync::mpsc;

/// Owes an answer; may be given from any thread. One that is dropped refuses, so that no child waits for
/// nothing.
#[derive(Debug)]
pub(crate) struct Reply {
    number: u64,
    replies: Replies,
    given: bool,
}

/// The way of answers to one child. Its questions are counted, so the channel needs no bound.
#[derive(Debug, Clone)]
pub(super) struct Replies {
    sender: mpsc::UnboundedSender<ParentMessage>,
    open: Arc<AtomicUsize>,
}

/// The end of that way, at the child's writer. A question is open until the child has taken its answer: one that
/// asks and never listens is soon refused, and nothing piles up.
#[derive(Debug)]
pub(super) struct Answers {
    receiver: mpsc::UnboundedReceiver<ParentMessage>,
    open: Arc<AtomicUsize>,
}

impl Answers {
    /// The next answer to be written.
    pub(super) async fn next(&mut self) -> Option<ParentMessage> {
        self.receiver.recv().await
    }

    /// It was taken.
    pub(super) fn written(&self) {
        self.open.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Replies {
    /// The way, and its end at the child's writer.
    pub(super) fn new() -> (Self, Answers) {
        let (sender, receiver) = mpsc::unbounded_channel();
        let open = Arc::<AtomicUsize>::default();
        (Self { sender, open: Arc::clone(&open) }, Answers { receiver, open })
    }

    /// Takes up a question; `None` for one more than may be open.
    pub(super) fn take_up(&self, number: u64) -> Option<Reply> {
        if self.open.load(Ordering::Relaxed) >= QUESTIONS {
            return None;
        }
        self.open.fetch_add(1, Ordering::Relaxed);
        Some(Reply { number, replies: self.clone(), given: false })
    }
}

impl Reply {
    /// Answers. A child that has ended is told nothing.
    pub(crate) fn give(mut self, answer: Answer) {
        self.send(answer);
    }

    fn send(&mut self, answer: Answer) {
        self.given = true;
        let message = ParentMessage::Answer { number: self.number, answer };
        if self.replies.sender.send(message).is_err() {
            tracing::debug!(target: "delegate::run", "a child that is over is told nothing");
        }
    }
}

impl Drop for Reply {
    fn drop(&mut self) {
        if !self.given {
            self.send(Answer::refused("the parent did not decide"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_question_is_answered_once_and_a_dropped_reply_refuses() {
        let (replies, mut sent) = Replies::new();
        replies.take_up(1).unwrap().give(Answer::TimeLeft { ms: None });
        drop(replies.take_up(2).unwrap());
        let answered = std::iter::from_fn(|| sent.receiver.try_recv().ok()).collect::<Vec<_>>();
        let refused = Answer::refused("the parent did not decide");
        assert_eq!(
            answered,
            [(1, Answer::TimeLeft { ms: None }), (2, refused)]
                .map(|(number, answer)| ParentMessage::Answer { number, answer })
        );
    }

    #[test]
    fn no_more_than_the_bound_are_open() {
        let (replies, sent) = Replies::new();
        let mut open: Vec<_> =
            (0..QUESTIONS as u64).map(|number| replies.take_up(number).unwrap()).collect();
        assert!(replies.take_up(99).is_none());
        open.pop().unwrap().give(Answer::TimeLeft { ms: None });
        assert!(replies.take_up(99).is_none(), "the child has not taken it");
        sent.written();
        assert!(replies.take_up(99).is_some());
    }
}

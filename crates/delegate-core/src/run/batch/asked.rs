//! What the loop answers a child that asks ([`delegate_protocol::ask`]): by itself, or through whoever decides.

use std::time::{Duration, SystemTime};

use delegate_protocol::file::{FileAnswer, FileQuestion};
use delegate_protocol::{Answer, Question};
use tokio::sync::oneshot;

use super::Loop;
use crate::file_state::locks::{LOCKS_PER_AGENT, Ticket};
use crate::file_state::registry::Who;
use crate::file_state::{self, FileState, Turn};
use crate::run::clock::Clock;
use crate::run::reply::Reply;

impl Loop {
    /// Answers now, or hands the reply on.
    pub(super) fn asked(&self, index: u32, question: Question, reply: Reply) {
        tracing::debug!(target: "delegate::run", task = index, question = question.name(), "asked");
        match question {
            Question::TimeLeft => {
                let left = self.monitor.time_left(index, self.clock.now());
                let ms = left.map(|left| u64::try_from(left.as_millis()).unwrap_or(u64::MAX));
                reply.give(Answer::TimeLeft { ms });
            }
            Question::File(question) => self.file(index, question, reply),
        }
    }

    fn file(&self, index: u32, question: FileQuestion, reply: Reply) {
        if let Some(why) = file_state::refusal(&question) {
            return reply.give(Answer::refused(why));
        }
        let (files, who) = (&self.batch.files, self.who(index));
        if let Some(answer) = files.answer(&who, &question, SystemTime::now()) {
            return reply.give(Answer::File(answer));
        }
        let FileQuestion::Lock { path, wait_ms } = question else { return };
        let (wake, turn) = oneshot::channel();
        // Who waited may be gone.
        let wake = Box::new(move || _ = wake.send(()));
        match files.lock(&who, &path, SystemTime::now(), wake) {
            Turn::Now(lock) => reply.give(Answer::File(FileAnswer::Locked { lock })),
            Turn::TooMany => {
                let most = LOCKS_PER_AGENT;
                reply.give(Answer::refused(format!(
                    "it has {most} paths locked, which is the most"
                )));
            }
            Turn::Later(lock) => {
                let until = self.clock.now().saturating_add(Duration::from_millis(wait_ms));
                let wait = Wait { files: files.clone(), who, lock, turn };
                tokio::task::spawn_local(wait.out(self.clock.clone(), until, reply));
            }
        }
    }
}

/// A child that waits for its turn at a path.
struct Wait {
    files: FileState,
    who: Who,
    lock: Ticket,
    turn: oneshot::Receiver<()>,
}

impl Wait {
    async fn out(self, clock: Clock, until: Duration, reply: Reply) {
        let Self { files, who, lock, turn } = self;
        let answer = tokio::select! {
            biased;
            turn = turn => match turn {
                Ok(()) => FileAnswer::Locked { lock },
                // It has ended, and its wish with it; dropping the reply says so to nobody.
                Err(_) => return,
            },
            () = clock.sleep_until(Some(until)) => {
                match files.give_up(&who, lock, SystemTime::now()) {
                    Ok(()) => FileAnswer::Locked { lock },
                    Err(busy) => FileAnswer::Busy(busy),
                }
            }
        };
        reply.give(Answer::File(answer));
    }
}

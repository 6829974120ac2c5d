//! What the loop answers a child that asks ([`delegate_protocol::ask`]): by itself, or through whoever decides.

use delegate_protocol::{Answer, Question};

use super::Loop;
use crate::run::reply::Reply;

impl Loop {
    /// Answers now, or hands the reply on.
    pub(super) fn asked(&mut self, index: u32, question: Question, reply: Reply) {
        tracing::debug!(target: "delegate::run", task = index, question = question.name(), "asked");
        match question {
            Question::TimeLeft => {
                let left = self.monitor.time_left(index, self.clock.now());
                let ms = left.map(|left| u64::try_from(left.as_millis()).unwrap_or(u64::MAX));
                reply.give(Answer::TimeLeft { ms });
            }
            Question::Delegate { work, events } => self.delegate(index, work, events, reply),
            Question::Follow { run } => self.follow(index, run, reply),
            Question::StopDelegation { run, forget } => {
                self.stop_delegation(index, run, forget, reply);
            }
        }
    }
}

//! What the loop answers a child that asks ([`delegate_protocol::ask`]): by itself, or through whoever decides.

use delegate_protocol::{Answer, Question};

use super::Loop;
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
            Question::Key(question) => {
                // One that has ended meanwhile is refused by the reply that is dropped.
                let Some(active) = self.active.get(&index) else { return };
                let parent = self.batch.plan.parent_of_children();
                let lease =
                    active.lease.get_or_init(|| self.batch.keys.enter(active.child, parent));
                lease.ask(question, Box::new(move |answer| reply.give(Answer::Key(answer))));
            }
        }
    }
}

//! A child that delegates: [`Session::delegate`] and [`Delegation`]. The root launches, counts and stores, as it
//! does for its own children; here is only the asking. Talks to `session`.

use std::collections::VecDeque;
use std::sync::Arc;

use delegate_protocol::delegation::{Delegated, Told, Work};
use delegate_protocol::{Answer, Event, Order, Question, Role, RunId, Value};

use crate::agent::AskError;
use crate::asks::Until;
use crate::outcome::Outcome;
use crate::session::{Desk, Session};

/// A task as it crosses the line. The delegating API's own `Task` is one, so that a child builds its tasks as a
/// program does.
pub trait IntoOrder {
    /// The task as plain data.
    ///
    /// # Errors
    /// What cannot cross, and why.
    fn into_order(self) -> Result<Order, String>;
}

impl IntoOrder for Order {
    fn into_order(self) -> Result<Order, String> {
        Ok(self)
    }
}

impl Session {
    /// Whether this child may delegate: its role says so, and its depth gave it that.
    #[must_use]
    pub fn may_delegate(&self) -> bool {
        self.spec().role == Role::Orchestrator
    }

    /// Has children of its own carry out tasks, and waits for all outcomes, in the order of the tasks. They run
    /// as this child does (processes or threads), below it in the tree, and end with it. While it waits, its
    /// slot is lent to others and it is not stale; its wall clock goes on.
    ///
    /// # Errors
    /// [`AskError::Refused`]: nothing was started, and why (depth, budget, a task that is wrong).
    /// [`AskError::Interrupted`]: this child was asked to stop, and its children with it.
    pub fn delegate<T: IntoOrder>(
        &mut self,
        tasks: impl IntoIterator<Item = T>,
    ) -> Result<Vec<Outcome>, AskError> {
        self.start(orders(tasks)?, false)?.finish()
    }

    /// The same for what a model asked for: the arguments of its `delegate_task` call, each task for `agent`. A
    /// refusal is in words for the model.
    ///
    /// # Errors
    /// As [`Session::delegate`].
    pub fn delegate_call(
        &mut self,
        arguments: Value,
        agent: impl Into<String>,
    ) -> Result<Vec<Outcome>, AskError> {
        self.start(Work::Call { arguments, agent: agent.into() }, false)?.finish()
    }

    /// Starts children and gives a handle on them, with their events. What it does not wait for ends with it.
    ///
    /// # Errors
    /// As [`Session::delegate`].
    pub fn delegation<T: IntoOrder>(
        &mut self,
        tasks: impl IntoIterator<Item = T>,
    ) -> Result<Delegation, AskError> {
        self.start(orders(tasks)?, true)
    }

    fn start(&self, work: Work, events: bool) -> Result<Delegation, AskError> {
        let answer = self.ask(Question::Delegate { work, events }, Until::Interrupt)?;
        let Answer::Delegated(Delegated { run, tasks }) = answer else {
            return Err(AskError::of(answer));
        };
        Ok(Delegation {
            run,
            tasks,
            desk: Arc::clone(self.desk()),
            events: VecDeque::new(),
            summary: String::new(),
            outcomes: Vec::new(),
            over: false,
        })
    }
}

fn orders<T: IntoOrder>(tasks: impl IntoIterator<Item = T>) -> Result<Work, AskError> {
    let order = |(index, task): (usize, T)| {
        let wrong = |reason| format!("task {index}: {reason}; nothing was started");
        task.into_order().map_err(wrong).map_err(AskError::Refused)
    };
    tasks.into_iter().enumerate().map(order).collect::<Result<_, _>>().map(Work::Tasks)
}

/// Children of a child. Dropping it ends those that still run.
#[derive(Debug)]
#[must_use = "dropping a delegation ends its children"]
pub struct Delegation {
    run: RunId,
    tasks: u32,
    desk: Arc<Desk>,
    events: VecDeque<Event>,
    /// Of the next outcome, so far.
    summary: String,
    outcomes: Vec<Outcome>,
    over: bool,
}

impl Delegation {
    /// Its run: the root keeps its outcomes and logs under this id.
    #[must_use]
    pub const fn run_id(&self) -> RunId {
        self.run
    }

    /// Tasks in it.
    #[must_use]
    pub const fn task_count(&self) -> u32 {
        self.tasks
    }

    /// The next event of these children, and of theirs; `None` after the last.
    ///
    /// # Errors
    /// [`AskError`]. After an interrupt it may be asked again: then it waits as long as there is a parent.
    pub fn next_event(&mut self) -> Result<Option<Event>, AskError> {
        loop {
            if let Some(event) = self.events.pop_front() {
                return Ok(Some(event));
            }
            if self.over {
                return Ok(None);
            }
            self.follow()?;
        }
    }

    /// Waits for all outcomes, in the order of the tasks.
    ///
    /// # Errors
    /// As [`Delegation::next_event`].
    pub fn finish(&mut self) -> Result<Vec<Outcome>, AskError> {
        let unwinds = self.desk.token.is_raised();
        while !self.over {
            self.follow()?;
            self.events.clear();
            // The word to stop may come with an answer: what its children still had is for one that asks again.
            if !unwinds && self.desk.token.is_raised() {
                return Err(AskError::Interrupted);
            }
        }
        Ok(std::mem::take(&mut self.outcomes))
    }

    /// Asks these children to unwind. They still have outcomes.
    pub fn interrupt(&self) {
        self.desk.tell(Question::StopDelegation { run: self.run, forget: false });
    }

    fn follow(&mut self) -> Result<(), AskError> {
        // One that unwinds may want what its children had.
        let interrupted = self.desk.token.is_raised();
        let until = if interrupted { Until::ParentGone } else { Until::Interrupt };
        let answer = self.desk.ask(Question::Follow { run: self.run }, until)?;
        let Answer::Told(told) = answer else { return Err(AskError::of(answer)) };
        match told {
            Told::Events(events) => self.events.extend(events),
            Told::Summary(piece) => self.summary.push_str(&piece),
            Told::Outcome(mut outcome) => {
                let head = std::mem::take(&mut self.summary);
                if !head.is_empty() {
                    outcome.summary = Some(head);
                }
                self.outcomes.push((*outcome).into());
            }
            Told::Over => self.over = true,
        }
        Ok(())
    }
}

impl Drop for Delegation {
    fn drop(&mut self) {
        if !self.over {
            self.desk.tell(Question::StopDelegation { run: self.run, forget: true });
        }
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;
    use crate::cancel::{Reason, Token};
    use crate::mail::Mailbox;

    /// Both are there when it looks, as when a stop of the child has ended its children as well.
    #[test]
    fn a_stop_that_comes_with_the_last_answer_is_a_stop() {
        let desk = Desk::new(Arc::<Token>::default(), Arc::<Mailbox>::default());
        let mut delegation = Delegation {
            run: RunId::from_u128(1),
            tasks: 1,
            desk: Arc::clone(&desk),
            events: VecDeque::new(),
            summary: String::new(),
            outcomes: Vec::new(),
            over: false,
        };
        let waiting = thread::spawn(move || {
            let first = delegation.finish();
            (first, delegation.finish())
        });
        let number = loop {
            match desk.mail.asks.take_unsent() {
                Some((number, _)) => break number,
                None => thread::yield_now(),
            }
        };
        desk.token.announce(Reason::Interrupt);
        desk.mail.asks.answer(number, Answer::Told(Told::Over));
        let (first, again) = waiting.join().unwrap();
        assert!(matches!(first, Err(AskError::Interrupted)), "{first:?}");
        assert!(again.is_ok_and(|outcomes| outcomes.is_empty()));
    }
}

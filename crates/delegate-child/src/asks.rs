//! [`Asks`]: questions of a child on their way to its parent, and the threads that wait for the answers.
//! Asked through `session`, sent by the writer in `serve`, answered by its reader.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use delegate_protocol::ask::QUESTIONS;
use delegate_protocol::{Answer, Question};

use crate::cancel::{Reason, Token};

/// What ends the wait for an answer, beside the answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Until {
    /// The child is asked to stop.
    Interrupt,
    /// There is no parent any more: for answers that matter to an agent that unwinds.
    ParentGone,
}

impl Until {
    fn is_over(self, token: &Token) -> bool {
        match self {
            Self::Interrupt => token.is_raised(),
            Self::ParentGone => token.raised() == Some(Reason::ParentGone),
        }
    }
}

/// What a wait came to that may be called away from.
#[derive(Debug, PartialEq)]
pub(crate) enum Waited {
    Answered(Answer),
    Called,
    Over,
}

/// The open questions of one child.
#[derive(Debug, Default)]
pub(crate) struct Asks {
    state: Mutex<State>,
    /// An answer came, the token was raised, or nobody sends questions any more.
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    last: u64,
    unsent: VecDeque<(u64, Question)>,
    open: BTreeMap<u64, Open>,
    /// Somebody wants the agent to look, which waits for a prompt.
    called: bool,
    closed: bool,
}

#[derive(Debug)]
enum Open {
    Waited,
    /// Whoever asked has left. It counts until the parent has answered, as it does there.
    Left,
    Answered(Answer),
}

impl Asks {
    /// Has a question sent, and gives its number; waits while too many are open. `None` when that was over
    /// before.
    pub(crate) fn ask(&self, question: Question, token: &Token, until: Until) -> Option<u64> {
        let mut state = self.state();
        while state.pending() >= QUESTIONS && !state.closed && !until.is_over(token) {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        if state.closed || state.pending() >= QUESTIONS {
            return None;
        }
        state.last += 1;
        let number = state.last;
        state.unsent.push_back((number, question));
        state.open.insert(number, Open::Waited);
        Some(number)
    }

    /// Waits for its answer; `None` when that is over first.
    pub(crate) fn wait(&self, number: u64, token: &Token, until: Until) -> Option<Answer> {
        let mut state = self.state();
        loop {
            if matches!(state.open.get(&number), Some(Open::Answered(_)))
                && let Some(Open::Answered(answer)) = state.open.remove(&number)
            {
                return Some(answer);
            }
            if state.closed || until.is_over(token) {
                state.open.insert(number, Open::Left);
                return None;
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Has whoever waits in [`Asks::wait_or_call`], now or the next time, look.
    pub(crate) fn call(&self) {
        self.state().called = true;
        self.changed.notify_all();
    }

    /// Whether somebody has called since the last time; it is answered with that.
    pub(crate) fn take_call(&self) -> bool {
        std::mem::take(&mut self.state().called)
    }

    /// As [`Asks::wait`], until somebody calls. The question stays open then.
    pub(crate) fn wait_or_call(&self, number: u64, token: &Token, until: Until) -> Waited {
        let goes_on = |state: &mut State| {
            let is_open = matches!(state.open.get(&number), Some(Open::Waited));
            is_open && !state.called && !state.closed && !until.is_over(token)
        };
        let state = self.changed.wait_while(self.state(), goes_on);
        let mut state = state.unwrap_or_else(PoisonError::into_inner);
        // What has come is taken: whoever gave it counts on that.
        if matches!(state.open.get(&number), Some(Open::Waited)) && state.called {
            state.called = false;
            return Waited::Called;
        }
        drop(state);
        self.wait(number, token, until).map_or(Waited::Over, Waited::Answered)
    }

    /// Has something said that waits for no answer.
    pub(crate) fn tell(&self, question: Question, token: &Token) {
        if let Some(number) = self.ask(question, token, Until::ParentGone)
            && let Some(open) = self.state().open.get_mut(&number)
        {
            *open = Open::Left;
        }
    }

    /// Whether the wait for an answer is over within this time.
    pub(crate) fn is_over_within(
        &self,
        number: u64,
        time: Duration,
        token: &Token,
        until: Until,
    ) -> bool {
        let waits = |state: &mut State| {
            let is_open = matches!(state.open.get(&number), Some(Open::Waited));
            is_open && !state.closed && !until.is_over(token)
        };
        let waited = self.changed.wait_timeout_while(self.state(), time, waits);
        !waited.unwrap_or_else(PoisonError::into_inner).1.timed_out()
    }

    /// The next question to be sent.
    pub(crate) fn take_unsent(&self) -> Option<(u64, Question)> {
        self.state().unsent.pop_front()
    }

    /// Takes an answer. One that nobody waits for is dropped.
    pub(crate) fn answer(&self, number: u64, answer: Answer) {
        let mut state = self.state();
        match state.open.get_mut(&number) {
            Some(open @ Open::Waited) => *open = Open::Answered(answer),
            Some(Open::Left) => drop(state.open.remove(&number)),
            Some(Open::Answered(_)) | None => tracing::debug!(number, "nobody waits for an answer"),
        }
        drop(state);
        self.changed.notify_all();
    }

    /// Nothing is sent any more.
    pub(crate) fn close(&self) {
        self.state().closed = true;
        self.changed.notify_all();
    }

    /// Lets those that wait look at the token again.
    pub(crate) fn wake(&self) {
        drop(self.state());
        self.changed.notify_all();
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Questions that the parent has not answered.
    fn pending(&self) -> usize {
        self.open.values().filter(|open| !matches!(open, Open::Answered(_))).count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::thread;

    fn left(ms: u64) -> Answer {
        Answer::TimeLeft { ms: Some(ms) }
    }

    fn asked(asks: &Asks, token: &Token) -> u64 {
        asks.ask(Question::TimeLeft, token, Until::Interrupt).expect("there is room")
    }

    #[test]
    fn each_gets_its_own_answer_whatever_the_order() {
        let (asks, token) = (Asks::default(), Token::default());
        let (first, second) = (asked(&asks, &token), asked(&asks, &token));
        assert_eq!(asks.take_unsent(), Some((first, Question::TimeLeft)));
        assert_eq!(asks.take_unsent(), Some((second, Question::TimeLeft)));
        assert_eq!(asks.take_unsent(), None);
        asks.answer(second, left(2));
        asks.answer(first, left(1));
        asks.answer(99, left(99));
        assert_eq!(asks.wait(first, &token, Until::Interrupt), Some(left(1)));
        assert_eq!(asks.wait(second, &token, Until::Interrupt), Some(left(2)));
        assert!(asks.state().open.is_empty());
    }

    #[test]
    fn an_interrupt_ends_the_wait_of_those_that_unwind_and_only_theirs() {
        let (asks, token) = (Arc::<Asks>::default(), Arc::<Token>::default());
        let woken = Arc::clone(&asks);
        token.on_raise(move |_| woken.wake());
        let waiter = |until| {
            let number = asks.ask(Question::TimeLeft, &token, until).unwrap();
            let (asks, token) = (Arc::clone(&asks), Arc::clone(&token));
            (number, thread::spawn(move || asks.wait(number, &token, until)))
        };
        let (number, unwinds) = waiter(Until::Interrupt);
        let (other, stays) = waiter(Until::ParentGone);
        token.raise(Reason::Interrupt);
        assert_eq!(unwinds.join().unwrap(), None);
        assert!(!stays.is_finished());
        asks.answer(other, left(2));
        assert_eq!(stays.join().unwrap(), Some(left(2)));
        assert_eq!(asks.state().pending(), 1, "the parent has not answered it yet");
        asks.answer(number, left(1));
        assert!(asks.state().open.is_empty());
    }

    #[test]
    fn what_waits_for_no_answer_is_said_and_forgotten() {
        let (asks, token) = (Asks::default(), Token::default());
        token.raise(Reason::Interrupt);
        asks.tell(Question::TimeLeft, &token);
        let (number, _) = asks.take_unsent().unwrap();
        assert_eq!(asks.state().pending(), 1, "the parent counts it too");
        asks.answer(number, left(0));
        assert!(asks.state().open.is_empty());
    }

    #[test]
    fn a_wait_that_is_over_soon_is_told_from_one_that_is_not() {
        let (asks, token) = (Asks::default(), Token::default());
        let within = |number| {
            asks.is_over_within(number, Duration::from_millis(20), &token, Until::Interrupt)
        };
        let (first, second) = (asked(&asks, &token), asked(&asks, &token));
        assert!(!within(first));
        asks.answer(first, left(1));
        assert!(within(first) && !within(second));
        token.raise(Reason::Interrupt);
        assert!(within(second));
    }

    /// An answer that is there comes before a call, and a call before the end of the wait; it is kept until then.
    #[test]
    fn a_call_ends_the_wait_once_and_takes_no_answer() {
        let (asks, token) = (Asks::default(), Token::default());
        let wait = |number| asks.wait_or_call(number, &token, Until::Interrupt);
        let number = asked(&asks, &token);
        asks.call();
        assert_eq!(wait(number), Waited::Called);
        assert!(!asks.take_call());
        asks.call();
        asks.answer(number, left(1));
        assert_eq!(wait(number), Waited::Answered(left(1)));
        assert!(asks.take_call() && !asks.take_call());
        let number = asked(&asks, &token);
        let asks = Arc::new(asks);
        let caller = Arc::clone(&asks);
        let calls = thread::spawn(move || caller.call());
        assert_eq!(asks.wait_or_call(number, &token, Until::Interrupt), Waited::Called);
        calls.join().unwrap();
        token.raise(Reason::Interrupt);
        assert_eq!(asks.wait_or_call(number, &token, Until::Interrupt), Waited::Over);
    }

    #[test]
    fn more_than_a_parent_takes_wait_here() {
        let (asks, token) = (Arc::<Asks>::default(), Arc::<Token>::default());
        let numbers: Vec<u64> = (0..QUESTIONS).map(|_| asked(&asks, &token)).collect();
        let one_more = thread::spawn({
            let (asks, token) = (Arc::clone(&asks), Arc::clone(&token));
            move || asks.ask(Question::TimeLeft, &token, Until::Interrupt)
        });
        asks.answer(numbers[0], left(0));
        assert_eq!(one_more.join().unwrap(), Some(QUESTIONS as u64 + 1));
        assert_eq!(asks.state().pending(), QUESTIONS);
        token.raise(Reason::Interrupt);
        assert_eq!(asks.ask(Question::TimeLeft, &token, Until::Interrupt), None);
        asks.close();
        assert_eq!(asks.ask(Question::TimeLeft, &token, Until::ParentGone), None);
        assert_eq!(asks.wait(numbers[1], &token, Until::ParentGone), None);
    }
}

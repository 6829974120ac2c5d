//! [`Mailbox`]: what the reader of the line leaves for the agent (notices, steering, answers) and for the writer (a wish
//! for a dump, questions). Filled by `serve`, read by `session` and `serve`.

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};

use delegate_protocol::message::STEERS;

use crate::asks::Asks;
use crate::tail::clip;

/// Notices that wait at most; an agent that never reads them keeps the newest.
const NOTICES: usize = 16;

/// Bytes of one notice.
const NOTICE: usize = 4 * 1024;

type Hook = Box<dyn Fn() + Send + Sync>;

/// Words of the parent that do not stop a child.
#[derive(Default)]
pub(crate) struct Mailbox {
    /// Questions and their answers.
    pub(crate) asks: Asks,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    notices: VecDeque<String>,
    steers: VecDeque<(u64, String)>,
    wants_dump: bool,
    hook: Option<Hook>,
    /// Process and thread of the agent.
    agent: Option<(u32, u32)>,
}

impl fmt::Debug for Mailbox {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Mailbox")
    }
}

impl Mailbox {
    /// Keeps a notice.
    pub(crate) fn notice(&self, text: String) {
        let mut state = self.state();
        if state.notices.len() == NOTICES {
            state.notices.pop_front();
        }
        state.notices.push_back(clip(&text, NOTICE).to_owned());
    }

    /// Takes what waits, oldest first.
    pub(crate) fn take_notices(&self) -> Vec<String> {
        self.state().notices.drain(..).collect()
    }

    /// Keeps a word of whoever steers the agent. One more than a parent may send is not kept; the parent
    /// sees that it was not taken.
    pub(crate) fn steer(&self, number: u64, text: String) {
        let mut state = self.state();
        if state.steers.len() < STEERS {
            state.steers.push_back((number, text));
        }
    }

    /// Takes the oldest, with its number.
    pub(crate) fn take_steer(&self) -> Option<(u64, String)> {
        self.state().steers.pop_front()
    }

    /// The parent wants to know what is being done.
    pub(crate) fn ask_for_dump(&self) {
        let mut state = self.state();
        state.wants_dump = true;
        if let Some(hook) = &state.hook {
            hook();
        }
    }

    /// Calls `hook` when a dump is asked for; it must neither block nor use this mailbox.
    pub(crate) fn on_dump(&self, hook: impl Fn() + Send + Sync + 'static) {
        self.state().hook = Some(Box::new(hook));
    }

    /// Whether a dump is owed; it is no more.
    pub(crate) fn take_dump_request(&self) -> bool {
        std::mem::take(&mut self.state().wants_dump)
    }

    /// The agent runs on this thread.
    pub(crate) fn set_agent_thread(&self, thread: Option<(u32, u32)>) {
        self.state().agent = thread;
    }

    /// Process and thread that the agent runs on.
    pub(crate) fn agent_thread(&self) -> Option<(u32, u32)> {
        self.state().agent
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notices_are_taken_once_in_order_and_are_bounded() {
        let mail = Mailbox::default();
        for number in 0..NOTICES + 2 {
            mail.notice(number.to_string());
        }
        mail.notice("x".repeat(2 * NOTICE));
        let taken = mail.take_notices();
        assert_eq!((taken.len(), taken[0].as_str()), (NOTICES, "3"));
        assert_eq!(taken[NOTICES - 1].len(), NOTICE);
        assert_eq!(mail.take_notices(), Vec::<String>::new());
    }

    #[test]
    fn steers_are_taken_once_in_order_and_none_is_pushed_out() {
        let mail = Mailbox::default();
        for number in 0..STEERS as u64 + 2 {
            mail.steer(number, number.to_string());
        }
        let taken: Vec<_> = std::iter::from_fn(|| mail.take_steer()).collect();
        assert_eq!((taken.len(), &taken[0]), (STEERS, &(0, "0".to_owned())));
        assert_eq!(mail.take_steer(), None);
    }

    #[test]
    fn a_dump_is_owed_once_per_wish() {
        let mail = Mailbox::default();
        assert!(!mail.take_dump_request());
        mail.ask_for_dump();
        mail.ask_for_dump();
        assert_eq!((mail.take_dump_request(), mail.take_dump_request()), (true, false));
    }
}

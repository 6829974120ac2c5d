//! The one token that stops a child: an interrupt and a parent that is gone are the same thing to an
//! agent, and so is the stop of a turn, which is over with that turn. Raised by the reader and the writer of the
//! line, read by `session` and `outbox`. A parent that shares a page with the child raises it by itself, ahead of the
//! frame that says the same.

use std::fmt;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use delegate_protocol::page;
use ownership::page::Page;

/// Why a child is to stop, weakest first. A weaker, later reason never replaces a stronger one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub(crate) enum Reason {
    /// This turn is not wanted any more.
    Turn = 1,
    /// The parent asked.
    Interrupt = 2,
    /// There is no parent any more, or it broke the protocol.
    ParentGone = 3,
}

type Hook = Box<dyn Fn(Reason) + Send + Sync>;

/// One atomic byte, the word of the parent's beside it, and whom to wake when either changes.
#[derive(Default)]
pub(crate) struct Token {
    reason: AtomicU8,
    /// The strongest reason that the hooks were told.
    told: AtomicU8,
    hooks: Mutex<Vec<Hook>>,
    /// Who waits where there is no page.
    changed: Condvar,
    page: OnceLock<Arc<Page>>,
    turns: Mutex<Turns>,
}

/// The turn that runs, and the last that was stopped: a stop may come before its turn, or behind it.
#[derive(Debug, Default)]
struct Turns {
    running: Option<u64>,
    stopped: u64,
    /// Hooks that were there before it.
    hooks: usize,
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Token").field(&self.raised()).finish()
    }
}

impl Token {
    /// A token that the parent can raise through this page.
    pub(crate) fn on(page: Option<Arc<Page>>) -> Self {
        let token = Self::default();
        if let Some(page) = page {
            let _new = token.page.set(page);
        }
        token
    }

    /// The page, if there is one.
    pub(crate) fn page(&self) -> Option<&Page> {
        self.page.get().map(Arc::as_ref)
    }

    /// Whether it was raised at all: an atomic load or two.
    pub(crate) fn is_raised(&self) -> bool {
        self.reason.load(Ordering::Acquire) != 0 || self.is_asked()
    }

    fn is_asked(&self) -> bool {
        self.page().is_some_and(|page| page::is_interrupted(page.words()))
    }

    /// The strongest reason so far.
    pub(crate) fn raised(&self) -> Option<Reason> {
        match self.reason.load(Ordering::Acquire) {
            0 | 1 if self.is_asked() => Some(Reason::Interrupt),
            0 => None,
            1 => Some(Reason::Turn),
            2 => Some(Reason::Interrupt),
            _ => Some(Reason::ParentGone),
        }
    }

    /// Waits until it is raised, at most this long: once, so a caller that has time left looks and waits again.
    pub(crate) fn wait(&self, time: Duration) {
        match self.page() {
            Some(page) => {
                let seen = page.words()[page::INTERRUPT].load(Ordering::Acquire);
                if !self.is_raised() {
                    page.wait(page::INTERRUPT, seen, Some(time));
                }
            }
            None => {
                let hooks = self.hooks.lock().unwrap_or_else(PoisonError::into_inner);
                let calm = |_: &mut Vec<Hook>| !self.is_raised();
                drop(self.changed.wait_timeout_while(hooks, time, calm));
            }
        }
    }

    /// Raises it for whoever looks; whoever waits is woken when it is raised. Calls nothing, so that anybody may.
    pub(crate) fn announce(&self, reason: Reason) {
        self.reason.fetch_max(reason as u8, Ordering::AcqRel);
    }

    /// Raises it, and wakes whoever waits when that made it stronger.
    pub(crate) fn raise(&self, reason: Reason) {
        self.announce(reason);
        if self.told.fetch_max(reason as u8, Ordering::AcqRel) < reason as u8 {
            if let Some(page) = self.page() {
                // Who waits looks at this word, whoever changes it. A turn's stop ends with the turn, and so is none of
                // the child.
                if reason == Reason::Turn {
                    page::nudge(page.words());
                } else {
                    page::interrupt(page.words());
                }
                page.wake(page::INTERRUPT);
            }
            for hook in self.hooks.lock().unwrap_or_else(PoisonError::into_inner).iter() {
                hook(reason);
            }
            self.changed.notify_all();
        }
    }

    /// A turn begins. What is hooked from here on is gone with it.
    pub(crate) fn begin_turn(&self, number: u64) {
        let mut turns = self.turns();
        turns.running = Some(number);
        turns.hooks = self.hooks.lock().unwrap_or_else(PoisonError::into_inner).len();
        if turns.stopped == number {
            self.raise(Reason::Turn);
        }
    }

    /// It is over, and the stop of it with it. Gives whether it was stopped.
    pub(crate) fn end_turn(&self) -> bool {
        let mut turns = self.turns();
        let stopped = turns.running.take().is_some_and(|number| turns.stopped == number);
        self.hooks.lock().unwrap_or_else(PoisonError::into_inner).truncate(turns.hooks);
        // A stronger reason stays.
        for place in [&self.reason, &self.told] {
            let turn = Reason::Turn as u8;
            let _stronger = place.compare_exchange(turn, 0, Ordering::AcqRel, Ordering::Acquire);
        }
        stopped
    }

    /// This turn is to end. One that is over is left alone; one that has not begun ends when it does.
    pub(crate) fn stop_turn(&self, number: u64) {
        let mut turns = self.turns();
        turns.stopped = number;
        if turns.running == Some(number) {
            self.raise(Reason::Turn);
        }
    }

    /// The turn that runs.
    pub(crate) fn turn(&self) -> Option<u64> {
        self.turns().running
    }

    fn turns(&self) -> MutexGuard<'_, Turns> {
        self.turns.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Calls `hook` at each raise from now on, and at once when it is raised already. It may be
    /// called more often than the token is raised, and must neither block nor use the token's hooks.
    pub(crate) fn on_raise(&self, hook: impl Fn(Reason) + Send + Sync + 'static) {
        let mut hooks = self.hooks.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(reason) = self.raised() {
            hook(reason);
        }
        hooks.push(Box::new(hook));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    #[test]
    fn the_stronger_reason_wins_in_every_order() {
        let all = [Reason::Turn, Reason::Interrupt, Reason::ParentGone];
        for first in all {
            for second in all {
                let token = Token::default();
                assert_eq!((token.is_raised(), token.raised()), (false, None));
                token.raise(first);
                token.raise(second);
                assert!(token.is_raised());
                assert_eq!(token.raised(), Some(first.max(second)));
            }
        }
    }

    #[test]
    fn a_hook_hears_of_earlier_and_of_stronger_raises_only() {
        let token = Token::default();
        token.raise(Reason::Interrupt);
        let heard = Arc::new(Mutex::new(Vec::new()));
        token.on_raise({
            let heard = Arc::clone(&heard);
            move |reason| heard.lock().unwrap().push(reason)
        });
        token.raise(Reason::Interrupt);
        token.raise(Reason::ParentGone);
        token.raise(Reason::Interrupt);
        assert_eq!(*heard.lock().unwrap(), [Reason::Interrupt, Reason::ParentGone]);
    }

    /// A stop may come at any time: before its turn, in it, behind it; and again.
    #[test]
    fn a_stop_holds_for_its_turn_and_no_other() {
        for at in 0..5 {
            let token = Token::default();
            let stop = |now| {
                if now == at {
                    token.stop_turn(2);
                    token.stop_turn(2);
                }
            };
            stop(0);
            token.begin_turn(1);
            stop(1);
            assert_eq!((token.raised(), token.end_turn(), token.turn()), (None, false, None));
            stop(2);
            assert!(!token.is_raised(), "between two turns nothing is stopped");
            token.begin_turn(2);
            stop(3);
            let stopped = at <= 3;
            assert_eq!(token.raised(), stopped.then_some(Reason::Turn), "{at}");
            assert_eq!((token.turn(), token.end_turn()), (Some(2), stopped), "{at}");
            stop(4);
            token.begin_turn(3);
            assert_eq!((token.raised(), token.end_turn()), (None, false), "{at}");
        }
    }

    #[test]
    fn the_end_of_a_turn_takes_its_hooks_and_leaves_a_stronger_reason() {
        let (token, heard) = (Token::default(), Arc::new(Mutex::new(Vec::new())));
        let hook = |name: &'static str| {
            let heard = Arc::clone(&heard);
            token.on_raise(move |reason| heard.lock().unwrap().push((name, reason)));
        };
        hook("child");
        token.begin_turn(1);
        hook("turn");
        token.stop_turn(1);
        assert!(token.end_turn());
        token.begin_turn(2);
        token.raise(Reason::Interrupt);
        token.stop_turn(2);
        assert!(token.end_turn());
        assert_eq!(token.raised(), Some(Reason::Interrupt));
        let heard = heard.lock().unwrap();
        let expected =
            [("child", Reason::Turn), ("turn", Reason::Turn), ("child", Reason::Interrupt)];
        assert_eq!(*heard, expected);
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn a_page_raises_it_and_any_other_word_there_does_not() {
        let (parent, memfd) = Page::create().unwrap();
        let token = Token::on(Some(Arc::new(Page::open(memfd).unwrap())));
        parent.words()[page::INTERRUPT].store(77, Ordering::Release);
        assert_eq!((token.is_raised(), token.raised()), (false, None));
        page::interrupt(parent.words());
        assert_eq!((token.is_raised(), token.raised()), (true, Some(Reason::Interrupt)));
        token.raise(Reason::ParentGone);
        assert_eq!(token.raised(), Some(Reason::ParentGone));
    }

    /// The stop of a turn wakes who waits, and says nothing for the turn after it.
    #[test]
    #[cfg(target_os = "linux")]
    fn a_turns_stop_is_no_interrupt_of_the_page() {
        let (parent, memfd) = Page::create().unwrap();
        let token = Arc::new(Token::on(Some(Arc::new(Page::open(memfd).unwrap()))));
        for turn in 1..4 {
            token.begin_turn(turn);
            let waits = Arc::clone(&token);
            let waiter = std::thread::spawn(move || {
                while !waits.is_raised() {
                    waits.wait(Duration::MAX);
                }
            });
            token.stop_turn(turn);
            waiter.join().unwrap();
            assert_eq!((token.raised(), token.end_turn()), (Some(Reason::Turn), true));
            assert_eq!((token.is_raised(), page::is_interrupted(parent.words())), (false, false));
        }
        token.begin_turn(4);
        page::interrupt(parent.words());
        token.stop_turn(4);
        assert_eq!(token.raised(), Some(Reason::Interrupt), "the stronger one");
        assert!(token.end_turn() && token.is_raised());
    }

    /// Without end: only the word, or the hook, lets it return.
    #[test]
    fn who_waits_is_woken_by_either_side() {
        let mut tokens =
            vec![(Arc::new(Token::default()), None), (Arc::new(Token::default()), None)];
        if cfg!(target_os = "linux") {
            for _ in 0..2 {
                let (parent, memfd) = Page::create().unwrap();
                let token = Token::on(Some(Arc::new(Page::open(memfd).unwrap())));
                tokens.push((Arc::new(token), Some(parent)));
            }
        }
        for (turn, (token, parent)) in tokens.into_iter().enumerate() {
            let waits = Arc::clone(&token);
            let waiter = std::thread::spawn(move || {
                while !waits.is_raised() {
                    waits.wait(Duration::MAX);
                }
            });
            match parent.filter(|_| turn == 2) {
                Some(parent) => {
                    page::interrupt(parent.words());
                    parent.wake(page::INTERRUPT);
                }
                None => token.raise(Reason::ParentGone),
            }
            waiter.join().unwrap();
        }
    }

    #[test]
    fn what_was_announced_is_seen_at_once_and_told_when_it_is_raised() {
        let token = Token::default();
        let heard = Arc::new(Mutex::new(0));
        let count = Arc::clone(&heard);
        token.on_raise(move |_| *count.lock().unwrap() += 1);
        token.announce(Reason::Interrupt);
        assert_eq!((token.raised(), *heard.lock().unwrap()), (Some(Reason::Interrupt), 0));
        token.raise(Reason::Interrupt);
        token.raise(Reason::Interrupt);
        assert_eq!(*heard.lock().unwrap(), 1);
    }
}

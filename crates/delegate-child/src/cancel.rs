//! The one token that stops a child: an interrupt and a parent that is gone are the same thing to an
//! agent. Raised by the reader and the writer of the line, read by `session` and `outbox`.

use std::fmt;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Mutex, PoisonError};

/// Why a child is to stop, weakest first. A weaker, later reason never replaces a stronger one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub(crate) enum Reason {
    /// The parent asked.
    Interrupt = 1,
    /// There is no parent any more, or it broke the protocol.
    ParentGone = 2,
}

type Hook = Box<dyn Fn(Reason) + Send + Sync>;

/// One atomic byte, and whom to wake when it changes.
#[derive(Default)]
pub(crate) struct Token {
    reason: AtomicU8,
    /// The strongest reason that the hooks were told.
    told: AtomicU8,
    hooks: Mutex<Vec<Hook>>,
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Token").field(&self.raised()).finish()
    }
}

impl Token {
    /// Whether it was raised at all: one atomic load.
    pub(crate) fn is_raised(&self) -> bool {
        self.reason.load(Ordering::Acquire) != 0
    }

    /// The strongest reason so far.
    pub(crate) fn raised(&self) -> Option<Reason> {
        match self.reason.load(Ordering::Acquire) {
            0 => None,
            1 => Some(Reason::Interrupt),
            _ => Some(Reason::ParentGone),
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
            for hook in self.hooks.lock().unwrap_or_else(PoisonError::into_inner).iter() {
                hook(reason);
            }
        }
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
        for first in [Reason::Interrupt, Reason::ParentGone] {
            for second in [Reason::Interrupt, Reason::ParentGone] {
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

//! Whose turn it is at a path: a pure machine. Whoever asks first is first; a lock ends with its holder.
//! [`super`] waits and wakes.

use std::collections::{BTreeMap, HashMap, VecDeque};

use delegate_protocol::file::Busy;

use super::registry::Who;

/// Locks that one agent holds or waits for, at most.
pub const LOCKS_PER_AGENT: usize = 1024;

/// Names one wish for a path; used once.
pub type Ticket = u64;

#[derive(Debug)]
struct Line {
    holder: Ticket,
    since: u64,
    waiting: VecDeque<Ticket>,
}

#[derive(Debug)]
struct Wish {
    who: Who,
    path: String,
}

/// What became of a wish.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Asked {
    /// It is yours.
    Granted(Ticket),
    /// It will be yours; [`Locks::release`] and [`Locks::leave`] tell when.
    Waits(Ticket),
    /// This agent has too many.
    TooMany,
}

/// The locks of one tree. A path that nobody has is not kept.
#[derive(Debug, Default)]
pub struct Locks {
    lines: HashMap<String, Line>,
    wishes: BTreeMap<Ticket, Wish>,
    last: Ticket,
}

impl Locks {
    /// It wants a path.
    pub fn ask(&mut self, who: &Who, path: &str, now: u64) -> Asked {
        if self.wishes.values().filter(|wish| wish.who == *who).count() >= LOCKS_PER_AGENT {
            return Asked::TooMany;
        }
        self.last += 1;
        let ticket = self.last;
        self.wishes.insert(ticket, Wish { who: who.clone(), path: path.to_owned() });
        if let Some(line) = self.lines.get_mut(path) {
            line.waiting.push_back(ticket);
            return Asked::Waits(ticket);
        }
        let line = Line { holder: ticket, since: now, waiting: VecDeque::new() };
        self.lines.insert(path.to_owned(), line);
        Asked::Granted(ticket)
    }

    /// Gives a lock of its own back, or gives the wish for one up. Tells whose turn it is now.
    pub fn release(&mut self, who: &Who, ticket: Ticket, now: u64) -> Option<Ticket> {
        self.wishes.get(&ticket).filter(|wish| wish.who == *who)?;
        self.drop_wish(ticket, now)
    }

    /// It has ended. Tells whose turn it is now, one per path that it held.
    pub fn leave(&mut self, who: &Who, now: u64) -> Vec<Ticket> {
        let own = self.wishes.iter().filter(|(_, wish)| wish.who == *who);
        let own: Vec<_> = own.map(|(ticket, _)| *ticket).collect();
        // What waits goes first, so that nothing is handed to the one who leaves.
        let (holds, waits): (Vec<_>, Vec<_>) = own.into_iter().partition(|own| self.holds(*own));
        let mut turns = Vec::new();
        for ticket in waits.into_iter().chain(holds) {
            turns.extend(self.drop_wish(ticket, now));
        }
        turns
    }

    fn drop_wish(&mut self, ticket: Ticket, now: u64) -> Option<Ticket> {
        let wish = self.wishes.remove(&ticket)?;
        let line = self.lines.get_mut(&wish.path)?;
        if line.holder != ticket {
            line.waiting.retain(|waiting| *waiting != ticket);
            return None;
        }
        if let Some(next) = line.waiting.pop_front() {
            line.holder = next;
            line.since = now;
            return Some(next);
        }
        self.lines.remove(&wish.path);
        None
    }

    /// Whether this wish has its path now.
    #[must_use]
    pub fn holds(&self, ticket: Ticket) -> bool {
        let line = self.wishes.get(&ticket).and_then(|wish| self.lines.get(&wish.path));
        line.is_some_and(|line| line.holder == ticket)
    }

    /// Who has what this wish waits for; `None` when it has it itself, or is not known.
    #[must_use]
    pub fn busy(&self, ticket: Ticket, now: u64) -> Option<Busy> {
        let wish = self.wishes.get(&ticket)?;
        let line = self.lines.get(&wish.path).filter(|line| line.holder != ticket)?;
        let ahead = line.waiting.iter().position(|waiting| *waiting == ticket)?;
        let holder = self.wishes.get(&line.holder)?.who.to_string();
        let held_ms = now.saturating_sub(line.since);
        Some(Busy { path: wish.path.clone(), holder, held_ms, ahead: ahead as u64 })
    }

    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.lines.is_empty() && self.wishes.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use delegate_protocol::SubagentId;

    fn who(index: u32) -> Who {
        Who::Child(SubagentId::new(index, 7))
    }

    fn granted(asked: Asked) -> Ticket {
        match asked {
            Asked::Granted(ticket) => ticket,
            Asked::Waits(_) | Asked::TooMany => panic!("{asked:?}"),
        }
    }

    fn waits(asked: Asked) -> Ticket {
        match asked {
            Asked::Waits(ticket) => ticket,
            Asked::Granted(_) | Asked::TooMany => panic!("{asked:?}"),
        }
    }

    #[test]
    fn one_path_is_had_in_the_order_of_asking_and_another_at_once() {
        let mut locks = Locks::default();
        let first = granted(locks.ask(&who(0), "/a", 0));
        let second = waits(locks.ask(&who(1), "/a", 1));
        let third = waits(locks.ask(&who(2), "/a", 2));
        let other = granted(locks.ask(&who(1), "/b", 3));
        assert_eq!(locks.release(&who(0), first, 4), Some(second));
        assert!(locks.holds(second) && !locks.holds(third));
        assert_eq!(locks.release(&who(1), second, 5), Some(third));
        assert_eq!(locks.release(&who(2), third, 6), None);
        assert_eq!(locks.release(&who(1), other, 6), None);
        assert!(locks.is_empty());
    }

    #[test]
    fn a_lock_is_given_back_by_its_holder_only_and_once() {
        let mut locks = Locks::default();
        let first = granted(locks.ask(&who(0), "/a", 0));
        let second = waits(locks.ask(&who(1), "/a", 0));
        assert_eq!(locks.release(&who(2), first, 1), None);
        assert!(locks.holds(first), "a stranger gave it back");
        assert_eq!(locks.release(&who(0), first, 1), Some(second));
        assert_eq!(locks.release(&who(0), first, 2), None);
        assert!(locks.holds(second), "it was given back twice");
        assert_eq!(locks.release(&who(0), 99, 2), None);
    }

    #[test]
    fn what_a_holder_has_and_wants_ends_with_it() {
        let mut locks = Locks::default();
        let held = granted(locks.ask(&who(0), "/a", 0));
        waits(locks.ask(&who(0), "/a", 0));
        let next = waits(locks.ask(&who(1), "/a", 0));
        granted(locks.ask(&who(2), "/b", 0));
        waits(locks.ask(&who(0), "/b", 0));
        assert_eq!(locks.leave(&who(0), 1), [next]);
        assert!(!locks.holds(held) && locks.holds(next));
        assert!(locks.leave(&who(1), 2).is_empty());
        assert!(locks.leave(&who(2), 2).is_empty());
        assert!(locks.is_empty());
    }

    #[test]
    fn who_gives_up_is_told_who_has_it() {
        let mut locks = Locks::default();
        let first = granted(locks.ask(&who(0), "/a", 1_000));
        waits(locks.ask(&who(1), "/a", 1_001));
        let third = waits(locks.ask(&who(2), "/a", 1_002));
        let busy = locks.busy(third, 3_000).unwrap();
        let text = busy.to_string();
        assert_eq!(text, "/a is locked by sa-0-00000007 for 2000 ms, and 1 waited before");
        assert_eq!(locks.busy(first, 3_000), None);
        assert_eq!(locks.release(&who(2), third, 3_000), None);
        assert_eq!(locks.busy(third, 3_000), None);
    }

    #[test]
    fn an_agent_can_not_have_more_than_its_share() {
        let mut locks = Locks::default();
        for number in 0..LOCKS_PER_AGENT {
            granted(locks.ask(&who(0), &format!("/{number}"), 0));
        }
        assert_eq!(locks.ask(&who(0), "/one more", 0), Asked::TooMany);
        granted(locks.ask(&who(1), "/one more", 0));
        assert!(locks.leave(&who(0), 0).is_empty());
        granted(locks.ask(&who(0), "/0", 0));
    }
}

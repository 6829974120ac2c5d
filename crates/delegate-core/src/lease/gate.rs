//! [`Gate`]: how many calls a provider is sent, by the whole tree. A permit is taken before a call and given
//! back after it; when a provider refuses calls for their rate, nobody calls until it said, and then one
//! call first. Pure. Used by `authority`.

use std::collections::{BTreeSet, VecDeque};
use std::time::Duration;

use super::moment::{Moment, Until};
use crate::config::CallLimits;

/// The window of `requests_per_minute`.
const WINDOW: Duration = Duration::from_secs(60);

/// How long nobody calls after a refusal without a time.
const REFUSED: Duration = Duration::from_secs(1);

/// When the next call may begin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Opens {
    /// At once.
    Now,
    /// Then, if nothing happens before.
    At(Moment),
    /// When a permit comes back.
    WhenReturned,
}

/// The gate of one provider. Permits are named by `P`.
#[derive(Debug)]
pub struct Gate<P> {
    limits: CallLimits,
    held: BTreeSet<P>,
    /// When the calls of the last minute began.
    begun: VecDeque<Moment>,
    /// Nobody calls.
    closed: Option<Until>,
    /// It was closed: the first call goes alone, and when it comes back well the gate is open.
    trial: Trial<P>,
}

#[derive(Debug, PartialEq, Eq)]
enum Trial<P> {
    None,
    Due,
    Running(P),
}

impl<P: Ord + Copy> Gate<P> {
    /// A gate with limits.
    #[must_use]
    pub const fn new(limits: CallLimits) -> Self {
        Self {
            limits,
            held: BTreeSet::new(),
            begun: VecDeque::new(),
            closed: None,
            trial: Trial::None,
        }
    }

    /// When the next call may begin.
    pub fn opens(&mut self, now: Moment) -> Opens {
        // Of a clock that was set back: what lies ahead begins now.
        self.begun.iter_mut().for_each(|at| *at = (*at).min(now));
        self.closed = self.closed.map(|closed| closed.seen(now));
        while self.begun.front().is_some_and(|at| now.since(*at) >= WINDOW) {
            self.begun.pop_front();
        }
        if let Some(closed) = self.closed {
            if !closed.is_over(now) {
                return Opens::At(closed.until);
            }
            self.closed = None;
        }
        let at_once =
            self.limits.max_concurrent_calls.is_some_and(|most| self.held.len() >= most as usize);
        if at_once || matches!(self.trial, Trial::Running(_)) {
            return Opens::WhenReturned;
        }
        match (self.limits.requests_per_minute, self.begun.front()) {
            (Some(most), Some(first)) if self.begun.len() >= most as usize => {
                Opens::At(first.after(WINDOW))
            }
            _ => Opens::Now,
        }
    }

    /// Takes a permit, when [`Gate::opens`] says that it may be. Whether it was taken.
    pub fn take(&mut self, permit: P, now: Moment) -> bool {
        if self.opens(now) != Opens::Now {
            return false;
        }
        self.held.insert(permit);
        if self.limits.requests_per_minute.is_some() {
            self.begun.push_back(now);
        }
        if self.trial == Trial::Due {
            self.trial = Trial::Running(permit);
        }
        true
    }

    /// Gives a permit back; one that nobody holds is ignored.
    pub fn give_back(&mut self, permit: P) {
        self.held.remove(&permit);
        if self.trial == Trial::Running(permit) {
            self.trial = Trial::None;
        }
    }

    /// As [`Gate::give_back`], of a child that is gone: it says nothing about the provider.
    pub fn lost(&mut self, permit: P) {
        self.held.remove(&permit);
        if self.trial == Trial::Running(permit) {
            self.trial = Trial::Due;
        }
    }

    /// The provider refused the call of a permit for its rate. Nobody calls until `back_at`, or for a
    /// moment.
    pub fn refused(&mut self, permit: P, back_at: Option<Moment>, now: Moment) {
        self.held.remove(&permit);
        let until = match back_at {
            Some(at) => Until::ending(now, at),
            None => Until::lasting(now, REFUSED),
        };
        let known = self.closed.map(|closed| closed.seen(now));
        self.closed = known.filter(|known| known.until >= until.until).or(Some(until));
        // One that is on its way began before the refusal and proves nothing.
        self.trial = Trial::Due;
    }

    /// Permits that are held.
    #[must_use]
    pub fn held(&self) -> usize {
        self.held.len()
    }

    /// Until when nobody calls.
    #[must_use]
    pub fn closed_until(&self) -> Option<Moment> {
        self.closed.map(|closed| closed.until)
    }

    /// Other limits from now on; what is held stays.
    pub fn set_limits(&mut self, limits: CallLimits) {
        self.limits = limits;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const START: Moment = Moment::from_ms(1_800_000_000_000);

    fn gate(concurrent: Option<u32>, per_minute: Option<u32>) -> Gate<u32> {
        Gate::new(CallLimits { max_concurrent_calls: concurrent, requests_per_minute: per_minute })
    }

    fn at(seconds: u64) -> Moment {
        START.after(Duration::from_secs(seconds))
    }

    #[test]
    fn no_more_calls_at_once_than_the_limit() {
        let mut gate = gate(Some(2), None);
        assert!(gate.take(1, START) && gate.take(2, START) && !gate.take(3, START));
        assert_eq!(gate.opens(START), Opens::WhenReturned);
        gate.give_back(9);
        assert!(!gate.take(3, START), "nobody holds 9");
        gate.give_back(1);
        assert!(gate.take(3, START) && !gate.take(4, START));
    }

    #[test]
    fn no_more_calls_in_any_minute_than_the_limit() {
        let mut gate = gate(None, Some(2));
        assert!(gate.take(1, at(0)) && gate.take(2, at(10)));
        gate.give_back(1);
        assert_eq!(gate.opens(at(30)), Opens::At(at(60)));
        assert!(!gate.take(3, at(59)) && gate.take(3, at(60)));
        assert_eq!(gate.opens(at(61)), Opens::At(at(70)));
    }

    #[test]
    fn after_a_refusal_nobody_calls_and_then_one_alone() {
        let mut gate = gate(None, None);
        (0..5).for_each(|permit| assert!(gate.take(permit, START)));
        gate.refused(0, Some(at(30)), START);
        assert_eq!(gate.opens(at(29)), Opens::At(at(30)));
        // Those that were on their way come back, refused or not: neither opens it.
        gate.refused(1, None, at(1));
        gate.give_back(2);
        assert_eq!(gate.opens(at(2)), Opens::At(at(30)), "the later time holds");
        assert!(gate.take(10, at(30)));
        assert_eq!(gate.opens(at(31)), Opens::WhenReturned, "one call first");
        gate.refused(10, Some(at(60)), at(32));
        assert!(!gate.take(11, at(59)) && gate.take(11, at(60)));
        gate.lost(11);
        assert!(gate.take(12, at(61)) && !gate.take(13, at(61)), "a lost one proved nothing");
        gate.give_back(12);
        assert!((20..40).all(|permit| gate.take(permit, at(62))), "it is open");
    }

    #[test]
    fn a_clock_that_is_set_back_keeps_nobody_longer() {
        let mut gate = gate(None, Some(1));
        assert!(gate.take(1, at(1000)));
        assert_eq!(gate.opens(at(0)), Opens::At(at(60)));
        gate.refused(1, Some(at(1010)), at(1000));
        assert_eq!(gate.opens(at(0)), Opens::At(at(10)));
    }

    proptest! {
        /// Whatever happens in whatever order: the limits hold, and when all is given back and enough time
        /// has passed the gate is open.
        #[test]
        fn limits_hold_and_nothing_is_left(
            steps in proptest::collection::vec((0_u8..5, 0_u32..8, 0_u64..20), 1..200),
        ) {
            let mut gate = gate(Some(3), Some(5));
            let (mut now, mut next, mut begun, mut held) = (0, 0, Vec::new(), Vec::new());
            for (what, which, wait) in steps {
                now += wait;
                let pick = |held: &mut Vec<u32>| {
                    let at = (which as usize).checked_rem(held.len())?;
                    Some(held.swap_remove(at))
                };
                match what {
                    0 | 1 => {
                        next += 1;
                        if gate.take(next, at(now)) {
                            begun.push(now);
                            held.push(next);
                        }
                    }
                    2 => if let Some(permit) = pick(&mut held) { gate.give_back(permit) },
                    3 => if let Some(permit) = pick(&mut held) { gate.lost(permit) },
                    _ => if let Some(permit) = pick(&mut held) {
                        gate.refused(permit, Some(at(now + u64::from(which))), at(now));
                    },
                }
                prop_assert_eq!(gate.held(), held.len());
                prop_assert!(held.len() <= 3);
                let recent = begun.iter().filter(|begun| now - **begun < 60).count();
                prop_assert!(recent <= 5, "{begun:?}");
            }
            held.into_iter().for_each(|permit| gate.lost(permit));
            prop_assert_eq!(gate.opens(at(now + 100)), Opens::Now);
        }
    }
}

//! [`Gate`]: how many calls a provider is sent, by the whole tree and by the trees of other parents on the same
//! state directory. A permit is taken before a call and given back after it; when a provider refuses calls
//! for their rate, nobody calls until it said, and then one call first. Pure. `beside` carries [`Known`] and
//! [`Held`] to other parents and brings theirs. Used by `authority`.

use std::collections::{BTreeSet, VecDeque};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::moment::{Moment, Until};
use super::reset::LONGEST;
use crate::config::CallLimits;

/// The window of `requests_per_minute`.
const WINDOW: Duration = Duration::from_secs(60);

/// How long nobody calls after a refusal without a time.
const REFUSED: Duration = Duration::from_secs(1);

/// Who could call so soon waits for its turn among the parents already.
const SOON: Duration = Duration::from_secs(1);

/// When the next call may begin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Opens {
    /// At once.
    Now,
    /// Then, if nothing happens before.
    At(Moment),
    /// When a permit comes back.
    WhenReturned,
    /// When another parent has called, or given a permit back: nobody tells us.
    AfterOthers,
}

/// What all parents of a state directory know together of a provider.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Known {
    /// When the calls of the last minute began.
    begun: VecDeque<Moment>,
    /// Nobody calls.
    closed: Option<Until>,
    /// It was closed: the first call goes alone, and when it comes back well the gate is open.
    trial: bool,
    /// How often a parent took its turn.
    turn: u64,
}

impl Known {
    /// Whether there is nothing to know.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// What two know that have not met: of each the later.
    #[must_use]
    pub fn and(mut self, other: Self) -> Self {
        let Self { begun, closed, trial, turn } = other;
        self.begun.extend(begun);
        self.begun.make_contiguous().sort_unstable();
        let mut last = None;
        // What both have was told by one to the other.
        self.begun.retain(|at| last.replace(*at) != Some(*at));
        self.closed = self.closed.into_iter().chain(closed).max_by_key(|closed| closed.until);
        Self { trial: self.trial || trial, turn: self.turn.max(turn), ..self }
    }
}

/// What one parent has of a provider, for the others.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Held {
    /// Its calls that go on.
    pub calls: u32,
    /// One of them is the one that goes first.
    pub trial: bool,
    /// It would begin another, if it were its turn.
    pub waits: bool,
    /// When it had its last turn.
    pub turn: u64,
}

/// What the other living parents have of a provider.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Others {
    /// There are some.
    pub any: bool,
    /// Their calls that go on.
    pub calls: u32,
    /// One of them is the one that goes first.
    pub trial: bool,
    /// The last turn of the one that waits and had its turn longest ago.
    pub first: Option<u64>,
}

impl Others {
    /// One more. `looks` is whether it looked at its turn a moment ago: one that stands still is not waited
    /// for, what it holds it holds.
    #[must_use]
    pub fn and(self, held: Held, looks: bool) -> Self {
        let waits = (held.waits && looks).then_some(held.turn);
        Self {
            any: true,
            calls: self.calls.saturating_add(held.calls),
            trial: self.trial || held.trial,
            first: self.first.into_iter().chain(waits).min(),
        }
    }
}

/// The gate of one provider. Permits are named by `P`.
#[derive(Debug)]
pub struct Gate<P> {
    limits: CallLimits,
    held: BTreeSet<P>,
    known: Known,
    /// Our call that goes first.
    trial: Option<P>,
    others: Others,
    /// When we had our last turn.
    turn: u64,
}

impl<P: Ord + Copy> Gate<P> {
    /// A gate with limits.
    #[must_use]
    pub fn new(limits: CallLimits) -> Self {
        Self {
            limits,
            held: BTreeSet::new(),
            known: Known::default(),
            trial: None,
            others: Others::default(),
            turn: 0,
        }
    }

    /// When the next call may begin.
    pub fn opens(&mut self, now: Moment) -> Opens {
        self.forget_old(now);
        if let Some(closed) = self.known.closed {
            return Opens::At(closed.until);
        }
        if self.is_full(self.held.len()) || self.trial.is_some() {
            return Opens::WhenReturned;
        }
        let all = self.held.len().saturating_add(self.others.calls as usize);
        if self.is_full(all) || (self.known.trial && self.others.trial) {
            return Opens::AfterOthers;
        }
        if let Some(at) = self.minute_is_over_at() {
            return Opens::At(at);
        }
        let ours = self.others.first.is_none_or(|first| self.turn <= first);
        if ours { Opens::Now } else { Opens::AfterOthers }
    }

    fn forget_old(&mut self, now: Moment) {
        let known = &mut self.known;
        // Of a clock that was set back: what lies ahead begins now.
        known.begun.iter_mut().for_each(|at| *at = (*at).min(now));
        known.closed = known.closed.map(|closed| closed.seen(now));
        while known.begun.front().is_some_and(|at| now.since(*at) >= WINDOW) {
            known.begun.pop_front();
        }
        known.closed = known.closed.filter(|closed| !closed.is_over(now));
    }

    fn is_full(&self, calls: usize) -> bool {
        self.limits.max_concurrent_calls.is_some_and(|most| calls >= most as usize)
    }

    /// When the next call of the minute may begin, where there were as many as there may be.
    fn minute_is_over_at(&self) -> Option<Moment> {
        let most = self.limits.requests_per_minute? as usize;
        let oldest = self.known.begun.len().checked_sub(most)?;
        self.known.begun.get(oldest).map(|at| at.after(WINDOW))
    }

    /// Takes a permit, when [`Gate::opens`] says that it may be. Whether it was taken.
    pub fn take(&mut self, permit: P, now: Moment) -> bool {
        if self.opens(now) != Opens::Now {
            return false;
        }
        self.held.insert(permit);
        if self.limits.requests_per_minute.is_some() {
            self.known.begun.push_back(now);
        }
        if self.known.trial {
            self.trial = Some(permit);
        }
        if self.others.any {
            self.turn = self.known.turn.max(self.turn) + 1;
            self.known.turn = self.turn;
        }
        true
    }

    /// Gives a permit back; one that nobody holds is ignored.
    pub fn give_back(&mut self, permit: P) {
        self.held.remove(&permit);
        if self.trial == Some(permit) {
            self.trial = None;
            self.known.trial = false;
        }
    }

    /// As [`Gate::give_back`], of a child that is gone: it says nothing about the provider.
    pub fn lost(&mut self, permit: P) {
        self.held.remove(&permit);
        self.trial = self.trial.filter(|trial| *trial != permit);
    }

    /// The provider refused the call of a permit for its rate. Nobody calls until `back_at`, or for a
    /// moment.
    pub fn refused(&mut self, permit: P, back_at: Option<Moment>, now: Moment) {
        self.held.remove(&permit);
        let until = match back_at {
            Some(at) => Until::ending(now, at),
            None => Until::lasting(now, REFUSED),
        };
        let known = self.known.closed.map(|closed| closed.seen(now));
        self.known.closed = known.filter(|known| known.until >= until.until).or(Some(until));
        // One that is on its way began before the refusal and proves nothing.
        self.trial = None;
        self.known.trial = true;
    }

    /// What is known of the provider, for other parents.
    #[must_use]
    pub const fn known(&self) -> &Known {
        &self.known
    }

    /// Takes in what all parents know. A file may say anything: nobody is kept longer than a provider could
    /// keep them.
    pub fn set_known(&mut self, mut known: Known) {
        known.closed = known.closed.map(|closed| {
            let most = closed.at.after(LONGEST);
            Until::ending(closed.at, closed.until.min(most))
        });
        self.known = known;
    }

    /// Takes in what the others have.
    pub const fn set_others(&mut self, others: Others) {
        self.others = others;
    }

    /// Whether there are other parents.
    #[must_use]
    pub const fn has_others(&self) -> bool {
        self.others.any
    }

    /// What we have, for the others; `waits` is whether somebody here would call.
    pub fn held_for_others(&mut self, waits: bool, now: Moment) -> Held {
        self.forget_old(now);
        let soon = now.after(SOON);
        let is_soon = self.known.closed.is_none_or(|closed| closed.until <= soon)
            && self.minute_is_over_at().is_none_or(|at| at <= soon);
        let could = is_soon && !self.is_full(self.held.len());
        let calls = u32::try_from(self.held.len()).unwrap_or(u32::MAX);
        let (trial, turn) = (self.trial.is_some(), self.turn);
        Held { calls, trial, waits: waits && could, turn }
    }

    /// Permits that are held.
    #[must_use]
    pub fn held(&self) -> usize {
        self.held.len()
    }

    /// Until when nobody calls.
    #[must_use]
    pub fn closed_until(&self) -> Option<Moment> {
        self.known.closed.map(|closed| closed.until)
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

    fn others(calls: u32, first: Option<u64>) -> Others {
        Others { any: true, calls, trial: false, first }
    }

    #[test]
    fn calls_of_other_parents_count() {
        let mut gate = gate(Some(3), None);
        gate.set_others(others(2, None));
        assert!(gate.take(1, START) && !gate.take(2, START));
        assert_eq!(gate.opens(START), Opens::AfterOthers);
        gate.set_others(others(1, None));
        assert!(gate.take(2, START));
        gate.set_others(others(0, None));
        assert!(gate.take(3, START));
        assert_eq!(gate.opens(START), Opens::WhenReturned, "all of them are ours");
    }

    /// Two parents with one place between them, and each has always somebody who waits.
    #[test]
    fn parents_take_turns_and_one_that_stands_still_is_passed_over() {
        let mut gates = [gate(Some(1), None), gate(Some(1), None)];
        let mut order = Vec::new();
        for permit in 0..6 {
            for me in [0, 1] {
                let theirs = gates[1 - me].held_for_others(true, START);
                let known = gates[1 - me].known().clone();
                gates[me].set_others(Others::default().and(theirs, true));
                gates[me].set_known(known);
                if gates[me].take(permit, START) {
                    order.push(me);
                    gates[me].give_back(permit);
                }
            }
        }
        assert!(order.len() >= 6 && order.windows(2).all(|two| two[0] != two[1]), "{order:?}");
        let [mut one, mut two] = gates;
        let theirs = two.held_for_others(true, START);
        one.set_others(Others::default().and(theirs, true));
        let waits = one.opens(START) == Opens::AfterOthers;
        let theirs = one.held_for_others(true, START);
        two.set_others(Others::default().and(theirs, true));
        assert!(waits != (two.opens(START) == Opens::AfterOthers), "it is the turn of one");
        let late = if waits { &mut one } else { &mut two };
        late.set_others(Others::default().and(Held { waits: true, ..Held::default() }, false));
        assert_eq!(late.opens(START), Opens::Now);
    }

    #[test]
    fn what_one_parent_knows_of_a_provider_holds_for_the_other() {
        let (mut one, mut two) = (gate(None, Some(2)), gate(None, Some(2)));
        assert!(one.take(1, at(0)) && one.take(2, at(10)));
        two.set_known(one.known().clone());
        assert_eq!(two.opens(at(30)), Opens::At(at(60)));
        one.refused(2, Some(at(100)), at(40));
        two.set_known(one.known().clone());
        assert_eq!(two.opens(at(99)), Opens::At(at(100)));
        assert!(two.take(5, at(100)), "the one that goes first");
        one.set_known(two.known().clone());
        one.set_others(Others::default().and(two.held_for_others(false, at(101)), true));
        assert_eq!(one.opens(at(101)), Opens::AfterOthers);
        two.give_back(5);
        one.set_known(two.known().clone());
        one.set_others(Others::default().and(two.held_for_others(false, at(102)), true));
        assert!(one.take(6, at(102)));
    }

    #[test]
    fn what_two_know_apart_is_put_together_and_no_file_closes_for_ever() {
        let (mut one, mut two) = (gate(None, Some(9)), gate(None, Some(9)));
        one.take(1, at(0));
        two.set_known(one.known().clone());
        one.take(2, at(1));
        two.take(3, at(2));
        two.refused(3, Some(at(50)), at(3));
        let both = one.known().clone().and(two.known().clone());
        assert_eq!(both, two.known().clone().and(one.known().clone()));
        assert_eq!((both.begun.len(), both.trial), (3, true));
        assert_eq!(both.closed.map(|closed| closed.until), Some(at(50)));
        let closed = Some(Until { at: START, until: Moment::from_ms(u64::MAX) });
        one.set_known(Known { closed, ..Known::default() });
        assert_eq!(one.opens(START), Opens::At(START.after(LONGEST)));
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

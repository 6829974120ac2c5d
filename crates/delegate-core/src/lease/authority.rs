//! [`Authority`]: the pools and gates of one parent, and all children of its tree that use them. Pure: it is
//! told what happened and when, and gives back whom to answer what. `desk` waits and acts for it.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use delegate_protocol::lease::Given;
use delegate_protocol::{ApiKey, KeyAnswer, KeyFailure, KeyQuestion, SubagentId};

use super::beside::Shared;
use super::gate::{Held, Opens};
use super::gates::Gates;
use super::line::Line;
use super::moment::Moment;
use super::pool::{Nothing, Pool, PoolSpec, Rotation};
use super::reset::reset_time;
use crate::config::{CallLimits, PoolStrategy};

/// Permits that one child may hold: more than any agent calls at once.
const PERMITS: usize = 64;

/// How soon the others are looked at again by whom they keep waiting. Nobody tells us of them: a look is a
/// small file per parent.
const LOOK_NOW: Duration = Duration::from_millis(20);

/// The same for who waits for something else: others see that it does.
const LOOK_SOON: Duration = Duration::from_millis(200);

const NO_CHILD: &str = "this child has no place any more";
const NO_POOL: &str = "this child has one fixed key and no pool (setting credential_pools)";

/// A child, and what it may use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Admission {
    /// The child.
    pub child: SubagentId,
    /// Its first ancestor below the root, or itself: whose turn its turn is.
    pub branch: SubagentId,
    /// Its pool.
    pub pool: Option<String>,
    /// Its provider.
    pub provider: Option<String>,
    /// Its endpoint.
    pub endpoint: Option<String>,
}

impl Admission {
    /// The gate that its calls go through.
    fn gate(&self) -> &str {
        self.pool.as_deref().or(self.provider.as_deref()).unwrap_or_default()
    }
}

/// Somebody who waits for an answer.
#[derive(Debug)]
struct Waiter<R> {
    child: SubagentId,
    reply: R,
}

#[derive(Debug)]
struct Child {
    admission: Admission,
    permits: BTreeSet<u64>,
}

/// Whom to answer what.
pub type Answers<R> = Vec<(R, KeyAnswer)>;

/// When it is asked: the time, and dice for `random`.
#[derive(Debug, Clone, Copy)]
pub struct Now {
    /// Wall clock.
    pub time: Moment,
    /// Any number.
    pub dice: u64,
}

/// Pools, gates and children of one parent. `R` is the way to answer a question.
#[derive(Debug)]
pub struct Authority<R> {
    pools: BTreeMap<String, Pool>,
    strategies: BTreeMap<String, PoolStrategy>,
    gates: Gates,
    children: BTreeMap<SubagentId, Child>,
    for_keys: Line<SubagentId, Waiter<R>>,
    for_calls: Line<SubagentId, Waiter<R>>,
    last_permit: u64,
}

impl<R> Authority<R> {
    /// Without pools.
    #[must_use]
    pub fn new(
        strategies: BTreeMap<String, PoolStrategy>,
        limits: BTreeMap<String, CallLimits>,
    ) -> Self {
        Self {
            pools: BTreeMap::new(),
            strategies,
            gates: Gates::new(limits),
            children: BTreeMap::new(),
            for_keys: Line::default(),
            for_calls: Line::default(),
            last_permit: 0,
        }
    }

    /// Takes these pools in, instead of those that were: leases and what is known of keys stay. A pool
    /// that is not there any more has no keys.
    pub fn set_pools(&mut self, specs: BTreeMap<String, PoolSpec>) {
        for (name, pool) in &mut self.pools {
            if !specs.contains_key(name) {
                pool.replace(PoolSpec::default());
            }
        }
        for (name, mut spec) in specs {
            if let Some(strategy) = self.strategies.get(&name) {
                spec.strategy = *strategy;
            }
            match self.pools.get_mut(&name) {
                Some(pool) => pool.replace(spec),
                None => drop(self.pools.insert(name, Pool::new(spec))),
            }
        }
    }

    /// Its pools, by name.
    #[must_use]
    pub const fn pools(&self) -> &BTreeMap<String, Pool> {
        &self.pools
    }

    /// Takes a child in, and leases it a key where it has a pool with one.
    pub fn admit(&mut self, admission: Admission, now: Now) -> Option<Given> {
        let child = admission.child;
        // Named now, so that it is known what others have of it before the first call.
        self.gates.of(admission.gate());
        let pool = admission.pool.as_ref().and_then(|pool| self.pools.get_mut(pool));
        let given =
            pool.and_then(|pool| pool.lease(child, admission.endpoint.as_deref(), now.time));
        let before = self.children.insert(child, Child { admission, permits: BTreeSet::new() });
        if let Some(before) = before {
            self.lose_permits(&before);
        }
        given
    }

    fn lose_permits(&mut self, left: &Child) {
        if let Some(gate) = self.gates.get_mut(left.admission.gate()) {
            let child = left.admission.child;
            left.permits.iter().for_each(|permit| gate.lost((child, *permit)));
        }
    }

    /// A key that no child holds, for the route of a batch.
    pub fn select(&mut self, pool: &str, now: Now) -> Option<Given> {
        self.pools.get_mut(pool)?.select(None, now.time, now.dice)
    }

    /// Gives back all that a child has; what it waits for is not answered any more. Unknown ones are
    /// ignored.
    pub fn leave(&mut self, child: SubagentId, now: Now) -> Answers<R> {
        self.for_keys.retain(|waiter| waiter.child != child);
        self.for_calls.retain(|waiter| waiter.child != child);
        if let Some(left) = self.children.remove(&child) {
            self.lose_permits(&left);
            let pool = left.admission.pool.as_ref().and_then(|pool| self.pools.get_mut(pool));
            if let Some(pool) = pool {
                pool.release(child);
            }
        }
        self.serve(now)
    }

    /// Takes a question in.
    pub fn ask(
        &mut self,
        child: SubagentId,
        question: KeyQuestion,
        reply: R,
        now: Now,
    ) -> Answers<R> {
        let Some(known) = self.children.get(&child) else {
            return vec![(reply, no_key(NO_CHILD))];
        };
        let branch = known.admission.branch;
        match question {
            KeyQuestion::Rotate { fingerprint, failure } => {
                let answer = self.rotate(child, fingerprint.as_ref(), failure, now);
                let mut answers = vec![(reply, answer)];
                // A key that is dead now may have been what others waited for.
                answers.extend(self.serve(now));
                answers
            }
            KeyQuestion::Await => {
                self.for_keys.push(branch, Waiter { child, reply });
                self.serve(now)
            }
            KeyQuestion::Permit => {
                let open =
                    known.permits.len() + self.for_calls.count(|waiter| waiter.child == child);
                if open >= PERMITS {
                    let why =
                        format!("{PERMITS} calls of one child at once are all that it may have");
                    return vec![(reply, no_key(why))];
                }
                self.for_calls.push(branch, Waiter { child, reply });
                self.serve(now)
            }
            KeyQuestion::GiveBack { permit, refused } => {
                self.give_back(child, permit, refused.as_deref(), now);
                let mut answers = vec![(reply, KeyAnswer::Noted)];
                answers.extend(self.serve(now));
                answers
            }
        }
    }

    fn rotate(
        &mut self,
        child: SubagentId,
        failed: Option<&delegate_protocol::Fingerprint>,
        failure: KeyFailure,
        now: Now,
    ) -> KeyAnswer {
        let Some(known) = self.children.get(&child) else { return no_key(NO_CHILD) };
        let Admission { pool, endpoint, .. } = &known.admission;
        let Some(pool) = pool.as_ref().and_then(|pool| self.pools.get_mut(pool)) else {
            return no_key(NO_POOL);
        };
        let failure = without_keys(failure, pool);
        let asker = (child, endpoint.as_deref());
        match pool.rotate(asker, failed, &failure, (now.time, now.dice)).0 {
            Rotation::Next(given) => KeyAnswer::Key(given),
            Rotation::Wait(at) => KeyAnswer::Wait { ms: milliseconds(at.since(now.time)) },
            Rotation::Nothing(why) => no_key(why.to_string()),
        }
    }

    fn give_back(&mut self, child: SubagentId, permit: u64, refused: Option<&str>, now: Now) {
        let Some(known) = self.children.get_mut(&child) else { return };
        if !known.permits.remove(&permit) {
            return;
        }
        let Some(gate) = self.gates.get_mut(known.admission.gate()) else { return };
        match refused {
            Some(when) => {
                gate.refused((child, permit), reset_time(when, now.time), now.time);
            }
            None => gate.give_back((child, permit)),
        }
    }

    /// Answers all whose time has come.
    pub fn serve(&mut self, now: Now) -> Answers<R> {
        let mut answers = Vec::new();
        while let Some(waiter) = self.next_for_key(now) {
            let answer = self.key_for(waiter.child, now).map_or_else(no_key, KeyAnswer::Key);
            answers.push((waiter.reply, answer));
        }
        while let Some(waiter) = self.next_for_call(now) {
            let answer = self.permit_for(waiter.child, now);
            answers.push((waiter.reply, answer));
        }
        answers
    }

    fn next_for_key(&mut self, now: Now) -> Option<Waiter<R>> {
        let Self { for_keys, children, pools, .. } = self;
        for_keys.next(|waiter| Means::of(waiter.child, children, pools, now) != Means::Later)
    }

    fn next_for_call(&mut self, now: Now) -> Option<Waiter<R>> {
        let Self { for_calls, children, pools, gates, .. } = self;
        for_calls.next(|waiter| match Means::of(waiter.child, children, pools, now) {
            Means::Later => false,
            Means::Never => true,
            Means::Good | Means::Other | Means::Fixed => {
                let Some(known) = children.get(&waiter.child) else { return true };
                gates.of(known.admission.gate()).opens(now.time) == Opens::Now
            }
        })
    }

    /// A lease for one who waited for it, or the one that it has.
    fn key_for(&mut self, child: SubagentId, now: Now) -> Result<Given, String> {
        let known = self.children.get(&child).ok_or(NO_CHILD)?;
        let Admission { pool, endpoint, .. } = &known.admission;
        let pool = pool.as_ref().and_then(|pool| self.pools.get_mut(pool)).ok_or(NO_POOL)?;
        let given = pool.lease(child, endpoint.as_deref(), now.time);
        given.ok_or_else(|| Nothing::AllGone.to_string())
    }

    fn permit_for(&mut self, child: SubagentId, now: Now) -> KeyAnswer {
        let means = Means::of(child, &self.children, &mut self.pools, now);
        let key = match means {
            Means::Never => return no_key(Nothing::AllGone.to_string()),
            Means::Other => match self.key_for(child, now) {
                Ok(given) => Some(given),
                Err(why) => return no_key(why),
            },
            Means::Good | Means::Fixed | Means::Later => None,
        };
        let Some(known) = self.children.get_mut(&child) else { return no_key(NO_CHILD) };
        self.last_permit += 1;
        let permit = self.last_permit;
        let gate = self.gates.of(known.admission.gate());
        if !gate.take((child, permit), now.time) {
            return no_key("the provider takes no call now");
        }
        known.permits.insert(permit);
        KeyAnswer::Permit { permit, key }
    }

    /// When [`Authority::serve`] may have somebody to answer, if nothing happens before. `None`: not by
    /// time alone.
    pub fn next_deadline(&mut self, now: Now) -> Option<Moment> {
        if self.for_keys.is_empty() && self.for_calls.is_empty() {
            return None;
        }
        let Self { pools, gates, children, for_keys, for_calls, .. } = self;
        let waiting: BTreeSet<SubagentId> =
            for_keys.iter().chain(for_calls.iter()).map(|waiter| waiter.child).collect();
        let keys = waiting.iter().filter_map(|child| {
            let Admission { pool, endpoint, .. } = &children.get(child)?.admission;
            pools.get_mut(pool.as_ref()?)?.next_available_at(endpoint.as_deref(), now.time)
        });
        let keys = keys.min();
        let gates = gates.values_mut().filter_map(|gate| match gate.opens(now.time) {
            Opens::At(at) => Some(at),
            Opens::Now | Opens::WhenReturned | Opens::AfterOthers => None,
        });
        gates.chain(keys).min()
    }

    /// Whether a key is that of a pool.
    #[must_use]
    pub fn has(&self, pool: &str, key: &ApiKey) -> bool {
        self.pools.get(pool).is_some_and(|pool| pool.has(key))
    }

    /// Whether somebody waits.
    #[must_use]
    pub fn is_waited_for(&self) -> bool {
        !self.for_keys.is_empty() || !self.for_calls.is_empty()
    }

    /// Calls that go on through a gate.
    #[must_use]
    pub fn calls(&self, gate: &str) -> usize {
        self.gates.calls(gate)
    }

    /// How soon to look again what other parents do, where somebody waits for them, or for a turn among them.
    pub fn next_look(&mut self, now: Now) -> Option<Duration> {
        let Self { for_calls, children, gates, .. } = self;
        let of = |waiter: &Waiter<R>| {
            let gate = gates.get_mut(children.get(&waiter.child)?.admission.gate())?;
            let others = gate.opens(now.time) == Opens::AfterOthers;
            gate.has_others().then_some(if others { LOOK_NOW } else { LOOK_SOON })
        };
        for_calls.iter().filter_map(of).min()
    }
}

/// What a child could make its next call with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Means {
    /// One key for ever; there is no pool.
    Fixed,
    /// The key that it holds.
    Good,
    /// Another key of its pool.
    Other,
    /// None now.
    Later,
    /// None any more.
    Never,
}

impl Means {
    fn of(
        child: SubagentId,
        children: &BTreeMap<SubagentId, Child>,
        pools: &mut BTreeMap<String, Pool>,
        now: Now,
    ) -> Self {
        let Some(known) = children.get(&child) else { return Self::Never };
        let Admission { pool, endpoint, .. } = &known.admission;
        let Some(pool) = pool.as_ref().and_then(|pool| pools.get_mut(pool)) else {
            return Self::Fixed;
        };
        let endpoint = endpoint.as_deref();
        if pool.holds_good_key(child, now.time) {
            Self::Good
        } else if pool.has_key(endpoint, now.time) {
            Self::Other
        } else if pool.next_available_at(endpoint, now.time).is_some() {
            Self::Later
        } else {
            Self::Never
        }
    }
}

impl<R> Shared for Authority<R> {
    fn pools(&mut self) -> &mut BTreeMap<String, Pool> {
        &mut self.pools
    }

    fn gates(&mut self) -> &mut Gates {
        &mut self.gates
    }

    fn held(&mut self, now: Moment) -> BTreeMap<String, Held> {
        let Self { for_calls, children, pools, gates, .. } = self;
        let mut waiting = BTreeSet::new();
        for waiter in for_calls.iter() {
            let Some(known) = children.get(&waiter.child) else { continue };
            let gate = known.admission.gate();
            if !waiting.contains(gate)
                && Means::of(waiter.child, children, pools, Now { time: now, dice: 0 })
                    != Means::Later
            {
                waiting.insert(gate.to_owned());
            }
        }
        gates.held(|gate| waiting.contains(gate), now)
    }
}

fn no_key(why: impl Into<String>) -> KeyAnswer {
    KeyAnswer::NoKey { why: why.into() }
}

fn milliseconds(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// A failure as it may be kept: a provider repeats the key in its words, or a child does.
fn without_keys(failure: KeyFailure, pool: &Pool) -> KeyFailure {
    let is_word = |text: &str| {
        let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"_-.".contains(&byte);
        text.len() <= 64 && text.bytes().all(fits)
    };
    let names_key = |text: &str| {
        let mut keys = pool.entries().filter_map(|(entry, ..)| entry.key.as_ref());
        keys.any(|key| text.contains(key.reveal()))
    };
    let reason = failure.reason.filter(|reason| is_word(reason.trim()) && !names_key(reason));
    KeyFailure { reason, ..failure }
}

#[cfg(test)]
#[path = "authority_tests.rs"]
mod tests;

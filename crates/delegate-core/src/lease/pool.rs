//! [`Pool`]: the keys of one provider, who has which, and which one comes next. Pure: time and dice are
//! arguments. `status` says what a failure does to a key, `authority` holds the pools of a tree.

use std::collections::BTreeMap;
use std::fmt;

use delegate_protocol::lease::Given;
use delegate_protocol::{ApiKey, Fingerprint, KeyFailure, SubagentId};

use super::endpoint::same_endpoint;
use super::moment::Moment;
use super::status::{Marked, Record, State};
use crate::config::PoolStrategy;

/// One entry of a pool: a key, and where it comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// Names the entry within its pool: 6 hex digits, or what its file says.
    pub id: String,
    /// For people.
    pub label: String,
    /// Smaller comes first; among equals the order of the file.
    pub priority: i64,
    /// `None` where it could not be had (a variable that is not set).
    pub key: Option<ApiKey>,
    /// Its endpoint, where it has one of its own.
    pub base_url: Option<String>,
    /// Where the key comes from, for people, such as `variable OPENAI_KEY`.
    pub source: String,
}

impl Entry {
    /// An entry with a key that the program has.
    #[must_use]
    pub fn new(id: impl Into<String>, key: ApiKey) -> Self {
        let id = id.into();
        Self {
            label: id.clone(),
            id,
            priority: 0,
            key: Some(key),
            base_url: None,
            source: "the program".to_owned(),
        }
    }

    /// The fingerprint of its key.
    #[must_use]
    pub fn fingerprint(&self) -> Option<Fingerprint> {
        self.key.as_ref().map(Fingerprint::of)
    }
}

/// What a pool is, without what became of its keys.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PoolSpec {
    /// Endpoint of its entries; `None`: the provider's own.
    pub base_url: Option<String>,
    /// In which order keys are taken.
    pub strategy: PoolStrategy,
    /// Its entries.
    pub entries: Vec<Entry>,
}

/// An entry with its fingerprint, which is computed once.
#[derive(Debug)]
struct Slot {
    entry: Entry,
    fingerprint: Option<Fingerprint>,
}

/// What a child has.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Lease {
    entry: String,
    fingerprint: Fingerprint,
    /// Failures in a row that named a key which nobody knows.
    lap: usize,
}

/// What a child gets whose key has failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Rotation {
    /// This key; it holds a lease on it.
    Next(Given),
    /// None works now; the first that comes back does so then.
    Wait(Moment),
    /// None, and none will come back by itself.
    Nothing(Nothing),
}

/// Why there is no key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Nothing {
    /// Every key is dead, missing, or for another endpoint.
    AllGone,
    /// The failed key is not in the pool, and all others were tried.
    Unknown,
}

impl fmt::Display for Nothing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::AllGone => {
                "every key of the pool is dead, missing or for another endpoint (delegate keys)"
            }
            Self::Unknown => {
                "the key that failed is not in the pool, and the others were handed out already"
            }
        })
    }
}

/// The keys of one provider.
#[derive(Debug)]
pub struct Pool {
    base_url: Option<String>,
    strategy: PoolStrategy,
    /// By priority.
    slots: Vec<Slot>,
    records: BTreeMap<Fingerprint, Record>,
    leases: BTreeMap<SubagentId, Lease>,
    /// Leases that other parents on this machine hold.
    others: BTreeMap<Fingerprint, u32>,
    /// How often an entry was taken here.
    uses: BTreeMap<String, u64>,
    /// When an entry was taken last; for `round_robin`.
    turns: BTreeMap<Fingerprint, u64>,
}

impl Pool {
    /// A pool whose keys are all fresh.
    #[must_use]
    pub fn new(spec: PoolSpec) -> Self {
        let mut pool = Self {
            base_url: None,
            strategy: PoolStrategy::default(),
            slots: Vec::new(),
            records: BTreeMap::new(),
            leases: BTreeMap::new(),
            others: BTreeMap::new(),
            uses: BTreeMap::new(),
            turns: BTreeMap::new(),
        };
        pool.replace(spec);
        pool
    }

    /// Takes other entries in: who holds a lease keeps it, a key that is known keeps its status.
    pub fn replace(&mut self, spec: PoolSpec) {
        let PoolSpec { base_url, strategy, mut entries } = spec;
        entries.sort_by_key(|entry| entry.priority);
        self.base_url = base_url;
        self.strategy = strategy;
        let slot = |entry: Entry| Slot { fingerprint: entry.fingerprint(), entry };
        self.slots = entries.into_iter().map(slot).collect();
    }

    /// Looks at the time: cooldowns that are over are forgotten. Whether a status changed.
    pub fn look(&mut self, now: Moment) -> bool {
        let mut changed = false;
        self.records.values_mut().for_each(|record| changed |= record.look(now));
        changed
    }

    fn is_available(&self, slot: &Slot) -> bool {
        let known = |print| self.records.get(print).is_none_or(|record| record.state == State::Ok);
        slot.fingerprint.as_ref().is_some_and(known)
    }

    fn endpoint_of<'a>(&'a self, slot: &'a Slot) -> Option<&'a str> {
        slot.entry.base_url.as_deref().or(self.base_url.as_deref())
    }

    /// Whether an entry may be used at an endpoint. Without one on either side nothing speaks against it.
    fn serves(&self, slot: &Slot, endpoint: Option<&str>) -> bool {
        match (self.endpoint_of(slot), endpoint) {
            (Some(own), Some(asked)) => same_endpoint(own, asked),
            (None, _) | (_, None) => true,
        }
    }

    /// Places of the entries that may be taken now.
    fn candidates(&self, endpoint: Option<&str>) -> impl Iterator<Item = usize> {
        let fits = move |slot: &Slot| self.is_available(slot) && self.serves(slot, endpoint);
        self.slots.iter().enumerate().filter(move |(_, slot)| fits(slot)).map(|(at, _)| at)
    }

    /// Whether a key may be taken now.
    pub fn has_key(&mut self, endpoint: Option<&str>, now: Moment) -> bool {
        self.look(now);
        self.candidates(endpoint).next().is_some()
    }

    /// Whether it has a key at all, in whatever state, for this endpoint.
    #[must_use]
    pub fn serves_at_all(&self, endpoint: Option<&str>) -> bool {
        let fits = |slot: &Slot| slot.fingerprint.is_some() && self.serves(slot, endpoint);
        self.slots.iter().any(fits)
    }

    /// When the first key comes back. `None` when one may be taken now, or none comes back by itself.
    pub fn next_available_at(&mut self, endpoint: Option<&str>, now: Moment) -> Option<Moment> {
        if self.has_key(endpoint, now) {
            return None;
        }
        let fits = self.slots.iter().filter(|slot| self.serves(slot, endpoint));
        let record = |slot: &Slot| self.records.get(slot.fingerprint.as_ref()?)?.back_at();
        fits.filter_map(record).min()
    }

    /// Leases on a key, those of other parents too.
    fn load(&self, fingerprint: &Fingerprint) -> u32 {
        let ours = self.leases.values().filter(|lease| lease.fingerprint == *fingerprint).count();
        let others = self.others.get(fingerprint).copied().unwrap_or(0);
        u32::try_from(ours).unwrap_or(u32::MAX).saturating_add(others)
    }

    /// How the strategy orders an entry against the others; smaller comes first. Entries that are equal
    /// come by priority.
    fn rank(&self, at: usize, dice: u64) -> u64 {
        let slot = &self.slots[at];
        let turn = || self.turns.get(slot.fingerprint.as_ref()?).copied();
        match self.strategy {
            PoolStrategy::FillFirst => 0,
            PoolStrategy::RoundRobin => turn().unwrap_or(0),
            PoolStrategy::LeastUsed => self.uses.get(&slot.entry.id).copied().unwrap_or(0),
            PoolStrategy::Random => mix(dice, at as u64),
        }
    }

    fn took(&mut self, at: usize) {
        let slot = &self.slots[at];
        *self.uses.entry(slot.entry.id.clone()).or_default() += 1;
        if let Some(print) = slot.fingerprint.clone() {
            let turn = self.turns.values().max().map_or(1, |last| last + 1);
            self.turns.insert(print, turn);
        }
    }

    fn given(&self, at: usize) -> Option<Given> {
        let slot = &self.slots[at];
        let base_url = self.endpoint_of(slot).map(str::to_owned);
        Some(Given { api_key: slot.entry.key.clone()?, base_url })
    }

    /// A key without a lease, by the strategy.
    pub fn select(&mut self, endpoint: Option<&str>, now: Moment, dice: u64) -> Option<Given> {
        self.look(now);
        let at = self.candidates(endpoint).min_by_key(|at| (self.rank(*at, dice), *at))?;
        self.took(at);
        self.given(at)
    }

    /// A lease for a child, on the key with the fewest; of equal ones the first. Soft: it waits for
    /// nobody, and where there are more children than keys they share. `None` when no key may be taken.
    /// A lease that the child had before is given back.
    pub fn lease(
        &mut self,
        child: SubagentId,
        endpoint: Option<&str>,
        now: Moment,
    ) -> Option<Given> {
        self.release(child);
        self.look(now);
        let load = |at: &usize| {
            let print = self.slots[*at].fingerprint.as_ref();
            (print.map_or(0, |print| self.load(print)), *at)
        };
        let at = self.candidates(endpoint).min_by_key(load)?;
        self.bind(child, at, 0)
    }

    /// A lease on the entry with this id, whatever its state.
    pub fn lease_entry(&mut self, child: SubagentId, id: &str) -> Option<Given> {
        let at = self.slots.iter().position(|slot| slot.entry.id == id)?;
        self.bind(child, at, 0)
    }

    fn bind(&mut self, child: SubagentId, at: usize, lap: usize) -> Option<Given> {
        let given = self.given(at)?;
        let fingerprint = self.slots[at].fingerprint.clone()?;
        self.took(at);
        let entry = self.slots[at].entry.id.clone();
        self.leases.insert(child, Lease { entry, fingerprint, lap });
        Some(given)
    }

    /// Gives a child's lease back; one that has none is ignored.
    pub fn release(&mut self, child: SubagentId) {
        self.leases.remove(&child);
    }

    /// Whether the key that a child has may be used. A child without a lease has none.
    pub fn holds_good_key(&mut self, child: SubagentId, now: Moment) -> bool {
        self.look(now);
        let Some(lease) = self.leases.get(&child) else { return false };
        let held =
            self.slots.iter().find(|slot| slot.fingerprint.as_ref() == Some(&lease.fingerprint));
        held.is_some_and(|slot| self.is_available(slot))
    }

    /// Marks what a child reports, and gives it the next key. `failed` is the key that it used; `None` is
    /// the one that it holds.
    ///
    /// A key is marked wherever it stands. One that is not in the pool marks nobody: the others are handed
    /// out in turn, once around at most, and none at all where there is only one.
    pub fn rotate(
        &mut self,
        (child, endpoint): (SubagentId, Option<&str>),
        failed: Option<&Fingerprint>,
        failure: &KeyFailure,
        (now, dice): (Moment, u64),
    ) -> (Rotation, Option<Marked>) {
        self.look(now);
        let held = self.leases.get(&child).cloned();
        let held_print = held.as_ref().map(|lease| lease.fingerprint.clone());
        let Some(failed) = failed.cloned().or(held_print) else {
            return (self.next(child, endpoint, now, dice), None);
        };
        if self.slots.iter().any(|slot| slot.fingerprint.as_ref() == Some(&failed)) {
            let sole = self.alive_beside(&failed) == 0;
            let marked = self.records.entry(failed).or_default().fail(failure, sole, now);
            return (self.next(child, endpoint, now, dice), Some(marked));
        }
        let lap = held.as_ref().map_or(0, |lease| lease.lap) + 1;
        let available: Vec<usize> = self.candidates(endpoint).collect();
        if available.len() <= 1 || lap > available.len() {
            return (Rotation::Nothing(Nothing::Unknown), None);
        }
        let at_held =
            |at: &usize| held.as_ref().is_some_and(|l| l.entry == self.slots[*at].entry.id);
        let next = available.iter().position(at_held).map_or(0, |at| (at + 1) % available.len());
        match self.bind(child, available[next], lap) {
            Some(given) => (Rotation::Next(given), None),
            None => (Rotation::Nothing(Nothing::AllGone), None),
        }
    }

    /// The next key for a child whose own is marked: the one with the fewest leases, then by the strategy.
    fn next(
        &mut self,
        child: SubagentId,
        endpoint: Option<&str>,
        now: Moment,
        dice: u64,
    ) -> Rotation {
        self.release(child);
        let order = |at: &usize| {
            let print = self.slots[*at].fingerprint.as_ref();
            (print.map_or(0, |print| self.load(print)), self.rank(*at, dice), *at)
        };
        let next = self.candidates(endpoint).min_by_key(order);
        match next.and_then(|at| self.bind(child, at, 0)) {
            Some(given) => Rotation::Next(given),
            None => match self.next_available_at(endpoint, now) {
                Some(at) => Rotation::Wait(at),
                None => Rotation::Nothing(Nothing::AllGone),
            },
        }
    }

    /// Keys other than this one that are not dead.
    fn alive_beside(&self, fingerprint: &Fingerprint) -> usize {
        let dead = |print| self.records.get(print).is_some_and(|r| r.state == State::Dead);
        let prints = self.slots.iter().filter_map(|slot| slot.fingerprint.as_ref());
        prints.filter(|print| *print != fingerprint && !dead(print)).count()
    }
}

/// What is kept beside the process, and what is shown.
impl Pool {
    /// What is known of the keys.
    #[must_use]
    pub const fn records(&self) -> &BTreeMap<Fingerprint, Record> {
        &self.records
    }

    /// Takes in what is known of the keys, instead of what was.
    pub fn set_records(&mut self, records: BTreeMap<Fingerprint, Record>) {
        self.records = records;
    }

    /// When each key was taken last.
    #[must_use]
    pub const fn turns(&self) -> &BTreeMap<Fingerprint, u64> {
        &self.turns
    }

    /// Whether the order of keys depends on who was taken before.
    #[must_use]
    pub fn takes_turns(&self) -> bool {
        self.strategy == PoolStrategy::RoundRobin
    }

    /// Takes in when keys were taken.
    pub fn set_turns(&mut self, turns: BTreeMap<Fingerprint, u64>) {
        self.turns = turns;
    }

    /// Leases of this process by key.
    #[must_use]
    pub fn leases(&self) -> BTreeMap<Fingerprint, u32> {
        let mut leases = BTreeMap::new();
        for lease in self.leases.values() {
            *leases.entry(lease.fingerprint.clone()).or_default() += 1;
        }
        leases
    }

    /// Takes in the leases of other parents.
    pub fn set_others(&mut self, others: BTreeMap<Fingerprint, u32>) {
        self.others = others;
    }

    /// Its endpoint.
    #[must_use]
    pub fn base_url(&self) -> Option<&str> {
        self.base_url.as_deref()
    }

    /// Whether a key is one of its own.
    #[must_use]
    pub fn has(&self, key: &ApiKey) -> bool {
        let print = Fingerprint::of(key);
        self.slots.iter().any(|slot| slot.fingerprint.as_ref() == Some(&print))
    }

    /// Its entries with what is known of each, by priority.
    pub fn entries(&self) -> impl Iterator<Item = (&Entry, Option<&Fingerprint>, Record, u32)> {
        self.slots.iter().map(|slot| {
            let print = slot.fingerprint.as_ref();
            let record = print.and_then(|print| self.records.get(print)).cloned();
            let load = print.map_or(0, |print| self.load(print));
            (&slot.entry, print, record.unwrap_or_default(), load)
        })
    }
}

/// A number that looks random, from the dice and a place (the finaliser of SplitMix64).
const fn mix(dice: u64, place: u64) -> u64 {
    let mut x = dice ^ place.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

#[cfg(test)]
#[path = "pool_tests.rs"]
mod tests;

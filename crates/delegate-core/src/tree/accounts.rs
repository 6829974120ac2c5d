//! The accounts of one tree, as a pure machine: slots, tokens and money, who holds them and who waits. No
//! I/O, no clock; [`super::shared`] puts it behind a lock and its guards.
//!
//! The root mints everything. A launch takes a slot and a reservation in both budgets before it happens; what
//! ends, in whatever way, gives back. A child that waits for its own children lends: its slot and its
//! reservation are free for others, and it takes a slot back *at once* when it goes on, over the cap if need
//! be. Whoever waited for a slot there could hold up the very child that has to free one.

use std::collections::BTreeMap;
use std::fmt;

use super::budget::{Admission, Budget, Holding};
use super::line::{BatchId, Line, Subtree};
use crate::config::Settings;

/// Billionths of a dollar in one.
const NANOS: f64 = 1e9;

/// Limits of a tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Caps {
    /// Children that work at once.
    pub children: u32,
    /// Tokens of all of them.
    pub tokens: Option<u64>,
    /// Money of all of them, in billionths of a dollar.
    pub money: Option<u64>,
    /// Tokens of one.
    pub child_tokens: Option<u64>,
    /// Money of one.
    pub child_money: Option<u64>,
}

impl Caps {
    /// Those of the settings.
    #[must_use]
    pub fn of(settings: &Settings) -> Self {
        Self {
            children: settings.max_tree_children.unwrap_or(settings.max_concurrent_children),
            tokens: settings.max_tree_tokens,
            money: settings.max_tree_cost_usd.map(nanos),
            child_tokens: settings.child_max_tokens,
            child_money: settings.child_max_cost_usd.map(nanos),
        }
    }
}

/// Dollars in whole billionths; a number that is no money (not finite, below zero) is none.
#[must_use]
pub fn nanos(dollars: f64) -> u64 {
    // A cast saturates, and makes 0 of what is none.
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "see above")]
    let whole = (dollars * NANOS).round() as u64;
    if dollars.is_finite() { whole } else { 0 }
}

/// A limit that is reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Refusal {
    /// The setting that holds it.
    pub key: &'static str,
    limit: u64,
    spent: u64,
    what: &'static str,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { key, limit, spent, what } = *self;
        if key.ends_with("usd") {
            let dollars = |nanos: u64| nanos as f64 / NANOS;
            write!(f, "{what} has spent ${}, {key} is ${}", dollars(spent), dollars(limit))
        } else {
            write!(f, "{what} has spent {spent} tokens, {key} is {limit}")
        }
    }
}

/// A child that was let start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PlaceId(u64);

#[derive(Debug, Default)]
struct Place {
    tokens: Holding,
    money: Holding,
    lent: bool,
}

#[derive(Debug)]
struct Member {
    subtree: Subtree,
    /// Launches that it may make and has not collected.
    granted: Vec<PlaceId>,
}

/// What a tree holds and has spent, for people.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Standing {
    /// Children that work.
    pub working: u32,
    /// Children that wait for their own.
    pub lending: u32,
    /// Slots.
    pub slots: u32,
    /// Tokens spent.
    pub tokens: u64,
    /// Dollars spent.
    pub cost_usd: f64,
}

/// The machine.
#[derive(Debug)]
pub struct Accounts {
    slots: u32,
    in_use: u32,
    tokens: Budget,
    money: Budget,
    line: Line,
    members: BTreeMap<BatchId, Member>,
    places: BTreeMap<PlaceId, Place>,
    next: u64,
}

/// Batches that have something to collect, or learn that they never will.
pub type Woken = Vec<BatchId>;

impl Accounts {
    /// Those of a tree that begins.
    #[must_use]
    pub fn new(caps: Caps) -> Self {
        Self {
            slots: caps.children.max(1),
            in_use: 0,
            tokens: Budget::new(caps.tokens, caps.child_tokens),
            money: Budget::new(caps.money, caps.child_money),
            line: Line::default(),
            members: BTreeMap::new(),
            places: BTreeMap::new(),
            next: 0,
        }
    }

    fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    /// A batch comes in; without a subtree it is one of the root.
    pub fn join(&mut self, subtree: Option<Subtree>) -> BatchId {
        let id = BatchId(self.number());
        let subtree = subtree.unwrap_or(Subtree::Root(id));
        self.members.insert(id, Member { subtree, granted: Vec::new() });
        id
    }

    /// A batch is over: what it did not collect goes back.
    #[must_use]
    pub fn leave(&mut self, batch: BatchId) -> Woken {
        self.want(batch, 0, false);
        self.members.remove(&batch);
        self.grant()
    }

    /// A batch could make so many launches now.
    #[must_use]
    pub fn ask(&mut self, batch: BatchId, launches: u32) -> Woken {
        self.want(batch, launches, true);
        self.grant()
    }

    fn want(&mut self, batch: BatchId, launches: u32, keeps: bool) {
        let Some(member) = self.members.get_mut(&batch) else { return };
        let keep = if keeps { launches as usize } else { 0 };
        let surplus = member.granted.split_off(keep.min(member.granted.len()));
        let open = launches - u32::try_from(member.granted.len()).unwrap_or(u32::MAX).min(launches);
        self.line.set(batch, member.subtree, open);
        for place in surplus {
            self.free(place);
        }
    }

    /// Takes what was granted to a batch.
    pub fn collect(&mut self, batch: BatchId) -> Vec<PlaceId> {
        self.members
            .get_mut(&batch)
            .map(|member| std::mem::take(&mut member.granted))
            .unwrap_or_default()
    }

    /// Gives free slots to those that wait, in their turns.
    fn grant(&mut self) -> Woken {
        let mut woken = Vec::new();
        while self.in_use < self.slots {
            let free = self.slots - self.in_use;
            let (Admission::Now(tokens), Admission::Now(money)) =
                (self.tokens.admission(free), self.money.admission(free))
            else {
                break;
            };
            let Some(batch) = self.line.take_turn() else { break };
            let id = PlaceId(self.number());
            let (tokens, money) = (self.tokens.reserve(tokens), self.money.reserve(money));
            self.places.insert(id, Place { tokens, money, lent: false });
            self.in_use += 1;
            if let Some(member) = self.members.get_mut(&batch) {
                member.granted.push(id);
            }
            woken.push(batch);
        }
        if self.refusal().is_some() {
            woken.extend(self.line.batches());
        }
        woken
    }

    /// Why nobody will be let start any more, if so.
    #[must_use]
    pub fn refusal(&self) -> Option<Refusal> {
        let of = |budget: &Budget, key| {
            let never = budget.admission(1) == Admission::Never;
            let limit = budget.reached().filter(|_| never)?;
            Some(Refusal { key, limit, spent: budget.spent(), what: "the tree" })
        };
        of(&self.tokens, "max_tree_tokens").or_else(|| of(&self.money, "max_tree_cost_usd"))
    }

    /// A child has spent. Says which limit it, or the tree with it, has reached.
    pub fn spend(&mut self, place: PlaceId, tokens: u64, money: u64) -> Option<Refusal> {
        let held = self.places.get_mut(&place)?;
        self.tokens.spend(&mut held.tokens, tokens);
        self.money.spend(&mut held.money, money);
        let of = |budget: &Budget, holding: &Holding, [whole, each]: [&'static str; 2]| {
            let tree = budget.reached().map(|limit| (whole, limit, budget.spent(), "the tree"));
            let own = budget.reached_by(holding);
            let own = own.map(|limit| (each, limit, holding.spent, "this child"));
            let (key, limit, spent, what) = tree.or(own)?;
            Some(Refusal { key, limit, spent, what })
        };
        of(&self.tokens, &held.tokens, ["max_tree_tokens", "child_max_tokens"])
            .or_else(|| of(&self.money, &held.money, ["max_tree_cost_usd", "child_max_cost_usd"]))
    }

    /// What a child has spent by its own last word, where that is more than was told before.
    pub fn settle(&mut self, place: PlaceId, tokens: u64, money: u64) -> Option<Refusal> {
        let held = self.places.get(&place)?;
        let tokens = tokens.saturating_sub(held.tokens.spent);
        let money = money.saturating_sub(held.money.spent);
        self.spend(place, tokens, money)
    }

    /// A child waits for its own children.
    #[must_use]
    pub fn lend(&mut self, place: PlaceId) -> Woken {
        let Some(held) = self.places.get_mut(&place).filter(|held| !held.lent) else {
            return Vec::new();
        };
        held.lent = true;
        self.in_use -= 1;
        self.tokens.release(&mut held.tokens);
        self.money.release(&mut held.money);
        self.grant()
    }

    /// It goes on.
    pub fn back(&mut self, place: PlaceId) {
        let Some(held) = self.places.get_mut(&place).filter(|held| held.lent) else { return };
        held.lent = false;
        let free = self.slots.saturating_sub(self.in_use);
        self.in_use += 1;
        self.tokens.renew(&mut held.tokens, free);
        self.money.renew(&mut held.money, free);
    }

    /// A child is over, or was never there.
    #[must_use]
    pub fn end(&mut self, place: PlaceId) -> Woken {
        self.free(place);
        self.grant()
    }

    fn free(&mut self, place: PlaceId) {
        let Some(mut held) = self.places.remove(&place) else { return };
        self.tokens.release(&mut held.tokens);
        self.money.release(&mut held.money);
        if !held.lent {
            self.in_use -= 1;
        }
    }

    /// Launches before the next one of this batch, and itself; `None` when it waits for none.
    #[must_use]
    pub fn position(&self, batch: BatchId) -> Option<u32> {
        self.line.position(batch)
    }

    /// What is held and spent.
    #[must_use]
    pub fn standing(&self) -> Standing {
        let lending = self.places.values().filter(|place| place.lent).count();
        Standing {
            working: self.in_use,
            lending: u32::try_from(lending).unwrap_or(u32::MAX),
            slots: self.slots,
            tokens: self.tokens.spent(),
            cost_usd: self.money.spent() as f64 / NANOS,
        }
    }
}

#[cfg(test)]
#[path = "accounts_tests.rs"]
mod tests;

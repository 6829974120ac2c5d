//! [`Gates`]: the gates of one parent, each made with its limits when it is first named. Pure. Used by
//! `authority`, and by `beside`, which carries them to other parents.

use std::collections::BTreeMap;

use delegate_protocol::SubagentId;

use super::gate::{Gate, Held, Known, Others};
use crate::config::CallLimits;

/// A permit: whose, and its number.
pub type Permit = (SubagentId, u64);

/// The gates.
#[derive(Debug, Default)]
pub struct Gates {
    limits: BTreeMap<String, CallLimits>,
    all: BTreeMap<String, Gate<Permit>>,
    /// What was taken in last: for gates that are made later.
    known: BTreeMap<String, Known>,
    others: BTreeMap<String, Others>,
}

impl Gates {
    /// With the limits of each.
    #[must_use]
    pub fn new(limits: BTreeMap<String, CallLimits>) -> Self {
        Self { limits, ..Self::default() }
    }

    /// The gate of this name.
    pub fn of(&mut self, name: &str) -> &mut Gate<Permit> {
        let Self { limits, all, known, others } = self;
        all.entry(name.to_owned()).or_insert_with(|| {
            let mut gate = Gate::new(limits.get(name).copied().unwrap_or_default());
            if !name.is_empty() {
                gate.set_known(known.get(name).cloned().unwrap_or_default());
                gate.set_others(others.get(name).copied().unwrap_or_default());
            }
            gate
        })
    }

    /// The gate of this name, if it was named before.
    pub fn get_mut(&mut self, name: &str) -> Option<&mut Gate<Permit>> {
        self.all.get_mut(name)
    }

    /// All of them.
    pub fn values_mut(&mut self) -> impl Iterator<Item = &mut Gate<Permit>> {
        self.all.values_mut()
    }

    /// Calls that go on through a gate.
    #[must_use]
    pub fn calls(&self, name: &str) -> usize {
        self.all.get(name).map_or(0, Gate::held)
    }

    /// Those that other parents can have as well. The one without a name is that of children of whose
    /// provider nothing is known.
    fn shared(&self) -> impl Iterator<Item = (&String, &Gate<Permit>)> {
        self.all.iter().filter(|(name, _)| !name.is_empty())
    }

    /// Whether any of them is for other parents too.
    #[must_use]
    pub fn are_shared(&self) -> bool {
        self.shared().next().is_some()
    }

    /// What is known of each provider.
    #[must_use]
    pub fn known(&self) -> BTreeMap<String, Known> {
        self.shared().map(|(name, gate)| (name.clone(), gate.known().clone())).collect()
    }

    /// Takes in what all parents know, and what the others have.
    pub fn take_in(&mut self, known: BTreeMap<String, Known>, others: BTreeMap<String, Others>) {
        for (name, gate) in self.all.iter_mut().filter(|(name, _)| !name.is_empty()) {
            gate.set_known(known.get(name).cloned().unwrap_or_default());
            gate.set_others(others.get(name).copied().unwrap_or_default());
        }
        self.known = known;
        self.others = others;
    }

    /// What we have of each, for the others; `waits` tells at which somebody waits here.
    pub fn held(
        &mut self,
        waits: impl Fn(&str) -> bool,
        now: super::moment::Moment,
    ) -> BTreeMap<String, Held> {
        let shared = self.all.iter_mut().filter(|(name, _)| !name.is_empty());
        let held = shared.map(|(name, gate)| {
            let waits = waits(name);
            (name.clone(), gate.held_for_others(waits, now))
        });
        held.filter(|(_, held)| *held != Held::default()).collect()
    }
}

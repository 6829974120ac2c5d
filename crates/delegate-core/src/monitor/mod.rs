//! One batch as a pure machine: who runs, who waits, what each fact asks for.
//!
//! [`Monitor::step`] does no I/O and reads no clock; [`crate::run`] feeds it and carries out its
//! [`Effect`]s. A waiting or ended task costs a few bytes here, so that a batch may be long.

pub mod cancel;
pub mod child;

use std::collections::BTreeSet;
use std::time::Duration;

use delegate_protocol::Isolation;

pub use cancel::CancelReason;
pub use child::{Child, Facts, Input, Limits, Order, Phase};

/// Something that happened to the batch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// A fact about one child.
    Child(u32, Input),
    /// Every child should stop, and no other should be launched.
    CancelAll(CancelReason),
    /// One task should stop.
    Cancel(u32, CancelReason),
    /// Whether the consumer keeps up; no child is launched while it does not.
    Room(bool),
    /// The clocks stand still.
    Pause,
    /// They go on.
    Resume,
    /// Time passed.
    Tick,
}

/// Something to be done.
#[derive(Debug, Clone, PartialEq, Eq)]
#[must_use]
pub enum Effect {
    /// Launch this task.
    Launch(u32),
    /// Do this for a child.
    Child(u32, Order),
}

#[derive(Debug)]
enum Slot {
    Waiting,
    Active(Box<Child>),
    Ended,
}

/// The machine of one batch.
#[derive(Debug)]
pub struct Monitor {
    slots: Vec<Slot>,
    isolation: Isolation,
    places: u32,
    /// Launched or settling children that hold a place.
    holding: BTreeSet<u32>,
    /// Children that are settled out of turn and hold no place.
    extra: BTreeSet<u32>,
    /// The first task that may still wait.
    next: u32,
    ended: u32,
    cancel_all: Option<CancelReason>,
    room: bool,
    paused_at: Option<Duration>,
    limits: Vec<Limits>,
}

impl Monitor {
    /// A batch of tasks; `limits` has one entry per task, or a single one for all of them.
    ///
    /// # Panics
    /// When `limits` is empty.
    #[must_use]
    pub fn new(tasks: u32, places: u32, isolation: Isolation, limits: Vec<Limits>) -> Self {
        assert!(!limits.is_empty(), "every task has limits");
        Self {
            slots: (0..tasks).map(|_| Slot::Waiting).collect(),
            isolation,
            places: places.max(1),
            holding: BTreeSet::new(),
            extra: BTreeSet::new(),
            next: 0,
            ended: 0,
            cancel_all: None,
            room: true,
            paused_at: None,
            limits,
        }
    }

    /// Whether every task has been announced.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.ended as usize == self.slots.len()
    }

    /// What is known of an active child.
    #[must_use]
    pub fn facts(&self, index: u32) -> Option<&Facts> {
        match self.slots.get(index as usize)? {
            Slot::Active(child) => Some(child.facts()),
            Slot::Waiting | Slot::Ended => None,
        }
    }

    /// Whether the launch of this task is still waited for.
    #[must_use]
    pub fn awaits_launch(&self, index: u32) -> bool {
        self.child(index).is_some_and(|child| child.phase() == Phase::Launching)
    }

    /// Children that have a process or thread now.
    pub fn active(&self) -> impl Iterator<Item = u32> + '_ {
        self.holding.iter().chain(&self.extra).copied()
    }

    /// The earliest time at which [`Event::Tick`] would change something; `None` while paused.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Duration> {
        if self.paused_at.is_some() {
            return None;
        }
        self.active().filter_map(|index| self.child(index)?.next_deadline()).min()
    }

    /// Takes one fact and says what to do.
    pub fn step(&mut self, event: Event, now: Duration) -> Vec<Effect> {
        let mut effects = Vec::new();
        match event {
            Event::Child(index, input) => self.child_step(index, input, now, &mut effects),
            Event::CancelAll(reason) => self.cancel_all(reason, now, &mut effects),
            Event::Cancel(index, reason) => self.cancel_one(index, reason, now, &mut effects),
            Event::Room(room) => self.room = room,
            Event::Pause => self.paused_at = self.paused_at.or(Some(now)),
            Event::Resume => self.resume(now),
            Event::Tick => self.tick(now, &mut effects),
        }
        self.fill(now, &mut effects);
        effects
    }

    fn child(&self, index: u32) -> Option<&Child> {
        match self.slots.get(index as usize)? {
            Slot::Active(child) => Some(child),
            Slot::Waiting | Slot::Ended => None,
        }
    }

    fn child_step(&mut self, index: u32, input: Input, now: Duration, effects: &mut Vec<Effect>) {
        let Some(Slot::Active(child)) = self.slots.get_mut(index as usize) else { return };
        let orders = child.step(input, now);
        let ended = child.phase() == Phase::Ended;
        effects.extend(orders.into_iter().map(|order| Effect::Child(index, order)));
        if ended {
            self.slots[index as usize] = Slot::Ended;
            self.holding.remove(&index);
            self.extra.remove(&index);
            self.ended += 1;
        }
    }

    fn cancel_all(&mut self, reason: CancelReason, now: Duration, effects: &mut Vec<Effect>) {
        self.cancel_all = Some(CancelReason::strongest(self.cancel_all, reason));
        for index in self.active().collect::<Vec<_>>() {
            self.child_step(index, Input::Cancel(reason), now, effects);
        }
    }

    fn cancel_one(
        &mut self,
        index: u32,
        reason: CancelReason,
        now: Duration,
        effects: &mut Vec<Effect>,
    ) {
        match self.slots.get(index as usize) {
            Some(Slot::Active(_)) => self.child_step(index, Input::Cancel(reason), now, effects),
            Some(Slot::Waiting) => {
                self.extra.insert(index);
                self.settle_unlaunched(index, reason, effects);
            }
            Some(Slot::Ended) | None => {}
        }
    }

    fn settle_unlaunched(&mut self, index: u32, why: CancelReason, effects: &mut Vec<Effect>) {
        let child = Child::never_launched(self.isolation, self.limits_of(index), why);
        self.slots[index as usize] = Slot::Active(Box::new(child));
        effects.push(Effect::Child(index, Order::Settle));
    }

    fn resume(&mut self, now: Duration) {
        let Some(since) = self.paused_at.take() else { return };
        for slot in &mut self.slots {
            if let Slot::Active(child) = slot {
                child.shift(since, now);
            }
        }
    }

    fn tick(&mut self, now: Duration, effects: &mut Vec<Effect>) {
        if self.paused_at.is_some() {
            return;
        }
        for index in self.active().collect::<Vec<_>>() {
            if self.child(index).and_then(Child::next_deadline).is_some_and(|at| now >= at) {
                self.child_step(index, Input::Tick, now, effects);
            }
        }
    }

    /// Gives free places to waiting tasks, in order. After a stop they pass through a place too, so
    /// that a long line does not become outcomes all at once.
    fn fill(&mut self, now: Duration, effects: &mut Vec<Effect>) {
        if self.paused_at.is_some() {
            return;
        }
        while self.holding.len() < self.places as usize {
            if !self.room {
                return;
            }
            while matches!(self.slots.get(self.next as usize), Some(Slot::Active(_) | Slot::Ended))
            {
                self.next += 1;
            }
            let index = self.next;
            if self.slots.len() <= index as usize {
                return;
            }
            self.holding.insert(index);
            match self.cancel_all {
                Some(why) => self.settle_unlaunched(index, why, effects),
                None => {
                    let child = Child::launching(self.isolation, self.limits_of(index), now);
                    self.slots[index as usize] = Slot::Active(Box::new(child));
                    effects.push(Effect::Launch(index));
                }
            }
        }
    }

    fn limits_of(&self, index: u32) -> Limits {
        self.limits.get(index as usize).copied().unwrap_or(self.limits[0])
    }
}

#[cfg(test)]
#[path = "monitor_tests.rs"]
mod tests;

//! One batch as a pure machine: who runs, who waits, what each fact asks for.
//!
//! [`Monitor::step`] does no I/O and reads no clock; [`crate::run`] feeds it and carries out its
//! [`Effect`]s. A waiting or ended task costs a few bytes here, so that a batch may be long.

mod below;
pub mod cancel;
pub mod child;
mod deadline;
pub mod facts;
pub mod liveness;
pub mod pulse;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use delegate_protocol::Isolation;

pub use cancel::CancelReason;
pub use child::{Child, Facts, Hold, Input, Limits, Order, Phase};
pub use liveness::{Activity, Expired, Liveness, Patience};
pub use pulse::Pulse;

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
    /// Whether waiting tasks may be launched; those that run go on either way, and what is stopped is
    /// settled.
    Launches(bool),
    /// So many more children may be launched; asked for by [`Monitor::wanted`].
    Granted(u32),
    /// The clocks stand still.
    Pause,
    /// They go on.
    Resume,
    /// The clocks of one child stand still (`true`), or go on.
    Hold(u32, bool),
    /// One task gets more time, also while it waits.
    Extend(u32, Duration),
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
    /// When the next clock of each active child runs out, the earliest first, and the same by child: a fact of one child must
    /// not cost a look at all of them.
    due_at: BTreeSet<(Duration, u32)>,
    deadlines: BTreeMap<u32, Duration>,
    /// The first task that may still wait.
    next: u32,
    ended: u32,
    cancel_all: Option<CancelReason>,
    room: bool,
    launches: bool,
    /// Launches that are granted and not made; `None` where nobody has to grant them.
    granted_launches: Option<u32>,
    paused: bool,
    limits: Vec<Limits>,
    /// More time for tasks that wait.
    granted: BTreeMap<u32, Duration>,
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
            due_at: BTreeSet::new(),
            deadlines: BTreeMap::new(),
            next: 0,
            ended: 0,
            cancel_all: None,
            room: true,
            launches: true,
            granted_launches: None,
            paused: false,
            limits,
            granted: BTreeMap::new(),
        }
    }

    /// The same, where somebody else has to grant every launch ([`Event::Granted`]).
    #[must_use]
    pub const fn granted(mut self) -> Self {
        self.granted_launches = Some(0);
        self
    }

    /// How many children it would launch now if they were granted: what it has a place for.
    #[must_use]
    pub fn wanted(&self) -> u32 {
        if !self.may_launch() {
            return 0;
        }
        let holding = u32::try_from(self.holding.len()).unwrap_or(u32::MAX);
        let waiting = u32::try_from(self.waiting()).unwrap_or(u32::MAX);
        self.places.saturating_sub(holding).min(waiting)
    }

    const fn may_launch(&self) -> bool {
        !self.paused && self.room && self.launches && self.cancel_all.is_none()
    }

    /// Whether tasks wait, and for nothing but a place or a slot.
    #[must_use]
    pub fn waits_at_a_cap(&self) -> bool {
        self.may_launch() && self.waiting() > 0
    }

    /// The tasks that are next in line, in order.
    pub fn next_waiting(&self) -> impl Iterator<Item = u32> + '_ {
        let from = self.slots.iter().enumerate().skip(self.next as usize);
        let waiting = from.filter(|(_, slot)| matches!(slot, Slot::Waiting));
        waiting.filter_map(|(index, _)| u32::try_from(index).ok())
    }

    /// A task that has its outcome from before: it is not launched. For a batch that has not begun.
    pub fn skip(&mut self, index: u32) {
        if let Some(slot @ Slot::Waiting) = self.slots.get_mut(index as usize) {
            *slot = Slot::Ended;
            self.ended += 1;
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

    /// Tasks that wait for a place.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.slots.len() - self.ended as usize - self.holding.len() - self.extra.len()
    }

    /// Where an active child stands.
    #[must_use]
    pub fn phase(&self, index: u32) -> Option<Phase> {
        self.child(index).map(Child::phase)
    }

    /// Children that have a process or thread now.
    pub fn active(&self) -> impl Iterator<Item = u32> + '_ {
        self.holding.iter().chain(&self.extra).copied()
    }

    /// How long a child's wall clock runs yet; `None` without a limit.
    #[must_use]
    pub fn time_left(&self, index: u32, now: Duration) -> Option<Duration> {
        self.child(index)?.time_left(now)
    }

    /// The earliest time at which [`Event::Tick`] would change something; `None` while paused.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Duration> {
        let (at, _) = self.due_at.first().filter(|_| !self.paused)?;
        Some(*at)
    }

    /// Children that [`Event::Tick`] would look at: tell what they were seen to do first.
    pub fn due(&self, now: Duration) -> impl Iterator<Item = u32> + '_ {
        self.due_at.range(..=(now, u32::MAX)).map(|(_, index)| *index)
    }

    /// A child has changed, or come, or gone.
    fn note_deadline(&mut self, index: u32) {
        let at = self.child(index).and_then(Child::next_deadline);
        let before = self.deadlines.get(&index).copied();
        if before == at {
            return;
        }
        if let Some(before) = before {
            self.due_at.remove(&(before, index));
        }
        match at {
            Some(at) => {
                self.deadlines.insert(index, at);
                self.due_at.insert((at, index));
            }
            None => {
                self.deadlines.remove(&index);
            }
        }
    }

    /// An active child's clocks of progress; `None` when it does not run.
    #[must_use]
    pub fn watch(&self, index: u32) -> Option<&liveness::Watch> {
        self.child(index)?.watch()
    }

    /// Takes one fact and says what to do.
    pub fn step(&mut self, event: Event, now: Duration) -> Vec<Effect> {
        let mut effects = Vec::new();
        match event {
            Event::Child(index, input) => self.child_step(index, input, now, &mut effects),
            Event::CancelAll(reason) => self.cancel_all(reason, now, &mut effects),
            Event::Cancel(index, reason) => self.cancel_one(index, reason, now, &mut effects),
            Event::Room(room) => self.room = room,
            Event::Launches(open) => self.launches = open,
            Event::Granted(more) => {
                self.granted_launches = self.granted_launches.map(|have| have.saturating_add(more));
            }
            Event::Pause => self.pause(true, now),
            Event::Resume => self.pause(false, now),
            Event::Hold(index, held) => self.hold(index, held, now, &mut effects),
            Event::Extend(index, by) => self.extend(index, by, now, &mut effects),
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
        self.note_deadline(index);
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
        // It has no clock.
        self.slots[index as usize] = Slot::Active(Box::new(child));
        effects.push(Effect::Child(index, Order::Settle));
    }

    fn pause(&mut self, paused: bool, now: Duration) {
        if std::mem::replace(&mut self.paused, paused) == paused {
            return;
        }
        for slot in &mut self.slots {
            let Slot::Active(child) = slot else { continue };
            if paused {
                child.hold(Hold::Batch, now);
            } else {
                child.release(Hold::Batch, now);
            }
        }
        for index in self.active().collect::<Vec<_>>() {
            self.note_deadline(index);
        }
    }

    /// A child that is on its way out is not held: it would never get there.
    fn hold(&mut self, index: u32, held: bool, now: Duration, effects: &mut Vec<Effect>) {
        let Some(Slot::Active(child)) = self.slots.get_mut(index as usize) else { return };
        if held && child.may_be_held() {
            child.hold(Hold::Own, now);
            effects.push(Effect::Child(index, Order::Stop));
        } else if !held && child.release(Hold::Own, now) {
            effects.push(Effect::Child(index, Order::Continue));
        }
        self.note_deadline(index);
    }

    fn extend(&mut self, index: u32, by: Duration, now: Duration, effects: &mut Vec<Effect>) {
        match self.slots.get(index as usize) {
            Some(Slot::Active(_)) => self.child_step(index, Input::Extend(by), now, effects),
            Some(Slot::Waiting) => {
                let granted = self.granted.entry(index).or_default();
                *granted = granted.saturating_add(by);
            }
            Some(Slot::Ended) | None => {}
        }
    }

    fn tick(&mut self, now: Duration, effects: &mut Vec<Effect>) {
        if self.paused {
            return;
        }
        let mut due: Vec<_> = self.due(now).collect();
        due.sort_unstable();
        for index in due {
            self.child_step(index, Input::Tick, now, effects);
        }
    }

    /// Gives free places to waiting tasks, in order. After a stop they pass through a place too, so
    /// that a long line does not become outcomes all at once.
    fn fill(&mut self, now: Duration, effects: &mut Vec<Effect>) {
        if self.paused {
            return;
        }
        while self.holding.len() < self.places as usize {
            if !self.room || (!self.launches && self.cancel_all.is_none()) {
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
            if self.cancel_all.is_none() {
                match &mut self.granted_launches {
                    Some(0) => return,
                    Some(left) => *left -= 1,
                    None => {}
                }
            }
            self.holding.insert(index);
            match self.cancel_all {
                Some(why) => self.settle_unlaunched(index, why, effects),
                None => {
                    let child = Child::launching(self.isolation, self.limits_of(index), now);
                    self.slots[index as usize] = Slot::Active(Box::new(child));
                    self.note_deadline(index);
                    effects.push(Effect::Launch(index));
                }
            }
        }
    }

    fn limits_of(&mut self, index: u32) -> Limits {
        let mut limits = self.limits.get(index as usize).copied().unwrap_or(self.limits[0]);
        if let Some(granted) = self.granted.remove(&index) {
            limits.run = limits.run.map(|limit| limit.saturating_add(granted));
        }
        limits
    }
}

#[cfg(test)]
#[path = "monitor_tests.rs"]
mod tests;

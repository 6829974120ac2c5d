//! What the loop does about the accounts of its tree: takes slots for what it could launch, tells who waits
//! where, and has a child stopped that has spent what there is.

use delegate_protocol::envelope::Identity;
use delegate_protocol::{Event, SubagentId};

use super::Loop;
use super::positions::FRONT;
use crate::collect::cost::Spending;
use crate::launch::StartFailure;
use crate::monitor::{self, CancelReason, Input};
use crate::run::live::WaitingTask;
use crate::tree::Refusal;

/// Tasks in line that a list names.
const LINE: usize = 16;

impl Loop {
    /// Takes a slot for each child that could be launched now, as far as it is this batch's turn.
    pub(super) fn take_slots(&mut self) {
        loop {
            let wanted = self.monitor.wanted();
            if wanted == 0 && self.asked == 0 {
                return;
            }
            let mut places = self.seat.take(wanted);
            let granted = u32::try_from(places.len()).unwrap_or(u32::MAX).min(wanted);
            places.reverse();
            self.asked = wanted - granted;
            self.places = places;
            if granted > 0 {
                self.step(monitor::Event::Granted(granted));
                continue;
            }
            self.refusal = self.seat.refusal().filter(|_| wanted > 0);
            if self.refusal.is_none() {
                return;
            }
            // They have their outcomes at once, each through a place.
            self.step(monitor::Event::Granted(wanted));
        }
    }

    /// Why a child that needs a slot will never get one.
    pub(super) fn refused(&self) -> Option<StartFailure> {
        let refusal = self.refusal?;
        Some(StartFailure {
            phase: "budget".to_owned(),
            errno: None,
            path: None,
            detail: refusal.to_string(),
        })
    }

    /// A child has reached a limit of what may be spent.
    pub(super) fn over_budget(&mut self, index: u32, refusal: Refusal) {
        if let Some(active) = self.active.get_mut(&index) {
            tracing::warn!(target: "delegate::run", task = index, %refusal, "over its budget");
            active.over_budget.get_or_insert_with(|| refusal.to_string());
            self.child_step(index, Input::Cancel(CancelReason::Interrupt));
        }
    }

    /// A child has its entry: what it spent, and what those below it did, is part of what this batch spent.
    pub(super) fn count(&mut self, own: Spending, below: Option<(Spending, u64)>) {
        let (below, children) = below.unwrap_or_default();
        self.spent = self.spent.and(own).and(below);
        self.descendants = self.descendants.saturating_add(children).saturating_add(1);
    }

    /// What waits, the next first.
    pub(super) fn line(&self) -> Vec<WaitingTask> {
        let first = self.seat.position().unwrap_or(1);
        let plan = &self.batch.plan;
        let waiting = self.monitor.next_waiting().take(LINE);
        (first..)
            .zip(waiting)
            .map(|(position, index)| WaitingTask {
                child: plan.subagent_id(index as usize),
                task_index: index,
                goal: plan.tasks[index as usize].goal().to_owned(),
                position,
            })
            .collect()
    }

    /// Tells of those that wait at a cap where they stand, when that has changed. Not of those that wait for
    /// something else: launches that are held, a consumer that does not read, a stop.
    pub(super) fn tell_positions(&mut self) {
        let now = self.clock.now();
        if !self.positions.is_due(self.monitor.waits_at_a_cap(), now) {
            return;
        }
        let first = self.seat.position().unwrap_or(1);
        let front = self.monitor.next_waiting().take(FRONT).zip(first..);
        for (index, position) in self.positions.look(front, now) {
            self.tell_requested(index);
            let child = self.batch.plan.subagent_id(index as usize);
            self.batch.outlet.offer(&Event::Waiting { child, position });
        }
    }

    /// The event that says that a child was asked for; with who it is, where the consumer has no plan of it.
    pub(super) fn requested(&self, index: u32) -> Event {
        let plan = &self.batch.plan;
        let child: SubagentId = plan.subagent_id(index as usize);
        let identity = self.batch.kin.above.map(|_| {
            let run_id = Some(self.batch.run);
            Box::new(Identity { run_id, ..Identity::of(&plan.spec(index as usize)) })
        });
        let goal = plan.tasks[index as usize].goal().to_owned();
        Event::SpawnRequested { child, goal, identity }
    }

    /// Tells of every task of a child's batch, up to this one: before anything else is told of it. Those of
    /// the root are told by its handle.
    pub(super) fn tell_requested(&mut self, up_to: u32) {
        while self.batch.kin.above.is_some() && self.requested <= up_to {
            self.batch.outlet.push(self.requested(self.requested));
            self.requested += 1;
        }
    }

    /// Tells of more of them while the consumer keeps up: a long batch is not queued as a whole.
    pub(super) fn tell_more_requested(&mut self) {
        let tasks = u32::try_from(self.batch.plan.tasks.len()).unwrap_or(u32::MAX);
        let nested = self.batch.kin.above.is_some();
        while nested && self.requested < tasks && self.batch.outlet.has_room() {
            self.tell_requested(self.requested);
        }
    }
}

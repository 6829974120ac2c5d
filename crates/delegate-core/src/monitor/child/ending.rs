//! How a child is brought to its end: terminated, given up, settled once everything is known.

use std::time::Duration;

use delegate_protocol::Isolation;

use super::{Child, Order, Phase, RETURN_LIMIT, VERIFY_LIMIT};
use crate::monitor::deadline::Deadline;

impl Child {
    pub(super) fn terminate(&mut self, grace: Duration, now: Duration, orders: &mut Vec<Order>) {
        self.stop_clocks();
        // A thread cannot be killed: it is asked, what it started is ended, then it is abandoned.
        let asked = matches!(self.phase, Phase::Interrupting | Phase::Terminating);
        if self.isolation == Isolation::Thread && !asked {
            orders.push(Order::Interrupt);
        }
        let patience = grace.saturating_add(match self.isolation {
            Isolation::Process => VERIFY_LIMIT,
            Isolation::Thread => RETURN_LIMIT,
        });
        self.enter(Phase::Terminating, Some(Deadline::after(now, patience)));
        orders.push(Order::Terminate(grace));
    }

    /// Nobody answers any more: the outcome says what is not known. That may be nothing, where only the
    /// stream has not ended: its reader waits for a consumer that does not read.
    pub(super) fn give_up(&mut self) {
        match self.isolation {
            Isolation::Thread if self.facts.exit.is_none() => self.facts.abandoned = true,
            Isolation::Thread | Isolation::Process => {
                self.facts.lost |= self.facts.emptied.is_none();
            }
        }
        self.stream_ended = true;
    }

    pub(super) fn settle_when_known(&mut self, now: Duration, orders: &mut Vec<Order>) {
        let facts = &self.facts;
        let all_told = self.is_over() && facts.emptied.is_some();
        if self.phase != Phase::Settling
            && self.stream_ended
            && self.below.is_over()
            && (all_told || facts.lost || facts.abandoned)
        {
            self.settle(now, orders);
        }
    }

    pub(super) fn settle(&mut self, now: Duration, orders: &mut Vec<Order>) {
        self.facts.ended_at = now;
        self.stop_clocks();
        self.enter(Phase::Settling, None);
        orders.push(Order::Settle);
    }

    /// Once its process is gone, only that has a deadline.
    pub(super) fn enter(&mut self, phase: Phase, deadline: Option<Deadline>) {
        self.phase = phase;
        if !self.is_over() || phase == Phase::Settling {
            self.deadline = deadline;
        }
    }
}

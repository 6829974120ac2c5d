//! One child's life as a pure machine: what is known of it, and what each new fact asks for.
//!
//! `Launching → Greeting → Running → Diagnosing → Interrupting → Terminating → Draining → Settling →
//! Ended`; a limit that ends a child before its first model call lets it be looked at first.
//! [`crate::monitor`] holds one of these per launched task; [`crate::collect`] turns the
//! [`Facts`] of a settled one into its outcome. No clock is read here: `now` is the time since the
//! batch began.

mod ending;

use std::time::Duration;

use delegate_protocol::message::Verdict;
use delegate_protocol::{Isolation, Limit};
use ownership::{Emptied, ExitStatus};

use crate::config::OnStale;
use crate::monitor::below::Below;
use crate::monitor::cancel::CancelReason;
use crate::monitor::deadline::Deadline;
use crate::monitor::liveness::{Due, Expired, Watch};

pub use crate::monitor::facts::{Facts, Hold, Input, Limits, Order, Phase};

/// How long a child may stay after its `Finish`, or after it closed its line without one, before it is
/// ended. The reference waits 5 s too.
pub const LEAVE_GRACE: Duration = Duration::from_secs(5);

/// How long we wait, beyond the grace, for the supervisor to say that a scope is empty. It reports
/// what cannot die after 5 s; beyond this it does not answer at all.
pub const VERIFY_LIMIT: Duration = Duration::from_secs(15);

/// How long a thread may take to return once its programs are being ended, beyond their grace. Then it
/// is abandoned.
pub const RETURN_LIMIT: Duration = Duration::from_secs(5);

/// How long a child is looked at before it is asked to stop. Reading /proc takes milliseconds, its own
/// answer as long as its writer does; beyond this somebody's disk hangs.
pub const DIAGNOSE_LIMIT: Duration = Duration::from_secs(5);

/// One launched child.
#[derive(Debug, Clone)]
pub struct Child {
    isolation: Isolation,
    limits: Limits,
    phase: Phase,
    /// When the present phase is over, if nothing happens.
    deadline: Option<Deadline>,
    /// When its wall clock runs out.
    run_deadline: Option<Deadline>,
    /// Whether it gets on; while it runs.
    watch: Option<Watch>,
    /// Who holds its clocks: [`Hold`]s, and since when.
    /// Children of its own.
    below: Below,
    holds: u8,
    held_since: Duration,
    stream_ended: bool,
    line_closed: bool,
    facts: Facts,
}

impl Child {
    /// A child whose launch is being asked for. A launch that does not return (the program lies on a
    /// file system that hangs, the supervisor is stopped) is given up behind the start limit.
    #[must_use]
    pub fn launching(isolation: Isolation, limits: Limits, now: Duration) -> Self {
        let patience = limits.start.saturating_add(VERIFY_LIMIT);
        Self {
            isolation,
            limits,
            phase: Phase::Launching,
            deadline: Some(Deadline::after(now, patience)),
            run_deadline: None,
            watch: None,
            below: Below::default(),
            holds: 0,
            held_since: Duration::ZERO,
            stream_ended: false,
            line_closed: false,
            facts: Facts::default(),
        }
    }

    /// A task that is stopped before its turn: settled without a launch.
    #[must_use]
    pub fn never_launched(isolation: Isolation, limits: Limits, why: CancelReason) -> Self {
        let mut child = Self::launching(isolation, limits, Duration::ZERO);
        child.phase = Phase::Settling;
        child.deadline = None;
        child.facts.cancel = Some(why);
        child
    }

    /// Where it stands.
    #[must_use]
    pub const fn phase(&self) -> Phase {
        self.phase
    }

    /// What is known.
    #[must_use]
    pub const fn facts(&self) -> &Facts {
        &self.facts
    }

    /// Its clocks of progress, while it runs.
    #[must_use]
    pub const fn watch(&self) -> Option<&Watch> {
        self.watch.as_ref()
    }

    /// How long its wall clock runs yet; `None` without a limit, or when it is being ended.
    #[must_use]
    pub fn time_left(&self, now: Duration) -> Option<Duration> {
        let now = if self.holds == 0 { now } else { self.held_since };
        self.run_deadline.map(|deadline| deadline.at.saturating_sub(now))
    }

    /// The earliest time at which [`Input::Tick`] would change something; `None` while it is held.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Duration> {
        if self.holds != 0 {
            return None;
        }
        let deadlines = [self.deadline, self.run_deadline].map(|at| at.map(|deadline| deadline.at));
        let watch = self.watch.as_ref().filter(|_| !self.below.waits()).map(Watch::next);
        deadlines.into_iter().chain([watch]).flatten().min()
    }

    /// Whether it can be paused: it is not on its way out.
    #[must_use]
    pub fn may_be_held(&self) -> bool {
        self.phase <= Phase::Running && self.facts.cancel.is_none() && !self.is_over()
    }

    /// Its clocks stand still.
    pub const fn hold(&mut self, by: Hold, now: Duration) {
        if self.holds == 0 {
            self.held_since = now;
        }
        self.holds |= by as u8;
    }

    /// They go on, unless somebody else holds them; moves every deadline by the pause. Whether it was
    /// held by this one.
    pub fn release(&mut self, by: Hold, now: Duration) -> bool {
        if self.holds & by as u8 == 0 {
            return false;
        }
        self.holds &= !(by as u8);
        if self.holds == 0 {
            let paused = self.held_since;
            for deadline in [&mut self.deadline, &mut self.run_deadline].into_iter().flatten() {
                deadline.shift(paused, now);
            }
            // One that waits is moved when it goes on, over the pause as well.
            if let Some(watch) = self.watch.as_mut().filter(|_| !self.below.waits()) {
                watch.shift(paused, now);
            }
        }
        true
    }

    /// Takes one fact and says what to do.
    pub fn step(&mut self, input: Input, now: Duration) -> Vec<Order> {
        let mut orders = Vec::new();
        if matches!(self.phase, Phase::Settling | Phase::Ended) {
            return self.after_settling(&input);
        }
        match input {
            Input::Launched { pid } => self.launched(pid, now, &mut orders),
            Input::LaunchFailed => self.launch_failed(now, &mut orders),
            Input::Hello => self.hello(now, &mut orders),
            Input::Violation(detail) => self.violation(detail, now, &mut orders),
            Input::Finish(verdict) => self.finish(verdict, now),
            Input::LineClosed => self.line_closed(now),
            Input::StreamEnded => self.stream_ended = true,
            Input::Exited(status) => self.exited(status, now),
            Input::Emptied(emptied) => self.emptied(emptied, now),
            Input::Lost => self.lost(now),
            Input::Activity(activity) => {
                if let Some(watch) = &mut self.watch {
                    watch.see(activity, now);
                }
            }
            Input::Diagnosed => {
                if self.phase == Phase::Diagnosing {
                    self.ask_to_stop(now, &mut orders);
                }
            }
            Input::Extend(by) => self.extend(by),
            Input::Delegated => self.below.begins(),
            Input::DelegationOver => self.below.ends(),
            Input::Waits(waits) => {
                let since = if self.holds == 0 { now } else { self.held_since };
                if let Some(since) = self.below.wait(waits, since)
                    && let Some(watch) = &mut self.watch
                {
                    watch.shift(since, now);
                }
            }
            Input::Cancel(reason) => self.cancel(reason, now, &mut orders),
            Input::Recorded(_) => {}
            Input::Tick => self.tick(now, &mut orders),
        }
        self.settle_when_known(now, &mut orders);
        orders
    }

    fn after_settling(&mut self, input: &Input) -> Vec<Order> {
        if self.phase == Phase::Settling && matches!(input, Input::Recorded(_)) {
            self.phase = Phase::Ended;
            return vec![Order::Announce];
        }
        Vec::new()
    }

    fn launched(&mut self, pid: Option<u32>, now: Duration, orders: &mut Vec<Order>) {
        if self.phase != Phase::Launching {
            return;
        }
        self.facts.pid = pid;
        self.facts.launched_at = Some(now);
        self.enter(Phase::Greeting, Some(Deadline::after(now, self.limits.start)));
        // A stop that was asked for before the child existed is honoured now.
        match self.facts.cancel {
            Some(CancelReason::Kill) => self.terminate(Duration::ZERO, now, orders),
            Some(CancelReason::Interrupt | CancelReason::Stale | CancelReason::Timeout) => {
                self.interrupt(now, orders);
            }
            None => {}
        }
    }

    fn launch_failed(&mut self, now: Duration, orders: &mut Vec<Order>) {
        if self.phase == Phase::Launching {
            self.facts.launch_failed = true;
            self.settle(now, orders);
        }
    }

    fn hello(&mut self, now: Duration, orders: &mut Vec<Order>) {
        if self.phase != Phase::Greeting {
            return;
        }
        self.facts.started_at = Some(now);
        if !self.is_over() {
            self.run_deadline = self.limits.run.map(|limit| Deadline::after(now, limit));
            self.watch = Some(Watch::new(self.limits.patience, now));
        }
        self.enter(Phase::Running, None);
        orders.push(Order::Begin);
    }

    fn violation(&mut self, detail: String, now: Duration, orders: &mut Vec<Order>) {
        if self.facts.violation.is_none() {
            self.facts.violation = Some(detail);
        }
        // What a child does after its result cannot take the result away.
        if self.facts.verdict.is_none() && self.phase < Phase::Terminating && !self.is_over() {
            self.terminate(self.limits.terminate_grace, now, orders);
        }
    }

    fn finish(&mut self, verdict: Verdict, now: Duration) {
        if self.facts.verdict.is_some() {
            self.facts.violation.get_or_insert_with(|| "it finished twice".to_owned());
            return;
        }
        self.facts.verdict = Some(verdict);
        self.stop_clocks();
        if self.phase < Phase::Terminating {
            self.enter(Phase::Draining, Some(Deadline::after(now, LEAVE_GRACE)));
        }
    }

    /// Most children close their line by ending, and the wait status follows. One that has no result
    /// and runs on can never have one.
    fn line_closed(&mut self, now: Duration) {
        if matches!(self.phase, Phase::Greeting | Phase::Running) {
            self.line_closed = true;
            self.enter(self.phase, Some(Deadline::after(now, LEAVE_GRACE)));
        }
    }

    fn exited(&mut self, status: ExitStatus, now: Duration) {
        self.facts.exit.get_or_insert(status);
        self.over(now);
    }

    fn lost(&mut self, now: Duration) {
        self.facts.lost = true;
        self.over(now);
    }

    /// Its process is gone. What was said before may still arrive; this is how long it may take.
    fn over(&mut self, now: Duration) {
        self.release(Hold::Own, now);
        self.stop_clocks();
        let patience = self.limits.terminate_grace.saturating_add(VERIFY_LIMIT);
        self.deadline = Some(Deadline::after(now, patience));
    }

    /// The last that is told of a process: one that had not exited by now cannot die. A thread goes on
    /// when what it started has ended.
    fn emptied(&mut self, emptied: Emptied, now: Duration) {
        let was_over = self.is_over();
        self.facts.emptied = Some(emptied);
        if self.is_over() && !was_over {
            self.over(now);
        }
    }

    /// Whether nothing more can come of it but what is on its way.
    const fn is_over(&self) -> bool {
        let told = self.facts.emptied.is_some() && matches!(self.isolation, Isolation::Process);
        self.facts.exit.is_some() || self.facts.lost || told
    }

    fn cancel(&mut self, reason: CancelReason, now: Duration, orders: &mut Vec<Order>) {
        let held = self.facts.cancel;
        let strongest = CancelReason::strongest(held, reason);
        self.facts.cancel = Some(strongest);
        if self.is_over() || held == Some(strongest) {
            return;
        }
        // Clocks that stand still would never end it.
        if self.release(Hold::Own, now) {
            orders.push(Order::Continue);
        }
        let limit = matches!(strongest, CancelReason::Stale | CancelReason::Timeout);
        match (self.phase, strongest) {
            (Phase::Launching, _) => {}
            (_, CancelReason::Kill) => self.terminate(Duration::ZERO, now, orders),
            (Phase::Running, _) if limit && self.api_calls() == 0 => {
                self.stop_clocks();
                self.enter(Phase::Diagnosing, Some(Deadline::after(now, DIAGNOSE_LIMIT)));
                orders.push(Order::Diagnose);
            }
            (Phase::Greeting | Phase::Running, _) => self.ask_to_stop(now, orders),
            (
                Phase::Diagnosing
                | Phase::Interrupting
                | Phase::Terminating
                | Phase::Draining
                | Phase::Settling
                | Phase::Ended,
                CancelReason::Interrupt | CancelReason::Stale | CancelReason::Timeout,
            ) => {}
        }
    }

    /// More time on every clock, running or yet to run.
    fn extend(&mut self, by: Duration) {
        self.limits.run = self.limits.run.map(|limit| limit.saturating_add(by));
        if let Some(deadline) = &mut self.run_deadline {
            deadline.extend(by);
        }
        if let Some(watch) = &mut self.watch {
            watch.extend(by);
        }
    }

    fn api_calls(&self) -> u64 {
        self.watch.as_ref().map_or(0, |watch| watch.seen().api_calls)
    }

    fn stop_clocks(&mut self) {
        self.run_deadline = None;
        self.watch = None;
    }

    /// The wait is over.
    fn expire(&mut self, expired: Expired, now: Duration, orders: &mut Vec<Order>) {
        self.facts.timed_out_at = Some(now);
        self.facts.expired = Some(expired);
        self.facts.quiet_for = self.watch.as_ref().map(|watch| watch.quiet_for(now));
        let reason = match expired.limit {
            Limit::Run | Limit::Inactivity => CancelReason::Timeout,
            Limit::StaleIdle | Limit::StaleInTool => CancelReason::Stale,
        };
        self.cancel(reason, now, orders);
    }

    /// A child that should unwind is asked to; one that is stale may be ended at once.
    fn ask_to_stop(&mut self, now: Duration, orders: &mut Vec<Order>) {
        let stale = self.facts.cancel == Some(CancelReason::Stale);
        if stale && self.limits.patience.on_stale == OnStale::Kill {
            self.terminate(Duration::ZERO, now, orders);
        } else {
            self.interrupt(now, orders);
        }
    }

    fn tick_watch(&mut self, now: Duration, orders: &mut Vec<Order>) {
        let due = match &mut self.watch {
            Some(watch) if !self.below.waits() && now >= watch.next() => watch.tick(now),
            Some(_) | None => return,
        };
        for due in due {
            match due {
                Due::Touch => orders.push(Order::Touch),
                Due::Warn(limit) => orders.push(Order::Warn(limit)),
                Due::Expired(limit) => self.expire(limit, now, orders),
            }
        }
    }

    fn tick(&mut self, now: Duration, orders: &mut Vec<Order>) {
        if self.run_deadline.is_some_and(|deadline| deadline.is_due(now)) {
            self.run_deadline = None;
            let after = self.limits.run.unwrap_or_default();
            self.expire(Expired { limit: Limit::Run, after }, now, orders);
        }
        self.tick_watch(now, orders);
        if !self.deadline.is_some_and(|deadline| deadline.is_due(now)) {
            return;
        }
        self.deadline = None;
        if self.is_over() {
            return self.give_up();
        }
        match self.phase {
            Phase::Greeting | Phase::Running if self.line_closed => {
                let detail = "it closed its line without a result and ran on".to_owned();
                self.violation(detail, now, orders);
            }
            Phase::Launching => {
                self.facts.start_timeout = true;
                self.settle(now, orders);
            }
            Phase::Greeting => {
                self.facts.start_timeout = true;
                self.terminate(self.limits.terminate_grace, now, orders);
            }
            Phase::Diagnosing => self.ask_to_stop(now, orders),
            Phase::Interrupting => self.terminate(self.limits.terminate_grace, now, orders),
            Phase::Draining => {
                self.facts.lingered = true;
                self.terminate(self.limits.terminate_grace, now, orders);
            }
            Phase::Terminating => self.give_up(),
            Phase::Running | Phase::Settling | Phase::Ended => {}
        }
    }

    fn interrupt(&mut self, now: Duration, orders: &mut Vec<Order>) {
        self.stop_clocks();
        let grace = Deadline::after(now, self.limits.interrupt_grace);
        self.enter(Phase::Interrupting, Some(grace));
        orders.push(Order::Interrupt);
    }
}

#[cfg(test)]
#[path = "child_tests.rs"]
mod tests;

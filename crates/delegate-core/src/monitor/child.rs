//! One child's life as a pure machine: what is known of it, and what each new fact asks for.
//!
//! `Planned → Launching → Greeting → Running ⇄ Interrupting → Terminating → Draining → Settling →
//! Ended`. [`crate::monitor`] holds one of these per launched task; [`crate::collect`] turns the
//! [`Facts`] of a settled one into its outcome. No clock is read here: `now` is the time since the
//! batch began.

use std::time::Duration;

use delegate_protocol::Isolation;
use delegate_protocol::message::Verdict;
use ownership::{Emptied, ExitStatus};

use crate::monitor::cancel::CancelReason;

/// How long a child may stay after its `Finish`, or after it closed its line without one, before it is
/// ended. The reference waits 5 s too.
pub const LEAVE_GRACE: Duration = Duration::from_secs(5);

/// How long we wait, beyond the grace, for the supervisor to say that a scope is empty. It reports
/// what cannot die after 5 s; beyond this it does not answer at all.
pub const VERIFY_LIMIT: Duration = Duration::from_secs(15);

/// How long a thread may take to return once its programs are being ended, beyond their grace. Then it
/// is abandoned.
pub const RETURN_LIMIT: Duration = Duration::from_secs(5);

/// The time limits of a child.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// From launch to the first frame.
    pub start: Duration,
    /// Wall clock from the child's own start.
    pub run: Option<Duration>,
    /// From the interrupt until TERM.
    pub interrupt_grace: Duration,
    /// From TERM until KILL.
    pub terminate_grace: Duration,
}

/// Where a child stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Phase {
    /// The launcher was asked.
    Launching,
    /// It exists and has not said `Hello`.
    Greeting,
    /// It has its spec.
    Running,
    /// It was asked to unwind.
    Interrupting,
    /// Its scope is being ended.
    Terminating,
    /// It said `Finish` and has not left yet.
    Draining,
    /// Everything is known; the outcome is being stored.
    Settling,
    /// The outcome was handed on.
    Ended,
}

/// A new fact about a child.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Input {
    /// It exists. `None` is a thread.
    Launched {
        /// Its process.
        pid: Option<u32>,
    },
    /// It does not, and never did.
    LaunchFailed,
    /// Its first frame, of the right version.
    Hello,
    /// It broke the protocol in a way that cannot be mended.
    Violation(String),
    /// Its last frame.
    Finish(Verdict),
    /// It closed its line, and so can say nothing more, while its process was not known to be gone.
    LineClosed,
    /// Nothing more can be read from it.
    StreamEnded,
    /// Its process or thread ended.
    Exited(ExitStatus),
    /// Its scope is empty, or `left` says what cannot die.
    Emptied(Emptied),
    /// The supervisor is gone.
    Lost,
    /// It should stop.
    Cancel(CancelReason),
    /// Its outcome was handed to the store, and this is whether the disk has it.
    Recorded(bool),
    /// Time passed.
    Tick,
}

/// What should be done for a child.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub enum Order {
    /// Send its spec.
    Begin,
    /// Ask it to unwind.
    Interrupt,
    /// End its scope: TERM, CONT, this grace, KILL.
    Terminate(Duration),
    /// Take the outcome and store it.
    Settle,
    /// The outcome is stored: announce it.
    Announce,
}

/// What is known of a child. Every field is a fact; none is a verdict.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Facts {
    /// Its process.
    pub pid: Option<u32>,
    /// When the launcher had made it.
    pub launched_at: Option<Duration>,
    /// When it got its spec: its own start.
    pub started_at: Option<Duration>,
    /// When everything was known.
    pub ended_at: Duration,
    /// The strongest reason to stop it.
    pub cancel: Option<CancelReason>,
    /// When its wall clock ran out.
    pub timed_out_at: Option<Duration>,
    /// It said nothing within the start limit, or its launch did not even return.
    pub start_timeout: bool,
    /// Its first violation.
    pub violation: Option<String>,
    /// Its own word.
    pub verdict: Option<Verdict>,
    /// How its process ended.
    pub exit: Option<ExitStatus>,
    /// What became of its scope.
    pub emptied: Option<Emptied>,
    /// The supervisor died first, or never answered.
    pub lost: bool,
    /// A thread that did not return.
    pub abandoned: bool,
    /// It did not leave after its `Finish` and was ended.
    pub lingered: bool,
    /// Nothing was ever launched.
    pub launch_failed: bool,
}

/// A moment, and since when it is waited for: only the part of a pause that lies behind that moves it.
#[derive(Debug, Clone, Copy)]
struct Deadline {
    since: Duration,
    at: Duration,
}

impl Deadline {
    /// A limit may be as long as a program likes, so it ends where the clock does.
    const fn after(now: Duration, limit: Duration) -> Self {
        Self { since: now, at: now.saturating_add(limit) }
    }

    fn is_due(self, now: Duration) -> bool {
        now >= self.at
    }
}

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

    /// The earliest time at which [`Input::Tick`] would change something.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Duration> {
        [self.deadline, self.run_deadline].into_iter().flatten().map(|deadline| deadline.at).min()
    }

    /// The clocks stood still from `paused` until `now`: moves every deadline by that.
    pub fn shift(&mut self, paused: Duration, now: Duration) {
        for deadline in [&mut self.deadline, &mut self.run_deadline].into_iter().flatten() {
            let pause = now.saturating_sub(paused.max(deadline.since));
            deadline.at = deadline.at.saturating_add(pause);
        }
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
            Some(CancelReason::Interrupt | CancelReason::Timeout) => self.interrupt(now, orders),
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
        self.run_deadline = None;
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
        self.run_deadline = None;
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
        match (self.phase, strongest) {
            (Phase::Launching, _) => {}
            (_, CancelReason::Kill) => self.terminate(Duration::ZERO, now, orders),
            (Phase::Greeting | Phase::Running, _) => self.interrupt(now, orders),
            (
                Phase::Interrupting
                | Phase::Terminating
                | Phase::Draining
                | Phase::Settling
                | Phase::Ended,
                CancelReason::Interrupt | CancelReason::Timeout,
            ) => {}
        }
    }

    fn tick(&mut self, now: Duration, orders: &mut Vec<Order>) {
        if self.run_deadline.is_some_and(|deadline| deadline.is_due(now)) {
            self.run_deadline = None;
            self.facts.timed_out_at = Some(now);
            self.cancel(CancelReason::Timeout, now, orders);
        }
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
        self.run_deadline = None;
        let grace = Deadline::after(now, self.limits.interrupt_grace);
        self.enter(Phase::Interrupting, Some(grace));
        orders.push(Order::Interrupt);
    }

    fn terminate(&mut self, grace: Duration, now: Duration, orders: &mut Vec<Order>) {
        self.run_deadline = None;
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
    fn give_up(&mut self) {
        match self.isolation {
            Isolation::Thread if self.facts.exit.is_none() => self.facts.abandoned = true,
            Isolation::Thread | Isolation::Process => {
                self.facts.lost |= self.facts.emptied.is_none();
            }
        }
        self.stream_ended = true;
    }

    fn settle_when_known(&mut self, now: Duration, orders: &mut Vec<Order>) {
        let facts = &self.facts;
        let all_told = self.is_over() && facts.emptied.is_some();
        if self.phase != Phase::Settling
            && self.stream_ended
            && (all_told || facts.lost || facts.abandoned)
        {
            self.settle(now, orders);
        }
    }

    fn settle(&mut self, now: Duration, orders: &mut Vec<Order>) {
        self.facts.ended_at = now;
        self.run_deadline = None;
        self.enter(Phase::Settling, None);
        orders.push(Order::Settle);
    }

    /// Once its process is gone, only that has a deadline.
    fn enter(&mut self, phase: Phase, deadline: Option<Deadline>) {
        self.phase = phase;
        if !self.is_over() || phase == Phase::Settling {
            self.deadline = deadline;
        }
    }
}

#[cfg(test)]
#[path = "child_tests.rs"]
mod tests;

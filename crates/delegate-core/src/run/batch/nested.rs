//! What the loop does for a child that delegates: has its batch planned and started, tells it what comes of
//! it, and ends that batch with the child. The batch is a loop of its own on the same thread
//! ([`crate::run::nest`]); this one keeps what its child may still ask of it.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;

use delegate_protocol::delegation::{Delegated, SUMMARY_PIECE, Told, Work};
use delegate_protocol::outcome::{MAX_DELEGATIONS, Subtree};
use delegate_protocol::{Answer, Outcome, RunId, Status};
use tokio::sync::{oneshot, watch};

use super::{Incoming, Loop, Owed};
use crate::collect::cost::Spending;
use crate::monitor::{CancelReason, Input, Phase};
use crate::plan::StartError;
use crate::report::{self, Report};
use crate::run::control::ControlState;
use crate::run::delivery::Delivery;
use crate::run::nest::{Above, Assembled, Nested};
use crate::run::reply::Reply;
use crate::store::Store;

/// Delegations of one child that it has not followed to their ends, at most: what each keeps here is small, and
/// a child that never asks for results has no use for more.
const OPEN: usize = 64;

/// Bytes of events in one answer, give or take one event.
const EVENTS: usize = 1024 * 1024;

/// What a child wants done, ready to run or refused, where it is to see the events, and whom to answer.
pub(super) type Planned = (Result<Assembled, StartError>, Option<Arc<Delivery>>, Reply);

/// What a child has delegated.
#[derive(Default)]
pub(super) struct Delegations {
    open: Vec<Open>,
    /// Those that are being planned.
    planned: usize,
    /// Questions of it that wait for its children.
    follows: usize,
    /// The strongest stop of it, which what it delegates later finds as well.
    stop: Option<CancelReason>,
    /// What they spent, for its entry.
    spent: Subtree,
}

struct Open {
    run: RunId,
    control: Arc<ControlState>,
    /// Where its events wait for the child; `None` when it wants none.
    events: Option<Arc<Delivery>>,
    over: watch::Sender<bool>,
    results: Rc<RefCell<Results>>,
    /// The child asks for it now.
    followed: bool,
    /// The child does not want to know how it ends.
    forgotten: bool,
}

/// Which outcome is to be told next.
struct Results {
    store: Store,
    run: RunId,
    /// Known once it is over.
    statuses: Vec<Status>,
    next: u32,
    /// Pieces of the summary of the outcome that is held.
    pieces: VecDeque<String>,
    held: Option<Box<Outcome>>,
}

impl Delegations {
    /// Whether the child waits for one of them.
    pub(super) const fn waits(&self) -> bool {
        self.follows > 0
    }

    fn find(&mut self, run: RunId) -> Option<&mut Open> {
        self.open.iter_mut().find(|open| open.run == run)
    }

    /// What stands in the entry of the child; `None` when it delegated nothing.
    pub(super) fn take_spent(&mut self) -> Option<Subtree> {
        let spent = std::mem::take(&mut self.spent);
        (!spent.runs.is_empty()).then_some(spent)
    }

    /// Stops all of them, now and later.
    fn stop(&mut self, reason: CancelReason) {
        self.stop = Some(CancelReason::strongest(self.stop, reason));
        for open in &self.open {
            open.control.cancel_all(reason);
            // Nobody is held up by a child that is on its way out and reads no more.
            open.events.iter().for_each(|events| events.close());
        }
    }

    /// Stands still, or goes on, with the child.
    pub(super) fn pause(&self, suspended: bool, launches_held: bool) {
        for open in &self.open {
            open.control.want(|wanted| {
                wanted.suspended = suspended;
                wanted.launches_held = launches_held;
            });
        }
    }
}

impl Loop {
    /// Has it planned, on a thread that may block.
    pub(super) fn delegate(&mut self, index: u32, work: Work, events: bool, reply: Reply) {
        let running = self.monitor.phase(index) == Some(Phase::Running);
        let Some(active) = self.active.get_mut(&index).filter(|_| running) else {
            return reply.give(Answer::refused("a child that is being stopped starts nothing"));
        };
        if active.delegations.open.len() + active.delegations.planned >= OPEN {
            let reason = format!("{OPEN} delegations are open; follow some to their end first");
            return reply.give(Answer::refused(reason));
        }
        active.delegations.planned += 1;
        active.shared.pulse.borrow_mut().asked(self.clock.now());
        let above = Above { run: self.batch.run, child: active.child };
        let events = events.then(Arc::<Delivery>::default);
        let nested = Nested {
            nest: Arc::clone(&self.batch.nest),
            kin: self.batch.kin.below(above),
            outlet: self.batch.outlet.below(events.clone()),
            listener: self.batch.listener.clone(),
            session: self.batch.session.clone(),
        };
        let parent = self.batch.plan.as_parent(index as usize);
        let (nest, isolation) = (Arc::clone(&self.batch.nest), self.batch.launcher.isolation());
        let owed = Owed::or_else(&self.sender, Incoming::Planned(index, None));
        tokio::task::spawn_blocking(move || {
            let plan = nest.plan(work, &parent, isolation);
            let assembled = plan.and_then(|plan| nest.assemble(plan, nested));
            owed.pay(Incoming::Planned(index, Some(Box::new((assembled, events, reply)))));
        });
    }

    /// Starts what was planned, unless the child is on its way out by now.
    pub(super) fn planned(&mut self, index: u32, planned: Option<Box<Planned>>) {
        let running = self.monitor.phase(index) == Some(Phase::Running);
        let Some(active) = self.active.get_mut(&index) else { return };
        active.delegations.planned -= 1;
        // A panic of the planner has dropped the reply, which refuses.
        let Some((assembled, events, reply)) = planned.map(|planned| *planned) else { return };
        let assembled = match assembled {
            Ok(assembled) if running && active.delegations.stop.is_none() => assembled,
            Ok(_) => return reply.give(Answer::refused("it was stopped meanwhile")),
            Err(error) => return reply.give(Answer::refused(error.to_string())),
        };
        let Assembled { batch, control, report, reported } = assembled;
        batch.plan.keep_built();
        let tasks = u32::try_from(batch.plan.tasks.len()).unwrap_or(u32::MAX);
        let run = batch.run;
        control.feed.also(&self.batch.control.feed);
        self.batch.control.hang_below(&control);
        let results = Results::of(self.batch.store.clone(), run);
        let open = Open {
            run,
            control,
            events,
            over: watch::Sender::new(false),
            results: Rc::new(RefCell::new(results)),
            followed: false,
            forgotten: false,
        };
        active.delegations.open.push(open);
        active.delegations.pause(self.paused || active.stopped, self.launches_held);
        self.run_below(index, run, batch.run(report), reported);
        self.child_step(index, Input::Delegated);
        reply.give(Answer::Delegated(Delegated { run, tasks }));
    }

    fn run_below(
        &self,
        index: u32,
        run: RunId,
        batch: impl Future<Output = ()> + 'static,
        reported: oneshot::Receiver<Report>,
    ) {
        let owed = Owed::or_else(&self.sender, Incoming::DelegationOver(index, run, None));
        tokio::task::spawn_local(batch);
        tokio::task::spawn_local(async move {
            let report = reported.await.ok().map(Box::new);
            owed.pay(Incoming::DelegationOver(index, run, report));
        });
    }

    /// All children of a delegation have their outcomes.
    pub(super) fn delegation_over(&mut self, index: u32, run: RunId, report: Option<Box<Report>>) {
        if let Some(report) = &report {
            self.left_running.extend(report.left_running().iter().cloned());
            if !report.verified_empty() && report.left_running().is_empty() {
                self.unverified.push(format!("task {index}: what it delegated (run {run})"));
            }
            self.durable &= report.is_durable();
        }
        if let Some(active) = self.active.get_mut(&index) {
            let delegations = &mut active.delegations;
            if let Some(report) = &report {
                delegations.spent.add(run, report);
            }
            if let Some(open) = delegations.find(run) {
                // A bug of ours has no report: its outcomes are what was stored.
                let statuses = report.map(|report| report.statuses().to_vec()).unwrap_or_default();
                open.results.borrow_mut().statuses = statuses;
                open.over.send_replace(true);
            }
            delegations.open.retain(|open| open.run != run || !open.forgotten);
        }
        self.child_step(index, Input::DelegationOver);
    }

    /// Tells the child the next thing, when there is one.
    pub(super) fn follow(&mut self, index: u32, run: RunId, reply: Reply) {
        let Some(active) = self.active.get_mut(&index) else { return };
        let Some(open) = active.delegations.find(run).filter(|open| !open.followed) else {
            let reason = format!("it has no delegation {run} that can be followed");
            return reply.give(Answer::refused(reason));
        };
        open.followed = true;
        let ready = *open.over.borrow() || open.events.as_ref().is_some_and(|all| all.has_some());
        let (events, results) = (open.events.clone(), Rc::clone(&open.results));
        let mut over = open.over.subscribe();
        active.delegations.follows += 1;
        if !ready && active.delegations.follows == 1 {
            active.place.iter().for_each(crate::tree::Place::lend);
            self.look_at(index);
            self.child_step(index, Input::Waits(true));
        }
        let owed = Owed::or_else(&self.sender, Incoming::Followed(index, run, None));
        tokio::task::spawn_local(async move {
            let told = match events {
                Some(events) => events.next_some(EVENTS).await,
                None => Vec::new(),
            };
            let told = if told.is_empty() {
                // It fails only when the child is gone.
                drop(over.wait_for(|over| *over).await);
                Results::next(&results).await
            } else {
                Told::Events(told)
            };
            owed.pay(Incoming::Followed(index, run, Some((told, reply))));
        });
    }

    /// The child goes on, with what it is told.
    pub(super) fn followed(&mut self, index: u32, run: RunId, told: Option<(Told, Reply)>) {
        let Some(active) = self.active.get_mut(&index) else { return };
        active.delegations.follows -= 1;
        let goes_on = active.delegations.follows == 0;
        if goes_on {
            active.place.iter().for_each(crate::tree::Place::back);
        }
        if let Some(open) = active.delegations.find(run) {
            open.followed = false;
        }
        if let Some((told, reply)) = told {
            if told == Told::Over {
                active.delegations.open.retain(|open| open.run != run);
            }
            reply.give(Answer::Told(told));
        }
        if goes_on {
            self.child_step(index, Input::Waits(false));
        }
    }

    /// The child wants one of them to end.
    pub(super) fn stop_delegation(&mut self, index: u32, run: RunId, forget: bool, reply: Reply) {
        if let Some(active) = self.active.get_mut(&index)
            && let Some(open) = active.delegations.find(run)
        {
            open.control.cancel_all(CancelReason::Interrupt);
            if forget {
                open.forgotten = true;
                open.events.iter().for_each(|events| events.close());
                active
                    .delegations
                    .open
                    .retain(|open| !(open.forgotten && *open.over.borrow() && !open.followed));
            }
        }
        reply.give(Answer::Stopping);
    }

    /// What hangs below a child stops with it: at the same moment on every level, and not one after the other.
    pub(super) fn stop_below(&mut self, index: u32, reason: CancelReason) {
        if let Some(active) = self.active.get_mut(&index) {
            active.delegations.stop(reason);
        }
    }
}

trait Add {
    fn add(&mut self, run: RunId, report: &Report);
}

impl Add for Subtree {
    fn add(&mut self, run: RunId, report: &Report) {
        if self.runs.len() < MAX_DELEGATIONS {
            self.runs.push(run);
        }
        let own =
            Spending { api_calls: self.api_calls, tokens: self.tokens, cost_usd: self.cost_usd };
        let (spent, children) = report.spent();
        let sum = own.and(spent);
        self.children = self.children.saturating_add(children);
        self.api_calls = sum.api_calls;
        self.tokens = sum.tokens;
        self.cost_usd = sum.cost_usd;
    }
}

impl Results {
    const fn of(store: Store, run: RunId) -> Self {
        Self { store, run, statuses: Vec::new(), next: 0, pieces: VecDeque::new(), held: None }
    }

    /// Reads the next outcome back, on a thread that may block. A summary that is long comes first, in pieces.
    async fn next(this: &RefCell<Self>) -> Told {
        let (store, run, index, status) = {
            let mut this = this.borrow_mut();
            if let Some(piece) = this.pieces.pop_front() {
                return Told::Summary(piece);
            }
            if let Some(outcome) = this.held.take() {
                return Told::Outcome(outcome);
            }
            let index = this.next;
            let Some(status) = this.statuses.get(index as usize).copied() else {
                return Told::Over;
            };
            this.next += 1;
            (this.store.clone(), this.run, index, status)
        };
        let read = tokio::task::spawn_blocking(move || {
            let read = store.outcome(run, index);
            read.unwrap_or_else(|error| report::unreadable(index, status, &error.to_string()))
        });
        let mut outcome = match read.await {
            Ok(outcome) => outcome,
            Err(error) => report::unreadable(index, status, &error.to_string()),
        };
        if outcome.summary.as_ref().is_some_and(|text| text.len() > SUMMARY_PIECE) {
            let text = outcome.summary.take().unwrap_or_default();
            let mut pieces = pieces(&text);
            let first = pieces.pop_front().unwrap_or_default();
            let mut this = this.borrow_mut();
            this.pieces = pieces;
            this.held = Some(Box::new(outcome));
            return Told::Summary(first);
        }
        Told::Outcome(Box::new(outcome))
    }
}

/// Cuts a text between characters.
fn pieces(mut text: &str) -> VecDeque<String> {
    let mut pieces = VecDeque::new();
    while !text.is_empty() {
        let end = (0..=SUMMARY_PIECE.min(text.len())).rev().find(|at| text.is_char_boundary(*at));
        let (piece, rest) = text.split_at(end.unwrap_or(text.len()));
        pieces.push_back(piece.to_owned());
        text = rest;
    }
    pieces
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_summary_is_cut_between_characters_and_whole_again() {
        let text = format!("a{}", "é".repeat(SUMMARY_PIECE));
        let pieces = pieces(&text);
        assert_eq!(
            (pieces.len(), pieces.iter().all(|piece| piece.len() <= SUMMARY_PIECE)),
            (3, true)
        );
        assert_eq!(pieces.into_iter().collect::<String>(), text);
    }
}

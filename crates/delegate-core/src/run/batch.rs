//! The loop of one batch: feeds the pure [`Monitor`] and carries out its effects. With
//! [`super::line`], [`super::child_io`] and [`super::delivery`] the only code that waits.
//!
//! Runs on the delegator's own thread, so that a caller whose loop stalls does not stop a deadline.

mod asked;
mod effects;
mod ending;
mod incoming;
mod list;
mod liveness;
mod nested;
mod owed;
mod positions;
mod slots;
mod wishes;

use std::collections::HashMap;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use delegate_protocol::event::Complete;
use delegate_protocol::{Isolation, RunId, Status, SubagentId, ToolCall};
use ownership::ChildEvent as SystemEvent;
use tokio::sync::{Notify, mpsc, oneshot, watch};
use tracing::Instrument;

use self::incoming::Incoming;
use self::positions::Positions;
use super::child_io::{Command, Told};
use super::clock::{Clock, ManualClock};
use super::common::Common;
use super::control::{ControlState, Ended};
use super::crash::{self, Place};
use super::dispatch::Dispatch;
use super::hooks::{Hooks, Listener};
use super::live::Listed;
use super::manifest;
use super::nest::{Kin, Nest};
use super::outlet::Outlet;
use super::shared::Shared;
use crate::collect::Said;
use crate::collect::cost::Spending;
use crate::launch::{Handle, Launcher, Records, StartFailure};
use crate::lease::{self, batch::BatchKeys};
use crate::monitor::{self, CancelReason, Effect, Input, Limits, Monitor, Order, Patience};
use crate::plan::Plan;
use crate::report::{LeftRunning, Report};
use crate::store::{Begun, NewRun, Store};
use crate::tree::{self, Refusal, Seat};
use owed::Owed;

/// One child that has a place.
struct Active {
    child: SubagentId,
    begun: Arc<AtomicBool>,
    over: watch::Sender<bool>,
    wake: Arc<Notify>,
    commands: Option<mpsc::Sender<Command>>,
    handle: Option<Handle>,
    /// The word for how it was started.
    how: Option<&'static str>,
    start_failure: Option<StartFailure>,
    said: Option<Box<Said>>,
    /// Its outcome is wanted as soon as its I/O has ended.
    settling: bool,
    /// What is seen of it.
    shared: Rc<Shared>,
    /// It alone is paused.
    stopped: bool,
    /// Its key; given back with it.
    lease: Arc<lease::batch::Slot>,
    diagnostic: Option<PathBuf>,
    /// Its slot and its share of the budgets; `None` for one that was refused them.
    place: Option<tree::Place>,
    /// Which of them it has used up.
    over_budget: Option<String>,
    /// What its process and all that it started had met of their ration.
    reached: ownership::Reached,
    delegations: nested::Delegations,
}

/// Everything that one batch needs.
pub(crate) struct Batch {
    pub(crate) run: RunId,
    pub(crate) title: String,
    pub(crate) plan: Arc<Plan>,
    pub(crate) launcher: Launcher,
    pub(crate) records: Records,
    pub(crate) store: Store,
    pub(crate) outlet: Outlet,
    pub(crate) control: Arc<ControlState>,
    pub(crate) listener: Option<Arc<dyn Listener>>,
    pub(crate) clock: Option<ManualClock>,
    /// For what its children delegate.
    pub(crate) nest: Arc<dyn Nest>,
    pub(crate) kin: Kin,
    /// The conversation that it belongs to.
    pub(crate) session: Option<String>,
    pub(crate) common: Common,
    pub(crate) keys: BatchKeys,
    /// Takes it off the list of what runs.
    pub(crate) _listed: Listed,
    /// What it owes to whoever does not wait for it.
    pub(crate) dispatch: Option<Dispatch>,
    /// What is stored so that it can be resumed, besides its tasks.
    pub(crate) kept: Option<String>,
    /// Whoever started it does not wait for it.
    pub(crate) background: bool,
    pub(crate) rerun_of: Option<(RunId, Vec<u32>)>,
    /// Its place among the background runs; given back with this.
    pub(crate) _place: Option<Box<dyn std::any::Any + Send>>,
}

impl Batch {
    /// Runs it to its end, and hands the report over.
    pub(crate) async fn run(self, report: oneshot::Sender<Report>) {
        let span = tracing::info_span!(target: "delegate::run", "run", id = %self.run);
        let ended = Loop::new(self).run().instrument(span).await;
        if report.send(ended).is_err() {
            tracing::debug!(target: "delegate::run", "nobody waits for the report");
        }
    }
}

/// However the loop ends: nobody waits for an event or a wish any more. Without a panic of ours that
/// is said in [`Loop::end`], before the report.
impl Drop for Batch {
    fn drop(&mut self) {
        self.outlet.complete();
        self.control.end(None);
    }
}

struct Loop {
    batch: Batch,
    clock: Clock,
    monitor: Monitor,
    active: HashMap<u32, Active>,
    /// What is announced once the outcome is stored.
    completes: HashMap<u32, (Complete, Vec<ToolCall>)>,
    /// `None` when nobody wants to be called.
    hooks: Option<Hooks>,
    sender: mpsc::UnboundedSender<Incoming>,
    incoming: mpsc::UnboundedReceiver<Incoming>,
    statuses: Vec<Status>,
    left_running: Vec<LeftRunning>,
    /// Why it is not known that nothing is left.
    unverified: Vec<String>,
    warnings: Vec<String>,
    durable: bool,
    paused: bool,
    launches_held: bool,
    room: bool,
    /// Its seat in the tree, and who tells it of a slot.
    seat: Seat,
    granted: Arc<Notify>,
    /// Slots for launches that are being made.
    places: Vec<tree::Place>,
    /// Launches that the tree knows it waits for.
    asked: u32,
    /// What was told of those that wait.
    positions: Positions,
    /// Why the tree lets nobody start any more.
    refusal: Option<Refusal>,
    /// Tasks of which was told that they were asked for.
    requested: u32,
    /// What children have spent that have an entry, and how many have, on all levels.
    spent: Spending,
    descendants: u64,
}

impl Loop {
    fn new(batch: Batch) -> Self {
        let (sender, incoming) = mpsc::unbounded_channel();
        let plan = &batch.plan;
        let places = plan.settings.max_concurrent_children;
        let isolation = batch.launcher.isolation();
        let limits = limits(plan, batch.listener.is_some());
        let hooks = batch.listener.clone().and_then(|listener| {
            let hooks = Hooks::start(listener, Arc::clone(plan));
            hooks
                .inspect_err(|error| {
                    tracing::error!(target: "delegate::run", %error, "no callback can be called");
                })
                .ok()
        });
        let granted = Arc::<Notify>::default();
        let told = Arc::clone(&granted);
        let seat = batch.kin.tree.join(batch.kin.subtree, Arc::new(move || told.notify_one()));
        let mut monitor = Monitor::new(task_count(plan), places, isolation, limits).granted();
        let mut statuses = vec![Status::Unknown; plan.tasks.len()];
        for (index, status) in &plan.ended {
            statuses[*index as usize] = *status;
            monitor.skip(*index);
            batch.control.close(*index);
        }
        let batch_warnings = batch.plan.warnings();
        Self {
            seat,
            granted,
            places: Vec::new(),
            asked: 0,
            positions: Positions::default(),
            refusal: None,
            requested: 0,
            spent: Spending::default(),
            descendants: 0,
            hooks,
            clock: Clock::start(batch.clock.clone()),
            monitor,
            active: HashMap::new(),
            completes: HashMap::new(),
            sender,
            incoming,
            statuses,
            left_running: Vec::new(),
            unverified: Vec::new(),
            warnings: batch_warnings,
            durable: true,
            paused: false,
            launches_held: false,
            room: true,
            batch,
        }
    }

    async fn run(mut self) -> Report {
        crash::reach(Place::Begin);
        self.begin_run();
        let (run_id, tasks) = (self.batch.run, task_count(&self.batch.plan));
        let line = manifest::Line::Run { run_id, tasks };
        manifest::write(&self.batch.store, run_id, self.clock.now(), &line);
        crash::reach(Place::Begun);
        for (index, status) in self.batch.plan.ended.clone() {
            self.tell_dispatch(index, status);
        }
        // What was wished before it began holds from the first launch on.
        self.obey();
        self.step(monitor::Event::Tick);
        self.tell_more_requested();
        self.take_slots();
        self.tell_positions();
        while !self.monitor.is_done() {
            self.wait().await;
            let room = self.batch.outlet.has_room();
            if std::mem::replace(&mut self.room, room) != room {
                self.step(monitor::Event::Room(room));
            }
            self.tick();
            self.tell_more_requested();
            self.take_slots();
            self.tell_positions();
        }
        self.end().await
    }

    fn begin_run(&self) {
        let Batch { run, title, plan, launcher, dispatch, kept, background, rerun_of, .. } =
            &self.batch;
        let deliveries = dispatch.as_ref().map(|it| it.deliveries().to_vec()).unwrap_or_default();
        let kept = kept.clone().map(|facts| (Arc::clone(plan), facts));
        self.batch.store.begin_run(NewRun {
            background: *background,
            rerun_of: rerun_of.clone(),
            begun: Some(Arc::new(Begun { kept, deliveries })),
            above: self.batch.kin.above.map(|above| (above.run, above.child.task_index())),
            ..NewRun::new(*run, title, launcher.isolation().word(), task_count(plan))
        });
    }

    fn tell_dispatch(&mut self, index: u32, status: Status) {
        if let Some(dispatch) = &mut self.batch.dispatch {
            dispatch.recorded(index, status);
        }
    }

    /// Tells the monitor what was seen of those whose time may have come, then the time.
    fn tick(&mut self) {
        for index in self.monitor.due(self.clock.now()).collect::<Vec<_>>() {
            self.look_at(index);
        }
        self.step(monitor::Event::Tick);
    }

    fn look_at(&mut self, index: u32) {
        if let Some(active) = self.active.get(&index) {
            active.shared.look(self.clock.now());
            let activity = active.shared.pulse.borrow().activity();
            self.child_step(index, Input::Activity(activity));
        }
    }

    /// Waits for the next fact and takes it in.
    async fn wait(&mut self) {
        let deadlines = [self.monitor.next_deadline(), self.positions.next_look()];
        let (deadline, clock) = (deadlines.into_iter().flatten().min(), self.clock.clone());
        let control = Arc::clone(&self.batch.control);
        let (eased, granted) = (self.batch.outlet.eased(), Arc::clone(&self.granted));
        tokio::select! {
            Some(fact) = self.incoming.recv() => {
                let name = fact.name();
                crash::comes("before-fact", name);
                self.take(fact);
                crash::comes("after-fact", name);
            }
            () = control.changed() => {
                crash::comes("before-fact", "wish");
                self.obey();
                crash::comes("after-fact", "wish");
            }
            () = eased.notified() => crash::comes("before-fact", "eased"),
            () = granted.notified() => crash::comes("before-fact", "granted"),
            () = clock.sleep_until(deadline) => crash::comes("before-fact", "time"),
        }
    }

    fn step(&mut self, event: monitor::Event) {
        for effect in self.monitor.step(event, self.clock.now()) {
            match effect {
                Effect::Launch(index) => self.launch(index),
                Effect::Child(index, Order::Begin) => self.begin(index),
                Effect::Child(index, Order::Touch) => self.touch(index),
                Effect::Child(index, Order::Warn(limit)) => self.warn(index, limit),
                Effect::Child(index, Order::Diagnose) => self.diagnose(index),
                Effect::Child(index, Order::Stop) => self.stand_still(index, true),
                Effect::Child(index, Order::Continue) => self.stand_still(index, false),
                Effect::Child(index, Order::Interrupt) => self.interrupt(index),
                Effect::Child(index, Order::Terminate(grace)) => self.terminate(index, grace),
                Effect::Child(index, Order::Settle) => self.settle(index),
                Effect::Child(index, Order::Announce) => self.announce(index),
            }
        }
    }

    fn child_step(&mut self, index: u32, input: Input) {
        self.step(monitor::Event::Child(index, input));
    }

    // --- facts ---

    fn take(&mut self, fact: Incoming) {
        match fact {
            Incoming::Launched(index, Ok(launched)) => self.launched(index, launched),
            Incoming::Launched(index, Err(failure)) => {
                if let Some(active) = self.active.get_mut(&index) {
                    active.start_failure = Some(failure);
                }
                self.child_step(index, Input::LaunchFailed);
            }
            Incoming::System(index, event) => self.system(index, event),
            Incoming::Told(index, Told::Hello) => self.child_step(index, Input::Hello),
            Incoming::Told(index, Told::Violation(detail)) => {
                self.child_step(index, Input::Violation(detail));
            }
            Incoming::Told(index, Told::Finish(verdict)) => {
                // Accept and close are one order: what was accepted before this is taken, or missed.
                self.batch.control.close(index);
                // What it did not wait for ends with it.
                self.stop_below(index, CancelReason::Interrupt);
                self.child_step(index, Input::Finish(verdict));
                tracing::debug!(target: "delegate::run", task = index, ?verdict, "said its result");
            }
            Incoming::Told(index, Told::Asked(question, reply)) => {
                self.asked(index, question, reply)
            }
            Incoming::Told(index, Told::LineClosed) => self.child_step(index, Input::LineClosed),
            Incoming::Over(index, said) => self.io_ended(index, said),
            Incoming::Diagnosed(index, path) => {
                if let Some(active) = self.active.get_mut(&index) {
                    active.diagnostic = path;
                }
                self.child_step(index, Input::Diagnosed);
            }
            Incoming::Told(index, Told::OverBudget(refusal)) => self.over_budget(index, refusal),
            Incoming::Planned(index, planned) => self.planned(index, planned),
            Incoming::DelegationOver(index, run, report) => {
                self.delegation_over(index, run, report);
            }
            Incoming::Followed(index, run, told) => self.followed(index, run, told),
            Incoming::Recorded(index, durable) => {
                self.durable &= durable;
                self.tell_dispatch(index, self.statuses[index as usize]);
                self.child_step(index, Input::Recorded(durable));
                tracing::debug!(target: "delegate::run", task = index, durable, "recorded");
            }
        }
    }

    fn system(&mut self, index: u32, event: SystemEvent) {
        let input = match event {
            SystemEvent::Exited(exit) => {
                if let Some(active) = self.active.get_mut(&index) {
                    active.reached = exit.reached;
                }
                Input::Exited(exit.status)
            }
            SystemEvent::Emptied(emptied) => Input::Emptied(emptied),
            SystemEvent::Lost => Input::Lost,
            // Told only of what shares its owner's terminal.
            SystemEvent::Stopped(_) => return,
            other => return tracing::warn!(target: "delegate::run", ?other, "unknown event"),
        };
        // A thread goes on when what it started has ended; of a process that is the last word.
        let goes_on = self.batch.launcher.isolation() == Isolation::Thread;
        if !goes_on || !matches!(input, Input::Emptied(_)) {
            self.over(index);
            let finished = self.monitor.facts(index).is_some_and(|facts| facts.verdict.is_some());
            let reason = if finished { CancelReason::Interrupt } else { CancelReason::Kill };
            self.stop_below(index, reason);
        }
        tracing::debug!(target: "delegate::run", task = index, ?input, "its process");
        self.child_step(index, input);
    }

    /// Its process is gone: what can be read of it now is all there is.
    fn over(&self, index: u32) {
        if let Some(active) = self.active.get(&index) {
            active.over.send_replace(true);
        }
    }

    fn io_ended(&mut self, index: u32, said: Box<Said>) {
        let Some(active) = self.active.get_mut(&index) else { return };
        active.said = Some(said);
        if active.settling {
            self.settle(index);
        } else {
            self.child_step(index, Input::StreamEnded);
        }
    }
}

fn task_count(plan: &Plan) -> u32 {
    u32::try_from(plan.tasks.len()).unwrap_or(u32::MAX)
}

/// One entry for all tasks when none has a limit of its own, else one per task.
fn limits(plan: &Plan, touches: bool) -> Vec<Limits> {
    let settings = &plan.settings;
    let of = |run| Limits {
        start: settings.start_timeout,
        run,
        patience: Patience {
            heartbeat: settings.heartbeat_interval,
            touches,
            inactivity: settings.child_inactivity,
            stale_idle: settings.stale_idle,
            stale_in_tool: settings.stale_in_tool,
            on_stale: settings.on_stale,
        },
        interrupt_grace: settings.interrupt_grace,
        terminate_grace: settings.terminate_grace,
    };
    if plan.tasks.iter().all(|task| task.timeout.is_none()) {
        return vec![of(settings.child_timeout)];
    }
    (0..plan.tasks.len()).map(|index| of(plan.timeout(index))).collect()
}

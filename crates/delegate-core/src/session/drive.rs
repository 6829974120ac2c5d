//! [`Driver`]: carries out what [`super::machine`] decides, on the delegator's own thread. What goes to disk is written
//! on a thread for what blocks, and waited for: a turn is stored before anybody hears of it.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use delegate_protocol::turn::NO_TURNS;
use delegate_protocol::{Outcome, RunId, SubagentId, TurnAnswer, TurnEnd};
use tokio::sync::{mpsc, oneshot};

use super::database::{Database, Head};
use super::handle::{SessionEnd, SessionHandle, Shared};
use super::machine::{Effect, Event, Machine, Policy, Stop, Why};
use super::outcome::{self, Begun, TurnOutcome};
use crate::plan::StartError;
use crate::run::clock::Clock;
use crate::run::crash::{Place, reach};
use crate::run::turns::{Asked, Told, Turns};
use crate::run::{Control, Run};
use crate::store::Store;

/// Starts a worker whose questions go there. Blocks.
pub(crate) type Launch = Arc<dyn Fn(Turns) -> Result<Run, StartError> + Send + Sync>;

/// What whoever holds the session wants.
pub(super) enum Command {
    Prompt(u64, String, oneshot::Sender<TurnOutcome>),
    StopTurn(u64),
    /// Whichever runs.
    StopThisTurn,
    Close,
    Stop,
    Kill,
}

/// What a session is opened with.
pub(crate) struct Opening {
    pub(crate) id: RunId,
    pub(crate) agent: String,
    pub(crate) goal: String,
    pub(crate) policy: Policy,
    pub(crate) store: Store,
    pub(crate) launch: Launch,
    /// Of the delegator, where tests have one.
    pub(crate) clock: Option<crate::run::ManualClock>,
    /// Kept as long as the handle: workers are started with it.
    pub(crate) keep: Box<dyn std::any::Any + Send + Sync>,
}

/// A worker that runs.
struct Worker {
    number: u64,
    run: RunId,
    control: Control,
}

/// A prompt that has no end yet. Its text goes with it to the worker.
struct Pending {
    text: String,
    outcome: oneshot::Sender<TurnOutcome>,
}

/// One session.
pub(crate) struct Driver {
    head: Head,
    machine: Machine,
    policy: Policy,
    database: Arc<Mutex<Database>>,
    store: Store,
    manual: Option<crate::run::ManualClock>,
    launch: Launch,
    shared: Arc<Shared>,
    commands: mpsc::UnboundedReceiver<Command>,
    asked: mpsc::UnboundedReceiver<(u64, Asked)>,
    asks: mpsc::UnboundedSender<(u64, Asked)>,
    launched: mpsc::UnboundedReceiver<Result<Run, String>>,
    launches: mpsc::UnboundedSender<Result<Run, String>>,
    lives: mpsc::UnboundedSender<Run>,
    end: Option<oneshot::Sender<SessionEnd>>,
    /// The number of the latest worker.
    last: u64,
    worker: Option<Worker>,
    /// What it waits for.
    waiting: Option<oneshot::Sender<Told>>,
    /// The end of a turn, as it tells it.
    told: Option<(Box<TurnEnd>, oneshot::Sender<Told>)>,
    /// How the latest worker that has left ended.
    left: Option<Outcome>,
    /// What the last one was lost by.
    lost_by: Option<String>,
    pending: BTreeMap<u64, Pending>,
    /// When the turn that runs began.
    began: Duration,
    turns: u64,
    completed: u64,
    verified_empty: bool,
    warnings: Vec<String>,
    over: bool,
}

/// Starts the first worker, and gives the session's two ends.
///
/// # Errors
/// Nothing was started, and why.
pub(crate) fn open(opening: Opening) -> Result<(SessionHandle, Driver), StartError> {
    let Opening { id, agent, goal, policy, store, launch, clock, keep } = opening;
    let (asks, asked) = mpsc::unbounded_channel();
    let run = launch(Turns { worker: 1, sender: asks.clone() })?;
    let head = Head { id, agent, goal, isolation: run.plan().isolation.word() };
    let (database, remark) = Database::begin(store.kept_in(), &head).map_err(|error| {
        let source = std::io::Error::other(error);
        StartError::System { what: "the database of a session", source }
    })?;
    let database = Arc::new(Mutex::new(database));
    let (send, commands) = mpsc::unbounded_channel();
    let (launches, launched) = mpsc::unbounded_channel();
    let (lives, runs) = mpsc::unbounded_channel();
    let (end, ended) = oneshot::channel();
    let shared = Arc::<Shared>::default();
    let handle_parts = (send, runs, ended);
    let mut driver = Driver {
        head,
        machine: Machine::new(policy),
        policy,
        database: Arc::clone(&database),
        store,
        manual: clock,
        launch,
        shared: Arc::clone(&shared),
        commands,
        asked,
        asks,
        launched,
        launches,
        lives,
        end: Some(end),
        last: 1,
        worker: None,
        waiting: None,
        told: None,
        left: None,
        lost_by: None,
        pending: BTreeMap::new(),
        began: Duration::ZERO,
        turns: 0,
        completed: 0,
        verified_empty: true,
        warnings: Vec::new(),
        over: false,
    };
    driver.warnings.extend(remark);
    driver.hire(&run);
    Ok((SessionHandle::new(id, run, handle_parts, database, shared, keep), driver))
}

impl Driver {
    /// Until it is over.
    pub(crate) async fn run(mut self) {
        let clock = Clock::start(self.manual.take());
        if let Some((number, run)) = self.worker.as_ref().map(|it| (it.number, it.run)) {
            self.write(move |database| database.worker(number, run)).await;
        }
        while !self.over {
            let gone = gone(self.worker.as_ref().map(|worker| worker.control.clone()));
            let deadline = self.machine.next_deadline();
            // What a worker said comes before the word that it has left, and behind the word that it was started: it may be
            // quicker than whoever starts it.
            let hired = self.worker.is_some();
            tokio::select! {
                biased;
                Some((worker, asked)) = self.asked.recv(), if hired => {
                    if worker == self.last {
                        self.asked(asked, clock.now()).await;
                    }
                }
                command = self.commands.recv() => self.command(command, clock.now()).await,
                empty = gone => self.gone(empty, clock.now()).await,
                Some(launched) = self.launched.recv() => self.launched(launched, clock.now()).await,
                () = clock.sleep_until(deadline) => self.step(Event::Tick, clock.now()).await,
            }
        }
        // What was asked meanwhile has its end as well.
        self.commands.close();
        while let Some(command) = self.commands.recv().await {
            self.command(Some(command), clock.now()).await;
        }
    }

    async fn command(&mut self, command: Option<Command>, now: Duration) {
        match command {
            Some(Command::Prompt(number, text, outcome)) => {
                let kept = text.clone();
                self.write(move |database| database.prompted(number, &kept)).await;
                reach(Place::Prompted);
                self.pending.insert(number, Pending { text, outcome });
                self.step(Event::Prompted(number), now).await;
            }
            Some(Command::StopTurn(number)) => self.step(Event::StopTurn(number), now).await,
            Some(Command::StopThisTurn) => {
                if let Some(number) = self.shared.turn() {
                    self.step(Event::StopTurn(number), now).await;
                }
            }
            Some(Command::Close) => self.step(Event::Close, now).await,
            Some(Command::Kill) => {
                self.step(Event::Stop, now).await;
                if let Some(worker) = &self.worker {
                    worker.control.kill();
                }
            }
            // Nobody holds it any more.
            Some(Command::Stop) | None => self.step(Event::Stop, now).await,
        }
    }

    async fn asked(&mut self, asked: Asked, now: Duration) {
        match asked {
            Asked::Next(told) => {
                self.waiting = Some(told);
                self.step(Event::Asked, now).await;
                self.shared.set_idle(self.machine.is_idle());
            }
            Asked::Over(end, told) => {
                let number = end.number;
                self.told = Some((end, told));
                self.step(Event::Over(number), now).await;
                // One that does not run: a child that says so is refused.
                self.told = None;
            }
            Asked::History(after, told) => {
                let database = Arc::clone(&self.database);
                let past = move || locked(&database).past(after).unwrap_or_default();
                let turns = tokio::task::spawn_blocking(past).await.unwrap_or_default();
                // It may be gone.
                drop(told.send((TurnAnswer::History(turns), None)));
            }
        }
    }

    /// The worker's run is over.
    async fn gone(&mut self, verified_empty: bool, now: Duration) {
        let Some(worker) = self.worker.take() else { return };
        reach(Place::WorkerGone);
        self.shared.set_worker(None);
        self.verified_empty &= verified_empty;
        self.waiting = None;
        self.left = self.store.outcome(worker.run, 0).ok();
        let reason = self.left.as_ref().and_then(|left| left.failure_reason.as_deref());
        let hopeless = reason == Some(NO_TURNS);
        let error = self.left.as_ref().and_then(|left| left.error.clone());
        self.lost_by.clone_from(&error);
        let before = self.machine.restarts();
        let effects = self.machine.step(Event::Gone { hopeless }, now);
        let (number, restarts) = (worker.number, self.machine.restarts());
        if restarts > before {
            let session = self.head.id;
            tracing::warn!(target: "delegate::session", %session, restarts, error, "a worker was lost");
        }
        self.shared.set_restarts(restarts);
        self.write(move |database| database.worker_gone(number, error.as_deref(), restarts)).await;
        self.act(effects, now).await;
    }

    async fn launched(&mut self, launched: Result<Run, String>, now: Duration) {
        match launched {
            Ok(run) => {
                let (number, id) = (self.last, run.id());
                self.write(move |database| database.worker(number, id)).await;
                self.hire(&run);
                reach(Place::Replaced);
                if self.shared.is_ending()
                    && let Some(worker) = &self.worker
                {
                    worker.control.interrupt();
                }
                // Its caller may read no more.
                drop(self.lives.send(run));
            }
            Err(error) => {
                self.warn(format!("a worker could not be started: {error}"));
                self.lost_by = Some(error);
                self.left = None;
                let effects = self.machine.step(Event::Gone { hopeless: false }, now);
                self.shared.set_restarts(self.machine.restarts());
                self.act(effects, now).await;
            }
        }
    }

    fn hire(&mut self, run: &Run) {
        let child: SubagentId = run.plan().subagent_id(0);
        self.shared.set_worker(Some((run.control(), child)));
        self.shared.set_run(run.id());
        self.worker = Some(Worker { number: self.last, run: run.id(), control: run.control() });
    }

    async fn step(&mut self, event: Event, now: Duration) {
        let effects = self.machine.step(event, now);
        self.act(effects, now).await;
    }

    async fn act(&mut self, effects: Vec<Effect>, now: Duration) {
        for effect in effects {
            match effect {
                Effect::Launch => self.start_another(),
                Effect::Give(number) => self.give(number, now).await,
                Effect::NoMore => {
                    if let Some(told) = self.waiting.take() {
                        drop(told.send((TurnAnswer::NoMore, None)));
                    }
                }
                Effect::StopTurn(number) => {
                    if let Some(worker) = &self.worker {
                        worker.control.stop_turn(number);
                    }
                }
                Effect::EndWorker => {
                    if self.machine.is_stopped() {
                        self.shared.set_ending();
                    }
                    if let Some(worker) = &self.worker {
                        worker.control.interrupt();
                    }
                }
                Effect::Settle(number, stop) => self.settle(number, stop, now).await,
                Effect::Lose(number, stop) => {
                    let (begun, left) = (self.begun(number, now), self.left.take());
                    drop(self.ended(outcome::lost(begun, stop, left)).await);
                }
                Effect::Refuse(number) => {
                    self.shared.one_less_waits();
                    drop(self.ended(outcome::refused(self.head.id, number, self.refusal())).await);
                }
                Effect::Over(why) => self.conclude(why).await,
            }
        }
    }

    fn start_another(&mut self) {
        self.last += 1;
        let turns = Turns { worker: self.last, sender: self.asks.clone() };
        let (launch, launches) = (Arc::clone(&self.launch), self.launches.clone());
        // A start may block: not on the thread that watches deadlines.
        tokio::task::spawn_blocking(move || {
            let run = launch(turns).map_err(|error| error.to_string());
            // A session that is over wants none: dropping the run ends it.
            drop(launches.send(run));
        });
    }

    async fn give(&mut self, number: u64, now: Duration) {
        let Some(run) = self.worker.as_ref().map(|worker| worker.run) else { return };
        self.write(move |database| database.begun(number, run)).await;
        reach(Place::Given);
        self.began = now;
        self.turns += 1;
        self.shared.begin(number, self.turns);
        let text = self.pending.get_mut(&number).map(|one| std::mem::take(&mut one.text));
        if let (Some(told), Some(text)) = (self.waiting.take(), text) {
            // One that has left meanwhile is told of soon.
            drop(told.send((TurnAnswer::Prompt { number, text }, Some((number, None)))));
        }
    }

    async fn settle(&mut self, number: u64, stop: Option<Stop>, now: Duration) {
        let Some((end, told)) = self.told.take() else { return };
        let begun = self.begun(number, now);
        let in_short = self.ended(outcome::told(begun, stop, *end)).await;
        drop(told.send((TurnAnswer::Noted, Some((number, Some(Box::new(in_short)))))));
    }

    /// Why a prompt is not begun, for people.
    fn refusal(&self) -> String {
        let why = self.machine.refusal();
        match &self.lost_by {
            Some(by) if self.machine.has_given_up() => format!("{why}, the last one by: {by}"),
            _ => why,
        }
    }

    fn begun(&self, turn: u64, now: Duration) -> Begun {
        Begun {
            session: self.head.id,
            turn,
            run: self.shared.last_run().unwrap_or(self.head.id),
            lasted: now.saturating_sub(self.began),
            limit: self.policy.turn_timeout,
        }
    }

    /// A turn has its end: stores it, then tells who waits for it.
    async fn ended(&mut self, mut outcome: TurnOutcome) -> delegate_protocol::TurnOver {
        if outcome.was_begun() {
            self.shared.begin_none();
        }
        self.completed += u64::from(outcome.status == delegate_protocol::Status::Completed);
        outcome.durable = locked(&self.database).is_durable();
        let stored = outcome.clone();
        let durable = self.write(move |database| database.ended(&stored)).await;
        reach(Place::TurnStored);
        outcome.durable &= durable;
        let in_short = outcome.in_short();
        if let Some(Pending { outcome: told, .. }) = self.pending.remove(&outcome.turn) {
            // Nobody need wait for it.
            drop(told.send(outcome));
        }
        reach(Place::TurnTold);
        in_short
    }

    async fn conclude(&mut self, why: Why) {
        self.write(move |database| database.over(why)).await;
        reach(Place::SessionOver);
        self.shared.set_over();
        self.over = true;
        let end = SessionEnd {
            id: self.head.id,
            why,
            reason: self.refusal(),
            turns: self.turns,
            completed: self.completed,
            restarts: self.machine.restarts(),
            durable: locked(&self.database).is_durable(),
            verified_empty: self.verified_empty,
            warnings: std::mem::take(&mut self.warnings),
        };
        if let Some(told) = self.end.take() {
            drop(told.send(end));
        }
    }

    /// Writes on a thread that may block; `false` when it could not, which is said once.
    async fn write(
        &mut self,
        work: impl FnOnce(&mut Database) -> rusqlite::Result<()> + Send + 'static,
    ) -> bool {
        let database = Arc::clone(&self.database);
        let written = tokio::task::spawn_blocking(move || {
            work(&mut locked(&database)).map_err(|error| error.to_string())
        });
        match written.await.unwrap_or_else(|panic| Err(panic.to_string())) {
            Ok(()) => true,
            Err(error) => {
                self.warn(format!("turns of session {} are not stored: {error}", self.head.id));
                false
            }
        }
    }

    fn warn(&mut self, text: String) {
        tracing::error!(target: "delegate::session", "{text}");
        // Each restart may have one; a disk that is full is said once.
        if self.warnings.len() < WARNINGS && !self.warnings.contains(&text) {
            self.warnings.push(text);
        }
    }
}

/// Warnings that are kept for the end.
const WARNINGS: usize = 16;

fn locked(database: &Mutex<Database>) -> std::sync::MutexGuard<'_, Database> {
    database.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Ready when the run is over, with whether nothing of it is left.
async fn gone(control: Option<Control>) -> bool {
    match control {
        Some(control) => control.ended().await.is_some_and(|ended| ended.verified_empty),
        None => std::future::pending().await,
    }
}

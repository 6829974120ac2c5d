//! [`Driver`]: carries out what [`super::machine`] decides, on the delegator's own thread. What goes to disk is written
//! on a thread for what blocks, and waited for: a turn is stored before anybody hears of it. `workers` starts and buries
//! those who carry it out.

mod workers;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use delegate_protocol::{Outcome, RunId, TurnAnswer, TurnEnd};
use tokio::sync::{mpsc, oneshot};

use super::database::{Database, Head};
use super::handle::{SessionEnd, SessionHandle, Shared};
use super::machine::{Effect, Event, Machine, Policy, Stop, Why};
use super::outcome::{self, Begun, TurnOutcome};
use super::outside::Outside;
use crate::plan::StartError;
use crate::run::clock::Clock;
use crate::run::crash::{Place, reach};
use crate::run::live::{ListedSession, Live};
use crate::run::turns::{Asked, Told, Turns};
use crate::run::{Control, Ended, Run};
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
    /// That it belongs to.
    pub(crate) conversation: Option<String>,
    pub(crate) policy: Policy,
    pub(crate) store: Store,
    /// Where it is listed while it goes on.
    pub(crate) live: Arc<Live>,
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

/// A prompt that has no end yet. Its text is kept: it may have to go to another worker.
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
    /// Prompts that were never begun.
    refused: u64,
    /// Workers that met a limit.
    limits_met: u32,
    over: bool,
    /// As long as it goes on.
    listed: Option<ListedSession>,
}

/// Starts the first worker, and gives the session's two ends.
///
/// # Errors
/// Nothing was started, and why.
pub(crate) fn open(opening: Opening) -> Result<(SessionHandle, Driver), StartError> {
    let Opening { id, agent, goal, conversation, policy, store, live, launch, clock, keep } =
        opening;
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
        refused: 0,
        limits_met: 0,
        over: false,
        listed: None,
    };
    driver.warnings.extend(remark);
    driver.warnings.extend(run.plan().warnings());
    driver.hire(&run);
    let handle = SessionHandle::new(id, run, handle_parts, database, shared, keep);
    let outside = Outside::new(handle.control(), driver.head.clone(), conversation);
    driver.listed = Some(live.add_session(Arc::new(outside)));
    Ok((handle, driver))
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
                Effect::TakeBack(number) => self.take_back(number).await,
                Effect::Refuse(number) => {
                    self.shared.one_less_waits();
                    drop(self.ended(outcome::refused(self.head.id, number, self.refusal())).await);
                }
                Effect::Over(why) => self.conclude(why, now).await,
            }
        }
    }

    async fn give(&mut self, number: u64, now: Duration) {
        let Some(run) = self.worker.as_ref().map(|worker| worker.run) else { return };
        self.write(move |database| database.begun(number, run)).await;
        reach(Place::Given);
        self.began = now;
        self.turns += 1;
        self.shared.begin(number, self.turns);
        let text = self.pending.get(&number).map(|one| one.text.clone());
        if let (Some(told), Some(text)) = (self.waiting.take(), text) {
            // One that has left meanwhile is told of soon.
            drop(told.send((TurnAnswer::Prompt { number, text }, Some((number, None)))));
        }
    }

    async fn take_back(&mut self, number: u64) {
        self.turns -= 1;
        self.shared.take_back(self.turns);
        self.write(move |database| database.taken_back(number)).await;
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
        self.refused += u64::from(!outcome.was_begun());
        self.shared.set_completed(self.completed);
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

    async fn conclude(&mut self, why: Why, now: Duration) {
        self.write(move |database| database.over(why)).await;
        reach(Place::SessionOver);
        let durable = locked(&self.database).is_durable();
        let lost = matches!(why, Why::GaveUp | Why::TakesNoTurns);
        let ended = Ended {
            all_completed: self.completed == self.turns
                && self.refused == 0
                && self.limits_met == 0
                && !lost,
            verified_empty: self.verified_empty,
            durable,
            total: now.as_secs_f64(),
        };
        self.shared.set_over(self.refusal(), ended);
        self.listed = None;
        self.over = true;
        let end = SessionEnd {
            id: self.head.id,
            why,
            reason: self.refusal(),
            turns: self.turns,
            completed: self.completed,
            restarts: self.machine.restarts(),
            limits_met: self.limits_met,
            durable,
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

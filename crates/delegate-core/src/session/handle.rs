//! What the caller of a session holds: [`SessionHandle`], and [`SessionControl`] for another thread. [`super::turn`] has a
//! turn of it.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use delegate_protocol::turn::PROMPT_BYTES;
use delegate_protocol::{PastTurn, RunId, SubagentId};
use serde::Serialize;
use tokio::sync::{mpsc, oneshot, watch};

use super::database::Database;
use super::drive::Command;
use super::list::{self, SessionRecord, TurnRecord};
use super::machine::{WAITING, Why};
use super::outcome;
use super::turn::Turn;
use crate::run::{Control, Ended, Run, SteerError, block_on};

/// Why a prompt was not taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PromptError {
    /// Nothing is asked.
    #[error("the prompt is blank")]
    Blank,
    /// It is too long to cross at once.
    #[error("the prompt is over {PROMPT_BYTES} bytes: write it into a file and name that")]
    TooLong,
    /// So many wait already.
    #[error("{WAITING} prompts wait already")]
    Full,
    /// The session is over; the prompt is on record as one that was never begun.
    #[error("the session is over")]
    Over,
}

/// How a session ended.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct SessionEnd {
    /// Which.
    pub id: RunId,
    /// Why.
    pub why: Why,
    /// The same for people; of a session that gave up also what its last worker was lost by.
    pub reason: String,
    /// Turns that were begun.
    pub turns: u64,
    /// Those that completed.
    pub completed: u64,
    /// Workers that took the place of lost ones.
    pub restarts: u32,
    /// Workers that met a limit of what a child may use (`max_memory`, say): what they answered may lack something.
    pub limits_met: u32,
    /// Whether every turn is on disk.
    pub durable: bool,
    /// Whether the kernel confirmed that nothing of its workers is left.
    pub verified_empty: bool,
    /// What a person should know.
    pub warnings: Vec<String>,
}

#[derive(Debug, Default)]
struct State {
    worker: Option<(Control, SubagentId)>,
    last_run: Option<RunId>,
    /// The turn that runs.
    turn: Option<u64>,
    begun: u64,
    completed: u64,
    restarts: u32,
    waiting: usize,
    idle: bool,
    ending: bool,
    /// Why it is over, for people.
    over: Option<String>,
}

/// What changes of a session that goes on.
#[derive(Debug, Clone, Copy)]
pub(super) struct Now {
    pub(super) run: Option<RunId>,
    pub(super) turn: Option<u64>,
    pub(super) begun: u64,
    pub(super) completed: u64,
    pub(super) restarts: u32,
    pub(super) waiting: usize,
}

/// What the driver lets its caller see.
#[derive(Debug)]
pub(super) struct Shared {
    state: Mutex<State>,
    over: watch::Sender<Option<Ended>>,
}

impl Default for Shared {
    fn default() -> Self {
        Self { state: Mutex::default(), over: watch::Sender::new(None) }
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn set_worker(&self, worker: Option<(Control, SubagentId)>) {
        let mut state = self.state();
        state.idle = false;
        state.worker = worker;
    }

    pub(super) fn set_run(&self, run: RunId) {
        self.state().last_run = Some(run);
    }

    pub(super) fn last_run(&self) -> Option<RunId> {
        self.state().last_run
    }

    pub(super) fn begin(&self, turn: u64, begun: u64) {
        let mut state = self.state();
        (state.turn, state.begun) = (Some(turn), begun);
        state.waiting = state.waiting.saturating_sub(1);
        state.idle = false;
    }

    /// The turn that runs waits again.
    pub(super) fn take_back(&self, begun: u64) {
        let mut state = self.state();
        (state.turn, state.begun) = (None, begun);
        state.waiting += 1;
    }

    pub(super) fn set_idle(&self, idle: bool) {
        self.state().idle = idle;
    }

    pub(super) fn begin_none(&self) {
        self.state().turn = None;
    }

    pub(super) fn turn(&self) -> Option<u64> {
        self.state().turn
    }

    pub(super) fn one_less_waits(&self) {
        let mut state = self.state();
        state.waiting = state.waiting.saturating_sub(1);
    }

    pub(super) fn set_restarts(&self, restarts: u32) {
        self.state().restarts = restarts;
    }

    pub(super) fn set_ending(&self) {
        self.state().ending = true;
    }

    pub(super) fn is_ending(&self) -> bool {
        self.state().ending
    }

    pub(super) fn set_completed(&self, completed: u64) {
        self.state().completed = completed;
    }

    pub(super) fn set_over(&self, reason: String, ended: Ended) {
        self.state().over = Some(reason);
        self.over.send_replace(Some(ended));
    }

    /// How it ended, once it has.
    pub(super) fn end(&self) -> watch::Receiver<Option<Ended>> {
        self.over.subscribe()
    }

    /// What it does, but for what does not change.
    pub(super) fn look(&self) -> Now {
        let State { worker, last_run, turn, begun, completed, restarts, waiting, .. } =
            &*self.state();
        Now {
            run: last_run.filter(|_| worker.is_some()),
            turn: *turn,
            begun: *begun,
            completed: *completed,
            restarts: *restarts,
            waiting: *waiting,
        }
    }

    /// A place in line.
    fn enter(&self) -> Result<(), PromptError> {
        let mut state = self.state();
        if state.over.is_some() {
            return Err(PromptError::Over);
        }
        if state.waiting >= WAITING {
            return Err(PromptError::Full);
        }
        state.waiting += 1;
        Ok(())
    }
}

type Parts =
    (mpsc::UnboundedSender<Command>, mpsc::UnboundedReceiver<Run>, oneshot::Receiver<SessionEnd>);

/// A session: a worker that takes prompts, one after another.
///
/// # Caveats
/// Dropping it ends the worker: it is interrupted, and after the grace times ended. A caller that reads neither the
/// events of a turn nor its outcome slows that turn down.
#[must_use = "dropping a session ends its worker"]
pub struct SessionHandle {
    pub(super) id: RunId,
    pub(super) commands: mpsc::UnboundedSender<Command>,
    /// Runs of its workers, as they come.
    pub(super) lives: mpsc::UnboundedReceiver<Run>,
    pub(super) current: Option<Run>,
    /// The latest run that was read to its end.
    pub(super) read: Option<RunId>,
    /// The turn whose end was not read yet.
    pub(super) open: Option<u64>,
    /// `None` once it was taken.
    end: Option<oneshot::Receiver<SessionEnd>>,
    /// The number of the latest prompt.
    last: u64,
    database: Arc<Mutex<Database>>,
    shared: Arc<Shared>,
    _keep: Box<dyn std::any::Any + Send + Sync>,
}

impl std::fmt::Debug for SessionHandle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SessionHandle").field("id", &self.id).finish_non_exhaustive()
    }
}

impl Drop for SessionHandle {
    fn drop(&mut self) {
        // One that is over hears nothing.
        drop(self.commands.send(Command::Stop));
    }
}

impl SessionHandle {
    pub(super) fn new(
        id: RunId,
        run: Run,
        (commands, lives, end): Parts,
        database: Arc<Mutex<Database>>,
        shared: Arc<Shared>,
        keep: Box<dyn std::any::Any + Send + Sync>,
    ) -> Self {
        Self {
            id,
            commands,
            lives,
            current: Some(run),
            read: None,
            open: None,
            end: Some(end),
            last: 0,
            database,
            shared,
            _keep: keep,
        }
    }

    /// Its id: `delegate sessions` shows it, and its database lies in the state directory under it.
    #[must_use]
    pub const fn id(&self) -> RunId {
        self.id
    }

    /// Asks something. It waits in line while an earlier turn runs; turns are numbered from 1.
    ///
    /// # Errors
    /// It was not taken, and why. With [`PromptError::Over`] it is on record all the same, as refused, in a write that
    /// is waited for.
    pub fn prompt(&mut self, text: impl Into<String>) -> Result<Turn<'_>, PromptError> {
        let text = text.into();
        if text.trim().is_empty() {
            return Err(PromptError::Blank);
        }
        if text.len() > PROMPT_BYTES {
            return Err(PromptError::TooLong);
        }
        let entered = self.shared.enter();
        if entered == Err(PromptError::Full) {
            return Err(PromptError::Full);
        }
        self.last += 1;
        let number = self.last;
        let (told, outcome) = oneshot::channel();
        let sent = entered.and_then(|()| {
            let command = Command::Prompt(number, text.clone(), told);
            self.commands.send(command).map_err(|_| PromptError::Over)
        });
        match sent {
            Ok(()) => Ok(Turn::new(self, number, outcome)),
            Err(error) => {
                self.keep_refused(number, &text);
                Err(error)
            }
        }
    }

    /// Nobody carries it out any more, so it is written here.
    fn keep_refused(&self, number: u64, text: &str) {
        let why = self.shared.state().over.clone();
        let why = why.unwrap_or_else(|| "its session has ended".to_owned());
        let mut database = self.database.lock().unwrap_or_else(PoisonError::into_inner);
        let mut refused = outcome::refused(self.id, number, why);
        refused.durable = database.is_durable();
        let kept = database.prompted(number, text).and_then(|()| database.ended(&refused));
        if let Err(error) = kept {
            tracing::error!(target: "delegate::session", %error, number, "a prompt is not on record");
        }
    }

    /// A handle for another thread, a signal handler or a UI.
    #[must_use]
    pub fn control(&self) -> SessionControl {
        SessionControl {
            commands: self.commands.clone(),
            shared: Arc::clone(&self.shared),
            database: Arc::clone(&self.database),
        }
    }

    /// The turns that have ended, oldest first, from the session's database.
    #[must_use]
    pub fn history(&self) -> Vec<PastTurn> {
        let database = self.database.lock().unwrap_or_else(PoisonError::into_inner);
        let mut all: Vec<PastTurn> = Vec::new();
        loop {
            let after = all.last().map_or(0, |turn| turn.number);
            match database.past(after) {
                Ok(turns) if !turns.is_empty() => all.extend(turns),
                Ok(_) => return all,
                Err(error) => {
                    tracing::error!(target: "delegate::session", %error, "turns cannot be read");
                    return all;
                }
            }
        }
    }

    /// No more prompts: waits until those that were taken are done and the worker has left.
    ///
    /// # Panics
    /// When the loop of the delegator has panicked: a bug of ours.
    pub async fn close(mut self) -> SessionEnd {
        drop(self.commands.send(Command::Close));
        self.end().await
    }

    /// Ends it now; waits until nothing of it is left.
    ///
    /// # Panics
    /// As [`SessionHandle::close`].
    pub async fn stop(mut self) -> SessionEnd {
        drop(self.commands.send(Command::Stop));
        self.end().await
    }

    /// Waits until it is over by itself or through its [`SessionControl`].
    ///
    /// # Panics
    /// As [`SessionHandle::close`].
    pub async fn ended(mut self) -> SessionEnd {
        self.end().await
    }

    async fn end(&mut self) -> SessionEnd {
        loop {
            if let Some(run) = self.current.take() {
                drop(run.finish().await);
            }
            match self.lives.recv().await {
                Some(run) => self.current = Some(run),
                None => break,
            }
        }
        match self.end.take() {
            Some(end) => end.await.expect("the delegator's loop tells the end of a session"),
            None => unreachable!("whoever waits for the end takes the session"),
        }
    }

    /// Blocking twin of [`SessionHandle::close`].
    pub fn close_blocking(self) -> SessionEnd {
        block_on(self.close())
    }

    /// Blocking twin of [`SessionHandle::stop`].
    pub fn stop_blocking(self) -> SessionEnd {
        block_on(self.stop())
    }

    /// Blocking twin of [`SessionHandle::ended`].
    pub fn ended_blocking(self) -> SessionEnd {
        block_on(self.ended())
    }
}

/// Steers a session, from any thread. Every call is idempotent but for words, and after the end a no-op.
#[derive(Debug, Clone)]
pub struct SessionControl {
    pub(super) commands: mpsc::UnboundedSender<Command>,
    pub(super) shared: Arc<Shared>,
    pub(super) database: Arc<Mutex<Database>>,
}

impl SessionControl {
    /// Says something to the agent that interrupts nothing: in a turn, or between two for the next one
    /// ([`delegate_child::Session::steer`]).
    ///
    /// # Errors
    /// It was not accepted, and why; [`SteerError::NoWorker`] while a lost worker is replaced.
    pub fn steer(&self, text: impl Into<String>) -> Result<(), SteerError> {
        let (worker, is_over) = {
            let state = self.shared.state();
            (state.worker.clone(), state.over.is_some())
        };
        let none = if is_over { SteerError::Ended } else { SteerError::NoWorker };
        let (control, child) = worker.ok_or(none)?;
        control.steer(child, text)
    }

    /// Has the agent unwind from the turn that runs, if one does.
    pub fn stop_turn(&self) {
        drop(self.commands.send(Command::StopThisTurn));
    }

    /// Ends the session: interrupt, grace, kill. Prompts that wait are never begun.
    pub fn stop(&self) {
        drop(self.commands.send(Command::Stop));
    }

    /// Ends it at once.
    pub fn kill(&self) {
        drop(self.commands.send(Command::Kill));
    }

    /// The run of its worker, for logs and the control socket; `None` while there is none.
    #[must_use]
    pub fn run_id(&self) -> Option<RunId> {
        let state = self.shared.state();
        state.worker.as_ref().and(state.last_run)
    }

    /// Whether the session is over, in whatever way.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.shared.over.borrow().is_some()
    }

    /// Waits until the session is over, in whatever way.
    pub async fn over(&self) {
        // Its sender is held here.
        drop(self.shared.over.subscribe().wait_for(Option::is_some).await);
    }

    /// Whether its worker waits for a prompt.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.shared.state().idle
    }

    /// The turn that runs.
    #[must_use]
    pub fn turn(&self) -> Option<u64> {
        self.shared.turn()
    }

    /// What is on record of it, also where that is in memory only; `None` when it cannot be read, which is logged.
    #[must_use]
    pub fn record(&self) -> Option<(SessionRecord, Vec<TurnRecord>)> {
        let database = self.database.lock().unwrap_or_else(PoisonError::into_inner);
        let read = list::record_in(database.connection()).and_then(|record| {
            let Some(record) = record else { return Ok(None) };
            let turns = list::turns_in(database.connection(), record.status != "running")?;
            Ok(Some((record, turns)))
        });
        read.unwrap_or_else(|error| {
            tracing::error!(target: "delegate::session", %error, "turns cannot be read");
            None
        })
    }

    /// Workers that took the place of lost ones so far.
    #[must_use]
    pub fn restarts(&self) -> u32 {
        self.shared.state().restarts
    }
}

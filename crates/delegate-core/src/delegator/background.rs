//! Runs that nobody waits for, and their reports: [`Batch::background`], [`Delegator::completions`],
//! [`Delegator::wait`].

use std::sync::Arc;

use delegate_protocol::RunId;
use serde::Serialize;

use super::batch::Batch;
use super::{Delegator, Inner};
use crate::background::{Completions, Dispatched, Unit};
use crate::config::Settings;
use crate::plan::{Plan, StartError};
use crate::report::Report;
use crate::run::block_on;
use crate::run::control::ControlState;
use crate::run::dispatch::{Dispatch, units};
use crate::store::delivery::{Delivery, State};
use crate::store::{Log, Store, StoreError, seconds_now};

/// What was captured when a run was dispatched.
#[derive(Debug)]
pub(super) struct Captured {
    /// As JSON.
    pub(super) origin: String,
    pub(super) session: Option<String>,
}

impl Captured {
    /// A delivery per unit, all of them owed by this run.
    pub(super) fn dispatch(&self, inner: &Inner, run: RunId, plan: &Plan) -> Dispatch {
        let now = seconds_now();
        let independent = plan.settings.independent_completions;
        let units = units(&plan.tasks, independent);
        let delivery = |(unit, tasks): (u32, &[u32])| Delivery {
            run_id: run,
            unit: if independent { unit + 1 } else { 0 },
            tasks: if independent { tasks.to_vec() } else { Vec::new() },
            origin: self.origin.clone(),
            session: self.session.clone(),
            state: State::Running,
            attempts: 0,
            claimed_at: None,
            dispatched_at: now,
            changed_at: now,
            finished_at: None,
            restored: false,
            why: None,
        };
        let deliveries = (0..).zip(units.tasks()).map(delivery).collect();
        Dispatch::new(inner.store.clone(), Arc::clone(&inner.board), units, deliveries)
    }
}

/// A place among the background runs, to be given back with the run.
pub(super) type Held = Option<Box<dyn std::any::Any + Send>>;

impl Delegator {
    /// A place for a background run, or one in line.
    pub(super) fn place(
        &self,
        settings: &Settings,
        run: RunId,
        control: &Arc<ControlState>,
    ) -> Result<(Held, Option<usize>), StartError> {
        let limit = settings.max_concurrent_children;
        let entered =
            self.inner.slots.enter(limit as usize, settings.background_overflow, run, control);
        let (place, position) =
            entered.map_err(|full| StartError::BackgroundFull { running: full.running, limit })?;
        Ok((Some(Box::new(place)), position))
    }

    /// Makes a run this process's.
    pub(super) fn take_over(&self, run: RunId) -> Result<(), StartError> {
        let taken = block_on(self.inner.store.take_over(run));
        taken
            .unwrap_or_else(|_| Err("the store is closed".to_owned()))
            .map_err(|reason| StartError::NotResumable { run, reason })
    }
}

impl Batch {
    /// Starts it, and comes back at once: nobody waits for it, it lives as long as this process, and its
    /// outcomes are told to whoever asks for [`Delegator::completions`]. `origin` is taken here, before
    /// anything is built, and handed back with them. Its tasks are stored, without what may be a secret, so
    /// that it can be resumed ([`Delegator::resume_run`]).
    ///
    /// `max_concurrent_children` of them run at once; one more waits in line, and its handle says where, or
    /// is refused (`background_overflow`).
    ///
    /// # Errors
    /// Nothing was started, and why.
    pub async fn background(self, origin: impl Serialize) -> Result<Dispatched, StartError> {
        let origin = serde_json::to_string(&origin)
            .map_err(|error| StartError::Unreadable(format!("the origin is not data: {error}")))?;
        let store = self.delegator.store().clone();
        let (run, plan, position) = self.resumable().start_captured(origin)?;
        let (id, control) = (run.id(), run.control());
        run.leave();
        // Its row is there before anybody is told of it: its loop answers once it has asked for that row.
        drop(control.list().await);
        store.written().await;
        Ok(dispatched(&store, id, &plan, position))
    }

    /// Blocking twin of [`Batch::background`].
    ///
    /// # Errors
    /// Nothing was started, and why.
    pub fn background_blocking(self, origin: impl Serialize) -> Result<Dispatched, StartError> {
        block_on(self.background(origin))
    }
}

fn dispatched(store: &Store, run: RunId, plan: &Plan, position: Option<usize>) -> Dispatched {
    let Settings { independent_completions, max_concurrent_children, .. } = plan.settings;
    let unit = |(unit, tasks): (u32, &[u32])| {
        let group = tasks.first().and_then(|task| plan.tasks[*task as usize].group.clone());
        Unit::new(run, unit + 1, group, tasks.to_vec())
    };
    let parts = units(&plan.tasks, independent_completions);
    let all = 0..plan.tasks.len();
    let transcript = |index: usize| {
        let events = || {
            let task = u32::try_from(index).ok()?;
            Some(store.child_dir(run, task)?.join(Log::Events.file_name()))
        };
        plan.live_transcript(index).or_else(events)
    };
    Dispatched {
        status: "dispatched",
        mode: "background",
        delegation_id: run,
        count: plan.tasks.len(),
        goals: plan.tasks.iter().map(|task| task.goal().to_owned()).collect(),
        subagent_ids: all.clone().map(|index| plan.subagent_id(index)).collect(),
        live_transcripts: all.filter_map(transcript).collect(),
        units: if independent_completions {
            (0..).zip(parts.tasks()).map(unit).collect()
        } else {
            Vec::new()
        },
        position,
        note: position.map(|position| {
            format!(
                "{max_concurrent_children} background runs go on (max_concurrent_children); this one is \
                 number {position} in line"
            )
        }),
    }
}

/// There is no report of a run.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WaitError {
    /// No such run, or a store that cannot be read.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// Another process runs it: `delegate wait`, or its control socket, wait for that.
    #[error("run {0} goes on in another process")]
    Elsewhere(RunId),
}

impl Delegator {
    /// What there is to tell of background runs: of this process's own, or of a conversation.
    #[must_use]
    pub fn completions(&self, session: Option<&str>) -> Completions {
        let (store, board) = (self.inner.store.clone(), Arc::clone(&self.inner.board));
        Completions::new(store, board, session.map(str::to_owned))
    }

    /// The report of a run, once it has ended; of one whose process is dead at once. Claims no completion.
    ///
    /// # Errors
    /// [`WaitError`].
    pub async fn wait(&self, run: impl Into<RunId>) -> Result<Report, WaitError> {
        let run = run.into();
        let live = self.inner.live.runs().into_iter().find(|live| live.id == run);
        if let Some(live) = live {
            live.control.ended().await;
        }
        let store = &self.inner.store;
        let record = store.find_run(&run.to_string())?;
        if record.status == "running" {
            return Err(WaitError::Elsewhere(run));
        }
        Ok(Report::stored(store, &record)?)
    }

    /// Blocking twin of [`Delegator::wait`].
    ///
    /// # Errors
    /// As there.
    pub fn wait_blocking(&self, run: impl Into<RunId>) -> Result<Report, WaitError> {
        block_on(self.wait(run))
    }
}

//! [`Completions`]: what a consumer takes between two of its turns. Each completion is claimed by one
//! consumer, of this process or another, and comes again when that one says nothing in time: at least
//! once, not exactly once.

use std::sync::Arc;

use delegate_protocol::{RunId, Status};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde::ser::{SerializeStruct, Serializer};

use super::dispatched::delegation_id;
use crate::report::{Outcome, entry_or_unreadable};
use crate::run::dispatch::Board;
use crate::run::{Notice, block_on};
use crate::store::delivery::{ClaimOver, Delivery, Verdict};
use crate::store::{RunRecord, Store, StoreError, seconds_now};

/// Something to tell whoever dispatched a run.
#[derive(Debug)]
#[must_use = "a completion that is not settled comes again after 300 s"]
pub enum Announced {
    /// A child has failed while its siblings work. Nothing is to be settled.
    Failed(Notice),
    /// A unit has ended.
    Ended(Box<Completion>),
}

/// The completions that exist for one consumer. Made by [`crate::delegator::Delegator::completions`].
///
/// Without a conversation: those of runs that this delegator's process dispatched. With one: those of that
/// conversation, also those that a process left that is dead by now ([`Completion::restored`]).
#[derive(Debug, Clone)]
pub struct Completions {
    store: Store,
    board: Arc<Board>,
    session: Option<String>,
}

impl Completions {
    pub(crate) fn new(store: Store, board: Arc<Board>, session: Option<String>) -> Self {
        Self { store, board, session }
    }

    /// Waits for the next one and claims it. What a dead process left is looked for at the call and each
    /// 30 s. Needs no runtime of the caller; may be dropped while it waits, a completion that was claimed
    /// just then comes again.
    pub async fn next(&self) -> Announced {
        loop {
            // Before the look: what comes in between wakes us.
            let woken = self.board.woken();
            if let Some(found) = self.try_next().await {
                return found;
            }
            woken.await;
        }
    }

    /// The same without waiting for one.
    pub async fn try_next(&self) -> Option<Announced> {
        if let Some(notice) = self.board.take_notice(self.session.as_deref()) {
            return Some(Announced::Failed(notice));
        }
        let claimed = self.store.claim(self.session.clone(), None, seconds_now()).await?;
        Some(Announced::Ended(Box::new(Completion::of(self.store.clone(), claimed))))
    }

    /// A completion of this run: who knows its id needs no other proof.
    pub async fn claim(&self, run: RunId) -> Option<Completion> {
        let claimed = self.store.claim(None, Some(run), seconds_now()).await?;
        Some(Completion::of(self.store.clone(), claimed))
    }

    /// Blocking twin of [`Completions::next`].
    pub fn next_blocking(&self) -> Announced {
        block_on(self.next())
    }

    /// Blocking twin of [`Completions::try_next`].
    pub fn try_next_blocking(&self) -> Option<Announced> {
        block_on(self.try_next())
    }

    /// Blocking twin of [`Completions::claim`].
    #[must_use]
    pub fn claim_blocking(&self, run: RunId) -> Option<Completion> {
        block_on(self.claim(run))
    }

    /// The completions of a run as they stand, settled ones too.
    ///
    /// # Errors
    /// The store cannot be read.
    pub fn standing(&self, run: RunId) -> Result<Vec<Delivery>, StoreError> {
        self.store.reader().deliveries(run)
    }
}

/// A unit that has ended, claimed by this consumer for 300 s. As JSON it is one event `async_delegation`.
///
/// # Caveats
/// One that is dropped without a word is offered again when its time is over, at most 8 times.
#[derive(Debug)]
#[must_use = "a completion that is not settled comes again after 300 s"]
pub struct Completion {
    store: Store,
    delivery: Delivery,
    run: Option<RunRecord>,
}

impl Completion {
    fn of(store: Store, delivery: Delivery) -> Self {
        let run = store.find_run(&delivery.run_id.to_string()).ok();
        Self { store, delivery, run }
    }

    /// The run.
    #[must_use]
    pub const fn run_id(&self) -> RunId {
        self.delivery.run_id
    }

    /// `<run>`, or `<run>-<unit>` of a run with independent completions.
    #[must_use]
    pub fn delegation_id(&self) -> String {
        delegation_id(self.delivery.run_id, self.delivery.unit)
    }

    /// What was captured at dispatch.
    ///
    /// # Errors
    /// It is of another type.
    pub fn origin<T: DeserializeOwned>(&self) -> Result<T, String> {
        serde_json::from_str(&self.delivery.origin).map_err(|error| error.to_string())
    }

    /// The conversation that dispatched it.
    #[must_use]
    pub fn session(&self) -> Option<&str> {
        self.delivery.session.as_deref()
    }

    /// How often it was claimed, this time included.
    #[must_use]
    pub const fn attempt(&self) -> u32 {
        self.delivery.attempts
    }

    /// The process that dispatched it is dead.
    #[must_use]
    pub const fn restored(&self) -> bool {
        self.delivery.restored
    }

    /// For people.
    #[must_use]
    pub fn title(&self) -> &str {
        self.run.as_ref().map_or("", |run| &run.title)
    }

    /// Its results in task order, read one at a time. A task whose parent died first has status `unknown`
    /// and cause `lost`; it was not run again.
    pub fn results(&self) -> impl Iterator<Item = Outcome> + '_ {
        let whole = self.delivery.tasks.is_empty();
        let count = self.run.as_ref().map_or(0, |run| run.tasks);
        let all = (0..if whole { count } else { 0 }).chain(self.delivery.tasks.iter().copied());
        all.map(|task| entry_or_unreadable(&self.store, self.delivery.run_id, task))
    }

    /// Of the unit: `unknown` when its parent died before a child had its outcome, `error` when no child
    /// completed, else `completed`.
    #[must_use]
    pub fn status(&self) -> &'static str {
        let mut statuses = self.results().map(|outcome| outcome.status).peekable();
        let empty = statuses.peek().is_none();
        let (mut completed, mut unknown) = (false, false);
        for status in statuses {
            completed |= status == Status::Completed;
            unknown |= status == Status::Unknown;
        }
        match (unknown, completed || empty) {
            (true, _) => "unknown",
            (false, true) => "completed",
            (false, false) => "error",
        }
    }

    async fn settle(self, verdict: Verdict) -> Result<(), ClaimOver> {
        let Delivery { run_id, unit, attempts, .. } = self.delivery;
        self.store.settle((run_id, unit, attempts), verdict, seconds_now()).await
    }

    /// It is handled, and never comes again.
    ///
    /// # Errors
    /// The claim is over: somebody else has it, or had it.
    pub async fn complete(self) -> Result<(), ClaimOver> {
        self.settle(Verdict::Complete).await
    }

    /// It could not be handled: it comes again, or is dropped after the eighth time.
    ///
    /// # Errors
    /// As [`Completion::complete`].
    pub async fn release(self) -> Result<(), ClaimOver> {
        self.settle(Verdict::Release).await
    }

    /// Not now: it comes again, and this attempt does not count.
    ///
    /// # Errors
    /// As [`Completion::complete`].
    pub async fn defer(self) -> Result<(), ClaimOver> {
        self.settle(Verdict::Defer).await
    }

    /// Nobody is there to whom it could be told. It can still be looked at.
    ///
    /// # Errors
    /// As [`Completion::complete`].
    pub async fn give_up(self, why: impl Into<String>) -> Result<(), ClaimOver> {
        self.settle(Verdict::Drop(why.into())).await
    }

    /// Blocking twin of [`Completion::complete`].
    ///
    /// # Errors
    /// As there.
    pub fn complete_blocking(self) -> Result<(), ClaimOver> {
        block_on(self.complete())
    }

    /// Blocking twin of [`Completion::release`].
    ///
    /// # Errors
    /// As there.
    pub fn release_blocking(self) -> Result<(), ClaimOver> {
        block_on(self.release())
    }

    /// Blocking twin of [`Completion::defer`].
    ///
    /// # Errors
    /// As there.
    pub fn defer_blocking(self) -> Result<(), ClaimOver> {
        block_on(self.defer())
    }

    /// Blocking twin of [`Completion::give_up`].
    ///
    /// # Errors
    /// As there.
    pub fn give_up_blocking(self, why: impl Into<String>) -> Result<(), ClaimOver> {
        block_on(self.give_up(why))
    }
}

/// Results one after the other, each dropped before the next is read.
struct Results<'a>(&'a Completion);

impl Serialize for Results<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.0.results().map(Outcome::into_entry))
    }
}

impl Serialize for Completion {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let origin: serde_json::Value = self.origin().unwrap_or_default();
        let delivery = &self.delivery;
        let mut object = serializer.serialize_struct("Completion", 13)?;
        object.serialize_field("event", "async_delegation")?;
        object.serialize_field("delegation_id", &self.delegation_id())?;
        object.serialize_field("run_id", &delivery.run_id)?;
        object.serialize_field("unit", &delivery.unit)?;
        object.serialize_field("title", self.title())?;
        object.serialize_field("session_key", &delivery.session)?;
        object.serialize_field("origin", &origin)?;
        object.serialize_field("status", self.status())?;
        object.serialize_field("attempt", &delivery.attempts)?;
        object.serialize_field("restored", &delivery.restored)?;
        object.serialize_field("dispatched_at", &delivery.dispatched_at)?;
        object.serialize_field("finished_at", &delivery.finished_at)?;
        object.serialize_field("results", &Results(self))?;
        object.end()
    }
}

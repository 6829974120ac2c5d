//! What handles and the recorder share: outcomes that the disk did not take, and what to tell people.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use delegate_protocol::{Outcome, RunId};

use super::RunRecord;
use super::database::RunRow;
use super::delivery::{ClaimOver, Delivery, OwnerIs, Proof, Verdict};

/// A thing that is told once, however often it happens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[cfg_attr(
    not(target_os = "linux"),
    expect(dead_code, reason = "the ledger is where processes are owned")
)]
pub(crate) enum Trouble {
    /// The place is a network file system.
    Place,
    /// An old file was moved aside.
    Moved,
    /// Outcomes, or runs with them, stay in memory.
    Outcomes,
    /// Bytes of logs are missing.
    Logs,
    /// Processes of earlier owners still run.
    Leftovers,
    /// Something was done about the file of the ledger.
    LedgerMoved,
    /// The ledger is not written.
    Ledger,
}

/// Runs and outcomes that are not on disk. Bounded by the children of this process.
#[derive(Default)]
pub(super) struct Memory {
    runs: HashMap<RunId, RunRow>,
    outcomes: HashMap<RunId, BTreeMap<u32, Outcome>>,
    /// Completions of this process.
    deliveries: BTreeMap<(RunId, u32), Delivery>,
}

/// See the module.
pub(super) struct Shared {
    memory: Mutex<Memory>,
    warnings: Mutex<(HashSet<Trouble>, VecDeque<String>)>,
    durable: AtomicBool,
    /// What was said to be stored is gone.
    misplaced: AtomicBool,
}

impl Shared {
    pub(super) fn new() -> Self {
        Self {
            memory: Mutex::default(),
            warnings: Mutex::default(),
            durable: AtomicBool::new(true),
            misplaced: AtomicBool::new(false),
        }
    }

    pub(super) fn memory(&self) -> MutexGuard<'_, Memory> {
        self.memory.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Queues a warning for people, unless one of this kind was, or one that covers it: a disk that
    /// takes no outcome takes no log either, and is told once.
    pub(super) fn warn(&self, trouble: Trouble, text: impl FnOnce() -> String) {
        self.queue(trouble, || {
            let text = text();
            tracing::warn!(target: "delegate::store", "{text}");
            text
        });
    }

    /// The same for what is in the log already.
    pub(super) fn queue(&self, trouble: Trouble, text: impl FnOnce() -> String) {
        let mut warnings = self.warnings.lock().unwrap_or_else(PoisonError::into_inner);
        let covered = matches!(trouble, Trouble::Logs | Trouble::Ledger)
            && warnings.0.contains(&Trouble::Outcomes);
        if warnings.0.insert(trouble) && !covered {
            warnings.1.push_back(text());
        }
    }

    pub(super) fn take_warning(&self) -> Option<String> {
        self.warnings.lock().unwrap_or_else(PoisonError::into_inner).1.pop_front()
    }

    pub(super) fn is_durable(&self) -> bool {
        self.durable.load(Ordering::Acquire)
    }

    pub(super) fn is_misplaced(&self) -> bool {
        self.misplaced.load(Ordering::Acquire)
    }

    pub(super) fn set_misplaced(&self) {
        self.misplaced.store(true, Ordering::Release);
    }

    /// Keeps an outcome that is not on disk. The first of a child stays.
    pub(super) fn keep(&self, run: RunId, outcome: Outcome) {
        self.durable.store(false, Ordering::Release);
        let mut memory = self.memory();
        memory.outcomes.entry(run).or_default().entry(outcome.task_index).or_insert(outcome);
    }

    pub(super) fn keep_run(&self, row: RunRow) {
        self.durable.store(false, Ordering::Release);
        self.memory().runs.insert(row.id, row);
    }

    pub(super) fn keep_delivery(&self, delivery: Delivery) {
        let key = (delivery.run_id, delivery.unit);
        self.memory().deliveries.insert(key, delivery);
    }
}

impl Memory {
    pub(super) fn delivery_keys(&self) -> HashSet<(RunId, u32)> {
        self.deliveries.keys().copied().collect()
    }

    /// As `Desk::claim`, of what is only here.
    pub(super) fn claim(
        &mut self,
        proof: Proof<'_>,
        wanted: &dyn Fn(&Delivery) -> bool,
        now: f64,
    ) -> Option<Delivery> {
        self.deliveries.values_mut().for_each(|row| row.sweep(OwnerIs::Us, now));
        let row = self
            .deliveries
            .values_mut()
            .find(|row| wanted(row) && row.may_be_claimed(proof, OwnerIs::Us))?;
        row.claim(now);
        Some(row.clone())
    }

    /// Whether it is here.
    pub(super) fn finish(&mut self, key: (RunId, u32), now: f64) -> bool {
        self.deliveries.get_mut(&key).map(|delivery| delivery.finish(now)).is_some()
    }

    /// `None`: it is not here.
    pub(super) fn settle(
        &mut self,
        key: (RunId, u32),
        attempt: u32,
        verdict: Verdict,
        now: f64,
    ) -> Option<Result<(), ClaimOver>> {
        Some(self.deliveries.get_mut(&key)?.settle(attempt, verdict, now))
    }

    pub(super) fn forget_run(&mut self, run: RunId) {
        self.runs.remove(&run);
    }

    pub(super) fn outcome(&self, run: RunId, task_index: u32) -> Option<Outcome> {
        self.outcomes.get(&run)?.get(&task_index).cloned()
    }

    /// How a run ended that is only here.
    pub(super) fn ending(&self, run: RunId) -> Option<String> {
        self.runs.get(&run)?.ending.clone()
    }

    /// Ids that begin with `prefix`.
    pub(super) fn ids(&self, prefix: &str) -> Vec<RunId> {
        let fits = |id: &&RunId| id.to_string().starts_with(prefix);
        self.runs.keys().filter(fits).copied().collect()
    }

    /// Adds what is known here to what the disk says.
    pub(super) fn amend(&self, records: &mut Vec<RunRecord>, prefix: &str) {
        for id in self.ids(prefix) {
            let Some(row) = self.runs.get(&id) else { continue };
            if prefix.is_empty() && row.above.is_some() {
                continue;
            }
            records.retain(|record| record.id != id);
            records.push(RunRecord::from_row(row.clone()));
        }
        for record in records.iter_mut() {
            for outcome in self.outcomes.get(&record.id).into_iter().flat_map(BTreeMap::values) {
                record.count(outcome.status.word(), 1);
            }
        }
        records.sort_by(|a, b| b.started_at.total_cmp(&a.started_at));
    }
}

//! The end of a batch: what is stored of it, who is told, in which order.

use std::time::Duration;

use delegate_protocol::Status;

use super::{Ended, Loop};
use crate::report::{Ending, Report, StoredEnding};
use crate::run::crash::{self, Place};

/// How long the end of a batch waits for its last log lines to be written.
const FLUSH_LIMIT: Duration = Duration::from_secs(5);

/// How long it waits for the rows of its children in the ledger before it looks from time to time.
const LEDGER_LIMIT: Duration = Duration::from_millis(20);

/// How long the end of a batch waits for the ledger, and for what is known of earlier owners.
const RECORDS_LIMIT: Duration = Duration::from_millis(250);

impl Loop {
    /// Both take a few ms from the start of the delegator on, so only the shortest batches wait at all; longer only
    /// while somebody who was left over is being ended.
    async fn settle_records(&self) {
        const STEP: Duration = Duration::from_millis(5);
        let mut waited = Duration::ZERO;
        while waited < RECORDS_LIMIT || self.batch.records.is_cleaning() {
            if self.batch.records.is_settled() {
                return;
            }
            tokio::time::sleep(STEP).await;
            waited += STEP;
        }
    }

    /// What [`Report::stored`] reads back.
    fn stored_ending(&self) -> String {
        let stored = StoredEnding {
            left_running: self.left_running.clone(),
            verified_empty: self.unverified.is_empty() && self.left_running.is_empty(),
            durable: self.durable && !self.batch.store.is_misplaced(),
            warnings: self.unverified.iter().chain(&self.warnings).cloned().collect(),
            launching: self.launching(),
        };
        serde_json::to_string(&stored).unwrap_or_default()
    }

    pub(super) async fn end(mut self) -> Report {
        let all = self.statuses.iter().all(|status| *status == Status::Completed);
        let total = self.clock.now();
        let store = self.batch.store.clone();
        crash::reach(Place::End);
        let word = if all { "completed" } else { "failed" };
        store.end_run_with(self.batch.run, word, total, self.stored_ending());
        crash::reach(Place::EndQueued);
        // Those of a child's batch are flushed, and its troubles told, with the root's.
        let below = self.batch.kin.above.is_some();
        if !below {
            let (flushed, records) = (store.clone(), self.batch.records.clone());
            // The threads for what blocks may all hang in launches.
            let flush = tokio::task::spawn_blocking(move || {
                // Begun first: both are written at the same time.
                records.flush(Duration::ZERO);
                flushed.flush(FLUSH_LIMIT);
                records.flush(LEDGER_LIMIT);
            });
            if tokio::time::timeout(2 * FLUSH_LIMIT, flush).await.is_err() {
                tracing::warn!(target: "delegate::run", "the last lines may be missing");
            }
        }
        crash::reach(Place::Flushed);
        self.batch.outlet.complete();
        self.batch.control.end(Some(Ended {
            all_completed: all,
            verified_empty: self.unverified.is_empty() && self.left_running.is_empty(),
            durable: self.durable && !store.is_misplaced(),
            total: total.as_secs_f64(),
        }));
        crash::reach(Place::Told);
        if let Some(hooks) = self.hooks.take()
            && !hooks.finish().await
        {
            self.warnings.push("a callback of the delegating program does not return".to_owned());
        }
        if !below {
            self.settle_records().await;
            self.batch.records.warn(&store);
        }
        let warnings = std::iter::from_fn(|| if below { None } else { store.take_warning() });
        let launching = self.launching();
        let ending = Ending {
            launching,
            run_id: self.batch.run,
            warnings: self
                .unverified
                .iter()
                .cloned()
                .chain(self.warnings)
                .chain(warnings)
                .collect(),
            statuses: self.statuses,
            verified_empty: self.unverified.is_empty() && self.left_running.is_empty(),
            left_running: self.left_running,
            durable: self.durable && !store.is_misplaced(),
            total_duration: total,
            spent: self.spent,
            descendants: self.descendants,
        };
        Report::new(store, ending)
    }
}

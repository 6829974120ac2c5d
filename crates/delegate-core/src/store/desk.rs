//! Where completions are claimed and settled, runs taken over and forgotten: work that the recorder does
//! with its database, so that two consumers, in one process or in two, never both get the same. Decisions
//! are those of [`super::delivery`]; what the disk does not take is kept in `memory`.

use delegate_protocol::RunId;
use rusqlite::{Row, Transaction, TransactionBehavior, params};

use super::database::{Database, owner_of};
use super::delivery::{ClaimOver, Delivery, MOST_PENDING, OwnerIs, Proof, State, Verdict};
use super::memory::{Shared, Trouble};
use super::owner::Owner;

/// Work for the recorder.
pub(super) type Work = Box<dyn FnOnce(Desk<'_>) + Send>;

/// What the recorder has.
pub(super) struct Desk<'a> {
    pub(super) database: Option<&'a mut Database>,
    pub(super) shared: &'a Shared,
}

const SELECT: &str = "SELECT d.run_id, d.unit, d.tasks, d.origin, d.session, d.state, d.attempts,
        d.claimed_at, d.dispatched_at, d.changed_at, d.finished_at, d.restored, d.why,
        r.owner_pid, r.owner_start, r.owner_boot, r.id IS NULL AS orphan
    FROM deliveries d LEFT JOIN runs r ON r.id = d.run_id";

/// The owner of a row as it is now.
fn owner_is(owner: &Owner) -> OwnerIs {
    if *owner == Owner::this_process() {
        OwnerIs::Us
    } else if owner.is_gone() {
        OwnerIs::Gone
    } else {
        OwnerIs::Alive
    }
}

/// A row of `deliveries`, without its owner.
pub(super) fn delivery_row(row: &Row<'_>) -> rusqlite::Result<Delivery> {
    let wrong = |error: Box<dyn std::error::Error + Send + Sync>| {
        rusqlite::Error::FromSqlConversionFailure(0, rusqlite::types::Type::Text, error)
    };
    let (run_id, tasks): (String, String) = (row.get("run_id")?, row.get("tasks")?);
    let state: String = row.get("state")?;
    let state = State::ALL.into_iter().find(|known| known.word() == state);
    Ok(Delivery {
        run_id: run_id.parse().map_err(|error| wrong(Box::new(error)))?,
        unit: row.get("unit")?,
        tasks: serde_json::from_str(&tasks).map_err(|error| wrong(Box::new(error)))?,
        origin: row.get("origin")?,
        session: row.get("session")?,
        // A word of somebody else is settled for us.
        state: state.unwrap_or(State::Dropped),
        attempts: row.get("attempts")?,
        claimed_at: row.get("claimed_at")?,
        dispatched_at: row.get("dispatched_at")?,
        changed_at: row.get("changed_at")?,
        finished_at: row.get("finished_at")?,
        restored: row.get("restored")?,
        why: row.get("why")?,
    })
}

fn owned_row(row: &Row<'_>) -> rusqlite::Result<(Delivery, OwnerIs)> {
    let orphan: bool = row.get("orphan")?;
    let owner = if orphan { OwnerIs::Gone } else { owner_is(&owner_of(row)?) };
    Ok((delivery_row(row)?, owner))
}

/// Puts a row in, or brings it up to date.
pub(super) fn put(transaction: &Transaction<'_>, delivery: &Delivery) -> rusqlite::Result<()> {
    let mut statement = transaction.prepare_cached(
        "INSERT INTO deliveries (run_id, unit, tasks, origin, session, state, attempts, claimed_at,
             dispatched_at, changed_at, finished_at, restored, why)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13)
         ON CONFLICT (run_id, unit) DO UPDATE SET tasks = excluded.tasks,
             origin = excluded.origin, session = excluded.session, state = excluded.state,
             attempts = excluded.attempts, claimed_at = excluded.claimed_at,
             changed_at = excluded.changed_at, finished_at = excluded.finished_at,
             restored = excluded.restored, why = excluded.why",
    )?;
    let Delivery {
        run_id,
        unit,
        tasks,
        origin,
        session,
        state,
        attempts,
        claimed_at,
        dispatched_at,
        changed_at,
        finished_at,
        restored,
        why,
    } = delivery;
    let tasks = serde_json::to_string(tasks)
        .map_err(|error| rusqlite::Error::ToSqlConversionFailure(Box::new(error)))?;
    statement.execute(params![
        run_id.to_string(),
        unit,
        tasks,
        origin,
        session,
        state.word(),
        attempts,
        claimed_at,
        dispatched_at,
        changed_at,
        finished_at,
        restored,
        why
    ])?;
    Ok(())
}

/// Every row that is not settled, oldest first.
fn open_rows(transaction: &Transaction<'_>) -> rusqlite::Result<Vec<(Delivery, OwnerIs)>> {
    let sql = format!(
        "{SELECT} WHERE d.state IN ('running', 'pending', 'claimed') ORDER BY d.finished_at, d.rowid"
    );
    let mut statement = transaction.prepare_cached(&sql)?;
    statement.query_map([], owned_row)?.collect()
}

fn one_row(
    transaction: &Transaction<'_>,
    run: RunId,
    unit: u32,
) -> rusqlite::Result<Option<Delivery>> {
    use rusqlite::OptionalExtension as _;
    let sql = format!("{SELECT} WHERE d.run_id = ?1 AND d.unit = ?2");
    let mut statement = transaction.prepare_cached(&sql)?;
    statement.query_row(params![run.to_string(), unit], delivery_row).optional()
}

impl Desk<'_> {
    fn write<T>(
        &mut self,
        work: impl Fn(&Transaction<'_>) -> rusqlite::Result<T>,
    ) -> Option<rusqlite::Result<T>> {
        let database = self.database.as_deref_mut()?;
        Some(database.transaction(TransactionBehavior::Immediate, work))
    }

    /// The children of a unit have their outcomes, which were stored before: whether that is on disk too.
    pub(super) fn finish(mut self, mut delivery: Delivery, now: f64) -> bool {
        // Its begin did not find a place on the disk: one place is enough.
        if self.shared.memory().finish((delivery.run_id, delivery.unit), now) {
            return false;
        }
        let template = delivery.clone();
        let written = self.write(|transaction| {
            let mut row = one_row(transaction, template.run_id, template.unit)?
                .unwrap_or_else(|| template.clone());
            row.finish(now);
            put(transaction, &row)
        });
        if let Some(Ok(())) = written {
            return true;
        }
        let reason = written.map_or("there is no database".to_owned(), |failed| {
            failed.err().map(|error| error.to_string()).unwrap_or_default()
        });
        self.shared.warn(Trouble::Outcomes, || {
            format!("completions from now on are kept in memory only: {reason}")
        });
        delivery.finish(now);
        self.shared.keep_delivery(delivery);
        false
    }

    /// Takes one for a consumer, the oldest first; time and deaths are taken in before.
    pub(super) fn claim(
        mut self,
        proof: Proof<'_>,
        run: Option<RunId>,
        now: f64,
    ) -> Option<Delivery> {
        let wanted = |row: &Delivery| run.is_none_or(|run| row.run_id == run);
        if let Some(claimed) = self.shared.memory().claim(proof, &wanted, now) {
            return Some(claimed);
        }
        let kept = self.shared.memory().delivery_keys();
        let found = self.write(|transaction| {
            let mut rows = open_rows(transaction)?;
            rows.retain(|(row, _)| !kept.contains(&(row.run_id, row.unit)));
            let before = rows.clone();
            rows.iter_mut().for_each(|(row, owner)| row.sweep(*owner, now));
            let waiting = rows.iter_mut().filter(|(row, _)| row.state == State::Pending);
            let over = waiting.map(|(row, _)| row).rev().skip(MOST_PENDING);
            over.for_each(|row| row.crowd_out(now));
            let claimed = rows
                .iter_mut()
                .find(|(row, owner)| wanted(row) && row.may_be_claimed(proof, *owner))
                .map(|(row, _)| {
                    row.claim(now);
                    row.clone()
                });
            for ((row, _), (old, _)) in rows.iter().zip(&before) {
                if row != old {
                    put(transaction, row)?;
                }
            }
            Ok(claimed)
        })?;
        match found {
            Ok(claimed) => claimed,
            Err(error) => {
                tracing::warn!(target: "delegate::store", %error, "completions cannot be claimed");
                self.claim_in_memory(proof, &wanted, now)
            }
        }
    }

    /// The disk takes no claim: what this process dispatched is handed on all the same.
    fn claim_in_memory(
        &mut self,
        proof: Proof<'_>,
        wanted: &dyn Fn(&Delivery) -> bool,
        now: f64,
    ) -> Option<Delivery> {
        let database = self.database.as_deref_mut()?;
        let rows = database.transaction(TransactionBehavior::Deferred, open_rows).ok()?;
        // What is here already was offered before.
        let kept = self.shared.memory().delivery_keys();
        let (mut row, _) = rows.into_iter().find(|(row, owner)| {
            !kept.contains(&(row.run_id, row.unit))
                && *owner == OwnerIs::Us
                && wanted(row)
                && row.may_be_claimed(proof, *owner)
        })?;
        row.claim(now);
        self.shared.keep_delivery(row.clone());
        Some(row)
    }

    /// What the consumer of that attempt says.
    pub(super) fn settle(
        mut self,
        (run, unit, attempt): (RunId, u32, u32),
        verdict: &Verdict,
        now: f64,
    ) -> Result<(), ClaimOver> {
        let in_memory = self.shared.memory().settle((run, unit), attempt, verdict.clone(), now);
        if let Some(settled) = in_memory {
            return settled;
        }
        let written = self.write(|transaction| {
            let Some(mut row) = one_row(transaction, run, unit)? else {
                return Ok(Err(ClaimOver("it was pruned".to_owned())));
            };
            let settled = row.settle(attempt, verdict.clone(), now);
            if settled.is_ok() {
                put(transaction, &row)?;
            }
            Ok(settled)
        });
        match written {
            Some(Ok(settled)) => settled,
            Some(Err(error)) => Err(ClaimOver(format!("it cannot be written: {error}"))),
            None => Err(ClaimOver("there is no database".to_owned())),
        }
    }

    /// Makes a run whose owner is gone this process's. `Err`: why not.
    pub(super) fn take_over(mut self, run: RunId) -> Result<(), String> {
        let written = self.write(|transaction| {
            let sql = "SELECT owner_pid, owner_start, owner_boot, status FROM runs WHERE id = ?1";
            let (owner, status) = transaction.query_row(sql, [run.to_string()], |row| {
                Ok((owner_of(row)?, row.get::<_, String>("status")?))
            })?;
            if status == "running" && !owner.is_gone() {
                return Ok(Err(format!("process {} runs it", owner.pid)));
            }
            let Owner { pid, start, boot } = Owner::this_process();
            let start = start.and_then(|start| i64::try_from(start).ok());
            transaction.execute(
                "UPDATE runs SET owner_pid = ?2, owner_start = ?3, owner_boot = ?4,
                     status = 'running', duration_seconds = NULL, ending = NULL,
                     resumed = resumed + 1
                 WHERE id = ?1",
                params![run.to_string(), pid, start, boot],
            )?;
            Ok(Ok(()))
        });
        match written {
            Some(Ok(taken)) => taken,
            Some(Err(error)) => Err(error.to_string()),
            None => Err("there is no database".to_owned()),
        }
    }

    /// Takes these runs out of the database, those apart that live by now, and notes that their folders
    /// are to go. Gives the runs whose folders are.
    pub(super) fn forget(mut self, runs: &[RunId]) -> Result<Vec<RunId>, String> {
        let written = self.write(|transaction| {
            for run in runs {
                let id = run.to_string();
                let sql =
                    "SELECT owner_pid, owner_start, owner_boot, status FROM runs WHERE id = ?1";
                let lives = transaction.query_row(sql, [&id], |row| {
                    let status: String = row.get("status")?;
                    Ok(status == "running" && !owner_of(row)?.is_gone())
                })?;
                if lives {
                    continue;
                }
                for table in ["results", "specs", "deliveries"] {
                    transaction
                        .execute(&format!("DELETE FROM {table} WHERE run_id = ?1"), [&id])?;
                }
                transaction.execute("DELETE FROM runs WHERE id = ?1", [&id])?;
                transaction.execute("INSERT OR IGNORE INTO pruned (run_id) VALUES (?1)", [&id])?;
            }
            let mut statement = transaction.prepare("SELECT run_id FROM pruned")?;
            let ids = statement.query_map([], |row| row.get::<_, String>(0))?;
            let ids = ids.collect::<rusqlite::Result<Vec<_>>>()?;
            Ok(ids.iter().filter_map(|id| id.parse().ok()).collect())
        });
        written.ok_or("there is no database".to_owned())?.map_err(|error| error.to_string())
    }

    /// Their folders are gone. Gives the room in the file back where nobody reads it.
    pub(super) fn forgotten(mut self, runs: &[RunId]) {
        let written = self.write(|transaction| {
            for run in runs {
                transaction.execute("DELETE FROM pruned WHERE run_id = ?1", [run.to_string()])?;
            }
            Ok(())
        });
        if let (Some(Ok(())), Some(database)) = (written, self.database) {
            database.shrink();
        }
    }
}

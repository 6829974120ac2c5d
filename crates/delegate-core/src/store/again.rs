//! Reading what it takes to go on with a run, or to tell of one that nobody ended: its stored tasks, the
//! statuses that it has, how it ended, its completions.

use std::collections::BTreeMap;

use delegate_protocol::{Outcome, RunId, Status};
use rusqlite::{Connection, OptionalExtension, params};

use super::delivery::Delivery;
use super::reader::Reader;
use super::{RunRecord, StoreError, desk, lost, schema};
use crate::plan::kept::Facts;

/// A run as it is stored, without its answers.
#[derive(Debug, Clone)]
pub struct KeptRun {
    /// Its record.
    pub run: RunRecord,
    /// What is known besides the tasks.
    pub facts: Facts,
    /// Its tasks ([`crate::plan::kept::revive`]); `None` for one that was too long.
    pub tasks: Vec<Option<Vec<u8>>>,
    /// Of the tasks that have an outcome.
    pub statuses: BTreeMap<u32, Status>,
}

fn has_background(connection: &Connection) -> rusqlite::Result<bool> {
    Ok(schema::version(connection)? >= schema::WITH_BACKGROUND)
}

impl Reader {
    /// A run with its tasks; `None` when they were not kept.
    ///
    /// # Errors
    /// The database cannot be read.
    pub fn kept(&self, run: RunRecord) -> Result<Option<KeptRun>, StoreError> {
        let id = run.id.to_string();
        let found = self.ask(|connection| {
            if !has_background(connection)? {
                return Ok(None);
            }
            let sql = "SELECT facts FROM runs WHERE id = ?1";
            let facts: Option<Option<String>> =
                connection.query_row(sql, [&id], |row| row.get(0)).optional()?;
            let Some(facts) = facts.flatten() else { return Ok(None) };
            let mut tasks = vec![None; run.tasks as usize];
            let sql = "SELECT task_index, spec FROM specs WHERE run_id = ?1";
            let mut statement = connection.prepare_cached(sql)?;
            let mut rows = statement.query([&id])?;
            while let Some(row) = rows.next()? {
                if let Some(task) = tasks.get_mut(row.get::<_, u32>(0)? as usize) {
                    *task = Some(row.get(1)?);
                }
            }
            Ok(Some((facts, tasks)))
        })?;
        let Some((facts, tasks)) = found.flatten() else { return Ok(None) };
        let facts = serde_json::from_str(&facts)
            .map_err(|error| self.failed("reading the facts of a run in", &error))?;
        let statuses = self.statuses(run.id)?;
        Ok(Some(KeptRun { run, facts, tasks, statuses }))
    }

    /// The tasks of a run that have an outcome, with its status.
    ///
    /// # Errors
    /// The database cannot be read.
    pub fn statuses(&self, run: RunId) -> Result<BTreeMap<u32, Status>, StoreError> {
        let sql = "SELECT task_index, status FROM results WHERE run_id = ?1";
        let found = self.ask(|connection| {
            let mut statement = connection.prepare_cached(sql)?;
            let rows = statement.query_map([run.to_string()], |row| {
                Ok((row.get::<_, u32>(0)?, row.get::<_, String>(1)?))
            })?;
            rows.collect::<rusqlite::Result<Vec<_>>>()
        })?;
        let status = |word: String| {
            // The words are those of JSON.
            serde_json::from_value(serde_json::Value::String(word)).unwrap_or(Status::Unknown)
        };
        Ok(found.into_iter().flatten().map(|(task, word)| (task, status(word))).collect())
    }

    /// The entry of a task: its outcome, or of a run whose parent died what is known without one.
    ///
    /// # Errors
    /// It has none yet, there is no such task, or the database cannot be read.
    pub fn entry(&self, run: &RunRecord, task_index: u32) -> Result<Outcome, StoreError> {
        match self.outcome(run.id, task_index) {
            Err(StoreError::NotFound(_)) if run.status == "unknown" && task_index < run.tasks => {
                let folder = self.child_dir(run.id, task_index);
                Ok(lost::entry(task_index, &run.isolation, folder.as_deref()))
            }
            found => found,
        }
    }

    /// Of a run that has ended: whether it was verified that nothing of it is left, and whether each outcome
    /// is on disk. `None` where that is not known.
    ///
    /// # Errors
    /// The database cannot be read.
    pub fn promises(&self, run: RunId) -> Result<Option<(bool, bool)>, StoreError> {
        let ending = self.ending(run)?.and_then(|text| serde_json::from_str(&text).ok());
        let flag = |ending: &serde_json::Value, key: &str| ending.get(key)?.as_bool();
        Ok(ending.and_then(|it| Some((flag(&it, "verified_empty")?, flag(&it, "durable")?))))
    }

    /// How a run ended, as its loop wrote it (JSON); `None` before its end.
    pub(crate) fn ending(&self, run: RunId) -> Result<Option<String>, StoreError> {
        let sql = "SELECT ending FROM runs WHERE id = ?1";
        let found = self.ask(|connection| {
            if !has_background(connection)? {
                return Ok(None);
            }
            connection.query_row(sql, [run.to_string()], |row| row.get(0)).optional()
        })?;
        Ok(found.flatten().flatten())
    }

    /// The completions of a run, settled ones too.
    ///
    /// # Errors
    /// The database cannot be read.
    pub fn deliveries(&self, run: RunId) -> Result<Vec<Delivery>, StoreError> {
        let sql = "SELECT * FROM deliveries WHERE run_id = ?1 ORDER BY unit";
        let found = self.ask(|connection| {
            if !has_background(connection)? {
                return Ok(Vec::new());
            }
            let mut statement = connection.prepare_cached(sql)?;
            statement.query_map([run.to_string()], desk::delivery_row)?.collect()
        })?;
        Ok(found.unwrap_or_default())
    }

    /// Bytes of the rows of each run, and whether a completion of it is still to be taken.
    pub(super) fn weights(&self) -> Result<BTreeMap<RunId, (u64, bool)>, StoreError> {
        let sql = "SELECT id,
                (SELECT coalesce(sum(length(entry)), 0) FROM results WHERE run_id = id)
                  + (SELECT coalesce(sum(length(spec)), 0) FROM specs WHERE run_id = id),
                EXISTS (SELECT 1 FROM deliveries WHERE run_id = id
                    AND state IN ('pending', 'claimed'))
            FROM runs";
        let found = self.ask(|connection| {
            if !has_background(connection)? {
                return Ok(Vec::new());
            }
            let mut statement = connection.prepare(sql)?;
            let rows = statement.query_map(params![], |row| {
                Ok((row.get::<_, String>(0)?, row.get::<_, i64>(1)?, row.get::<_, bool>(2)?))
            })?;
            rows.collect::<rusqlite::Result<Vec<_>>>()
        })?;
        let one = |(id, bytes, waits): (String, i64, bool)| {
            Some((id.parse().ok()?, (u64::try_from(bytes).unwrap_or_default(), waits)))
        };
        Ok(found.into_iter().flatten().filter_map(one).collect())
    }
}

//! `runs.sqlite`: its schema, how it is opened, and its writes. Only the recorder writes.
//!
//! A file that cannot be used (not a database, damaged, of a newer schema) is moved aside and a
//! fresh one begun: history is worth less than the batch that wants to run now.

use std::fs::{File, OpenOptions, TryLockError};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};

use delegate_protocol::{Outcome, RunId};
use rusqlite::hooks::Wal;
use rusqlite::{Connection, ErrorCode, Row, Transaction, TransactionBehavior, params};

use super::owner::Owner;
use super::types::Begun;
use super::{desk, lineage, place, schema};

/// Name of the file in the state directory.
pub(super) const FILE_NAME: &str = "runs.sqlite";
/// Name of the file that openers lock.
pub(super) const LOCK_NAME: &str = "runs.sqlite.lock";

/// How long a statement waits for another process that writes.
pub(super) const BUSY: Duration = Duration::from_secs(2);
/// How often a transaction is begun anew after [`BUSY`] before it is given up.
const ATTEMPTS: u32 = 5;
/// Bytes that the write-ahead log keeps after a checkpoint: a burst of large answers does not stay.
const WAL_BYTES: i64 = 64 << 20;
/// Bytes that most entries have besides their summary.
const ENTRY: usize = 2048;
/// Pages of the write-ahead log from which on it is copied into the file: SQLite's own number.
const WAL_PAGES: i32 = 1000;

/// A row of `runs`.
#[derive(Debug, Clone)]
pub(super) struct RunRow {
    pub(super) id: RunId,
    pub(super) started_at: f64,
    pub(super) owner: Owner,
    pub(super) title: String,
    pub(super) isolation: String,
    pub(super) tasks: u32,
    pub(super) status: String,
    pub(super) duration_seconds: Option<f64>,
    pub(super) above: Option<(RunId, u32)>,
    pub(super) background: bool,
    pub(super) resumed: u32,
    pub(super) rerun_of: Option<(RunId, Vec<u32>)>,
    /// How it ended, as JSON.
    pub(super) ending: Option<String>,
    /// Written with its begin, and not kept in memory after it.
    pub(super) begun: Option<Arc<Begun>>,
}

/// The owner in a row with these columns.
pub(super) fn owner_of(row: &Row<'_>) -> rusqlite::Result<Owner> {
    let start: Option<i64> = row.get("owner_start")?;
    Ok(Owner {
        pid: row.get("owner_pid")?,
        start: start.and_then(|start| u64::try_from(start).ok()),
        boot: row.get("owner_boot")?,
    })
}

/// The writing connection.
pub(super) struct Database {
    connection: Connection,
    path: PathBuf,
    /// The file at that path when it was opened.
    file: Option<(u64, u64)>,
    /// Pages of the write-ahead log after the last commit.
    wal_pages: Arc<AtomicI32>,
}

/// What opening came to.
pub(super) struct Opened {
    pub(super) database: Option<Database>,
    /// Why there is none, or where the old one went.
    pub(super) remark: Option<String>,
}

enum Refused {
    /// The file is of no use to us.
    Unusable(String),
    /// The place is.
    NoPlace(String),
}

impl Database {
    /// Opens or begins the database in a directory that exists, holding `lock` meanwhile.
    ///
    /// Openers take turns: nobody parks a file that another has just begun. The kernel releases the
    /// lock of one that dies; where a file system has no locks, or its holder is stopped, it goes
    /// without.
    pub(super) fn open(state_dir: &Path, lock: &File) -> Opened {
        let path = state_dir.join(FILE_NAME);
        let locked = take_turn(lock);
        let opened = Self::open_locked(&path);
        if locked {
            // Closing it unlocks it too.
            let _unlocked = lock.unlock();
        }
        opened
    }

    fn open_locked(path: &Path) -> Opened {
        match Self::try_open(path) {
            Ok(database) => Opened { database: Some(database), remark: None },
            Err(Refused::NoPlace(reason)) => Opened::none(reason),
            Err(Refused::Unusable(reason)) => Self::begin_afresh(path, &reason),
        }
    }

    fn begin_afresh(path: &Path, reason: &str) -> Opened {
        let aside = match park(path) {
            Ok(aside) => aside,
            Err(error) => return Opened::none(format!("{reason}; it cannot be moved: {error}")),
        };
        let remark = format!("{reason}; moved to {}, a fresh one is begun", aside.display());
        match Self::try_open(path) {
            Ok(database) => Opened { database: Some(database), remark: Some(remark) },
            Err(Refused::NoPlace(again) | Refused::Unusable(again)) => Opened::none(again),
        }
    }

    fn try_open(path: &Path) -> Result<Self, Refused> {
        let no_place = |reason: &dyn std::fmt::Display| {
            Refused::NoPlace(format!("{}: {reason}", path.display()))
        };
        // Made here, for its mode; the files beside it take theirs from it.
        place::private_file(path, OpenOptions::new().append(true))
            .map_err(|error| no_place(&error))?;
        let mut connection = Connection::open(path).map_err(|error| no_place(&error))?;
        match prepare(&mut connection) {
            Ok(version) if version > schema::VERSION => Err(Refused::Unusable(format!(
                "{} has schema {version}, this program knows {}",
                path.display(),
                schema::VERSION
            ))),
            Ok(_) => {
                let wal_pages = count_wal(&mut connection).map_err(|error| no_place(&error))?;
                let (path, file) = (path.to_owned(), place::file_at(path).ok());
                Ok(Self { connection, path, file, wal_pages })
            }
            Err(error) => Err(match error.sqlite_error_code() {
                Some(
                    ErrorCode::CannotOpen
                    | ErrorCode::ReadOnly
                    | ErrorCode::DiskFull
                    | ErrorCode::SystemIoFailure
                    | ErrorCode::PermissionDenied
                    | ErrorCode::DatabaseBusy
                    | ErrorCode::DatabaseLocked
                    | ErrorCode::OutOfMemory,
                ) => no_place(&error),
                _ => Refused::Unusable(format!("{} is damaged ({error})", path.display())),
            }),
        }
    }

    /// Writes rows and outcomes in one transaction: all of it or nothing. A row that is there is
    /// brought up to date; an outcome that is there stays, so that saying it again changes nothing.
    pub(super) fn write(
        &mut self,
        rows: &[&RunRow],
        outcomes: &[(RunId, &Outcome)],
    ) -> rusqlite::Result<()> {
        let mut attempt = 1;
        loop {
            match self.try_write(rows, outcomes) {
                Err(error) if is_busy(&error) && attempt < ATTEMPTS => attempt += 1,
                result => return result,
            }
        }
    }

    fn try_write(
        &mut self,
        rows: &[&RunRow],
        outcomes: &[(RunId, &Outcome)],
    ) -> rusqlite::Result<()> {
        // Immediate: a deferred one that upgrades from reading fails at once, without waiting.
        let transaction =
            self.connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
        for row in rows {
            upsert_run(&transaction, row)?;
        }
        for (run, outcome) in outcomes {
            insert_outcome(&transaction, *run, outcome)?;
        }
        transaction.commit()
    }

    /// One transaction of somebody else's making, begun again where another process is writing.
    pub(super) fn transaction<T>(
        &mut self,
        behavior: TransactionBehavior,
        work: impl Fn(&Transaction<'_>) -> rusqlite::Result<T>,
    ) -> rusqlite::Result<T> {
        let mut attempt = 1;
        loop {
            let tried = self.connection.transaction_with_behavior(behavior).and_then(|it| {
                let value = work(&it)?;
                it.commit()?;
                Ok(value)
            });
            match tried {
                Err(error) if is_busy(&error) && attempt < ATTEMPTS => attempt += 1,
                result => return result,
            }
        }
    }

    /// Copies the write-ahead log into the file where it has grown. That waits for the disk, so it is done when
    /// nobody waits for an answer any more, and not by the commit that made it grow. Best effort:
    /// whoever reads is not waited for.
    pub(super) fn checkpoint(&self) {
        if self.wal_pages.load(Ordering::Relaxed) < WAL_PAGES {
            return;
        }
        self.wal_pages.store(0, Ordering::Relaxed);
        let done = self.connection.query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |_| Ok(()));
        if let Err(error) = done {
            tracing::debug!(target: "delegate::store", %error, "the write-ahead log keeps its pages");
        }
    }

    /// Gives room back that deleted rows had. Best effort: whoever reads is not waited for.
    pub(super) fn shrink(&self) {
        if let Err(error) = self.connection.execute_batch("VACUUM") {
            tracing::debug!(target: "delegate::store", %error, "the file keeps its size");
        }
    }

    /// Why nobody will find what is written here, if so: the system writes on into a file that has no
    /// name any more, and SQLite does not mind.
    pub(super) fn misplaced(&self) -> Option<String> {
        let opened = self.file?;
        let is_another = match place::file_at(&self.path) {
            Ok(file) => file != opened,
            Err(error) => error.kind() == std::io::ErrorKind::NotFound,
        };
        is_another.then(|| {
            let path = self.path.display();
            format!("{path} was deleted or replaced, and with it what was stored before")
        })
    }

    /// Makes the disk look full at this many pages.
    #[cfg(test)]
    pub(super) fn limit_pages(&self, pages: u32) {
        self.connection.pragma_update(None, "max_page_count", pages).unwrap();
    }
}

/// Waits for the lock, [`BUSY`] at most. The kernel tells nobody when it is free, so it is asked.
fn take_turn(lock: &File) -> bool {
    const PAUSE: Duration = Duration::from_millis(5);
    for _ in 0..BUSY.as_millis() / PAUSE.as_millis() {
        match lock.try_lock() {
            Ok(()) => return true,
            Err(TryLockError::WouldBlock) => std::thread::park_timeout(PAUSE),
            Err(TryLockError::Error(_)) => return false,
        }
    }
    false
}

impl Opened {
    const fn none(reason: String) -> Self {
        Self { database: None, remark: Some(reason) }
    }
}

/// Whether another process holds the lock: trying the parts one by one would only wait again.
pub(super) fn is_busy(error: &rusqlite::Error) -> bool {
    matches!(error.sqlite_error_code(), Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked))
}

/// Settings and schema; hands back the version that the file had, or has now.
fn prepare(connection: &mut Connection) -> rusqlite::Result<i64> {
    connection.busy_timeout(BUSY)?;
    let version = schema::version(connection)?;
    if version > schema::VERSION {
        return Ok(version);
    }
    connection.pragma_update(None, "journal_mode", "WAL")?;
    connection.pragma_update(None, "synchronous", "NORMAL")?;
    connection.pragma_update(None, "journal_size_limit", WAL_BYTES)?;
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    schema::bring_up(&transaction)?;
    lineage::prepare(&transaction)?;
    // Touches the roots of both tables, where damage is most often seen.
    for table in ["runs", "results"] {
        transaction.query_row(&format!("SELECT max(rowid) FROM {table}"), [], |_| Ok(()))?;
    }
    transaction.commit()?;
    Ok(schema::VERSION)
}

/// Has each commit say how long the write-ahead log is, in place of copying it.
fn count_wal(connection: &mut Connection) -> rusqlite::Result<Arc<AtomicI32>> {
    let pages = Arc::<AtomicI32>::default();
    let counted = Arc::clone(&pages);
    connection.wal_hook(Some(move |_: &mut Wal, pages| {
        counted.store(pages, Ordering::Relaxed);
        Ok(())
    }))?;
    Ok(pages)
}

fn upsert_run(transaction: &Transaction<'_>, row: &RunRow) -> rusqlite::Result<()> {
    let RunRow {
        id,
        started_at,
        owner,
        title,
        isolation,
        tasks,
        status,
        duration_seconds,
        background,
        // Counted where it is taken over.
        resumed: _,
        rerun_of,
        ending,
        begun,
        above,
    } = row;
    let begun = begun.as_deref();
    let facts = begun.and_then(|begun| begun.kept.as_ref()).map(|(_, facts)| facts);
    let of = rerun_of.as_ref().map(|(run, _)| run.to_string());
    let of_tasks = rerun_of.as_ref().map(|(_, tasks)| format!("{tasks:?}"));
    let mut statement = transaction.prepare_cached(
        "INSERT INTO runs (id, started_at, owner_pid, owner_start, owner_boot, title, isolation,
             tasks, status, duration_seconds, background, rerun_of, rerun_tasks, facts, ending)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15)
         ON CONFLICT (id) DO UPDATE SET status = excluded.status,
             duration_seconds = excluded.duration_seconds, ending = excluded.ending",
    )?;
    // Ticks since boot fit: 63 bits of them are longer than any uptime.
    let start = owner.start.and_then(|start| i64::try_from(start).ok());
    statement.execute(params![
        id.to_string(),
        started_at,
        owner.pid,
        start,
        owner.boot,
        title,
        isolation,
        tasks,
        status,
        duration_seconds,
        background,
        of,
        of_tasks,
        facts,
        ending
    ])?;
    above.map_or(Ok(()), |above| lineage::put(transaction, *id, above))?;
    begun.map_or(Ok(()), |begun| insert_begun(transaction, *id, begun))
}

/// One task after the other: a long batch is never here as a whole.
fn insert_begun(transaction: &Transaction<'_>, run: RunId, begun: &Begun) -> rusqlite::Result<()> {
    let Begun { kept, deliveries } = begun;
    deliveries.iter().try_for_each(|delivery| desk::put(transaction, delivery))?;
    let Some((plan, _)) = kept else { return Ok(()) };
    let mut statement = transaction.prepare_cached(
        "INSERT OR IGNORE INTO specs (run_id, task_index, spec) VALUES (?1, ?2, ?3)",
    )?;
    let run = run.to_string();
    for (index, _) in (0_u32..).zip(&plan.tasks) {
        if let Some(spec) = plan.kept(index as usize) {
            statement.execute(params![run, index, spec])?;
        }
    }
    Ok(())
}

fn insert_outcome(
    transaction: &Transaction<'_>,
    run: RunId,
    outcome: &Outcome,
) -> rusqlite::Result<()> {
    let entry = entry_of(outcome)
        .map_err(|error| rusqlite::Error::ToSqlConversionFailure(Box::new(error)))?;
    let mut statement = transaction.prepare_cached(
        "INSERT INTO results (run_id, task_index, status, entry) VALUES (?1, ?2, ?3, ?4)
         ON CONFLICT (run_id, task_index) DO NOTHING",
    )?;
    statement.execute(params![
        run.to_string(),
        outcome.task_index,
        outcome.status.word(),
        entry
    ])?;
    Ok(())
}

/// An outcome as JSON. Room for the most of it is made at once: it may be 16 MiB, and growing is copying.
fn entry_of(outcome: &Outcome) -> serde_json::Result<String> {
    let summary = outcome.summary.as_ref().map_or(0, String::len);
    let mut entry = Vec::with_capacity(summary + summary / 16 + ENTRY);
    serde_json::to_writer(&mut entry, outcome)?;
    String::from_utf8(entry).map_err(serde::de::Error::custom)
}

/// Moves a database and the files beside it out of the way.
fn park(path: &Path) -> std::io::Result<PathBuf> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let beside = |base: &Path, suffix: &str| {
        let mut name = base.as_os_str().to_owned();
        name.push(suffix);
        PathBuf::from(name)
    };
    let aside = beside(path, &format!(".corrupt-{}", now.as_millis()));
    for suffix in ["-wal", "-shm"] {
        match std::fs::rename(beside(path, suffix), beside(&aside, suffix)) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
    }
    std::fs::rename(path, &aside)?;
    Ok(aside)
}

//! Reading: a connection of its own that makes no database, so that lists work while another process
//! writes, and in a directory where nothing may be written.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use delegate_protocol::id::{MIN_PREFIX, RUN_ID_LEN};
use delegate_protocol::{Outcome, RunId};
use rusqlite::{Connection, ErrorCode, OpenFlags, OptionalExtension, Row, params};

use super::database::{BUSY, FILE_NAME, RunRow, owner_of};
use super::{RunRecord, StoreError, lineage, schema};

/// Ids that an ambiguous prefix lists.
const SHOWN: usize = 8;

/// Reads runs and results of a state directory. Writes nothing, starts no thread.
///
/// A directory without a database has no runs; one that comes later is seen.
pub struct Reader {
    state_dir: PathBuf,
    /// Opened with the first question that finds a file.
    connection: Mutex<Option<Connection>>,
}

impl fmt::Debug for Reader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reader").field("state_dir", &self.state_dir).finish_non_exhaustive()
    }
}

impl Reader {
    pub(super) fn new(state_dir: &Path) -> Self {
        Self { state_dir: state_dir.to_owned(), connection: Mutex::new(None) }
    }

    /// As [`super::Store::outcome`].
    ///
    /// # Errors
    /// When there is none, or the database cannot be read.
    pub fn outcome(&self, run: RunId, task_index: u32) -> Result<Outcome, StoreError> {
        let sql = "SELECT entry FROM results WHERE run_id = ?1 AND task_index = ?2";
        let entry = self.ask(|connection| {
            let mut statement = connection.prepare_cached(sql)?;
            let one = |row: &Row<'_>| row.get::<_, String>(0);
            statement.query_row(params![run.to_string(), task_index], one).optional()
        })?;
        let entry = entry.flatten().ok_or_else(|| no_outcome(run, task_index))?;
        serde_json::from_str(&entry).map_err(|error| self.failed("reading an entry of", &error))
    }

    /// As [`super::Store::find_run`].
    ///
    /// # Errors
    /// None, or more than one, or the database cannot be read.
    pub fn find_run(&self, text: &str) -> Result<RunRecord, StoreError> {
        find(text, |prefix, limit| self.matching(prefix, limit), |run| self.short_id(run))
    }

    /// Runs, newest first; without those that children have delegated, which their entries name
    /// ([`delegate_protocol::outcome::Subtree`]).
    ///
    /// # Errors
    /// When the database cannot be read.
    pub fn runs(&self, limit: usize) -> Result<Vec<RunRecord>, StoreError> {
        self.matching("", limit)
    }

    /// The shortest unique prefix of a run id (4 at least).
    #[must_use]
    pub fn short_id(&self, run: RunId) -> String {
        shortest(run, |prefix| self.ids(prefix).unwrap_or_default())
    }

    /// Folder of one child, where it is there.
    #[must_use]
    pub fn child_dir(&self, run: RunId, task_index: u32) -> Option<PathBuf> {
        let folder = super::child_folder(&self.state_dir, run, task_index);
        folder.is_dir().then_some(folder)
    }

    /// Two ids at most that begin with `prefix`: enough to know whether it is unique.
    pub(super) fn ids(&self, prefix: &str) -> Result<Vec<RunId>, StoreError> {
        let sql = "SELECT id FROM runs WHERE id >= ?1 AND id < ?1 || '{' LIMIT 2";
        let found = self.ask(|connection| {
            let mut statement = connection.prepare_cached(sql)?;
            statement.query_map([prefix], run_id)?.collect()
        })?;
        Ok(found.unwrap_or_default())
    }

    /// Runs whose id begins with `prefix`, newest first; without a prefix those of programs only.
    pub(super) fn matching(
        &self,
        prefix: &str,
        limit: usize,
    ) -> Result<Vec<RunRecord>, StoreError> {
        // `{` comes just after `z`, the last letter of an id.
        let sql = |and: &str| {
            format!(
                "SELECT * FROM runs WHERE id >= ?1 AND id < ?1 || '{{' {and}
                 ORDER BY started_at DESC, rowid DESC LIMIT ?2"
            )
        };
        let limit = i64::try_from(limit).unwrap_or(i64::MAX);
        let found = self.ask(|connection| {
            let of_root = prefix.is_empty() && lineage::is_there(connection)?;
            let and = if of_root { format!("AND {}", lineage::OF_THE_ROOT) } else { String::new() };
            let mut statement = connection.prepare_cached(&sql(&and))?;
            let has_background = schema::version(connection)? >= schema::WITH_BACKGROUND;
            let row = |row: &Row<'_>| run_row(row, has_background);
            let rows = statement.query_map(params![prefix, limit], row)?;
            rows.map(|row| with_counts(connection, row?)).collect()
        })?;
        Ok(found.unwrap_or_default())
    }

    fn path(&self) -> PathBuf {
        self.state_dir.join(FILE_NAME)
    }

    pub(super) fn failed(&self, what: &'static str, reason: &dyn fmt::Display) -> StoreError {
        StoreError::Io { what, path: self.path(), reason: reason.to_string() }
    }

    fn slot(&self) -> MutexGuard<'_, Option<Connection>> {
        self.connection.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Asks the database; `None` when there is no file.
    pub(super) fn ask<T>(
        &self,
        question: impl FnOnce(&Connection) -> rusqlite::Result<T>,
    ) -> Result<Option<T>, StoreError> {
        let mut slot = self.slot();
        if slot.is_none() {
            let path = self.path();
            if !path.exists() {
                return Ok(None);
            }
            let opened = open(&path).map_err(|error| self.failed("opening", &error))?;
            let version = schema::version(&opened);
            match version.map_err(|error| self.failed("reading", &error))? {
                // Between its making and its first transaction.
                0 => return Ok(None),
                version if version > schema::VERSION => {
                    let reason = format!(
                        "its schema is {version}, this program knows {}: use a newer one",
                        schema::VERSION
                    );
                    return Err(self.failed("reading", &reason));
                }
                _ => {}
            }
            *slot = Some(opened);
        }
        let Some(connection) = slot.as_ref() else { return Ok(None) };
        question(connection).map(Some).map_err(|error| self.failed("reading", &error))
    }
}

/// Opens for questions only, and never makes a database. The file is opened for writing all the
/// same where it may be: a read-only connection that closes last would leave `-wal` and `-shm` behind,
/// this one removes them. Where they cannot even be made (a read-only file system), the database is
/// read as one that nobody changes.
fn open(path: &Path) -> rusqlite::Result<Connection> {
    let flags = OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let usual = Connection::open_with_flags(path, flags | OpenFlags::SQLITE_OPEN_READ_WRITE)?;
    usual.busy_timeout(BUSY)?;
    usual.pragma_update(None, "query_only", true)?;
    let probe = usual.query_row("SELECT count(*) FROM sqlite_schema", [], |_| Ok(()));
    let Err(error) = probe else { return Ok(usual) };
    match error.sqlite_error_code() {
        Some(ErrorCode::CannotOpen | ErrorCode::ReadOnly) => Connection::open_with_flags(
            format!("file:{}?immutable=1", escape(path)),
            flags | OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_URI,
        ),
        _ => Err(error),
    }
}

/// A path as part of an SQLite URI (sqlite.org/uri.html, 3.1).
fn escape(path: &Path) -> String {
    path.to_string_lossy().replace('%', "%25").replace('?', "%3f").replace('#', "%23")
}

fn run_id(row: &Row<'_>) -> rusqlite::Result<RunId> {
    let text: String = row.get("id")?;
    text.parse().map_err(|error| {
        rusqlite::Error::FromSqlConversionFailure(0, rusqlite::types::Type::Text, Box::new(error))
    })
}

/// A file that an older program made has fewer columns, and may be read without being brought up.
fn run_row(row: &Row<'_>, has_background: bool) -> rusqlite::Result<RunRow> {
    let mut found = RunRow {
        id: run_id(row)?,
        started_at: row.get("started_at")?,
        owner: owner_of(row)?,
        title: row.get("title")?,
        isolation: row.get("isolation")?,
        tasks: row.get("tasks")?,
        status: row.get("status")?,
        duration_seconds: row.get("duration_seconds")?,
        above: None,
        background: false,
        resumed: 0,
        rerun_of: None,
        ending: None,
        begun: None,
    };
    if has_background {
        found.background = row.get("background")?;
        found.resumed = row.get("resumed")?;
        let of: Option<String> = row.get("rerun_of")?;
        found.rerun_of = of.and_then(|of| Some((of.parse().ok()?, Vec::new())));
    }
    Ok(found)
}

fn with_counts(connection: &Connection, mut row: RunRow) -> rusqlite::Result<RunRecord> {
    row.above = lineage::of(connection, row.id)?;
    let sql = "SELECT status, count(*) FROM results WHERE run_id = ?1 GROUP BY status";
    let mut record = RunRecord::from_row(row);
    let mut statement = connection.prepare_cached(sql)?;
    let mut counts = statement.query([record.id.to_string()])?;
    while let Some(row) = counts.next()? {
        record.count(&row.get::<_, String>(0)?, row.get(1)?);
    }
    Ok(record.settled())
}

pub(super) fn no_outcome(run: RunId, task_index: u32) -> StoreError {
    StoreError::NotFound(format!("run {run} has no outcome of task {task_index}"))
}

/// What a person means by `text`, from `matching(prefix, limit)`.
pub(super) fn find(
    text: &str,
    matching: impl Fn(&str, usize) -> Result<Vec<RunRecord>, StoreError>,
    short: impl Fn(RunId) -> String,
) -> Result<RunRecord, StoreError> {
    if matches!(text, "latest" | "-") {
        let newest = matching("", 1)?.into_iter().next();
        return newest.ok_or_else(|| StoreError::NotFound("there are no runs yet".into()));
    }
    let prefix = text.to_ascii_lowercase();
    let of_id = |c: char| c.is_ascii_lowercase() || ('2'..='7').contains(&c);
    let length = prefix.len();
    if !(MIN_PREFIX..=RUN_ID_LEN).contains(&length) || !prefix.chars().all(of_id) {
        let shown: String = text.chars().take(64).collect();
        return Err(StoreError::NotFound(format!(
            "`{shown}` is not a run: give {MIN_PREFIX} or more characters of its id, or `latest`"
        )));
    }
    let mut found = matching(&prefix, SHOWN)?;
    match found.len() {
        0 => Err(StoreError::NotFound(format!("no run begins with `{prefix}`"))),
        1 => Ok(found.remove(0)),
        _ => {
            let found = found.into_iter().map(|record| short(record.id)).collect();
            Err(StoreError::Ambiguous { prefix, found })
        }
    }
}

/// The shortest prefix of `run` that no other id has.
pub(super) fn shortest(run: RunId, ids: impl Fn(&str) -> Vec<RunId>) -> String {
    let whole = run.to_string();
    let alone = |length: &usize| ids(&whole[..*length]).iter().all(|id| *id == run);
    let length = (MIN_PREFIX..RUN_ID_LEN).find(alone).unwrap_or(RUN_ID_LEN);
    whole[..length].to_owned()
}

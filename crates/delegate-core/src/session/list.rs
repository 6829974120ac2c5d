//! Sessions of this and other processes, living and past, as their databases tell of them. Reads only; what a dead
//! owner left unfinished is *lost*, which is computed here and stored nowhere.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use delegate_protocol::RunId;
use delegate_protocol::id::MIN_PREFIX;
use rusqlite::{Connection, OpenFlags, OptionalExtension, Row};
use serde::Serialize;

use super::database::{FILE_NAME, SESSIONS, VERSION, natural, version};
use super::outcome::TurnOutcome;
use crate::store::{Owner, StoreError};

/// A session, as lists show it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct SessionRecord {
    /// Its id.
    pub id: RunId,
    /// Its agent.
    pub agent: String,
    /// What it is for.
    pub goal: String,
    /// `thread` or `process`.
    pub isolation: String,
    /// In seconds since 1970.
    pub started_at: f64,
    /// `running`, `ended`, or `lost`: its owner died.
    pub status: &'static str,
    /// Why it ended.
    pub why: Option<String>,
    /// In seconds since 1970.
    pub ended_at: Option<f64>,
    /// Workers that took the place of lost ones.
    pub restarts: u32,
    /// Turns that were begun.
    pub turns: u64,
    /// Those that completed.
    pub completed: u64,
    /// The turn that runs.
    pub turn: Option<u64>,
    /// The run of its latest worker.
    pub run_id: Option<RunId>,
    /// The process that holds it, or held it.
    pub owner_pid: u32,
}

/// A turn, as lists show it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct TurnRecord {
    /// From 1.
    pub number: u64,
    /// What was asked.
    pub prompt: String,
    /// `waiting`, `running`, how it ended, or `lost`: its owner died before its end.
    pub status: String,
    /// In seconds since 1970.
    pub began_at: Option<f64>,
    /// In seconds since 1970.
    pub ended_at: Option<f64>,
    /// The run of the worker that it was given to.
    pub run_id: Option<RunId>,
    /// How it ended.
    pub outcome: Option<TurnOutcome>,
}

/// Sessions of a state directory, newest first. One that cannot be read is left out, and logged.
///
/// # Errors
/// The directory cannot be read.
pub fn sessions(state_dir: &Path) -> Result<Vec<SessionRecord>, StoreError> {
    let folder = state_dir.join(SESSIONS);
    let failed = |error: io::Error| StoreError::Io {
        what: "reading",
        path: folder.clone(),
        reason: error.to_string(),
    };
    let entries = match fs::read_dir(&folder) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(failed(error)),
    };
    let mut found = Vec::new();
    for entry in entries {
        let file = entry.map_err(failed)?.path().join(FILE_NAME);
        match record(&file) {
            Ok(Some(record)) => found.push(record),
            Ok(None) => {}
            Err(error) => {
                tracing::warn!(target: "delegate::session", %error, file = %file.display(), "not readable");
            }
        }
    }
    found.sort_by(|a, b| b.started_at.total_cmp(&a.started_at));
    Ok(found)
}

/// The session that a person means by `text`: a whole id, a unique prefix of 4 or more, `latest` or `-`.
///
/// # Errors
/// None, or more than one.
pub fn find(state_dir: &Path, text: &str) -> Result<SessionRecord, StoreError> {
    let none = || StoreError::NotFound(format!("there is no session `{text}`"));
    let mut all = sessions(state_dir)?;
    if matches!(text, "latest" | "-") {
        return if all.is_empty() { Err(none()) } else { Ok(all.swap_remove(0)) };
    }
    if text.len() < MIN_PREFIX {
        return Err(none());
    }
    all.retain(|session| session.id.to_string().starts_with(text));
    match all.len() {
        0 => Err(none()),
        1 => Ok(all.swap_remove(0)),
        _ => Err(StoreError::Ambiguous {
            prefix: text.to_owned(),
            found: all.iter().take(8).map(|session| session.id.to_string()).collect(),
        }),
    }
}

/// The shortest prefix of an id that no other of these has (4 characters at least).
#[must_use]
pub fn short_id(sessions: &[SessionRecord], id: RunId) -> String {
    let whole = id.to_string();
    let others: Vec<String> =
        sessions.iter().filter(|other| other.id != id).map(|other| other.id.to_string()).collect();
    let fits = |length: &usize| !others.iter().any(|other| other.starts_with(&whole[..*length]));
    let length = (MIN_PREFIX..whole.len()).find(fits).unwrap_or(whole.len());
    whole[..length].to_owned()
}

/// The turns of a session, oldest first.
///
/// # Errors
/// Its database cannot be read.
pub fn turns(state_dir: &Path, session: &SessionRecord) -> Result<Vec<TurnRecord>, StoreError> {
    let file = super::database::file_of(state_dir, session.id);
    let lost = session.status != "running";
    read_turns(&file, lost).map_err(|error| unreadable(&file, &error))
}

/// Forgets sessions that ended longer ago than this; gives their ids. With `dry_run` it gives those that would go.
///
/// # Errors
/// The directory cannot be read, or a session's folder cannot be removed.
pub fn prune(
    state_dir: &Path,
    older_than: Duration,
    now: f64,
    dry_run: bool,
) -> Result<Vec<RunId>, StoreError> {
    let mut gone = Vec::new();
    for session in sessions(state_dir)? {
        let since = session.ended_at.unwrap_or(session.started_at);
        if session.status != "running" && now - since > older_than.as_secs_f64() {
            if dry_run {
                gone.push(session.id);
                continue;
            }
            let folder = state_dir.join(SESSIONS).join(session.id.to_string());
            fs::remove_dir_all(&folder).map_err(|error| StoreError::Io {
                what: "removing",
                path: folder.clone(),
                reason: error.to_string(),
            })?;
            gone.push(session.id);
        }
    }
    Ok(gone)
}

fn unreadable(file: &Path, error: &rusqlite::Error) -> StoreError {
    StoreError::Io { what: "reading", path: file.to_owned(), reason: error.to_string() }
}

/// Opens for reading; `None` for a file of a later program, or none.
fn open(file: &PathBuf) -> rusqlite::Result<Option<Connection>> {
    if !file.exists() {
        return Ok(None);
    }
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(file, flags)?;
    connection.busy_timeout(Duration::from_secs(5))?;
    Ok((version(&connection)? == VERSION).then_some(connection))
}

fn id(text: Option<String>) -> Option<RunId> {
    text?.parse().ok()
}

fn record(file: &PathBuf) -> rusqlite::Result<Option<SessionRecord>> {
    let Some(connection) = open(file)? else { return Ok(None) };
    let head = |row: &Row<'_>| {
        let owner = Owner {
            pid: row.get("owner_pid")?,
            start: row.get::<_, Option<i64>>("owner_start")?.map(natural),
            boot: row.get("owner_boot")?,
        };
        let ended_at: Option<f64> = row.get("ended_at")?;
        let status = match ended_at {
            Some(_) => "ended",
            None if owner.is_gone() => "lost",
            None => "running",
        };
        Ok(SessionRecord {
            id: id(row.get("id")?).unwrap_or(RunId::from_u128(0)),
            agent: row.get("agent")?,
            goal: row.get("goal")?,
            isolation: row.get("isolation")?,
            started_at: row.get("started_at")?,
            status,
            why: row.get("why")?,
            ended_at,
            restarts: row.get("restarts")?,
            turns: 0,
            completed: 0,
            turn: None,
            run_id: None,
            owner_pid: owner.pid,
        })
    };
    let Some(mut session) = connection.query_row("SELECT * FROM session", [], head).optional()?
    else {
        return Ok(None);
    };
    let counts = "SELECT COUNT(began_at), COUNT(CASE status WHEN 'completed' THEN 1 END),
                  MAX(CASE WHEN began_at IS NOT NULL AND ended_at IS NULL THEN number END) FROM turns";
    let counted = |row: &Row<'_>| Ok((row.get(0)?, row.get(1)?, row.get(2)?));
    let (turns, completed, turn): (i64, i64, Option<i64>) =
        connection.query_row(counts, [], counted)?;
    (session.turns, session.completed) = (natural(turns), natural(completed));
    session.turn = turn.map(natural).filter(|_| session.status == "running");
    let run = "SELECT run_id FROM workers ORDER BY number DESC LIMIT 1";
    session.run_id = id(connection.query_row(run, [], |row| row.get(0)).optional()?);
    Ok(Some(session))
}

fn read_turns(file: &PathBuf, over: bool) -> rusqlite::Result<Vec<TurnRecord>> {
    let Some(connection) = open(file)? else { return Ok(Vec::new()) };
    let one = |row: &Row<'_>| {
        let (began_at, ended_at): (Option<f64>, _) = (row.get("began_at")?, row.get("ended_at")?);
        let outcome: Option<String> = row.get("outcome")?;
        let status: Option<String> = row.get("status")?;
        let word = match (began_at, over) {
            (_, true) => "lost",
            (Some(_), false) => "running",
            (None, false) => "waiting",
        };
        Ok(TurnRecord {
            number: natural(row.get("number")?),
            prompt: row.get("prompt")?,
            status: status.unwrap_or_else(|| word.to_owned()),
            began_at,
            ended_at,
            run_id: id(row.get("run_id")?),
            outcome: outcome.and_then(|json| serde_json::from_str(&json).ok()),
        })
    };
    let mut statement = connection.prepare("SELECT * FROM turns ORDER BY number")?;
    statement.query_map([], one)?.collect()
}

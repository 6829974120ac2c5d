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
    /// Prompts that were never begun: the session was over, or it was stopped before their turn.
    pub refused: u64,
    /// The turn that runs.
    pub turn: Option<u64>,
    /// The run of its latest worker.
    pub run_id: Option<RunId>,
    /// The process that holds it, or held it.
    pub owner_pid: u32,
}

impl SessionRecord {
    /// Whether every prompt of one that has ended was asked, and completed.
    #[must_use]
    pub fn all_completed(&self) -> bool {
        let lost = matches!(self.why.as_deref(), Some("gave_up" | "takes_no_turns"));
        self.completed == self.turns && self.refused == 0 && !lost
    }
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

/// A session that cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Damaged {
    /// The name of its folder, which is its id.
    pub id: String,
    /// Its database.
    pub file: PathBuf,
    /// Why it cannot be read.
    pub reason: String,
}

impl std::fmt::Display for Damaged {
    /// With what can be done.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { id, file, reason } = self;
        let (folder, file) = (file.parent().unwrap_or(file).display(), file.display());
        write!(
            f,
            "session {id} cannot be read: {reason}: {file} (if it is damaged, `sqlite3 {file} .recover` shows what is \
             left of it; without the folder {folder} it is forgotten)"
        )
    }
}

/// What a state directory has of sessions.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Seen {
    /// Newest first.
    pub sessions: Vec<SessionRecord>,
    /// By their ids.
    pub damaged: Vec<Damaged>,
}

/// Sessions of a state directory, newest first. One that cannot be read is left out: see [`look`].
///
/// # Errors
/// The directory cannot be read.
pub fn sessions(state_dir: &Path) -> Result<Vec<SessionRecord>, StoreError> {
    look(state_dir).map(|seen| seen.sessions)
}

/// Sessions of a state directory, and those that cannot be read.
///
/// # Errors
/// The directory cannot be read.
pub fn look(state_dir: &Path) -> Result<Seen, StoreError> {
    let folder = state_dir.join(SESSIONS);
    let failed = |error: io::Error| StoreError::Io {
        what: "reading",
        path: folder.clone(),
        reason: error.to_string(),
    };
    let entries = match fs::read_dir(&folder) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Seen::default()),
        Err(error) => return Err(failed(error)),
    };
    let mut found = Seen::default();
    for entry in entries {
        let entry = entry.map_err(failed)?;
        let file = entry.path().join(FILE_NAME);
        match record(&file) {
            Ok(Some(record)) => found.sessions.push(record),
            Ok(None) => {}
            Err(reason) => {
                let id = entry.file_name().to_string_lossy().into_owned();
                found.damaged.push(Damaged { id, file, reason });
            }
        }
    }
    found.sessions.sort_by(|a, b| b.started_at.total_cmp(&a.started_at));
    found.damaged.sort_by(|a, b| a.id.cmp(&b.id));
    Ok(found)
}

/// The session that a person means by `text`: a whole id, a unique prefix of 4 or more, `latest` or `-`.
///
/// # Errors
/// None, more than one, or one that cannot be read.
pub fn find(state_dir: &Path, text: &str) -> Result<SessionRecord, StoreError> {
    let none = || StoreError::NotFound(format!("there is no session `{text}`"));
    let Seen { sessions: mut all, damaged } = look(state_dir)?;
    if matches!(text, "latest" | "-") {
        return if all.is_empty() { Err(none()) } else { Ok(all.swap_remove(0)) };
    }
    if text.len() < MIN_PREFIX {
        return Err(none());
    }
    all.retain(|session| session.id.to_string().starts_with(text));
    let damaged = damaged.into_iter().find(|one| one.id.starts_with(text));
    match all.len() {
        0 => Err(damaged.map_or_else(none, |Damaged { file, reason, .. }| StoreError::Io {
            what: "reading the session in",
            path: file,
            reason,
        })),
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
    let Some(connection) = open(&file).map_err(|error| unreadable(&file, error))? else {
        return Ok(Vec::new());
    };
    turns_in(&connection, lost).map_err(|error| unreadable(&file, error.to_string()))
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

fn unreadable(file: &Path, reason: String) -> StoreError {
    StoreError::Io { what: "reading", path: file.to_owned(), reason }
}

/// Opens for reading; `None` where there is no session: no file, or one in which nothing was written yet.
fn open(file: &Path) -> Result<Option<Connection>, String> {
    if !file.exists() {
        return Ok(None);
    }
    let connection = connect(file).map_err(|error| error.to_string())?;
    match version(&connection).map_err(|error| error.to_string())? {
        0 => Ok(None),
        VERSION => Ok(Some(connection)),
        later => Err(format!("a later version of this program wrote it (schema {later})")),
    }
}

fn connect(file: &Path) -> rusqlite::Result<Connection> {
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(file, flags)?;
    connection.busy_timeout(Duration::from_secs(5))?;
    Ok(connection)
}

fn id(text: Option<String>) -> Option<RunId> {
    text?.parse().ok()
}

fn record(file: &Path) -> Result<Option<SessionRecord>, String> {
    let Some(connection) = open(file)? else { return Ok(None) };
    record_in(&connection).map_err(|error| error.to_string())
}

/// The session of an open database.
pub(super) fn record_in(connection: &Connection) -> rusqlite::Result<Option<SessionRecord>> {
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
            refused: 0,
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
                  COUNT(CASE WHEN began_at IS NULL THEN ended_at END),
                  MAX(CASE WHEN began_at IS NOT NULL AND ended_at IS NULL THEN number END) FROM turns";
    let counted = |row: &Row<'_>| Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?));
    let (turns, completed, refused, turn): (i64, i64, i64, Option<i64>) =
        connection.query_row(counts, [], counted)?;
    (session.turns, session.completed) = (natural(turns), natural(completed));
    session.refused = natural(refused);
    session.turn = turn.map(natural).filter(|_| session.status == "running");
    let run = "SELECT run_id FROM workers ORDER BY number DESC LIMIT 1";
    session.run_id = id(connection.query_row(run, [], |row| row.get(0)).optional()?);
    Ok(Some(session))
}

/// Its turns; `over` says that nobody carries them out any more.
pub(super) fn turns_in(connection: &Connection, over: bool) -> rusqlite::Result<Vec<TurnRecord>> {
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

//! `session.sqlite`: what came of each turn of one session. Written by [`super::drive`] before anybody is told, read
//! by whoever lists sessions, from any process. One file per session, in a folder of its own (0700, 0600).

use std::fs::OpenOptions;
use std::path::{Path, PathBuf};
use std::time::Duration;

use delegate_protocol::turn::{HISTORY_BYTES, HISTORY_TURNS};
use delegate_protocol::{PastTurn, RunId};
use rusqlite::{Connection, OptionalExtension, params};

use super::machine::Why;
use super::outcome::TurnOutcome;
use crate::store::{Owner, private_dir, private_file, seconds_now};

/// Folder under the state directory with a folder per session.
pub(super) const SESSIONS: &str = "sessions";

/// Name of the file in it.
pub(super) const FILE_NAME: &str = "session.sqlite";

/// Version of the schema (`user_version`).
pub(super) const VERSION: i64 = 1;

/// How long a write waits for a reader's lock.
const BUSY: Duration = Duration::from_secs(5);

const SCHEMA: &str = "
    CREATE TABLE session (
        id TEXT NOT NULL,
        agent TEXT NOT NULL,
        goal TEXT NOT NULL,
        isolation TEXT NOT NULL,
        started_at REAL NOT NULL,
        owner_pid INTEGER NOT NULL,
        owner_start INTEGER,
        owner_boot TEXT,
        restarts INTEGER NOT NULL DEFAULT 0,
        why TEXT,
        ended_at REAL
    );
    CREATE TABLE workers (
        number INTEGER PRIMARY KEY,
        run_id TEXT NOT NULL,
        started_at REAL NOT NULL,
        ended_at REAL,
        error TEXT
    );
    CREATE TABLE turns (
        number INTEGER PRIMARY KEY,
        prompt TEXT NOT NULL,
        prompted_at REAL NOT NULL,
        run_id TEXT,
        began_at REAL,
        ended_at REAL,
        status TEXT,
        outcome TEXT
    );
    PRAGMA user_version = 1;
";

/// What a session is recorded with.
#[derive(Debug, Clone)]
pub(super) struct Head {
    pub(super) id: RunId,
    pub(super) agent: String,
    pub(super) goal: String,
    pub(super) isolation: &'static str,
}

/// The writing connection.
#[derive(Debug)]
pub(super) struct Database {
    connection: Connection,
    /// Whether what was written so far is on disk.
    durable: bool,
}

/// The file of one session.
pub(super) fn file_of(state_dir: &Path, id: RunId) -> PathBuf {
    state_dir.join(SESSIONS).join(id.to_string()).join(FILE_NAME)
}

impl Database {
    /// Begins one below `state_dir`; in memory, with a remark, where that cannot be.
    ///
    /// # Errors
    /// Not even there.
    pub(super) fn begin(
        state_dir: Option<&Path>,
        head: &Head,
    ) -> rusqlite::Result<(Self, Option<String>)> {
        let why = match state_dir {
            None => "there is no place for it".to_owned(),
            Some(dir) => {
                let file = file_of(dir, head.id);
                match Self::on_disk(&file, head) {
                    Ok(connection) => return Ok((Self { connection, durable: true }, None)),
                    Err(error) => format!("{}: {error}", file.display()),
                }
            }
        };
        let connection = Connection::open_in_memory()?;
        make(&connection, head)?;
        let remark = format!("the turns of session {} are kept in memory only: {why}", head.id);
        Ok((Self { connection, durable: false }, Some(remark)))
    }

    fn on_disk(file: &Path, head: &Head) -> Result<Connection, Box<dyn std::error::Error>> {
        if let Some(folder) = file.parent() {
            private_dir(folder)?;
        }
        // Made here, for its mode; the files beside it take theirs from it.
        private_file(file, OpenOptions::new().append(true))?;
        let connection = Connection::open(file)?;
        connection.busy_timeout(BUSY)?;
        connection.pragma_update(None, "journal_mode", "WAL")?;
        connection.pragma_update(None, "synchronous", "FULL")?;
        make(&connection, head)?;
        Ok(connection)
    }

    /// For reading.
    pub(super) const fn connection(&self) -> &Connection {
        &self.connection
    }

    /// Whether everything so far is on disk.
    pub(super) const fn is_durable(&self) -> bool {
        self.durable
    }

    fn write(&mut self, sql: &str, values: impl rusqlite::Params) -> rusqlite::Result<()> {
        let written = self.connection.execute(sql, values).map(drop);
        self.durable &= written.is_ok();
        written
    }

    /// A prompt waits in line.
    pub(super) fn prompted(&mut self, number: u64, prompt: &str) -> rusqlite::Result<()> {
        let sql = "INSERT INTO turns (number, prompt, prompted_at) VALUES (?1, ?2, ?3)";
        self.write(sql, params![int(number), prompt, seconds_now()])
    }

    /// It is given to a worker.
    pub(super) fn begun(&mut self, number: u64, run: RunId) -> rusqlite::Result<()> {
        let sql = "UPDATE turns SET run_id = ?2, began_at = ?3 WHERE number = ?1";
        self.write(sql, params![int(number), run.to_string(), seconds_now()])
    }

    /// It was not begun after all.
    pub(super) fn taken_back(&mut self, number: u64) -> rusqlite::Result<()> {
        let sql = "UPDATE turns SET run_id = NULL, began_at = NULL
                   WHERE number = ?1 AND ended_at IS NULL";
        self.write(sql, params![int(number)])
    }

    /// It is over. Said twice it stays as it was.
    pub(super) fn ended(&mut self, outcome: &TurnOutcome) -> rusqlite::Result<()> {
        let json = serde_json::to_string(outcome)
            .map_err(|error| rusqlite::Error::ToSqlConversionFailure(Box::new(error)))?;
        let sql = "UPDATE turns SET status = ?2, outcome = ?3, ended_at = ?4
                   WHERE number = ?1 AND ended_at IS NULL";
        self.write(sql, params![int(outcome.turn), outcome.status.word(), json, seconds_now()])
    }

    /// A worker runs under this run.
    pub(super) fn worker(&mut self, number: u64, run: RunId) -> rusqlite::Result<()> {
        let sql = "INSERT INTO workers (number, run_id, started_at) VALUES (?1, ?2, ?3)";
        self.write(sql, params![int(number), run.to_string(), seconds_now()])
    }

    /// It has left.
    pub(super) fn worker_gone(
        &mut self,
        number: u64,
        error: Option<&str>,
        restarts: u32,
    ) -> rusqlite::Result<()> {
        let sql = "UPDATE workers SET ended_at = ?2, error = ?3 WHERE number = ?1";
        self.write(sql, params![int(number), seconds_now(), error])?;
        self.write("UPDATE session SET restarts = ?1", params![restarts])
    }

    /// The session is over.
    pub(super) fn over(&mut self, why: Why) -> rusqlite::Result<()> {
        let sql = "UPDATE session SET why = ?1, ended_at = ?2";
        self.write(sql, params![why.word(), seconds_now()])
    }

    /// Turns that have ended after this one, oldest first: a piece of them, at least one while there is one.
    pub(super) fn past(&self, after: u64) -> rusqlite::Result<Vec<PastTurn>> {
        let sql = "SELECT number, prompt, outcome FROM turns
                   WHERE number > ?1 AND outcome IS NOT NULL AND began_at IS NOT NULL
                   ORDER BY number LIMIT ?2";
        let mut statement = self.connection.prepare_cached(sql)?;
        let mut rows = statement.query(params![int(after), int(HISTORY_TURNS as u64)])?;
        let (mut turns, mut bytes) = (Vec::new(), 0_usize);
        while let Some(row) = rows.next()? {
            let outcome: String = row.get(2)?;
            let Ok(outcome) = serde_json::from_str::<TurnOutcome>(&outcome) else { continue };
            let turn = PastTurn {
                number: natural(row.get(0)?),
                prompt: row.get(1)?,
                status: outcome.status,
                answer: outcome.answer,
                error: outcome.error,
            };
            bytes += turn.prompt.len() + turn.answer.len();
            if !turns.is_empty() && bytes > HISTORY_BYTES {
                break;
            }
            turns.push(turn);
        }
        Ok(turns)
    }
}

fn make(connection: &Connection, head: &Head) -> rusqlite::Result<()> {
    connection.execute_batch(SCHEMA)?;
    let Owner { pid, start, boot } = Owner::this_process();
    let Head { id, agent, goal, isolation } = head;
    let start = start.map(int);
    let values = params![id.to_string(), agent, goal, isolation, seconds_now(), pid, start, boot];
    let sql = "INSERT INTO session (id, agent, goal, isolation, started_at, owner_pid, owner_start, owner_boot)
               VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)";
    connection.execute(sql, values).map(drop)
}

/// SQLite has numbers with a sign only; no count of ours comes near the half of them.
pub(super) fn int(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

/// And back.
pub(super) fn natural(number: i64) -> u64 {
    u64::try_from(number).unwrap_or_default()
}

/// The version of a file that is read.
pub(super) fn version(connection: &Connection) -> rusqlite::Result<i64> {
    connection
        .query_row("PRAGMA user_version", [], |row| row.get(0))
        .optional()
        .map(Option::unwrap_or_default)
}

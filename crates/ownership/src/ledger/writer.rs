//! The thread that writes ("ownership-ledger"), and what it shares with those who tell it things.
//!
//! Nothing is written by anybody else while it lives, so nobody but it ever waits for another process's
//! transaction. Many rows go into one transaction. What fails is tried again, with growing pauses, and nobody
//! waits meanwhile.

use std::path::PathBuf;
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rusqlite::hooks::Wal;
use rusqlite::{Connection, ErrorCode, TransactionBehavior};

use super::database::{self, Event};
use super::pending::{Due, MAX_ENDED, Pending};
use super::place::{self, Opened};
use super::row::now_ms;
use crate::identity::Identity;

/// Most rows in one transaction: about a quarter of a MiB, written in a few ms.
const BATCH: usize = 512;
/// Pauses after a failure: from this, doubled, to that.
const SHORTEST: Duration = Duration::from_millis(20);
const LONGEST: Duration = Duration::from_secs(1);
/// Pages (4 KiB) of the log, of all writers, at which it is taken into the file when nobody waits, and whether or not somebody
/// does: a process that opens after a crash reads the log whole.
const CHECKPOINT_IDLE: i32 = 1_000;
const CHECKPOINT_BUSY: i32 = 8_000;
/// Ended rows, and events, that are kept: some 30 MiB.
const KEEP: i64 = 50_000;
/// Most rows that are dropped at once, so that the lock is held for a few ms.
const PRUNE: i64 = 2_000;
/// Most remarks that are kept for [`super::Ledger::remarks`].
const REMARKS: usize = 16;

pub(super) struct Shared {
    state: Mutex<State>,
    work: Condvar,
    told: Condvar,
}

pub(super) struct State {
    pub(super) pending: Pending,
    /// Why the last attempt failed.
    pub(super) failing: Option<String>,
    pub(super) remarks: Vec<String>,
    /// The file that is written.
    pub(super) path: PathBuf,
    opened: bool,
    closing: bool,
    done: bool,
}

impl Shared {
    pub(super) fn new(path: PathBuf) -> Self {
        let state = State {
            pending: Pending::new(MAX_ENDED),
            failing: None,
            remarks: Vec::new(),
            path,
            opened: false,
            closing: false,
            done: false,
        };
        Self { state: Mutex::new(state), work: Condvar::new(), told: Condvar::new() }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Something is to be written.
    pub(super) fn tell(&self, change: impl FnOnce(&mut Pending)) {
        change(&mut self.lock().pending);
        self.work.notify_one();
    }

    /// Waits until `fact` holds, at most `limit`. Says whether it does.
    pub(super) fn wait(&self, limit: Duration, mut fact: impl FnMut(&State) -> bool) -> bool {
        let waited =
            self.told.wait_timeout_while(self.lock(), limit, |state| !fact(state) && !state.done);
        let (state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        fact(&state)
    }

    pub(super) fn wait_opened(&self, limit: Duration) {
        self.wait(limit, |state| state.opened);
    }

    /// No more is coming: the writer is to finish. Waits for it, at most `limit`.
    pub(super) fn close(&self, limit: Duration) {
        self.lock().closing = true;
        self.work.notify_one();
        self.wait(limit, |state| state.done);
    }

    /// There is no writer (any more).
    pub(super) fn is_over(&self, why: Option<String>) {
        let mut state = self.lock();
        state.done = true;
        state.failing = why.or(state.failing.take());
        self.told.notify_all();
    }

    /// The next rows to write; `None` when all is written and no more comes.
    fn next(&self) -> Option<Vec<Due>> {
        let idle = |state: &mut State| state.pending.is_empty() && !state.closing;
        let state = self.work.wait_while(self.lock(), idle).unwrap_or_else(PoisonError::into_inner);
        let batch = state.pending.due(BATCH);
        (!batch.is_empty()).then_some(batch)
    }

    fn succeeded(&self, batch: &[Due]) {
        let mut state = self.lock();
        state.pending.written(batch);
        if state.failing.take().is_some() {
            tracing::info!("the ledger is written again");
        }
        self.told.notify_all();
    }

    /// Says what failed, and pauses. `false` when it is to be given up.
    fn failed(&self, why: String, pause: Duration) -> bool {
        let mut state = self.lock();
        if state.failing.is_none() {
            tracing::warn!(why, "the ledger cannot be written; rows wait in memory");
        }
        state.failing = Some(why);
        self.told.notify_all();
        let paused = self.work.wait_timeout_while(state, pause, |state| !state.closing);
        let (state, _) = paused.unwrap_or_else(PoisonError::into_inner);
        !state.closing
    }

    fn remark(&self, remark: &str) {
        tracing::warn!(remark, "ledger");
        let mut state = self.lock();
        if state.remarks.len() < REMARKS {
            state.remarks.push(remark.to_owned());
        }
    }
}

pub(super) struct Writer {
    shared: Arc<Shared>,
    path: PathBuf,
    owner: Identity,
    file: Option<Opened>,
    /// Its folder was there: one that somebody has deleted since is not made anew.
    made: bool,
    /// A write found damage: the next opening checks every page.
    suspect: bool,
    /// Pages in the log after the last commit.
    log: Arc<AtomicI32>,
}

impl Writer {
    pub(super) fn new(shared: Arc<Shared>, path: PathBuf, owner: Identity) -> Self {
        // Where it cannot be made now, the opening says why, and may make it later.
        let made = place::make_folder(place::folder_of(&path)).is_ok();
        Self { shared, path, owner, file: None, made, suspect: false, log: Arc::default() }
    }

    pub(super) fn run(mut self) {
        let mut pause = SHORTEST;
        if let Err(why) = self.open() {
            // Said, so that nobody waits; the first row tries again.
            self.shared.failed(why, Duration::ZERO);
        }
        self.shared.lock().opened = true;
        self.shared.told.notify_all();
        while let Some(mut batch) = self.shared.next() {
            match self.write(&mut batch) {
                Ok(()) => {
                    pause = SHORTEST;
                    self.shared.succeeded(&batch);
                    self.tidy_up();
                }
                Err(why) => {
                    if !self.shared.failed(why, pause) {
                        tracing::warn!("the ledger ends with rows that could not be written");
                        break;
                    }
                    pause = LONGEST.min(pause * 2);
                }
            }
        }
        drop(self.file.take());
        self.shared.is_over(None);
    }

    /// Opens the file that has the name now, if that is not the one that is open.
    fn open(&mut self) -> Result<(), String> {
        let is_current = |file: &Opened| place::identity_of(&file.path) == Some(file.file);
        if self.file.as_ref().is_some_and(is_current) {
            return Ok(());
        }
        let was_open = self.file.take().is_some();
        let mut opened = place::open(&self.path, self.suspect, self.made)?;
        self.made = true;
        let log = Arc::clone(&self.log);
        let count = move |_: &mut Wal, pages| {
            log.store(pages, Ordering::Relaxed);
            Ok(())
        };
        opened.connection.wal_hook(Some(count)).map_err(|error| error.to_string())?;
        self.suspect = false;
        let mut state = self.shared.lock();
        state.path.clone_from(&opened.path);
        // What the other file knew of the living is not in this one.
        state.pending.all_again();
        drop(state);
        if let Some(remark) = &opened.remark {
            self.shared.remark(remark);
        } else if was_open {
            self.shared.remark("the file was replaced; the living are written again");
        }
        self.file = Some(opened);
        self.say_remark();
        Ok(())
    }

    /// Puts the remark of the opening into the file too. Where that fails it stands in the log.
    fn say_remark(&mut self) {
        let Some(Opened { connection, remark: Some(remark), .. }) = &self.file else { return };
        if let Err(error) = say(connection, "opened", remark) {
            tracing::debug!(%error, "remark not written");
        }
    }

    fn write(&mut self, batch: &mut [Due]) -> Result<(), String> {
        for due in &mut *batch {
            if let Some(seen) = due.seen.take() {
                use std::os::fd::AsFd;
                let identity = Identity::of(seen.pid, seen.pidfd.as_fd());
                self.shared.lock().pending.identified(due.row.spawn, identity.clone());
                due.row.identity = Some(identity);
            }
        }
        self.open()?;
        let given_up = self.shared.lock().pending.take_given_up();
        if given_up > 0 {
            self.shared.remark(&format!("{given_up} ended rows were given up: too many waited"));
        }
        let Some(file) = &mut self.file else { return Err("no file".into()) };
        match write_rows(&mut file.connection, &self.owner, batch, given_up) {
            // What a file got that is not the ledger any more is to be written again.
            Ok(()) if place::identity_of(&file.path) != Some(file.file) => {
                Err(format!("{} was replaced", file.path.display()))
            }
            Ok(()) => Ok(()),
            Err(error) => {
                let why = format!("{}: {error}", file.path.display());
                self.suspect = place::is_damage(&error);
                let waits =
                    [ErrorCode::DatabaseBusy, ErrorCode::DatabaseLocked, ErrorCode::DiskFull];
                if !error.sqlite_error_code().is_some_and(|code| waits.contains(&code)) {
                    self.file = None;
                }
                Err(why)
            }
        }
    }

    /// What takes an `fsync` or more than a moment, when nobody waits: takes the log into the file, drops the
    /// oldest history. Where it fails it is done later.
    fn tidy_up(&mut self) {
        let idle = self.shared.lock().pending.is_empty();
        let due = if idle { CHECKPOINT_IDLE } else { CHECKPOINT_BUSY };
        let Some(file) = self.file.as_mut().filter(|_| self.log.load(Ordering::Relaxed) >= due)
        else {
            return;
        };
        self.log.store(0, Ordering::Relaxed);
        if let Err(error) = prune(&file.connection).and_then(|()| checkpoint(&file.connection)) {
            tracing::debug!(%error, "not tidied up");
        }
    }
}

fn write_rows(
    connection: &mut Connection,
    owner: &Identity,
    batch: &[Due],
    given_up: u64,
) -> rusqlite::Result<()> {
    // Immediate: one that begins by reading cannot wait for its turn later.
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    let owner = database::owner_id(&transaction, owner)?;
    for due in batch {
        database::upsert(&transaction, owner, &due.row)?;
    }
    if given_up > 0 {
        say(&transaction, "given up", &format!("{given_up} ended rows"))?;
    }
    transaction.commit()
}

fn say(connection: &Connection, what: &str, detail: &str) -> rusqlite::Result<()> {
    let (owner, spawn, pid) = (None, None, None);
    database::note(
        connection,
        &Event { owner, at: now_ms(), who: "ledger", what, spawn, pid, detail },
    )
}

fn prune(connection: &Connection) -> rusqlite::Result<()> {
    for (table, condition) in [("children", "state = 'ended'"), ("events", "1")] {
        let sql = format!(
            "DELETE FROM {table} WHERE id IN (SELECT id FROM {table} WHERE {condition}
                 AND id < (SELECT max(id) FROM {table}) - ?1 ORDER BY id LIMIT ?2)"
        );
        connection.execute(&sql, [KEEP, PRUNE])?;
    }
    Ok(())
}

fn checkpoint(connection: &Connection) -> rusqlite::Result<()> {
    // Passive: holds up nobody who writes or reads.
    connection.query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |_| Ok(()))
}

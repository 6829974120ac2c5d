//! The thread that writes ("ownership-ledger"), and what it shares with those who tell it things.
//!
//! Nothing is written by anybody else while it lives, so nobody but it ever waits for another process's
//! transaction. Many rows go into one transaction. What fails is tried again, with growing pauses, and nobody
//! waits meanwhile.

use std::os::fd::AsFd;
use std::path::PathBuf;
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rusqlite::hooks::Wal;
use rusqlite::{Connection, ErrorCode, TransactionBehavior};

use super::database::{self, Event};
use super::pending::{Due, MAX_ENDED, Pending, Seen};
use super::place::{self, Opened};
use super::row::now_ms;
use crate::identity::Identity;

/// Most rows in one transaction: about a quarter of a MiB, written in a few ms.
const BATCH: usize = 512;
/// Rows that nobody waits for are gathered for this long: the ends of a child, and the start of the next one, then are one
/// transaction. What an owner that dies meanwhile had not written stands in the journal of its guards.
const GATHER: Duration = Duration::from_millis(5);
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
    /// [`GATHER`], but in tests.
    gather: Duration,
}

pub(super) struct State {
    pub(super) pending: Pending,
    /// Why the last attempt failed.
    pub(super) failing: Option<String>,
    pub(super) remarks: Vec<String>,
    /// The file that is written.
    pub(super) path: PathBuf,
    /// What waits is to be written now.
    urgent: bool,
    opened: bool,
    closing: bool,
    done: bool,
}

impl Shared {
    pub(super) fn new(path: PathBuf) -> Self {
        Self::gathering(path, GATHER)
    }

    fn gathering(path: PathBuf, gather: Duration) -> Self {
        let state = State {
            pending: Pending::new(MAX_ENDED),
            failing: None,
            remarks: Vec::new(),
            path,
            urgent: false,
            opened: false,
            closing: false,
            done: false,
        };
        Self { state: Mutex::new(state), work: Condvar::new(), told: Condvar::new(), gather }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Something is to be written, at once.
    pub(super) fn tell(&self, change: impl FnOnce(&mut Pending)) {
        let mut state = self.lock();
        change(&mut state.pending);
        state.urgent = true;
        drop(state);
        self.work.notify_one();
    }

    /// Something is to be written with what comes next, [`GATHER`] later at most.
    pub(super) fn tell_soon(&self, change: impl FnOnce(&mut Pending)) {
        let mut state = self.lock();
        let first = state.pending.is_empty();
        change(&mut state.pending);
        drop(state);
        // It gathers from then on.
        if first {
            self.work.notify_one();
        }
    }

    /// Who was started is to be looked at now, and to be written as by [`Self::tell_soon`].
    pub(super) fn tell_seen(&self, change: impl FnOnce(&mut Pending)) {
        change(&mut self.lock().pending);
        self.work.notify_one();
    }

    /// Waits until `fact` holds, at most `limit`. Says whether it does. Nothing is gathered meanwhile.
    pub(super) fn wait(&self, limit: Duration, mut fact: impl FnMut(&State) -> bool) -> bool {
        let mut state = self.lock();
        if !fact(&state) {
            state.urgent = true;
            self.work.notify_one();
        }
        let waited =
            self.told.wait_timeout_while(state, limit, |state| !fact(state) && !state.done);
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

    /// The next rows to write; `None` when all is written and no more comes. Who was started is looked at as soon as it
    /// is told.
    fn next(&self) -> Option<Vec<Due>> {
        let mut state = self.lock();
        let mut gathered = false;
        loop {
            let seen = state.pending.take_seen();
            if !seen.is_empty() {
                drop(state);
                let who = |seen: &Seen| Identity::of(seen.pid, seen.pidfd.as_fd());
                let known: Vec<_> = seen.iter().map(|(spawn, seen)| (*spawn, who(seen))).collect();
                state = self.lock();
                known.into_iter().for_each(|(spawn, who)| state.pending.identified(spawn, who));
                continue;
            }
            let nothing = state.pending.is_empty();
            if state.closing || !nothing && (state.urgent || gathered) {
                break;
            }
            (state, gathered) = if nothing {
                (self.work.wait(state).unwrap_or_else(PoisonError::into_inner), false)
            } else {
                let waited = self.work.wait_timeout(state, self.gather);
                let (state, waited) = waited.unwrap_or_else(PoisonError::into_inner);
                (state, waited.timed_out())
            };
        }
        let batch = state.pending.due(BATCH);
        // What it has no room for has waited long enough.
        state.urgent = batch.len() == BATCH;
        (!batch.is_empty()).then_some(batch)
    }

    fn succeeded(&self, batch: &[Due]) {
        let mut state = self.lock();
        state.pending.written(batch);
        // Whoever waits for something waits for nothing that comes later.
        state.urgent &= !state.pending.is_empty();
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
        while let Some(batch) = self.shared.next() {
            match self.write(&batch) {
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

    fn write(&mut self, batch: &[Due]) -> Result<(), String> {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exit::ExitStatus;
    use crate::ledger::row::Row;
    use crate::ledger::{EndedBy, Intent};

    /// Who was started, and the ends of a child, wait for each other, however long that is, until somebody waits.
    #[test]
    fn what_nobody_waits_for_is_one_transaction() {
        let hour = Duration::from_secs(3600);
        let shared = Arc::new(Shared::gathering(PathBuf::new(), hour));
        let (batches, batch) = std::sync::mpsc::channel();
        let (write, written) = std::sync::mpsc::channel();
        let writer = std::thread::spawn({
            let shared = Arc::clone(&shared);
            move || {
                while let Some(due) = shared.next() {
                    batches.send(due.clone()).expect("the test listens");
                    written.recv().expect("and says when it is written");
                    shared.succeeded(&due);
                }
            }
        });
        let next = || batch.recv_timeout(Duration::from_secs(30)).expect("it is due");
        let all = || shared.wait(Duration::from_secs(30), |state| state.pending.is_empty());
        let row = Row::of(Intent::new(1, "true".as_ref(), &["true".into()]), &Identity::own(), 1);
        shared.tell(|pending| _ = pending.insert(row));
        assert_eq!(next().len(), 1, "an intent is waited for");
        std::thread::scope(|scope| {
            let waits = scope.spawn(all);
            // Only then is it on disk: the wait was for that, and for nothing that comes later.
            while !shared.lock().urgent {
                std::thread::yield_now();
            }
            write.send(()).expect("the writer");
            assert!(waits.join().expect("written"));
        });
        let handle = std::fs::File::open("/dev/null").expect("null").into();
        let seen = Seen { pid: std::process::id(), pidfd: Arc::new(handle) };
        shared.tell_seen(|pending| pending.seen(1, seen));
        shared.tell_soon(|pending| pending.change(1, |row| row.exit = Some(ExitStatus::Code(0))));
        let end = |row: &mut Row| row.finish(None, EndedBy::Itself, "", 2);
        shared.tell_soon(|pending| pending.change(1, end));
        assert!(batch.recv_timeout(Duration::from_millis(50)).is_err(), "nobody waits");
        write.send(()).expect("the writer");
        assert!(all());
        let rows = next();
        assert_eq!(rows.len(), 1);
        assert!(rows[0].row.end.is_some() && rows[0].row.identity.is_some());
        shared.lock().closing = true;
        shared.work.notify_one();
        writer.join().expect("the writer");
        assert!(batch.try_recv().is_err(), "nothing was written twice");
    }
}

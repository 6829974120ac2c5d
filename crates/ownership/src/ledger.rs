//! What was started, by whom, what became of it and who ended it: in SQLite, for people and for the janitor.
//!
//! The owner's side writes it on a thread of its own (`writer`), merged per child (`pending`); keeper and
//! supervisor, which have no SQLite, write [`crate::journal`]s, which `fold` takes in when their owner is dead.
//! `place` and `schema` open the file, `database` turns rows into SQL, `account` reads it for others, `redact` keeps secrets out of it and
//! `evidence` says whether a row still holds. Why it is so: `docs/design/ledger.md`.

mod account;
mod database;
mod evidence;
mod fold;
mod pending;
mod place;
mod redact;
mod review;
mod row;
mod schema;
mod writer;

use std::collections::HashMap;
use std::ffi::OsString;
use std::fmt;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rusqlite::{Connection, OpenFlags};

use self::database::Which;
use self::fold::Settled;
use self::pending::{Pending, Seen};
use self::row::now_ms;
use self::schema::Found;
use self::writer::{Shared, Writer};
use crate::exit::{ExitStatus, Released};
use crate::file_size;
use crate::identity::{self, Identity};
use crate::number;
use crate::sys::Pid;

pub use self::account::{Account, Act, Kill, account, kills, unreadable};
pub(crate) use self::account::{Deed, say, settle};
pub(crate) use self::evidence::inode_of;
pub use self::evidence::{Evidence, Standing, standing};
pub use self::redact::redact;
pub use self::review::{Leftover, Review};
pub(crate) use self::row::now_ms as unix_now;

/// A row as it is before anything is started.
#[cfg(test)]
pub(crate) fn row_of(intent: Intent, owner: &Identity) -> Row {
    Row::of(intent, owner, 0)
}
pub use self::row::{End, EndedBy, Intent, Policy, Row, State};

/// How long a spawn waits for its intent to be on disk.
pub const PATIENCE: Duration = Duration::from_secs(2);

/// A number for a child that this process is about to start. Not used twice by a process, nor by the
/// program that it executes in its place.
#[must_use]
pub fn next_spawn() -> u64 {
    number::next_spawn()
}

/// An open ledger. Open it once in a process, and share it.
///
/// Nothing here waits for the disk but [`Ticket::wait`], the readers, [`Ledger::fold`] and dropping it (2 s at
/// most).
pub struct Ledger {
    shared: Arc<Shared>,
    path: PathBuf,
    owner: Identity,
    /// A copy of the process by fork has the file but not the writer.
    process: Pid,
}

impl fmt::Debug for Ledger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ledger").field("path", &self.path).finish_non_exhaustive()
    }
}

impl Drop for Ledger {
    fn drop(&mut self) {
        if self.is_ours() {
            self.shared.close(PATIENCE);
        }
    }
}

impl Ledger {
    /// Opens the ledger at `path`, or begins one (0600, in a directory that is made 0700). Waits for that 2 s at
    /// most.
    ///
    /// It never fails: a file that is damaged or of something else is moved aside ([`Ledger::remarks`] says where),
    /// one of a newer program is left alone and another one is used beside it, and what cannot be written is
    /// kept in memory and tried again ([`Ledger::trouble`] says why).
    #[must_use]
    pub fn open(path: impl Into<PathBuf>) -> Self {
        let ledger = Self::begin(path);
        ledger.shared.wait_opened(PATIENCE);
        ledger
    }

    /// As [`Ledger::open`], and waits for nothing but its folder: the first intent waits for the file too.
    #[must_use]
    pub fn begin(path: impl Into<PathBuf>) -> Self {
        let (path, owner) = (path.into(), Identity::own());
        let shared = Arc::new(Shared::new(path.clone()));
        let writer = Writer::new(Arc::clone(&shared), path.clone(), owner.clone());
        let thread = std::thread::Builder::new().name("ownership-ledger".into());
        if let Err(error) = thread.spawn(move || {
            file_size::limit_is_an_error();
            writer.run();
        }) {
            shared.is_over(Some(format!("no thread for the ledger: {error}")));
        }
        Self { shared, path, owner, process: identity::own_pid() }
    }

    /// Who writes here: this process.
    #[must_use]
    pub fn owner(&self) -> &Identity {
        &self.owner
    }

    /// The file that is written. Not what [`Ledger::open`] was given when that is a newer program's.
    #[must_use]
    pub fn path(&self) -> PathBuf {
        self.shared.lock().path.clone()
    }

    /// What people should know about the file, such as where a damaged one went. The newest of many are left out.
    #[must_use]
    pub fn remarks(&self) -> Vec<String> {
        self.shared.lock().remarks.clone()
    }

    /// Why rows wait in memory; `None` while they are written.
    #[must_use]
    pub fn trouble(&self) -> Option<String> {
        self.shared.lock().failing.clone()
    }

    fn is_ours(&self) -> bool {
        identity::own_pid() == self.process
    }

    fn tell(&self, change: impl FnOnce(&mut Pending)) {
        if self.is_ours() {
            self.shared.tell(change);
        }
    }

    /// What happened to a child that has ended, or is about to: nobody waits for it.
    fn tell_soon(&self, change: impl FnOnce(&mut Pending)) {
        if self.is_ours() {
            self.shared.tell_soon(change);
        }
    }

    /// Something is about to be started.
    pub fn intent(&self, intent: Intent) -> Ticket {
        let row = Row::of(intent, &self.owner, now_ms());
        let mut place = None;
        self.tell(|pending| place = Some(pending.insert(row)));
        Ticket { shared: Arc::clone(&self.shared), place }
    }

    /// It was started. Who it is is read on the ledger's thread.
    pub fn started(&self, spawn: u64, pid: u32, pidfd: Arc<OwnedFd>) {
        if self.is_ours() {
            self.shared.tell_seen(|pending| {
                pending.change(spawn, |row| {
                    if row.state == State::Intent {
                        row.state = State::Running;
                    }
                });
                pending.seen(spawn, Seen { pid, pidfd });
            });
        }
    }

    /// Rows of this process that are not known to have ended, by number: the program that it was before began them.
    /// Waits for the file, 2 s at most.
    pub(crate) fn rows_of_this_process(&self) -> HashMap<u64, Row> {
        self.shared.wait_opened(PATIENCE);
        let rows = self.living().unwrap_or_else(|error| {
            tracing::warn!(%error, "rows that an earlier program began are not known");
            Vec::new()
        });
        let same = |row: &Row| {
            let (one, own) = (&row.owner, &self.owner);
            (one.pid, one.start, one.boot, one.namespace)
                == (own.pid, own.start, own.boot, own.namespace)
        };
        rows.into_iter().filter(same).map(|row| (row.spawn, row)).collect()
    }

    /// Goes on with the row of a child that is this process's already. Where there is none, or it is about another
    /// process, it begins one.
    pub(crate) fn resume(
        &self,
        row: Option<Row>,
        spawn: u64,
        pid: u32,
        pidfd: Arc<OwnedFd>,
        argv: &[OsString],
    ) {
        let is_it = |row: &Row| row.identity.as_ref().is_none_or(|identity| identity.pid == pid);
        let row = row.filter(is_it).unwrap_or_else(|| {
            let executable = argv.first().map(OsString::as_os_str).unwrap_or_default();
            Row::of(Intent::new(spawn, Path::new(executable), argv), &self.owner, now_ms())
        });
        let knows = row.identity.is_some();
        self.tell(|pending| _ = pending.insert(row));
        if !knows && !argv.is_empty() {
            self.started(spawn, pid, pidfd);
        }
    }

    /// Its process ended; its scope may hold more.
    pub fn exited(&self, spawn: u64, status: ExitStatus) {
        self.tell_soon(|pending| pending.change(spawn, |row| row.exit = Some(status)));
    }

    /// Somebody ends it now. The first one to say so is who ended it.
    pub fn ending(&self, spawn: u64, by: EndedBy, why: &str) {
        self.tell_soon(|pending| pending.change(spawn, |row| row.blame(by, why)));
    }

    /// Its scope is over. Without an `end`, it ended as its process did, or is lost if that is not known.
    pub fn ended(&self, spawn: u64, end: Option<End>, by: EndedBy, why: &str) {
        let now = now_ms();
        self.tell_soon(|pending| pending.change(spawn, |row| row.finish(end, by, why, now)));
    }

    /// As [`Ledger::ended`], by itself unless somebody asked for it, and what became of its release command.
    pub(crate) fn emptied(&self, spawn: u64, end: Option<End>, released: Option<Released>) {
        let now = now_ms();
        self.tell_soon(|pending| {
            pending.change(spawn, |row| {
                row.finish(end, EndedBy::Itself, "", now);
                row.released(released);
            });
        });
    }

    /// Waits until all that was told so far is on disk, at most `limit`; says whether it is.
    #[must_use]
    pub fn flush(&self, limit: Duration) -> bool {
        if !self.is_ours() {
            return false;
        }
        let told = self.shared.lock().pending.told();
        self.shared.wait(limit, |state| state.pending.is_written(told))
    }

    /// All children, of all owners, that are not known to have ended, oldest first.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub fn living(&self) -> Result<Vec<Row>, LedgerError> {
        living(&self.path())
    }

    /// The newest rows of all owners, newest first.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub fn history(&self, limit: u32) -> Result<Vec<Row>, LedgerError> {
        history(&self.path(), limit)
    }

    /// Takes in the journals under `dir` whose owner is dead and which no guard writes any more; says how many
    /// these were. Each is taken in exactly once, and removed.
    ///
    /// # Errors
    /// When the file cannot be written or a journal cannot be removed. What was folded stays so.
    pub fn fold(&self, dir: &Path) -> Result<usize, LedgerError> {
        let path = self.path();
        let mut connection = self.connection(&path)?;
        fold::fold(&mut connection, dir, &mut |_| {}).map_err(|why| LedgerError::new(&path, &why))
    }

    /// Ends a row whose owner is dead, so will not. `false` when it had ended.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn settle(&self, row: &Row, end: End, by: EndedBy, why: &str) -> Result<bool, LedgerError> {
        let path = self.path();
        let mut connection = self.connection(&path)?;
        let settled = Settled { row: row.clone(), end, by, why };
        fold::settle(&mut connection, &[settled], now_ms())
            .map(|count| count > 0)
            .map_err(|error| LedgerError::new(&path, &error))
    }

    /// Looks at what dead owners have left: folds the journals under `dir` ([`Ledger::fold`]), ends the rows of
    /// what is gone, and names the processes that are certainly left over. It ends no process.
    ///
    /// # Errors
    /// As [`Ledger::fold`].
    pub fn review(&self, dir: &Path) -> Result<Review, LedgerError> {
        self.shared.wait_opened(PATIENCE);
        let path = self.path();
        let mut connection = self.connection(&path)?;
        review::review(&mut connection, dir).map_err(|why| LedgerError::new(&path, &why))
    }

    fn connection(&self, path: &Path) -> Result<Connection, LedgerError> {
        place::reopen(path).map_err(|error| LedgerError::new(path, &error))
    }
}

/// As [`Ledger::living`], of a ledger that this process does not write.
///
/// # Errors
/// When the file cannot be read.
pub fn living(path: &Path) -> Result<Vec<Row>, LedgerError> {
    read(path, &Which::Living)
}

/// As [`Ledger::history`], of a ledger that this process does not write.
///
/// # Errors
/// When the file cannot be read.
pub fn history(path: &Path, limit: u32) -> Result<Vec<Row>, LedgerError> {
    read(path, &Which::Newest(limit))
}

fn read(path: &Path, which: &Which) -> Result<Vec<Row>, LedgerError> {
    let Some(connection) = read_only(path)? else { return Ok(Vec::new()) };
    database::select(&connection, which).map_err(|error| LedgerError::new(path, &error))
}

/// A connection that writes nothing. `None` where there is no ledger, or one without tables yet.
fn read_only(path: &Path) -> Result<Option<Connection>, LedgerError> {
    match path.try_exists() {
        Ok(true) => {}
        Ok(false) => return Ok(None),
        // Another user's: that is not the same as none.
        Err(error) => return Err(LedgerError::new(path, &error)),
    }
    let open = || {
        let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let mut connection = Connection::open_with_flags(path, flags)?;
        connection.busy_handler(Some(place::wait_a_little))?;
        let found = schema::found(&connection)?;
        Ok((connection, found))
    };
    let (connection, found) =
        open().map_err(|error: rusqlite::Error| LedgerError::new(path, &error))?;
    match found {
        Found::Fresh => Ok(None),
        Found::Known(_) => Ok(Some(connection)),
        Found::Newer(_) => Err(LedgerError::new(path, &"it is a newer program's")),
        Found::Foreign => Err(LedgerError::new(path, &"it is not a ledger")),
    }
}

/// An intent that is on its way to the disk.
#[must_use = "the intent is to be on disk before the child is started"]
pub struct Ticket {
    shared: Arc<Shared>,
    place: Option<u64>,
}

impl fmt::Debug for Ticket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ticket").field("place", &self.place).finish_non_exhaustive()
    }
}

impl Ticket {
    /// Waits until the intent is on disk, at most `limit` ([`PATIENCE`]), and not at all while the ledger is
    /// known to fail. `false`: not yet; the row is written as soon as the disk takes it.
    #[must_use]
    pub fn wait(&self, limit: Duration) -> bool {
        let Some(place) = self.place else { return false };
        let mut is_written = false;
        self.shared.wait(limit, |state| {
            is_written = state.pending.is_written(place);
            is_written || state.failing.is_some()
        });
        is_written
    }
}

/// The ledger could not be read or written.
#[derive(Debug)]
#[non_exhaustive]
pub struct LedgerError {
    /// The file.
    pub path: PathBuf,
    /// What went wrong, for people.
    pub detail: String,
}

impl LedgerError {
    fn new(path: &Path, detail: &dyn fmt::Display) -> Self {
        Self { path: path.to_owned(), detail: detail.to_string() }
    }
}

impl fmt::Display for LedgerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ledger {}: {}", self.path.display(), self.detail)
    }
}

impl std::error::Error for LedgerError {}

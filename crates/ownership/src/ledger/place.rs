//! Where the file is and whether it can be used: made private, recognised as damaged, foreign or newer, and moved
//! aside where it must be. Openers take turns under a lock, so that nobody moves a file that another one has just
//! begun.

use std::fs::{self, DirBuilder, File, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rusqlite::{Connection, ErrorCode, OpenFlags};

use super::row::now_ms;
use super::schema::{self, Found, VERSION};

/// How long anybody waits for another process that writes.
pub(super) const BUSY: Duration = Duration::from_secs(2);

/// Bytes that the write-ahead log keeps after a checkpoint.
const WAL_BYTES: i64 = 8 << 20;

/// A file that is open for writing.
pub(super) struct Opened {
    pub(super) connection: Connection,
    pub(super) path: PathBuf,
    /// Device and inode: tells whether the name still is this file.
    pub(super) file: (u64, u64),
    /// What people should know.
    pub(super) remark: Option<String>,
}

/// Why there is no open file.
#[derive(Debug)]
pub(super) enum Refused {
    /// The file is of no use: damaged, or of something else.
    Unusable(String),
    /// It is a newer program's.
    Newer(i64),
    /// The place is of no use, now.
    NoPlace(String),
}

/// The folder that it lies in.
pub(super) fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Makes that, 0700, where it is not there.
pub(super) fn make_folder(dir: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(dir)
}

/// Opens or begins the ledger. With `suspect`, every page is checked: writing to it has failed. With `made`, its folder was
/// there before: one that somebody has deleted is not made anew by who still has something to write.
pub(super) fn open(path: &Path, suspect: bool, made: bool) -> Result<Opened, String> {
    let dir = folder_of(path);
    if !made {
        make_folder(dir).map_err(|error| said(dir, &error))?;
    } else if !dir.is_dir() {
        return Err(said(dir, &"it was deleted"));
    }
    let lock = beside(path, ".lock");
    let lock = OpenOptions::new().append(true).create(true).mode(0o600).open(&lock);
    // Where it cannot be made, the ledger cannot either; that has the better message.
    let _turn = lock.ok().filter(take_turn);
    match try_open(path, suspect) {
        Ok(opened) => Ok(opened),
        Err(Refused::NoPlace(why)) => Err(why),
        Err(Refused::Unusable(why)) => {
            let aside =
                park(path).map_err(|error| format!("{why}; it cannot be moved: {error}"))?;
            let remark = format!("{why}; moved to {}, a fresh one is begun", aside.display());
            afresh(path, remark)
        }
        // A newer program's living rows are its evidence: its file stays where it is.
        Err(Refused::Newer(version)) => {
            let own = own_version(path);
            let remark = format!(
                "{} is of version {version}, this program knows {VERSION}; it writes to {}",
                path.display(),
                own.display()
            );
            afresh(&own, remark)
        }
    }
}

fn afresh(path: &Path, remark: String) -> Result<Opened, String> {
    match try_open(path, false) {
        Ok(opened) => Ok(Opened { remark: Some(remark), ..opened }),
        Err(Refused::NoPlace(why) | Refused::Unusable(why)) => Err(format!("{remark}, but: {why}")),
        Err(Refused::Newer(_)) => Err(format!("{remark}, but that is newer too")),
    }
}

/// The file of this version, beside one of a newer program.
pub(super) fn own_version(path: &Path) -> PathBuf {
    beside(path, &format!(".v{VERSION}"))
}

fn try_open(path: &Path, suspect: bool) -> Result<Opened, Refused> {
    if path.is_dir() {
        return Err(Refused::Unusable(format!("{} is a directory", path.display())));
    }
    // Made here, for its mode; the files beside it take theirs from it. One that is there is not opened: closing
    // it would release the locks that this process may have on it (man 2 fcntl_locking).
    match OpenOptions::new().append(true).create_new(true).mode(0o600).open(path) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
            return Err(Refused::NoPlace(said(path, &error)));
        }
        _ => {}
    }
    let refused = |error: rusqlite::Error| refusal(path, &error);
    let mut connection = Connection::open(path).map_err(refused)?;
    match prepare(&mut connection, suspect).map_err(refused)? {
        Found::Fresh | Found::Known(_) => {}
        Found::Newer(version) => return Err(Refused::Newer(version)),
        Found::Foreign => {
            return Err(Refused::Unusable(format!("{} is not a ledger", path.display())));
        }
    }
    let file = identity_of(path).ok_or_else(|| Refused::NoPlace("it was removed".into()))?;
    Ok(Opened { connection, path: path.to_owned(), file, remark: None })
}

/// Settings and schema; hands back what the file was.
fn prepare(connection: &mut Connection, suspect: bool) -> rusqlite::Result<Found> {
    connection.busy_handler(Some(wait_a_little))?;
    let found = schema::found(connection)?;
    if matches!(found, Found::Newer(_) | Found::Foreign) {
        return Ok(found);
    }
    connection.pragma_update(None, "journal_mode", "WAL")?;
    connection.pragma_update(None, "synchronous", "NORMAL")?;
    connection.pragma_update(None, "journal_size_limit", WAL_BYTES)?;
    // The writer takes the log in when nobody waits.
    connection.pragma_update(None, "wal_autocheckpoint", 0)?;
    schema::migrate(connection, found)?;
    if suspect {
        let check = "PRAGMA quick_check(1)";
        let verdict: String = connection.query_row(check, [], |row| row.get(0))?;
        if verdict != "ok" {
            return Ok(Found::Foreign);
        }
    }
    Ok(found)
}

/// A connection for what is rare and must be synced. Never makes the file: the writer does.
pub(super) fn reopen(path: &Path) -> rusqlite::Result<Connection> {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let mut connection = Connection::open_with_flags(path, flags)?;
    connection.busy_handler(Some(wait_a_little))?;
    connection.pragma_update(None, "synchronous", "FULL")?;
    Ok(connection)
}

/// Waits for another writer, [`BUSY`] in all: a commit takes a tenth of a ms, so first in small steps. SQLite's own
/// pauses grow to 100 ms.
pub(super) fn wait_a_little(before: i32) -> bool {
    let pause = match before {
        ..20 => Duration::from_micros(100),
        20..68 => Duration::from_millis(1),
        68..263 => Duration::from_millis(10),
        263.. => return false,
    };
    std::thread::park_timeout(pause);
    true
}

fn refusal(path: &Path, error: &rusqlite::Error) -> Refused {
    let why = said(path, error);
    if is_damage(error) { Refused::Unusable(why) } else { Refused::NoPlace(why) }
}

/// Whether the file, and not the place or the moment, is at fault.
pub(super) fn is_damage(error: &rusqlite::Error) -> bool {
    !matches!(
        error.sqlite_error_code(),
        Some(
            ErrorCode::CannotOpen
                | ErrorCode::ReadOnly
                | ErrorCode::DiskFull
                | ErrorCode::SystemIoFailure
                | ErrorCode::PermissionDenied
                | ErrorCode::DatabaseBusy
                | ErrorCode::DatabaseLocked
                | ErrorCode::FileLockingProtocolFailed
                | ErrorCode::OutOfMemory
        )
    )
}

fn said(path: &Path, error: &dyn std::fmt::Display) -> String {
    format!("{}: {error}", path.display())
}

/// Waits for the lock, [`BUSY`] at most: the kernel releases that of one who dies, and one who is stopped does not
/// hold up the others for ever.
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

/// Moves a ledger and the files beside it out of the way.
fn park(path: &Path) -> io::Result<PathBuf> {
    let aside = (0..).map(|number| beside(path, &format!(".aside-{}-{number}", now_ms())));
    let aside = aside.take(1000).find(|name| !name.exists()).ok_or(io::ErrorKind::AlreadyExists)?;
    for suffix in ["-wal", "-shm"] {
        match fs::rename(beside(path, suffix), beside(&aside, suffix)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
    }
    fs::rename(path, &aside)?;
    Ok(aside)
}

fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

/// Device and inode of what has this name now.
pub(super) fn identity_of(path: &Path) -> Option<(u64, u64)> {
    fs::metadata(path).ok().map(|file| (file.dev(), file.ino()))
}

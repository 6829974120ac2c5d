//! What keeper and supervisor write down: fixed-size records, appended to one file per owner.
//!
//! The guards have no SQLite and must not wait for one: a record is encoded on the stack and appended
//! with one `write(2)` on an `O_APPEND` descriptor, so records of two guards do not mix. When the owner is
//! dead and no guard holds the file any more, `Ledger::fold` takes it into the tables. The records are
//! in [`codec`]; decoding is total.

mod codec;

use std::ffi::CString;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use rustix::fs::{FlockOperation, Mode, OFlags, flock};

use crate::identity::{BootId, Identity};

pub use self::codec::{Contents, Event, Guard, RECORD_BYTES, Record, Why, read};

/// Folder of the journals in the state directory.
pub(crate) const FOLDER: &str = "journal";
/// End of a journal's name.
pub(crate) const SUFFIX: &str = ".journal";
/// End of the name of the part before the last turn.
pub(crate) const OLD_SUFFIX: &str = ".journal.old";

/// A journal that is this long is turned over: it becomes the old part, and the old part before it goes.
/// 32,768 records (three of each start) are more than an owner's ledger can be behind, and while
/// the owner lives its ledger has them too.
const MAX_BYTES: u64 = 2 << 20;

/// An open journal. It is not folded while somebody holds one.
#[derive(Debug)]
pub struct Journal {
    path: CString,
    old: CString,
    owner: Identity,
    limit: u64,
    file: Mutex<Appended>,
}

#[derive(Debug)]
struct Appended {
    fd: OwnedFd,
    bytes: u64,
}

impl Journal {
    /// Opens the journal of `owner` under `dir/journal` (made 0700), for both guards the same file (0600).
    ///
    /// # Errors
    /// When it cannot be made, opened or written.
    pub fn open(dir: &Path, owner: &Identity) -> io::Result<Self> {
        Self::open_with(dir, owner, MAX_BYTES)
    }

    fn open_with(dir: &Path, owner: &Identity, limit: u64) -> io::Result<Self> {
        let folder = dir.join(FOLDER);
        fs::DirBuilder::new().recursive(true).mode(0o700).create(&folder)?;
        let stem = stem(owner);
        let named =
            |suffix| CString::new(folder.join(format!("{stem}{suffix}")).as_os_str().as_bytes());
        let (path, old) = (named(SUFFIX)?, named(OLD_SUFFIX)?);
        let file = Appended::to(&path, owner)?;
        Ok(Self { path, old, owner: owner.clone(), limit, file: Mutex::new(file) })
    }

    /// Appends one record: one `write(2)`, no allocation, no waiting for anybody but the file system.
    ///
    /// # Errors
    /// When it was not written whole. Readers skip the torn piece; later records are readable.
    pub fn append(&self, record: &Record) -> io::Result<()> {
        let mut file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        if file.bytes >= self.limit {
            self.turn(&mut file)?;
        }
        file.write(&codec::encode(record))
    }

    /// Goes on in a new file. If the other guard has done that already, goes on in its.
    fn turn(&self, file: &mut Appended) -> io::Result<()> {
        let own = rustix::fs::fstat(&file.fd)?;
        let named = rustix::fs::stat(&*self.path);
        if named.is_ok_and(|named| (named.st_dev, named.st_ino) == (own.st_dev, own.st_ino)) {
            rustix::fs::rename(&*self.path, &*self.old)?;
        }
        *file = Appended::to(&self.path, &self.owner)?;
        Ok(())
    }
}

impl Appended {
    fn to(path: &CString, owner: &Identity) -> io::Result<Self> {
        let flags = OFlags::WRONLY | OFlags::APPEND | OFlags::CREATE | OFlags::CLOEXEC;
        let fd = rustix::fs::open(&**path, flags, Mode::RUSR | Mode::WUSR)?;
        // Says that it is being written; the kernel takes it back when the last holder is gone. A reader
        // that looks at this moment leaves it alone afterwards.
        flock(&fd, FlockOperation::LockShared)?;
        let bytes = u64::try_from(rustix::fs::fstat(&fd)?.st_size).unwrap_or(0);
        let mut appended = Self { fd, bytes };
        if bytes == 0 {
            appended.write(&codec::encode_owner(owner))?;
        }
        Ok(appended)
    }

    fn write(&mut self, record: &[u8; RECORD_BYTES]) -> io::Result<()> {
        let written = rustix::io::retry_on_intr(|| rustix::io::write(&self.fd, record))?;
        self.bytes += u64::try_from(written).unwrap_or(0);
        if written == RECORD_BYTES { Ok(()) } else { Err(io::ErrorKind::WriteZero.into()) }
    }
}

/// Name of an owner's journal, without its end.
fn stem(owner: &Identity) -> String {
    let boot = owner.boot.map_or_else(|| "unknown".to_owned(), |boot| boot.to_string());
    format!("{boot}-{}-{}", owner.pid, owner.start.unwrap_or(0))
}

/// A journal that nobody writes any more, held so that nobody else folds it meanwhile.
#[derive(Debug)]
pub(crate) struct Finished {
    pub(crate) path: PathBuf,
    pub(crate) contents: Contents,
    _held: File,
}

impl Finished {
    /// `None` while a guard holds it, and when it is gone.
    ///
    /// # Errors
    /// When it cannot be read.
    pub(crate) fn take(path: &Path) -> io::Result<Option<Self>> {
        use std::io::Read;
        let mut file = match OpenOptions::new().read(true).custom_flags(libc::O_NOFOLLOW).open(path)
        {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            file => file?,
        };
        match flock(file.as_fd(), FlockOperation::NonBlockingLockExclusive) {
            Err(rustix::io::Errno::WOULDBLOCK) => return Ok(None),
            other => other?,
        }
        // Somebody may have removed it between the two calls: what is read then was folded.
        if !path.exists() {
            return Ok(None);
        }
        // Each guard counts what itself wrote, so a part may have twice the limit.
        let mut bytes = Vec::new();
        file.by_ref().take(4 * MAX_BYTES).read_to_end(&mut bytes)?;
        let mut contents = read(&bytes);
        if contents.owner.is_none() {
            contents.owner = owner_of_name(path);
        }
        Ok(Some(Self { path: path.to_owned(), contents, _held: file }))
    }
}

/// The owner as far as the name tells, for a journal whose first record is torn.
fn owner_of_name(path: &Path) -> Option<Identity> {
    let name = path.file_name()?.to_str()?;
    let stem = name.strip_suffix(OLD_SUFFIX).or_else(|| name.strip_suffix(SUFFIX))?;
    let mut parts = stem.split('-');
    let (boot, pid, start) = (parts.next()?, parts.next()?, parts.next()?);
    Some(Identity {
        boot: BootId::parse(boot),
        pid: pid.parse().ok()?,
        start: start.parse().ok().filter(|start| *start > 0),
        inode: None,
        namespace: crate::identity::own_namespace(),
        cgroup: None,
    })
}

/// The journals under `dir`, older parts first.
pub(crate) fn files(dir: &Path) -> io::Result<Vec<PathBuf>> {
    let entries = match fs::read_dir(dir.join(FOLDER)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?,
    };
    let mut files = Vec::new();
    for entry in entries {
        let path = entry?.path();
        let is_ours =
            path.to_str().is_some_and(|name| name.ends_with(SUFFIX) || name.ends_with(OLD_SUFFIX));
        if is_ours {
            files.push(path);
        }
    }
    files.sort_by_key(|path| (!path.to_string_lossy().ends_with(OLD_SUFFIX), path.clone()));
    Ok(files)
}

#[cfg(test)]
#[path = "journal/tests.rs"]
mod tests;

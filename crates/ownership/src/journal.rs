//! What keeper and supervisor write down: fixed-size records, appended to one file per owner.
//!
//! The guards have no SQLite and must not wait for one: a record is encoded on the stack and appended
//! with one `write(2)` on an `O_APPEND` descriptor, so records of two guards do not mix. When the owner is
//! dead and no guard holds the file any more, `Ledger::fold` takes it into the tables. The records are
//! in `codec`; decoding is total.

mod codec;
#[cfg(feature = "ledger")]
mod finished;

use std::ffi::CString;
use std::fs;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use rustix::fs::{FlockOperation, Mode, OFlags, flock};
use rustix::io::Errno;

use crate::identity::Identity;

pub use self::codec::{Contents, Event, Guard, RECORD_BYTES, Record, RuleName, Why, read};
#[cfg(feature = "ledger")]
pub(crate) use self::finished::{Finished, Waits, files, owner_of_name, waits};

/// Folder of the journals in the state directory.
const FOLDER: &str = "journal";
/// End of a journal's name.
const SUFFIX: &str = ".journal";
/// End of the name of the part before the last turn.
const OLD_SUFFIX: &str = ".journal.old";

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
    /// Opens the journal of `owner` under `dir/journal` (made 0700), for both guards the same file (0600). `dir` must be there:
    /// a guard that comes late does not begin again what its owner's people have deleted.
    ///
    /// # Errors
    /// When it cannot be made, opened or written, and on a file system that may keep its writer waiting: one of
    /// a network or of another process.
    pub fn open(dir: &Path, owner: &Identity) -> io::Result<Self> {
        Self::open_with(dir, owner, MAX_BYTES)
    }

    fn open_with(dir: &Path, owner: &Identity, limit: u64) -> io::Result<Self> {
        let folder = dir.join(FOLDER);
        match fs::DirBuilder::new().mode(0o700).create(&folder) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
            _ => {}
        }
        let opened = fs::File::open(&folder)?;
        if is_served_elsewhere(opened.as_fd())? {
            return Err(io::ErrorKind::Unsupported.into());
        }
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
        // Says that it is being written; the kernel takes it back when the last holder is gone. Somebody who
        // holds it otherwise is folding a dead owner's: a guard does not wait for that.
        match flock(&fd, FlockOperation::NonBlockingLockShared) {
            Ok(()) | Err(Errno::WOULDBLOCK) => {}
            Err(error) => return Err(error.into()),
        }
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

/// File systems whose answers come from another machine or process (linux/magic.h): NFS, SMB, CIFS, 9P, FUSE,
/// Ceph, AFS, OCFS2, Lustre. One that does not answer would keep both guards from everything else.
const SERVED_ELSEWHERE: [u32; 9] = [
    0x6969,
    0xfe53_4d42,
    0xff53_4d42,
    0x0102_1997,
    0x6573_5546,
    0x00c3_6400,
    0x5346_414f,
    0x7461_636f,
    0x0bd0_0bd0,
];

/// Whether answers about this folder come from another machine or process; there no journal is kept.
///
/// # Errors
/// When it cannot be asked.
pub fn is_served_elsewhere(folder: BorrowedFd<'_>) -> io::Result<bool> {
    let kind = rustix::fs::fstatfs(folder)?.f_type;
    Ok(SERVED_ELSEWHERE.iter().any(|known| u64::try_from(kind) == Ok(u64::from(*known))))
}

/// Name of an owner's journal, without its end.
fn stem(owner: &Identity) -> String {
    let boot = owner.boot.map_or_else(|| "unknown".to_owned(), |boot| boot.to_string());
    format!("{boot}-{}-{}", owner.pid, owner.start.unwrap_or(0))
}

#[cfg(all(test, feature = "ledger"))]
#[path = "journal/tests.rs"]
mod tests;

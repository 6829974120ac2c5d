//! Journals as whoever folds them sees them: which there are, whose they are, and whether somebody still writes.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};

use super::{Contents, FOLDER, MAX_BYTES, OLD_SUFFIX, SUFFIX, read, stem};
use crate::identity::{BootId, Identity};

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

/// A journal that was not folded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Waits {
    /// Somebody writes it, or folds it just now.
    Written,
    Finished,
}

/// Whether there is a journal of this owner under `dir`.
pub(crate) fn waits(dir: &Path, owner: &Identity) -> Option<Waits> {
    let path = dir.join(FOLDER).join(format!("{}{SUFFIX}", stem(owner)));
    let file = OpenOptions::new().read(true).custom_flags(libc::O_NOFOLLOW).open(path).ok()?;
    let lock = flock(file.as_fd(), FlockOperation::NonBlockingLockExclusive);
    let held = lock == Err(rustix::io::Errno::WOULDBLOCK);
    Some(if held { Waits::Written } else { Waits::Finished })
}

/// The owner as far as the name tells. In which pid namespace its number counts it does not.
pub(crate) fn owner_of_name(path: &Path) -> Option<Identity> {
    let name = path.file_name()?.to_str()?;
    let stem = name.strip_suffix(OLD_SUFFIX).or_else(|| name.strip_suffix(SUFFIX))?;
    let mut parts = stem.split('-');
    let (boot, pid, start) = (parts.next()?, parts.next()?, parts.next()?);
    Some(Identity {
        boot: BootId::parse(boot),
        pid: pid.parse().ok()?,
        start: start.parse().ok().filter(|start| *start > 0),
        inode: None,
        namespace: None,
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

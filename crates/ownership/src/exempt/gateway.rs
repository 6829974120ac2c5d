//! An owner that comes back under its name: what it starts in the background outlives it, and its next
//! start is handed what is still there.

use std::fmt;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};

use super::{ExemptJob, Exemption, Status, files, list_exempt, spawn_for};
use crate::program::Program;
use crate::spawn::{Spawn, SpawnError};

/// Longest name, in bytes.
const MAX_NAME: usize = 64;

/// The declaration that background jobs of this owner are exempt. One at a time has a name: the lock ends
/// with the process that holds it, however that ends. (A copy of the process made by fork, without
/// exec, holds it too.)
#[derive(Debug)]
pub struct Gateway {
    dir: PathBuf,
    name: String,
    shim: Program,
    _lock: File,
}

/// Why there is no gateway.
#[derive(Debug)]
#[non_exhaustive]
pub enum GatewayError {
    /// Another owner has this name.
    Held {
        /// The name.
        name: String,
        /// The pid that it wrote down: for people.
        by: Option<u32>,
    },
    /// A name is 1 to 64 of `a-z A-Z 0-9 . _ -`, not beginning with a dot.
    Name {
        /// What was given.
        name: String,
    },
    /// The directory cannot be used.
    Io {
        /// The directory.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
}

impl fmt::Display for GatewayError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Held { name, by: Some(by) } => {
                write!(
                    f,
                    "gateway {name:?} is held by process {by}: one owner at a time has a name"
                )
            }
            Self::Held { name, by: None } => {
                write!(f, "gateway {name:?} is held by another process")
            }
            Self::Name { name } => write!(f, "{name:?} is no name of a gateway"),
            Self::Io { path, source } => write!(f, "{}: {source}", path.display()),
        }
    }
}

impl std::error::Error for GatewayError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Io { source, .. } => Some(source),
            Self::Held { .. } | Self::Name { .. } => None,
        }
    }
}

impl Gateway {
    /// Takes the name, and gives what survived of the jobs that were started under it: those that
    /// run, oldest first. [`Gateway::jobs`] has the others too.
    ///
    /// # Errors
    /// When another owner has the name, or the directory cannot be used.
    pub fn open(dir: &Path, name: &str) -> Result<(Self, Vec<ExemptJob>), GatewayError> {
        let io = |source| GatewayError::Io { path: dir.to_owned(), source };
        Self::open_with(Program::current().map_err(io)?, dir, name)
    }

    /// As [`Gateway::open`], with another program as shim of its jobs ([`super::spawn_exempt_by`]).
    ///
    /// # Errors
    /// As [`Gateway::open`].
    pub fn open_with(
        shim: Program,
        dir: &Path,
        name: &str,
    ) -> Result<(Self, Vec<ExemptJob>), GatewayError> {
        let io = |source| GatewayError::Io { path: dir.to_owned(), source };
        if !is_name(name) {
            return Err(GatewayError::Name { name: name.to_owned() });
        }
        let dir = files::prepare(dir).map_err(io)?;
        let lock = lock(&dir, name)
            .map_err(io)?
            .map_err(|by| GatewayError::Held { name: name.to_owned(), by })?;
        let gateway = Self { dir, name: name.to_owned(), shim, _lock: lock };
        let mut survivors = gateway.jobs().map_err(io)?;
        survivors.retain(|job| match job.status() {
            Status::Running => true,
            Status::Exited(ended) => ended.empty == Some(false),
            Status::Unknown { .. } | Status::Gone => false,
        });
        Ok((gateway, survivors))
    }

    /// Starts a job that outlives this owner and is handed to the next of its name.
    ///
    /// # Errors
    /// As [`super::spawn_exempt`].
    pub fn spawn_background(&self, spawn: Spawn, reason: &str) -> Result<ExemptJob, SpawnError> {
        let exemption = Exemption::new(reason);
        spawn_for(&self.shim, spawn, exemption, &self.dir, Some(&self.name))
    }

    /// All jobs under this name that have a record, those that have ended too. A record that cannot be
    /// read belongs to nobody and is not among them.
    ///
    /// # Errors
    /// When the directory cannot be read.
    pub fn jobs(&self) -> io::Result<Vec<ExemptJob>> {
        let jobs = list_exempt(&self.dir)?.into_iter().filter_map(|job| {
            job.inspect_err(|error| tracing::warn!(%error, "an exempt job's record")).ok()
        });
        Ok(jobs.filter(|job| job.gateway() == Some(&*self.name)).collect())
    }
}

fn is_name(name: &str) -> bool {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    (1..=MAX_NAME).contains(&name.len()) && name.bytes().all(fits) && !name.starts_with('.')
}

/// The lock, or who has it.
fn lock(dir: &Path, name: &str) -> io::Result<Result<File, Option<u32>>> {
    let mut options = File::options();
    options.read(true).write(true).create(true).truncate(false).mode(0o600);
    let mut file =
        options.custom_flags(libc::O_NOFOLLOW).open(dir.join(format!("{name}.gateway")))?;
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => {}
        Err(rustix::io::Errno::WOULDBLOCK) => {
            let mut holder = String::new();
            // For the message only.
            let _unread = file.take(16).read_to_string(&mut holder);
            return Ok(Err(holder.trim().parse().ok()));
        }
        Err(errno) => return Err(errno.into()),
    }
    file.set_len(0)?;
    file.seek(SeekFrom::Start(0))?;
    writeln!(file, "{}", std::process::id())?;
    Ok(Ok(file))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_no_paths() {
        for name in ["", ".", "..", ".a", "a/b", "a b", "\u{e4}", &"a".repeat(65)] {
            assert!(!is_name(name), "{name}");
        }
        for name in ["a", "A-1_b.c", &"a".repeat(64)] {
            assert!(is_name(name), "{name}");
        }
    }

    #[test]
    fn a_name_has_one_holder_at_a_time() {
        let parent = tempfile::tempdir().expect("dir");
        let dir = &parent.path().join("jobs");
        let (first, survivors) = Gateway::open(dir, "main").expect("free");
        assert!(survivors.is_empty());
        let error = Gateway::open(dir, "main").expect_err("held");
        assert!(
            matches!(error, GatewayError::Held { by: Some(by), .. } if by == std::process::id())
        );
        assert!(Gateway::open(dir, "other").is_ok());
        drop(first);
        assert!(Gateway::open(dir, "main").is_ok(), "free again");
    }
}

//! [`Files`]: what an agent does with files that others of its tree work on, too. The look at the file is here,
//! what is known of it is with the parent ([`delegate_protocol::file`]). It advises; nothing is forbidden.

use std::fmt;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use delegate_protocol::file::{Busy, Change, FileAnswer, FileQuestion, Staleness};
use delegate_protocol::{Answer, Question};

use crate::agent::{AskError, Failure};
use crate::asks::Until;
use crate::look;
use crate::session::Desk;

/// How long [`Files::lock`] waits.
pub const LOCK_WAIT: Duration = Duration::from_secs(30);

/// Files as one child sees them. From [`crate::Session::files`]; clones may be used on any thread.
#[derive(Debug, Clone)]
pub struct Files {
    desk: Arc<Desk>,
    base: PathBuf,
}

/// What went wrong with a file.
#[derive(Debug)]
#[non_exhaustive]
pub enum FileError {
    /// The system said no.
    Io {
        /// About which path.
        path: PathBuf,
        /// What it said.
        source: io::Error,
    },
    /// Another agent has it locked.
    Busy(Busy),
    /// The parent was not to be asked.
    Ask(AskError),
}

impl fmt::Display for FileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Io { path, source } => write!(f, "{}: {source}", path.display()),
            Self::Busy(busy) => busy.fmt(f),
            Self::Ask(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for FileError {}

impl From<AskError> for FileError {
    fn from(error: AskError) -> Self {
        Self::Ask(error)
    }
}

impl From<FileError> for Failure {
    fn from(error: FileError) -> Self {
        match error {
            FileError::Ask(error) => error.into(),
            FileError::Io { .. } | FileError::Busy(_) => Self::new(error.to_string()),
        }
    }
}

/// A path that is this child's for now. Dropping it gives it back; so does the child's end, whatever that is.
#[derive(Debug)]
#[must_use = "dropping it gives the path back"]
pub struct FileLock {
    files: Files,
    lock: u64,
}

impl Drop for FileLock {
    fn drop(&mut self) {
        if let Err(error) = self.files.noted(FileQuestion::Unlock { lock: self.lock }) {
            tracing::debug!(%error, "a lock was not given back; it ends with this child");
        }
    }
}

impl Files {
    pub(crate) fn new(desk: Arc<Desk>, cwd: Option<&Path>) -> Self {
        // Without a directory of the task's own it is that of the process.
        let base = cwd.map(Path::to_owned).or_else(|| std::env::current_dir().ok());
        Self { desk, base: base.unwrap_or_else(|| PathBuf::from("/")) }
    }

    /// Where a path leads: absolute, without links. Relative ones begin at the task's working directory.
    #[must_use]
    pub fn resolve(&self, path: impl AsRef<Path>) -> PathBuf {
        look::resolve(&self.base, path.as_ref())
    }

    /// Reads a whole file, and notes what it was.
    ///
    /// # Errors
    /// It cannot be read, or not be noted.
    pub fn read(&self, path: impl AsRef<Path>) -> Result<Vec<u8>, FileError> {
        let path = self.resolve(path);
        let read = File::open(&path).and_then(|mut file| look::read(&mut file));
        let (stamp, bytes) = read.map_err(|source| io_error(&path, source))?;
        let path = text(&path);
        self.noted(FileQuestion::Read { path, stamp: Some(stamp), partial: false })?;
        Ok(bytes)
    }

    /// Notes that a file was read by other means; a part of it only, if so. One that is not there is ignored.
    ///
    /// # Errors
    /// It cannot be looked at, or not be noted.
    pub fn note_read(&self, path: impl AsRef<Path>, partial: bool) -> Result<(), FileError> {
        let path = self.resolve(path);
        let Some(stamp) = look::stamp(&path).map_err(|source| io_error(&path, source))? else {
            return Ok(());
        };
        let path = text(&path);
        self.noted(FileQuestion::Read { path, stamp: Some(stamp), partial })
    }

    /// What speaks against writing a file now; `None`: nothing.
    ///
    /// # Errors
    /// It cannot be looked at, or the parent not be asked.
    pub fn check(&self, path: impl AsRef<Path>) -> Result<Option<Staleness>, FileError> {
        let path = self.resolve(path);
        let found = look::stamp(&path).map_err(|source| io_error(&path, source))?;
        match self.ask(FileQuestion::Check { path: text(&path), found })? {
            FileAnswer::Checked(staleness) => Ok(staleness),
            FileAnswer::Noted | FileAnswer::Locked { .. } | FileAnswer::Busy(_) => {
                Err(unexpected())
            }
        }
    }

    /// Writes a whole file, and notes it. Asks nobody first: see [`Files::check`] and [`Files::lock`].
    ///
    /// # Errors
    /// It cannot be written, or not be noted.
    pub fn write(&self, path: impl AsRef<Path>, bytes: impl AsRef<[u8]>) -> Result<(), FileError> {
        let path = self.resolve(path);
        fs::write(&path, bytes).map_err(|source| io_error(&path, source))?;
        self.note_write(path)
    }

    /// Notes that a file was written by other means. One that is not there is ignored.
    ///
    /// # Errors
    /// It cannot be looked at, or not be noted.
    pub fn note_write(&self, path: impl AsRef<Path>) -> Result<(), FileError> {
        let path = self.resolve(path);
        let Some(stamp) = look::stamp(&path).map_err(|source| io_error(&path, source))? else {
            return Ok(());
        };
        let (path, change) = (text(&path), Change::Written(Some(stamp)));
        self.noted(FileQuestion::Changed { path, change })
    }

    /// Deletes a file, and notes it.
    ///
    /// # Errors
    /// It cannot be deleted, or that not be noted.
    pub fn delete(&self, path: impl AsRef<Path>) -> Result<(), FileError> {
        let path = self.resolve(path);
        fs::remove_file(&path).map_err(|source| io_error(&path, source))?;
        self.note_delete(path)
    }

    /// Notes that a file was deleted by other means.
    ///
    /// # Errors
    /// The parent cannot be told.
    pub fn note_delete(&self, path: impl AsRef<Path>) -> Result<(), FileError> {
        let path = text(&self.resolve(path));
        self.noted(FileQuestion::Changed { path, change: Change::Deleted })
    }

    /// Renames a file, and notes it.
    ///
    /// # Errors
    /// It cannot be renamed, or that not be noted.
    pub fn rename(&self, from: impl AsRef<Path>, to: impl AsRef<Path>) -> Result<(), FileError> {
        let (from, to) = (self.resolve(from), self.resolve(to));
        fs::rename(&from, &to).map_err(|source| io_error(&from, source))?;
        self.note_rename(from, to)
    }

    /// Notes that a file was renamed by other means.
    ///
    /// # Errors
    /// The new one cannot be looked at, or that not be noted.
    pub fn note_rename(
        &self,
        from: impl AsRef<Path>,
        to: impl AsRef<Path>,
    ) -> Result<(), FileError> {
        let (from, to) = (self.resolve(from), self.resolve(to));
        let stamp = look::stamp(&to).map_err(|source| io_error(&to, source))?;
        let change = Change::Renamed { to: text(&to), stamp };
        self.noted(FileQuestion::Changed { path: text(&from), change })
    }

    /// Waits up to [`LOCK_WAIT`] for its turn at a path, which need not exist. Agents of one tree that lock what
    /// they read, change and write lose nothing of each other's. Whoever asked first is first.
    ///
    /// # Errors
    /// [`FileError::Busy`] says who has it; or the child is to stop meanwhile.
    pub fn lock(&self, path: impl AsRef<Path>) -> Result<FileLock, FileError> {
        self.lock_within(path, LOCK_WAIT)
    }

    /// The same with another limit; zero does not wait.
    ///
    /// # Errors
    /// As [`Files::lock`].
    pub fn lock_within(
        &self,
        path: impl AsRef<Path>,
        at_most: Duration,
    ) -> Result<FileLock, FileError> {
        let path = text(&self.resolve(path));
        let wait_ms = u64::try_from(at_most.as_millis()).unwrap_or(u64::MAX);
        match self.ask(FileQuestion::Lock { path, wait_ms })? {
            FileAnswer::Locked { lock } => Ok(FileLock { files: self.clone(), lock }),
            FileAnswer::Busy(busy) => Err(FileError::Busy(busy)),
            FileAnswer::Noted | FileAnswer::Checked(_) => Err(unexpected()),
        }
    }

    /// Reads a file under its lock, lets `change` make something of it (`None` where there is no file), and
    /// writes that.
    ///
    /// # Errors
    /// Those of reading, writing and locking. `change` may fail, and nothing is written then.
    pub fn edit<E: From<FileError>>(
        &self,
        path: impl AsRef<Path>,
        change: impl FnOnce(Option<Vec<u8>>) -> Result<Vec<u8>, E>,
    ) -> Result<(), E> {
        let path = self.resolve(path);
        let _lock = self.lock(&path)?;
        let before = match self.read(&path) {
            Ok(bytes) => Some(bytes),
            Err(FileError::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => None,
            Err(error) => return Err(error.into()),
        };
        Ok(self.write(&path, change(before)?)?)
    }

    fn noted(&self, question: FileQuestion) -> Result<(), FileError> {
        self.ask(question).map(drop)
    }

    fn ask(&self, question: FileQuestion) -> Result<FileAnswer, FileError> {
        // One that unwinds may still write down what it did.
        let stops = self.desk.token.is_raised() && !matches!(question, FileQuestion::Lock { .. });
        let until = if stops { Until::ParentGone } else { Until::Interrupt };
        let answer = self.desk.ask(Question::File(question), until)?;
        if let Answer::File(answer) = answer {
            Ok(answer)
        } else {
            Err(AskError::of(answer).into())
        }
    }
}

fn io_error(path: &Path, source: io::Error) -> FileError {
    FileError::Io { path: path.to_owned(), source }
}

fn text(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}

fn unexpected() -> FileError {
    FileError::Ask(AskError::Refused("the parent has answered another question".to_owned()))
}

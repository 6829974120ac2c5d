//! [`Files`]: the registry as the agent at the root has it, with the look at the file. Children have
//! [`delegate_child::Files`].

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, SystemTime};

use delegate_child::look;
use delegate_protocol::file::{Busy, Change, Staleness};

use super::registry::Who;
use super::{FileState, Turn};

/// Files as the agent that delegates sees them; from [`crate::delegator::Delegator::files`]. Cheap to clone.
///
/// What it notes as read is what a child's end reminds it of.
#[derive(Debug, Clone)]
pub struct Files {
    state: FileState,
    who: Who,
}

/// A path that is its own for now; dropping it gives it back.
#[derive(Debug)]
#[must_use = "dropping it gives the path back"]
pub struct PathLock {
    files: Files,
    ticket: u64,
}

impl Drop for PathLock {
    fn drop(&mut self) {
        self.files.state.unlock(&self.files.who, self.ticket, SystemTime::now());
    }
}

impl Files {
    pub(crate) const fn new(state: FileState, who: Who) -> Self {
        Self { state, who }
    }

    /// Reads a whole file, and notes what it was.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn read(&self, path: impl AsRef<Path>) -> io::Result<Vec<u8>> {
        let path = resolve(path.as_ref());
        let stamp = look::stamp(&path)?;
        let bytes = fs::read(&path)?;
        self.state.read(&self.who, &text(&path), stamp, false, SystemTime::now());
        Ok(bytes)
    }

    /// Notes that a file was read by other means; a part of it only, if so. One that cannot be looked at is
    /// ignored.
    pub fn note_read(&self, path: impl AsRef<Path>, partial: bool) {
        let path = resolve(path.as_ref());
        if let Ok(stamp @ Some(_)) = look::stamp(&path) {
            self.state.read(&self.who, &text(&path), stamp, partial, SystemTime::now());
        }
    }

    /// Writes a whole file, and notes it.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn write(&self, path: impl AsRef<Path>, bytes: impl AsRef<[u8]>) -> io::Result<()> {
        let path = resolve(path.as_ref());
        fs::write(&path, bytes)?;
        self.note_write(path);
        Ok(())
    }

    /// Notes that a file was written by other means. One that cannot be looked at is ignored.
    pub fn note_write(&self, path: impl AsRef<Path>) {
        let path = resolve(path.as_ref());
        if let Ok(stamp @ Some(_)) = look::stamp(&path) {
            let change = Change::Written(stamp);
            self.state.changed(&self.who, &text(&path), &change, SystemTime::now());
        }
    }

    /// Notes that a file was deleted.
    pub fn note_delete(&self, path: impl AsRef<Path>) {
        let path = resolve(path.as_ref());
        self.state.changed(&self.who, &text(&path), &Change::Deleted, SystemTime::now());
    }

    /// What speaks against writing a file now; `None`: nothing. One that cannot be looked at has nothing.
    #[must_use]
    pub fn check(&self, path: impl AsRef<Path>) -> Option<Staleness> {
        let path = resolve(path.as_ref());
        let found = look::stamp(&path).ok()?;
        self.state.check(&self.who, &text(&path), found.as_ref())
    }

    /// Waits for its turn at a path, which need not exist. Blocks the thread.
    ///
    /// # Errors
    /// Who has it.
    pub fn lock(&self, path: impl AsRef<Path>, at_most: Duration) -> Result<PathLock, Busy> {
        let path = text(&resolve(path.as_ref()));
        let (wake, turn) = channel();
        let wake = Box::new(move || _ = wake.send(()));
        let ticket = match self.state.lock(&self.who, &path, SystemTime::now(), wake) {
            Turn::Now(ticket) => ticket,
            Turn::TooMany => {
                let holder = "this agent, which has too many paths locked".to_owned();
                return Err(Busy { path, holder, held_ms: 0, ahead: 0 });
            }
            Turn::Later(ticket) => match turn.recv_timeout(at_most) {
                Ok(()) => ticket,
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {
                    self.state.give_up(&self.who, ticket, SystemTime::now())?;
                    ticket
                }
            },
        };
        Ok(PathLock { files: self.clone(), ticket })
    }
}

fn resolve(path: &Path) -> PathBuf {
    let base = std::env::current_dir().unwrap_or_else(|_| PathBuf::from("/"));
    look::resolve(&base, path)
}

fn text(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}

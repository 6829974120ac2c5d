//! [`Reserve`]: a little room on the disk that is kept free for the last word about a run. When the disk is full the
//! outcomes of its tasks cannot be kept; that it has ended, and that they are not all there, still can, so that
//! nobody who asks later is told that its owner died. Used by the recorder.

use std::fs::{self, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

/// Name of the file in the state directory.
const FILE_NAME: &str = "reserve";

/// Its bytes: a changed row is some pages of 4 KiB in the write-ahead log.
const BYTES: usize = 64 * 1024;

/// The room, shared by all that keep runs in a state directory.
#[derive(Debug)]
pub(super) struct Reserve {
    path: PathBuf,
}

impl Reserve {
    pub(super) fn new(state_dir: &Path) -> Self {
        Self { path: state_dir.join(FILE_NAME) }
    }

    /// Takes the room, where it is not taken already. There may be none: then there is nothing to give back.
    pub(super) fn take(&self) {
        if fs::symlink_metadata(&self.path).is_ok() {
            return;
        }
        if let Err(error) = self.write() {
            tracing::debug!(target: "delegate::store", %error, "no room is kept in reserve");
            // A part of it would be no room.
            drop(fs::remove_file(&self.path));
        }
    }

    fn write(&self) -> io::Result<()> {
        let mut options = OpenOptions::new();
        let mut file = options.write(true).create_new(true).mode(0o600).open(&self.path)?;
        file.write_all(&[0; BYTES])
    }

    /// Gives it back to the disk. Whether there was any.
    pub(super) fn give(&self) -> bool {
        fs::remove_file(&self.path).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn room_is_taken_once_and_given_back_once() {
        let dir = tempfile::tempdir().unwrap();
        let (one, two) = (Reserve::new(dir.path()), Reserve::new(dir.path()));
        one.take();
        two.take();
        assert_eq!(fs::metadata(dir.path().join(FILE_NAME)).unwrap().len(), BYTES as u64);
        assert!(two.give() && !one.give());
        one.take();
        assert!(one.give());
        Reserve::new(&dir.path().join("none")).take();
    }
}

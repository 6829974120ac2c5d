//! Files that a child only mentions ([`delegate_protocol::Note::File`]): an agent loop relays what its tools touched
//! and nobody looked at the file. They count in [`crate::file_state`] by their path's text.

use std::path::PathBuf;
use std::time::SystemTime;

use delegate_child::look;
use delegate_protocol::file::Change;
use delegate_protocol::outcome::PATH_BYTES;

use crate::file_state::FileState;
use crate::file_state::registry::Who;

/// Passes mentions of one child on.
#[derive(Debug)]
pub(super) struct Mentions {
    pub(super) state: FileState,
    pub(super) who: Who,
    /// Where a relative path begins: its working directory.
    pub(super) base: PathBuf,
}

impl Mentions {
    pub(super) fn mention(&self, path: &str, written: bool) {
        if path.len() > PATH_BYTES {
            return;
        }
        // The text alone: a look at the disk may block, and this thread watches deadlines.
        let path = look::flat(&self.base.join(path));
        let (path, now) = (path.to_string_lossy(), SystemTime::now());
        if written {
            self.state.changed(&self.who, &path, &Change::Written(None), now);
        } else {
            self.state.read(&self.who, &path, None, false, now);
        }
    }
}

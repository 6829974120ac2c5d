//! What a job has written: the end of its log, and the log as it grows.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::Duration;

use super::{ExemptJob, Status};

/// Most that one [`Follow::more`] gives.
const PIECE: u64 = 64 * 1024;

fn open(path: &Path) -> io::Result<File> {
    File::options().read(true).custom_flags(libc::O_NOFOLLOW).open(path)
}

/// At most the last `bytes` bytes.
pub(super) fn tail(path: &Path, bytes: u64) -> io::Result<Vec<u8>> {
    let mut file = open(path)?;
    let len = file.metadata()?.len();
    file.seek(SeekFrom::Start(len.saturating_sub(bytes)))?;
    let mut text = Vec::new();
    // Not more, though it may have grown meanwhile.
    file.take(bytes).read_to_end(&mut text)?;
    Ok(text)
}

/// A job's log as it grows.
#[derive(Debug)]
pub struct Follow {
    job: ExemptJob,
    file: File,
    #[cfg(target_os = "linux")]
    changes: std::os::fd::OwnedFd,
}

impl Follow {
    pub(super) fn open(job: ExemptJob, from_start: bool) -> io::Result<Self> {
        #[cfg(target_os = "linux")]
        let changes = {
            use rustix::fs::inotify;
            let changes =
                inotify::init(inotify::CreateFlags::CLOEXEC | inotify::CreateFlags::NONBLOCK)?;
            inotify::add_watch(&changes, &job.record.log, inotify::WatchFlags::MODIFY)?;
            // Its record is replaced when it ends.
            let entered = inotify::WatchFlags::MOVED_TO;
            inotify::add_watch(&changes, &job.dir, entered)?;
            changes
        };
        let mut file = open(&job.record.log)?;
        if !from_start {
            file.seek(SeekFrom::End(0))?;
        }
        Ok(Self {
            job,
            file,
            #[cfg(target_os = "linux")]
            changes,
        })
    }

    /// What was added, at most 64 KiB at once. Waits for more up to `limit`; nothing when there is none by
    /// then. `None` once the job and all that it started have ended and everything was given.
    ///
    /// # Errors
    /// When the log cannot be read.
    pub fn more(&mut self, limit: Duration) -> io::Result<Option<Vec<u8>>> {
        // Asked before reading: what was written before its end is read below.
        let over = self.is_over();
        let text = self.read()?;
        if !text.is_empty() {
            return Ok(Some(text));
        }
        if over {
            return Ok(None);
        }
        self.wait(limit);
        self.read().map(Some)
    }

    fn is_over(&self) -> bool {
        match self.job.status() {
            Status::Running => false,
            Status::Exited(ended) => ended.empty != Some(false),
            Status::Unknown { .. } | Status::Gone => true,
        }
    }

    fn read(&self) -> io::Result<Vec<u8>> {
        let mut text = Vec::new();
        (&self.file).take(PIECE).read_to_end(&mut text)?;
        Ok(text)
    }

    #[cfg(target_os = "linux")]
    fn wait(&self, limit: Duration) {
        use std::os::fd::AsFd;
        if super::look::readable(self.changes.as_fd(), limit) {
            let mut bytes = [0; 4096];
            while rustix::io::read(&self.changes, &mut bytes).is_ok_and(|read| read > 0) {}
        }
    }

    #[cfg(not(target_os = "linux"))]
    fn wait(&self, limit: Duration) {
        std::thread::park_timeout(limit);
    }
}

//! A process that belongs to nobody here and must not be touched: it keeps its number, its start time and
//! its lock.

use std::fs::{File, TryLockError};
use std::process::Child;

use super::{Identity, wait_for};

pub(crate) struct Stranger {
    process: Child,
    identity: Identity,
    lock: File,
    _dir: tempfile::TempDir,
}

impl Stranger {
    pub(crate) fn start() -> Self {
        let dir = tempfile::tempdir().expect("dir");
        let path = dir.path().join("lock");
        let lock = File::create(&path).expect("create");
        let mut command = std::process::Command::new("flock");
        let process =
            command.arg("--no-fork").arg(&path).args(["sleep", "600"]).spawn().expect("flock");
        let identity = Identity::of(process.id().cast_signed()).expect("stranger");
        let stranger = Self { process, identity, lock, _dir: dir };
        wait_for("the stranger holds its lock", || stranger.holds_its_lock().then_some(()));
        stranger
    }

    fn holds_its_lock(&self) -> bool {
        match self.lock.try_lock() {
            Err(TryLockError::WouldBlock) => true,
            Ok(()) => {
                self.lock.unlock().expect("unlock");
                false
            }
            Err(TryLockError::Error(error)) => panic!("{error}"),
        }
    }

    pub(crate) fn is_untouched(&self) -> bool {
        let running = self.identity.state().is_some_and(|state| state != "T");
        running && self.identity.lives() && self.holds_its_lock()
    }

    pub(crate) fn identity(&self) -> Identity {
        self.identity
    }
}

impl Drop for Stranger {
    fn drop(&mut self) {
        self.process.kill().ok();
        self.process.wait().ok();
    }
}

//! One worktree as it is written down before it is made, so that one whose owner was killed at any moment is
//! found again. The owner holds a lock on the file (man 2 flock) that the kernel drops with it: who can
//! lock a record knows that its owner is gone, whatever became of its number.

use std::fs::{self, DirBuilder, File, OpenOptions, TryLockError};
use std::io::{self, Read as _, Seek as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};

/// Bytes of a record that are read.
const MOST: u64 = 64 * 1024;

/// Ending of their names.
const ENDING: &str = "json";

/// Ending of one that is being written.
const BEGUN: &str = "new";

/// Ending of an index of our own, for a look.
pub(super) const INDEX: &str = "index";

/// After this time nobody writes a record any more.
const WRITTEN: Duration = Duration::from_secs(60);

/// What is known of a worktree.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Record {
    /// Who made it, for people; whether it lives is told by the lock.
    pub(super) owner: String,
    /// Top folder of the repository's working tree that it was made from.
    pub(super) repository: PathBuf,
    /// Where it is.
    pub(super) path: PathBuf,
    /// Its branch, without `refs/heads/`.
    pub(super) branch: String,
    /// The commit that it began at.
    pub(super) base: String,
    /// It was checked out to its end. Until then no child works in it.
    #[serde(default = "yes", skip_serializing_if = "Clone::clone")]
    pub(super) checked_out: bool,
}

/// What records say that do not say it.
const fn yes() -> bool {
    true
}

/// A record that is held; dropping it lets go and leaves the file.
#[derive(Debug)]
pub(super) struct Held {
    pub(super) record: Record,
    file: File,
    place: PathBuf,
}

impl Held {
    /// Writes a new one down, and holds it. It is there as a whole or not at all.
    pub(super) fn new(folder: &Path, name: &str, record: Record) -> io::Result<Self> {
        DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
        Self::write(folder, name, record)
    }

    /// Writes down that it is checked out. At every moment one of the two records is there, and held.
    pub(super) fn checked_out(self, name: &str) -> io::Result<Self> {
        let folder = self.place.parent().unwrap_or(&self.place);
        Self::write(folder, name, Record { checked_out: true, ..self.record.clone() })
    }

    fn write(folder: &Path, name: &str, record: Record) -> io::Result<Self> {
        let begun = folder.join(name).with_extension(BEGUN);
        let mut options = OpenOptions::new();
        options.read(true).write(true).create_new(true).mode(0o600);
        let mut file = options.open(&begun)?;
        file.lock()?;
        serde_json::to_writer(&file, &record)?;
        file.flush()?;
        file.sync_all()?;
        let place = folder.join(name).with_extension(ENDING);
        fs::rename(&begun, &place)?;
        Ok(Self { record, file, place })
    }

    /// Takes one over whose owner is gone. `None`: it lives, or nobody can tell.
    pub(super) fn take_over(place: &Path) -> io::Result<Option<Self>> {
        let mut file = OpenOptions::new().read(true).write(true).open(place)?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Ok(None),
            Err(TryLockError::Error(error)) => return Err(error),
        }
        if !is_at(&file, place) {
            return Ok(None);
        }
        file.rewind()?;
        let mut text = String::new();
        (&file).take(MOST).read_to_string(&mut text)?;
        let record = serde_json::from_str(&text)?;
        Ok(Some(Self { record, file, place: place.to_owned() }))
    }

    /// Where the record is.
    pub(super) fn place(&self) -> &Path {
        &self.place
    }

    /// Nothing more is to be remembered of it.
    pub(super) fn forget(self) -> io::Result<()> {
        let Self { record: _, file, place } = self;
        let removed = fs::remove_file(place);
        drop(file);
        removed
    }
}

/// Whether this very file lies there.
fn is_at(file: &File, place: &Path) -> bool {
    let id = |seen: fs::Metadata| (seen.dev(), seen.ino());
    let (own, there) = (file.metadata().map(id), fs::metadata(place).map(id));
    own.ok().zip(there.ok()).is_some_and(|(own, there)| own == there)
}

/// Every record in a folder; none where there is no folder. Removes those that were never written to their end.
pub(super) fn all(folder: &Path, now: SystemTime) -> io::Result<Vec<PathBuf>> {
    let entries = match fs::read_dir(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?,
    };
    let mut places = Vec::new();
    for entry in entries {
        let place = entry?.path();
        let ending = place.extension().and_then(|ending| ending.to_str());
        if ending == Some(ENDING) {
            places.push(place);
        } else if matches!(ending, Some(BEGUN | INDEX)) && is_older(&place, now) {
            fs::remove_file(place)?;
        }
    }
    places.sort();
    Ok(places)
}

fn is_older(place: &Path, now: SystemTime) -> bool {
    let changed = fs::symlink_metadata(place).and_then(|seen| seen.modified());
    changed.is_ok_and(|at| now.duration_since(at).is_ok_and(|age| age > WRITTEN))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record() -> Record {
        Record {
            owner: "process 1".to_owned(),
            repository: "/r".into(),
            path: "/w".into(),
            branch: "b".to_owned(),
            base: "0".to_owned(),
            checked_out: false,
        }
    }

    #[test]
    fn a_record_is_taken_over_only_when_its_owner_has_let_go() {
        let folder = tempfile::tempdir().unwrap();
        let held = Held::new(folder.path(), "x", record()).unwrap();
        let places = list(folder.path());
        assert_eq!(places.len(), 1);
        assert!(Held::take_over(&places[0]).unwrap().is_none(), "its owner lives");
        let held = held.checked_out("x").unwrap();
        assert!(Held::take_over(&places[0]).unwrap().is_none(), "it still lives");
        assert_eq!(list(folder.path()), places);
        drop(held);
        let taken = Held::take_over(&places[0]).unwrap().unwrap();
        assert_eq!(taken.record, Record { checked_out: true, ..record() });
        taken.forget().unwrap();
        assert!(list(folder.path()).is_empty());
        assert!(list(&folder.path().join("none")).is_empty());
    }

    fn list(folder: &Path) -> Vec<PathBuf> {
        all(folder, SystemTime::now()).unwrap()
    }

    #[test]
    fn a_record_of_before_is_that_of_a_worktree_that_was_used() {
        let text = r#"{"owner":"o","repository":"/r","path":"/w","branch":"b","base":"0"}"#;
        let before: Record = serde_json::from_str(text).unwrap();
        assert!(before.checked_out);
        assert_eq!(serde_json::to_string(&before).unwrap(), text);
    }

    #[test]
    fn one_that_cannot_be_read_stays_and_one_that_was_never_written_goes() {
        let folder = tempfile::tempdir().unwrap();
        let (begun, odd) = (folder.path().join("a.new"), folder.path().join("b.json"));
        fs::write(&begun, "").unwrap();
        for text in ["", "{\"owner\":1}"] {
            fs::write(&odd, text).unwrap();
            assert!(Held::take_over(&odd).is_err());
        }
        assert_eq!(list(folder.path()), [&*odd]);
        assert!(begun.exists(), "somebody may be writing it");
        let later = SystemTime::now() + 2 * WRITTEN;
        assert_eq!(all(folder.path(), later).unwrap(), [odd]);
        assert!(!begun.exists());
    }
}

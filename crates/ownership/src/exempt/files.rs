//! The files of jobs: for each a record, replaced as a whole, and a log; for a moment, a note of who stops it.
//! A shim is the only writer of its job's record, everybody else reads.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use super::ReattachError;
use super::record::{MAX_BYTES, Record, Unreadable, is_id};

/// A new id: random, so that whoever bears it as a mark has it from the job.
pub(super) fn new_id() -> io::Result<String> {
    let mut bytes = [0; 8];
    File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(format!("{:016x}", u64::from_ne_bytes(bytes)))
}

fn path(dir: &Path, id: &str) -> PathBuf {
    dir.join(format!("{id}.job"))
}

/// Where the log of a job is.
pub(super) fn log_path(dir: &Path, id: &str) -> PathBuf {
    dir.join(format!("{id}.log"))
}

/// Where somebody who stops a job says so.
fn stop_path(dir: &Path, id: &str) -> PathBuf {
    dir.join(format!("{id}.stop"))
}

/// Makes the directory, 0700; one that is there must be this user's, and closed to others. Gives its
/// absolute path.
pub(super) fn prepare(dir: &Path) -> io::Result<PathBuf> {
    fs::DirBuilder::new().recursive(true).mode(0o700).create(dir)?;
    let dir = fs::canonicalize(dir)?;
    let meta = fs::metadata(&dir)?;
    let own = rustix::process::geteuid().as_raw();
    if meta.uid() != own || meta.mode() & 0o077 != 0 {
        let text = "others can enter the directory of exempt jobs: it must be 0700 and this user's";
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, text));
    }
    Ok(dir)
}

/// Creates the log of a job, which must not be there.
pub(super) fn create_log(record: &Record) -> io::Result<File> {
    File::options().append(true).create_new(true).mode(0o600).open(&record.log)
}

/// Replaces the record of a job: either the old one or the new one is there, also after a power failure.
pub(super) fn store(dir: &Path, record: &Record) -> io::Result<()> {
    let new = dir.join(format!("{}.new", record.id));
    let mut options = File::options();
    options.write(true).create(true).truncate(true).mode(0o600).custom_flags(libc::O_NOFOLLOW);
    let mut file = options.open(&new)?;
    file.write_all(&record.encode())?;
    file.sync_all()?;
    fs::rename(&new, path(dir, &record.id))?;
    File::open(dir)?.sync_all()
}

/// Reads the record of a job.
pub(super) fn load(dir: &Path, id: &str) -> Result<Record, ReattachError> {
    let path = path(dir, id);
    if !is_id(id) {
        return Err(ReattachError::NotFound { path });
    }
    let mut bytes = Vec::new();
    let read = File::options().read(true).custom_flags(libc::O_NOFOLLOW).open(&path);
    match read.and_then(|file| file.take(MAX_BYTES).read_to_end(&mut bytes)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return Err(ReattachError::NotFound { path });
        }
        Err(source) => return Err(ReattachError::Io { path, source }),
        Ok(_) => {}
    }
    match Record::decode(&bytes) {
        Ok(record) if record.id == id => Ok(record),
        Ok(_) => Err(ReattachError::Corrupt { path, what: "it is the record of another job" }),
        Err(Unreadable::Version(version)) => Err(ReattachError::TooNew { version }),
        Err(Unreadable::Is(what)) => Err(ReattachError::Corrupt { path, what }),
    }
}

/// The ids of all records in a directory.
pub(super) fn ids(dir: &Path) -> io::Result<Vec<String>> {
    let entries = match fs::read_dir(dir) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        other => other?,
    };
    let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let mut ids: Vec<_> = names
        .filter_map(|name| name.strip_suffix(".job").map(str::to_owned))
        .filter(|id| is_id(id))
        .collect();
    ids.sort();
    Ok(ids)
}

/// Removes all files of a job; its record last, so that what is left is still listed.
pub(super) fn remove(dir: &Path, record: &Record) -> io::Result<()> {
    let id = &record.id;
    for path in
        [log_path(dir, id), stop_path(dir, id), dir.join(format!("{id}.new")), path(dir, id)]
    {
        match fs::remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            Ok(()) | Err(_) => {}
        }
    }
    Ok(())
}

/// Says that this process is about to stop the job.
pub(super) fn note_stop(dir: &Path, id: &str) -> io::Result<()> {
    let mut options = File::options();
    options.write(true).create(true).truncate(true).mode(0o600).custom_flags(libc::O_NOFOLLOW);
    options.open(stop_path(dir, id))?.write_all(std::process::id().to_string().as_bytes())
}

/// Who said so.
pub(super) fn stopper(dir: &Path, id: &str) -> Option<u32> {
    fs::read_to_string(stop_path(dir, id)).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_is_never_a_path() {
        for id in ["", "../../etc/passwd", "0123456789ABCDEF", "0123456789abcde/", "0123"] {
            let dir = Path::new("/nowhere");
            assert!(matches!(load(dir, id), Err(ReattachError::NotFound { .. })), "{id}");
        }
        let (a, b) = (new_id().expect("random"), new_id().expect("random"));
        assert!(is_id(&a) && a != b);
    }

    #[test]
    fn a_directory_that_others_can_enter_is_refused() {
        use std::os::unix::fs::PermissionsExt;
        let dir = tempfile::tempdir().expect("dir");
        let inside = dir.path().join("a/b");
        assert_eq!(prepare(&inside).expect("made").metadata().expect("dir").mode() & 0o777, 0o700);
        fs::set_permissions(&inside, fs::Permissions::from_mode(0o750)).expect("chmod");
        assert_eq!(prepare(&inside).expect_err("open").kind(), io::ErrorKind::PermissionDenied);
    }
}

//! A file as it is now: its place ([`resolve`]) and what tells one content from another ([`stamp`]). Used by
//! [`crate::files`] and by the parent's side; asks nobody.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Component, Path, PathBuf};

use delegate_protocol::file::Stamp;
use sha2::{Digest as _, Sha256};

/// Files up to this size are hashed in passing: about a millisecond.
pub const HASHED: u64 = 1024 * 1024;

/// The one name of a file: absolute, without links as far as it exists. `base` is where a relative path
/// begins.
#[must_use]
pub fn resolve(base: &Path, path: &Path) -> PathBuf {
    let whole = base.join(path);
    if let Ok(real) = fs::canonicalize(&whole) {
        return real;
    }
    // What is to be made has a folder that is there, mostly.
    match (whole.parent().map(fs::canonicalize), whole.file_name()) {
        (Some(Ok(folder)), Some(name)) => folder.join(name),
        _ => flat(&whole),
    }
}

/// A path without `.` and `..`, by its text alone.
#[must_use]
pub fn flat(path: &Path) -> PathBuf {
    let mut flat = PathBuf::from("/");
    for part in path.components() {
        match part {
            Component::ParentDir => drop(flat.pop()),
            Component::Normal(name) => flat.push(name),
            Component::CurDir | Component::RootDir | Component::Prefix(_) => {}
        }
    }
    flat
}

/// What lies there now; `None`: nothing.
///
/// # Errors
/// It cannot be looked at.
pub fn stamp(path: &Path) -> io::Result<Option<Stamp>> {
    let there = match fs::metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        there => there?,
    };
    if !there.is_file() || there.len() > HASHED {
        return Ok(Some(of(&there, None)));
    }
    // It may have become a pipe meanwhile: that must not be waited for.
    let nonblocking = rustix::fs::OFlags::NONBLOCK.bits().cast_signed();
    let mut file = OpenOptions::new().read(true).custom_flags(nonblocking).open(path)?;
    read(&mut file).map(|(stamp, _)| Some(stamp))
}

/// Reads a file, with the stamp of what was read. The stamp is older than the content, never newer: a change
/// meanwhile shows at the next look.
pub(crate) fn read(file: &mut File) -> io::Result<(Stamp, Vec<u8>)> {
    let there = file.metadata()?;
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes)?;
    let hash = (bytes.len() as u64 <= HASHED).then(|| hash(&bytes));
    Ok((of(&there, hash), bytes))
}

fn hash(bytes: &[u8]) -> [u8; 16] {
    let whole = Sha256::digest(bytes);
    let mut short = [0; 16];
    short.iter_mut().zip(whole).for_each(|(to, from)| *to = from);
    short
}

fn of(there: &fs::Metadata, hash: Option<[u8; 16]>) -> Stamp {
    let mtime_ns = there.mtime().saturating_mul(1_000_000_000).saturating_add(there.mtime_nsec());
    let (size, device, inode) = (there.len(), there.dev(), there.ino());
    Stamp { size, mtime_ns, device, inode, hash }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_has_one_name() {
        let folder = tempfile::tempdir().unwrap();
        let base = fs::canonicalize(folder.path()).unwrap();
        fs::create_dir(base.join("real")).unwrap();
        std::os::unix::fs::symlink("real", base.join("link")).unwrap();
        fs::write(base.join("real/a"), "a").unwrap();
        let real = base.join("real/a");
        for path in ["real/a", "link/a", "./real/../link/a", "real/./a"] {
            assert_eq!(resolve(&base, path.as_ref()), real, "{path}");
        }
        assert_eq!(resolve(&base, "link/new".as_ref()), base.join("real/new"));
        assert_eq!(resolve(&base, "no/../such/x".as_ref()), base.join("such/x"));
        assert_eq!(flat("/a/./b/../../..//c".as_ref()), Path::new("/c"));
    }

    #[test]
    fn a_rewrite_that_keeps_size_and_time_is_another_stamp() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a");
        assert_eq!(stamp(&path).unwrap(), None);
        fs::write(&path, "one").unwrap();
        let time = fs::metadata(&path).unwrap().modified().unwrap();
        let one = stamp(&path).unwrap().unwrap();
        fs::write(&path, "two").unwrap();
        File::options().write(true).open(&path).unwrap().set_modified(time).unwrap();
        let two = stamp(&path).unwrap().unwrap();
        assert_eq!((one.size, one.mtime_ns, one.inode), (two.size, two.mtime_ns, two.inode));
        assert!(!one.agrees(&two));
        let (read, bytes) = read(&mut File::open(&path).unwrap()).unwrap();
        assert_eq!((read, bytes), (two, b"two".to_vec()));
        let folder_stamp = stamp(folder.path()).unwrap().unwrap();
        assert_eq!(folder_stamp.hash, None);
    }
}

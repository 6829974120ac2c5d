//! The state directory as a place: made private, recognised as a network file system.
//!
//! Used by the database and by the log files. Only what is made here gets its mode: a directory that
//! somebody named (`/tmp`, say) keeps the one it has; what lies in it is private all the same.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io;
use std::path::Path;

/// File systems on which SQLite's locks, and so two parents at once, cannot be trusted.
const NETWORK: [&str; 12] = [
    "nfs",
    "nfs4",
    "cifs",
    "smb3",
    "smbfs",
    "9p",
    "afs",
    "ceph",
    "lustre",
    "ocfs2",
    "fuse.sshfs",
    "fuse.glusterfs",
];

/// Makes a directory and its parents, mode 0700 where they are new.
pub(crate) fn private_dir(path: &Path) -> io::Result<()> {
    builder().recursive(true).create(path)
}

/// Makes the directories below `root` that lead to `path`. `root` must be there: what somebody has deleted as a whole is not
/// begun again by who still had something to write.
pub(super) fn private_dirs_below(root: &Path, path: &Path) -> io::Result<()> {
    let below = path.strip_prefix(root).map_err(|_| io::ErrorKind::InvalidInput)?;
    let mut made = root.to_owned();
    for name in below {
        made.push(name);
        match builder().create(&made) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
            _ => {}
        }
    }
    Ok(())
}

fn builder() -> DirBuilder {
    #[cfg_attr(not(unix), expect(unused_mut, reason = "there are no modes"))]
    let mut builder = DirBuilder::new();
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder
}

/// Opens for writing, mode 0600 where it is new.
pub(crate) fn private_file(path: &Path, options: &mut OpenOptions) -> io::Result<File> {
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(options, 0o600);
    options.create(true).open(path)
}

/// Which file lies at `path`: device and inode.
///
/// # Errors
/// There is none, it cannot be looked at, or files have no such numbers here.
pub(super) fn file_at(path: &Path) -> io::Result<(u64, u64)> {
    #[cfg(unix)]
    return std::fs::metadata(path).map(|file| {
        (std::os::unix::fs::MetadataExt::dev(&file), std::os::unix::fs::MetadataExt::ino(&file))
    });
    #[cfg(not(unix))]
    Err(io::ErrorKind::Unsupported.into())
}

/// The kind of network file system that `path` lies on, if it does.
pub(super) fn network_file_system(path: &Path) -> Option<String> {
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").ok()?;
    network_mount(&mounts, &path.canonicalize().ok()?)
}

/// The same from the text of `mountinfo` (proc_pid_mountinfo(5)): the deepest mount point decides,
/// and of two mounts on one point the later one.
fn network_mount(mounts: &str, path: &Path) -> Option<String> {
    let of_line = |line: &str| {
        let (left, right) = line.split_once(" - ")?;
        let point = left.split(' ').nth(4)?.replace("\\040", " ");
        path.starts_with(&point).then(|| (point.len(), right.split(' ').next().map(str::to_owned)))
    };
    let (_, kind) = mounts.lines().filter_map(of_line).max_by_key(|(depth, _)| *depth)?;
    kind.filter(|kind| NETWORK.contains(&kind.as_str()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_deleted_as_a_whole_is_not_begun_again() {
        let dir = tempfile::tempdir().unwrap();
        let state = dir.path().join("state");
        let folder = state.join("runs/x/0");
        assert!(private_dirs_below(&state, &folder).is_err() && !state.exists());
        private_dir(&state).unwrap();
        for _ in 0..2 {
            private_dirs_below(&state, &folder).unwrap();
        }
        assert!(folder.is_dir());
        std::fs::remove_dir_all(state.join("runs")).unwrap();
        private_dirs_below(&state, &folder).unwrap();
        assert!(private_dirs_below(&folder, &state).is_err(), "it is not below");
    }

    #[test]
    fn the_deepest_mount_decides() {
        let mounts = "21 1 8:1 / / rw,noatime shared:1 - ext4 /dev/sda1 rw\n\
                      30 21 0:40 / /home rw - nfs4 server:/home rw\n\
                      31 30 0:41 / /home/a\\040b rw master:2 - tmpfs none rw\n\
                      32 21 0:42 / /over rw - nfs server:/x rw\n\
                      33 32 0:43 / /over rw - ext4 /dev/sdb rw\n\
                      broken line\n";
        let kind = |path: &str| network_mount(mounts, Path::new(path));
        assert_eq!(kind("/var/lib"), None);
        assert_eq!(kind("/home/me/state").as_deref(), Some("nfs4"));
        assert_eq!(kind("/homework"), None);
        assert_eq!(kind("/home/a b/state"), None);
        assert_eq!(kind("/over/x"), None);
        assert_eq!(network_mount("", Path::new("/")), None);
    }
}

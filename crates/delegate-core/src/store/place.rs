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
    let mut builder = DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.create(path)
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

//! Whether a directory lies on a network file system, where SQLite's locks cannot be relied on.
//! The command warns once when the state directory does.

use std::path::Path;

/// Names of FUSE file systems whose data lies elsewhere, as `/proc/self/mountinfo` spells them.
const FUSE: [&str; 9] = [
    "fuse.sshfs",
    "fuse.s3fs",
    "fuse.gcsfuse",
    "fuse.rclone",
    "fuse.glusterfs",
    "fuse.davfs2",
    "fuse.ceph-fuse",
    "fuse.juicefs",
    "fuse.curlftpfs",
];

/// The name of the network file system that holds `path` (or, where that does not exist yet, its
/// nearest existing ancestor). `None` for a local one, and where it cannot be told.
///
/// Source: statfs(2), the magic numbers of `linux/magic.h`.
#[cfg(target_os = "linux")]
#[must_use]
pub fn network_filesystem(path: &Path) -> Option<&'static str> {
    let existing = path.ancestors().find(|path| path.exists())?;
    let kind = rustix::fs::statfs(existing).ok()?.f_type;
    // Magic numbers are 32 bits wide; the field's width and sign differ between machines.
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "the low 32 bits are the number"
    )]
    let magic = kind as u32;
    if magic == FUSE_MAGIC {
        let mounts = std::fs::read_to_string("/proc/self/mountinfo").ok()?;
        return fuse_name(&mounts, &existing.canonicalize().ok()?);
    }
    by_magic(magic)
}

/// As on Linux; here it cannot be told.
#[cfg(not(target_os = "linux"))]
#[must_use]
pub fn network_filesystem(_path: &Path) -> Option<&'static str> {
    None
}

const FUSE_MAGIC: u32 = 0x6573_5546;

const fn by_magic(magic: u32) -> Option<&'static str> {
    match magic {
        0x6969 => Some("nfs"),
        0xff53_4d42 => Some("cifs"),
        0xfe53_4d42 => Some("smb2"),
        0x517b => Some("smb"),
        0x0102_1997 => Some("9p"),
        0x00c3_6400 => Some("ceph"),
        0x5346_414f | 0x6b41_4653 => Some("afs"),
        0x7375_7245 => Some("coda"),
        0x0bd0_0bd0 => Some("lustre"),
        _ => None,
    }
}

/// The network file system of the deepest mount above `path`, when FUSE serves it.
fn fuse_name(mountinfo: &str, path: &Path) -> Option<&'static str> {
    let kind = mountinfo
        .lines()
        .filter_map(|line| {
            // proc_pid_mountinfo(5): the fifth field is the mount point; the type follows ` - `.
            let (mount, kind) = line.split_once(" - ")?;
            let point = unescape(mount.split(' ').nth(4)?);
            let kind = kind.split(' ').next()?;
            path.starts_with(&point).then(|| (Path::new(&point).components().count(), kind))
        })
        // The later of two mounts at one point covers the earlier.
        .max_by_key(|(depth, _)| *depth)
        .map(|(_, kind)| kind)?;
    FUSE.into_iter().find(|name| *name == kind)
}

/// Blanks in a mount point are written in octal.
fn unescape(point: &str) -> String {
    point.replace("\\040", " ").replace("\\011", "\t").replace("\\012", "\n").replace("\\134", "\\")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_deepest_mount_decides() {
        let mounts = "\
22 1 8:1 / / rw - ext4 /dev/sda1 rw
40 22 0:40 / /home/u/far\\040away rw,nosuid - fuse.sshfs host: rw
41 40 0:41 / /home/u/far\\040away/local rw - fuse.ntfs-3g /dev/sdb rw
broken line
";
        assert_eq!(fuse_name(mounts, Path::new("/home/u/far away/x")), Some("fuse.sshfs"));
        assert_eq!(fuse_name(mounts, Path::new("/home/u/far away/local/x")), None);
        assert_eq!(fuse_name(mounts, Path::new("/home/u")), None);
    }

    #[test]
    fn magic_numbers_have_names() {
        assert_eq!(by_magic(0x6969), Some("nfs"));
        assert_eq!(by_magic(0xff53_4d42), Some("cifs"));
        assert_eq!(by_magic(0xef53), None);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_local_directory_is_not_on_a_network_even_before_it_exists() {
        assert_eq!(network_filesystem(Path::new("/proc/self/not/there")), None);
    }
}

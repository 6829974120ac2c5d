//! Where the guards of an owner that executed another program wait for it: a socket in a directory of this user
//! alone, named after the owner. [`crate::supervisor_loop`] opens it, [`crate::client`] looks for it.
//!
//! The directory is `$XDG_RUNTIME_DIR/delegate` where that is there, else `/tmp/delegate-UID`. It is held by a
//! descriptor once it was checked, and everything in it is reached through that: who replaces the directory under
//! us wins nothing.

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, Mode, OFlags};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

use crate::identity::{self, Stat};
use crate::journal;
use crate::sys::{Pid, socket};

/// Entries that are looked at: nobody but this user's guards makes any.
const MAX_ENTRIES: usize = 4096;

/// Owners that may knock at the same time: there is one.
const BACKLOG: i32 = 8;

/// Whose guards wait behind a door.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Name {
    /// Inode of the pid namespace in which the number counts.
    namespace: u64,
    pub(crate) pid: Pid,
    start: u64,
    /// Which of the owners of that process.
    pub(crate) owner: u64,
}

impl Name {
    /// `None` when the process is gone, or `/proc` is.
    pub(crate) fn of(pid: Pid, owner: u64) -> Option<Self> {
        let (namespace, start) = (identity::own_namespace()?, Stat::read(pid)?.start);
        Some(Self { namespace, pid, start, owner })
    }

    /// Of an owner as its guards know it: number, start time, and which of its process.
    pub(crate) fn of_identity(identity: &str) -> Option<Self> {
        Self::parse(&format!("{}.{identity}{SUFFIX}", identity::own_namespace()?))
    }

    fn parse(text: &str) -> Option<Self> {
        let mut numbers = text.strip_suffix(SUFFIX)?.split('.');
        let name = Self {
            namespace: numbers.next()?.parse().ok()?,
            pid: numbers.next()?.parse().ok().filter(|pid| *pid > 0)?,
            start: numbers.next()?.parse().ok()?,
            owner: numbers.next()?.parse().ok()?,
        };
        (numbers.next().is_none() && name.text() == text).then_some(name)
    }

    fn text(&self) -> String {
        let Self { namespace, pid, start, owner } = self;
        format!("{namespace}.{pid}.{start}.{owner}{SUFFIX}")
    }

    /// Whether it is of the same process.
    pub(crate) fn is_of(&self, other: &Self) -> bool {
        Self { owner: other.owner, ..*self } == *other
    }

    /// Certainly of nobody who lives.
    fn is_stale(&self) -> bool {
        identity::own_namespace() == Some(self.namespace)
            && identity::proc_is_ours()
            && Stat::read(self.pid).is_none_or(|stat| stat.start != self.start)
    }
}

const SUFFIX: &str = ".door";

/// The directory of the doors of this user.
#[derive(Debug)]
pub(crate) struct Hall {
    dir: OwnedFd,
}

/// The places where that may be, and the one where guards make it first. Whoever executes another program may change
/// the environment.
pub(crate) fn places() -> Vec<PathBuf> {
    let own = rustix::process::geteuid().as_raw();
    let fallback = PathBuf::from(format!("/tmp/delegate-{own}"));
    let runtime = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
    let runtime = runtime.filter(|dir| dir.is_absolute() && dir.is_dir());
    runtime.map(|dir| dir.join("delegate")).into_iter().chain([fallback]).collect()
}

impl Hall {
    /// The first of [`places`], made if need be. One that is wrong is refused, and not passed over.
    pub(crate) fn make() -> io::Result<Self> {
        let Some(path) = places().into_iter().next() else {
            return Err(io::ErrorKind::NotFound.into());
        };
        match rustix::fs::mkdir(&path, Mode::RWXU) {
            Ok(()) | Err(Errno::EXIST) => Self::open(&path),
            Err(errno) => Err(errno.into()),
        }
    }

    /// One that is there.
    ///
    /// # Errors
    /// Also when it is no directory of this user alone, or a symbolic link, or on a file system that may keep us
    /// waiting.
    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let dir = rustix::fs::open(path, flags, Mode::empty())?;
        let found = rustix::fs::fstat(&dir)?;
        let own = rustix::process::geteuid().as_raw();
        if found.st_uid != own || found.st_mode & 0o777 != 0o700 {
            let text = format!("{} must be this user's and 0700", path.display());
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, text));
        }
        if journal::is_served_elsewhere(dir.as_fd())? {
            return Err(io::ErrorKind::Unsupported.into());
        }
        Ok(Self { dir })
    }

    /// Whose doors are there.
    pub(crate) fn names(&self) -> Vec<Name> {
        let Ok(entries) = std::fs::read_dir(self.path("")) else { return Vec::new() };
        let entries = entries.take(MAX_ENTRIES).flatten();
        entries.filter_map(|entry| Name::parse(entry.file_name().to_str()?)).collect()
    }

    /// Removes what dead owners' guards have left.
    pub(crate) fn sweep(&self) {
        for name in self.names().iter().filter(|name| name.is_stale()) {
            // Somebody else may have been faster.
            let _ = rustix::fs::unlinkat(&self.dir, name.text(), AtFlags::empty());
        }
    }

    /// Removes the door that a dead guard of this owner has left.
    pub(crate) fn remove(&self, name: &Name) {
        // Mostly there is none.
        let _ = rustix::fs::unlinkat(&self.dir, name.text(), AtFlags::empty());
    }

    fn path(&self, name: &str) -> PathBuf {
        // The length of an address is bounded (man 7 unix); that of a directory's path is not.
        PathBuf::from(format!("/proc/self/fd/{}/{name}", self.dir.as_raw_fd()))
    }

    fn inode(&self, name: &Name) -> Option<(u64, u64)> {
        let found = rustix::fs::statat(&self.dir, name.text(), AtFlags::SYMLINK_NOFOLLOW).ok()?;
        Some((found.st_dev, found.st_ino))
    }

    /// Knocks. Without waiting: where too many do, it fails.
    pub(crate) fn knock(&self, name: &Name) -> io::Result<OwnedFd> {
        let (kind, flags) = (SocketType::SEQPACKET, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK);
        let caller = rustix::net::socket_with(AddressFamily::UNIX, kind, flags, None)?;
        rustix::net::connect(&caller, &SocketAddrUnix::new(self.path(&name.text()))?)?;
        rustix::io::ioctl_fionbio(&caller, false)?;
        let own = rustix::process::geteuid().as_raw();
        match socket::peer(caller.as_fd()) {
            Some((_, user)) if user == own => Ok(caller),
            Some(_) | None => Err(io::ErrorKind::PermissionDenied.into()),
        }
    }
}

/// A socket that listens, and its name while it does.
#[derive(Debug)]
pub(crate) struct Door {
    hall: Hall,
    name: Name,
    inode: Option<(u64, u64)>,
    listener: OwnedFd,
}

impl Door {
    /// In the place of one that a dead guard has left.
    pub(crate) fn open(hall: Hall, name: Name) -> io::Result<Self> {
        hall.sweep();
        let (kind, flags) = (SocketType::SEQPACKET, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK);
        let listener = rustix::net::socket_with(AddressFamily::UNIX, kind, flags, None)?;
        match rustix::fs::unlinkat(&hall.dir, name.text(), AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(errno) => return Err(errno.into()),
        }
        rustix::net::bind(&listener, &SocketAddrUnix::new(hall.path(&name.text()))?)?;
        let inode = hall.inode(&name);
        let door = Self { hall, name, inode, listener };
        rustix::net::listen(&door.listener, BACKLOG)?;
        Ok(door)
    }

    /// Whether it still is where it was opened.
    pub(crate) fn is_there(&self) -> bool {
        let same = self.hall.inode(&self.name) == self.inode;
        // A directory that was removed has nothing in it.
        same && rustix::fs::fstat(&self.hall.dir).is_ok_and(|dir| dir.st_nlink > 0)
    }

    pub(crate) fn listener(&self) -> &OwnedFd {
        &self.listener
    }

    /// The next one who knocks; `None` when nobody does.
    pub(crate) fn answer(&self) -> io::Result<Option<OwnedFd>> {
        match rustix::net::accept_with(&self.listener, SocketFlags::CLOEXEC) {
            Ok(caller) => Ok(Some(caller)),
            Err(Errno::AGAIN | Errno::CONNABORTED | Errno::INTR) => Ok(None),
            Err(errno) => Err(errno.into()),
        }
    }
}

impl Drop for Door {
    fn drop(&mut self) {
        // Another guard may have opened one of this name since.
        if self.inode.is_some() && self.hall.inode(&self.name) == self.inode {
            let _ = rustix::fs::unlinkat(&self.hall.dir, self.name.text(), AtFlags::empty());
        }
    }
}

/// Whether the other end is the process that this handle stands for, and this user's.
///
/// The number alone is enough while that process lives: it has had it since before the door was opened.
pub(crate) fn is_process(caller: &OwnedFd, process: &OwnedFd) -> bool {
    let Some((pid, user)) = socket::peer(caller.as_fd()) else { return false };
    let handle = socket::peer_pidfd(caller.as_fd());
    let inode = handle.and_then(|handle| identity::pidfd_inode(handle.as_fd()));
    let same_inode = match (inode, identity::pidfd_inode(process.as_fd())) {
        (Some(caller), Some(process)) => caller == process,
        // An older kernel.
        (None, _) | (_, None) => true,
    };
    user == rustix::process::geteuid().as_raw()
        && same_inode
        && identity::pid_of(process.as_fd()) == Some(pid)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use proptest::prelude::*;

    use super::*;

    fn hall(dir: &Path) -> Hall {
        std::fs::set_permissions(dir, std::fs::Permissions::from_mode(0o700)).expect("chmod");
        Hall::open(dir).expect("hall")
    }

    fn own() -> Name {
        Name::of(identity::own_pid(), 7).expect("this process")
    }

    #[test]
    fn a_directory_that_is_not_this_users_alone_is_refused() {
        let dir = tempfile::tempdir().expect("dir");
        let (open, link) = (dir.path().join("open"), dir.path().join("link"));
        std::fs::create_dir(&open).expect("dir");
        for mode in [0o755, 0o770, 0o701, 0o1700, 0o500] {
            std::fs::set_permissions(&open, std::fs::Permissions::from_mode(mode)).expect("chmod");
            let wrong = mode & 0o777 != 0o700;
            assert_eq!(Hall::open(&open).is_err(), wrong, "{mode:o}");
        }
        std::fs::set_permissions(&open, std::fs::Permissions::from_mode(0o700)).expect("chmod");
        symlink(&open, &link).expect("link");
        assert!(Hall::open(&open).is_ok() && Hall::open(&link).is_err());
        let file = dir.path().join("file");
        std::fs::write(&file, "").expect("write");
        assert!(Hall::open(&file).is_err() && Hall::open(&dir.path().join("none")).is_err());
        // Everybody's, and of root: not ours unless we are.
        assert!(Hall::open(Path::new("/tmp")).is_err());
    }

    #[test]
    fn the_caller_is_known_and_the_name_goes_with_the_door() {
        let dir = tempfile::tempdir().expect("dir");
        let (name, inside) = (own(), hall(dir.path()));
        assert!(inside.knock(&name).is_err(), "no door");
        let door = Door::open(hall(dir.path()), name).expect("door");
        assert!(door.answer().expect("none").is_none());
        let knocked = inside.knock(&name).expect("knock");
        let caller = door.answer().expect("caller").expect("caller");
        assert!(is_process(&caller, &identity::own_pidfd().expect("pidfd")));
        let parent = rustix::process::getppid().expect("parent");
        let flags = rustix::process::PidfdFlags::empty();
        let other = rustix::process::pidfd_open(parent, flags).expect("pidfd");
        assert!(!is_process(&caller, &other));
        // The next guard's, of the same name: the first one's end does not take it away.
        let next = Door::open(hall(dir.path()), name).expect("door");
        drop(door);
        assert_eq!(inside.names(), [name]);
        drop((next, knocked));
        assert!(inside.names().is_empty());
    }

    #[test]
    fn doors_of_the_dead_are_removed_and_others_are_not() {
        let dir = tempfile::tempdir().expect("dir");
        let inside = hall(dir.path());
        let living = own();
        let dead = Name { start: living.start + 1, ..living };
        let elsewhere = Name { namespace: living.namespace + 1, ..dead };
        for name in [living.text(), dead.text(), elsewhere.text(), "note".into()] {
            std::fs::write(dir.path().join(name), "").expect("write");
        }
        inside.sweep();
        let mut left = inside.names();
        left.sort();
        assert_eq!(left, [living, elsewhere]);
        assert!(dir.path().join("note").exists());
    }

    proptest! {
        #[test]
        fn names_survive_and_parsing_is_total(
            numbers in any::<[u64; 3]>(), pid in 1..i32::MAX, text in ".{0,60}"
        ) {
            let [namespace, start, owner] = numbers;
            let name = Name { namespace, pid, start, owner };
            prop_assert_eq!(Name::parse(&name.text()), Some(name));
            prop_assert_eq!(Name::parse(&text), None);
        }
    }
}

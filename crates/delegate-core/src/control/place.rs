//! The directory of the control sockets: only this user's, and swept of what dead delegators left.
//!
//! A name says whose socket it is (pid namespace, pid, start time), so that a dead one is known without
//! asking, and a new process never takes over an old name.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::fs::{AtFlags, Mode, OFlags};

use crate::store::start_time;

/// Names that are looked at: a directory that somebody filled ends nobody's patience.
const MAX_ENTRIES: usize = 4096;

/// What a socket is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Runs are listed, steered and stopped.
    Control,
    /// Shared helpers are reached.
    Helpers,
}

impl Kind {
    const ALL: [Self; 2] = [Self::Control, Self::Helpers];

    const fn suffix(self) -> &'static str {
        match self {
            Self::Control => ".control",
            Self::Helpers => ".helpers",
        }
    }
}

/// Where the sockets of this user lie: `$XDG_RUNTIME_DIR/delegate`, else `/tmp/delegate-UID`.
#[must_use]
pub fn directory(variable: impl Fn(&str) -> Option<OsString>) -> PathBuf {
    let runtime = variable("XDG_RUNTIME_DIR").map(PathBuf::from);
    match runtime.filter(|dir| dir.is_absolute() && dir.is_dir()) {
        Some(dir) => dir.join("delegate"),
        None => PathBuf::from(format!("/tmp/delegate-{}", own_user())),
    }
}

/// Makes that directory if need be, for a socket of one's own in it.
///
/// # Errors
/// It cannot be made, or is not this user's alone.
pub fn make_directory(path: &Path) -> io::Result<()> {
    Place::make(path).map(drop)
}

pub(crate) fn own_user() -> u32 {
    rustix::process::geteuid().as_raw()
}

/// Whose socket it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Name {
    kind: Kind,
    namespace: u64,
    pid: u32,
    start: u64,
    number: u32,
}

impl Name {
    fn own(kind: Kind) -> Option<Self> {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let pid = std::process::id();
        Some(Self {
            kind,
            namespace: namespace()?,
            pid,
            start: start_time(pid)?,
            number: NUMBER.fetch_add(1, Ordering::Relaxed),
        })
    }

    pub(crate) fn text(&self) -> String {
        let Self { kind, namespace, pid, start, number } = self;
        format!("{namespace}.{pid}.{start}.{number}{}", kind.suffix())
    }

    fn parse(text: &str) -> Option<Self> {
        let kind = Kind::ALL.into_iter().find(|kind| text.ends_with(kind.suffix()))?;
        let mut parts = text.strip_suffix(kind.suffix())?.split('.');
        let name = Self {
            kind,
            namespace: parts.next()?.parse().ok()?,
            pid: parts.next()?.parse().ok()?,
            start: parts.next()?.parse().ok()?,
            number: parts.next()?.parse().ok()?,
        };
        (parts.next().is_none() && name.text() == text).then_some(name)
    }

    /// Its number, where that is one of our pid namespace.
    pub(super) fn pid_here(&self) -> Option<u32> {
        (namespace() == Some(self.namespace)).then_some(self.pid)
    }

    /// Certainly of nobody who lives: only of processes that we can see do we know that.
    fn is_stale(&self) -> bool {
        let own = std::process::id();
        let proc_is_ours =
            fs::read_link("/proc/self").is_ok_and(|to| to.to_str() == Some(&own.to_string()));
        namespace() == Some(self.namespace)
            && proc_is_ours
            && start_time(self.pid) != Some(self.start)
    }
}

/// Whether a process stands still by SIGSTOP or SIGTSTP (field 3 of `/proc/PID/stat`, man 5 proc).
pub(super) fn is_stopped(pid: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(')').is_some_and(|(_, rest)| rest.trim_start().starts_with('T'))
}

/// Number of our pid namespace (man 7 namespaces).
fn namespace() -> Option<u64> {
    fs::metadata("/proc/self/ns/pid").ok().map(|file| file.ino())
}

/// The directory, held open: what is done in it is done in the one that was checked.
#[derive(Debug)]
pub(crate) struct Place {
    dir: OwnedFd,
}

impl Place {
    /// Makes it if need be.
    pub(crate) fn make(path: &Path) -> io::Result<Self> {
        match rustix::fs::mkdir(path, Mode::RWXU) {
            Ok(()) | Err(rustix::io::Errno::EXIST) => Self::open(path),
            Err(errno) => Err(errno.into()),
        }
    }

    /// One that is there.
    ///
    /// # Errors
    /// Also when it is no directory of this user alone, or a symbolic link.
    pub(super) fn open(path: &Path) -> io::Result<Self> {
        let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let dir = rustix::fs::open(path, flags, Mode::empty())?;
        let found = rustix::fs::fstat(&dir)?;
        if found.st_uid != own_user() || found.st_mode & 0o077 != 0 {
            let text = format!("{} must be this user's alone (0700)", path.display());
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, text));
        }
        Ok(Self { dir })
    }

    /// An address is 107 bytes at most (man 7 unix), a directory's path is not.
    fn path(&self, name: &str) -> PathBuf {
        PathBuf::from(format!("/proc/self/fd/{}/{name}", self.dir.as_raw_fd()))
    }

    /// Control sockets.
    pub(super) fn names(&self) -> Vec<Name> {
        self.all().into_iter().filter(|name| name.kind == Kind::Control).collect()
    }

    fn all(&self) -> Vec<Name> {
        let Ok(entries) = fs::read_dir(self.path("")) else { return Vec::new() };
        let entries = entries.take(MAX_ENTRIES).flatten();
        entries.filter_map(|entry| Name::parse(entry.file_name().to_str()?)).collect()
    }

    /// Removes what dead delegators left.
    pub(super) fn sweep(&self) {
        self.all().iter().filter(|name| name.is_stale()).for_each(|name| self.remove(name));
    }

    pub(crate) fn remove(&self, name: &Name) {
        if let Err(error) = rustix::fs::unlinkat(&self.dir, name.text(), AtFlags::empty()) {
            tracing::debug!(target: "delegate::control", %error, "somebody else was faster");
        }
    }

    /// A socket of this process.
    pub(crate) fn listen(&self, kind: Kind) -> io::Result<(UnixListener, Name)> {
        self.sweep();
        let name = Name::own(kind).ok_or(io::ErrorKind::Unsupported)?;
        Ok((UnixListener::bind(self.path(&name.text()))?, name))
    }

    pub(super) fn connect(&self, name: &Name) -> io::Result<UnixStream> {
        UnixStream::connect(self.path(&name.text()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{PermissionsExt, symlink};

    #[test]
    fn a_socket_of_the_dead_is_removed_by_identity_and_one_of_the_living_is_not() {
        let root = tempfile::tempdir().unwrap();
        let place = Place::make(&root.path().join("delegate")).unwrap();
        let (_listener, name) = place.listen(Kind::Control).unwrap();
        let files = [
            Name { start: name.start + 1, ..name },
            Name { namespace: name.namespace + 1, start: 1, ..name },
        ];
        for name in &files {
            fs::write(place.path(&name.text()), "").unwrap();
        }
        fs::write(place.path("notes.txt"), "").unwrap();
        let (_second, another) = place.listen(Kind::Control).unwrap();
        let mut left = place.names();
        left.sort_by_key(|name| (name.namespace, name.number));
        assert_eq!(left, [name, another, files[1]], "what cannot be known is left");
        assert!(place.path("notes.txt").exists());
        assert!(place.connect(&name).is_ok());
    }

    #[test]
    fn a_directory_of_others_or_behind_a_link_is_refused() {
        let root = tempfile::tempdir().unwrap();
        let open = root.path().join("open");
        fs::create_dir(&open).unwrap();
        fs::set_permissions(&open, fs::Permissions::from_mode(0o755)).unwrap();
        let error = Place::make(&open).unwrap_err();
        assert!(error.to_string().contains("0700"), "{error}");
        fs::set_permissions(&open, fs::Permissions::from_mode(0o700)).unwrap();
        assert!(Place::make(&open).is_ok());
        symlink(&open, root.path().join("link")).unwrap();
        assert!(Place::make(&root.path().join("link")).is_err());
    }

    #[test]
    fn the_directory_follows_the_environment() {
        let root = tempfile::tempdir().unwrap();
        let given = root.path().as_os_str().to_owned();
        assert_eq!(directory(|_| Some(given.clone())), root.path().join("delegate"));
        let fallback = PathBuf::from(format!("/tmp/delegate-{}", own_user()));
        assert_eq!(directory(|_| None), fallback);
        assert_eq!(directory(|_| Some("relative".into())), fallback);
    }
}

//! Why a tier is not used, in words: what [`super`] decides, for people.

use std::fmt;
use std::path::PathBuf;

use super::NoNamespace;

/// Why a tier is not used.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Why {
    /// Another one was asked for.
    NotAsked,
    /// What only 5.3 and later have is missing.
    NoPidfd,
    /// `/proc` is missing or of another pid namespace.
    NoProc,
    /// No hierarchy of version 2 is mounted.
    NotMounted,
    /// Our own cgroup is not below the mount.
    OutOfSight,
    /// Our own cgroup is part of a threaded subtree.
    Threaded,
    /// No cgroup could be made in this directory.
    NotWritable {
        /// Our own cgroup.
        dir: PathBuf,
        /// The error number of making one inside.
        errno: i32,
    },
    /// None of our own, and a systemd that was asked for one gave none.
    NoScope {
        /// Why there is none of our own.
        own: Box<Why>,
        /// What came of asking.
        said: String,
    },
    /// The kernel is older than 5.14.
    NoKill,
    /// No code for this processor.
    NoInto,
    /// A pid namespace, or what it needs, could not be had.
    NoNamespace {
        /// Where it ended.
        failed: NoNamespace,
        /// What is known to be the reason, and what to do about it.
        reason: Refusal,
    },
    /// It is switched off, or nobody tried.
    NotTried,
}

/// Why a kernel refuses namespaces, as far as its settings tell.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Refusal {
    /// `user.max_pid_namespaces` or `user.max_user_namespaces` is 0.
    Limit,
    /// AppArmor restricts user namespaces.
    AppArmor,
    /// This process has another root directory.
    Root,
    /// `/proc` is covered in part, as container engines do it.
    Covered,
    /// Nothing that can be seen: a seccomp filter or a security module.
    Unseen,
}

impl Refusal {
    const fn words(self) -> &'static str {
        match self {
            Self::Limit => {
                "user.max_pid_namespaces or user.max_user_namespaces is too low: raise it with sysctl"
            }
            Self::AppArmor => {
                "AppArmor restricts user namespaces: give this program a profile with `userns`, or set \
                 kernel.apparmor_restrict_unprivileged_userns=0"
            }
            Self::Root => "this process runs in another root directory (chroot), where nobody may",
            Self::Covered => {
                "parts of /proc are covered, as in most containers: start the container with its /proc \
                 uncovered, or use cgroup"
            }
            Self::Unseen => {
                "a seccomp filter or a security module may refuse it, as in most containers: allow it \
                 there, run as root, or use cgroup"
            }
        }
    }
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotAsked => f.write_str("another one was asked for"),
            Self::NoPidfd => f.write_str("the kernel has no pidfd_open (Linux 5.3)"),
            Self::NoProc => f.write_str("/proc is missing or of another pid namespace"),
            Self::NotMounted => f.write_str("no cgroup2 hierarchy is mounted"),
            Self::OutOfSight => f.write_str("our cgroup is not below the cgroup2 mount"),
            Self::Threaded => f.write_str("our cgroup is threaded: no process can be born in it"),
            Self::NotWritable { dir, errno } => {
                let error = std::io::Error::from_raw_os_error(*errno);
                write!(f, "no cgroup can be made in {}: {error}", dir.display())
            }
            Self::NoScope { own, said } => {
                write!(f, "{own}; a scope was asked of systemd, and there is none: {said}")
            }
            Self::NoKill => f.write_str("the kernel has no cgroup.kill (Linux 5.14)"),
            Self::NoInto => f.write_str("clone3 into a cgroup is not built for this processor"),
            Self::NoNamespace { failed: NoNamespace { step, errno }, reason } => {
                let error = std::io::Error::from_raw_os_error(*errno);
                write!(f, "{}: {error}; {}", step.words(), reason.words())
            }
            Self::NotTried => f.write_str("nobody has tried"),
        }
    }
}

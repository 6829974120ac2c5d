//! Which program to execute: by name, by path, or this very program through a kept descriptor.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, OnceLock};

/// The argument that makes a program a guard ([`crate::owner::run_if_asked`]): the keeper, which starts
/// the supervisor. The words share nothing with each other or an owner's: a kill by name takes one
/// of the three at most.
pub const KEEPER_ROLE: &str = "@warden";

/// The argument with which a keeper starts the supervisor.
pub(crate) const SUPERVISOR_ROLE: &str = "@minder";

/// The argument with which a supervisor starts the process that is number 1 of a pid namespace.
pub(crate) const FIRST_ROLE: &str = "@porter";

/// Whether `argument` names this role, with or without a number behind it.
pub(crate) fn is_role(argument: &OsStr, role: &str) -> bool {
    let rest = argument.to_str().and_then(|argument| argument.strip_prefix(role));
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('='))
}

/// Where guards stand, and what they are to their owner.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Stand {
    /// In a session of their own. The owner's process sees no child that its program did not start.
    #[default]
    Apart,
    /// In the owner's session, each in a group of its own; the keeper is the owner's child. What they start may
    /// join the owner's group, and then stops, goes on and ends with it at a terminal.
    Near,
}

/// The numbers in the argument that makes a program a guard.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct RoleNumbers {
    /// The number of the last guard that this owner had.
    pub(crate) before: u32,
    /// Which of the owners in its process it is.
    pub(crate) owner: u64,
    pub(crate) stand: Stand,
}

impl RoleNumbers {
    /// `ROLE=BEFORE.OWNER`, and `.near`.
    pub(crate) fn argument(self, role: &str) -> String {
        let near = if self.stand == Stand::Near { ".near" } else { "" };
        format!("{role}={}.{}{near}", self.before, self.owner)
    }

    /// What is no number is 0.
    pub(crate) fn of(argument: &str) -> Self {
        let mut parts = argument.split_once('=').map_or("", |(_, numbers)| numbers).split('.');
        let mut next = || parts.next().unwrap_or_default();
        let (before, owner) = (next().parse().unwrap_or(0), next().parse().unwrap_or(0));
        let stand = if next() == "near" { Stand::Near } else { Stand::Apart };
        Self { before, owner, stand }
    }
}

/// A program.
#[derive(Debug, Clone)]
pub struct Program {
    pub(crate) kind: Kind,
    /// `argv[0]`, when it differs from the name.
    pub(crate) argv0: Option<OsString>,
}

#[derive(Debug, Clone)]
pub(crate) enum Kind {
    /// A name without a slash is looked up in `PATH`.
    Named(OsString),
    /// Executed by descriptor: survives that its file is replaced or removed.
    Open(Arc<OwnedFd>),
}

impl Program {
    /// A program by name or path.
    #[must_use]
    pub fn named(name: impl AsRef<OsStr>) -> Self {
        Self { kind: Kind::Named(name.as_ref().to_owned()), argv0: None }
    }

    /// This program, through a descriptor of `/proc/self/exe` that is opened once per process, as
    /// early as somebody first asks. After a rebuild the path is gone; the descriptor still is the
    /// program that runs.
    ///
    /// # Errors
    /// When `/proc` is not mounted.
    pub fn current() -> io::Result<Self> {
        static KEPT: OnceLock<Arc<OwnedFd>> = OnceLock::new();
        let fd = match KEPT.get() {
            Some(fd) => fd,
            None => {
                // Opened for reading and close-on-exec, as the standard library does.
                let opened = std::fs::File::open("/proc/self/exe")?;
                KEPT.get_or_init(|| Arc::new(opened.into()))
            }
        };
        Ok(Self { kind: Kind::Open(Arc::clone(fd)), argv0: None })
    }

    /// Shows itself under this name (`argv[0]`).
    #[must_use]
    pub fn shown_as(mut self, argv0: impl AsRef<OsStr>) -> Self {
        self.argv0 = Some(argv0.as_ref().to_owned());
        self
    }

    /// What it shows itself as: the name that was asked for, its own name, or this process's.
    #[cfg(target_os = "linux")]
    pub(crate) fn argv0(&self) -> OsString {
        match (&self.argv0, &self.kind) {
            (Some(argv0), _) => argv0.clone(),
            (None, Kind::Named(name)) => name.clone(),
            (None, Kind::Open(_)) => std::env::args_os().next().unwrap_or_else(|| "program".into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_a_role_arrive_as_they_were() {
        for stand in [Stand::Apart, Stand::Near] {
            for (before, owner) in [(0, 0), (7, 3), (u32::MAX, u64::MAX)] {
                let numbers = RoleNumbers { before, owner, stand };
                let argument = numbers.argument(KEEPER_ROLE);
                assert!(is_role(OsStr::new(&argument), KEEPER_ROLE), "{argument}");
                assert_eq!(RoleNumbers::of(&argument), numbers);
            }
        }
        for odd in ["", "@warden", "@warden=", "@warden=x.y.z", "@warden=.."] {
            assert_eq!(RoleNumbers::of(odd), RoleNumbers::default(), "{odd}");
        }
    }
}

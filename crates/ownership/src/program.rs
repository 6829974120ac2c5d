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

/// Whether `argument` names this role, with or without a number behind it.
pub(crate) fn is_role(argument: &OsStr, role: &str) -> bool {
    let rest = argument.to_str().and_then(|argument| argument.strip_prefix(role));
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('='))
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

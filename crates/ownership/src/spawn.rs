//! What to start: [`Spawn`], the one description of a process to be.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::os::fd::{OwnedFd, RawFd};
use std::path::PathBuf;
use std::time::Duration;

use crate::containment::Containment;
use crate::program::Program;
use crate::ration::Ration;

/// A process to be started by the supervisor.
///
/// It leads a session and a group of its own, is a subreaper (its orphans stay below it), has
/// default signal dispositions, an empty signal mask, and exactly the descriptors that are named
/// here. 0, 1 and 2 are `/dev/null` unless given.
#[derive(Debug)]
#[must_use = "nothing is started before Owner::spawn"]
pub struct Spawn {
    pub(crate) program: Program,
    pub(crate) args: Vec<OsString>,
    pub(crate) env: Vec<(OsString, Option<OsString>)>,
    pub(crate) env_clear: bool,
    pub(crate) dir: Option<PathBuf>,
    pub(crate) fds: Vec<(RawFd, OwnedFd)>,
    pub(crate) line: Option<RawFd>,
    pub(crate) template: Option<RawFd>,
    /// The template that it is a copy of.
    pub(crate) copies: Option<u64>,
    pub(crate) grace: Duration,
    pub(crate) leftovers: Leftovers,
    pub(crate) release: Option<(Vec<OsString>, Duration)>,
    pub(crate) purpose: String,
    pub(crate) containment: Containment,
    pub(crate) joins: Option<Joins>,
    pub(crate) ration: Ration,
}

/// What a program that runs as if its owner had started it has of that owner, beside descriptors and
/// environment. It is no subreaper.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Joins {
    /// Its process group, of the guards' session; 0 for one of its own.
    pub(crate) group: i32,
    /// Signals that it ignores, and that are blocked in it: bit 0 is signal 1.
    pub(crate) ignored: u64,
    pub(crate) blocked: u64,
}

/// What becomes of what a child leaves in its scope when it ends by itself.
///
/// The death of the owner, [`Owned::end`](crate::Owned::end) and dropping the handle of a child that
/// runs always end all of the scope.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Leftovers {
    /// It is ended, and named in [`Emptied::leftovers`](crate::Emptied::leftovers).
    #[default]
    Kill,
    /// It lives on and is named in [`Emptied::left`](crate::Emptied::left). `Emptied` comes once, soon
    /// after the child's end, with who is there by then; they stay owned, and end with the owner.
    Report,
    /// As `Report`, but nobody is named.
    Keep,
}

/// Grace between TERM and KILL when nothing else is said.
pub const DEFAULT_GRACE: Duration = Duration::from_secs(3);

impl Spawn {
    /// A program by name (looked up in the child's `PATH`) or by path.
    pub fn new(program: impl AsRef<OsStr>) -> Self {
        Self::program(Program::named(program))
    }

    /// A [`Program`], for instance this one by its kept descriptor.
    pub fn program(program: Program) -> Self {
        Self {
            program,
            args: Vec::new(),
            env: Vec::new(),
            env_clear: false,
            dir: None,
            fds: Vec::new(),
            line: None,
            template: None,
            copies: None,
            grace: DEFAULT_GRACE,
            leftovers: Leftovers::Kill,
            release: None,
            purpose: String::new(),
            containment: Containment::Auto,
            joins: None,
            ration: Ration::default(),
        }
    }

    /// Appends an argument.
    pub fn arg(mut self, arg: impl AsRef<OsStr>) -> Self {
        self.args.push(arg.as_ref().to_owned());
        self
    }

    /// Appends arguments.
    pub fn args<I: IntoIterator<Item = S>, S: AsRef<OsStr>>(mut self, args: I) -> Self {
        self.args.extend(args.into_iter().map(|arg| arg.as_ref().to_owned()));
        self
    }

    /// Sets a variable on top of the owner's environment.
    pub fn env(mut self, key: impl AsRef<OsStr>, value: impl AsRef<OsStr>) -> Self {
        self.env.push((key.as_ref().to_owned(), Some(value.as_ref().to_owned())));
        self
    }

    /// Removes a variable.
    pub fn env_remove(mut self, key: impl AsRef<OsStr>) -> Self {
        self.env.push((key.as_ref().to_owned(), None));
        self
    }

    /// Starts from an empty environment.
    pub fn env_clear(mut self) -> Self {
        self.env_clear = true;
        self
    }

    /// Working directory.
    pub fn dir(mut self, dir: impl Into<PathBuf>) -> Self {
        self.dir = Some(dir.into());
        self
    }

    /// Gives the child this descriptor under this number.
    pub fn fd(mut self, number: RawFd, fd: OwnedFd) -> Self {
        self.fds.push((number, fd));
        self
    }

    /// Gives the child a line to the *same* supervisor under this number ([`crate::Owner::inherited`]):
    /// what it starts over it belongs to the child's scope and ends with it.
    pub fn line(mut self, number: RawFd) -> Self {
        self.line = Some(number);
        self
    }

    /// Makes it a template: under this number it gets the line on which the supervisor asks it to fork
    /// ([`crate::template`]).
    #[cfg(target_os = "linux")]
    pub fn template(mut self, number: RawFd) -> Self {
        self.template = Some(number);
        self
    }

    /// Time between TERM and KILL when this scope is ended, also after the owner's death.
    pub fn grace(mut self, grace: Duration) -> Self {
        self.grace = grace;
        self
    }

    /// What becomes of what it leaves when it ends by itself.
    pub fn leftovers(mut self, leftovers: Leftovers) -> Self {
        self.leftovers = leftovers;
        self
    }

    /// What the guard runs when nothing of the scope is left, in whichever way that came, the owner's death
    /// included: for work of this child that another daemon does (a container, a build daemon). It is
    /// killed after `deadline`; what became of it is in [`Emptied::release`](crate::Emptied::release).
    ///
    /// A program, by name or absolute path, and its arguments. It has the child's environment and in
    /// `OWNERSHIP_PID` the child's number, `/` as its directory and no other descriptor than
    /// `/dev/null`. A ledger keeps it as it is, so it must not hold a secret. It runs once; if both guards are killed while it runs, it is run again.
    pub fn release<I: IntoIterator<Item = S>, S: AsRef<OsStr>>(
        mut self,
        command: I,
        deadline: Duration,
    ) -> Self {
        let command = command.into_iter().map(|word| word.as_ref().to_owned()).collect();
        self.release = Some((command, deadline));
        self
    }

    /// What holds its scope together, where that is to be another than its owner's
    /// ([`crate::Owner::with_containment`]).
    pub fn containment(mut self, containment: Containment) -> Self {
        self.containment = containment;
        self
    }

    /// What its scope may use: it and everything that it starts, also over its line ([`Self::line`]). By what each
    /// limit is held here says [`crate::ration::Offers`]. What cannot be held is refused with
    /// [`Phase::Ration`], but for [`Ration::cpu_weight`], which then has no effect. What is in a scope
    /// that has a ration cannot have one of its own.
    pub fn ration(mut self, ration: Ration) -> Self {
        self.ration = ration;
        self
    }

    /// Runs it as if the owner had started it ([`crate::wrap`]).
    #[cfg(target_os = "linux")]
    pub(crate) fn joins(mut self, joins: Joins) -> Self {
        self.joins = Some(joins);
        self
    }

    /// What it is for, in a few words; shown to people.
    pub fn purpose(mut self, purpose: impl Into<String>) -> Self {
        self.purpose = purpose.into();
        self
    }
}

/// The step at which a start failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Phase {
    /// The request was not acceptable: a NUL byte, too large, too many descriptors.
    Request,
    /// The supervisor could not be started or reached.
    Supervisor,
    /// `clone`.
    Clone,
    /// Setting up session, scope, signals or descriptors.
    Setup,
    /// Changing to the working directory.
    Chdir,
    /// Executing the program.
    Exec,
    /// The containment that was asked for cannot be had ([`Containment`]).
    Contain,
    /// A limit of its ration cannot be held ([`Ration`]).
    Ration,
}

impl Phase {
    /// The word for it in messages and records.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Request => "request",
            Self::Supervisor => "supervisor",
            Self::Clone => "clone",
            Self::Setup => "setup",
            Self::Chdir => "chdir",
            Self::Exec => "exec",
            Self::Contain => "containment",
            Self::Ration => "ration",
        }
    }
}

/// Nothing was started, and why.
#[derive(Debug)]
#[non_exhaustive]
pub struct SpawnError {
    /// The step.
    pub phase: Phase,
    /// The system's error number, where there is one.
    pub errno: Option<i32>,
    /// The program or directory that it was about.
    pub path: Option<PathBuf>,
    /// What went wrong, for people.
    pub detail: String,
}

impl fmt::Display for SpawnError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "nothing was started ({}", self.phase.word())?;
        if let Some(path) = &self.path {
            write!(f, " {}", path.display())?;
        }
        write!(f, "): {}", self.detail)
    }
}

impl std::error::Error for SpawnError {}

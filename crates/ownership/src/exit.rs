//! What becomes of a child: its exit, and the end of its scope. Plain data that every other module of
//! this crate may name.

use std::time::Duration;

/// Something that happened to a child or scope. In this order: at most one `Exited`, then exactly one
/// of `Emptied` and `Lost`.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum ChildEvent {
    /// The process was stopped by this signal. Told only of what runs in its owner's group
    /// ([`crate::wrap`]), any number of times before the others.
    Stopped(i32),
    /// The process ended. What it left in its scope is being ended.
    Exited(Exit),
    /// Nothing of the scope is left, as the kernel sees it; or `left` and `kept` say what is.
    Emptied(Emptied),
    /// Nobody watches it any more: how the child ended is not known, and that its scope is empty was
    /// not verified. Its process was sent KILL.
    Lost,
}

/// How a process ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Exit {
    /// Exit code or signal.
    pub status: ExitStatus,
    /// What it used.
    pub usage: Usage,
    /// What its scope had met of its ration by then ([`crate::Ration`]).
    pub reached: Reached,
}

/// Limits that a scope has met.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Reached {
    /// Processes of it that the kernel ended because memory ran out.
    pub memory: u32,
    /// How often it was refused one more process or thread.
    pub processes: u32,
    /// Its time on processors was used up.
    pub cpu: bool,
}

impl Reached {
    /// Whether there was nothing.
    #[must_use]
    pub fn is_nothing(self) -> bool {
        self == Self::default()
    }
}

/// Exit code or signal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExitStatus {
    /// It exited with this code.
    Code(i32),
    /// A signal ended it.
    Signal {
        /// Number of the signal.
        signal: i32,
        /// Whether a core was dumped.
        core_dumped: bool,
    },
    /// It ended while nobody of ours was its parent: both guards had been killed.
    Unknown,
}

/// Resources that a process and its waited-for children used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Usage {
    /// CPU time in user space.
    pub user: Duration,
    /// CPU time in the kernel.
    pub system: Duration,
    /// Largest resident set, in KiB.
    pub max_rss_kib: u64,
}

/// A process by number and name, for messages only: the number is not a handle.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Process {
    /// Its pid when it was seen.
    pub pid: u32,
    /// Its name (`comm`, at most 15 bytes).
    pub name: String,
}

/// The end of a scope.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Emptied {
    /// What was still there after the process itself had ended, and was ended; at most 16.
    pub leftovers: Vec<Process>,
    /// How many leftovers there were in all.
    pub leftover_count: u32,
    /// What cannot die (state D), or was let live by [`Leftovers::Report`](crate::Leftovers); empty in the
    /// normal case.
    pub left: Vec<Process>,
    /// How many were let live by [`Leftovers::Report`](crate::Leftovers) or `Keep`. They end with the owner.
    pub kept: u32,
    /// What was let go because a rule keeps it ([`crate::keep`]), with the rule's name; at most 16. It does not end
    /// with the owner.
    pub spared: Vec<(Process, String)>,
    /// What became of the release command, where there is one ([`Spawn::release`](crate::Spawn::release)).
    /// `None` while `left` or `kept` say that something is there: it is run when that is gone.
    pub release: Option<Released>,
}

/// What became of a release command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Released {
    /// It ended.
    Ended(ExitStatus),
    /// It had not ended at its deadline, and was killed.
    TimedOut,
    /// It could not be started.
    NotStarted {
        /// The system's error number; `ENODATA` when the guard that knew it is dead.
        errno: i32,
    },
}

impl std::fmt::Display for Released {
    /// In words that follow those for the command.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Ended(ExitStatus::Code(code)) => write!(f, "ended with code {code}"),
            Self::Ended(ExitStatus::Signal { signal, .. }) => {
                write!(f, "was ended by signal {signal}")
            }
            Self::Ended(ExitStatus::Unknown) => f.write_str("ended, nobody knows how"),
            Self::TimedOut => f.write_str("had not ended at its deadline"),
            Self::NotStarted { errno } => {
                write!(f, "was not started: {}", std::io::Error::from_raw_os_error(*errno))
            }
        }
    }
}

impl Released {
    /// Whether it did its work.
    #[must_use]
    pub fn succeeded(self) -> bool {
        self == Self::Ended(ExitStatus::Code(0))
    }
}

//! Jobs that outlive their owner on purpose: started outside of everything that its guards end, with a
//! written reason, a log file, and a record from which a later owner takes them up again.
//!
//! Each job has a *shim*, this program in a role of its own (`shim`): parent and subreaper of the job, so that
//! its exit status is known and nothing of it is lost sight of, and nobody's child itself. `start` starts
//! it, `record` is what it writes into `files`, `look` says who lives, `stop` ends a job from outside over
//! its `tree`. [`Gateway`] holds the jobs of an owner that comes back under its name.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use crate::exit::{ExitStatus, Process};
use crate::program::Program;
use crate::spawn::{Leftovers, Phase, Spawn, SpawnError};

mod files;
mod gateway;
mod log;
mod record;

#[cfg(target_os = "linux")]
mod look;
#[cfg(target_os = "linux")]
mod shim;
#[cfg(target_os = "linux")]
mod start;
#[cfg(target_os = "linux")]
mod stop;
#[cfg(target_os = "linux")]
mod tree;

#[cfg(not(target_os = "linux"))]
mod unsupported;
#[cfg(not(target_os = "linux"))]
use unsupported::{look, shim, start, stop};

pub use gateway::{Gateway, GatewayError};
pub use log::Follow;
use record::Record;
pub(crate) use shim::run as run_shim;

/// The argument that makes a program a shim ([`crate::owner::run_if_asked`]).
pub const SHIM_ROLE: &str = "@ownership-exempt";

/// Variable in the environment of each exempt job: its id.
pub const EXEMPT: &str = "OWNERSHIP_EXEMPT";

/// Longest reason, in bytes: a sentence or two.
pub const MAX_REASON: usize = 1000;

/// Why a job may outlive its owner, and for how long.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Exemption {
    reason: String,
    expires: Option<Duration>,
}

impl Exemption {
    /// For as long as the job runs. The reason is for people; an empty one is refused at the start.
    #[must_use]
    pub fn new(reason: impl Into<String>) -> Self {
        Self { reason: reason.into(), expires: None }
    }

    /// The job is ended this long after its start, whether anybody is there or not. Time in which the
    /// machine sleeps does not count.
    #[must_use]
    pub fn expires_after(self, time: Duration) -> Self {
        Self { expires: Some(time), ..self }
    }
}

/// Starts a job outside of what ends with this process, by this program in the role [`SHIM_ROLE`]: its
/// `main` calls [`crate::owner::run_if_asked`] first. Blocks until the job was executed or has failed.
///
/// It gets no descriptors: stdin is `/dev/null`, stdout and stderr are its log. Record and log live in
/// `dir`, which is made if need be, and must be this user's alone (0700). A spawn's grace is that of its
/// expiry.
///
/// # Errors
/// Nothing was started; the error says at which step. `Request` for an empty or endless reason, for
/// descriptors, a line, a release command or a policy for leftovers, and for a directory that others can
/// enter.
pub fn spawn_exempt(
    spawn: Spawn,
    exemption: Exemption,
    dir: &Path,
) -> Result<ExemptJob, SpawnError> {
    let program = Program::current().map_err(|error| SpawnError {
        phase: Phase::Supervisor,
        errno: error.raw_os_error(),
        path: None,
        detail: error.to_string(),
    })?;
    spawn_exempt_by(&program, spawn, exemption, dir)
}

/// As [`spawn_exempt`], with another program in that role.
///
/// # Errors
/// As [`spawn_exempt`].
pub fn spawn_exempt_by(
    shim: &Program,
    spawn: Spawn,
    exemption: Exemption,
    dir: &Path,
) -> Result<ExemptJob, SpawnError> {
    spawn_for(shim, spawn, exemption, dir, None)
}

fn spawn_for(
    shim: &Program,
    spawn: Spawn,
    exemption: Exemption,
    dir: &Path,
    gateway: Option<&str>,
) -> Result<ExemptJob, SpawnError> {
    let refused = |detail: &str| SpawnError {
        phase: Phase::Request,
        errno: None,
        path: None,
        detail: detail.to_owned(),
    };
    if exemption.reason.trim().is_empty() {
        return Err(refused("an exemption needs a reason"));
    }
    if exemption.reason.len() > MAX_REASON {
        return Err(refused("the reason of an exemption is longer than 1000 bytes"));
    }
    if !spawn.fds.is_empty() || spawn.line.is_some() {
        return Err(refused("an exempt job inherits no descriptors and no line"));
    }
    if spawn.release.is_some() || spawn.leftovers != Leftovers::Kill {
        return Err(refused(
            "an exempt job has no guard that ran a release command or kept leftovers",
        ));
    }
    let (dir, record) = start::start(shim, spawn, exemption, dir, gateway)?;
    Ok(ExemptJob { dir, record })
}

/// Takes up a job again by its id.
///
/// # Errors
/// When there is no such record, or it cannot be read or trusted.
pub fn reattach(dir: &Path, id: &str) -> Result<ExemptJob, ReattachError> {
    let record = look::complete(files::load(dir, id)?);
    Ok(ExemptJob { dir: dir.to_owned(), record })
}

/// All jobs that have a record in `dir`, oldest first, those that have ended too; and the records that cannot be
/// read. None when there is no such directory.
///
/// # Errors
/// When the directory cannot be read.
pub fn list_exempt(dir: &Path) -> io::Result<Vec<Result<ExemptJob, ReattachError>>> {
    let mut jobs: Vec<_> = files::ids(dir)?.iter().map(|id| reattach(dir, id)).collect();
    jobs.sort_by_key(|job| job.as_ref().map_or(0, |job| job.record.started));
    Ok(jobs)
}

/// A record is not there, or says nothing that can be trusted.
#[derive(Debug)]
#[non_exhaustive]
pub enum ReattachError {
    /// There is no record with this id.
    NotFound {
        /// Where it would be.
        path: PathBuf,
    },
    /// It was written by a later version.
    TooNew {
        /// The version that it names.
        version: u32,
    },
    /// It is no record, or a part of one. Nothing is done on its word.
    Corrupt {
        /// The record.
        path: PathBuf,
        /// What is wrong with it.
        what: &'static str,
    },
    /// It cannot be read.
    Io {
        /// The record.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
}

impl fmt::Display for ReattachError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotFound { path } => write!(f, "no exempt job: {} is not there", path.display()),
            Self::TooNew { version } => {
                write!(f, "the record is of version {version}, which a later program wrote")
            }
            Self::Corrupt { path, what } => write!(f, "{}: {what}", path.display()),
            Self::Io { path, source } => write!(f, "{}: {source}", path.display()),
        }
    }
}

impl std::error::Error for ReattachError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Io { source, .. } => Some(source),
            Self::NotFound { .. } | Self::TooNew { .. } | Self::Corrupt { .. } => None,
        }
    }
}

/// How a job is.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Status {
    /// It runs.
    Running,
    /// Its process has ended.
    Exited(Ended),
    /// It is not there, and nobody wrote how it ended; or it cannot be looked at from here.
    Unknown {
        /// Why nothing more is known.
        why: String,
    },
    /// Its record was removed, or the machine was started again since.
    Gone,
}

/// The end of a job's process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ended {
    /// Exit code or signal.
    pub status: ExitStatus,
    /// What ended it.
    pub cause: Cause,
    /// When.
    pub at: SystemTime,
    /// Whether everything that it started has ended too, as the kernel says. `None` when that is not known.
    pub empty: Option<bool>,
}

/// What ended a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Cause {
    /// Nobody of us.
    Itself,
    /// The time of its exemption was over.
    Expired,
    /// [`ExemptJob::stop`].
    Stopped {
        /// The pid of whoever stopped it, at that time.
        by: u32,
    },
}

/// Who else a job belongs to: an owner's guard, or another collector of orphans, above the process that
/// started it. Leaving that needs its consent; when it ends what is below it, the job ends too.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Outer {
    /// The mark of the outer owner, when the starting process itself was owned.
    pub tag: Option<String>,
    /// Who adopted the job's shim instead of init.
    pub adopter: Option<Process>,
}

/// What a stop came to.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Stopped {
    /// Who was signalled and is gone; at most 256 are named.
    pub ended: Vec<Process>,
    /// What is still there: it cannot die, or it bears the job's mark and that it belongs to it is not proved.
    pub left: Vec<Process>,
    /// Whether the kernel said that nothing of the job is left. Not known without its shim.
    pub verified: bool,
}

/// A job that was started as exempt, here or by an owner that is gone.
#[derive(Debug, Clone)]
pub struct ExemptJob {
    dir: PathBuf,
    record: Record,
}

impl ExemptJob {
    /// Its id, by which [`reattach`] finds it.
    #[must_use]
    pub fn id(&self) -> &str {
        &self.record.id
    }

    /// Its pid when it was started: an address for messages, not an identity. `None` when it was being
    /// started as its record was read.
    #[must_use]
    pub fn pid(&self) -> Option<u32> {
        self.record.job.map(|who| who.pid.cast_unsigned())
    }

    /// Why it may outlive its owner.
    #[must_use]
    pub fn reason(&self) -> &str {
        &self.record.reason
    }

    /// When it was started.
    #[must_use]
    pub fn started(&self) -> SystemTime {
        record::time(self.record.started)
    }

    /// When it will be ended, if ever.
    #[must_use]
    pub fn expires(&self) -> Option<SystemTime> {
        self.record.expires.map(record::time)
    }

    /// The gateway that it belongs to.
    #[must_use]
    pub fn gateway(&self) -> Option<&str> {
        self.record.gateway.as_deref()
    }

    /// Its program, as it was named; arguments are not recorded.
    #[must_use]
    pub fn program(&self) -> String {
        String::from_utf8_lossy(&self.record.program).into_owned()
    }

    /// What it writes to stdout and stderr.
    #[must_use]
    pub fn log(&self) -> &Path {
        &self.record.log
    }

    /// Who else it belongs to.
    #[must_use]
    pub fn outer(&self) -> Option<&Outer> {
        self.record.outer.as_ref()
    }

    /// How it is now.
    #[must_use]
    pub fn status(&self) -> Status {
        look::status(&self.dir, &self.record.id)
    }

    /// Ends it and everything that it started: TERM and CONT, after `grace` KILL. Blocks until nothing is
    /// left, or what is left does not die. Only processes whose identity was checked are signalled.
    ///
    /// # Errors
    /// When the record cannot be read, or is of another pid namespace: nothing was signalled.
    pub fn stop(&self, grace: Duration) -> io::Result<Stopped> {
        stop::stop(&self.dir, &self.record.id, grace)
    }

    /// At most the last `bytes` bytes of its log.
    ///
    /// # Errors
    /// When the log cannot be read.
    pub fn tail(&self, bytes: u64) -> io::Result<Vec<u8>> {
        log::tail(&self.record.log, bytes)
    }

    /// Its log from now on, or from its beginning.
    ///
    /// # Errors
    /// When the log cannot be opened.
    pub fn follow(&self, from_start: bool) -> io::Result<Follow> {
        Follow::open(self.clone(), from_start)
    }

    /// Removes record and log of a job that has ended with all that it started.
    ///
    /// # Errors
    /// `WouldBlock` while something of it may run; or when a file cannot be removed.
    pub fn forget(self) -> io::Result<()> {
        if look::may_run(&self.dir, &self.record.id) {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        files::remove(&self.dir, &self.record)
    }
}

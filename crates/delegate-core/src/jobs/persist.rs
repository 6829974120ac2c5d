//! Jobs that live on when whoever holds them has ended: exempt jobs of [`ownership`], with a written reason, a log and a
//! record under the state directory. [`super`] holds them while there is somebody, [`all`] finds them again.

use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use delegate_protocol::job::{Persists, TAIL_CHARS};
use ownership::exempt::{Ended, Status, spawn_exempt_by};
use ownership::{ExemptJob, Exemption, ExitStatus, Program, Spawn, list_exempt};

/// Folder under the state directory with a record and a log per exempt job, ours and others'.
const FOLDER: &str = "exempt";

/// What the written reason of ours begins with.
const OURS: &str = "job: ";

/// Records and logs of jobs that ended longer ago are removed when another is started.
const KEPT: Duration = Duration::from_secs(7 * 24 * 60 * 60);

/// Why there are none.
pub(super) const NONE: &str = "a job cannot live on here: this program does not keep one (its main must begin with \
     delegate_runtime::workers()), or there is no state directory";

/// Between two looks at whether anybody still wants to know.
const LOOK: Duration = Duration::from_secs(1);

/// Who keeps them, and where they are written down.
#[derive(Debug)]
pub struct Keeper {
    shim: Program,
    dir: PathBuf,
}

impl Keeper {
    /// In this state directory, by this program.
    #[must_use]
    pub fn in_state_dir(shim: Program, state_dir: &Path) -> Option<Self> {
        Some(Self { shim, dir: state_dir.join(FOLDER) })
    }

    /// Starts one. Blocks until it was executed.
    pub(super) fn start(&self, spawn: Spawn, reason: String) -> Result<Persisting, String> {
        self.forget_old();
        let exemption = Exemption::new(format!("{OURS}{reason}"));
        let job = spawn_exempt_by(&self.shim, spawn, exemption, &self.dir);
        job.map(Persisting).map_err(|error| error.to_string())
    }

    fn forget_old(&self) {
        for job in of(&self.dir).unwrap_or_default() {
            let ago = |ended: &Ended| SystemTime::now().duration_since(ended.at);
            let old = |ended: &Ended| ago(ended).is_ok_and(|ago| ago > KEPT);
            if matches!(job.status(), Status::Exited(ended) if old(&ended)) {
                // What cannot be removed now is tried again.
                drop(job.forget());
            }
        }
    }
}

/// One that runs.
#[derive(Debug)]
pub(super) struct Persisting(ExemptJob);

impl Persisting {
    pub(super) fn pid(&self) -> Option<u32> {
        self.0.pid()
    }

    pub(super) fn told(&self) -> Persists {
        let (id, reason) = (self.0.id().to_owned(), reason(&self.0).to_owned());
        Persists { id, reason, log: self.0.log().to_owned() }
    }

    pub(super) fn tail(&self) -> String {
        // A character has four bytes at most.
        let tail = self.0.tail(4 * TAIL_CHARS as u64).unwrap_or_default();
        String::from_utf8_lossy(&tail).into_owned()
    }

    /// Ends it and all that it started, on a thread of its own.
    pub(super) fn end(&self, grace: Duration) {
        let job = self.0.clone();
        let stop = move || {
            if let Err(error) = job.stop(grace) {
                tracing::warn!(target: "delegate::jobs", %error, "a job that lives on was not ended");
            }
        };
        if let Err(error) = std::thread::Builder::new().name("delegate-job".into()).spawn(stop) {
            tracing::error!(target: "delegate::jobs", %error, "no thread to end a job");
        }
    }

    /// Calls `told` when nothing of it is left, while anybody wants to know.
    pub(super) fn watch(
        &self,
        wanted: impl Fn() -> bool + Send + 'static,
        told: impl FnOnce(ExitStatus) + Send + 'static,
    ) -> io::Result<()> {
        let (job, mut log) = (self.0.clone(), self.0.follow(false)?);
        let watch = move || {
            while wanted() {
                if !matches!(log.more(LOOK), Ok(Some(_))) {
                    let status = match job.status() {
                        Status::Exited(ended) => ended.status,
                        Status::Running | Status::Unknown { .. } | Status::Gone | _ => {
                            ExitStatus::Unknown
                        }
                    };
                    return told(status);
                }
            }
        };
        std::thread::Builder::new().name("delegate-job".into()).spawn(watch).map(drop)
    }
}

/// Jobs that were started to live on, of this and earlier processes, oldest first; those that have ended, too, until they
/// are forgotten. [`ExemptJob`] tells how one is, ends it, and shows its log.
///
/// # Errors
/// The directory cannot be read.
pub fn all(state_dir: &Path) -> io::Result<Vec<ExemptJob>> {
    of(&state_dir.join(FOLDER))
}

fn of(dir: &Path) -> io::Result<Vec<ExemptJob>> {
    // A record that cannot be trusted is nobody's job.
    let known = list_exempt(dir)?.into_iter().filter_map(Result::ok);
    Ok(known.filter(|job| job.reason().starts_with(OURS)).collect())
}

/// Why it may live on, as whoever started it said.
#[must_use]
pub fn reason(job: &ExemptJob) -> &str {
    job.reason().strip_prefix(OURS).unwrap_or_else(|| job.reason())
}

//! Who owns what on this machine: one tree from owners to the processes of their children, with what each costs and why it
//! is alive.
//!
//! `scan` is the one file that reads `/proc`, `ports` understands what it says of sockets, `model` puts both together with
//! the ledger's rows, without asking anybody. [`crate::janitor`] judges over the same picture. Signals nobody.

pub(crate) mod scan;

mod model;
mod ports;

use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

pub use self::model::{
    ChildView, Guarding, JobView, KnownBy, OwnerState, OwnerView, ProcessView, WhyAlive,
};
pub use self::ports::Port;
use self::scan::Snapshot;
use crate::exempt;
use crate::ledger;

/// What is looked up beyond a first look, since it costs more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Detail {
    ports: bool,
    pss: bool,
}

impl Detail {
    /// Nothing more.
    #[must_use]
    pub fn none() -> Self {
        Self::default()
    }

    /// Where each process listens: reads its descriptors.
    #[must_use]
    pub fn ports(self) -> Self {
        Self { ports: true, ..self }
    }

    /// Its share of memory (PSS): lets the kernel walk its pages.
    #[must_use]
    pub fn pss(self) -> Self {
        Self { pss: true, ..self }
    }
}

/// All of it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Picture {
    /// Owners, oldest first.
    pub owners: Vec<OwnerView>,
    /// Exempt jobs of which a process lives.
    pub jobs: Vec<JobView>,
    /// Whether there is a ledger. Without one owners are known by marks alone, and nothing says what is for what.
    pub ledger: bool,
    /// Why the ledger cannot be read; then it is as if there were none.
    pub trouble: Option<String>,
    /// Rows of the ledger that cannot be read, in words; all others are read.
    pub unreadable: Vec<String>,
    /// Whether processes of other users are shown. Where they are not (`hidepid`), this user's are.
    pub whole: bool,
    /// Processes that were looked at.
    pub processes: usize,
}

/// Looks at the processes of this machine through the ledger at `path`, whose journals are beside it, and the exempt
/// jobs of `jobs`. Of other users only what everybody may read is read.
#[must_use]
pub fn look(path: &Path, jobs: &[PathBuf], detail: Detail) -> Picture {
    let dir = path.parent().unwrap_or(Path::new("."));
    let (account, trouble) = match ledger::account(path, dir) {
        Ok(account) => (account, None),
        Err(error) => (ledger::Account::default(), Some(error.to_string())),
    };
    let snapshot = Snapshot::take();
    let known = jobs.iter().flat_map(|dir| jobs_in(dir)).collect();
    let mut picture = Picture {
        owners: model::owners(&snapshot, &account.rows),
        jobs: model::jobs(&snapshot, known),
        ledger: account.exists,
        trouble,
        unreadable: account.unreadable,
        whole: snapshot.whole,
        processes: snapshot.processes.len(),
    };
    for owner in picture.owners.iter_mut().filter(|owner| owner.state == OwnerState::Lives) {
        owner.command = scan::command(owner.identity.pid);
    }
    let children = picture.owners.iter_mut().flat_map(|owner| &mut owner.children);
    let owned = children.flat_map(|child| &mut child.processes);
    let of_jobs = picture.jobs.iter_mut().flat_map(|job| &mut job.processes);
    let mut all: Vec<_> = owned.chain(of_jobs).collect();
    for process in &mut all {
        process.command = scan::command(process.pid);
        process.pss = detail.pss.then(|| scan::pss(process.pid)).flatten();
    }
    if detail.ports {
        let pids: Vec<u32> = all.iter().map(|process| process.pid).collect();
        let mut ports = scan::listening(&pids);
        for process in all {
            process.ports = ports.remove(&process.pid).unwrap_or_default();
        }
    }
    picture
}

fn jobs_in(dir: &Path) -> Vec<model::Job> {
    let jobs = exempt::list_exempt(dir).unwrap_or_default().into_iter().flatten();
    let millis = |time: std::time::SystemTime| {
        u64::try_from(time.duration_since(UNIX_EPOCH).unwrap_or_default().as_millis()).ok()
    };
    jobs.map(|job| model::Job {
        id: job.id().to_owned(),
        reason: job.reason().to_owned(),
        expires: job.expires().and_then(millis),
        program: job.program(),
    })
    .collect()
}

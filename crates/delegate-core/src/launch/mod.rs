//! Ways to start a worker: one seam, four launchers. [`exec`] has the supervisor execute a worker
//! program; [`zygote`] has a template of it make copies, [`pool`] keeps some of those waiting; [`thread`]
//! runs the same `serve` on a thread of this process.
//!
//! Talks to `ownership` (processes) and `delegate-child` (threads). What becomes of a child comes
//! back through a [`Sink`]; [`crate::run`] holds the rest.

pub mod exec;
pub mod limits;
#[cfg(target_os = "linux")]
pub mod pool;
pub mod program;
mod records;
pub mod thread;
#[cfg(target_os = "linux")]
pub mod zygote;

use std::fmt;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

use delegate_child::Registry;
use delegate_child::link::ParentHalf;
use delegate_protocol::Isolation;
use ownership::page::Page;
use ownership::{ChildEvent, Owned, Owner};

pub(crate) use self::records::Records;

/// Takes what happens to a child. Called from threads of others; must not block.
pub type Sink = Arc<dyn Fn(ChildEvent) + Send + Sync>;

/// Wakes the reader of a thread's line.
pub type Waker = Arc<dyn Fn() + Send + Sync>;

/// Descriptors that one child needs here: its line, two pipes, and while it starts their other ends and its page.
const PER_PROCESS: u64 = 7;

/// The same of a thread: two pipes with both ends, and what a program that it runs needs: four pipes
/// with both ends, a pidfd.
const PER_THREAD: u64 = 14;

/// Descriptors of everything else in this process.
const BESIDES: u64 = 256;

/// Raises this process's soft limit of open descriptors (RLIMIT_NOFILE) where so many children at
/// once would not fit under it, and no further than the hard limit allows. What is too little even
/// then is an outcome of the child that finds no descriptor, as at any other limit.
pub(crate) fn make_room(isolation: Isolation, children: usize) {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let each = match isolation {
        Isolation::Process => PER_PROCESS,
        Isolation::Thread => PER_THREAD,
    };
    let needed = BESIDES + children as u64 * each;
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    let Some(soft) = current.filter(|soft| *soft < needed) else { return };
    let raised = maximum.map_or(needed, |hard| needed.min(hard));
    match setrlimit(Resource::Nofile, Rlimit { current: Some(raised), maximum }) {
        Ok(()) => tracing::debug!(target: "delegate::launch", soft, raised, "open files"),
        Err(error) => tracing::warn!(target: "delegate::launch", %error, "open files"),
    }
}

/// How workers are started.
#[derive(Debug, Clone)]
pub enum Launcher {
    /// The supervisor executes the worker program.
    Exec(exec::WorkerProgram),
    /// Copies of a template.
    #[cfg(target_os = "linux")]
    Zygote(Arc<zygote::Zygotes>),
    /// Copies that wait.
    #[cfg(target_os = "linux")]
    Pool(Arc<pool::Pool>),
    /// A thread of this process; what it starts is this owner's, if processes can be owned here.
    Thread(Registry, Option<Owner>),
}

/// One worker to be.
pub struct Launch {
    /// The agent that it is to run.
    pub agent: String,
    /// For people: the task's goal, shortened.
    pub purpose: String,
    /// From TERM until KILL.
    pub terminate_grace: Duration,
    /// What holds its scope together (processes only).
    pub containment: ownership::Containment,
    /// What its scope may use (processes only).
    pub ration: ownership::Ration,
    /// What happens to it.
    pub sink: Sink,
    /// Wakes the reader of its line (threads only).
    pub waker: Waker,
    /// Where it hears of further tasks (copies of a template only).
    pub again: Option<Arc<OwnedFd>>,
}

/// A worker that was started.
#[derive(Debug)]
pub struct Launched {
    /// Its process; `None` for a thread.
    pub pid: Option<u32>,
    /// The word for how it was started: `thread`, `exec`, `zygote` or `pool`.
    pub how: &'static str,
    /// To end it.
    pub handle: Handle,
    /// The parent's end of its line.
    pub line: Line,
    /// Standard output and error of a process, or of what a thread runs.
    pub output: Option<(OwnedFd, OwnedFd)>,
    /// The page that it shares with us.
    pub page: Option<Page>,
}

/// The parent's end of a line.
#[derive(Debug)]
pub enum Line {
    /// To a process.
    Socket(UnixStream),
    /// To a thread.
    Memory(ParentHalf),
}

/// Why a child was never there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StartFailure {
    /// Step that failed.
    pub phase: String,
    /// The system's error number.
    pub errno: Option<i32>,
    /// Path or program.
    pub path: Option<String>,
    /// For people.
    pub detail: String,
}

/// Ends, stops and continues a worker and everything that it started.
#[derive(Debug)]
pub enum Handle {
    /// A process and its scope. Shared with a pool that may use it again.
    Process(Arc<Owned>),
    /// A thread and the scope of what it started.
    Thread(Arc<thread::LazyScope>),
}

impl Launcher {
    /// What it gives.
    #[must_use]
    pub const fn isolation(&self) -> Isolation {
        match self {
            Self::Exec(_) => Isolation::Process,
            #[cfg(target_os = "linux")]
            Self::Zygote(_) | Self::Pool(_) => Isolation::Process,
            Self::Thread(..) => Isolation::Thread,
        }
    }

    /// Why workers of these agents are executed although copies were decided, for people.
    #[must_use]
    pub fn remarks<'a>(&self, agents: impl IntoIterator<Item = &'a str>) -> Vec<String> {
        #[cfg(target_os = "linux")]
        {
            let zygotes = match self {
                Self::Exec(_) | Self::Thread(..) => return Vec::new(),
                Self::Zygote(zygotes) => zygotes,
                Self::Pool(pool) => pool.zygotes(),
            };
            let remark = |agent| {
                let why = zygotes.unfit(agent)?;
                Some(format!("workers of {agent} were executed: {why}"))
            };
            agents.into_iter().filter_map(remark).collect()
        }
        #[cfg(not(target_os = "linux"))]
        {
            drop(agents);
            Vec::new()
        }
    }

    /// Starts one worker. Blocks until it exists or has failed to.
    ///
    /// # Errors
    /// Nothing was started: phase, error number and path.
    pub fn launch(&self, launch: Launch) -> Result<Launched, StartFailure> {
        match self {
            Self::Exec(program) => exec::launch(program, launch),
            #[cfg(target_os = "linux")]
            Self::Zygote(zygotes) => zygotes.launch(launch),
            #[cfg(target_os = "linux")]
            Self::Pool(pool) => pool.launch(launch),
            Self::Thread(registry, owner) => thread::launch(registry, owner.clone(), launch),
        }
    }
}

impl Handle {
    /// TERM and CONT to all of it, after `grace` KILL, until it is empty. A thread itself cannot be
    /// ended, only what it started.
    pub fn end(&self, grace: Duration) {
        match self {
            Self::Process(owned) => owned.end(grace),
            Self::Thread(scope) => scope.end(grace),
        }
    }

    /// Whether its process has exited, as the kernel says now: its supervisor may not have told yet.
    #[cfg(target_os = "linux")]
    pub(crate) fn has_exited(&self) -> bool {
        use rustix::event::{PollFd, PollFlags, Timespec, poll};
        let Self::Process(owned) = self else { return false };
        let handle = owned.pidfd();
        let mut asked = [PollFd::from_borrowed_fd(handle, PollFlags::IN)];
        poll(&mut asked, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).is_ok_and(|ready| ready > 0)
    }

    /// SIGSTOP to all of it.
    pub fn pause(&self) {
        match self {
            Self::Process(owned) => owned.pause(),
            Self::Thread(scope) => scope.pause(),
        }
    }

    /// SIGCONT to all of it.
    pub fn resume(&self) {
        match self {
            Self::Process(owned) => owned.resume(),
            Self::Thread(scope) => scope.resume(),
        }
    }
}

impl fmt::Debug for Launch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Launch({})", self.purpose)
    }
}

/// A failure of the system on the way to a worker.
fn failure(phase: &str, error: &std::io::Error) -> StartFailure {
    StartFailure {
        phase: phase.to_owned(),
        errno: error.raw_os_error(),
        path: None,
        detail: error.to_string(),
    }
}

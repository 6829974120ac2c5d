//! Background programs of children ([`delegate_protocol::job`]). The parent starts them, each in a scope of its own, and
//! holds them for the child that asked: so that a job ends with its child, and one that was handed over does
//! not. Whoever holds them last ends them: they never outlive the delegator, nor its process.
//!
//! [`crate::run`] asks for children, [`table`] decides, this starts, ends and keeps what they print.

pub mod table;

use std::collections::{BTreeMap, VecDeque};
use std::io::{self, PipeReader, Read as _};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use delegate_protocol::job::{Job, JobSpec};
use ownership::{ChildEvent, ExitStatus, Owned, Owner, Spawn};
use tokio::sync::oneshot;

use self::table::Table;
use crate::file_state::registry::Who;

/// Bytes of a job's output that are kept, the last ones.
const OUTPUT: usize = 200_000;

/// From TERM until KILL, where nobody says another.
pub const GRACE: Duration = Duration::from_secs(3);

/// The jobs of one tree; clones share them. Dropping the last one ends them all.
#[derive(Debug, Clone)]
pub struct Jobs {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    /// `None`: no process can be owned here.
    owner: Option<Owner>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    table: Table,
    held: BTreeMap<u64, Held>,
    /// Who waits for the end of a job.
    waiting: BTreeMap<u64, Vec<oneshot::Sender<()>>>,
}

#[derive(Debug)]
struct Held {
    owned: Owned,
    output: Arc<Mutex<VecDeque<u8>>>,
}

/// What a child that has ended leaves: for its entry.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Leaving {
    /// Its parent's now.
    pub handed: Vec<Job>,
    /// Those that ran, and were ended with it.
    pub orphaned: Vec<Job>,
    /// Those that had ended, which it never heard.
    pub unread: Vec<Job>,
}

impl Inner {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn ended(&self, job: u64, status: ExitStatus) {
        let mut state = self.state();
        state.table.ended(job, status, now());
        // Dropping them wakes who waits.
        drop(state.waiting.remove(&job));
    }
}

impl Jobs {
    /// None yet; `owner` starts them.
    #[must_use]
    pub fn new(owner: Option<Owner>) -> Self {
        Self { inner: Arc::new(Inner { owner, state: Mutex::default() }) }
    }

    /// A place for a job, on the thread that knows that its child has not ended.
    ///
    /// # Errors
    /// Why not, in a sentence.
    pub fn reserve(&self, who: &Who, spec: &JobSpec) -> Result<u64, String> {
        if self.inner.owner.is_none() {
            return Err("no program can be started here: there is no supervisor".to_owned());
        }
        self.inner.state().table.reserve(who, &spec.command, now())
    }

    /// Starts it in its place. Blocks until it was executed.
    ///
    /// # Errors
    /// Why not, in a sentence; the place is free again.
    pub fn start(&self, job: u64, spec: JobSpec, cwd: Option<PathBuf>) -> Result<Job, String> {
        let started = self.try_start(job, spec, cwd);
        if started.is_err() {
            self.inner.state().table.forget(job);
        }
        started
    }

    fn try_start(&self, job: u64, spec: JobSpec, cwd: Option<PathBuf>) -> Result<Job, String> {
        let JobSpec { command, cwd: own, env } = spec;
        let (Some(owner), Some((program, args))) = (&self.inner.owner, command.split_first())
        else {
            return Err("a job needs a program, and somebody who starts it".to_owned());
        };
        let (read, write) = io::pipe().map_err(|error| error.to_string())?;
        let again = write.try_clone().map_err(|error| error.to_string())?;
        let mut spawn = Spawn::new(program)
            .args(args)
            .fd(1, write.into())
            .fd(2, again.into())
            .grace(GRACE)
            .purpose(format!("job {job}: {program}"));
        if let Some(dir) = own.or(cwd) {
            spawn = spawn.dir(dir);
        }
        for (name, value) in env {
            spawn = spawn.env(name, value);
        }
        // Weak: a job must not keep alive who would end it.
        let told = Arc::downgrade(&self.inner);
        let on_event = move |event| tell(&told, job, &event);
        let owned = owner.spawn(spawn, on_event).map_err(|error| error.to_string())?;
        let output = Arc::<Mutex<VecDeque<u8>>>::default();
        keep_output(read, Arc::clone(&output)).map_err(|error| error.to_string())?;
        let (pid, mut gone) = (owned.pid(), Vec::new());
        let mut state = self.inner.state();
        if !state.table.started(job, pid) {
            drop(state);
            // Dropping it ends it.
            drop(owned);
            return Err("whoever asked for it has ended".to_owned());
        }
        state.held.insert(job, Held { owned, output });
        let forgotten: Vec<u64> =
            state.held.keys().copied().filter(|job| !state.table.knows(*job)).collect();
        gone.extend(forgotten.iter().filter_map(|job| state.held.remove(job)));
        let shown = state.show(job, false);
        drop(state);
        drop(gone);
        shown.ok_or_else(|| "it has ended already".to_owned())
    }

    /// The jobs of an agent, oldest first. Nothing counts as read by that.
    #[must_use]
    pub fn list(&self, who: &Who) -> Vec<Job> {
        let mut state = self.inner.state();
        let own = state.table.of(who);
        own.into_iter().filter_map(|job| state.show(job, false)).collect()
    }

    /// How a job of this agent stands; when it has ended, that counts as read. `None`: it has no such job.
    #[must_use]
    pub fn look(&self, who: &Who, job: u64) -> Option<Job> {
        let mut state = self.inner.state();
        if state.table.is_of(who, job) { state.show(job, true) } else { None }
    }

    /// Becomes ready, with an error, when the job has ended. `None`: it has, or is not known.
    #[must_use]
    pub fn end_of(&self, job: u64) -> Option<oneshot::Receiver<()>> {
        let mut state = self.inner.state();
        if state.table.is_over(job) {
            return None;
        }
        let (sender, receiver) = oneshot::channel();
        let waiting = state.waiting.entry(job).or_default();
        // Who asks again and again must not pile up.
        waiting.retain(|other| !other.is_closed());
        waiting.push(sender);
        Some(receiver)
    }

    /// Ends a job of this agent, and all that it started. `None`: it has no such job.
    #[must_use]
    pub fn end(&self, who: &Who, job: u64, grace: Duration) -> Option<Job> {
        let mut state = self.inner.state();
        if !state.table.is_of(who, job) {
            return None;
        }
        if let Some(held) = state.held.get(&job) {
            held.owned.end(grace);
        }
        state.show(job, false)
    }

    /// Makes a job `parent`'s.
    ///
    /// # Errors
    /// Why not, in a sentence.
    pub fn hand_off(
        &self,
        who: &Who,
        job: u64,
        purpose: &str,
        parent: &Who,
    ) -> Result<Job, String> {
        let mut state = self.inner.state();
        state.table.hand_off(who, job, purpose, parent)?;
        state.show(job, false).ok_or_else(|| format!("job {job} does not run"))
    }

    /// Whether there is anything to say of this child at its end.
    #[must_use]
    pub fn knows(&self, who: &Who) -> bool {
        let state = self.inner.state();
        state.table.has_any(who)
    }

    /// A child has ended. Ends what is still its own, waits until that is gone, and tells what there was.
    #[must_use]
    pub fn leave(&self, who: &Who) -> Leaving {
        let mut state = self.inner.state();
        let left = state.table.leave(who);
        let mut shown = |jobs: &[u64]| -> Vec<Job> {
            jobs.iter().filter_map(|job| state.show(*job, false)).collect()
        };
        let leaving = Leaving {
            handed: shown(&left.handed),
            orphaned: shown(&left.orphaned),
            unread: shown(&left.unread),
        };
        let own = state.table.of(who);
        state.table.forget_all(who);
        let held: Vec<Held> = own.iter().filter_map(|job| state.held.remove(job)).collect();
        own.iter().for_each(|job| drop(state.waiting.remove(job)));
        drop(state);
        held.iter().for_each(|held| held.owned.end(GRACE));
        // Both are bounded by their guards.
        held.iter().for_each(|held| drop(held.owned.wait_empty()));
        leaving
    }
}

impl State {
    fn show(&mut self, job: u64, told: bool) -> Option<Job> {
        let tail = self.held.get(&job).map(|held| {
            let output = held.output.lock().unwrap_or_else(PoisonError::into_inner);
            // A character has four bytes at most.
            let skip = output.len().saturating_sub(4 * delegate_protocol::job::TAIL_CHARS);
            let bytes: Vec<u8> = output.iter().skip(skip).copied().collect();
            String::from_utf8_lossy(&bytes).into_owned()
        });
        self.table.show(job, &tail.unwrap_or_default(), now(), told)
    }
}

/// What happens to a job, on the owner's thread.
fn tell(jobs: &Weak<Inner>, job: u64, event: &ChildEvent) {
    let status = match event {
        ChildEvent::Exited(exit) => exit.status,
        ChildEvent::Lost => ExitStatus::Unknown,
        ChildEvent::Stopped(_) | ChildEvent::Emptied(_) | _ => return,
    };
    if let Some(jobs) = jobs.upgrade() {
        jobs.ended(job, status);
    }
}

fn keep_output(mut pipe: PipeReader, kept: Arc<Mutex<VecDeque<u8>>>) -> io::Result<()> {
    let work = move || {
        let mut piece = vec![0; 16 * 1024];
        loop {
            let read = match pipe.read(&mut piece) {
                Ok(0) => return,
                Ok(read) => read,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => {
                    tracing::debug!(target: "delegate::jobs", %error, "output of a job is lost");
                    return;
                }
            };
            let mut kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
            kept.extend(piece.iter().take(read));
            let over = kept.len().saturating_sub(OUTPUT);
            drop(kept.drain(..over));
        }
    };
    thread::Builder::new().name("delegate-job".to_owned()).spawn(work).map(drop)
}

/// For people: how long something ran. Milliseconds since 1970.
fn now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

/// The jobs of the agent at the root: those that children handed over. From
/// [`crate::delegator::Delegator::jobs`]; they end with the delegator.
#[derive(Debug, Clone)]
pub struct OwnJobs {
    jobs: Jobs,
    who: Who,
}

impl OwnJobs {
    pub(crate) const fn new(jobs: Jobs, who: Who) -> Self {
        Self { jobs, who }
    }

    /// All, oldest first.
    #[must_use]
    pub fn list(&self) -> Vec<Job> {
        self.jobs.list(&self.who)
    }

    /// How one stands; `None`: there is no such job.
    #[must_use]
    pub fn look(&self, job: u64) -> Option<Job> {
        self.jobs.look(&self.who, job)
    }

    /// Ends one, and all that it started: TERM, and KILL after the grace. Returns at once.
    #[must_use]
    pub fn end(&self, job: u64, grace: Duration) -> Option<Job> {
        self.jobs.end(&self.who, job, grace)
    }
}

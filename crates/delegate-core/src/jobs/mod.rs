//! Background programs of children ([`delegate_protocol::job`]). The parent starts them, each in a scope of its own, and
//! holds them for the child that asked: so that a job ends with its child, and one that was handed over does
//! not. Whoever holds them last ends them: they never outlive the delegator, nor its process; but for those that were
//! started to live on ([`persist`]), which are outside of all that.
//!
//! [`crate::run`] asks for children, [`table`] decides, this starts, ends and keeps what they print.

mod output;
pub mod persist;
pub mod table;

use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use delegate_protocol::job::{Job, JobSpec};
use ownership::{ChildEvent, ExitStatus, Owned, Owner, Spawn};
use tokio::sync::oneshot;

use self::output::Output;
use self::persist::{Keeper, Persisting};
use self::table::Table;
use crate::file_state::registry::Who;

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
    /// Who keeps jobs that live on, and where they are written down; `None`: they cannot be had here.
    keeper: Option<Keeper>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    table: Table,
    held: BTreeMap<u64, Held>,
    /// Who waits for the end of a job.
    waiting: BTreeMap<u64, Vec<oneshot::Sender<()>>>,
}

/// A job that runs, and what it prints.
#[derive(Debug)]
enum Held {
    Owned(Owned, Output),
    /// Dropping it ends nothing.
    Persists(Box<Persisting>),
}

impl Held {
    fn tail(&self) -> String {
        match self {
            Self::Owned(_, output) => output.tail(),
            Self::Persists(job) => job.tail(),
        }
    }

    fn end(&self, grace: Duration) {
        match self {
            Self::Owned(owned, _) => owned.end(grace),
            Self::Persists(job) => job.end(grace),
        }
    }
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
    pub fn new(owner: Option<Owner>, keeper: Option<Keeper>) -> Self {
        Self { inner: Arc::new(Inner { owner, keeper, state: Mutex::default() }) }
    }

    /// A place for a job, on the thread that knows that its child has not ended.
    ///
    /// # Errors
    /// Why not, in a sentence.
    pub fn reserve(&self, who: &Who, spec: &JobSpec, parent: &Who) -> Result<u64, String> {
        if self.inner.owner.is_none() {
            return Err("no program can be started here: there is no supervisor".to_owned());
        }
        let persist = spec.persist.as_deref().map(|reason| (reason, parent));
        if persist.is_some() && self.inner.keeper.is_none() {
            return Err(persist::NONE.to_owned());
        }
        self.inner.state().table.reserve(who, &spec.command, persist, now())
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
        let JobSpec { command, cwd: own, env, persist } = spec;
        let (Some(owner), Some((program, args))) = (&self.inner.owner, command.split_first())
        else {
            return Err("a job needs a program, and somebody who starts it".to_owned());
        };
        let mut spawn = Spawn::new(program).args(args).grace(GRACE);
        if let Some(dir) = own.or(cwd) {
            spawn = spawn.dir(dir);
        }
        for (name, value) in env {
            spawn = spawn.env(name, value);
        }
        if let Some(reason) = persist {
            return self.start_persisting(job, spawn, reason);
        }
        let text = |error: io::Error| error.to_string();
        let (read, write) = io::pipe().map_err(text)?;
        let again = write.try_clone().map_err(text)?;
        let output = Output::of(read).map_err(text)?;
        let spawn =
            spawn.fd(1, write.into()).fd(2, again.into()).purpose(format!("job {job}: {program}"));
        // Weak: a job must not keep alive who would end it.
        let (told, printed) = (Arc::downgrade(&self.inner), output.clone());
        let mut exit = ExitStatus::Unknown;
        let on_event = move |event| tell(&told, job, &mut exit, &printed, &event);
        let owned = owner.spawn(spawn, on_event).map_err(|error| error.to_string())?;
        output.follow().map_err(text)?;
        let (pid, mut gone) = (owned.pid(), Vec::new());
        let mut state = self.inner.state();
        if !state.table.started(job, pid) {
            drop(state);
            // Dropping it ends it.
            drop(owned);
            return Err("whoever asked for it has ended".to_owned());
        }
        state.held.insert(job, Held::Owned(owned, output));
        let forgotten: Vec<u64> =
            state.held.keys().copied().filter(|job| !state.table.knows(*job)).collect();
        gone.extend(forgotten.iter().filter_map(|job| state.held.remove(job)));
        let shown = state.show(job, false);
        drop(state);
        drop(gone);
        shown.ok_or_else(|| "it has ended already".to_owned())
    }

    /// One that lives on: outside of everything that ends with this process.
    fn start_persisting(&self, job: u64, spawn: Spawn, reason: String) -> Result<Job, String> {
        let keeper = self.inner.keeper.as_ref().ok_or(persist::NONE)?;
        let one = keeper.start(spawn, reason)?;
        let mut state = self.inner.state();
        if !one.pid().is_some_and(|pid| state.table.started(job, pid)) {
            drop(state);
            one.end(GRACE);
            return Err("whoever asked for it has ended".to_owned());
        }
        let jobs = Arc::downgrade(&self.inner);
        let told = move |status| {
            if let Some(jobs) = jobs.upgrade() {
                jobs.ended(job, status);
            }
        };
        let alive = Arc::downgrade(&self.inner);
        if let Err(error) = one.watch(move || alive.strong_count() > 0, told) {
            tracing::warn!(target: "delegate::jobs", %error, "the end of a job will not be known");
        }
        state.held.insert(job, Held::Persists(Box::new(one)));
        state.show(job, false).ok_or_else(|| "it has ended already".to_owned())
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
            held.end(grace);
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
        held.iter().for_each(|held| held.end(GRACE));
        for held in &held {
            if let Held::Owned(owned, _) = held {
                // Both are bounded by their guards.
                drop(owned.wait_empty());
            }
        }
        leaving
    }
}

impl State {
    fn show(&mut self, job: u64, told: bool) -> Option<Job> {
        let held = self.held.get(&job);
        let tail = held.map(Held::tail);
        let persists = held.and_then(|held| match held {
            Held::Owned(..) => None,
            Held::Persists(job) => Some(job.told()),
        });
        let shown = self.table.show(job, &tail.unwrap_or_default(), now(), told)?;
        Some(Job { persists, ..shown })
    }
}

/// What happens to a job, on the owner's thread. It has ended when nothing of it is left, and then all that it
/// printed is there as well.
fn tell(jobs: &Weak<Inner>, job: u64, exit: &mut ExitStatus, output: &Output, event: &ChildEvent) {
    match event {
        ChildEvent::Exited(exited) => *exit = exited.status,
        ChildEvent::Emptied(_) | ChildEvent::Lost => {
            output.drain();
            if let Some(jobs) = jobs.upgrade() {
                jobs.ended(job, *exit);
            }
        }
        ChildEvent::Stopped(_) | _ => {}
    }
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

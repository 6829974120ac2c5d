//! The pool launcher: workers that were started ahead wait for a child to come. A launch takes one that waits;
//! a thread of its own fills the shelf again, off the way of whoever launches.
//!
//! A worker carries one child and leaves, so nothing of one child is there for the next. One that waits has
//! read nothing yet: it has said hello and blocks in its first read. What it took over at its start
//! (environment, working directory) must still be the owner's when it is used.
//!
//! With `pool.max_uses`, a worker of an agent that is reusable may come back to the shelf: `again`.

mod again;

use std::collections::hash_map::{DefaultHasher, HashMap};
use std::env;
use std::hash::{Hash, Hasher};
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::thread;
use std::time::Duration;

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, bounded};
use ownership::{ChildEvent, Containment};

use super::zygote::Zygotes;
use super::{Launch, Launched, Sink, StartFailure};
use crate::config;

/// Workers that wait, by agent.
#[derive(Debug)]
pub struct Pool {
    stock: Arc<Stock>,
}

#[derive(Debug)]
struct Stock {
    zygotes: Arc<Zygotes>,
    terms: Terms,
    shelves: Mutex<HashMap<String, Shelf>>,
    /// Says that something was taken. The thread that fills ends when this is gone.
    taken: Sender<()>,
}

/// What a worker is started with, and cannot be changed later.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Terms {
    /// How many wait, and for how long.
    pub pool: config::Pool,
    /// From TERM until KILL.
    pub grace: Duration,
    /// What holds its scope together.
    pub containment: Containment,
    /// What its scope may use.
    pub ration: ownership::Ration,
}

#[derive(Debug, Default)]
struct Shelf {
    idle: Vec<Idle>,
    /// It was used since the last look: it is filled to the most, else kept at the least.
    used: bool,
    busy: bool,
    /// Workers with a child that may come back: there are enough with them.
    out: usize,
    /// A worker could not be started; tried again at the next launch.
    failed: bool,
}

#[derive(Debug)]
struct Idle {
    waits: Waits,
    relay: Arc<Relay>,
    surroundings: u64,
}

#[derive(Debug)]
enum Waits {
    /// For its first child; with a line on which it can be used again.
    New(Launched, Option<Arc<OwnedFd>>),
    /// For another one.
    Used(again::Used),
}

/// What happens to a worker that waits is kept until somebody has it.
#[derive(Default)]
struct Relay(Mutex<Told>);

enum Told {
    Kept(Vec<ChildEvent>),
    To(Sink),
}

impl Default for Told {
    fn default() -> Self {
        Self::Kept(Vec::new())
    }
}

impl std::fmt::Debug for Relay {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Relay")
    }
}

impl Relay {
    fn tell(&self, event: ChildEvent) {
        match &mut *lock(&self.0) {
            Told::Kept(events) => events.push(event),
            Told::To(sink) => sink(event),
        }
    }

    /// From now on `sink` is told. `false`, and nothing is changed, when it has ended already.
    fn connect(&self, sink: &Sink) -> bool {
        let mut told = lock(&self.0);
        let ended = matches!(&*told, Told::Kept(events) if !events.is_empty());
        if !ended {
            *told = Told::To(Arc::clone(sink));
        }
        !ended
    }

    fn has_ended(&self) -> bool {
        matches!(&*lock(&self.0), Told::Kept(events) if !events.is_empty())
    }

    fn is_connected(&self) -> bool {
        matches!(&*lock(&self.0), Told::To(_))
    }

    /// Whoever was told is told no more, and comes back.
    fn disconnect(&self) -> Option<Sink> {
        let mut told = lock(&self.0);
        match std::mem::take(&mut *told) {
            Told::To(sink) => Some(sink),
            kept => {
                *told = kept;
                None
            }
        }
    }
}

impl Pool {
    /// Nobody waits yet.
    #[must_use]
    pub fn new(zygotes: Arc<Zygotes>, terms: Terms) -> Self {
        // One word is enough, however much was taken.
        let (taken, takes) = bounded(1);
        let stock = Arc::new(Stock { zygotes, terms, shelves: Mutex::default(), taken });
        let filler = Arc::downgrade(&stock);
        let thread = thread::Builder::new().name("delegate-pool".to_owned());
        let idle = terms.pool.idle;
        if let Err(error) = thread.spawn(move || fill_for_ever(&filler, &takes, idle)) {
            tracing::warn!(target: "delegate::launch::pool", %error, "nothing is started ahead");
        }
        Self { stock }
    }

    /// Takes a worker that waits, or starts one.
    ///
    /// # Errors
    /// As of the zygote launcher: nothing was started.
    pub(super) fn launch(&self, launch: Launch) -> Result<Launched, StartFailure> {
        let launched = match self.stock.take(&launch) {
            Some(launched) => Ok(launched),
            None => self.stock.start(launch),
        };
        self.stock.want_more();
        launched
    }

    /// The templates behind it.
    #[must_use]
    pub fn zygotes(&self) -> &Arc<Zygotes> {
        &self.stock.zygotes
    }

    /// The processes that wait for a child of this agent.
    #[must_use]
    pub fn waiting(&self, agent: &str) -> Vec<u32> {
        let shelves = lock(&self.stock.shelves);
        let idle = shelves.get(agent).into_iter().flat_map(|shelf| &shelf.idle);
        idle.filter(|idle| !idle.relay.has_ended()).filter_map(|idle| idle.waits.pid()).collect()
    }
}

impl Waits {
    fn pid(&self) -> Option<u32> {
        match self {
            Self::New(launched, _) => launched.pid,
            Self::Used(used) => Some(used.pid()),
        }
    }

    fn has_exited(&self) -> bool {
        match self {
            Self::New(launched, _) => launched.handle.has_exited(),
            Self::Used(used) => used.handle().has_exited(),
        }
    }
}

impl Stock {
    fn take(self: &Arc<Self>, launch: &Launch) -> Option<Launched> {
        let surroundings = surroundings();
        let mut old = Vec::new();
        let mut shelves = lock(&self.shelves);
        let shelf = shelves.entry(launch.agent.clone()).or_default();
        shelf.used = true;
        shelf.failed = false;
        let same = self.terms.grace == launch.terminate_grace
            && self.terms.containment == launch.containment
            && self.terms.ration == launch.ration;
        let mut found: Option<Idle> = None;
        while let Some(idle) = shelf.idle.pop().filter(|_| same) {
            let usable = idle.surroundings == surroundings && !idle.waits.has_exited();
            if usable && idle.relay.connect(&launch.sink) {
                shelf.out += usize::from(matches!(idle.waits, Waits::Used(_)));
                found = Some(idle);
                break;
            }
            old.push(idle);
        }
        drop(shelves);
        // They end as they are dropped.
        drop(old);
        let Idle { waits, relay, surroundings } = found?;
        match waits {
            Waits::New(launched, again) => {
                if let Some(again) = again {
                    self.watch(&launch.agent, &launched, (again, relay, surroundings));
                }
                Some(Launched { how: "pool", ..launched })
            }
            Waits::Used(used) => match used.launch() {
                Ok(launched) => Some(launched),
                Err(why) => {
                    tracing::debug!(target: "delegate::launch::pool", ?why, "not used again");
                    // The end of this worker is nobody's matter.
                    drop(relay.disconnect());
                    self.is_back(&launch.agent);
                    None
                }
            },
        }
    }

    /// Starts a worker for a child that is here.
    fn start(self: &Arc<Self>, launch: Launch) -> Result<Launched, StartFailure> {
        let Some((theirs, ours)) = self.line_for_more(&launch.agent) else {
            return self.zygotes.launch(launch);
        };
        let (agent, relay, surroundings) =
            (launch.agent.clone(), Arc::<Relay>::default(), surroundings());
        relay.connect(&launch.sink);
        let told = Arc::clone(&relay);
        let sink: Sink = Arc::new(move |event| told.tell(event));
        let launched = self.zygotes.launch(Launch { sink, again: Some(theirs), ..launch })?;
        if again::can(&launched) {
            self.watch(&agent, &launched, (ours, relay, surroundings));
        }
        Ok(launched)
    }

    /// Both ends of the line on which a worker of this agent can be used again, if it may be.
    fn line_for_more(&self, agent: &str) -> Option<(Arc<OwnedFd>, Arc<OwnedFd>)> {
        let may = self.terms.pool.max_uses > 1 && self.zygotes.is_reusable(agent);
        let (theirs, ours) = if may { ownership::handover::pair().ok()? } else { return None };
        Some((Arc::new(theirs), Arc::new(ours)))
    }

    fn watch(
        self: &Arc<Self>,
        agent: &str,
        launched: &Launched,
        (line, relay, surroundings): (Arc<OwnedFd>, Arc<Relay>, u64),
    ) {
        lock(&self.shelves).entry(agent.to_owned()).or_default().out += 1;
        let most = self.terms.pool.max_uses;
        again::Watch { stock: Arc::downgrade(self), agent: agent.to_owned(), relay, surroundings }
            .start(&launched.handle, line, most);
    }

    fn want_more(&self) {
        // A word that is waiting already says the same.
        let _waiting = self.taken.try_send(());
    }

    /// One that was out comes back no more.
    fn is_back(&self, agent: &str) {
        if let Some(shelf) = lock(&self.shelves).get_mut(agent) {
            shelf.out = shelf.out.saturating_sub(1);
        }
    }

    /// Puts one back. It ends as it is dropped where there are enough.
    fn give_back(&self, agent: &str, idle: Idle) {
        let mut shelves = lock(&self.shelves);
        let most = self.terms.pool.max_idle.max(self.terms.pool.min_idle) as usize;
        let too_much = match shelves.get_mut(agent) {
            Some(shelf) => {
                shelf.out = shelf.out.saturating_sub(1);
                if shelf.idle.len() < most {
                    shelf.idle.push(idle);
                    None
                } else {
                    Some(idle)
                }
            }
            None => Some(idle),
        };
        drop(shelves);
        drop(too_much);
    }

    /// Starts what is missing and lets go what is too much. `quiet`: nothing was taken for the idle time.
    fn fill(&self, quiet: bool) {
        let agents: Vec<String> = {
            let mut shelves = lock(&self.shelves);
            for shelf in shelves.values_mut() {
                shelf.busy = shelf.used || (shelf.busy && !quiet);
                shelf.used = false;
            }
            shelves.keys().cloned().collect()
        };
        for agent in agents {
            self.fill_shelf(&agent);
        }
    }

    fn fill_shelf(&self, agent: &str) {
        loop {
            let dead = {
                let mut shelves = lock(&self.shelves);
                let Some(shelf) = shelves.get_mut(agent) else { return };
                let (ended, idle) = shelf.idle.drain(..).partition(|i: &Idle| i.relay.has_ended());
                shelf.idle = idle;
                let mut dead: Vec<Idle> = ended;
                let config::Pool { min_idle, max_idle, .. } = self.terms.pool;
                let wanted = if shelf.busy { max_idle.max(min_idle) } else { min_idle } as usize;
                if shelf.idle.len() > wanted {
                    dead.extend(shelf.idle.drain(wanted..));
                }
                if shelf.idle.len() + shelf.out >= wanted || shelf.failed {
                    drop(shelves);
                    drop(dead);
                    return;
                }
                dead
            };
            drop(dead);
            let relay = Arc::<Relay>::default();
            let told = Arc::clone(&relay);
            let surroundings = surroundings();
            let (theirs, ours) = self.line_for_more(agent).unzip();
            let launch = Launch {
                agent: agent.to_owned(),
                purpose: format!("waits for a task of {agent}"),
                terminate_grace: self.terms.grace,
                containment: self.terms.containment,
                ration: self.terms.ration,
                sink: Arc::new(move |event| told.tell(event)),
                waker: Arc::new(|| {}),
                again: theirs,
            };
            let started = self.zygotes.launch(launch);
            let mut shelves = lock(&self.shelves);
            let Some(shelf) = shelves.get_mut(agent) else { return };
            match started {
                Ok(launched) => {
                    let again = ours.filter(|_| again::can(&launched));
                    let waits = Waits::New(launched, again);
                    shelf.idle.push(Idle { waits, relay, surroundings });
                }
                Err(error) => {
                    tracing::debug!(target: "delegate::launch::pool", ?error, "none ahead");
                    shelf.failed = true;
                }
            }
        }
    }
}

fn fill_for_ever(stock: &Weak<Stock>, takes: &Receiver<()>, idle: Duration) {
    loop {
        let quiet = match takes.recv_timeout(idle) {
            Ok(()) => false,
            Err(RecvTimeoutError::Timeout) => true,
            Err(RecvTimeoutError::Disconnected) => return,
        };
        let Some(stock) = stock.upgrade() else { return };
        stock.fill(quiet);
    }
}

/// What a process takes over when it is started, and nobody tells it later.
fn surroundings() -> u64 {
    let mut hasher = DefaultHasher::new();
    for (name, value) in env::vars_os() {
        (name, value).hash(&mut hasher);
    }
    env::current_dir().ok().hash(&mut hasher);
    hasher.finish()
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

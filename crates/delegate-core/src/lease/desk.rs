//! [`Keys`]: the way to the [`Authority`] of one delegator, and the thread that holds it. The thread takes one
//! word after the other, reads edited files again, waits for what comes with time, and answers; it is the
//! only one of `lease` that reads a clock. It begins with the first child that needs it.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, SyncSender, channel, sync_channel};
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::Duration;

use delegate_protocol::lease::Given;
use delegate_protocol::{ApiKey, KeyAnswer, KeyQuestion, Routing, SubagentId};
use ownership::file_size;

use super::authority::{Admission, Authority, Now};
use super::beside::{Beside, Shared};
use super::endpoint::{Known, Parents, choose};
use super::file::{self, Pools, Stamp};
use super::moment::Moment;
use super::pool::PoolSpec;
use crate::config::{Diagnostic, Settings};

/// While somebody waits, files and clock are looked at so often at least: another parent may have said
/// something, the clock may have been set. What could not be told is told then.
const LOOK: Duration = Duration::from_secs(1);

/// The same for a clock that stands still until it is moved.
const LOOK_MANUAL: Duration = Duration::from_millis(5);

/// How a question is answered. Dropped unused when the child has ended.
pub type Reply = Box<dyn FnOnce(KeyAnswer) + Send>;

/// What time it is.
#[derive(Clone)]
pub struct Clock {
    /// Tells it.
    pub now: Arc<dyn Fn() -> Moment + Send + Sync>,
    /// It does not run by itself.
    pub is_manual: bool,
}

impl fmt::Debug for Clock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Clock").field("is_manual", &self.is_manual).finish_non_exhaustive()
    }
}

impl Default for Clock {
    /// The wall clock.
    fn default() -> Self {
        Self { now: Arc::new(|| std::time::SystemTime::now().into()), is_manual: false }
    }
}

/// What an authority begins with.
#[derive(Debug, Clone, Default)]
pub struct Setup {
    /// The file with the keys.
    pub file: Option<PathBuf>,
    /// Pools that the program brings along; they win over those of the file.
    pub own: BTreeMap<String, PoolSpec>,
    /// Where statuses are kept.
    pub state_dir: PathBuf,
    /// The environment, for keys in variables.
    pub env: Vec<(String, String)>,
    /// The time.
    pub clock: Clock,
}

/// The way to the authority. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Keys {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    setup: Setup,
    read: Pools,
    settings: Settings,
    /// `None` where no thread could be started.
    thread: OnceLock<Option<Sender<Word>>>,
}

/// What the thread is told.
enum Word {
    Admit(Admission, SyncSender<Option<Given>>),
    /// The same of a child that waits for nothing.
    Enter(Admission),
    Choose(Box<Choice>, SyncSender<Option<Chosen>>),
    Select(String, SyncSender<Option<Given>>),
    Ask(SubagentId, KeyQuestion, Reply),
    Leave(SubagentId),
}

/// A pool, and whether the key of the route is one of its own.
type Chosen = (String, bool);

/// Which pool a route gets, and what is known of the parent.
struct Choice {
    route: Routing,
    provider: Option<String>,
    pool: Option<String>,
    key: Option<ApiKey>,
    is_program: bool,
}

impl Keys {
    /// Reads the file with the keys. No thread is started yet.
    ///
    /// # Errors
    /// What is wrong with the file.
    pub fn open(setup: Setup, settings: &Settings) -> Result<Self, Diagnostic> {
        let path = setup.file.as_ref().map(|path| file::expand(path, &setup.env));
        let read =
            path.map_or_else(|| Ok(Pools::default()), |path| file::read(&path, &setup.env))?;
        for note in &read.notes {
            tracing::warn!(target: "delegate::keys", "{note}");
        }
        let inner = Inner { setup, read, settings: settings.clone(), thread: OnceLock::new() };
        Ok(Self { inner: Arc::new(inner) })
    }

    /// Variables that hold keys: no child inherits them.
    #[must_use]
    pub fn variables(&self) -> &BTreeSet<String> {
        &self.inner.read.variables
    }

    /// Whether there is any pool.
    #[must_use]
    pub fn has_pools(&self) -> bool {
        !self.inner.read.pools.is_empty() || !self.inner.setup.own.is_empty()
    }

    /// The endpoint of a pool, where it names one.
    #[must_use]
    pub fn endpoint_of(&self, pool: &str) -> Option<Option<String>> {
        let found = self.inner.setup.own.get(pool).or_else(|| self.inner.read.pools.get(pool))?;
        Some(found.base_url.clone())
    }

    /// The pool that children with this route get ([`choose`]), and whether the route's key is one of it.
    #[must_use]
    pub fn choose(&self, route: &Routing, parents: Parents<'_>) -> Option<(String, bool)> {
        if !self.has_pools() {
            return None;
        }
        let choice = Choice {
            route: route.clone(),
            provider: parents.provider.map(str::to_owned),
            pool: parents.pool.map(str::to_owned),
            key: parents.key.cloned(),
            is_program: parents.is_program,
        };
        self.call(|reply| Word::Choose(Box::new(choice), reply)).flatten()
    }

    /// The pool of a provider: of that name, or the custom endpoint of that name.
    #[must_use]
    pub fn pool_named(&self, provider: &str) -> Option<String> {
        let custom = format!("custom:{provider}");
        let names = [provider, custom.as_str()];
        names.into_iter().find(|name| self.endpoint_of(name).is_some()).map(str::to_owned)
    }

    /// Whether a pool had any key when its file was read.
    #[must_use]
    pub fn has_key_at_all(&self, pool: &str) -> bool {
        let inner = &self.inner;
        let found = inner.setup.own.get(pool).or_else(|| inner.read.pools.get(pool));
        found.is_some_and(|pool| pool.entries.iter().any(|entry| entry.key.is_some()))
    }

    /// A key of a pool that no child holds, for a route.
    #[must_use]
    pub fn select(&self, pool: &str) -> Option<Given> {
        self.endpoint_of(pool)?;
        self.call(|reply| Word::Select(pool.to_owned(), reply)).flatten()
    }

    /// Takes a child in, with a lease where it has a pool. All of it is given back when the [`Lease`] goes.
    pub fn admit(&self, admission: Admission) -> Lease {
        let child = admission.child;
        // First the guard: whatever happens from here on is given back.
        let mut lease = Lease { child, thread: self.thread().cloned(), given: None };
        lease.given = self.call(|reply| Word::Admit(admission, reply)).flatten();
        lease
    }

    /// Takes a child in that has no pool. Waits for nothing.
    pub fn enter(&self, admission: Admission) -> Lease {
        let lease = Lease { child: admission.child, thread: self.thread().cloned(), given: None };
        if let Some(thread) = &lease.thread {
            drop(thread.send(Word::Enter(admission)));
        }
        lease
    }

    fn thread(&self) -> Option<&Sender<Word>> {
        self.inner.thread.get_or_init(|| start(&self.inner)).as_ref()
    }

    fn call<T>(&self, word: impl FnOnce(SyncSender<T>) -> Word) -> Option<T> {
        let (reply, answer) = sync_channel(1);
        self.thread()?.send(word(reply)).ok()?;
        answer.recv().ok()
    }
}

/// What a child has of its parent's keys and calls. Gives it back when it is dropped.
#[derive(Debug)]
#[must_use = "what is not kept is given back"]
pub struct Lease {
    child: SubagentId,
    thread: Option<Sender<Word>>,
    given: Option<Given>,
}

impl Lease {
    /// The key that it began with.
    #[must_use]
    pub const fn given(&self) -> Option<&Given> {
        self.given.as_ref()
    }

    /// Hands a question of the child on. It is answered on another thread, now or later.
    pub fn ask(&self, question: KeyQuestion, reply: Reply) {
        if let Some(thread) = &self.thread
            && let Err(unsent) = thread.send(Word::Ask(self.child, question, reply))
        {
            // The reply goes with it, which refuses.
            drop(unsent);
        }
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        if let Some(thread) = &self.thread {
            // Nobody is there: then nothing is held.
            drop(thread.send(Word::Leave(self.child)));
        }
    }
}

fn start(inner: &Inner) -> Option<Sender<Word>> {
    let (sender, words) = channel();
    let Inner { setup, read, settings, .. } = inner;
    let mut authority = Authority::new(
        settings.credential_pool_strategies.clone(),
        settings.provider_limits.clone(),
    );
    authority.set_pools(merged(read, setup));
    let desk = Desk {
        authority,
        beside: Beside::new(&setup.state_dir),
        stamp: read.stamp(),
        read: read.clone(),
        setup: setup.clone(),
    };
    let thread = thread::Builder::new().name("delegate-keys".to_owned());
    match thread.spawn(move || {
        file_size::limit_is_an_error();
        desk.serve(&words);
    }) {
        Ok(_) => Some(sender),
        Err(error) => {
            tracing::error!(target: "delegate::keys", %error, "no thread for keys: children keep the key of their route");
            None
        }
    }
}

fn merged(read: &Pools, setup: &Setup) -> BTreeMap<String, PoolSpec> {
    let mut pools = read.pools.clone();
    pools.extend(setup.own.clone());
    pools
}

struct Desk {
    authority: Authority<Reply>,
    beside: Beside,
    read: Pools,
    stamp: Stamp,
    setup: Setup,
}

impl Desk {
    fn now(&self) -> Now {
        Now { time: (self.setup.clock.now)(), dice: uuid::Uuid::new_v4().as_u64_pair().0 }
    }

    fn serve(mut self, words: &Receiver<Word>) {
        loop {
            match self.next(words) {
                Ok(word) => self.take(Some(word)),
                Err(RecvTimeoutError::Timeout) => self.take(None),
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    }

    fn next(&mut self, words: &Receiver<Word>) -> Result<Word, RecvTimeoutError> {
        if !self.authority.is_waited_for() && !self.beside.is_behind() {
            return words.recv().map_err(|_| RecvTimeoutError::Disconnected);
        }
        let now = self.now();
        let most = if self.setup.clock.is_manual { LOOK_MANUAL } else { LOOK };
        let most = self.authority.next_look(now).map_or(most, |look| look.min(most));
        let until = self.authority.next_deadline(now).map_or(most, |at| at.since(now.time));
        words.recv_timeout(until.clamp(Duration::from_millis(1), most))
    }

    fn take(&mut self, word: Option<Word>) {
        self.read_again();
        let now = self.now();
        let mut answers = Vec::new();
        let act = |authority: &mut Authority<Reply>| match word {
            None => answers = authority.serve(now),
            Some(Word::Admit(admission, reply)) => {
                // Who asked may be gone; its guard gives this back.
                drop(reply.send(authority.admit(admission, now)));
            }
            Some(Word::Enter(admission)) => drop(authority.admit(admission, now)),
            Some(Word::Choose(choice, reply)) => drop(reply.send(chosen(authority, &choice))),
            Some(Word::Select(pool, reply)) => drop(reply.send(authority.select(&pool, now))),
            Some(Word::Ask(child, question, reply)) => {
                answers = authority.ask(child, question, reply, now);
            }
            Some(Word::Leave(child)) => answers = authority.leave(child, now),
        };
        self.beside.shared(&mut self.authority, now.time, act);
        for (reply, answer) in answers {
            reply(answer);
        }
    }

    /// Takes an edited file in. One that is wrong now is told, and what was read before stays.
    fn read_again(&mut self) {
        let Some(path) = &self.setup.file else { return };
        let stamp = self.read.stamp();
        if stamp == self.stamp {
            return;
        }
        self.stamp = stamp;
        match file::read(&file::expand(path, &self.setup.env), &self.setup.env) {
            Ok(read) => {
                for note in &read.notes {
                    tracing::warn!(target: "delegate::keys", "{note}");
                }
                self.stamp = read.stamp();
                self.read = read;
                self.authority.set_pools(merged(&self.read, &self.setup));
            }
            Err(fault) => {
                tracing::warn!(target: "delegate::keys", "the keys of before stay in use: {fault}");
            }
        }
    }
}

fn chosen(authority: &Authority<Reply>, choice: &Choice) -> Option<Chosen> {
    let Choice { route, provider, pool, key, is_program } = choice;
    let known: Vec<Known<'_>> = authority
        .pools()
        .iter()
        .map(|(name, pool)| Known {
            name,
            base_url: pool.base_url(),
            serves: pool.serves_at_all(route.base_url.as_deref()),
            has_parents_key: key.as_ref().is_some_and(|key| pool.has(key)),
        })
        .collect();
    let parents = Parents {
        provider: provider.as_deref(),
        pool: pool.as_deref(),
        key: key.as_ref(),
        is_program: *is_program,
    };
    let pool = choose(route, parents, &known)?;
    let has = route.api_key.as_ref().is_some_and(|key| authority.has(pool, key));
    Some((pool.to_owned(), has))
}

/// Only looks, for lists: the pools of a file with all that the parents of a state directory know.
///
/// # Errors
/// What is wrong with the file, or why the statuses cannot be read.
pub fn look(
    file: &Path,
    state_dir: &Path,
    env: &[(String, String)],
    settings: &Settings,
) -> Result<(Authority<()>, Pools), Diagnostic> {
    let read = file::read(&file::expand(file, env), env)?;
    let mut authority = Authority::new(
        settings.credential_pool_strategies.clone(),
        settings.provider_limits.clone(),
    );
    authority.set_pools(read.pools.clone());
    let beside = Beside::new(state_dir);
    beside.look(Shared::pools(&mut authority)).map_err(|error| Diagnostic {
        code: "unreadable_file",
        message: format!("what is known of the keys cannot be read: {error}"),
        file: Some(beside.status_file()),
        ..Diagnostic::default()
    })?;
    Ok((authority, read))
}

//! The asking side: starts the guards when there are none, sends requests, and one reader thread
//! ("ownership-line") that takes what comes back to the children it is about.
//!
//! A request is unanswered until `Started`, `Opened` or `Failed`. A supervisor that says `Leaving` has
//! done nothing of what it did not answer, so that goes to the next one. One that is replaced is
//! followed by a `Hello` on the same line: after a `Resync`, what is still unanswered was lost and is
//! asked for again, exactly once. A line that ends without `Leaving` means that both guards died: others
//! are started and the children handed to them. On an inherited line there are no others: what was
//! started over it is killed through its pidfds and reported as lost.

use std::collections::HashMap;
use std::ffi::OsString;
use std::fmt;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use crate::attach::{Attached, attach, attach_given, start_guards};
pub(crate) use crate::child::{Answer, Child, OnEvent};
use crate::child::{Packed, Terms, Wanted, lock, request_error, supervisor_error};
use crate::connection::{Connection, Heard};
use crate::containment::Containment;
use crate::exit::ChildEvent;
use crate::launch::LEAVES_STALE;
use crate::number::{next_owner, next_spawn};
use crate::order::order;
pub(crate) use crate::pid_one::run as run_first;
use crate::program::{Kind, Program, RoleNumbers, Stand};
use crate::protocol::{Reply, Request};
use crate::spawn::{Leftovers, Phase, Spawn, SpawnError};
pub(crate) use crate::supervisor_loop::{run_keeper, run_supervisor};
use crate::sys::Pid;
use crate::{crash, hook, identity, line};

pub(crate) mod comeback;
mod groups;
mod succession;

/// One owner; all clones of an [`crate::Owner`] share it.
pub(crate) struct Client {
    /// The process that made it: a copy by fork has the descriptors but not the reader.
    process: Pid,
    /// Which of the owners of that process: their marks differ.
    number: u64,
    source: Source,
    /// Where guards that are started from now on write down what they do.
    journal: OnceLock<PathBuf>,
    /// What they hold scopes together with.
    containment: OnceLock<Containment>,
    /// Whether they leave alone what dead owners left in cgroups.
    leaves_stale: OnceLock<()>,
    /// Rules of what its guards keep.
    keep: OnceLock<String>,
    state: Mutex<State>,
    /// The end of [`State::handing_over`].
    handed_over: Condvar,
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client").field("source", &self.source).finish_non_exhaustive()
    }
}

/// Where a line comes from when one is needed.
#[derive(Debug)]
enum Source {
    /// Guards of our own.
    Start { program: Program, args: Vec<OsString>, stand: Stand },
    /// A line that was handed to us; when it ends there is no other.
    Given,
}

#[derive(Default)]
struct State {
    line: Option<Arc<Connection>>,
    /// A given line that nobody reads yet.
    given: Option<OwnedFd>,
    children: HashMap<u64, Arc<Child>>,
    /// Adopted groups by the numbers of their leaders.
    groups: HashMap<Pid, Arc<Child>>,
    /// The last mark that was given out.
    last_mark: u64,
    /// Number of the last guard that said hello.
    generation: u32,
    /// Others take over from guards that both died, and were not told of everybody yet.
    handing_over: bool,
    /// Why a systemd that its guards asked gave them no scope.
    no_scope: Option<String>,
    /// The last question to a guard that took over.
    resync: Option<succession::Resync>,
}

impl State {
    /// Whoever waits for an answer on it waits no more.
    fn forget_line(&mut self) {
        self.line = None;
        self.resync = None;
    }
}

impl Client {
    pub(crate) fn start(program: Program, args: Vec<OsString>, stand: Stand) -> Arc<Self> {
        let number = next_owner();
        comeback::claim_number(number);
        Self::with(Source::Start { program, args, stand }, None, number)
    }

    pub(crate) fn given(line: OwnedFd) -> Arc<Self> {
        // Fails on no open descriptor.
        let _ = rustix::io::fcntl_setfd(&line, rustix::io::FdFlags::CLOEXEC);
        Self::with(Source::Given, Some(line), next_owner())
    }

    fn with(source: Source, given: Option<OwnedFd>, number: u64) -> Arc<Self> {
        let state = State { given, ..State::default() };
        let (process, journal) = (identity::own_pid(), OnceLock::new());
        let (containment, leaves_stale) = (OnceLock::new(), OnceLock::new());
        let (keep, state, handed_over) = (OnceLock::new(), Mutex::new(state), Condvar::new());
        Arc::new(Self {
            process,
            number,
            source,
            journal,
            containment,
            leaves_stale,
            keep,
            state,
            handed_over,
        })
    }

    /// Guards that are started from now on keep a journal below this directory. The first one stays.
    pub(crate) fn keep_journal(&self, dir: &Path) {
        // Fails only without a working directory: what is relative to none is nowhere.
        if let Ok(dir) = std::path::absolute(dir) {
            drop(self.journal.set(dir));
        }
    }

    /// Guards that are started from now on hold scopes together with this. The first one stays.
    pub(crate) fn contain(&self, containment: Containment) {
        let _ = self.containment.set(containment);
    }

    /// Guards that are started from now on keep what these rules say. The first ones stay.
    pub(crate) fn keep(&self, rules: String) {
        drop(self.keep.set(rules));
    }

    /// Guards that are started from now on leave alone what dead owners left in cgroups.
    pub(crate) fn leave_stale(&self) {
        let _ = self.leaves_stale.set(());
    }

    /// Why a systemd gave its guards no scope, where they asked.
    pub(crate) fn no_scope(&self) -> Option<String> {
        lock(&self.state).no_scope.clone()
    }

    fn containment(&self) -> String {
        let leaves = if self.leaves_stale.get().is_some() { LEAVES_STALE } else { "" };
        format!("{}{leaves}", self.contained().word())
    }

    fn contained(&self) -> Containment {
        self.containment.get().copied().unwrap_or_default()
    }

    /// Starts a process, under this number, and waits for the answer.
    pub(crate) fn spawn(
        self: &Arc<Self>,
        id: u64,
        spawn: Spawn,
        on_event: OnEvent,
    ) -> Result<(Arc<Child>, Answer), SpawnError> {
        let program = match &spawn.program.kind {
            Kind::Named(name) => PathBuf::from(name),
            Kind::Open(_) => PathBuf::from("/proc/self/exe"),
        };
        let dir = spawn.dir.clone();
        let (mut order, fds) = order(spawn)?;
        order.id = id;
        let mut terms = Terms::of(&order, &fds)?;
        terms.containment = terms.containment.or(self.contained());
        let request = Request::Spawn(Box::new(order));
        self.ask(Child::new(id, terms, program, dir, on_event), &request, fds)
    }

    /// Starts guards if there are none, for somebody who has to wait anyway. Where that fails, it fails again
    /// when they are needed.
    pub(crate) fn prepare(self: &Arc<Self>) {
        if self.check_process().is_ok() {
            drop(self.line(&mut lock(&self.state)));
        }
    }

    /// Opens a scope without a process.
    pub(crate) fn open(
        self: &Arc<Self>,
        grace: Duration,
        on_event: OnEvent,
    ) -> Result<(Arc<Child>, Answer), SpawnError> {
        let id = next_spawn();
        let (leftovers, containment) = (Leftovers::Kill, Containment::Auto);
        let terms = Terms {
            grace,
            leftovers,
            release: None,
            group: None,
            containment,
            ration: crate::ration::Ration::default(),
        };
        let child = Child::new(id, terms, PathBuf::new(), None, on_event);
        self.ask(child, &Request::Open { id, grace }, Vec::new())
    }

    fn ask(
        self: &Arc<Self>,
        child: Child,
        request: &Request,
        mut fds: Vec<OwnedFd>,
    ) -> Result<(Arc<Child>, Answer), SpawnError> {
        self.check_process()?;
        let mut state = lock(&self.state);
        let id = child.id;
        let bytes = line::pack(request.encode(), id, &mut fds)
            .map_err(|errno| request_error("arguments and environment", errno.raw_os_error()))?;
        let mut line = self.line(&mut state)?;
        if line.is_read_here() {
            return Err(request_error("a callback may start nothing", libc::EDEADLK));
        }
        // Whoever sees its start answered may rely on all that was there before: the owner may die a moment later.
        while state.handing_over && !hook::is_off("hand-over-first") {
            state = self.handed_over.wait(state).unwrap_or_else(PoisonError::into_inner);
            line = self.line(&mut state)?;
        }
        let packed = Arc::new(Packed::new(bytes, fds));
        let child = Arc::new(child);
        child.ask(Arc::clone(&packed));
        state.children.insert(id, Arc::clone(&child));
        drop(state);
        // Where this fails the line has ended; the reader answers or sends again.
        line.start(&packed);
        drop((packed, line));
        let answer = child.wait_answer()?;
        Ok((child, answer))
    }

    pub(crate) fn end(&self, child: &Arc<Child>, grace: Duration) {
        let shorter = |before: Option<Duration>| before.map_or(grace, |before| before.min(grace));
        child.want(|wanted| wanted.end = Some(shorter(wanted.end)));
        self.tell(child, &Request::End { id: child.id, grace });
    }

    pub(crate) fn pause(&self, child: &Arc<Child>) {
        child.want(|wanted| wanted.paused = Some(true));
        self.tell(child, &Request::Pause { id: child.id });
    }

    pub(crate) fn resume(&self, child: &Arc<Child>) {
        child.want(|wanted| wanted.paused = Some(false));
        self.tell(child, &Request::Resume { id: child.id });
    }

    /// Sends a request that has no answer. Without a line there is nothing that it could be about.
    ///
    /// A callback runs on the thread that reads the line: where there is no room for the request, that thread
    /// must not wait for it, since nobody else would see that the guard does not read.
    fn tell(&self, child: &Arc<Child>, request: &Request) {
        if self.check_process().is_err() {
            return;
        }
        let Some(line) = lock(&self.state).line.clone() else { return };
        if !line.is_read_here() {
            line.tell(request, Vec::new());
        } else if !line.try_tell(request) {
            let child = Arc::clone(child);
            let later = move || succession::say_wishes(&line, &child);
            let thread = std::thread::Builder::new().name("ownership-later".into());
            if let Err(error) = thread.spawn(later) {
                tracing::error!(%error, "no thread to ask with: a wish waits for the next guard");
            }
        }
    }

    fn check_process(&self) -> Result<(), SpawnError> {
        if identity::own_pid() == self.process {
            return Ok(());
        }
        Err(request_error("this process is a copy of the owner made by fork", libc::EPERM))
    }

    /// The line, or a new one.
    fn line(self: &Arc<Self>, state: &mut State) -> Result<Arc<Connection>, SpawnError> {
        if let Some(line) = &state.line {
            return Ok(Arc::clone(line));
        }
        let Attached { line, generation, guards } = match &self.source {
            Source::Start { program, args, stand } => {
                let journal = self.journal.get().map(PathBuf::as_path);
                let (before, owner) = (state.generation, self.number);
                let numbers = RoleNumbers { before, owner, stand: *stand };
                let containment = self.containment();
                let kept = (journal, containment.as_str(), self.keep.get().map(String::as_str));
                attach(|| start_guards(program, args, numbers, kept))?
            }
            Source::Given => attach_given(state.given.take().ok_or_else(|| {
                supervisor_error("the line that was inherited has ended", Some(libc::EPIPE))
            })?)?,
        };
        let line = Connection::new(line)
            .map_err(|errno| supervisor_error("no event counter", Some(errno.raw_os_error())))?;
        state.generation = state.generation.max(generation);
        line.served_by(guards);
        self.begin_reading(&line)
            .map_err(|error| supervisor_error("no reader thread", error.raw_os_error()))?;
        state.line = Some(Arc::clone(&line));
        Ok(line)
    }

    fn begin_reading(self: &Arc<Self>, line: &Arc<Connection>) -> std::io::Result<()> {
        let (client, line) = (Arc::clone(self), Arc::clone(line));
        let thread = std::thread::Builder::new().name("ownership-line".into());
        thread.spawn(move || client.read(&line)).map(drop)
    }

    /// The reader thread: one line, to its end.
    fn read(self: &Arc<Self>, line: &Arc<Connection>) {
        line.read_by_this_thread();
        let mut buffer = Vec::new();
        let left = loop {
            match line.hear(&mut buffer) {
                Heard::Reply(Reply::Leaving, _) => break true,
                Heard::Reply(reply, fds) => {
                    let name = reply.name();
                    crash::asker_comes("before-hear", || Some(name));
                    self.take(line, reply, fds);
                    crash::asker_comes("after-hear", || Some(name));
                }
                Heard::End => break false,
            }
        };
        match (left, &self.source) {
            (true, _) => self.move_on(),
            (false, Source::Start { .. }) => self.hand_over(),
            (false, Source::Given) => self.lose_all(),
        }
        line.reap_guards();
    }

    fn take(self: &Arc<Self>, line: &Arc<Connection>, reply: Reply, fds: Vec<OwnedFd>) {
        let mut fds = fds.into_iter();
        match reply {
            Reply::Started { id, pid, scope } => {
                self.answer(line, id, |_| started(pid, scope, fds.next()));
            }
            Reply::Opened { id } => self.answer(line, id, |_| started(0, 0, fds.next())),
            Reply::Failed { id, failure } => {
                let no_scope = self.no_scope();
                self.answer(line, id, |child| Err(child.error(failure, no_scope)));
            }
            Reply::Exited { id, exit } => {
                tracing::debug!(id, ?exit, "exited");
                if let Some(child) = self.child(id) {
                    child.tell(ChildEvent::Exited(exit));
                }
            }
            Reply::Emptied { id, emptied } => {
                tracing::debug!(id, ?emptied, "emptied");
                // Of what was not answered nobody is told the end: it is asked for again.
                let Some(child) = self.child(id).filter(|child| child.pending().is_none()) else {
                    return;
                };
                if let Some(release) = emptied.release.filter(|release| !release.succeeded()) {
                    tracing::warn!(id, ?release, "a release command failed");
                }
                // Of what is let live more is to be said: that it is over.
                if emptied.kept == 0 {
                    lock(&self.state).children.remove(&id);
                }
                self.forget_group(&child);
                child.tell(ChildEvent::Emptied(emptied));
            }
            Reply::Stopped { id, signal } => {
                if let Some(child) = self.child(id) {
                    child.tell(ChildEvent::Stopped(signal));
                }
            }
            Reply::Hello { generation, .. } => self.replaced(line, generation, fds.collect()),
            Reply::Resynced { number } => self.resynced(number),
            Reply::NoScope { why } => {
                let why = String::from_utf8_lossy(&why).into_owned();
                tracing::info!(why, "no scope of a systemd");
                lock(&self.state).no_scope = Some(why);
            }
            // What was asked for before this line was read (`comeback`).
            Reply::Returned(_) | Reply::Recounted { .. } => {}
            Reply::Leaving | Reply::Pong { .. } => {}
        }
    }

    fn child(&self, id: u64) -> Option<Arc<Child>> {
        lock(&self.state).children.get(&id).cloned()
    }

    /// A second answer, of the guard that took over, is none.
    fn answer(
        self: &Arc<Self>,
        line: &Connection,
        id: u64,
        answer: impl FnOnce(&Child) -> Result<Answer, SpawnError>,
    ) {
        let Some(child) = self.child(id).filter(|child| child.pending().is_some()) else { return };
        let answer = answer(&child);
        if let Err(error) = &answer {
            if error.phase == Phase::Supervisor {
                // Without a handle it is not ours to keep.
                self.end(&child, Duration::ZERO);
            }
            lock(&self.state).children.remove(&id);
        }
        line.settle_start();
        child.answer(answer);
    }

    /// The supervisor left by itself: what it did not answer goes to the next one.
    fn move_on(self: &Arc<Self>) {
        tracing::debug!("supervisor left");
        let mut state = lock(&self.state);
        state.forget_line();
        let requests: Vec<_> =
            state.children.values().filter_map(|child| child.pending()).collect();
        if requests.is_empty() {
            return;
        }
        match self.line(&mut state) {
            Ok(line) => {
                drop(state);
                for request in requests {
                    line.start(&request);
                }
            }
            Err(error) => {
                drop(state);
                tracing::warn!(%error, "no next supervisor");
                self.lose_all();
            }
        }
    }

    /// Nobody watches them any more: they are ended here, and nothing more is known of them.
    fn lose_all(&self) {
        let children = {
            let mut state = lock(&self.state);
            state.forget_line();
            std::mem::take(&mut state.children)
        };
        if !children.is_empty() {
            tracing::warn!(children = children.len(), "their guards died; they are killed");
        }
        let mut children: Vec<_> = children.into_values().collect();
        children.sort_by_key(|child| child.id);
        for child in children {
            child.lose();
        }
    }
}

fn started(pid: Pid, scope: u64, fd: Option<OwnedFd>) -> Result<Answer, SpawnError> {
    match fd {
        Some(fd) => Ok(Answer { pid, scope, fd: Arc::new(fd) }),
        None => Err(supervisor_error("its handle was lost on the way", Some(libc::EMFILE))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_of_the_owner_is_refused() {
        let made_elsewhere = Client {
            process: identity::own_pid() + 1,
            number: 0,
            source: Source::Given,
            journal: OnceLock::new(),
            containment: OnceLock::new(),
            leaves_stale: OnceLock::new(),
            keep: OnceLock::new(),
            state: Mutex::default(),
            handed_over: Condvar::new(),
        };
        let spawn = Spawn::new("true");
        let error =
            Arc::new(made_elsewhere).spawn(1, spawn, Box::new(|_| {})).expect_err("refused");
        assert_eq!((error.phase, error.errno), (Phase::Request, Some(libc::EPERM)));
        assert!(error.detail.contains("fork"), "{error}");
    }
}

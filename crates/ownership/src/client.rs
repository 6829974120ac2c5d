//! The owning side's connection: starts a supervisor when there is none, sends requests, and one
//! reader thread ("ownership-line") that takes what comes back to the children it is about.
//!
//! A request is unanswered until `Started`, `Opened` or `Failed`. A supervisor that says `Leaving` has
//! done nothing of what it did not answer, so that goes to the next one. A line that ends without
//! `Leaving` means that the supervisor died: what it had started is killed through its pidfds and
//! reported as lost.

use std::collections::HashMap;
use std::ffi::OsString;
use std::fmt;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::identity;
use crate::launch;
use crate::line::{self, Received};
use crate::owner::{ChildEvent, Emptied, Exit, SUPERVISOR_ROLE};
use crate::program::{Kind, Program};
use crate::protocol::{Failure, Image, MAX_FDS, Order, Reply, Request, VERSION};
use crate::spawn::{Phase, Spawn, SpawnError};
pub(crate) use crate::supervisor_loop::run as run_supervisor;
use crate::sys::{Pid, signal, wait};

/// A supervisor that has not said hello by then is none: a start takes a few milliseconds.
const HELLO_LIMIT: Duration = Duration::from_secs(10);

/// Largest reply: 32 processes with names, or less.
const REPLY_BYTES: usize = 8 * 1024;

/// What is called for each event of a child.
pub(crate) type OnEvent = Box<dyn FnMut(ChildEvent) + Send>;

/// One owner; all clones of an [`crate::Owner`] share it.
pub(crate) struct Client {
    /// The process that made it: a copy by fork has the descriptors but not the reader.
    process: Pid,
    source: Source,
    state: Mutex<State>,
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client").field("source", &self.source).finish_non_exhaustive()
    }
}

/// Where a line comes from when one is needed.
#[derive(Debug)]
enum Source {
    /// A supervisor of our own.
    Start { program: Program, args: Vec<OsString> },
    /// A line that was handed to us; when it ends there is no other.
    Given,
}

#[derive(Default)]
struct State {
    line: Option<Arc<OwnedFd>>,
    /// A given line that nobody reads yet.
    given: Option<OwnedFd>,
    children: HashMap<u64, Arc<Child>>,
    last_id: u64,
}

/// A child or scope, as its owner knows it.
pub(crate) struct Child {
    id: u64,
    /// What the error of a failed start is about.
    program: PathBuf,
    dir: Option<PathBuf>,
    known: Mutex<Known>,
    changed: Condvar,
    on_event: Mutex<OnEvent>,
}

impl fmt::Debug for Child {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Child").field("id", &self.id).finish_non_exhaustive()
    }
}

#[derive(Default)]
struct Known {
    /// The request, until it is answered.
    pending: Option<Arc<Packed>>,
    /// The answer, until the asking thread took it.
    answer: Option<Result<Answer, SpawnError>>,
    /// The pidfd of a process that was started.
    handle: Option<Arc<OwnedFd>>,
    exit: Option<Exit>,
    end: Option<End>,
}

/// A request ready to be sent, as often as needed.
struct Packed {
    bytes: Vec<u8>,
    fds: Vec<OwnedFd>,
}

/// What a start led to.
#[derive(Debug)]
pub(crate) struct Answer {
    /// 0 for a scope without a process.
    pub(crate) pid: Pid,
    /// The pidfd, or the line of a scope.
    pub(crate) fd: Arc<OwnedFd>,
}

#[derive(Debug, Clone)]
enum End {
    Emptied(Emptied),
    Lost,
}

/// A panic of a callback leaves nothing half done behind these locks.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Child {
    fn new(id: u64, program: PathBuf, dir: Option<PathBuf>, on_event: OnEvent) -> Self {
        Self {
            id,
            program,
            dir,
            known: Mutex::default(),
            changed: Condvar::new(),
            on_event: Mutex::new(on_event),
        }
    }

    fn wait_for<T>(&self, mut ready: impl FnMut(&mut Known) -> Option<T>) -> T {
        let mut known = lock(&self.known);
        loop {
            if let Some(value) = ready(&mut known) {
                return value;
            }
            known = self.changed.wait(known).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Whether its scope is known to be over.
    pub(crate) fn has_ended(&self) -> bool {
        lock(&self.known).end.is_some()
    }

    pub(crate) fn wait_exit(&self) -> Option<Exit> {
        self.wait_for(|known| match (&known.exit, &known.end) {
            (Some(exit), _) => Some(Some(exit.clone())),
            (None, Some(_)) => Some(None),
            (None, None) => None,
        })
    }

    pub(crate) fn wait_empty(&self) -> Option<Emptied> {
        self.wait_for(|known| match &known.end {
            Some(End::Emptied(emptied)) => Some(Some(emptied.clone())),
            Some(End::Lost) => Some(None),
            None => None,
        })
    }

    fn answer(&self, answer: Result<Answer, SpawnError>) {
        let mut known = lock(&self.known);
        known.pending = None;
        let process = answer.as_ref().ok().filter(|answer| answer.pid != 0);
        known.handle = process.map(|answer| Arc::clone(&answer.fd));
        known.answer = Some(answer);
        self.changed.notify_all();
    }

    /// Told to the callback first, so that who waits for it finds the callback's work done.
    fn tell(&self, event: ChildEvent) {
        lock(&self.on_event)(event.clone());
        let mut known = lock(&self.known);
        match event {
            ChildEvent::Exited(exit) => known.exit = Some(exit),
            ChildEvent::Emptied(emptied) => known.end = Some(End::Emptied(emptied)),
            ChildEvent::Lost => known.end = Some(End::Lost),
        }
        self.changed.notify_all();
    }

    /// The supervisor is gone. What was not answered may or may not have been done.
    fn lose(&self) {
        let (pending, handle) = {
            let known = lock(&self.known);
            (known.pending.is_some(), known.handle.clone())
        };
        if pending {
            return self.answer(Err(supervisor_error("the supervisor died", None)));
        }
        if let Some(handle) = handle {
            // Fails only when it is dead already.
            let _ = signal::send(handle.as_fd(), libc::SIGKILL);
        }
        self.tell(ChildEvent::Lost);
    }

    fn error(&self, failure: Failure) -> SpawnError {
        let path = match failure.phase {
            Phase::Chdir => self.dir.clone(),
            Phase::Request | Phase::Supervisor | Phase::Clone | Phase::Setup | Phase::Exec => {
                Some(self.program.clone())
            }
        };
        SpawnError {
            phase: failure.phase,
            errno: Some(failure.errno),
            path,
            detail: std::io::Error::from_raw_os_error(failure.errno).to_string(),
        }
    }
}

fn supervisor_error(detail: &str, errno: Option<i32>) -> SpawnError {
    SpawnError { phase: Phase::Supervisor, errno, path: None, detail: detail.to_owned() }
}

fn request_error(detail: &str, errno: i32) -> SpawnError {
    SpawnError { phase: Phase::Request, errno: Some(errno), path: None, detail: detail.to_owned() }
}

impl Client {
    pub(crate) fn start(program: Program, args: Vec<OsString>) -> Arc<Self> {
        Self::with(Source::Start { program, args }, None)
    }

    pub(crate) fn given(line: OwnedFd) -> Arc<Self> {
        // Fails on no open descriptor.
        let _ = rustix::io::fcntl_setfd(&line, rustix::io::FdFlags::CLOEXEC);
        Self::with(Source::Given, Some(line))
    }

    fn with(source: Source, given: Option<OwnedFd>) -> Arc<Self> {
        let state = State { given, ..State::default() };
        Arc::new(Self { process: identity::own_pid(), source, state: Mutex::new(state) })
    }

    /// Starts a process and waits for the answer.
    pub(crate) fn spawn(
        self: &Arc<Self>,
        spawn: Spawn,
        on_event: OnEvent,
    ) -> Result<(Arc<Child>, Answer), SpawnError> {
        let program = match &spawn.program.kind {
            Kind::Named(name) => PathBuf::from(name),
            Kind::Open(_) => PathBuf::from("/proc/self/exe"),
        };
        let dir = spawn.dir.clone();
        let (mut order, fds) = order(spawn)?;
        self.ask(program, dir, on_event, fds, |id| {
            order.id = id;
            Request::Spawn(Box::new(order))
        })
    }

    /// Opens a scope without a process.
    pub(crate) fn open(
        self: &Arc<Self>,
        grace: Duration,
        on_event: OnEvent,
    ) -> Result<(Arc<Child>, Answer), SpawnError> {
        let request = |id| Request::Open { id, grace };
        self.ask(PathBuf::new(), None, on_event, Vec::new(), request)
    }

    fn ask(
        self: &Arc<Self>,
        program: PathBuf,
        dir: Option<PathBuf>,
        on_event: OnEvent,
        mut fds: Vec<OwnedFd>,
        request: impl FnOnce(u64) -> Request,
    ) -> Result<(Arc<Child>, Answer), SpawnError> {
        self.check_process()?;
        let mut state = lock(&self.state);
        state.last_id += 1;
        let id = state.last_id;
        let bytes = line::pack(request(id).encode(), &mut fds)
            .map_err(|errno| request_error("arguments and environment", errno.raw_os_error()))?;
        let line = self.line(&mut state)?;
        let packed = Arc::new(Packed { bytes, fds });
        let child = Arc::new(Child::new(id, program, dir, on_event));
        lock(&child.known).pending = Some(Arc::clone(&packed));
        state.children.insert(id, Arc::clone(&child));
        drop(state);
        // Where this fails the line has ended; the reader answers or sends again.
        packed.send(&line);
        drop((packed, line));
        let answer = child.wait_for(|known| known.answer.take());
        answer.map(|answer| (child, answer))
    }

    pub(crate) fn end(&self, child: &Child, grace: Duration) {
        self.tell(&Request::End { id: child.id, grace });
    }

    pub(crate) fn pause(&self, child: &Child) {
        self.tell(&Request::Pause { id: child.id });
    }

    pub(crate) fn resume(&self, child: &Child) {
        self.tell(&Request::Resume { id: child.id });
    }

    /// Sends a request that has no answer. Without a line there is nothing that it could be about.
    fn tell(&self, request: &Request) {
        if self.check_process().is_err() {
            return;
        }
        let line = lock(&self.state).line.clone();
        if let Some(line) = line {
            Packed { bytes: request.encode(), fds: Vec::new() }.send(&line);
        }
    }

    fn check_process(&self) -> Result<(), SpawnError> {
        if identity::own_pid() == self.process {
            return Ok(());
        }
        Err(request_error("this process is a copy of the owner made by fork", libc::EPERM))
    }

    /// The line, or a new one.
    fn line(self: &Arc<Self>, state: &mut State) -> Result<Arc<OwnedFd>, SpawnError> {
        if let Some(line) = &state.line {
            return Ok(Arc::clone(line));
        }
        let line = match &self.source {
            Source::Start { program, args } => start_supervisor(program, args)?,
            Source::Given => state.given.take().ok_or_else(|| {
                supervisor_error("the line that was inherited has ended", Some(libc::EPIPE))
            })?,
        };
        let line = Arc::new(line);
        expect_hello(&line)?;
        let (client, read) = (Arc::clone(self), Arc::clone(&line));
        std::thread::Builder::new()
            .name("ownership-line".into())
            .spawn(move || client.read(&read))
            .map_err(|error| supervisor_error("no reader thread", error.raw_os_error()))?;
        state.line = Some(Arc::clone(&line));
        Ok(line)
    }

    /// The reader thread: one line, to its end.
    fn read(self: &Arc<Self>, line: &OwnedFd) {
        let mut buffer = vec![0; REPLY_BYTES];
        let mut left = false;
        loop {
            match line::receive(line.as_fd(), &mut buffer, true) {
                Ok(Received::Record { bytes, fds }) => match Reply::decode(&bytes) {
                    Some(Reply::Leaving) => left = true,
                    Some(reply) => self.take(reply, fds.into_iter().next()),
                    None => tracing::warn!(bytes = bytes.len(), "record not understood"),
                },
                Ok(Received::Junk) => tracing::warn!("truncated record"),
                Ok(Received::End) | Err(_) => break,
            }
            if left {
                break;
            }
        }
        if left { self.move_on() } else { self.lose_all() }
    }

    fn take(&self, reply: Reply, fd: Option<OwnedFd>) {
        match reply {
            Reply::Started { id, pid } => self.answer(id, |_| started(pid, fd)),
            Reply::Opened { id } => self.answer(id, |_| started(0, fd)),
            Reply::Failed { id, failure } => {
                self.answer(id, |child| Err(child.error(failure)));
                lock(&self.state).children.remove(&id);
            }
            Reply::Exited { id, exit } => {
                tracing::debug!(id, ?exit, "exited");
                if let Some(child) = self.child(id) {
                    child.tell(ChildEvent::Exited(exit));
                }
            }
            Reply::Emptied { id, emptied } => {
                tracing::debug!(id, ?emptied, "emptied");
                let child = lock(&self.state).children.remove(&id);
                if let Some(child) = child {
                    child.tell(ChildEvent::Emptied(emptied));
                }
            }
            Reply::Hello { .. } | Reply::Leaving => {}
        }
    }

    fn child(&self, id: u64) -> Option<Arc<Child>> {
        lock(&self.state).children.get(&id).cloned()
    }

    fn answer(&self, id: u64, answer: impl FnOnce(&Child) -> Result<Answer, SpawnError>) {
        let Some(child) = self.child(id) else { return };
        let answer = answer(&child);
        if answer.is_err() {
            // Without a handle it is not ours to keep.
            self.tell(&Request::End { id, grace: Duration::ZERO });
        }
        child.answer(answer);
    }

    /// The supervisor left by itself: what it did not answer goes to the next one.
    fn move_on(self: &Arc<Self>) {
        tracing::debug!("supervisor left");
        let mut state = lock(&self.state);
        state.line = None;
        let pending = |child: &Arc<Child>| lock(&child.known).pending.clone();
        let requests: Vec<_> = state.children.values().filter_map(pending).collect();
        if requests.is_empty() {
            return;
        }
        match self.line(&mut state) {
            Ok(line) => {
                drop(state);
                for request in requests {
                    request.send(&line);
                }
            }
            Err(error) => {
                drop(state);
                tracing::warn!(%error, "no next supervisor");
                self.lose_all();
            }
        }
    }

    /// The supervisor died: its children are ended here, and nothing more is known of them.
    fn lose_all(&self) {
        let children = {
            let mut state = lock(&self.state);
            state.line = None;
            std::mem::take(&mut state.children)
        };
        if !children.is_empty() {
            tracing::warn!(children = children.len(), "supervisor died; its children are killed");
        }
        let mut children: Vec<_> = children.into_values().collect();
        children.sort_by_key(|child| child.id);
        for child in children {
            child.lose();
        }
    }
}

impl Packed {
    /// Waits for room: a supervisor reads unless thousands of its replies are unread.
    fn send(&self, line: &OwnedFd) {
        let fds: Vec<BorrowedFd<'_>> = self.fds.iter().map(AsFd::as_fd).collect();
        if let Err(error) = line::send(line.as_fd(), &self.bytes, &fds, true) {
            tracing::debug!(%error, "not sent: the line has ended");
        }
    }
}

fn started(pid: Pid, fd: Option<OwnedFd>) -> Result<Answer, SpawnError> {
    match fd {
        Some(fd) => Ok(Answer { pid, fd: Arc::new(fd) }),
        None => Err(supervisor_error("its handle was lost on the way", Some(libc::EMFILE))),
    }
}

/// The wire form of a spawn; the identifier is set when it is sent.
fn order(spawn: Spawn) -> Result<(Order, Vec<OwnedFd>), SpawnError> {
    let Spawn { program, args, env, env_clear, dir, fds, line, grace, purpose } = spawn;
    tracing::debug!(purpose, ?program, "spawn");
    if fds.len() > MAX_FDS {
        return Err(request_error("more than 64 descriptors", libc::EMFILE));
    }
    let mut argv = vec![program.argv0().as_bytes().to_vec()];
    argv.extend(args.iter().map(|arg| arg.as_bytes().to_vec()));
    let cwd = open_cwd().map_err(|errno| {
        request_error("the working directory cannot be opened", errno.raw_os_error())
    })?;
    let mut carried = vec![cwd];
    let image = match program.kind {
        Kind::Named(name) => Image::Named(name.as_bytes().to_vec()),
        Kind::Open(fd) => {
            let copy = fd.try_clone().map_err(|error| {
                request_error("descriptor", error.raw_os_error().unwrap_or(libc::EMFILE))
            })?;
            carried.push(copy);
            Image::Open
        }
    };
    let (numbers, given): (Vec<_>, Vec<_>) = fds.into_iter().unzip();
    carried.extend(given);
    let order = Order {
        id: 0,
        image,
        argv,
        env: environment(env, env_clear),
        dir: dir.map(|dir| dir.into_os_string().as_bytes().to_vec()),
        fds: numbers,
        line,
        grace,
    };
    let texts = order.argv.iter().chain(&order.env).chain(&order.dir);
    if texts.into_iter().any(|text| text.contains(&0)) {
        return Err(request_error("a NUL byte in an argument or variable", libc::EINVAL));
    }
    Ok((order, carried))
}

/// The directory that relative paths of a spawn are relative to: this process's, not the supervisor's.
fn open_cwd() -> rustix::io::Result<OwnedFd> {
    use rustix::fs::{Mode, OFlags, open};
    open(".", OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
}

fn environment(changes: Vec<(OsString, Option<OsString>)>, clear: bool) -> Vec<Vec<u8>> {
    let mut all: Vec<(OsString, OsString)> =
        if clear { Vec::new() } else { std::env::vars_os().collect() };
    for (key, value) in changes {
        all.retain(|(known, _)| *known != key);
        all.extend(value.map(|value| (key, value)));
    }
    launch::entries(all)
}

/// Starts a supervisor and gives our end of its line. The stage that we start leaves at once, so that
/// this process has no child that its program did not start.
fn start_supervisor(program: &Program, args: &[OsString]) -> Result<OwnedFd, SpawnError> {
    let failed = |detail: &str| {
        let detail = detail.to_owned();
        move |errno: rustix::io::Errno| supervisor_error(&detail, Some(errno.raw_os_error()))
    };
    let (ours, theirs) = line::pair().map_err(failed("no line"))?;
    let owner = identity::own_pidfd()
        .map_err(|error| supervisor_error("no pidfd of this process", error.raw_os_error()))?;
    let null = std::fs::File::options()
        .read(true)
        .write(true)
        .open("/dev/null")
        .map_err(|error| supervisor_error("/dev/null", error.raw_os_error()))?;
    let mut argv =
        vec![program.argv0.as_ref().map_or(&b"warden"[..], |name| name.as_bytes()).to_vec()];
    if args.first().is_none_or(|first| first != SUPERVISOR_ROLE) {
        argv.push(SUPERVISOR_ROLE.into());
    }
    argv.extend(args.iter().map(|arg| arg.as_bytes().to_vec()));
    let stage = launch::start_stage(program, &argv, theirs.as_fd(), owner.as_fd(), null.as_fd())
        .map_err(|failure| SpawnError {
            path: match &program.kind {
                Kind::Named(name) => Some(PathBuf::from(name)),
                Kind::Open(_) => None,
            },
            ..supervisor_error(
                &std::io::Error::from_raw_os_error(failure.errno).to_string(),
                Some(failure.errno),
            )
        })?;
    drop(theirs);
    // A program that is no supervisor may never leave; it is ended below for want of a hello.
    let left = wait_readable(stage.as_fd(), HELLO_LIMIT);
    if !left {
        let _ = signal::send(stage.as_fd(), libc::SIGKILL);
    }
    wait::reap_handle(&stage);
    if left { Ok(ours) } else { Err(supervisor_error("it is no supervisor", None)) }
}

/// The first record of every line.
fn expect_hello(line: &OwnedFd) -> Result<(), SpawnError> {
    let none = || supervisor_error("it did not say hello", None);
    if !wait_readable(line.as_fd(), HELLO_LIMIT) {
        return Err(none());
    }
    let Ok(Received::Record { bytes, .. }) =
        line::receive(line.as_fd(), &mut vec![0; REPLY_BYTES], false)
    else {
        return Err(none());
    };
    match Reply::decode(&bytes) {
        Some(Reply::Hello { version: VERSION, pid }) => {
            tracing::debug!(pid, "supervisor is there");
            Ok(())
        }
        Some(Reply::Hello { version, .. }) => Err(supervisor_error(
            &format!("it speaks version {version}, this program {VERSION}: install both together"),
            None,
        )),
        _ => Err(none()),
    }
}

/// Whether it becomes readable in time.
fn wait_readable(fd: BorrowedFd<'_>, limit: Duration) -> bool {
    let mut asked = [PollFd::from_borrowed_fd(fd, PollFlags::IN)];
    let Ok(limit) = Timespec::try_from(limit) else { return false };
    loop {
        match poll(&mut asked, Some(&limit)) {
            Err(rustix::io::Errno::INTR) => {}
            other => return other.is_ok_and(|ready| ready > 0),
        }
    }
}

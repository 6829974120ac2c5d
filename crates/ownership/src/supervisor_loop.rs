//! The supervisor's process: the one file of this side that waits, reads the clock and acts. Decisions
//! come from [`crate::supervisor`].
//!
//! One thread, one `poll` over the owner's pidfd, deaths of children, and the lines. It ignores what
//! terminals send, holds nothing that it inherited but its two descriptors, and a panic aborts it: an
//! unwound supervisor would be one that looks alive and does nothing.

use std::collections::{HashMap, HashSet, VecDeque};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use crate::identity::{self, Stat};
use crate::launch::{self, Setting, TAG};
use crate::line::{self, Received};
use crate::membership::{Identity, Member, ProcessGroup, Protected, Source, stop_all};
use crate::protocol::{Failure, MAX_INLINE, Order, Reply, Request, VERSION};
use crate::registry::{Root, ScopeId};
use crate::spawn::Phase;
use crate::supervisor::{Effect, Event, Supervisor, Unknown};
use crate::sys::wait::{self, Look};
use crate::sys::{Pid, process, signal};

/// Without children for this long, a supervisor leaves.
const IDLE_LIMIT: Duration = Duration::from_secs(30);

/// Replies that wait for one reader before its requests are no longer read. Above it come at most two
/// for each of its living scopes (`Exited`, `Emptied`), which are never dropped.
const MAX_WAITING: usize = 4096;

/// Records read from one line before the others get their turn.
const BATCH: usize = 64;

/// For tests only: mechanisms to switch off, by name. Each has a test that shows what escapes then.
const TEST_OFF: &str = "OWNERSHIP_TEST_OFF";

/// For tests only: milliseconds without children after which the supervisor leaves.
const TEST_IDLE: &str = "OWNERSHIP_TEST_IDLE_MS";

/// Runs this process as a supervisor, to its end. First stage: leaves in a copy, so that the owner's
/// process sees no child that it did not start.
pub(crate) fn run() -> ExitCode {
    let (Some(control), Some(owner)) = (process::inherited(3), process::inherited(4)) else {
        return ExitCode::from(2);
    };
    std::panic::set_hook(Box::new(|_| std::process::abort()));
    match set_up(control, owner).map(Loop::run) {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}

fn set_up(control: OwnedFd, owner: OwnedFd) -> io::Result<Loop> {
    for fd in [&control, &owner] {
        rustix::io::fcntl_setfd(fd, rustix::io::FdFlags::CLOEXEC)?;
    }
    process::close_from(5);
    process::quiet_standard_streams()?;
    process::go_on_in_a_copy()?;
    // Only if the stage's parent leads us already; then we are in a session of our own.
    let _ = rustix::process::setsid();
    rustix::process::chdir("/")?;
    // Shares no word with any owner: a kill by name takes one of them at most.
    rustix::thread::set_name(c"warden")?;
    signal::ignore_terminal();
    let off = Off::from_environment();
    if !off.subreaper {
        rustix::process::set_child_subreaper(Some(rustix::process::getpid()))?;
    }
    Loop::new(control, owner, off)
}

/// What is switched off, in tests.
#[derive(Debug, Clone, Copy, Default)]
struct Off {
    subreaper: bool,
    pidfd: bool,
    walk: bool,
    cont: bool,
    kill: bool,
}

impl Off {
    fn from_environment() -> Self {
        let list = std::env::var(TEST_OFF).unwrap_or_default();
        let has = |name| list.split(',').any(|word| word == name);
        Self {
            subreaper: has("subreaper"),
            pidfd: has("pidfd"),
            walk: has("walk"),
            cont: has("cont"),
            kill: has("kill"),
        }
    }
}

/// One line and what waits to be said on it.
struct Line {
    socket: OwnedFd,
    waiting: VecDeque<(Vec<u8>, Option<OwnedFd>)>,
}

impl Line {
    fn new(socket: OwnedFd) -> Self {
        let hello = Reply::Hello { version: VERSION, pid: identity::own_pid() };
        Self { socket, waiting: VecDeque::from([(hello.encode(), None)]) }
    }

    /// Says what can be said without waiting. `false` when nobody is there to hear it.
    fn flush(&mut self) -> bool {
        while let Some((bytes, fd)) = self.waiting.front() {
            let fds: Vec<_> = fd.iter().map(AsFd::as_fd).collect();
            match line::send(self.socket.as_fd(), bytes, &fds, false) {
                Ok(()) => drop(self.waiting.pop_front()),
                // TOOMANYREFS: more descriptors under way than one process may have; told later.
                Err(Errno::AGAIN | Errno::TOOMANYREFS | Errno::NOBUFS | Errno::NOMEM) => {
                    return true;
                }
                Err(_) => {
                    self.waiting.clear();
                    return false;
                }
            }
        }
        true
    }
}

/// Members that were sent TERM.
#[derive(Default)]
struct Reached {
    /// By the group of the root.
    group: Option<Pid>,
    /// One by one.
    members: HashSet<Identity>,
}

struct Loop {
    machine: Supervisor,
    owner: OwnedFd,
    /// The owner's number and start time, for the tag.
    owner_identity: String,
    owner_gone: bool,
    deaths: OwnedFd,
    null: OwnedFd,
    lines: HashMap<ScopeId, Line>,
    /// Handles of the roots.
    handles: HashMap<Pid, OwnedFd>,
    /// The other ends of lines that were made and not yet handed out.
    fresh: HashMap<ScopeId, OwnedFd>,
    /// Who was sent TERM: nobody is sent it twice, many programs take that for an order to hurry.
    reached: HashMap<ScopeId, Reached>,
    source: Source,
    protected: Protected,
    open_files: Option<(u64, u64)>,
    off: Off,
    buffer: Vec<u8>,
    leaving: bool,
    done: bool,
}

#[expect(clippy::disallowed_methods, reason = "this is the file that waits")]
fn now() -> Instant {
    Instant::now()
}

impl Loop {
    fn new(control: OwnedFd, owner: OwnedFd, off: Off) -> io::Result<Self> {
        let deaths = signal::child_deaths()?;
        // A dead owner has no number any more; its death is the first thing that will be seen.
        let owner_pid = identity::pid_of(owner.as_fd()).unwrap_or(0);
        let stat = Stat::read(owner_pid);
        let start = stat.as_ref().map_or(0, |stat| stat.start);
        let idle = std::env::var(TEST_IDLE).ok().and_then(|millis| millis.parse().ok());
        let null = std::fs::File::options().read(true).write(true).open("/dev/null")?;
        Ok(Self {
            machine: Supervisor::new(idle.map_or(IDLE_LIMIT, Duration::from_millis), now()),
            owner,
            owner_identity: format!("{owner_pid}.{start}"),
            owner_gone: false,
            deaths,
            null: null.into(),
            lines: HashMap::from([(ScopeId::ALL, Line::new(control))]),
            handles: HashMap::new(),
            fresh: HashMap::new(),
            reached: HashMap::new(),
            source: Source::probe(),
            protected: Protected {
                own: rustix::process::getpgrp().as_raw_nonzero().get(),
                owner: stat.map_or(0, |stat| stat.group),
            },
            open_files: raise_open_files(),
            off,
            buffer: vec![0; MAX_INLINE + 1],
            leaving: false,
            done: false,
        })
    }

    fn run(mut self) {
        while !self.done {
            self.flush();
            if self.leaving && self.lines.get(&ScopeId::ALL).is_none_or(|l| l.waiting.is_empty()) {
                return;
            }
            let ready = self.wait();
            if ready.owner {
                self.owner_gone = true;
                self.feed(Event::OwnerGone);
            }
            if ready.deaths {
                self.drain_signals();
            }
            self.bury();
            for line in ready.lines {
                self.listen(line);
            }
            self.feed(Event::Tick);
        }
    }

    fn flush(&mut self) {
        let unheard: Vec<_> = self
            .lines
            .iter_mut()
            .filter_map(|(scope, line)| (!line.flush()).then_some(*scope))
            .collect();
        for scope in unheard {
            self.close(scope);
        }
    }

    /// Waits for the next thing to happen.
    fn wait(&self) -> Ready {
        let watch_owner = !self.owner_gone && !self.off.pidfd;
        let mut asked = vec![PollFd::new(&self.deaths, PollFlags::IN)];
        if watch_owner {
            asked.push(PollFd::new(&self.owner, PollFlags::IN));
        }
        let first_line = asked.len();
        let mut scopes = Vec::with_capacity(self.lines.len());
        let mut waiting = false;
        for (scope, line) in &self.lines {
            let mut flags = PollFlags::empty();
            flags.set(PollFlags::IN, line.waiting.len() < MAX_WAITING && !self.leaving);
            flags.set(PollFlags::OUT, !line.waiting.is_empty());
            waiting |= !line.waiting.is_empty();
            asked.push(PollFd::new(&line.socket, flags));
            scopes.push(*scope);
        }
        // A full line says when it has room; where it cannot (descriptors under way), look again.
        let again = waiting.then(|| now() + Duration::from_millis(20));
        let until = [self.machine.deadline(), again].into_iter().flatten().min();
        let timeout = until.map(|until| timespec(until.saturating_duration_since(now())));
        if poll(&mut asked, timeout.as_ref()).is_err() {
            return Ready::default();
        }
        let heard = |at: usize| !asked[at].revents().is_empty();
        Ready {
            deaths: heard(0),
            owner: watch_owner && heard(1),
            lines: (first_line..)
                .zip(&scopes)
                .filter(|(at, _)| {
                    let quiet = PollFlags::OUT;
                    !(asked[*at].revents() - quiet).is_empty()
                })
                .map(|(_, scope)| *scope)
                .collect(),
        }
    }

    fn drain_signals(&self) {
        let mut bytes = [0; 1024];
        while rustix::io::read(&self.deaths, &mut bytes).is_ok_and(|read| read > 0) {}
    }

    /// Looks at each dead child, records what it left, and only then reaps it.
    fn bury(&mut self) {
        loop {
            let dead = match wait::look() {
                Look::Alive => return,
                Look::NoChild => return self.feed(Event::NoChild),
                Look::Dead(dead) => dead,
            };
            let registry = self.machine.registry();
            let children = self.source.children(identity::own_pid());
            // The dead one itself may be unlisted by now where the list is a scan.
            let unknown: Vec<_> = children
                .into_iter()
                .chain([dead.pid])
                .filter(|pid| !registry.knows(*pid))
                .collect::<HashSet<_>>()
                .into_iter()
                .map(|pid| Unknown { pid, tag: self.tag_of(pid) })
                .collect();
            let suspects = match unknown.is_empty() {
                true => Vec::new(),
                false => registry.known().filter(|pid| wait::is_dead(*pid)).collect(),
            };
            self.feed(Event::Death { dead, unknown, suspects });
        }
    }

    /// The scope that a process's environment names, if it is one of ours.
    fn tag_of(&self, pid: Pid) -> Option<ScopeId> {
        let environ = std::fs::read(format!("/proc/{pid}/environ")).ok()?;
        let prefix = format!("{TAG}={}:", self.owner_identity);
        let tag =
            environ.split(|byte| *byte == 0).find_map(|e| e.strip_prefix(prefix.as_bytes()))?;
        std::str::from_utf8(tag).ok()?.parse().ok().map(ScopeId)
    }

    fn listen(&mut self, scope: ScopeId) {
        for _ in 0..BATCH {
            let Some(line) = self.lines.get(&scope) else { return };
            if line.waiting.len() >= MAX_WAITING {
                return;
            }
            match line::receive(line.socket.as_fd(), &mut self.buffer, false) {
                Ok(Received::Record { bytes, fds }) => {
                    // What is no request does nothing.
                    if let Some(request) = Request::decode(&bytes) {
                        self.feed(Event::Request { line: scope, request, fds });
                    }
                }
                Ok(Received::Junk) => {}
                Err(Errno::AGAIN) => return,
                Ok(Received::End) | Err(_) => return self.close(scope),
            }
        }
    }

    fn close(&mut self, scope: ScopeId) {
        if self.lines.remove(&scope).is_some() {
            self.feed(Event::LineClosed { line: scope });
        }
    }

    /// Gives an event to the machine and does what follows, including what follows from that.
    fn feed(&mut self, event: Event) {
        let mut events = VecDeque::from([event]);
        while let Some(event) = events.pop_front() {
            // What an effect leads to comes before the effects that follow from later events.
            for effect in self.machine.step(event, now()) {
                events.extend(self.act(effect));
            }
        }
    }

    fn act(&mut self, effect: Effect) -> Option<Event> {
        match effect {
            Effect::Spawn { scope, order, fds } => return Some(self.spawn(scope, &order, &fds)),
            Effect::OpenLine { scope } => return Some(self.open_line(scope)),
            Effect::Reply { line, reply, with } => self.reply(line, &reply, with),
            Effect::Terminate { scope } => self.terminate(scope),
            Effect::Walk { scope } => return Some(self.walk(scope)),
            Effect::Kill { scope } => self.kill(scope),
            Effect::Survey { scope } => {
                let alive = self.members(scope).into_iter().filter(|m| !m.stat.is_zombie());
                let members = alive.map(|member| member.stat.process(member.pid)).collect();
                return Some(Event::Left { scope, members });
            }
            Effect::Pause { scope } => self.signal_all(scope, libc::SIGSTOP),
            Effect::Resume { scope } => self.signal_all(scope, libc::SIGCONT),
            Effect::Reap { pid } => {
                wait::reap(pid);
                self.handles.remove(&pid);
            }
            Effect::Forget { scope } => {
                if let Some(mut line) = self.lines.remove(&scope) {
                    line.flush();
                }
                self.reached.remove(&scope);
            }
            Effect::Leave => self.leave(),
            Effect::Exit => self.done = true,
        }
        None
    }

    fn spawn(&mut self, scope: ScopeId, order: &Order, fds: &[OwnedFd]) -> Event {
        let failed = |errno: Errno| Event::Failed {
            scope,
            failure: Failure { phase: Phase::Setup, errno: errno.raw_os_error() },
        };
        let pair = match order.line.map(|_| line::pair()).transpose() {
            Ok(pair) => pair,
            Err(errno) => return failed(errno),
        };
        let (ours, theirs) = pair.unzip();
        let setting = Setting {
            null: self.null.as_fd(),
            open_files: self.open_files,
            subreaper: !self.off.subreaper,
        };
        let tag = format!("{}:{}", self.owner_identity, scope.0);
        match launch::start_order(order, fds, theirs.as_ref(), &tag, &setting) {
            Ok((pid, pidfd)) => {
                self.handles.insert(pid, pidfd);
                self.lines.extend(ours.map(|ours| (scope, Line::new(ours))));
                Event::Started { scope, pid }
            }
            Err(failure) => Event::Failed { scope, failure },
        }
    }

    fn open_line(&mut self, scope: ScopeId) -> Event {
        match line::pair() {
            Ok((ours, theirs)) => {
                self.lines.insert(scope, Line::new(ours));
                self.fresh.insert(scope, theirs);
                Event::Opened { scope }
            }
            Err(errno) => Event::Failed {
                scope,
                failure: Failure { phase: Phase::Setup, errno: errno.raw_os_error() },
            },
        }
    }

    fn reply(&mut self, line: ScopeId, reply: &Reply, with: Option<ScopeId>) {
        let fd = with.and_then(|scope| {
            let root = self.machine.registry().get(scope)?.root;
            match root {
                Root::Running(pid) => self.handles.get(&pid)?.try_clone().ok(),
                Root::None | Root::Starting | Root::Dead => self.fresh.remove(&scope),
            }
        });
        // Nobody hears a line that is closed.
        if let Some(line) = self.lines.get_mut(&line) {
            line.waiting.push_back((reply.encode(), fd));
        }
    }

    /// The group of a scope's root, and its handle, while it is not reaped.
    fn group(&self, scope: ScopeId) -> Option<(ProcessGroup, &OwnedFd)> {
        let Root::Running(pid) = self.machine.registry().get(scope)?.root else { return None };
        Some((ProcessGroup::led_by(pid, self.protected)?, self.handles.get(&pid)?))
    }

    fn send_group(&self, scope: ScopeId, number: i32) {
        if let Some((group, leader)) = self.group(scope) {
            // Gone, or of another user: the walk and the end condition tell.
            let _ = group.send(leader.as_fd(), number);
        }
    }

    /// What follows TERM, so that a stopped process comes to it.
    fn term_and_cont(&self) -> &'static [i32] {
        if self.off.cont { &[libc::SIGTERM] } else { &[libc::SIGTERM, libc::SIGCONT] }
    }

    fn terminate(&mut self, scope: ScopeId) {
        let leader = self.group(scope).and(self.stems(scope).first().copied());
        for number in self.term_and_cont() {
            self.send_group(scope, *number);
        }
        self.reached.entry(scope).or_default().group = leader;
    }

    /// Children of ours that stand for a scope; all are unreaped, so their numbers are theirs.
    fn stems(&self, scope: ScopeId) -> Vec<Pid> {
        let Some(scope) = self.machine.registry().get(scope) else { return Vec::new() };
        let root = match scope.root {
            Root::Running(pid) => Some(pid),
            Root::None | Root::Starting | Root::Dead => None,
        };
        root.into_iter().chain(scope.orphans.iter().copied()).collect()
    }

    fn members(&self, scope: ScopeId) -> Vec<Member> {
        if self.off.walk { Vec::new() } else { self.source.walk(self.stems(scope)) }
    }

    fn walk(&mut self, scope: ScopeId) -> Event {
        let members = self.members(scope);
        let signals = self.term_and_cont();
        let reached = self.reached.entry(scope).or_default();
        let mut found = Vec::new();
        for member in members {
            let by_group = reached.group == Some(member.stat.group);
            if by_group || member.stat.is_zombie() || !reached.members.insert(member.identity()) {
                continue;
            }
            member.send(signals);
            found.push(member.stat.process(member.pid));
        }
        Event::Found { scope, members: found }
    }

    fn kill(&self, scope: ScopeId) {
        if self.off.kill {
            return;
        }
        let stems = self.stems(scope);
        let members = if self.off.walk { Vec::new() } else { stop_all(self.source, &stems) };
        for member in members {
            member.send(&[libc::SIGKILL]);
        }
        self.send_group(scope, libc::SIGKILL);
    }

    fn signal_all(&self, scope: ScopeId, number: i32) {
        self.send_group(scope, number);
        for member in self.members(scope) {
            member.send(&[number]);
        }
    }

    /// Stops listening first: a request that comes now fails at once at the sender, and one that was
    /// already queued is never answered. Both go to the next supervisor.
    fn leave(&mut self) {
        self.leaving = true;
        let Some(control) = self.lines.get_mut(&ScopeId::ALL) else { return };
        // Fails only on a line without a peer.
        let _ = rustix::net::shutdown(&control.socket, rustix::net::Shutdown::Read);
        while let Ok(Received::Record { .. } | Received::Junk) =
            line::receive(control.socket.as_fd(), &mut self.buffer, false)
        {}
        control.waiting.push_back((Reply::Leaving.encode(), None));
    }
}

/// What `poll` has told.
#[derive(Default)]
struct Ready {
    owner: bool,
    deaths: bool,
    lines: Vec<ScopeId>,
}

fn timespec(duration: Duration) -> Timespec {
    Timespec {
        tv_sec: i64::try_from(duration.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: duration.subsec_nanos().into(),
    }
}

/// A supervisor holds a handle for each child, and a line for some: takes as many descriptors as it
/// may, and gives its children what they would have had.
fn raise_open_files() -> Option<(u64, u64)> {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let before = getrlimit(Resource::Nofile);
    let (soft, hard) = (before.current?, before.maximum?);
    let raised = Rlimit { current: Some(hard), maximum: Some(hard) };
    setrlimit(Resource::Nofile, raised).ok()?;
    Some((soft, hard))
}

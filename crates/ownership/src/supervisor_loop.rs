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
use crate::line::{self, Received};
use crate::membership::{Identity, Protected, Source};
use crate::protocol::{MAX_INLINE, Request};
use crate::registry::ScopeId;
use crate::supervisor::{Event, Supervisor};
use crate::sys::{Pid, process, signal};

mod act;
mod off;
mod stock;
mod voice;

use off::Off;
use voice::Line;

/// Without children for this long, a supervisor leaves.
const IDLE_LIMIT: Duration = Duration::from_secs(30);

/// Replies that wait for one reader before its requests are no longer read. Above it come at most two
/// for each of its living scopes (`Exited`, `Emptied`), which are never dropped.
const MAX_WAITING: usize = 4096;

/// What the kernel refused for want of something is tried again after this time; `poll` would not tell.
const LOOK_AGAIN: Duration = Duration::from_millis(100);

/// Records read from one line before the others get their turn.
const BATCH: usize = 64;

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
    // Fails only if the stage's parent leads us already; then we are in a session of our own.
    // detached-spawn: ok — the supervisor itself must outlive its owner, to end what that left
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
    /// Lines of scopes that are over, on which something is still to be said.
    parting: Vec<Line>,
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
    /// Somebody is dead, and what was left could not be read.
    unburied: bool,
    /// More may be dead, or nobody is left, after the last burial.
    backlog: bool,
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
        let own_handle = identity::own_pidfd()?;
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
            lines: HashMap::from([(ScopeId::ALL, Line::new(control, Some(own_handle)))]),
            parting: Vec::new(),
            handles: HashMap::new(),
            fresh: HashMap::new(),
            reached: HashMap::new(),
            source: if off.lists { Source::Scan } else { Source::probe() },
            protected: Protected {
                own: rustix::process::getpgrp().as_raw_nonzero().get(),
                owner: stat.map_or(0, |stat| stat.group),
            },
            open_files: raise_open_files(),
            off,
            buffer: vec![0; MAX_INLINE + 1],
            unburied: false,
            backlog: false,
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
        self.parting.retain_mut(|line| line.flush() && !line.waiting.is_empty());
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
        let mut look_again = self.unburied;
        for (scope, line) in &self.lines {
            let mut flags = PollFlags::empty();
            flags.set(PollFlags::IN, line.waiting.len() < MAX_WAITING && !self.leaving);
            flags.set(PollFlags::OUT, line.waits_for_room());
            look_again |= line.starved;
            asked.push(PollFd::new(&line.socket, flags));
            scopes.push(*scope);
        }
        for line in &self.parting {
            let mut flags = PollFlags::empty();
            flags.set(PollFlags::OUT, line.waits_for_room());
            asked.push(PollFd::new(&line.socket, flags));
            look_again |= line.starved;
        }
        let again = look_again.then(|| now() + LOOK_AGAIN);
        let at_once = self.backlog.then(now);
        let until = [self.machine.deadline(), again, at_once].into_iter().flatten().min();
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

    /// Whether so few descriptors are free that nothing more may be started. The kernel hands out the
    /// lowest free number, so the one that came last tells.
    fn is_full(&self, last: &OwnedFd) -> bool {
        use std::os::fd::AsRawFd;
        let Some((_, limit)) = self.open_files else { return false };
        u64::try_from(last.as_raw_fd()).is_ok_and(|number| number + SPARE_FILES >= limit)
    }

    fn drain_signals(&self) {
        let mut bytes = [0; 1024];
        while rustix::io::read(&self.deaths, &mut bytes).is_ok_and(|read| read > 0) {}
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
                Ok(Received::Bodiless { id }) => self.feed(Event::Unreadable { line: scope, id }),
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

/// Descriptors that are kept free of what is started, for looking at processes and signalling them.
const SPARE_FILES: u64 = 8;

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

//! One line from the asking side: requests in an order that can be relied on, and a look at whether
//! anybody answers. [`crate::client`] decides what is asked and what an answer means; this file waits.
//!
//! Whoever is asked answers at once: a start with `Started` or `Failed`, anything else with the `Pong` of
//! the ping that follows it. A guard that owes an answer and says nothing for [`FIRST_LIMIT`] is
//! stopped, or waits for a file system that does not answer: it is killed, and the other guard goes on.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, OnceLock};
use std::thread::ThreadId;
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::io::Errno;

use crate::attach::REPLY_BYTES;
use crate::child::{Packed, lock};
use crate::line::{self, Received};
use crate::protocol::{Reply, Request};
use crate::sys::{Pid, signal, wait};
use crate::{hook, identity};

/// After this time without a word a guard that owes one is killed.
const FIRST_LIMIT: Duration = Duration::from_secs(1);

/// What a keeper has for its part, once the supervisor was killed: to start another.
const KEEPER_LIMIT: Duration = Duration::from_secs(10);

/// Each time the limit is doubled, up to this: on a machine that is too slow for the first one a
/// replacement does not help.
const LAST_LIMIT: Duration = Duration::from_secs(30);

/// A line and what is known of its other end.
#[derive(Debug)]
pub(crate) struct Connection {
    socket: OwnedFd,
    /// Held while something is sent, so that what was sent before a `Resync` is known.
    sending: Mutex<()>,
    owed: Mutex<Owed>,
    /// Written to when something becomes owed: the reader may sleep without a limit.
    wake: OwnedFd,
    guards: Mutex<Guards>,
    reader: OnceLock<ThreadId>,
}

/// Who serves the line.
#[derive(Debug, Default)]
pub(crate) struct Guards {
    /// The one that said hello last, and its keeper, where we were told.
    supervisor: Option<OwnedFd>,
    keeper: Option<OwnedFd>,
    /// Those before them.
    former: Vec<OwnedFd>,
    /// The supervisor was killed by us, and nobody has said hello since.
    killed: bool,
}

/// What is to be answered.
#[derive(Debug)]
struct Owed {
    starts: usize,
    pings: u64,
    pongs: u64,
    /// When it began, or something was last heard.
    since: Option<Instant>,
    limit: Duration,
}

/// What happened on a line.
#[derive(Debug)]
pub(crate) enum Heard {
    Reply(Reply, Vec<OwnedFd>),
    /// The line ended: nobody serves it any more.
    End,
}

#[expect(clippy::disallowed_methods, reason = "this is the file that waits")]
fn now() -> Instant {
    Instant::now()
}

impl Connection {
    pub(crate) fn new(socket: OwnedFd) -> rustix::io::Result<Arc<Self>> {
        let limit = FIRST_LIMIT;
        Ok(Arc::new(Self {
            socket,
            sending: Mutex::new(()),
            owed: Mutex::new(Owed { starts: 0, pings: 0, pongs: 0, since: None, limit }),
            wake: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
            guards: Mutex::default(),
            reader: OnceLock::new(),
        }))
    }

    /// Sends a start; its answer is owed.
    pub(crate) fn start(&self, request: &Packed) {
        let order = lock(&self.sending);
        request.mark_sent();
        self.owe(|owed| owed.starts += 1);
        request.send(&self.socket);
        drop(order);
    }

    /// Sends what has no answer of its own, and a ping after it.
    pub(crate) fn tell(&self, request: &Request, fds: Vec<OwnedFd>) {
        let order = lock(&self.sending);
        let ping = self.owe_pong();
        Packed::new(request.encode(), fds).send(&self.socket);
        Packed::new(ping.encode(), Vec::new()).send(&self.socket);
        drop(order);
    }

    /// The same with all that `what` gives. It is called while nothing else can be sent, so that nothing newer
    /// was said by then.
    pub(crate) fn tell_each(&self, what: impl FnOnce() -> Vec<Request>) {
        let order = lock(&self.sending);
        let requests = what();
        if !requests.is_empty() {
            let ping = self.owe_pong();
            for request in requests.iter().chain([&ping]) {
                Packed::new(request.encode(), Vec::new()).send(&self.socket);
            }
        }
        drop(order);
    }

    /// As [`Connection::tell`], without waiting. `false` if it was not said, or not all of it.
    pub(crate) fn try_tell(&self, request: &Request) -> bool {
        let Ok(order) = self.sending.try_lock() else { return false };
        let ping = self.owe_pong();
        let mut all = [request, &ping].into_iter();
        let said = all.all(|request| {
            line::send(self.socket.as_fd(), &request.encode(), &[], false) != Err(Errno::AGAIN)
        });
        drop(order);
        said
    }

    fn owe_pong(&self) -> Request {
        let mut number = 0;
        self.owe(|owed| {
            owed.pings += 1;
            number = owed.pings;
        });
        Request::Ping { number }
    }

    /// This thread hears what is said on it.
    pub(crate) fn read_by_this_thread(&self) {
        // Once per line.
        let _ = self.reader.set(std::thread::current().id());
    }

    /// Whether a callback of its reader asks.
    pub(crate) fn is_read_here(&self) -> bool {
        self.reader.get() == Some(&std::thread::current().id())
    }

    /// Asks where the new guard stands. `before` runs while nothing else can be sent: what was sent by then
    /// was read by a guard that lives, or is lost, once the answer is there.
    pub(crate) fn resync<T>(&self, number: u64, before: impl FnOnce() -> T) -> T {
        let order = lock(&self.sending);
        let value = before();
        Packed::new(Request::Resync { number }.encode(), Vec::new()).send(&self.socket);
        drop(order);
        value
    }

    fn owe(&self, what: impl FnOnce(&mut Owed)) {
        let mut owed = lock(&self.owed);
        what(&mut owed);
        if owed.since.is_none() {
            owed.since = Some(now());
            // Full only after 2^64 - 2 of these.
            let _ = rustix::io::write(&self.wake, &1_u64.to_ne_bytes());
        }
    }

    /// A start was answered, or is given up.
    pub(crate) fn settle_start(&self) {
        let mut owed = lock(&self.owed);
        owed.starts = owed.starts.saturating_sub(1);
        owed.rest();
    }

    /// Who serves the line from now on.
    pub(crate) fn served_by(&self, fds: Vec<OwnedFd>) {
        let mut fds = fds.into_iter();
        let mut guards = lock(&self.guards);
        let before = [guards.supervisor.take(), guards.keeper.take()];
        guards.former.extend(before.into_iter().flatten());
        guards.supervisor = fds.next();
        guards.keeper = fds.next();
        let served = [guards.supervisor.as_ref(), guards.keeper.as_ref()].map(number);
        // A keeper that stays is told of again.
        guards.former.retain(|guard| {
            !wait::try_reap_handle(guard)
                && !number(Some(guard)).is_some_and(|pid| served.contains(&Some(pid)))
        });
        guards.killed = false;
        drop(guards);
        let mut owed = lock(&self.owed);
        owed.since = owed.since.map(|_| now());
    }

    /// Where this process is their parent (PID 1, a subreaper) nobody else may know of them. The line has
    /// ended, so they are dead or leaving.
    pub(crate) fn reap_guards(&self) {
        let guards = std::mem::take(&mut *lock(&self.guards));
        for guard in guards.former.iter().chain(&guards.supervisor).chain(&guards.keeper) {
            wait::reap_handle(guard);
        }
    }

    /// What is to be known of the guards that serve it.
    pub(crate) fn with_guards<T>(&self, ask: impl Fn(&OwnedFd) -> Option<T>) -> Vec<T> {
        let guards = lock(&self.guards);
        guards.supervisor.iter().chain(&guards.keeper).filter_map(ask).collect()
    }

    /// Waits for what comes next. Ends guards that do not answer.
    pub(crate) fn hear(&self, buffer: &mut Vec<u8>) -> Heard {
        buffer.resize(REPLY_BYTES, 0);
        loop {
            match line::receive(self.socket.as_fd(), buffer, false) {
                Ok(Received::Record { bytes, fds }) => match Reply::decode(&bytes) {
                    Some(reply) => {
                        self.heard(&reply);
                        return Heard::Reply(reply, fds);
                    }
                    None => tracing::warn!(bytes = bytes.len(), "record not understood"),
                },
                Ok(Received::Bodiless { .. } | Received::Junk) => {
                    tracing::warn!("truncated record");
                }
                Ok(Received::End) => return Heard::End,
                Err(Errno::AGAIN) => self.wait(),
                Err(_) => return Heard::End,
            }
        }
    }

    fn wait(&self) {
        let until = lock(&self.owed).until();
        let left = until.map(|until| until.saturating_duration_since(now()));
        let left = left.and_then(|left| Timespec::try_from(left).ok());
        let mut asked =
            [PollFd::new(&self.socket, PollFlags::IN), PollFd::new(&self.wake, PollFlags::IN)];
        let ready = poll(&mut asked, left.as_ref());
        let _ = rustix::io::read(&self.wake, &mut [0; 8]);
        // Only silence counts: what came meanwhile is read first.
        if ready == Ok(0) && until.is_some_and(|until| now() >= until) {
            self.end_silent_guard();
        }
    }

    fn heard(&self, reply: &Reply) {
        let mut owed = lock(&self.owed);
        if let Reply::Pong { number } = reply {
            owed.pongs = owed.pongs.max(*number);
        }
        owed.since = owed.since.map(|_| now());
        owed.rest();
    }

    fn end_silent_guard(&self) {
        if self.is_merely_slow() {
            lock(&self.owed).since = Some(now());
            return;
        }
        let mut owed = lock(&self.owed);
        let silence = owed.limit;
        owed.limit = (owed.limit * 2).clamp(KEEPER_LIMIT, LAST_LIMIT);
        owed.since = Some(now());
        drop(owed);
        if hook::is_off("silence") {
            return;
        }
        let mut guards = lock(&self.guards);
        let (guard, who) = match guards.killed {
            false => (&guards.supervisor, "supervisor"),
            true => (&guards.keeper, "keeper"),
        };
        if let Some(keeper) = guards.keeper.as_ref().filter(|_| !guards.killed) {
            // It is to take over, and may have been stopped too.
            let _ = signal::send(keeper.as_fd(), libc::SIGCONT);
        }
        if let Some(guard) = guard {
            tracing::warn!(?silence, "the {who} does not answer; it is ended and replaced");
            // Fails only when it is dead.
            let _ = signal::send(guard.as_fd(), libc::SIGKILL);
        }
        guards.killed = true;
    }
}

impl Connection {
    /// Whether the guard that owes an answer would run if it were let: a machine with too little time for it
    /// has none for the next one either.
    fn is_merely_slow(&self) -> bool {
        let guards = lock(&self.guards);
        let guard = if guards.killed { &guards.keeper } else { &guards.supervisor };
        let stat = number(guard.as_ref()).and_then(identity::Stat::read);
        stat.is_some_and(|stat| stat.state == b'R')
    }
}

fn number(guard: Option<&OwnedFd>) -> Option<Pid> {
    identity::pid_of(guard?.as_fd())
}

impl Owed {
    /// Nothing is owed any more, perhaps.
    fn rest(&mut self) {
        if self.starts == 0 && self.pongs >= self.pings {
            self.since = None;
        }
    }

    fn until(&self) -> Option<Instant> {
        self.since.map(|since| since + self.limit)
    }
}

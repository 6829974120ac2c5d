//! A delegated cgroup from systemd, where nobody else may give one: a guard asks over D-Bus for a scope of its own
//! (`StartTransientUnit` with `Delegate=yes`) before it holds anybody, and so does everything that it starts from then on
//! stand in there. The messages are in `wire`; [`crate::supervisor_loop`] asks, [`crate::containment`] says where that helps.
//!
//! Whoever listens may be anybody: what it says is bounded, and no step waits beyond the one deadline.

mod place;
mod wire;

use std::fmt;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, connect, recv, send, socket_with,
    sockopt,
};

pub(crate) use place::{Place, places};
use wire::{Bytes, Field, Message};

/// Who is asked, and what.
const SYSTEMD: &str = "org.freedesktop.systemd1";
const MANAGER: &str = "/org/freedesktop/systemd1";
const MANAGES: &str = "org.freedesktop.systemd1.Manager";

/// The bus itself.
const BUS: &str = "org.freedesktop.DBus";

/// Errors of a bus on which no systemd is: another place may have one.
const NOBODY_THERE: [&str; 3] = [
    "org.freedesktop.DBus.Error.ServiceUnknown",
    "org.freedesktop.DBus.Error.NameHasNoOwner",
    "org.freedesktop.DBus.Error.UnknownObject",
];

/// An earlier guard of the same owner has it.
const IS_THERE: &str = "org.freedesktop.systemd1.UnitExists";

/// Between two looks for what was promised.
const PAUSE: Duration = Duration::from_millis(5);

/// Longest line of the greeting.
const LINE: usize = 512;

/// How much of what it says is told.
const SAID: usize = 200;

/// Why there is no scope.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum NoScope {
    /// Nobody listens in this place.
    Absent { place: String, errno: i32 },
    /// Who listens is another user.
    Stranger { place: String, user: u32 },
    /// Nothing came in time.
    Silent { step: &'static str },
    /// It ended the line.
    Ended { step: &'static str },
    /// It was no D-Bus.
    Nonsense { step: &'static str },
    /// It says no.
    Refused { name: String, says: String },
    /// It said yes, and we were not moved.
    NotMoved,
}

impl NoScope {
    /// Whether another place is worth a question.
    fn is_of_the_place(&self) -> bool {
        match self {
            Self::Absent { .. } | Self::Stranger { .. } | Self::Ended { .. } => true,
            Self::Nonsense { .. } => true,
            Self::Refused { name, .. } => NOBODY_THERE.contains(&name.as_str()),
            Self::Silent { .. } | Self::NotMoved => false,
        }
    }
}

impl fmt::Display for NoScope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Absent { place, errno } => {
                let error = std::io::Error::from_raw_os_error(*errno);
                write!(f, "nobody answers at {place}: {error}")
            }
            Self::Stranger { place, user } => {
                write!(f, "who listens at {place} is user {user} and not ours")
            }
            Self::Silent { step } => write!(f, "it did not answer in time ({step})"),
            Self::Ended { step } => write!(f, "it hung up ({step})"),
            Self::Nonsense { step } => write!(f, "what it answers is no D-Bus ({step})"),
            Self::Refused { name, says } => write!(f, "it refuses: {says} ({name})"),
            Self::NotMoved => f.write_str("it said yes, and did not move us in time"),
        }
    }
}

#[expect(clippy::disallowed_methods, reason = "who asks waits, to a deadline")]
fn now() -> Instant {
    Instant::now()
}

/// Moves this process into a scope of this name, which is made, or joined where an earlier guard made it.
pub(crate) fn enter(places: &[Place], scope: &str, limit: Duration) -> Result<(), NoScope> {
    let until = now() + limit;
    let nowhere = NoScope::Absent { place: "any bus".into(), errno: libc::ENOENT };
    let mut first = None;
    for place in places {
        match enter_at(place, scope, until) {
            Err(why) if why.is_of_the_place() => drop(first.get_or_insert(why)),
            done => return done,
        }
    }
    Err(first.unwrap_or(nowhere))
}

fn enter_at(place: &Place, scope: &str, until: Instant) -> Result<(), NoScope> {
    let mut line = Line::open(place, until)?;
    line.greet()?;
    if place.is_bus {
        line.call(BUS, "/org/freedesktop/DBus", BUS, "Hello", ("", &[]))?;
    }
    loop {
        let refused = match line.manager("StartTransientUnit", START, &start(scope)) {
            Err(NoScope::Refused { name, says }) if name == IS_THERE => {
                match line.manager("AttachProcessesToUnit", "ssau", &attach(scope)) {
                    // It may be about to go: then it can be made again.
                    Err(NoScope::Refused { .. }) => Some(NoScope::Refused { name, says }),
                    done => done.map(|_| None)?,
                }
            }
            done => done.map(|_| None)?,
        };
        match refused {
            None => return line.until_moved(scope),
            Some(why) if now() >= until => return Err(why),
            Some(_) => rest(until),
        }
    }
}

const START: &str = "ssa(sv)a(sa(sv))";

/// A scope with us in it, that is forgotten when it is empty.
fn start(scope: &str) -> Vec<u8> {
    let mut to = Bytes::default();
    to.text(scope).text("fail");
    to.array(8, |to| {
        to.part().text("Description").signature("s").text("processes that end with their owner");
        to.part().text("PIDs").signature("au");
        us(to);
        to.part().text("Delegate").signature("b").word(1);
        to.part().text("CollectMode").signature("s").text("inactive-or-failed");
    });
    to.array(8, |_| {});
    to.0
}

/// Whoever asks, as the kernel tells it: a number of ours may mean somebody else there.
fn us(to: &mut Bytes) {
    to.array(4, |to| {
        to.word(0);
    });
}

fn attach(scope: &str) -> Vec<u8> {
    let mut to = Bytes::default();
    to.text(scope).text("");
    us(&mut to);
    to.0
}

fn rest(until: Instant) {
    let pause = until.saturating_duration_since(now()).min(PAUSE);
    let _ = poll(&mut [], Timespec::try_from(pause).ok().as_ref());
}

/// A line to who listens.
struct Line {
    socket: OwnedFd,
    until: Instant,
    is_bus: bool,
    /// Number of the last call.
    last: u32,
    /// What has come and was not read yet.
    came: Vec<u8>,
}

impl Line {
    fn open(place: &Place, until: Instant) -> Result<Self, NoScope> {
        let named = || place.name.clone();
        let absent = |errno: Errno| NoScope::Absent { place: named(), errno: errno.raw_os_error() };
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket =
            socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None).map_err(absent)?;
        let address = place.address().map_err(absent)?;
        loop {
            match connect(&socket, &address) {
                Ok(()) => break,
                // So many wait there that nobody else can.
                Err(Errno::AGAIN) if now() < until => rest(until),
                Err(Errno::AGAIN) => return Err(NoScope::Silent { step: "connecting" }),
                Err(Errno::INTR) => {}
                Err(errno) => return Err(absent(errno)),
            }
        }
        let user = sockopt::socket_peercred(&socket).map_err(absent)?.uid.as_raw();
        if user != place.user {
            return Err(NoScope::Stranger { place: named(), user });
        }
        Ok(Self { socket, until, is_bus: place.is_bus, last: 0, came: Vec::new() })
    }

    /// Says that we are who the kernel says we are.
    fn greet(&mut self) -> Result<(), NoScope> {
        const STEP: &str = "greeting";
        for (said, wanted) in [(&b"\0AUTH EXTERNAL\r\n"[..], &b"DATA"[..]), (b"DATA\r\n", b"OK ")] {
            self.say(said, STEP)?;
            let end = loop {
                if let Some(end) = self.came.windows(2).position(|two| two == b"\r\n") {
                    break end;
                }
                if self.came.len() > LINE {
                    return Err(NoScope::Nonsense { step: STEP });
                }
                self.listen(STEP)?;
            };
            let line: Vec<u8> = self.came.drain(..end + 2).collect();
            if !line.starts_with(wanted) {
                return Err(NoScope::Nonsense { step: STEP });
            }
        }
        self.say(b"BEGIN\r\n", STEP)
    }

    /// Asks the manager.
    fn manager(
        &mut self,
        what: &'static str,
        signature: &str,
        body: &[u8],
    ) -> Result<Message, NoScope> {
        self.call(SYSTEMD, MANAGER, MANAGES, what, (signature, body))
    }

    fn call(
        &mut self,
        who: &str,
        path: &str,
        interface: &str,
        what: &'static str,
        (signature, body): (&str, &[u8]),
    ) -> Result<Message, NoScope> {
        self.last += 1;
        let mut fields = vec![
            Field(wire::PATH, path),
            Field(wire::INTERFACE, interface),
            Field(wire::MEMBER, what),
        ];
        // Without a bus there is nobody else.
        if self.is_bus {
            fields.push(Field(wire::DESTINATION, who));
        }
        if !signature.is_empty() {
            fields.push(Field(wire::SIGNATURE, signature));
        }
        self.say(&wire::message(wire::CALL, self.last, &fields, None, body), what)?;
        loop {
            let answer = self.hear(what)?;
            if answer.answers != Some(self.last) {
                // A signal, or an answer to nothing that we asked.
                continue;
            }
            return match answer.kind {
                wire::ANSWER => Ok(answer),
                wire::ERROR => Err(NoScope::Refused {
                    name: plain(answer.text(wire::ERROR_NAME)),
                    says: plain(answer.says.as_deref().unwrap_or_default()),
                }),
                _ => Err(NoScope::Nonsense { step: what }),
            };
        }
    }

    /// The next message.
    fn hear(&mut self, step: &'static str) -> Result<Message, NoScope> {
        loop {
            if let Some(head) = self.came.first_chunk() {
                let length = wire::length(head).ok_or(NoScope::Nonsense { step })?;
                if self.came.len() >= length {
                    let whole: Vec<u8> = self.came.drain(..length).collect();
                    return wire::parse(&whole).ok_or(NoScope::Nonsense { step });
                }
            }
            self.listen(step)?;
        }
    }

    /// Waits for more.
    fn listen(&mut self, step: &'static str) -> Result<(), NoScope> {
        self.wait(PollFlags::IN, step)?;
        let mut bytes = [0; 4096];
        match recv(&self.socket, &mut bytes, RecvFlags::empty()) {
            Ok((_, 0)) => Err(NoScope::Ended { step }),
            Ok((_, length)) => {
                self.came.extend(&bytes[..length]);
                Ok(())
            }
            Err(Errno::AGAIN | Errno::INTR) => Ok(()),
            Err(_) => Err(NoScope::Ended { step }),
        }
    }

    fn say(&self, mut rest: &[u8], step: &'static str) -> Result<(), NoScope> {
        while !rest.is_empty() {
            match send(&self.socket, rest, SendFlags::NOSIGNAL) {
                Ok(sent) => rest = &rest[sent..],
                Err(Errno::AGAIN) => self.wait(PollFlags::OUT, step)?,
                Err(Errno::INTR) => {}
                Err(_) => return Err(NoScope::Ended { step }),
            }
        }
        Ok(())
    }

    fn wait(&self, what: PollFlags, step: &'static str) -> Result<(), NoScope> {
        let left = self.until.saturating_duration_since(now());
        let limit = Timespec::try_from(left).map_err(|_| NoScope::Silent { step })?;
        // Somebody who never stops talking is not heard for ever.
        if left.is_zero() {
            return Err(NoScope::Silent { step });
        }
        match poll(&mut [PollFd::new(&self.socket, what)], Some(&limit)) {
            Ok(0) => Err(NoScope::Silent { step }),
            Ok(_) | Err(_) => Ok(()),
        }
    }

    /// What counts is where we stand. It says yes before it does it, and that it gave up only to who asks.
    fn until_moved(&mut self, scope: &str) -> Result<(), NoScope> {
        let mut body = Bytes::default();
        body.text(scope);
        loop {
            if stands_in(scope) {
                return Ok(());
            }
            if now() >= self.until {
                return Err(NoScope::NotMoved);
            }
            match self.manager("GetUnit", "s", &body.0) {
                Err(NoScope::Silent { .. }) => {}
                other => drop(other?),
            }
            rest(self.until);
        }
    }
}

/// Whether this process stands in the cgroup of version 2 of this scope.
fn stands_in(scope: &str) -> bool {
    let own = std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let path = own.lines().find_map(|line| line.strip_prefix("0::"));
    path.and_then(|path| path.rsplit('/').next()).is_some_and(|last| last == scope)
}

/// Some words of somebody else, for people.
fn plain(text: &str) -> String {
    text.chars().filter(|c| !c.is_control()).take(SAID).collect()
}

#[cfg(test)]
mod tests;

//! The records between owner and supervisor: bounded, with a hand-written codec whose decoding is
//! total. One record is one message of a `SOCK_SEQPACKET` pair ([`crate::line`] moves them).
//!
//! Little-endian; a text is its length as u32 and its bytes. An unknown kind, a short record and
//! bytes left over are all the same to a receiver: no record.

use std::time::Duration;

use crate::containment::Containment;
use crate::exit::{Emptied, Exit};
use crate::ration::Ration;
use crate::spawn::{Joins, Leftovers, Phase};
use crate::sys::Pid;
use crate::sys::start::Failed;

mod bytes;
mod fork;

use bytes::{Reader, Writer};
pub(crate) use fork::{Fork, Forked};

/// Version of these records; both ends must have the same, since they are the same program or were
/// installed together.
pub(crate) const VERSION: u32 = 7;

/// Largest record that travels in the message itself. The kernel refuses about 212 KB with default
/// buffer sizes (`EMSGSIZE`).
pub(crate) const MAX_INLINE: usize = 192 * 1024;

/// Largest record at all; above [`MAX_INLINE`] it travels as a sealed memfd. The kernel itself gives
/// arguments and environment together 2 MiB on common settings (man 2 execve).
pub(crate) const MAX_RECORD: usize = 4 * 1024 * 1024;

/// Most descriptors that a spawn may name: what a wrapped program inherits goes the same way. The kernel's limit for
/// one message is 253.
pub(crate) const MAX_FDS: usize = 240;

/// Most leftovers that are named.
pub(crate) const MAX_NAMED: usize = 16;

/// What an owner asks for. `id` is chosen by the asking side, and unique on its line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Request {
    Spawn(Box<Order>),
    Open {
        id: u64,
        grace: Duration,
    },
    End {
        id: u64,
        grace: Duration,
    },
    Pause {
        id: u64,
    },
    Resume {
        id: u64,
    },
    /// Everything that was asked for before it on this line was read by a guard that lives, or is lost.
    Resync {
        number: u64,
    },
    /// Sees whether anybody is there who reads.
    Ping {
        number: u64,
    },
    /// A child of guards that are dead, with its handle unless only the rest of its scope is `kept`, and
    /// with its release command: its parent is somebody else by now.
    Foster {
        id: u64,
        scope: u64,
        pid: Pid,
        grace: Duration,
        leftovers: Leftovers,
        release: Option<Duration>,
        kept: bool,
    },
    /// A group that something else started, with the handle of its leader. Answered as a start is.
    Adopt {
        id: u64,
        group: Adopted,
        grace: Duration,
    },
    /// That group is not owned any more, or not once nobody in it lives.
    Disown {
        id: u64,
        once_empty: bool,
    },
    /// What carries this owner's mark and belongs to no scope that is known is to be ended.
    EndStrays,
    /// The owner executed another program, which knows nothing: what lives is to be told it.
    Recount {
        number: u64,
    },
}

/// A program to start. Its descriptors come with the record, in this order: working directory of
/// the asking process, the program if it is [`Image::Open`], then one for each of `fds`, and
/// last the release command, if there is a deadline for it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Order {
    pub(crate) id: u64,
    pub(crate) image: Image,
    pub(crate) argv: Vec<Vec<u8>>,
    /// `NAME=value`.
    pub(crate) env: Vec<Vec<u8>>,
    pub(crate) dir: Option<Vec<u8>>,
    pub(crate) fds: Vec<i32>,
    pub(crate) line: Option<i32>,
    /// Where it finds the line on which it is asked to fork, if it is a template.
    pub(crate) template: Option<i32>,
    pub(crate) grace: Duration,
    pub(crate) leftovers: Leftovers,
    /// Deadline of its release command.
    pub(crate) release: Option<Duration>,
    pub(crate) containment: Containment,
    /// It runs as if the owner had started it: in that group, and nobody's orphans come to it.
    pub(crate) joins: Option<Joins>,
    /// What its scope may use.
    pub(crate) ration: Ration,
}

/// A process group that something else started.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Adopted {
    pub(crate) leader: Pid,
    /// Start time of the leader.
    pub(crate) start: u64,
    /// Whether it leads a session too.
    pub(crate) session: bool,
    /// The mark in its environment; 0 for none.
    pub(crate) mark: u64,
}

/// A release command, as it stands in its sealed memfd.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Command {
    pub(crate) argv: Vec<Vec<u8>>,
    /// `NAME=value`.
    pub(crate) env: Vec<Vec<u8>>,
}

impl Command {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut to = Writer::default();
        to.texts(&self.argv).texts(&self.env);
        to.bytes
    }

    /// One without a program is none.
    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        let mut from = Reader { rest: bytes };
        let command = Self { argv: from.list(Reader::text)?, env: from.list(Reader::text)? };
        from.finish(command).filter(|command| !command.argv.is_empty())
    }
}

/// Which program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Image {
    Named(Vec<u8>),
    Open,
    /// None: a copy of this template, which was started on the same line under this number.
    Fork(u64),
}

/// What a supervisor says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Reply {
    /// First on every line, and again from the guard that takes the line over. With the pidfds of
    /// the guard and of its keeper.
    Hello {
        version: u32,
        pid: Pid,
        generation: u32,
    },
    /// Why a systemd that was asked for a scope gave these guards none. Behind a hello.
    NoScope {
        why: Vec<u8>,
    },
    /// With the child's pidfd. `scope` is the number in its mark.
    Started {
        id: u64,
        pid: Pid,
        scope: u64,
    },
    Failed {
        id: u64,
        failure: Failure,
    },
    /// With the line of the new scope.
    Opened {
        id: u64,
    },
    Exited {
        id: u64,
        exit: Exit,
    },
    Emptied {
        id: u64,
        emptied: Emptied,
    },
    /// It goes; what it has not answered was not done and never will be by it.
    Leaving,
    /// What was asked for before [`Request::Resync`] and is unanswered by now was never done.
    Resynced {
        number: u64,
    },
    /// To [`Request::Ping`].
    Pong {
        number: u64,
    },
    /// A program that joined its owner's group was stopped by this signal.
    Stopped {
        id: u64,
        signal: i32,
    },
    /// A child that the owner's program before this one had started, with its handle and its release command.
    Returned(Box<Back>),
    /// All of these were told, and what had happened to them; numbers from `next` on were never used.
    Recounted {
        number: u64,
        next: u64,
    },
}

/// A child or group, as the next program of its owner is told of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Back {
    pub(crate) id: u64,
    /// The number in its mark.
    pub(crate) scope: u64,
    /// The leader, of a group.
    pub(crate) pid: Pid,
    /// Start time of the process; 0 if it was not known.
    pub(crate) start: u64,
    pub(crate) grace: Duration,
    pub(crate) leftovers: Leftovers,
    /// Deadline of its release command.
    pub(crate) release: Option<Duration>,
    pub(crate) group: Option<Adopted>,
    /// Of its process, if that has ended.
    pub(crate) exit: Option<Exit>,
    /// Its end was told to the program before, but something of it was let live.
    pub(crate) kept: bool,
}

/// Why nothing was started.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Failure {
    pub(crate) phase: Phase,
    pub(crate) errno: i32,
}

impl From<Failed> for Failure {
    fn from(Failed { phase, errno }: Failed) -> Self {
        Self { phase, errno }
    }
}

impl Request {
    /// Its kind, for tests that stop at it.
    pub(crate) const fn name(&self) -> &'static str {
        match self {
            Self::Spawn(_) => "spawn",
            Self::Open { .. } => "open",
            Self::End { .. } => "end",
            Self::Pause { .. } => "pause",
            Self::Resume { .. } => "resume",
            Self::Resync { .. } => "resync",
            Self::Ping { .. } => "ping",
            Self::Foster { .. } => "foster",
            Self::Adopt { .. } => "adopt",
            Self::Disown { .. } => "let-go",
            Self::EndStrays => "end-strays",
            Self::Recount { .. } => "recount",
        }
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut to = Writer::default();
        match self {
            Self::Spawn(order) => to.byte(1).order(order),
            Self::Open { id, grace } => to.byte(2).long(*id).duration(*grace),
            Self::End { id, grace } => to.byte(3).long(*id).duration(*grace),
            Self::Pause { id } => to.byte(4).long(*id),
            Self::Resume { id } => to.byte(5).long(*id),
            Self::Resync { number } => to.byte(6).long(*number),
            Self::Ping { number } => to.byte(7).long(*number),
            Self::Foster { id, scope, pid, grace, leftovers, release, kept } => to
                .byte(8)
                .long(*id)
                .long(*scope)
                .signed(*pid)
                .duration(*grace)
                .leftovers(*leftovers)
                .deadline(*release)
                .byte(u8::from(*kept)),
            Self::EndStrays => to.byte(9),
            Self::Adopt { id, group, grace } => {
                to.byte(10).long(*id).adopted(group).duration(*grace)
            }
            Self::Disown { id, once_empty } => to.byte(11).long(*id).byte(u8::from(*once_empty)),
            Self::Recount { number } => to.byte(20).long(*number),
        };
        to.bytes
    }

    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        let mut from = Reader { rest: bytes };
        let request = match from.byte()? {
            1 => Self::Spawn(Box::new(from.order()?)),
            2 => Self::Open { id: from.long()?, grace: from.duration()? },
            3 => Self::End { id: from.long()?, grace: from.duration()? },
            4 => Self::Pause { id: from.long()? },
            5 => Self::Resume { id: from.long()? },
            6 => Self::Resync { number: from.long()? },
            7 => Self::Ping { number: from.long()? },
            8 => Self::Foster {
                id: from.long()?,
                scope: from.long()?,
                pid: from.signed()?,
                grace: from.duration()?,
                leftovers: from.leftovers()?,
                release: from.deadline()?,
                kept: from.flag()?,
            },
            9 => Self::EndStrays,
            10 => Self::Adopt { id: from.long()?, group: from.adopted()?, grace: from.duration()? },
            11 => Self::Disown { id: from.long()?, once_empty: from.flag()? },
            20 => Self::Recount { number: from.long()? },
            _ => return None,
        };
        from.finish(request)
    }
}

impl Reply {
    /// Its kind, for tests that stop at it.
    pub(crate) const fn name(&self) -> &'static str {
        match self {
            Self::Hello { .. } => "hello",
            Self::NoScope { .. } => "no-scope",
            Self::Started { .. } => "started",
            Self::Failed { .. } => "failed",
            Self::Opened { .. } => "opened",
            Self::Exited { .. } => "exited",
            Self::Emptied { .. } => "emptied",
            Self::Leaving => "leaving",
            Self::Resynced { .. } => "resynced",
            Self::Pong { .. } => "pong",
            Self::Stopped { .. } => "stopped",
            Self::Returned(_) => "returned",
            Self::Recounted { .. } => "recounted",
        }
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut to = Writer::default();
        match self {
            Self::Hello { version, pid, generation } => {
                to.byte(1).word(*version).signed(*pid).word(*generation)
            }
            Self::Started { id, pid, scope } => to.byte(2).long(*id).signed(*pid).long(*scope),
            Self::Failed { id, failure } => {
                to.byte(3).long(*id).byte(phase_number(failure.phase)).signed(failure.errno)
            }
            Self::Opened { id } => to.byte(4).long(*id),
            Self::Exited { id, exit } => to.byte(5).long(*id).exit(exit),
            Self::Emptied { id, emptied } => to.byte(6).long(*id).emptied(emptied),
            Self::Leaving => to.byte(7),
            Self::Resynced { number } => to.byte(8).long(*number),
            Self::Pong { number } => to.byte(9).long(*number),
            Self::Stopped { id, signal } => to.byte(22).long(*id).signed(*signal),
            Self::NoScope { why } => to.byte(23).text(why),
            Self::Returned(back) => to.byte(20).back(back),
            Self::Recounted { number, next } => to.byte(21).long(*number).long(*next),
        };
        to.bytes
    }

    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        let mut from = Reader { rest: bytes };
        let reply = match from.byte()? {
            1 => {
                Self::Hello { version: from.word()?, pid: from.signed()?, generation: from.word()? }
            }
            2 => Self::Started { id: from.long()?, pid: from.signed()?, scope: from.long()? },
            3 => Self::Failed {
                id: from.long()?,
                failure: Failure { phase: phase_of(from.byte()?)?, errno: from.signed()? },
            },
            4 => Self::Opened { id: from.long()? },
            5 => Self::Exited { id: from.long()?, exit: from.exit()? },
            6 => Self::Emptied { id: from.long()?, emptied: from.emptied()? },
            7 => Self::Leaving,
            8 => Self::Resynced { number: from.long()? },
            9 => Self::Pong { number: from.long()? },
            22 => Self::Stopped { id: from.long()?, signal: from.signed()? },
            23 => Self::NoScope { why: from.text()? },
            20 => Self::Returned(Box::new(from.back()?)),
            21 => Self::Recounted { number: from.long()?, next: from.long()? },
            _ => return None,
        };
        from.finish(reply)
    }
}

const PHASES: [Phase; 8] = [
    Phase::Request,
    Phase::Supervisor,
    Phase::Clone,
    Phase::Setup,
    Phase::Chdir,
    Phase::Exec,
    Phase::Contain,
    Phase::Ration,
];

pub(crate) fn phase_number(phase: Phase) -> u8 {
    PHASES.iter().zip(0..).find(|(known, _)| **known == phase).map_or(0, |(_, number)| number)
}

pub(crate) fn phase_of(number: u8) -> Option<Phase> {
    PHASES.get(usize::from(number)).copied()
}

#[cfg(test)]
#[path = "protocol_tests.rs"]
mod tests;

//! What fits into a word of a row, and what a word says.

use std::time::Duration;

use crate::exit::{ExitStatus, Reached};
use crate::protocol::{Failure, phase_of};

/// How far a scope has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Stage {
    /// Asked for. With a number in it the process exists, whatever else was not done.
    Intent = 1,
    /// Runs, or is open without a process.
    Alive = 2,
    /// Its process is dead; what it left may not be.
    Dead = 3,
    /// Nothing is left of it.
    Empty = 4,
}

/// A fact about a row, beside its stage.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u64)]
pub(crate) enum Flag {
    /// It never had a process.
    Rootless = 1,
    /// The asking side has been told that it started.
    ToldStarted = 1 << 1,
    /// … that it exited.
    ToldExited = 1 << 2,
    /// It is stopped.
    Paused = 1 << 4,
    /// Its processes are nobody's child here: the guard that was their parent is dead.
    Foster = 1 << 5,
    /// The asking side has been told of its end, although something of it cannot die.
    ToldEmptied = 1 << 6,
    /// What its process leaves lives on, and is named.
    Report = 1 << 7,
    /// What its process leaves lives on.
    Keep = 1 << 8,
    /// It is the release command of its parent.
    Releases = 1 << 9,
    /// A group that something else started.
    Group = 1 << 10,
    /// Its leader leads a session too.
    Session = 1 << 11,
    /// It is let go when nobody in it lives.
    OnceEmpty = 1 << 12,
    /// It joined its owner's group.
    Joined = 1 << 16,
    /// It has a ration, which binds what is started in it too.
    Rationed = 1 << 17,
}

pub(super) fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

/// Never 0.
pub(super) fn status_word(status: ExitStatus) -> u64 {
    let (kind, number) = match status {
        ExitStatus::Code(code) => (1, code),
        ExitStatus::Signal { signal, core_dumped: false } => (2, signal),
        ExitStatus::Signal { signal, core_dumped: true } => (3, signal),
        ExitStatus::Unknown => (4, 0),
    };
    kind << 32 | u64::from(number.cast_unsigned())
}

pub(super) fn decode_status(word: u64) -> Option<ExitStatus> {
    let number = low(word);
    match word >> 32 {
        1 => Some(ExitStatus::Code(number)),
        2 => Some(ExitStatus::Signal { signal: number, core_dumped: false }),
        3 => Some(ExitStatus::Signal { signal: number, core_dumped: true }),
        4 => Some(ExitStatus::Unknown),
        _ => None,
    }
}

/// Most of a count that is kept: half of the bits that are left beside one for the rest.
const MOST_COUNTED: u64 = (1 << 31) - 1;

pub(super) fn reached_word(reached: Reached) -> u64 {
    let Reached { memory, processes, cpu } = reached;
    let kept = |count: u32| u64::from(count).min(MOST_COUNTED);
    kept(memory) << 32 | kept(processes) << 1 | u64::from(cpu)
}

pub(super) fn decode_reached(word: u64) -> Reached {
    let count = |word: u64| u32::try_from(word & MOST_COUNTED).unwrap_or(0);
    Reached { memory: count(word >> 32), processes: count(word >> 1), cpu: word & 1 == 1 }
}

/// The low half of a word, signed.
pub(super) fn low(word: u64) -> i32 {
    u32::try_from(word & 0xffff_ffff).unwrap_or(0).cast_signed()
}

/// What a process that shares our memory has said in [`Table::failed_word`](super::Table::failed_word).
pub(super) fn decode_failure(word: u64) -> Option<Failure> {
    let phase = u8::try_from(word >> 32 & 0xff).ok()?;
    let failure = Failure { phase: phase_of(phase)?, errno: low(word) };
    (word >> 40 == 1).then_some(failure)
}

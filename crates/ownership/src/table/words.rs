//! What fits into a word of a row, and what a word says.

use std::time::Duration;

use crate::exit::ExitStatus;
use crate::protocol::{Failure, phase_of};

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

//! The records of a journal: 64 bytes each, little-endian, with a checksum. Decoding is total; what is
//! torn, foreign or of another version is skipped, and counted.
//!
//! | bytes | what |
//! |---|---|
//! | 0..4 | `ownj` |
//! | 4 | version |
//! | 5 | kind |
//! | 6 | which guard wrote it |
//! | 7 | detail: how a process ended, why it was killed |
//! | 8..16 | time, unix ms |
//! | 16..24 | spawn id (of the header: pid namespace) |
//! | 24..32 | start time, ticks |
//! | 32..40 | pidfd inode |
//! | 40..44 | pid |
//! | 44..48 | exit code, signal or count |
//! | 44..60 | of the header: boot id |
//! | 60..64 | CRC-32 (IEEE) of all before |

use crate::exit::{ExitStatus, Released};
use crate::identity::{BootId, Identity};

/// Bytes of a record.
pub const RECORD_BYTES: usize = 64;

const MAGIC: [u8; 4] = *b"ownj";
/// Version of the records; others are skipped.
const VERSION: u8 = 1;
const CHECKED: usize = RECORD_BYTES - 4;

/// Which guard.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Guard {
    /// The one above.
    Keeper,
    /// The one that starts programs.
    Supervisor,
}

/// Why a signal was sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Why {
    /// The owner asked for the end.
    Asked,
    /// The owner is gone.
    OwnerGone,
    /// The scope's process ended by itself and left it behind.
    Leftover,
    /// The grace period is over.
    GraceOver,
    /// Nobody could be found whose it is.
    Unattributed,
}

/// Something that a guard saw or did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Record {
    /// Milliseconds since 1970, by the wall clock.
    pub at: u64,
    /// Who writes.
    pub guard: Guard,
    /// What happened.
    pub event: Event,
}

/// What happened. Unknown numbers (start time, inode) are 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Event {
    /// A program was started.
    Started {
        /// Its spawn id.
        spawn: u64,
        /// Its pid.
        pid: u32,
        /// Its start time, in ticks.
        start: u64,
        /// The inode of its pidfd.
        inode: u64,
    },
    /// The process ended.
    Exited {
        /// Its spawn id.
        spawn: u64,
        /// Its pid.
        pid: u32,
        /// How.
        status: ExitStatus,
    },
    /// Nothing of the scope is left.
    Emptied {
        /// Its spawn id.
        spawn: u64,
        /// How many members had been left behind and were ended.
        leftovers: u32,
    },
    /// A member that cannot die.
    Left {
        /// The spawn id of its scope.
        spawn: u64,
        /// Its pid.
        pid: u32,
    },
    /// The owner is dead.
    OwnerGone,
    /// The end of everything begins.
    SweepBegun,
    /// It is over.
    SweepEnded {
        /// How many cannot die; with 0 the kernel said that nothing is left.
        left: u32,
    },
    /// The other guard is dead, and this one does its work.
    Takeover {
        /// The dead guard.
        pid: u32,
        /// The number that the dead guard had among those of its owner, from 1.
        generation: u32,
    },
    /// A signal was sent.
    KillSent {
        /// The spawn id of the scope; 0 if none.
        spawn: u64,
        /// To whom.
        pid: u32,
        /// Which signal.
        signal: i32,
        /// Why.
        why: Why,
    },
    /// The owner executed another program, which cannot take up what it has: there is no directory in which its
    /// guards could be found.
    NoDoor {
        /// The system's error number.
        errno: i32,
    },
    /// The owner executed another program, which has taken up what it had.
    Reattached,
    /// A release command was run, or was to be.
    Released {
        /// The spawn id of the scope that it is of.
        spawn: u64,
        /// What became of it.
        released: Released,
    },
    /// A program was started without the cgroup that it was to have.
    NoCgroup {
        /// Its spawn id.
        spawn: u64,
        /// The error number of what failed.
        errno: i32,
    },
    /// A process was let go because a rule keeps it.
    Spared {
        /// The spawn id of its scope.
        spawn: u64,
        /// Its pid.
        pid: u32,
        /// Its start time.
        start: u64,
        /// Inode of its pidfd; 0 where these have none of their own.
        inode: u64,
        /// The rule.
        rule: RuleName,
    },
}

/// The name of a rule ([`crate::keep`]), as long as there is room for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RuleName([u8; NAME_BYTES]);

const NAME_BYTES: usize = 12;

/// Where the name of a rule begins in a record.
const NAMED: usize = 48;

impl RuleName {
    /// Of this name; what is too long is cut off.
    #[must_use]
    pub fn of(name: &str) -> Self {
        let mut bytes = [0; NAME_BYTES];
        bytes.iter_mut().zip(name.bytes()).for_each(|(to, byte)| *to = byte);
        Self(bytes)
    }

    fn read(bytes: &[u8; RECORD_BYTES]) -> Self {
        let mut name = [0; NAME_BYTES];
        name.copy_from_slice(&bytes[NAMED..NAMED + NAME_BYTES]);
        Self(name)
    }
}

impl std::fmt::Display for RuleName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // What a file says reaches a terminal.
        let fine = |byte: &&u8| byte.is_ascii_graphic();
        let name: String = self.0.iter().take_while(fine).map(|byte| char::from(*byte)).collect();
        f.write_str(&name)
    }
}

/// What a journal says.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Contents {
    /// Whose it is; `None` when no header could be read.
    pub owner: Option<Identity>,
    /// All readable records, in order of writing.
    pub records: Vec<Record>,
    /// Bytes that were torn, foreign or of another version.
    pub skipped: usize,
}

/// Reads a whole journal.
#[must_use]
pub fn read(bytes: &[u8]) -> Contents {
    let mut contents = Contents::default();
    let mut rest = bytes;
    while !rest.is_empty() {
        let Some(record) = rest.first_chunk::<RECORD_BYTES>().filter(|record| is_sound(record))
        else {
            // A torn one shifts those behind it: looked for byte by byte.
            contents.skipped += 1;
            rest = &rest[1..];
            continue;
        };
        match (decode_owner(record), decode(record)) {
            (Some(owner), _) => contents.owner = contents.owner.or(Some(owner)),
            (None, Some(record)) => contents.records.push(record),
            (None, None) => contents.skipped += RECORD_BYTES,
        }
        rest = &rest[RECORD_BYTES..];
    }
    contents
}

fn is_sound(record: &[u8; RECORD_BYTES]) -> bool {
    record.starts_with(&MAGIC) && word(record, CHECKED) == crc32(&record[..CHECKED])
}

const HEADER: u8 = 0;
const KINDS_WITH_GUARD: std::ops::RangeInclusive<u8> = 1..=14;

/// The numbers of a record, before and after the bytes.
#[derive(Default)]
struct Fields {
    kind: u8,
    detail: u8,
    spawn: u64,
    start: u64,
    inode: u64,
    pid: u32,
    value: i32,
    rule: RuleName,
}

/// The bytes of a record.
#[must_use]
pub(super) fn encode(record: &Record) -> [u8; RECORD_BYTES] {
    let fields = fields_of(record.event);
    let mut bytes = numbers(&fields);
    bytes[6] = match record.guard {
        Guard::Keeper => 1,
        Guard::Supervisor => 2,
    };
    bytes[8..16].copy_from_slice(&record.at.to_le_bytes());
    bytes[44..48].copy_from_slice(&fields.value.to_le_bytes());
    bytes[NAMED..NAMED + NAME_BYTES].copy_from_slice(&fields.rule.0);
    seal(bytes)
}

/// The bytes of the first record of a file.
#[must_use]
pub(super) fn encode_owner(owner: &Identity) -> [u8; RECORD_BYTES] {
    let fields = Fields {
        kind: HEADER,
        spawn: owner.namespace.unwrap_or(0),
        start: owner.start.unwrap_or(0),
        inode: owner.inode.unwrap_or(0),
        pid: owner.pid,
        ..Fields::default()
    };
    let mut bytes = numbers(&fields);
    bytes[44..60].copy_from_slice(&owner.boot.map_or([0; 16], BootId::bytes));
    seal(bytes)
}

fn numbers(fields: &Fields) -> [u8; RECORD_BYTES] {
    let mut bytes = [0; RECORD_BYTES];
    bytes[..4].copy_from_slice(&MAGIC);
    bytes[4] = VERSION;
    bytes[5] = fields.kind;
    bytes[7] = fields.detail;
    bytes[16..24].copy_from_slice(&fields.spawn.to_le_bytes());
    bytes[24..32].copy_from_slice(&fields.start.to_le_bytes());
    bytes[32..40].copy_from_slice(&fields.inode.to_le_bytes());
    bytes[40..44].copy_from_slice(&fields.pid.to_le_bytes());
    bytes
}

pub(super) fn seal(mut bytes: [u8; RECORD_BYTES]) -> [u8; RECORD_BYTES] {
    let sum = crc32(&bytes[..CHECKED]);
    bytes[CHECKED..].copy_from_slice(&sum.to_le_bytes());
    bytes
}

fn fields_of(event: Event) -> Fields {
    let with = |kind| Fields { kind, ..Fields::default() };
    match event {
        Event::Started { spawn, pid, start, inode } => {
            Fields { spawn, pid, start, inode, ..with(1) }
        }
        Event::Exited { spawn, pid, status } => {
            let (detail, value) = status_numbers(status);
            Fields { spawn, pid, detail, value, ..with(2) }
        }
        Event::Emptied { spawn, leftovers } => {
            Fields { spawn, value: leftovers.cast_signed(), ..with(3) }
        }
        Event::Left { spawn, pid } => Fields { spawn, pid, ..with(4) },
        Event::OwnerGone => with(5),
        Event::SweepBegun => with(6),
        Event::SweepEnded { left } => Fields { value: left.cast_signed(), ..with(7) },
        Event::Takeover { pid, generation } => {
            Fields { pid, value: generation.cast_signed(), ..with(8) }
        }
        Event::KillSent { spawn, pid, signal, why } => {
            Fields { spawn, pid, value: signal, detail: why_number(why), ..with(9) }
        }
        Event::NoDoor { errno } => Fields { value: errno, ..with(10) },
        Event::Reattached => with(11),
        Event::Released { spawn, released } => {
            let (detail, value) = match released {
                Released::Ended(status) => status_numbers(status),
                Released::TimedOut => (4, 0),
                Released::NotStarted { errno } => (5, errno),
            };
            Fields { spawn, detail, value, ..with(12) }
        }
        Event::NoCgroup { spawn, errno } => Fields { spawn, value: errno, ..with(13) },
        Event::Spared { spawn, pid, start, inode, rule } => {
            Fields { spawn, pid, start, inode, rule, ..with(14) }
        }
    }
}

fn status_numbers(status: ExitStatus) -> (u8, i32) {
    match status {
        ExitStatus::Code(code) => (0, code),
        ExitStatus::Signal { signal, core_dumped: false } => (1, signal),
        ExitStatus::Signal { signal, core_dumped: true } => (2, signal),
        ExitStatus::Unknown => (3, 0),
    }
}

fn status_of(detail: u8, value: i32) -> Option<ExitStatus> {
    Some(match detail {
        0 => ExitStatus::Code(value),
        1 => ExitStatus::Signal { signal: value, core_dumped: false },
        2 => ExitStatus::Signal { signal: value, core_dumped: true },
        3 => ExitStatus::Unknown,
        _ => return None,
    })
}

fn event_of(fields: &Fields) -> Option<Event> {
    let Fields { kind, detail, spawn, start, inode, pid, value, rule } = *fields;
    Some(match kind {
        1 => Event::Started { spawn, pid, start, inode },
        2 => Event::Exited { spawn, pid, status: status_of(detail, value)? },
        3 => Event::Emptied { spawn, leftovers: value.cast_unsigned() },
        4 => Event::Left { spawn, pid },
        5 => Event::OwnerGone,
        6 => Event::SweepBegun,
        7 => Event::SweepEnded { left: value.cast_unsigned() },
        8 => Event::Takeover { pid, generation: value.cast_unsigned() },
        9 => Event::KillSent { spawn, pid, signal: value, why: why_of(detail)? },
        10 => Event::NoDoor { errno: value },
        11 => Event::Reattached,
        12 => {
            let released = match detail {
                4 => Released::TimedOut,
                5 => Released::NotStarted { errno: value },
                _ => Released::Ended(status_of(detail, value)?),
            };
            Event::Released { spawn, released }
        }
        13 => Event::NoCgroup { spawn, errno: value },
        14 => Event::Spared { spawn, pid, start, inode, rule },
        _ => return None,
    })
}

fn decode(bytes: &[u8; RECORD_BYTES]) -> Option<Record> {
    if bytes[4] != VERSION || !KINDS_WITH_GUARD.contains(&bytes[5]) {
        return None;
    }
    let guard = match bytes[6] {
        1 => Guard::Keeper,
        2 => Guard::Supervisor,
        _ => return None,
    };
    let fields = Fields {
        kind: bytes[5],
        detail: bytes[7],
        spawn: long(bytes, 16),
        start: long(bytes, 24),
        inode: long(bytes, 32),
        pid: word(bytes, 40),
        value: word(bytes, 44).cast_signed(),
        rule: RuleName::read(bytes),
    };
    Some(Record { at: long(bytes, 8), guard, event: event_of(&fields)? })
}

fn decode_owner(bytes: &[u8; RECORD_BYTES]) -> Option<Identity> {
    if bytes[4] != VERSION || bytes[5] != HEADER {
        return None;
    }
    let known = |number: u64| (number != 0).then_some(number);
    let mut boot = [0; 16];
    boot.copy_from_slice(&bytes[44..60]);
    Some(Identity {
        boot: BootId::from_bytes(boot),
        pid: word(bytes, 40),
        start: known(long(bytes, 24)),
        inode: known(long(bytes, 32)),
        namespace: known(long(bytes, 16)),
        cgroup: None,
    })
}

const WHYS: [Why; 5] =
    [Why::Asked, Why::OwnerGone, Why::Leftover, Why::GraceOver, Why::Unattributed];

fn why_number(why: Why) -> u8 {
    WHYS.iter().zip(0..).find(|(known, _)| **known == why).map_or(0, |(_, number)| number)
}

fn why_of(number: u8) -> Option<Why> {
    WHYS.get(usize::from(number)).copied()
}

fn word(bytes: &[u8; RECORD_BYTES], at: usize) -> u32 {
    let mut word = [0; 4];
    word.copy_from_slice(&bytes[at..at + 4]);
    u32::from_le_bytes(word)
}

fn long(bytes: &[u8; RECORD_BYTES], at: usize) -> u64 {
    let mut long = [0; 8];
    long.copy_from_slice(&bytes[at..at + 8]);
    u64::from_le_bytes(long)
}

/// CRC-32 as in IEEE 802.3, bit by bit: 60 bytes, a few times per child.
fn crc32(bytes: &[u8]) -> u32 {
    let step = |sum: u32| if sum & 1 == 1 { (sum >> 1) ^ 0xedb8_8320 } else { sum >> 1 };
    let add = |sum: u32, byte: &u8| (0..8).fold(sum ^ u32::from(*byte), |sum, _| step(sum));
    !bytes.iter().fold(!0, add)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_checksum_is_the_common_one() {
        assert_eq!(crc32(b"123456789"), 0xcbf4_3926);
    }
}

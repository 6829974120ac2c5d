//! What a child asks about files that the agents of one tree share: what it read and wrote, whether what it
//! read is still so, and whose turn it is. The parent keeps the one registry and answers; a child looks at
//! the file itself and sends what it saw ([`Stamp`]).

use std::fmt;

use serde::{Deserialize, Serialize};

/// A file as somebody saw it. Two stamps that differ are two contents, or one that was written again;
/// equal ones without a hash may still differ.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stamp {
    /// Bytes.
    pub size: u64,
    /// Time of its last change, in nanoseconds since 1970 (negative before).
    pub mtime_ns: i64,
    /// Device that its inode is on.
    pub device: u64,
    /// Its inode: another one means that the file was replaced.
    pub inode: u64,
    /// The first 16 bytes of its SHA-256; absent where the file is too large to be hashed in passing.
    pub hash: Option<[u8; 16]>,
}

impl Stamp {
    /// Whether the two are of one and the same content, as far as both can tell.
    #[must_use]
    pub fn agrees(&self, other: &Self) -> bool {
        let Self { size, mtime_ns, device, inode, hash } = self;
        let hashes = hash.zip(other.hash).is_none_or(|(own, its)| own == its);
        let file = (*size, *mtime_ns, *device, *inode);
        hashes && file == (other.size, other.mtime_ns, other.device, other.inode)
    }
}

/// What was done to a path.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Change {
    /// It was written; the stamp is what it is now, where that is known.
    Written(Option<Stamp>),
    /// It was deleted.
    Deleted,
    /// It was renamed to another path, which counts as written.
    Renamed {
        /// The other path.
        to: String,
        /// What lies there now.
        stamp: Option<Stamp>,
    },
}

impl Change {
    /// The same in one word, and for a rename where to.
    #[must_use]
    pub fn done(&self) -> Done {
        match self {
            Self::Written(_) => Done::Written,
            Self::Deleted => Done::Deleted,
            Self::Renamed { to, .. } => Done::Renamed { to: to.clone() },
        }
    }
}

/// What somebody did to a path, without what it is now.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Done {
    /// It was written.
    Written,
    /// It was deleted.
    Deleted,
    /// It was renamed.
    Renamed {
        /// To this path.
        to: String,
    },
}

impl fmt::Display for Done {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Written => f.write_str("wrote it"),
            Self::Deleted => f.write_str("deleted it"),
            Self::Renamed { to } => write!(f, "renamed it to {to}"),
        }
    }
}

/// Asked by a child. Paths are absolute and resolved, at most [`crate::outcome::PATH_BYTES`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FileQuestion {
    /// I read this. Answered with [`FileAnswer::Noted`].
    Read {
        /// Which file.
        path: String,
        /// What it was, where that is known.
        stamp: Option<Stamp>,
        /// Not all of it was read.
        partial: bool,
    },
    /// I changed this. Answered with [`FileAnswer::Noted`].
    Changed {
        /// Which file.
        path: String,
        /// How.
        change: Change,
    },
    /// May I write this? Answered with [`FileAnswer::Checked`].
    Check {
        /// Which file.
        path: String,
        /// What lies there now; `None`: nothing.
        found: Option<Stamp>,
    },
    /// Let nobody else have its turn at this path until I give it back or end. Answered with
    /// [`FileAnswer::Locked`] or [`FileAnswer::Busy`], when that is known.
    Lock {
        /// Which file; it need not exist.
        path: String,
        /// Longest time to wait for it, in milliseconds.
        wait_ms: u64,
    },
    /// I am done with it. Answered with [`FileAnswer::Noted`], whether there was such a lock or not.
    Unlock {
        /// Of [`FileAnswer::Locked`].
        lock: u64,
    },
}

/// Answered by the parent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FileAnswer {
    /// It is written down.
    Noted,
    /// What speaks against writing it; it only advises.
    Checked(Option<Staleness>),
    /// It is yours.
    Locked {
        /// To give it back with.
        lock: u64,
    },
    /// It was not given back in time.
    Busy(Busy),
}

/// Who has a path.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Busy {
    /// Which path.
    pub path: String,
    /// Who has it, such as `sa-1-9f3c2a1b`.
    pub holder: String,
    /// For how long, in milliseconds.
    pub held_ms: u64,
    /// How many waited before the one that gave up.
    pub ahead: u64,
}

impl fmt::Display for Busy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { path, holder, held_ms, ahead } = self;
        write!(f, "{path} is locked by {holder} for {held_ms} ms")?;
        if *ahead > 0 { write!(f, ", and {ahead} waited before") } else { Ok(()) }
    }
}

impl std::error::Error for Busy {}

/// Why a path should be read (again) before it is written. Times are milliseconds since 1970.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "kind")]
pub enum Staleness {
    /// Another agent changed it, and you never read it.
    UnreadChange {
        /// Who.
        by: String,
        /// What it did.
        done: Done,
        /// When.
        at_ms: u64,
    },
    /// Another agent changed it after you read it.
    ChangedSince {
        /// Who.
        by: String,
        /// What it did.
        done: Done,
        /// When you read it.
        read_ms: u64,
        /// When it was changed.
        at_ms: u64,
    },
    /// It is not what you read, and no agent of this tree said that it changed it.
    EditedOutside {
        /// When you read it.
        read_ms: u64,
    },
    /// You read a part of it only.
    PartlyRead,
    /// Something is known of it, and you never read it.
    NeverRead,
}

impl fmt::Display for Staleness {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::UnreadChange { by, done, at_ms } => {
                write!(f, "{by} {done} at {}, and you never read it", clock_time(*at_ms))
            }
            Self::ChangedSince { by, done, read_ms, at_ms } => {
                let (read, at) = (clock_time(*read_ms), clock_time(*at_ms));
                write!(f, "{by} {done} at {at}, after you read it at {read}")
            }
            Self::EditedOutside { read_ms } => {
                let read = clock_time(*read_ms);
                write!(f, "it is not what you read at {read}: something outside changed it")
            }
            Self::PartlyRead => f.write_str("you read only a part of it"),
            Self::NeverRead => f.write_str("you never read it"),
        }
    }
}

/// Time of day, UTC.
fn clock_time(ms: u64) -> String {
    let seconds = ms / 1000 % 86_400;
    let (hours, minutes) = (seconds / 3600, seconds / 60 % 60);
    format!("{hours:02}:{minutes:02}:{:02}.{:03}", seconds % 60, ms % 1000)
}

#[cfg(test)]
mod tests {
    use super::*;

    const STAMP: Stamp = Stamp { size: 3, mtime_ns: 7, device: 1, inode: 9, hash: Some([1; 16]) };

    #[test]
    fn every_field_of_a_stamp_tells_two_contents_apart() {
        assert!(STAMP.agrees(&STAMP));
        assert!(STAMP.agrees(&Stamp { hash: None, ..STAMP }), "one that nobody hashed");
        for other in [
            Stamp { size: 4, ..STAMP },
            Stamp { mtime_ns: 8, ..STAMP },
            Stamp { device: 2, ..STAMP },
            Stamp { inode: 10, ..STAMP },
            Stamp { hash: Some([2; 16]), ..STAMP },
        ] {
            assert!(!STAMP.agrees(&other), "{other:?}");
        }
    }

    #[test]
    fn a_warning_reads_like_a_sentence() {
        let by = "sa-1-0000000a".to_owned();
        let warning = Staleness::ChangedSince {
            by,
            done: Done::Renamed { to: "/t/b".to_owned() },
            read_ms: 1,
            at_ms: 3_661_002,
        };
        assert_eq!(
            warning.to_string(),
            "sa-1-0000000a renamed it to /t/b at 01:01:01.002, after you read it at 00:00:00.001"
        );
    }
}

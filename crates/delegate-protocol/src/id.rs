//! Names for runs and children.
//!
//! [`RunId`] names one batch on disk and on the command line; [`SubagentId`] names one child in
//! events, logs and the live registry. Used by every other module and crate.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use uuid::Uuid;

/// Length of a run id as text: 128 bits in base32 without padding.
pub const RUN_ID_LEN: usize = 26;

/// The shortest prefix of a run id that is ever shown or accepted.
pub const MIN_PREFIX: usize = 4;

/// One batch: a version 4 UUID, written as 26 lower-case base32 characters (RFC 4648 alphabet).
///
/// Whole in JSON and in paths; people see and type a unique prefix of at least
/// [`MIN_PREFIX`] characters.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RunId(Uuid);

impl RunId {
    /// A new random id.
    #[must_use]
    pub fn random() -> Self {
        Self(Uuid::new_v4())
    }

    /// The id with these 128 bits; for tests that need a known one.
    #[must_use]
    pub const fn from_u128(bits: u128) -> Self {
        Self(Uuid::from_u128(bits))
    }
}

impl fmt::Display for RunId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = data_encoding::BASE32_NOPAD.encode(self.0.as_bytes());
        text.make_ascii_lowercase();
        f.pad(&text)
    }
}

impl fmt::Debug for RunId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RunId({self})")
    }
}

/// A text that is not a run id.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is not a run id: expected {RUN_ID_LEN} characters of a-z and 2-7")]
pub struct ParseRunIdError {
    text: String,
}

impl FromStr for RunId {
    type Err = ParseRunIdError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let wrong = || ParseRunIdError { text: text.chars().take(64).collect() };
        if text.len() != RUN_ID_LEN {
            return Err(wrong());
        }
        let bytes = data_encoding::BASE32_NOPAD
            .decode(text.to_ascii_uppercase().as_bytes())
            .map_err(|_| wrong())?;
        let bytes: [u8; 16] = bytes.try_into().map_err(|_| wrong())?;
        Ok(Self(Uuid::from_bytes(bytes)))
    }
}

impl Serialize for RunId {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for RunId {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

/// One child of one batch: `sa-<task_index>-<8 hex digits>`.
///
/// Made before the child is launched, so that the first event already carries it. Small and
/// `Copy`: every event names its child by value.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SubagentId {
    task_index: u32,
    nonce: u32,
}

impl SubagentId {
    /// A new id for the task at `task_index` (0-based).
    #[must_use]
    pub fn random(task_index: u32) -> Self {
        let [a, b, c, d, ..] = *Uuid::new_v4().as_bytes();
        Self { task_index, nonce: u32::from_be_bytes([a, b, c, d]) }
    }

    /// The id with a known nonce; for tests.
    #[must_use]
    pub const fn new(task_index: u32, nonce: u32) -> Self {
        Self { task_index, nonce }
    }

    /// Position of the task in its batch, 0-based.
    #[must_use]
    pub const fn task_index(self) -> u32 {
        self.task_index
    }

    /// Appends its text. Every line of a log has one, so it goes without the machinery of formats.
    pub(crate) fn write(self, out: &mut Vec<u8>) {
        let mut digits = [0; 10];
        let (mut from, mut rest) = (digits.len(), self.task_index);
        loop {
            from -= 1;
            digits[from] = b"0123456789"[(rest % 10) as usize];
            rest /= 10;
            if rest == 0 {
                break;
            }
        }
        out.extend_from_slice(b"sa-");
        out.extend_from_slice(&digits[from..]);
        out.push(b'-');
        let hex = |shift: u32| b"0123456789abcdef"[(self.nonce >> shift & 0xf) as usize];
        out.extend((0..8).rev().map(|place| hex(4 * place)));
    }
}

impl fmt::Display for SubagentId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&format!("sa-{}-{:08x}", self.task_index, self.nonce))
    }
}

impl fmt::Debug for SubagentId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

/// A text that is not a subagent id.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is not a subagent id: expected sa-<task index>-<8 hex digits>")]
pub struct ParseSubagentIdError {
    text: String,
}

impl FromStr for SubagentId {
    type Err = ParseSubagentIdError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let wrong = || ParseSubagentIdError { text: text.chars().take(64).collect() };
        let rest = text.strip_prefix("sa-").ok_or_else(wrong)?;
        let (index, nonce) = rest.split_once('-').ok_or_else(wrong)?;
        if nonce.len() != 8 || index.starts_with('+') || nonce.starts_with('+') {
            return Err(wrong());
        }
        Ok(Self {
            task_index: index.parse().map_err(|_| wrong())?,
            nonce: u32::from_str_radix(nonce, 16).map_err(|_| wrong())?,
        })
    }
}

impl Serialize for SubagentId {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for SubagentId {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_id_survives_its_text_form() {
        for bits in [0, 1, u128::MAX, 0x1234_5678_9abc_def0_1122_3344_5566_7788] {
            let id = RunId::from_u128(bits);
            assert_eq!(id.to_string().len(), RUN_ID_LEN);
            assert_eq!(id.to_string().parse::<RunId>().unwrap(), id);
        }
    }

    #[test]
    fn a_run_id_is_refused_with_its_text() {
        for text in ["", "k7f3", "0000000000000000000000000!", "aaaaaaaaaaaaaaaaaaaaaaaaa1"] {
            let error = text.parse::<RunId>().unwrap_err();
            assert!(error.to_string().contains("26 characters"), "{error}");
        }
    }

    #[test]
    fn a_subagent_id_survives_its_text_form() {
        let id = SubagentId::new(7, 0x0000_beef);
        assert_eq!(id.to_string(), "sa-7-0000beef");
        assert_eq!("sa-7-0000beef".parse::<SubagentId>().unwrap(), id);
        for id in [id, SubagentId::new(0, 0), SubagentId::new(u32::MAX, u32::MAX)] {
            let mut written = Vec::new();
            id.write(&mut written);
            assert_eq!(written, id.to_string().as_bytes());
        }
        for text in ["", "sa-7", "sa-x-0000beef", "sa-7-beef", "sb-7-0000beef", "sa-+7-0000beef"] {
            assert!(text.parse::<SubagentId>().is_err(), "{text}");
        }
    }
}

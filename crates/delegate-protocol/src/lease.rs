//! What a child and its parent say about keys and calls: which key failed and how, which one comes next,
//! and when a call may be made. Carried by the questions of [`crate::message`]; decided in the parent.

use std::fmt;

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use crate::routing::ApiKey;

/// Names a key without telling it: the first 12 hex digits of a SHA-256. May be shown and stored.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Fingerprint(String);

impl Fingerprint {
    /// Digits of one.
    pub const LEN: usize = 12;

    /// The fingerprint of a key.
    #[must_use]
    pub fn of(key: &ApiKey) -> Self {
        let digest = Sha256::new().chain_update("delegate key\0").chain_update(key.reveal());
        let mut hex = String::new();
        for byte in digest.finalize().iter().take(Self::LEN / 2) {
            hex.push_str(&format!("{byte:02x}"));
        }
        Self(hex)
    }

    /// As text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

impl fmt::Debug for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Fingerprint({})", self.0)
    }
}

/// How a call with a key failed, as the provider told it.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct KeyFailure {
    /// Status of the HTTP answer; `None` when there was none.
    pub status: Option<u16>,
    /// The provider's word for it, such as `token_revoked`.
    pub reason: Option<String>,
    /// Its text.
    pub message: Option<String>,
    /// When it says that the key works again: epoch seconds or milliseconds, seconds from now
    /// (`Retry-After`), a date, or a sentence that holds one of them.
    pub reset: Option<String>,
}

impl KeyFailure {
    /// A failure with this status.
    #[must_use]
    pub fn status(status: u16) -> Self {
        Self { status: Some(status), ..Self::default() }
    }

    /// The same with the provider's word for it.
    #[must_use]
    pub fn reason(mut self, reason: impl Into<String>) -> Self {
        self.reason = Some(reason.into());
        self
    }

    /// The same with the provider's text.
    #[must_use]
    pub fn message(mut self, message: impl Into<String>) -> Self {
        self.message = Some(message.into());
        self
    }

    /// The same with the time that the provider gave; see [`KeyFailure::reset`].
    #[must_use]
    pub fn reset(mut self, reset: impl Into<String>) -> Self {
        self.reset = Some(reset.into());
        self
    }
}

/// Bytes of each text in a [`KeyFailure`] that a child sends.
pub const FAILURE_BYTES: usize = 4 * 1024;

/// What a child asks about keys and calls.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum KeyQuestion {
    /// This key failed: which one comes next? Answered at once.
    Rotate {
        /// The key that was used; `None`: the one that the parent gave last.
        fingerprint: Option<Fingerprint>,
        /// What went wrong.
        failure: KeyFailure,
    },
    /// A key, as soon as there is one. Answered when there is, or when there will be none.
    Await,
    /// May a call be made? Answered as soon as it may.
    Permit,
    /// The call of this permit is over. Answered with [`KeyAnswer::Noted`].
    GiveBack {
        /// As in [`KeyAnswer::Permit`].
        permit: u64,
        /// The provider refused it for its rate, and said when to come back (as [`KeyFailure::reset`]).
        refused: Option<String>,
    },
}

/// A key for a child.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Given {
    /// The key.
    pub api_key: ApiKey,
    /// Its endpoint, where the key belongs to one; one bundle with the key.
    pub base_url: Option<String>,
}

/// What a parent answers to a [`KeyQuestion`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum KeyAnswer {
    /// Use this one from now on.
    Key(Given),
    /// No key works now; in so many milliseconds the first one may again.
    Wait {
        /// Milliseconds.
        ms: u64,
    },
    /// There is no other key, and none will come back by itself.
    NoKey {
        /// Why, for people; names no key.
        why: String,
    },
    /// A call may be made.
    Permit {
        /// Names it when it is given back.
        permit: u64,
        /// Use this key from now on: the one before has failed elsewhere.
        key: Option<Given>,
    },
    /// Taken note of.
    Noted,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fingerprint_tells_keys_apart_and_tells_no_key() {
        let key = |text: &str| ApiKey::new(text.to_owned());
        let one = Fingerprint::of(&key("sk-canary-1"));
        assert_eq!(one, Fingerprint::of(&key("sk-canary-1")));
        assert_ne!(one, Fingerprint::of(&key("sk-canary-2")));
        assert_eq!(one.as_str().len(), Fingerprint::LEN);
        assert!(one.as_str().bytes().all(|byte| byte.is_ascii_hexdigit()));
        let given = Given { api_key: key("sk-canary-1"), base_url: None };
        let shown = format!("{given:?} {one:?} {:?}", KeyAnswer::Key(given.clone()));
        assert!(!shown.contains("canary"), "{shown}");
    }
}

//! What the two guards say to each other over a socket of their own: few and small notes. What was
//! started they read in the [`crate::table`].

use crate::protocol::Request;
use crate::registry::ScopeId;

/// A note from one guard to the other.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Note {
    /// With our end of a scope's line: keep it for the case that we die.
    Mirror(ScopeId),
    /// That line is over.
    Unmirror(ScopeId),
    /// The owner asks for it, and the scope must be yours.
    Relay(Request),
    /// The owner is gone and nothing of ours is left.
    Settled,
}

impl Note {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let scope = |kind: u8, scope: &ScopeId| [&[kind][..], &scope.0.to_le_bytes()].concat();
        match self {
            Self::Mirror(id) => scope(1, id),
            Self::Unmirror(id) => scope(2, id),
            Self::Relay(request) => [&[3][..], &request.encode()].concat(),
            Self::Settled => vec![4],
        }
    }

    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        let (kind, rest) = bytes.split_first()?;
        let scope = || Some(ScopeId(u64::from_le_bytes(rest.try_into().ok()?)));
        match kind {
            1 => Some(Self::Mirror(scope()?)),
            2 => Some(Self::Unmirror(scope()?)),
            3 => Some(Self::Relay(Request::decode(rest)?)),
            4 if rest.is_empty() => Some(Self::Settled),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn notes_survive() {
        let end = Request::End { id: 7, grace: Duration::from_secs(1) };
        let notes = [
            Note::Mirror(ScopeId(1 << 40)),
            Note::Unmirror(ScopeId(2)),
            Note::Relay(end),
            Note::Settled,
        ];
        for note in notes {
            assert_eq!(Note::decode(&note.encode()), Some(note.clone()));
        }
    }

    proptest! {
        #[test]
        fn decoding_is_total(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
            drop(Note::decode(&bytes));
        }
    }
}

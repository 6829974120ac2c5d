//! What the two guards say to each other over a socket of their own: few and small notes. What was
//! started they read in the [`crate::table`].

use crate::protocol::Request;
use crate::registry::ScopeId;

/// What a guard holds of a scope beside its processes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub(crate) enum Held {
    /// Our end of its line.
    Line = 1,
    /// Its release command.
    Command = 2,
    /// The handle of the leader of an adopted group.
    Group = 3,
}

impl Held {
    fn of(number: u8) -> Option<Self> {
        [Self::Line, Self::Command, Self::Group].into_iter().find(|held| *held as u8 == number)
    }
}

/// A note from one guard to the other.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Note {
    /// With something of a scope that we hold: keep it for the case that we die.
    Mirror(Held, ScopeId),
    /// We do not hold that any more.
    Unmirror(Held, ScopeId),
    /// The owner asks for it, and the scope must be yours.
    Relay(Request),
    /// The owner is gone and nothing of ours is left.
    Settled,
    /// The owner's next program knows of every child of yours: say what happened to them.
    Recounted,
}

impl Note {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let held = |kind: u8, held: &Held, scope: &ScopeId| {
            [&[kind, *held as u8][..], &scope.0.to_le_bytes()].concat()
        };
        match self {
            Self::Mirror(what, id) => held(1, what, id),
            Self::Unmirror(what, id) => held(2, what, id),
            Self::Relay(request) => [&[3][..], &request.encode()].concat(),
            Self::Settled => vec![4],
            Self::Recounted => vec![5],
        }
    }

    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        let (kind, rest) = bytes.split_first()?;
        let held = || {
            let (held, scope) = rest.split_first()?;
            Some((Held::of(*held)?, ScopeId(u64::from_le_bytes(scope.try_into().ok()?))))
        };
        match kind {
            1 => held().map(|(held, scope)| Self::Mirror(held, scope)),
            2 => held().map(|(held, scope)| Self::Unmirror(held, scope)),
            3 => Some(Self::Relay(Request::decode(rest)?)),
            4 if rest.is_empty() => Some(Self::Settled),
            5 if rest.is_empty() => Some(Self::Recounted),
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
            Note::Mirror(Held::Line, ScopeId(1 << 40)),
            Note::Mirror(Held::Command, ScopeId(3)),
            Note::Unmirror(Held::Line, ScopeId(2)),
            Note::Relay(end),
            Note::Settled,
            Note::Recounted,
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

//! The number of a batch in its conversation, for the prefix of its lines: the first delegation is set 1. Pure;
//! `live` keeps it.

use std::collections::VecDeque;

/// Conversations whose numbers are kept; one that was not heard of for longest begins at 1 again.
const MAX_SESSIONS: usize = 1024;

/// Delegations of one conversation that may go on under their number.
const MAX_DELEGATIONS: usize = 64;

/// Numbers by conversation, the one heard of last behind the others.
#[derive(Debug, Default)]
pub(super) struct Sets {
    sessions: VecDeque<Session>,
}

#[derive(Debug)]
struct Session {
    key: Option<String>,
    last: u64,
    delegations: VecDeque<(String, u64)>,
}

impl Sets {
    /// The number of a batch. Batches of one delegation have one number.
    pub(super) fn number(&mut self, session: Option<&str>, delegation: Option<&str>) -> u64 {
        let at = self.sessions.iter().position(|known| known.key.as_deref() == session);
        let known = at.and_then(|at| self.sessions.remove(at));
        let mut session = known.unwrap_or_else(|| Session {
            key: session.map(str::to_owned),
            last: 0,
            delegations: VecDeque::new(),
        });
        let same = |id: &str| session.delegations.iter().find(|(known, _)| known == id);
        let number = match delegation.and_then(same) {
            Some((_, number)) => *number,
            None => {
                session.last += 1;
                if let Some(id) = delegation {
                    session.delegations.push_back((id.to_owned(), session.last));
                }
                session.last
            }
        };
        if session.delegations.len() > MAX_DELEGATIONS {
            session.delegations.pop_front();
        }
        self.sessions.push_back(session);
        if self.sessions.len() > MAX_SESSIONS {
            self.sessions.pop_front();
        }
        number
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_conversation_counts_its_delegations_from_1() {
        let mut sets = Sets::default();
        let steps = [
            (None, None, 1),
            (Some("a"), Some("d1"), 1),
            (Some("a"), Some("d2"), 2),
            (Some("a"), Some("d1"), 1),
            (Some("a"), None, 3),
            (Some("b"), Some("d1"), 1),
            (None, None, 2),
        ];
        for (at, (session, delegation, number)) in steps.into_iter().enumerate() {
            assert_eq!(sets.number(session, delegation), number, "step {at}");
        }
    }

    #[test]
    fn conversations_and_delegations_are_bounded_and_the_present_one_stays() {
        let mut sets = Sets::default();
        for number in 0..2 * MAX_SESSIONS {
            sets.number(Some(&number.to_string()), None);
            assert_eq!(sets.number(Some("kept"), Some(&number.to_string())), number as u64 + 1);
        }
        assert_eq!(sets.sessions.len(), MAX_SESSIONS);
        let kept = sets.sessions.back().map(|session| session.delegations.len());
        assert_eq!(kept, Some(MAX_DELEGATIONS));
    }
}

//! For tests only: the point of a batch at which the process that runs it kills itself. A release build has
//! none. The loop and what it leaves to others come to these points.
//!
//! `DELEGATE_TEST_DIE_AT=POINT:WHAT[:TURN]` (a worker reads the same variable and knows other points):
//!
//! | point | what has happened |
//! |---|---|
//! | `before-fact` | the loop has waited, and knows nothing of the fact yet |
//! | `after-fact` | it has acted on it |
//! | `place` | it comes to a place of its own, by name ([`Place`]) |

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::process::{Signal, getpid, kill_process};

const DIE_AT: &str = "DELEGATE_TEST_DIE_AT";

/// Places between two waits that have no fact.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place {
    /// Nothing is written of the run yet.
    Begin,
    /// Its row and its manifest are queued.
    Begun,
    /// An outcome is made; its events are not written.
    Settle,
    /// Its events are; it is not.
    Outcome,
    /// It is, and nobody was told.
    Stored,
    /// The completion of a unit is written, and nobody was told.
    Completion,
    /// Every child is announced.
    End,
    /// The end is queued.
    EndQueued,
    /// It is on disk.
    Flushed,
    /// Everybody who waits for the end was told.
    Told,
    /// A prompt of a session is stored, and nobody has it.
    Prompted,
    /// It is to be given to a worker, and that is stored.
    Given,
    /// How a turn ended is stored, and nobody was told.
    TurnStored,
    /// Its caller was told, and not its worker.
    TurnTold,
    /// A worker of a session has left, and nothing is stored of that.
    WorkerGone,
    /// Another takes its place.
    Replaced,
    /// The end of a session is stored.
    SessionOver,
}

impl Place {
    const fn name(self) -> &'static str {
        match self {
            Self::Begin => "begin",
            Self::Begun => "begun",
            Self::Settle => "settle",
            Self::Outcome => "outcome",
            Self::Stored => "stored",
            Self::Completion => "completion",
            Self::End => "end",
            Self::EndQueued => "end-queued",
            Self::Flushed => "flushed",
            Self::Told => "told",
            Self::Prompted => "prompted",
            Self::Given => "given",
            Self::TurnStored => "turn-stored",
            Self::TurnTold => "turn-told",
            Self::WorkerGone => "worker-gone",
            Self::Replaced => "replaced",
            Self::SessionOver => "session-over",
        }
    }
}

/// In tests the process may end here.
pub(crate) fn reach(place: Place) {
    comes("place", place.name());
}

/// The same, around a fact.
pub(crate) fn comes(point: &str, what: &str) {
    static AT: OnceLock<Option<(String, AtomicU64)>> = OnceLock::new();
    if !cfg!(debug_assertions) {
        return;
    }
    let Some((at, left)) = AT.get_or_init(|| std::env::var(DIE_AT).ok().map(|it| parse(&it)))
    else {
        return;
    };
    let here = at.strip_prefix(point).and_then(|at| at.strip_prefix(':')) == Some(what);
    if here
        && left.fetch_sub(1, Ordering::Relaxed) == 1
        && let Err(error) = kill_process(getpid(), Signal::KILL)
    {
        tracing::error!(target: "delegate::run", %error, "a process cannot end itself");
    }
}

fn parse(text: &str) -> (String, AtomicU64) {
    match text.rsplit_once(':').map(|(at, turn)| (at, turn.parse())) {
        Some((at, Ok(turn))) => (at.to_owned(), AtomicU64::new(turn)),
        _ => (text.to_owned(), AtomicU64::new(1)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_turn_is_read_where_there_is_one() {
        let read = |text| {
            let (at, left) = parse(text);
            (at, left.into_inner())
        };
        assert_eq!(read("before-fact:hello:3"), ("before-fact:hello".to_owned(), 3));
        assert_eq!(read("place:end"), ("place:end".to_owned(), 1));
        assert_eq!(read("x"), ("x".to_owned(), 1));
    }
}

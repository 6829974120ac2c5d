//! Why a child is being stopped: an ordered enum, so that a weaker, later reason never replaces a
//! stronger one.

/// Reasons to stop a child, weakest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum CancelReason {
    /// Somebody asked it to unwind.
    Interrupt,
    /// It made no progress for longer than its agent may.
    Stale,
    /// Its wall clock, or its window without progress, ran out.
    Timeout,
    /// Somebody wants it dead now.
    Kill,
}

impl CancelReason {
    /// The stronger of what holds and what comes; among equals the first.
    #[must_use]
    pub fn strongest(held: Option<Self>, coming: Self) -> Self {
        held.map_or(coming, |held| held.max(coming))
    }
}

#[cfg(test)]
mod tests {
    use super::CancelReason::{Interrupt, Kill, Stale, Timeout};
    use super::*;

    #[test]
    fn a_weaker_reason_never_replaces_a_stronger_one() {
        let all = [Interrupt, Stale, Timeout, Kill];
        for (rank, held) in all.into_iter().enumerate() {
            for (other, coming) in all.into_iter().enumerate() {
                let kept = CancelReason::strongest(Some(held), coming);
                assert_eq!(kept, all[rank.max(other)], "{held:?} then {coming:?}");
            }
            assert_eq!(CancelReason::strongest(None, held), held);
        }
    }
}

//! [`Positions`]: what a batch tells of its tasks that wait at a cap: where each stands in line, and again when
//! that has changed. A long line moves with every launch, so only its front is told, and what changes within
//! a moment is told once. Pure; the loop asks and sends.

use std::collections::BTreeMap;
use std::time::Duration;

/// Tasks of a batch whose positions are told: the next ones. A task further back is told when it is among them.
pub(super) const FRONT: usize = 64;

/// Between two tellings.
const MOMENT: Duration = Duration::from_millis(250);

/// What other parts of the tree do to the line nobody tells this loop: it looks so often.
const LOOK: Duration = Duration::from_secs(1);

/// Positions that were told.
#[derive(Debug, Default)]
pub(super) struct Positions {
    told: BTreeMap<u32, u32>,
    looked: Option<Duration>,
    /// Something has happened since.
    pending: bool,
}

impl Positions {
    /// Something may have changed. Whether to look now, while `waits` says whether anybody waits.
    pub(super) fn is_due(&mut self, waits: bool, now: Duration) -> bool {
        if !waits {
            *self = Self { looked: self.looked, ..Self::default() };
            return false;
        }
        self.pending = self.looked.is_some_and(|at| now < at + MOMENT);
        !self.pending
    }

    /// The front of the line as it is now (task and position). Gives back what is to be told.
    pub(super) fn look(
        &mut self,
        line: impl IntoIterator<Item = (u32, u32)>,
        now: Duration,
    ) -> Vec<(u32, u32)> {
        let line: BTreeMap<u32, u32> = line.into_iter().collect();
        let is_new = |(task, position): &(u32, u32)| self.told.get(task) != Some(position);
        let mut changed: Vec<_> =
            line.iter().map(|(task, position)| (*task, *position)).filter(is_new).collect();
        changed.sort_unstable_by_key(|(_, position)| *position);
        self.told = line;
        self.looked = Some(now);
        changed
    }

    /// When to look, if nothing happens before.
    pub(super) fn next_look(&self) -> Option<Duration> {
        let looked = self.looked?;
        if self.pending {
            return Some(looked + MOMENT);
        }
        (!self.told.is_empty()).then_some(looked + LOOK)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn at(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn a_position_is_told_once_and_again_when_it_has_changed() {
        let mut all = Positions::default();
        assert!(all.is_due(true, at(0)));
        assert_eq!(all.look([(7, 1), (8, 2), (9, 3)], at(0)), [(7, 1), (8, 2), (9, 3)]);
        assert!(all.is_due(true, at(300)));
        assert_eq!(all.look([(7, 1), (8, 2), (9, 3)], at(300)), []);
        // One was launched, one stopped, and one of another part of the tree came between.
        assert!(all.is_due(true, at(600)));
        assert_eq!(all.look([(8, 1), (10, 4)], at(600)), [(8, 1), (10, 4)]);
    }

    #[test]
    fn what_changes_within_a_moment_is_told_once_and_not_forgotten() {
        let mut all = Positions::default();
        assert_eq!((all.is_due(true, at(0)), all.next_look()), (true, None));
        all.look([(1, 1), (2, 2), (3, 3)], at(0));
        assert_eq!(all.next_look(), Some(at(1000)));
        assert!(!all.is_due(true, at(10)) && !all.is_due(true, at(249)));
        assert_eq!(all.next_look(), Some(at(250)));
        assert!(all.is_due(true, at(250)));
        assert_eq!(all.look([(3, 1)], at(250)), [(3, 1)]);
    }

    #[test]
    fn when_nobody_waits_there_is_nothing_to_look_at() {
        let mut all = Positions::default();
        all.look([(1, 1)], at(0));
        assert!(!all.is_due(false, at(1)));
        assert_eq!(all.next_look(), None);
        // A new line is told anew.
        assert!(all.is_due(true, at(400)));
        assert_eq!(all.look([(1, 1)], at(400)), [(1, 1)]);
    }
}

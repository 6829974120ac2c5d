//! The line of a tree: who gets the next free slot. Subtrees take turns, and in a subtree its batches do, so
//! that a large one never keeps a small one waiting for more than its turn. Pure; [`super::accounts`] holds
//! the only one.

use std::collections::{BTreeMap, VecDeque};

use delegate_protocol::SubagentId;

/// A batch of the tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BatchId(pub(super) u64);

/// What takes turns: everything below one child of the root, or a batch of the root itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Subtree {
    /// A batch that the root has started.
    Root(BatchId),
    /// All that hangs below this child of the root.
    Below(SubagentId),
}

/// Launches that are waited for, of one batch.
#[derive(Debug, Clone)]
struct Waiting {
    subtree: Subtree,
    launches: u32,
}

/// The line. A batch in it waits for at least one launch.
#[derive(Debug, Clone, Default)]
pub struct Line {
    /// Subtrees that wait, the next one first, each with its batches in the order of their turns.
    turns: VecDeque<(Subtree, VecDeque<BatchId>)>,
    waiting: BTreeMap<BatchId, Waiting>,
}

impl Line {
    /// A batch waits for so many launches, instead of what it waited for before; 0 leaves the line. Its
    /// turn stays where it is.
    pub fn set(&mut self, batch: BatchId, subtree: Subtree, launches: u32) {
        if launches == 0 {
            return self.leave(batch);
        }
        if let Some(waiting) = self.waiting.get_mut(&batch) {
            waiting.launches = launches;
            return;
        }
        self.waiting.insert(batch, Waiting { subtree, launches });
        match self.turns.iter_mut().find(|(known, _)| *known == subtree) {
            Some((_, batches)) => batches.push_back(batch),
            None => self.turns.push_back((subtree, VecDeque::from([batch]))),
        }
    }

    fn leave(&mut self, batch: BatchId) {
        let Some(Waiting { subtree, .. }) = self.waiting.remove(&batch) else { return };
        if let Some(at) = self.turns.iter().position(|(known, _)| *known == subtree) {
            self.turns[at].1.retain(|known| *known != batch);
            if self.turns[at].1.is_empty() {
                self.turns.remove(at);
            }
        }
    }

    /// Whether anybody waits.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Those that wait.
    pub fn batches(&self) -> impl Iterator<Item = BatchId> + '_ {
        self.waiting.keys().copied()
    }

    /// Whose turn it is; takes it. The subtree, and in it the batch, goes to the end.
    pub fn take_turn(&mut self) -> Option<BatchId> {
        let (subtree, mut batches) = self.turns.pop_front()?;
        let batch = batches.pop_front()?;
        let waiting = self.waiting.get_mut(&batch)?;
        waiting.launches -= 1;
        if waiting.launches == 0 {
            self.waiting.remove(&batch);
        } else {
            batches.push_back(batch);
        }
        if !batches.is_empty() {
            self.turns.push_back((subtree, batches));
        }
        Some(batch)
    }

    /// Launches that come before the next one of this batch, and itself: 1 is the next of all. `None` when
    /// it does not wait.
    #[must_use]
    pub fn position(&self, batch: BatchId) -> Option<u32> {
        if !self.waiting.contains_key(&batch) {
            return None;
        }
        let mut played = self.clone();
        let mut position = 1;
        while played.take_turn()? != batch {
            position += 1;
        }
        Some(position)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const fn below(child: u32) -> Subtree {
        Subtree::Below(SubagentId::new(child, 0))
    }

    fn order(line: &mut Line) -> Vec<u64> {
        std::iter::from_fn(|| line.take_turn()).map(|batch| batch.0).collect()
    }

    #[test]
    fn subtrees_take_turns_and_in_each_its_batches_do() {
        let mut line = Line::default();
        line.set(BatchId(1), Subtree::Root(BatchId(1)), 3);
        line.set(BatchId(2), below(0), 3);
        line.set(BatchId(3), below(0), 1);
        line.set(BatchId(4), below(1), 1);
        let places = [1, 2, 3, 4].map(|batch| line.position(BatchId(batch)));
        assert_eq!(places, [Some(1), Some(2), Some(5), Some(3)]);
        assert_eq!(order(&mut line), [1, 2, 4, 1, 3, 1, 2, 2]);
        assert_eq!((line.position(BatchId(1)), line.is_empty()), (None, true));
    }

    #[test]
    fn a_turn_is_kept_while_more_or_less_is_waited_for_and_lost_with_the_last() {
        let mut line = Line::default();
        line.set(BatchId(1), below(1), 1);
        line.set(BatchId(2), below(2), 1);
        line.set(BatchId(1), below(1), 9);
        assert_eq!(line.position(BatchId(1)), Some(1));
        line.set(BatchId(1), below(1), 0);
        line.set(BatchId(1), below(1), 2);
        assert_eq!(order(&mut line), [2, 1, 1]);
    }

    proptest! {
        /// Between two launches of a batch that goes on waiting, no other subtree that waits too is left
        /// out, and none gets two.
        #[test]
        fn of_subtrees_that_wait_none_is_two_launches_ahead(
            wants in proptest::collection::vec((0_u32..6, 1_u32..20), 1..12),
        ) {
            let mut line = Line::default();
            for (batch, (child, launches)) in wants.iter().enumerate() {
                line.set(BatchId(batch as u64), below(*child), *launches);
            }
            let total: u32 = wants.iter().map(|(_, launches)| launches).sum();
            let mut given: BTreeMap<u32, i64> =
                wants.iter().map(|(child, _)| (*child, 0)).collect();
            let mut count = 0;
            while let Some(batch) = line.take_turn() {
                count += 1;
                *given.get_mut(&wants[usize::try_from(batch.0).unwrap()].0).unwrap() += 1;
                let still = |child: &u32| {
                    line.turns.iter().any(|(known, _)| *known == below(*child))
                };
                let waiting: Vec<i64> =
                    given.iter().filter(|(child, _)| still(child)).map(|(_, n)| *n).collect();
                let ahead = waiting.iter().max().zip(waiting.iter().min());
                prop_assert!(ahead.is_none_or(|(most, least)| most - least <= 1), "{given:?}");
            }
            prop_assert_eq!(count, total);
        }
    }
}

//! [`Line`]: who waits, and whose turn it is. Fair by subtree: a branch of the tree with a hundred children
//! does not push back one with two. Pure. Used by `authority` for keys and for calls.

use std::collections::BTreeMap;

/// Those who wait, first come first served within a branch, branches in turn.
#[derive(Debug)]
pub struct Line<B, T> {
    waiting: Vec<(B, T)>,
    /// When a branch had its last turn.
    served: BTreeMap<B, u64>,
    turn: u64,
}

impl<B, T> Default for Line<B, T> {
    fn default() -> Self {
        Self { waiting: Vec::new(), served: BTreeMap::new(), turn: 0 }
    }
}

impl<B: Ord + Copy, T> Line<B, T> {
    /// Takes somebody in.
    pub fn push(&mut self, branch: B, item: T) {
        self.waiting.push((branch, item));
    }

    /// Whose turn it is, among those that `can` be served: of the branch that was served longest ago the
    /// one that has waited longest.
    pub fn next(&mut self, mut can: impl FnMut(&T) -> bool) -> Option<T> {
        let able = self.waiting.iter().enumerate().filter(|(_, (_, item))| can(item));
        let turn_of = |branch: &B| self.served.get(branch).copied().unwrap_or(0);
        let (at, _) = able.min_by_key(|(at, (branch, _))| (turn_of(branch), *at))?;
        let (branch, item) = self.waiting.remove(at);
        if self.waiting.is_empty() {
            // Nobody is kept waiting any more, so nobody is owed a turn.
            self.served.clear();
        } else {
            self.turn += 1;
            self.served.insert(branch, self.turn);
        }
        Some(item)
    }

    /// Takes out those for whom `stays` is false.
    pub fn retain(&mut self, mut stays: impl FnMut(&T) -> bool) {
        self.waiting.retain(|(_, item)| stays(item));
    }

    /// How many of them are like this.
    pub fn count(&self, mut like: impl FnMut(&T) -> bool) -> usize {
        self.waiting.iter().filter(|(_, item)| like(item)).count()
    }

    /// Those that wait.
    pub fn iter(&self) -> impl Iterator<Item = &T> {
        self.waiting.iter().map(|(_, item)| item)
    }

    /// Whether nobody waits.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn drained(line: &mut Line<char, u32>) -> Vec<u32> {
        std::iter::from_fn(|| line.next(|_| true)).collect()
    }

    #[test]
    fn branches_take_turns_and_within_one_the_first_is_first() {
        let mut line = Line::default();
        for item in 0..4 {
            line.push('a', item);
        }
        line.push('b', 10);
        line.push('b', 11);
        line.push('c', 20);
        assert_eq!(drained(&mut line), [0, 10, 20, 1, 11, 2, 3]);
    }

    #[test]
    fn one_who_cannot_be_served_holds_up_nobody_and_keeps_the_place() {
        let mut line = Line::default();
        (0..3).for_each(|item| line.push('a', item));
        assert_eq!(line.next(|item| *item > 0), Some(1));
        assert_eq!(line.next(|_| false), None);
        line.retain(|item| *item != 2);
        assert_eq!((line.count(|_| true), drained(&mut line)), (1, vec![0]));
        assert!(line.is_empty());
    }

    proptest! {
        /// However large the others are: between two turns of a branch that waits, no other has two.
        #[test]
        fn nobody_waits_longer_than_one_round(branches in proptest::collection::vec(0_u8..5, 1..60)) {
            let mut line = Line::default();
            for (at, branch) in branches.iter().enumerate() {
                line.push(*branch, (*branch, at));
            }
            let order: Vec<_> = std::iter::from_fn(|| line.next(|_| true)).collect();
            prop_assert_eq!(order.len(), branches.len());
            for (at, (branch, _)) in order.iter().enumerate() {
                let until_again = order[at + 1..].iter().take_while(|(other, _)| other != branch);
                let mut between = [0; 5];
                until_again.for_each(|(other, _)| between[usize::from(*other)] += 1);
                let again = order[at + 1..].iter().any(|(other, _)| other == branch);
                prop_assert!(!again || between.iter().all(|turns| *turns <= 1), "{order:?}");
            }
        }
    }
}

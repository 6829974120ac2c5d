//! One budget of a tree, in whole units (tokens, or billionths of a dollar): what is spent, what is reserved
//! for children that run, and whether another one may start. Pure; [`super::accounts`] holds two of them.

/// What one child holds of a budget.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Holding {
    /// Reserved for it, with what it has spent of that.
    reserved: u64,
    /// Spent by it.
    pub spent: u64,
}

impl Holding {
    /// What is still reserved.
    const fn open(self) -> u64 {
        self.reserved.saturating_sub(self.spent)
    }
}

/// Whether a child may start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Admission {
    /// Yes, with so much reserved for it.
    Now(u64),
    /// Not now: what others hold may come back.
    Later,
    /// Never again: nothing is left, and nobody holds anything.
    Never,
}

/// A budget.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Budget {
    limit: Option<u64>,
    /// What one child may spend.
    each: Option<u64>,
    spent: u64,
    /// Reserved and not spent yet, over all children.
    open: u64,
}

impl Budget {
    /// A budget of the tree and of one child in it; `None` is no limit.
    #[must_use]
    pub const fn new(limit: Option<u64>, each: Option<u64>) -> Self {
        Self { limit, each, spent: 0, open: 0 }
    }

    /// Spent by the whole tree.
    #[must_use]
    pub const fn spent(&self) -> u64 {
        self.spent
    }

    /// Reserved by those that run and not spent.
    #[must_use]
    pub const fn reserved(&self) -> u64 {
        self.open
    }

    fn left(&self) -> u64 {
        let taken = self.spent.saturating_add(self.open);
        self.limit.map_or(u64::MAX, |limit| limit.saturating_sub(taken))
    }

    /// What the next child would get: what one may spend, else an equal share of what is left for the
    /// places that are free.
    fn share(&self, free: u32) -> u64 {
        if self.limit.is_none() {
            return 0;
        }
        self.each.unwrap_or_else(|| (self.left() / u64::from(free.max(1))).max(1))
    }

    /// Whether a child may start while so many places are free.
    #[must_use]
    pub fn admission(&self, free: u32) -> Admission {
        let (share, left) = (self.share(free), self.left());
        if left >= share {
            Admission::Now(share)
        } else if self.open > 0 {
            Admission::Later
        } else if left > 0 {
            // Less than a whole share, and no more will come back: better used than lost.
            Admission::Now(left)
        } else {
            Admission::Never
        }
    }

    /// Reserves for a child.
    pub const fn reserve(&mut self, amount: u64) -> Holding {
        self.open = self.open.saturating_add(amount);
        Holding { reserved: amount, spent: 0 }
    }

    /// A child has spent; what exceeds its reservation is taken from the rest.
    pub fn spend(&mut self, holding: &mut Holding, amount: u64) {
        let before = holding.open();
        holding.spent = holding.spent.saturating_add(amount);
        self.open = self.open.saturating_sub(before - holding.open());
        self.spent = self.spent.saturating_add(amount);
    }

    /// Gives back what is reserved for a child and not spent.
    pub const fn release(&mut self, holding: &mut Holding) {
        self.open = self.open.saturating_sub(holding.open());
        holding.reserved = holding.spent;
    }

    /// Reserves again for a child that had given back: as much as there is, and perhaps nothing.
    pub fn renew(&mut self, holding: &mut Holding, free: u32) {
        self.release(holding);
        let amount = self.share(free).min(self.left());
        holding.reserved = holding.spent.saturating_add(amount);
        self.open = self.open.saturating_add(amount);
    }

    /// The limit of the tree, where it is reached.
    #[must_use]
    pub fn reached(&self) -> Option<u64> {
        self.limit.filter(|limit| self.spent >= *limit)
    }

    /// The limit of one child, where this one has reached it.
    #[must_use]
    pub fn reached_by(&self, holding: &Holding) -> Option<u64> {
        self.each.filter(|each| holding.spent >= *each)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn without_a_limit_everybody_may_start_and_nothing_is_reserved() {
        let mut budget = Budget::new(None, None);
        let mut held = budget.reserve(0);
        budget.spend(&mut held, u64::MAX);
        budget.spend(&mut held, 1);
        assert_eq!(budget.admission(1), Admission::Now(0));
        assert_eq!((budget.reached(), budget.reached_by(&held)), (None, None));
    }

    #[test]
    fn what_one_child_may_spend_is_reserved_and_the_unspent_rest_comes_back() {
        let mut budget = Budget::new(Some(100), Some(40));
        let mut held: Vec<_> = (0..2).map(|_| budget.reserve(40)).collect();
        assert_eq!(budget.admission(8), Admission::Later, "20 are left, 40 are needed");
        budget.spend(&mut held[0], 10);
        budget.release(&mut held[0]);
        assert_eq!((budget.spent(), budget.reserved()), (10, 40));
        assert_eq!(budget.admission(8), Admission::Now(40));
        budget.spend(&mut held[1], 55);
        assert_eq!((budget.reached_by(&held[1]), budget.reached()), (Some(40), None));
        budget.release(&mut held[1]);
        assert_eq!((budget.spent(), budget.reserved()), (65, 0));
        assert_eq!(budget.admission(8), Admission::Now(35), "nobody else will give anything back");
        let mut last = budget.reserve(35);
        budget.spend(&mut last, 35);
        budget.release(&mut last);
        assert_eq!((budget.admission(8), budget.reached()), (Admission::Never, Some(100)));
    }

    #[test]
    fn without_a_limit_per_child_the_rest_is_shared_by_the_free_places() {
        let mut budget = Budget::new(Some(90), None);
        let shares: Vec<u64> = (1..=3)
            .rev()
            .map(|free| match budget.admission(free) {
                Admission::Now(share) => {
                    budget.reserve(share);
                    share
                }
                Admission::Later | Admission::Never => panic!("there is enough"),
            })
            .collect();
        assert_eq!((shares, budget.admission(1)), (vec![30, 30, 30], Admission::Later));
    }

    #[test]
    fn who_comes_back_gets_what_there_is_and_is_never_refused() {
        let mut budget = Budget::new(Some(50), Some(40));
        let mut parent = budget.reserve(40);
        budget.spend(&mut parent, 5);
        budget.release(&mut parent);
        let mut child = budget.reserve(40);
        budget.spend(&mut child, 40);
        budget.renew(&mut parent, 1);
        assert_eq!((parent.open(), budget.reserved()), (5, 5));
    }

    proptest! {
        /// Whatever children do, what is reserved is the sum of what each holds, and nothing is left
        /// reserved when all are gone.
        #[test]
        fn what_is_reserved_is_what_they_hold(
            limit in proptest::option::of(0_u64..500),
            each in proptest::option::of(1_u64..100),
            steps in proptest::collection::vec((0_usize..5, 0_usize..4, 0_u64..80), 0..200),
        ) {
            let mut budget = Budget::new(limit, each);
            let mut held = [Holding::default(); 4];
            let mut spent = 0;
            for (what, who, amount) in steps {
                match what {
                    0 => if let Admission::Now(share) = budget.admission(3) {
                        budget.release(&mut held[who]);
                        held[who] = budget.reserve(share);
                    },
                    1 | 2 => {
                        budget.spend(&mut held[who], amount);
                        spent += amount;
                    }
                    3 => budget.release(&mut held[who]),
                    _ => budget.renew(&mut held[who], 2),
                }
                prop_assert_eq!(budget.open, held.iter().map(|held| held.open()).sum::<u64>());
                prop_assert_eq!(budget.spent, spent);
                if let Some(limit) = limit {
                    prop_assert!(budget.open <= limit, "more is reserved than there is");
                }
            }
            for held in &mut held {
                budget.release(held);
            }
            prop_assert_eq!(budget.open, 0);
        }
    }
}

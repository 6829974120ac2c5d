//! [`Accounts`] behind a lock, for the batches of a tree: guards that give back when they are dropped, and
//! wakers for those who wait. Nothing here waits itself.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::accounts::{Accounts, Caps, PlaceId, Refusal, Standing, Woken, nanos};
use super::line::{BatchId, Subtree};
use delegate_protocol::Tokens;

/// Wakes the loop of a batch; must neither block nor use the tree.
pub type Waker = Arc<dyn Fn() + Send + Sync>;

/// The accounts of one tree; clones are the same.
#[derive(Debug, Clone)]
pub struct Tree {
    inner: Arc<Mutex<Inner>>,
}

struct Inner {
    accounts: Accounts,
    wakers: BTreeMap<BatchId, Waker>,
}

impl fmt::Debug for Inner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.accounts, f)
    }
}

impl Tree {
    /// A tree that begins.
    #[must_use]
    pub fn new(caps: Caps) -> Self {
        let inner = Inner { accounts: Accounts::new(caps), wakers: BTreeMap::new() };
        Self { inner: Arc::new(Mutex::new(inner)) }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Does something, and wakes whom it concerns, without the lock.
    fn wake(&self, act: impl FnOnce(&mut Accounts) -> Woken) {
        let mut inner = self.lock();
        let woken = act(&mut inner.accounts);
        let wakers: Vec<Waker> =
            woken.iter().filter_map(|batch| inner.wakers.get(batch)).map(Arc::clone).collect();
        drop(inner);
        wakers.iter().for_each(|wake| wake());
    }

    /// A batch takes its seat; without a subtree it is one of the root.
    #[must_use]
    pub fn join(&self, subtree: Option<Subtree>, waker: Waker) -> Seat {
        let mut inner = self.lock();
        let id = inner.accounts.join(subtree);
        inner.wakers.insert(id, waker);
        Seat { tree: self.clone(), id }
    }

    /// What is held and spent.
    #[must_use]
    pub fn standing(&self) -> Standing {
        self.lock().accounts.standing()
    }
}

/// The seat of a batch. Dropping it leaves the line.
#[derive(Debug)]
pub struct Seat {
    tree: Tree,
    id: BatchId,
}

impl Seat {
    /// The tree.
    #[must_use]
    pub const fn tree(&self) -> &Tree {
        &self.tree
    }

    /// Says how many launches could be made now, and takes those that are granted.
    #[must_use]
    pub fn take(&self, launches: u32) -> Vec<Place> {
        self.tree.wake(|accounts| accounts.ask(self.id, launches));
        let places = self.tree.lock().accounts.collect(self.id);
        let place = |id| Place { account: Account { tree: self.tree.clone(), id, quiet: false } };
        places.into_iter().map(place).collect()
    }

    /// Why nobody will be let start any more, if so.
    #[must_use]
    pub fn refusal(&self) -> Option<Refusal> {
        self.tree.lock().accounts.refusal()
    }

    /// Where its next launch stands in the line of the tree, from 1; `None` when it waits for no slot.
    #[must_use]
    pub fn position(&self) -> Option<u32> {
        self.tree.lock().accounts.position(self.id)
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.tree.wake(|accounts| accounts.leave(self.id));
        self.tree.lock().wakers.remove(&self.id);
    }
}

/// The place of one child: a slot, and what is reserved for it. Dropping it gives both back.
#[derive(Debug)]
pub struct Place {
    account: Account,
}

impl Place {
    /// For whoever sees what the child spends. Does nothing once the place was given back.
    #[must_use]
    pub fn account(&self) -> Account {
        self.account.clone()
    }

    /// The child waits for its own children.
    pub fn lend(&self) {
        let Account { tree, id, .. } = &self.account;
        tree.wake(|accounts| accounts.lend(*id));
    }

    /// It goes on.
    pub fn back(&self) {
        let Account { tree, id, .. } = &self.account;
        tree.lock().accounts.back(*id);
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let Account { tree, id, .. } = &self.account;
        tree.wake(|accounts| accounts.end(*id));
    }
}

/// Where a child's spending is written down.
#[derive(Debug, Clone)]
pub struct Account {
    tree: Tree,
    id: PlaceId,
    quiet: bool,
}

impl Account {
    /// It has spent so much more. Says which limit that has reached.
    #[must_use]
    pub fn spend(&self, tokens: Tokens, cost_usd: Option<f64>) -> Option<Refusal> {
        let tokens = tokens.input.saturating_add(tokens.output);
        let money = cost_usd.map_or(0, nanos);
        self.tree.lock().accounts.spend(self.id, tokens, money).filter(|_| !self.quiet)
    }

    /// The same, and it says of no limit any more.
    #[must_use]
    pub fn quiet(self) -> Self {
        Self { quiet: true, ..self }
    }

    /// It has spent so much in all, by its last word. Counts where that is more than was told.
    pub fn settle(&self, tokens: Tokens, cost_usd: Option<f64>) {
        let tokens = tokens.input.saturating_add(tokens.output);
        let money = cost_usd.map_or(0, nanos);
        self.tree.lock().accounts.settle(self.id, tokens, money);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU32, Ordering};

    fn caps(children: u32) -> Caps {
        Caps { children, tokens: Some(1 << 40), money: None, child_tokens: None, child_money: None }
    }

    fn seat(tree: &Tree, subtree: Option<Subtree>) -> (Seat, Arc<AtomicU32>) {
        let woken = Arc::new(AtomicU32::new(0));
        let count = Arc::clone(&woken);
        let waker = move || {
            count.fetch_add(1, Ordering::Relaxed);
        };
        (tree.join(subtree, Arc::new(waker)), woken)
    }

    #[test]
    fn who_waits_is_woken_when_a_place_is_given_back_in_any_way() {
        let tree = Tree::new(caps(2));
        let (one, _) = seat(&tree, None);
        let (two, woken) = seat(&tree, None);
        let mut places = one.take(2);
        assert_eq!((places.len(), two.take(2).len(), two.position()), (2, 0, Some(1)));
        let before = woken.load(Ordering::Relaxed);
        places.pop();
        assert!(woken.load(Ordering::Relaxed) > before);
        assert_eq!(two.take(2).len(), 1, "and it goes back at once: nobody kept it");
        places[0].lend();
        let mut more = two.take(2);
        assert_eq!(more.len(), 2, "what was lent, and what was just given back");
        places[0].back();
        assert_eq!(tree.standing().working, 3, "over the cap, until one is given back");
        more.pop();
        assert_eq!((two.take(1).len(), tree.standing().working), (0, 2));
        drop((one, two, places, more));
        assert_eq!((tree.standing().working, tree.standing().lending), (0, 0));
    }

    /// RB-30: whatever fails, and wherever, every slot comes back. Every tenth panics with its place in hand.
    #[test]
    fn rb_30_after_100_000_launches_that_fail_anywhere_the_free_slots_are_the_cap() {
        const LAUNCHES: u32 = 100_000;
        let tree = Tree::new(caps(7));
        let (seat, _) = seat(&tree, None);
        let mut held = Vec::new();
        let mut random = 1_u64;
        for _ in 0..LAUNCHES {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let phase = random >> 60;
            let mut places = seat.take(1);
            if places.is_empty() {
                held.swap_remove((random >> 33) as usize % held.len());
                places = seat.take(1);
            }
            let place = places.pop().expect("one was given back");
            assert!(tree.standing().working <= 7);
            match phase {
                0..4 => drop(place),
                4..7 => held.push(place),
                7..10 => {
                    assert!(place.account().spend(Tokens { input: 1, output: 0 }, None).is_none());
                    place.lend();
                    place.back();
                }
                10..12 => {
                    place.lend();
                    drop(place);
                }
                12..14 => drop(std::thread::scope(|scope| {
                    scope
                        .spawn(move || {
                            let _place = place;
                            std::panic::resume_unwind(Box::new("a launch"));
                        })
                        .join()
                })),
                _ => drop((place, seat.take(9))),
            }
        }
        held.clear();
        assert_eq!(tree.standing().working, 0);
        assert_eq!(seat.take(99).len(), 7, "as many as the cap, and all of them free");
    }
}

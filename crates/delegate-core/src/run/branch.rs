//! [`Branch`]: a stop as a state of the tree of who delegates to whom. What hangs below a branch when it
//! is stopped is stopped; what is hung there later finds it stopped. So it does not matter whether a
//! stop comes before, while or after something is being built.

use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};

use super::control::ControlState;
use crate::monitor::CancelReason;
use crate::tree::{Caps, Tree};

/// A place in the tree: an agent that may delegate. Its batches hang below it
/// ([`crate::delegator::Batch::branch`]), as do the branches of agents that it started.
#[derive(Debug, Clone, Default)]
pub struct Branch {
    node: Arc<Node>,
}

/// Held by who hangs below it: a branch that its maker has let go still carries a stop down.
#[derive(Debug, Default)]
struct Node {
    state: Mutex<State>,
    above: Option<Arc<Node>>,
    /// Accounts of the tree; at the root.
    tree: OnceLock<Tree>,
}

#[derive(Debug, Default)]
struct State {
    stop: Option<CancelReason>,
    runs: Vec<Weak<ControlState>>,
    below: Vec<Weak<Node>>,
}

impl Branch {
    /// A root.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// A branch below this one: stopped with it, or from its beginning where this one is stopped.
    #[must_use]
    pub fn branch(&self) -> Self {
        let mut state = self.node.state();
        let node = Node { above: Some(Arc::clone(&self.node)), ..Node::default() };
        let below = Self { node: Arc::new(node) };
        below.node.state().stop = state.stop;
        state.below.retain(|node| node.strong_count() > 0);
        state.below.push(Arc::downgrade(&below.node));
        below
    }

    /// Asks everything below to unwind, now and whatever comes later.
    pub fn interrupt(&self) {
        self.node.stop(CancelReason::Interrupt);
    }

    /// Ends everything below at once, now and whatever comes later.
    pub fn kill(&self) {
        self.node.stop(CancelReason::Kill);
    }

    /// Whether it was stopped, itself or with what it hangs below.
    #[must_use]
    pub fn is_stopped(&self) -> bool {
        self.node.state().stop.is_some()
    }

    /// For the next turn of this agent: what comes from now on is not stopped. What was stopped stays so.
    pub fn clear(&self) {
        self.node.state().stop = None;
    }

    /// The accounts of its tree: one for all that hangs below the same root, with the limits of whoever asked
    /// first.
    pub(crate) fn tree(&self, caps: Caps) -> Tree {
        let mut root = &self.node;
        while let Some(above) = &root.above {
            root = above;
        }
        root.tree.get_or_init(|| Tree::new(caps)).clone()
    }

    /// Hangs a run here. Under the lock: a stop either finds it, or it finds the stop.
    pub(crate) fn attach(&self, run: &Arc<ControlState>) {
        let mut state = self.node.state();
        state.runs.retain(|run| run.strong_count() > 0);
        state.runs.push(Arc::downgrade(run));
        // A run hangs in one place.
        run.branch.get_or_init(|| self.clone());
        if let Some(reason) = state.stop {
            run.cancel_all(reason);
        }
    }
}

impl Node {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Locks from the top down, as [`Branch::branch`] does; a tree has no circle.
    fn stop(&self, reason: CancelReason) {
        let mut state = self.state();
        state.stop = Some(CancelReason::strongest(state.stop, reason));
        for run in state.runs.iter().filter_map(Weak::upgrade) {
            run.cancel_all(reason);
        }
        for node in state.below.iter().filter_map(Weak::upgrade) {
            node.stop(reason);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wanted(run: &ControlState) -> Option<CancelReason> {
        run.take().all
    }

    #[test]
    fn c05_a_stop_reaches_what_hangs_below_now_and_later_and_nothing_beside() {
        for reason in [CancelReason::Interrupt, CancelReason::Kill] {
            let root = Branch::new();
            let (one, two) = (root.branch(), root.branch());
            let grandchild = one.branch().branch();
            let [early, late, beside, deep] = [(); 4].map(|()| Arc::<ControlState>::default());
            grandchild.attach(&early);
            two.attach(&beside);
            one.node.stop(reason);
            one.attach(&late);
            one.branch().attach(&deep);
            let all = [&early, &late, &deep, &beside].map(|run| wanted(run));
            assert_eq!(all, [Some(reason), Some(reason), Some(reason), None]);
            assert!(one.is_stopped() && grandchild.is_stopped());
            assert!(!two.is_stopped() && !root.is_stopped());
        }
    }

    #[test]
    fn a_cleared_branch_takes_new_runs_and_gives_no_old_one_back() {
        let branch = Branch::new();
        let (old, new) = (Arc::<ControlState>::default(), Arc::<ControlState>::default());
        branch.attach(&old);
        branch.kill();
        branch.interrupt();
        branch.clear();
        branch.attach(&new);
        assert_eq!((wanted(&old), wanted(&new)), (Some(CancelReason::Kill), None));
    }

    /// RB-28, RB-29: a stop that races with what is being hung there is never lost.
    #[test]
    fn rb_29_whichever_comes_first_the_stop_arrives() {
        for _ in 0..500 {
            let root = Branch::new();
            let stopper = root.clone();
            let run = Arc::<ControlState>::default();
            let attached = Arc::clone(&run);
            std::thread::scope(|scope| {
                scope.spawn(move || root.branch().branch().attach(&attached));
                scope.spawn(move || stopper.interrupt());
            });
            assert_eq!(wanted(&run), Some(CancelReason::Interrupt));
        }
    }
}

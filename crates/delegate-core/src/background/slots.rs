//! Places for background runs. One lock over who has a place and who waits for one: a check and the taking of
//! a place are one step. A run takes one place, however many tasks or units it has.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use delegate_protocol::RunId;

use crate::config::Overflow;
use crate::run::control::ControlState;

/// Those of one delegator.
#[derive(Debug, Default)]
pub(crate) struct Slots {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    running: Vec<RunId>,
    line: VecDeque<(RunId, Arc<ControlState>)>,
}

/// Every place is taken, and nobody wants to wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Full {
    pub(crate) running: usize,
}

/// A place, or one in line, until this is dropped.
#[derive(Debug)]
pub(crate) struct Place {
    slots: Arc<Slots>,
    run: RunId,
}

impl Slots {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a place, or one in line (with its position, from 1): there the run launches nothing.
    pub(crate) fn enter(
        self: &Arc<Self>,
        places: usize,
        overflow: Overflow,
        run: RunId,
        control: &Arc<ControlState>,
    ) -> Result<(Place, Option<usize>), Full> {
        let mut state = self.state();
        let position = if state.running.len() < places && state.line.is_empty() {
            state.running.push(run);
            None
        } else if overflow == Overflow::Refuse {
            return Err(Full { running: state.running.len() });
        } else {
            control.want(|wanted| wanted.in_line = true);
            state.line.push_back((run, Arc::clone(control)));
            Some(state.line.len())
        };
        drop(state);
        Ok((Place { slots: Arc::clone(self), run }, position))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut state = self.slots.state();
        let before = state.running.len();
        state.running.retain(|run| *run != self.run);
        state.line.retain(|(run, _)| *run != self.run);
        if state.running.len() < before
            && let Some((run, control)) = state.line.pop_front()
        {
            state.running.push(run);
            control.want(|wanted| wanted.in_line = false);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn enter(
        slots: &Arc<Slots>,
        run: u128,
        overflow: Overflow,
    ) -> Result<(Place, Option<usize>), Full> {
        slots.enter(2, overflow, RunId::from_u128(run), &Arc::default())
    }

    #[test]
    fn c24_concurrent_dispatches_never_exceed_the_cap() {
        let slots = Arc::<Slots>::default();
        let barrier = std::sync::Barrier::new(16);
        let taken: Vec<_> = std::thread::scope(|scope| {
            let one = |run| {
                let (slots, barrier) = (&slots, &barrier);
                scope.spawn(move || {
                    barrier.wait();
                    enter(slots, run, Overflow::Refuse)
                })
            };
            let threads: Vec<_> = (0..16).map(one).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        let places = taken.iter().filter(|taken| taken.is_ok()).count();
        assert_eq!(places, 2);
        assert!(
            taken.iter().all(|taken| taken.is_ok() || taken.as_ref().err().unwrap().running == 2)
        );
        drop(taken);
        assert!(slots.state().running.is_empty(), "all of them are given back");
    }

    #[test]
    fn who_waits_goes_in_order_when_a_place_is_free_and_leaves_the_line_when_it_ends() {
        let slots = Arc::<Slots>::default();
        let mut places: Vec<_> =
            (0..5).map(|run| enter(&slots, run, Overflow::Wait).unwrap()).collect();
        let positions: Vec<_> = places.iter().map(|(_, position)| *position).collect();
        assert_eq!(positions, [None, None, Some(1), Some(2), Some(3)]);
        drop(places.remove(2)); // one in line was stopped
        let running = || slots.state().running.clone();
        assert_eq!(running(), [0, 1].map(RunId::from_u128));
        drop(places.remove(0));
        assert_eq!(running(), [1, 3].map(RunId::from_u128));
        let late = enter(&slots, 9, Overflow::Wait).unwrap();
        assert_eq!(late.1, Some(2), "nobody overtakes the line");
    }
}

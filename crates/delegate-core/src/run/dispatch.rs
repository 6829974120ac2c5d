//! What a background run owes to whoever dispatched it: a completion per unit, each written before anybody
//! is told of it, and a notice at once for a child that failed while its siblings work. The loop tells
//! it every outcome that is stored; consumers wait at the [`Board`].

use std::collections::{BTreeMap, VecDeque};
use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use delegate_protocol::{RunId, Status};
use tokio::sync::Notify;

use super::crash::{self, Place};
use crate::plan::Task;
use crate::store::delivery::Delivery;
use crate::store::{Store, seconds_now};

/// Notices that wait. Nobody may read them, and the completion has it all: the oldest go first.
const NOTICES: usize = 1024;

/// A child failed, and others of its unit still work. Settles nothing: the completion comes all the same.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Notice {
    /// The run.
    pub run_id: RunId,
    /// The unit; 0 is the whole call.
    pub unit: u32,
    /// The conversation that dispatched it.
    pub session: Option<String>,
    /// Which task; its outcome is stored.
    pub task_index: u32,
    /// How it ended.
    pub status: Status,
}

/// Where consumers wait.
#[derive(Debug, Default)]
pub(crate) struct Board {
    notices: Mutex<VecDeque<Notice>>,
    changed: Notify,
}

impl Board {
    fn notices(&self) -> MutexGuard<'_, VecDeque<Notice>> {
        self.notices.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn post(&self, notice: Notice) {
        let mut notices = self.notices();
        if notices.len() >= NOTICES {
            notices.pop_front();
        }
        notices.push_back(notice);
        drop(notices);
        self.wake();
    }

    /// Something may have changed: everybody who waits looks again.
    pub(crate) fn wake(&self) {
        self.changed.notify_waiters();
    }

    /// Ready with the next [`Board::wake`] after this call, not after the first poll.
    pub(crate) fn woken(&self) -> impl Future<Output = ()> + '_ {
        self.changed.notified()
    }

    /// The next notice for a conversation; for every one of this process without.
    pub(crate) fn take_notice(&self, session: Option<&str>) -> Option<Notice> {
        let mut notices = self.notices();
        let fits = |notice: &Notice| session.is_none() || notice.session.as_deref() == session;
        let at = notices.iter().position(fits)?;
        notices.remove(at)
    }
}

/// Which tasks are told together: a group, a task without one, or all. Pure.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Units {
    /// Tasks by unit, and how many of them have no outcome.
    units: Vec<(Vec<u32>, usize)>,
    /// Unit by task.
    of: Vec<usize>,
}

impl Units {
    /// Units in the order of their first task.
    pub(crate) fn of(groups: &[Option<&str>], independent: bool) -> Self {
        let mut units: Vec<(Vec<u32>, usize)> = Vec::new();
        let mut named = BTreeMap::new();
        let mut of = Vec::with_capacity(groups.len());
        for (task, group) in (0..).zip(groups) {
            let fresh = units.len();
            let unit = match group {
                _ if !independent => 0,
                Some(group) => *named.entry(*group).or_insert(fresh),
                None => fresh,
            };
            if unit == fresh {
                units.push((Vec::new(), 0));
            }
            units[unit].0.push(task);
            units[unit].1 += 1;
            of.push(unit);
        }
        Self { units, of }
    }

    /// Tasks by unit.
    pub(crate) fn tasks(&self) -> impl Iterator<Item = &[u32]> {
        self.units.iter().map(|(tasks, _)| tasks.as_slice())
    }

    /// A task has its outcome: its unit, whether that has others, and whether it is done. Each task
    /// is told once.
    pub(crate) fn recorded(&mut self, task: u32) -> Option<(usize, bool, bool)> {
        let unit = *self.of.get(task as usize)?;
        let (tasks, open) = self.units.get_mut(unit)?;
        *open = open.saturating_sub(1);
        Some((unit, tasks.len() > 1, *open == 0))
    }
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Dispatch {
    store: Store,
    board: Arc<Board>,
    units: Units,
    deliveries: Vec<Delivery>,
}

impl Dispatch {
    /// One delivery per unit, in their order.
    pub(crate) fn new(
        store: Store,
        board: Arc<Board>,
        units: Units,
        deliveries: Vec<Delivery>,
    ) -> Self {
        Self { store, board, units, deliveries }
    }

    pub(super) fn deliveries(&self) -> &[Delivery] {
        &self.deliveries
    }

    /// An outcome is stored, or nothing more can be done for it.
    pub(super) fn recorded(&mut self, task_index: u32, status: Status) {
        let Some((unit, has_others, is_done)) = self.units.recorded(task_index) else { return };
        let Some(delivery) = self.deliveries.get(unit) else { return };
        if is_done {
            let board = Arc::clone(&self.board);
            self.store.finish_unit(delivery.clone(), seconds_now(), move |_| {
                crash::reach(Place::Completion);
                board.wake();
            });
        } else if has_others && status != Status::Completed {
            let Delivery { run_id, unit, session, .. } = delivery.clone();
            self.board.post(Notice { run_id, unit, session, task_index, status });
        }
    }
}

/// The units of a batch.
pub(crate) fn units(tasks: &[Task], independent: bool) -> Units {
    let groups: Vec<Option<&str>> = tasks.iter().map(|task| task.group.as_deref()).collect();
    Units::of(&groups, independent)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_unit_is_the_call_or_a_group_or_a_task_without_one() {
        let groups = [Some("a"), None, Some("b"), Some("a"), None];
        let tasks = |independent| {
            let units = Units::of(&groups, independent);
            units.tasks().map(<[u32]>::to_vec).collect::<Vec<_>>()
        };
        assert_eq!(tasks(false), [vec![0, 1, 2, 3, 4]]);
        assert_eq!(tasks(true), [vec![0, 3], vec![1], vec![2], vec![4]]);
    }

    #[test]
    fn a_unit_is_done_with_its_last_task_in_any_order() {
        let mut units = Units::of(&[Some("a"), None, Some("a")], true);
        assert_eq!(units.recorded(2), Some((0, true, false)));
        assert_eq!(units.recorded(1), Some((1, false, true)));
        assert_eq!(units.recorded(0), Some((0, true, true)));
        assert_eq!(units.recorded(3), None);
    }

    #[test]
    fn a_board_that_nobody_reads_does_not_grow() {
        let board = Board::default();
        for task_index in 0..3000 {
            let session = Some("s".to_owned());
            let (run_id, status) = (RunId::from_u128(1), Status::Failed);
            board.post(Notice { run_id, unit: 0, session, task_index, status });
        }
        assert_eq!(board.take_notice(Some("other")), None);
        assert_eq!(board.take_notice(Some("s")).unwrap().task_index, 3000 - 1024);
    }
}

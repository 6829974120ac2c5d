//! What the writer has still to write: one row per child, merged, in order of first change. Pure.
//!
//! Memory is bounded by the children that live, whose rows are kept so that they can be written again into a
//! fresh file, and [`MAX_ENDED`] that have ended but could not be written yet. At that bound the oldest of these is
//! given up and counted; a living child's row never is.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use super::row::Row;
use crate::identity::Identity;

/// Most ended rows that wait for the disk: at 100 ends a second, 80 s of a ledger that takes nothing, and with
/// about half a KiB each 4 MiB (48 MiB if every text has its greatest length).
pub(super) const MAX_ENDED: usize = 8192;

/// A process that was started, until its identity was read.
#[derive(Debug)]
pub(super) struct Seen {
    pub(super) pid: u32,
    pub(super) pidfd: Arc<OwnedFd>,
}

#[derive(Debug)]
struct Entry {
    row: Row,
    /// Place in the order of first unwritten change.
    dirty: Option<u64>,
    /// Place of the last change.
    changed: u64,
}

/// A row to write, as of its change `changed`.
#[derive(Debug, Clone)]
pub(super) struct Due {
    pub(super) row: Row,
    changed: u64,
}

#[derive(Debug)]
pub(super) struct Pending {
    entries: BTreeMap<u64, Entry>,
    dirty: BTreeMap<u64, u64>,
    /// Those whose identity is still to be read.
    seen: Vec<(u64, Seen)>,
    /// Ended rows among the dirty ones, by their place.
    ended: BTreeMap<u64, u64>,
    last: u64,
    given_up: u64,
    max_ended: usize,
}

impl Pending {
    pub(super) fn new(max_ended: usize) -> Self {
        Self {
            entries: BTreeMap::new(),
            dirty: BTreeMap::new(),
            seen: Vec::new(),
            ended: BTreeMap::new(),
            last: 0,
            given_up: 0,
            max_ended,
        }
    }

    /// A new row. Hands back its place, for [`Self::is_written`].
    pub(super) fn insert(&mut self, row: Row) -> u64 {
        let spawn = row.spawn;
        self.forget(spawn);
        self.entries.insert(spawn, Entry { row, dirty: None, changed: 0 });
        self.touch(spawn);
        self.last
    }

    /// Changes a row. Nothing happens to one that has ended and was written.
    pub(super) fn change(&mut self, spawn: u64, change: impl FnOnce(&mut Row)) {
        if let Some(entry) = self.entries.get_mut(&spawn) {
            change(&mut entry.row);
            self.touch(spawn);
        }
    }

    pub(super) fn seen(&mut self, spawn: u64, seen: Seen) {
        if self.entries.contains_key(&spawn) {
            self.seen.push((spawn, seen));
            self.touch(spawn);
        }
    }

    /// Whose identity is to be read now: a moment later it may be gone.
    pub(super) fn take_seen(&mut self) -> Vec<(u64, Seen)> {
        std::mem::take(&mut self.seen)
    }

    /// Who it is was read.
    pub(super) fn identified(&mut self, spawn: u64, identity: Identity) {
        self.change(spawn, |row| row.identity = Some(identity));
    }

    fn touch(&mut self, spawn: u64) {
        self.last += 1;
        let Some(entry) = self.entries.get_mut(&spawn) else { return };
        entry.changed = self.last;
        let place = *entry.dirty.get_or_insert(self.last);
        let has_ended = entry.row.end.is_some();
        self.dirty.insert(place, spawn);
        if has_ended {
            self.ended.insert(place, spawn);
            if self.ended.len() > self.max_ended
                && let Some((_, oldest)) = self.ended.pop_first()
            {
                self.forget(oldest);
                self.given_up += 1;
            }
        }
    }

    fn forget(&mut self, spawn: u64) {
        if let Some(place) = self.entries.remove(&spawn).and_then(|entry| entry.dirty) {
            self.dirty.remove(&place);
            self.ended.remove(&place);
        }
    }

    /// The oldest changes, at most `most`.
    pub(super) fn due(&self, most: usize) -> Vec<Due> {
        let spawns = self.dirty.values().take(most);
        let entries = spawns.filter_map(|spawn| self.entries.get(spawn));
        entries.map(|entry| Due { row: entry.row.clone(), changed: entry.changed }).collect()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.dirty.is_empty()
    }

    /// The place of the last change.
    pub(super) const fn told(&self) -> u64 {
        self.last
    }

    /// Whether all up to `place` is on disk.
    pub(super) fn is_written(&self, place: u64) -> bool {
        self.dirty.first_key_value().is_none_or(|(first, _)| *first > place)
    }

    /// These are on disk. What changed meanwhile stays due.
    pub(super) fn written(&mut self, batch: &[Due]) {
        for due in batch {
            let spawn = due.row.spawn;
            let Some(entry) = self.entries.get_mut(&spawn) else { continue };
            if let Some(place) = entry.dirty.take() {
                self.dirty.remove(&place);
                self.ended.remove(&place);
            }
            if entry.changed != due.changed {
                self.write_again(spawn);
            } else if entry.row.end.is_some() {
                self.entries.remove(&spawn);
            }
        }
    }

    /// The file is another one: what lives is to be written again.
    pub(super) fn all_again(&mut self) {
        let clean = self.entries.iter().filter(|(_, entry)| entry.dirty.is_none());
        for spawn in clean.map(|(spawn, _)| *spawn).collect::<Vec<_>>() {
            self.write_again(spawn);
        }
    }

    /// In the place of its last change: whoever waits for that one still waits.
    fn write_again(&mut self, spawn: u64) {
        let Some(entry) = self.entries.get_mut(&spawn) else { return };
        entry.dirty = Some(entry.changed);
        self.dirty.insert(entry.changed, spawn);
        if entry.row.end.is_some() {
            self.ended.insert(entry.changed, spawn);
        }
    }

    /// How many rows were given up since this was asked last.
    pub(super) fn take_given_up(&mut self) -> u64 {
        std::mem::take(&mut self.given_up)
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::super::row::{End, EndedBy, Intent};
    use super::*;

    fn row(spawn: u64) -> Row {
        Row::of(Intent::new(spawn, Path::new("x"), &[]), &Identity::own(), 0)
    }

    fn end(pending: &mut Pending, spawn: u64) {
        pending.change(spawn, |row| row.finish(Some(End::Lost), EndedBy::Itself, "", 1));
    }

    fn spawns(batch: &[Due]) -> Vec<u64> {
        batch.iter().map(|due| due.row.spawn).collect()
    }

    #[test]
    fn changes_of_one_child_are_one_row() {
        let mut pending = Pending::new(9);
        let place = pending.insert(row(1));
        pending.insert(row(2));
        end(&mut pending, 1);
        let batch = pending.due(9);
        assert_eq!(spawns(&batch), [1, 2]);
        assert!(batch[0].row.end.is_some() && !pending.is_written(place));
        pending.written(&batch);
        assert!(pending.is_empty() && pending.is_written(place));
        assert_eq!(pending.entries.len(), 1, "what ended is forgotten, what lives is not");
    }

    #[test]
    fn what_changes_while_it_is_written_is_written_again() {
        let mut pending = Pending::new(9);
        let place = pending.insert(row(1));
        let batch = pending.due(9);
        end(&mut pending, 1);
        let told = pending.told();
        pending.written(&batch);
        assert!(pending.is_written(place), "the intent is on disk");
        assert!(!pending.is_written(told), "its end is not");
        assert_eq!(spawns(&pending.due(9)), [1]);
        let batch = pending.due(9);
        pending.written(&batch);
        assert!(pending.is_empty() && pending.entries.is_empty());
    }

    /// What ended before it was read has its identity all the same.
    #[test]
    fn all_is_written_when_all_are_known() {
        let mut pending = Pending::new(9);
        pending.insert(row(1));
        let handle: OwnedFd = std::fs::File::open("/dev/null").expect("null").into();
        pending.seen(1, Seen { pid: 7, pidfd: Arc::new(handle) });
        end(&mut pending, 1);
        let seen = pending.take_seen();
        assert_eq!(
            seen.iter().map(|(spawn, seen)| (*spawn, seen.pid)).collect::<Vec<_>>(),
            [(1, 7)]
        );
        pending.identified(1, Identity::own());
        let batch = pending.due(9);
        assert_eq!(batch[0].row.identity, Some(Identity::own()));
        pending.written(&batch);
        assert!(pending.is_empty() && pending.take_seen().is_empty());
    }

    #[test]
    fn a_batch_is_bounded_and_the_oldest_come_first() {
        let mut pending = Pending::new(9);
        for spawn in [5, 3, 4] {
            pending.insert(row(spawn));
        }
        end(&mut pending, 5);
        assert_eq!(spawns(&pending.due(2)), [5, 3]);
    }

    #[test]
    fn at_the_bound_the_oldest_ended_row_is_given_up_and_no_living_one() {
        let mut pending = Pending::new(2);
        for spawn in 1..=6 {
            pending.insert(row(spawn));
        }
        for spawn in [4, 2, 3, 5] {
            end(&mut pending, spawn);
        }
        assert_eq!(pending.take_given_up(), 2);
        assert_eq!(spawns(&pending.due(9)), [1, 4, 5, 6], "2 and 3 were the oldest intents");
        assert_eq!(pending.take_given_up(), 0);
    }

    #[test]
    fn a_fresh_file_gets_all_that_lives() {
        let mut pending = Pending::new(9);
        pending.insert(row(1));
        pending.insert(row(2));
        end(&mut pending, 1);
        let batch = pending.due(9);
        pending.written(&batch);
        let told = pending.told();
        assert!(pending.is_written(told));
        pending.all_again();
        assert_eq!(spawns(&pending.due(9)), [2]);
        assert!(!pending.is_written(told), "it is to be written once more");
    }
}

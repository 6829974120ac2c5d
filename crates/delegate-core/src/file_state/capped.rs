//! A map that forgets its oldest rows instead of growing. Used by [`super::registry`].

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

/// Values by path, each with the number of its last change; over the cap the lowest number goes.
#[derive(Debug)]
pub(super) struct Capped<V> {
    most: usize,
    rows: HashMap<Arc<str>, (u64, V)>,
    by_age: BTreeMap<u64, Arc<str>>,
}

impl<V> Capped<V> {
    pub(super) fn new(most: usize) -> Self {
        Self { most, rows: HashMap::new(), by_age: BTreeMap::new() }
    }

    pub(super) fn get(&self, path: &str) -> Option<(u64, &V)> {
        self.rows.get(path).map(|(order, value)| (*order, value))
    }

    /// Puts a row in, or a newer one over it. `order` counts up and is used once.
    pub(super) fn put(&mut self, path: Arc<str>, order: u64, value: V) {
        if let Some((old, _)) = self.rows.insert(Arc::clone(&path), (order, value)) {
            self.by_age.remove(&old);
        }
        self.by_age.insert(order, path);
        while self.rows.len() > self.most
            && let Some((_, oldest)) = self.by_age.pop_first()
        {
            self.rows.remove(&oldest);
        }
    }

    pub(super) fn remove(&mut self, path: &str) {
        if let Some((order, _)) = self.rows.remove(path) {
            self.by_age.remove(&order);
        }
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&Arc<str>, u64, &V)> {
        self.rows.iter().map(|(path, (order, value))| (path, *order, value))
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        assert_eq!(self.rows.len(), self.by_age.len());
        self.rows.len()
    }
}

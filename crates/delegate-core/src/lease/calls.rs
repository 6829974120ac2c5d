//! The file of `keys/` in which parents of one state directory tell each other of calls to providers: when those
//! of the last minute began, until when nobody calls, whose turn it is ([`Known`]). No key and no text of a
//! provider. Used by `beside`, which holds the lock.

use std::collections::BTreeMap;
use std::fs::{self, OpenOptions};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

use super::beside::{FileState, private, read_root, state_of};
use super::gate::Known;
use super::moment::Moment;

/// What was in it when it was looked at last.
#[derive(Debug)]
pub(super) struct Calls {
    path: PathBuf,
    known: BTreeMap<String, Known>,
    seen: Option<FileState>,
}

impl Calls {
    pub(super) fn new(dir: &Path) -> Self {
        Self { path: dir.join("calls.json"), known: BTreeMap::new(), seen: None }
    }

    /// What is in it now.
    pub(super) fn load(&mut self, now: Moment) -> io::Result<&BTreeMap<String, Known>> {
        let state = fs::metadata(&self.path).ok().map(|data| state_of(&data));
        if state != self.seen || state.is_none() {
            let root = read_root(&self.path, now)?;
            let providers = root.get("providers").and_then(Value::as_object);
            let known = |(name, value): (&String, &Value)| {
                Some((name.clone(), serde_json::from_value(value.clone()).ok()?))
            };
            self.known = providers.into_iter().flatten().filter_map(known).collect();
            self.seen = state;
        }
        Ok(&self.known)
    }

    /// Writes what we know in its place, where that is something new; of other providers what was there stays.
    pub(super) fn store(&mut self, ours: BTreeMap<String, Known>) -> io::Result<()> {
        let mut known = self.known.clone();
        known.extend(ours);
        known.retain(|_, known| !known.is_empty());
        if known == self.known {
            return Ok(());
        }
        let root = Map::from_iter([
            ("version".to_owned(), Value::from(1)),
            ("providers".to_owned(), serde_json::to_value(&known)?),
        ]);
        let fresh = self.path.with_extension("json.new");
        let mut file = private(fresh.clone(), OpenOptions::new().write(true).truncate(true))?;
        file.write_all(&serde_json::to_vec(&root)?)?;
        fs::rename(&fresh, &self.path)?;
        self.seen = Some(state_of(&file.metadata()?));
        self.known = known;
        Ok(())
    }
}

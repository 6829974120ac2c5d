//! Who read and changed what: a pure machine. Times are arguments, and decide nothing: what came first is
//! told by a counter, so a clock that is set back hides no write. [`super`] asks it under a lock.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use delegate_protocol::SubagentId;
use delegate_protocol::file::{Change, Done, Staleness, Stamp};

use super::capped::Capped;

/// Paths that are kept of one agent, of each kind; the oldest go.
pub const PATHS_PER_AGENT: usize = 4096;

/// Paths whose last writer is kept; the oldest go.
pub const WRITERS: usize = 4096;

/// Levels of a tree that a change is told to, upwards.
const LEVELS: usize = 64;

/// Somebody who reads and writes.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Who {
    /// A child.
    Child(SubagentId),
    /// The agent at the root, by the key of its conversation; empty where there is only one.
    Parent(Arc<str>),
}

impl fmt::Display for Who {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Child(child) => child.fmt(f),
            Self::Parent(_) => f.write_str("the parent agent"),
        }
    }
}

#[derive(Debug)]
struct Read {
    /// `None`: nobody told what it was.
    stamp: Option<Stamp>,
    at: u64,
    partial: bool,
}

#[derive(Debug)]
struct Write {
    by: Who,
    done: Done,
    at: u64,
}

#[derive(Debug)]
struct Agent {
    parent: Option<Who>,
    reads: Capped<Read>,
    /// What it and those below it changed.
    changed: Capped<Done>,
}

impl Agent {
    fn new(parent: Option<Who>) -> Self {
        let (reads, changed) = (Capped::new(PATHS_PER_AGENT), Capped::new(PATHS_PER_AGENT));
        Self { parent, reads, changed }
    }
}

/// The registry of one tree.
#[derive(Debug)]
pub struct Registry {
    agents: HashMap<Who, Agent>,
    writers: Capped<Write>,
    order: u64,
}

impl Default for Registry {
    fn default() -> Self {
        Self { agents: HashMap::new(), writers: Capped::new(WRITERS), order: 0 }
    }
}

impl Registry {
    /// A child of `parent` begins.
    pub fn enter(&mut self, who: Who, parent: Who) {
        self.agents.insert(who, Agent::new(Some(parent)));
    }

    /// It has ended; what it changed stays known.
    pub fn leave(&mut self, who: &Who) {
        self.agents.remove(who);
    }

    fn next(&mut self) -> u64 {
        self.order += 1;
        self.order
    }

    fn agent(&mut self, who: &Who) -> &mut Agent {
        self.agents.entry(who.clone()).or_insert_with(|| Agent::new(None))
    }

    /// It read a file. Replaces what it read before.
    pub fn read(&mut self, who: &Who, path: &str, stamp: Option<Stamp>, partial: bool, now: u64) {
        let order = self.next();
        let read = Read { stamp, at: now, partial };
        self.agent(who).reads.put(path.into(), order, read);
    }

    /// It changed a file. That is its own full read as well: it knows what is there.
    pub fn changed(&mut self, who: &Who, path: &str, change: &Change, now: u64) {
        let path = Arc::<str>::from(path);
        match change {
            Change::Written(stamp) => self.wrote(who, path, Done::Written, *stamp, now),
            Change::Deleted => self.gone(who, path, Done::Deleted, now),
            Change::Renamed { to, stamp } => {
                self.gone(who, path, change.done(), now);
                self.wrote(who, to.as_str().into(), Done::Written, *stamp, now);
            }
        }
    }

    fn wrote(&mut self, who: &Who, path: Arc<str>, done: Done, stamp: Option<Stamp>, now: u64) {
        self.note(who, &path, done, now);
        let order = self.next();
        self.agent(who).reads.put(path, order, Read { stamp, at: now, partial: false });
    }

    fn gone(&mut self, who: &Who, path: Arc<str>, done: Done, now: u64) {
        self.note(who, &path, done, now);
        self.agent(who).reads.remove(&path);
    }

    fn note(&mut self, who: &Who, path: &Arc<str>, done: Done, now: u64) {
        let order = self.next();
        let write = Write { by: who.clone(), done: done.clone(), at: now };
        self.writers.put(Arc::clone(path), order, write);
        self.agent(who);
        let mut above = Some(who.clone());
        for _ in 0..LEVELS {
            let Some(agent) = above.and_then(|who| self.agents.get_mut(&who)) else { break };
            agent.changed.put(Arc::clone(path), order, done.clone());
            above = agent.parent.clone();
        }
    }

    /// What speaks against its writing a file, of which it just saw `found` (`None`: there is none). The
    /// first that fits:
    ///
    /// 1. nothing is known of the file: nothing;
    /// 2. there is no file: nothing, unless another agent took it away since;
    /// 3. another agent changed it, and it never read it; 4. … after it read it;
    /// 5. it is not what it read; 6. it read a part; 7. it never read it.
    #[must_use]
    pub fn check(&self, who: &Who, path: &str, found: Option<&Stamp>) -> Option<Staleness> {
        let read = self.agents.get(who).and_then(|agent| agent.reads.get(path));
        let write = self.writers.get(path);
        let others = write.filter(|(_, write)| write.by != *who);
        match (read, others) {
            (None, None) if write.is_none() => return None,
            (_, others) if found.is_none() => {
                let taken = others.is_some_and(|(_, write)| write.done != Done::Written);
                if !taken {
                    return None;
                }
            }
            _ => {}
        }
        match (read, others) {
            (None, Some((_, Write { by, done, at }))) => {
                let (by, done) = (by.to_string(), done.clone());
                return Some(Staleness::UnreadChange { by, done, at_ms: *at });
            }
            (Some((seen, read)), Some((order, Write { by, done, at }))) if order > seen => {
                let (by, done) = (by.to_string(), done.clone());
                return Some(Staleness::ChangedSince { by, done, read_ms: read.at, at_ms: *at });
            }
            _ => {}
        }
        let (_, read) = match (read, found) {
            (Some(read), Some(_)) => read,
            (Some(_), None) => return None,
            (None, _) => return Some(Staleness::NeverRead),
        };
        let outside = read.stamp.zip(found).is_some_and(|(own, found)| !own.agrees(found));
        if outside {
            Some(Staleness::EditedOutside { read_ms: read.at })
        } else {
            read.partial.then_some(Staleness::PartlyRead)
        }
    }

    /// What the parent of `who` has read, and `who` or somebody below it changed afterwards: sorted by path.
    /// A sibling's changes are not among them, they stand with the sibling.
    #[must_use]
    pub fn stale_for_parent(&self, who: &Who) -> Vec<(Arc<str>, Done)> {
        let Some(agent) = self.agents.get(who) else { return Vec::new() };
        let parent = agent.parent.as_ref().and_then(|parent| self.agents.get(parent));
        let Some(parent) = parent else { return Vec::new() };
        let mut stale: Vec<_> = agent
            .changed
            .iter()
            .filter(|(path, order, _)| {
                parent.reads.get(path).is_some_and(|(seen, _)| seen < *order)
            })
            .map(|(path, _, done)| (Arc::clone(path), done.clone()))
            .collect();
        stale.sort_by(|a, b| a.0.cmp(&b.0));
        stale
    }

    /// Agents that are kept.
    #[cfg(test)]
    pub(super) fn agents(&self) -> usize {
        self.agents.len()
    }

    #[cfg(test)]
    pub(super) fn rows(&self, who: &Who) -> (usize, usize, usize) {
        let agent = &self.agents[who];
        (agent.reads.len(), agent.changed.len(), self.writers.len())
    }
}

#[cfg(test)]
#[path = "registry_tests.rs"]
mod tests;

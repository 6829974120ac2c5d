//! Who our children are: burials, and the record of those that were left to us. Never is a child reaped
//! before what it left is recorded.

use std::collections::HashSet;
use std::iter;

use super::Loop;
use crate::registry::Root;
use crate::supervisor::{Event, Unknown};
use crate::sys::Pid;
use crate::sys::wait::{self, Dead, Look};

/// Children that were seen dead while nobody was reaped, so that their numbers are nobody else's.
#[derive(Debug, Default)]
pub(super) struct SeenDead(HashSet<Pid>);

impl SeenDead {
    /// Whether this child lives. Each that died is looked at once.
    pub(super) fn lives(&mut self, pid: Pid) -> bool {
        let dead = self.0.contains(&pid) || wait::look_at(pid).is_some();
        if dead {
            self.0.insert(pid);
        }
        !dead
    }
}

impl Loop {
    /// Buries the dead, if there are any. Those who die meanwhile come in the next turn.
    pub(super) fn bury(&mut self) {
        self.unburied = false;
        self.backlog = false;
        match wait::look() {
            Look::Alive if self.has_spared_only() => self.feed(Event::NoChild),
            Look::Alive => {}
            Look::NoChild => self.feed(Event::NoChild),
            Look::Dead(dead) => match self.dead_peer() {
                // First: with what it had, its children are known.
                Some(peer) => {
                    self.supervisor_died(&peer);
                    self.backlog = true;
                }
                None => {
                    self.take_stock(dead.pid);
                    self.backlog = !self.unburied;
                }
            },
        }
    }

    /// Tells of roots that were stopped, where that is of anybody's concern.
    pub(super) fn see_stops(&mut self) {
        let joined = self.machine.registry().iter().filter(|(_, scope)| scope.joined);
        let running = joined.filter_map(|(id, scope)| match scope.root {
            Root::Running(pid) => Some((id, pid)),
            Root::None | Root::Starting | Root::Foster(_) | Root::Group(_) | Root::Dead => None,
        });
        let stopped = running.filter_map(|(scope, pid)| Some((scope, wait::stopped_by(pid)?)));
        for (scope, signal) in stopped.collect::<Vec<_>>() {
            self.feed(Event::Stopped { scope, signal });
        }
    }

    /// Looks at all children at once, buries the dead and records those that nobody knows. `seen` is one
    /// that is known to be dead: it may be unlisted where the list is a scan.
    ///
    /// What the dead left came to us before they were dead, so a list that is read after they were seen
    /// has it, and all of them may be reaped. The cost is that of the list, however many died.
    fn take_stock(&mut self, seen: Pid) {
        let Ok(before) = self.source.own_children() else { return self.unburied = true };
        let others = before.into_iter().filter(|pid| *pid != seen && !self.is_peer(*pid));
        let dead: Vec<_> = iter::once(seen).chain(others).filter_map(wait::look_at).collect();
        let Ok(after) = self.source.own_children() else { return self.unburied = true };
        if self.peer_is_leaving() {
            return self.unburied = true;
        }
        let registry = self.machine.registry();
        let children = after.into_iter().chain(dead.iter().map(|dead| dead.pid));
        let unknown = children.filter(|pid| !registry.knows(*pid) && !self.is_peer(*pid)).collect();
        self.record(dead, unknown);
    }

    /// Records living children that nobody knows and gives each to `meet` at once; whether there were any.
    /// Buries nobody: the cost is that of the living, and of those who died since the last time. The
    /// newest come first: they are the ones that move, and a long list is mostly of dead ones.
    pub(super) fn adopt(&mut self, dead: &mut SeenDead, mut meet: impl FnMut(&Self, Pid)) -> bool {
        let Ok(children) = self.source.own_children() else { return false };
        if self.peer_is_leaving() {
            self.unburied = true;
            return false;
        }
        let mut found = false;
        for pid in children.into_iter().rev() {
            let known = self.machine.registry().knows(pid) || self.is_peer(pid);
            if !known && dead.lives(pid) {
                self.record(Vec::new(), HashSet::from([pid]));
                meet(self, pid);
                found = true;
            }
        }
        found
    }

    fn record(&mut self, dead: Vec<Dead>, unknown: HashSet<Pid>) {
        let gone: HashSet<_> = dead.iter().map(|dead| dead.pid).collect();
        let registry = self.machine.registry();
        let suspects = match unknown.is_empty() {
            true => Vec::new(),
            false => registry.roots().filter(|pid| wait::look_at(*pid).is_some()).collect(),
        };
        // The dead have no environment any more.
        let tag = |pid| if gone.contains(&pid) { None } else { self.scope_of(pid) };
        let unknown = unknown.into_iter().map(|pid| Unknown { pid, tag: tag(pid) }).collect();
        let mut dead = dead;
        dead.iter_mut().for_each(|dead| self.note_reached(dead));
        self.feed(Event::Stock { dead, unknown, suspects });
    }
}

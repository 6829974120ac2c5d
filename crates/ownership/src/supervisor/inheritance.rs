//! What a guard takes over from the other one, and scopes whose processes are nobody's child here.

use std::collections::{BTreeSet, HashMap};
use std::iter::successors;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use super::{Effect, Supervisor, Unknown, attribute, emptied_reply, failed_reply};
use crate::exit::Exit;
use crate::protocol::Reply;
use crate::registry::{Root, Scope, ScopeId};
use crate::sys::Pid;
use crate::table::{Flag, Row, Stage};

/// The asking side numbers from 1.
const NOBODY: u64 = 0;

impl Supervisor {
    /// What the other one may not have said is said again: the owner knows each thing by its number.
    pub(super) fn inherit(
        &mut self,
        rows: Vec<Row>,
        foster: bool,
        unknown: Vec<Unknown>,
        suspects: &[Pid],
        now: Instant,
        effects: &mut Vec<Effect>,
    ) {
        let mut taken = Vec::new();
        for row in parents_first(rows) {
            // Whoever asked for it is gone, and so is all that it had asked for.
            let orphaned = self.registry.get(row.parent).is_none();
            if self.take_row(&row, foster, effects) {
                taken.push((row.scope, row.ending.or(orphaned.then_some(row.grace))));
            }
        }
        let left_by_the_dead = taken.iter().map(|(scope, _)| *scope).filter(|scope| {
            self.registry.get(*scope).is_some_and(|found| found.root == Root::Dead && !found.foster)
        });
        let mut candidates = self.registry.may_have_left(suspects);
        candidates.extend(left_by_the_dead);
        candidates.sort_unstable();
        candidates.dedup();
        let mut burdened = BTreeSet::new();
        for orphan in unknown {
            let scopes = attribute(orphan.tag, &candidates);
            self.registry.add_orphan(orphan.pid, &scopes);
            burdened.extend(scopes);
        }
        for (scope, ending) in &taken {
            if ending.is_some() {
                self.end(*scope, *ending, now, effects);
            }
            if self.owner_gone {
                self.end(*scope, None, now, effects);
            }
        }
        let touched: BTreeSet<_> =
            taken.iter().map(|(scope, _)| *scope).chain(burdened.iter().copied()).collect();
        for scope in touched {
            self.follow(scope, burdened.contains(&scope), now, effects);
        }
    }

    /// Whether there is a scope to keep.
    fn take_row(&mut self, row: &Row, foster: bool, effects: &mut Vec<Effect>) -> bool {
        let scope = row.scope;
        let rootless = row.has(Flag::Rootless);
        let unborn = row.stage == Stage::Intent && (rootless || row.pid == 0);
        let foster = (foster || row.has(Flag::Foster)) && !rootless;
        // Its name is of a line that is gone, and would be somebody else's on the owner's.
        let id = if self.registry.get(row.parent).is_some() { row.id } else { NOBODY };
        let root = match (row.stage, row.failed) {
            // It was never done; who asked asks again.
            (Stage::Intent, _) if unborn => {
                effects.push(Effect::Forget { scope });
                return false;
            }
            (Stage::Intent, Some(failure)) => {
                effects.push(failed_reply(row.parent, id, failure));
                effects.push(Effect::Forget { scope });
                return false;
            }
            (Stage::Intent | Stage::Alive | Stage::Empty, _) if rootless => Root::None,
            (Stage::Intent | Stage::Alive, _) if foster => Root::Foster(row.pid),
            (Stage::Intent | Stage::Alive, _) => Root::Running(row.pid),
            (Stage::Dead | Stage::Empty, _) => Root::Dead,
        };
        let mut inherited = Scope::new(row.parent, id, root, row.grace);
        inherited.foster = foster && row.stage != Stage::Empty;
        inherited.paused = row.has(Flag::Paused);
        inherited.told = row.has(Flag::ToldEmptied);
        let parent = inherited.parent;
        let over = row.stage == Stage::Empty;
        let told = inherited.told;
        self.registry.inherit(scope, inherited);
        let line = self.registry.get(scope).map_or(parent, |scope| scope.parent);
        if !row.has(Flag::ToldStarted) && !rootless {
            let reply = Reply::Started { id, pid: row.pid, scope: scope.0 };
            effects.push(Effect::Reply { line, reply, about: Some(scope) });
        }
        if let Some(exit) = row.exit.clone().filter(|_| !row.has(Flag::ToldExited)) {
            let reply = Reply::Exited { id, exit };
            effects.push(Effect::Reply { line, reply, about: Some(scope) });
        }
        if over && let Some(removed) = self.registry.remove(scope) {
            if !told {
                effects.push(emptied_reply(scope, removed, Vec::new()));
            }
            effects.push(Effect::Forget { scope });
        }
        !over
    }

    /// The owner hands over a child whose guards are dead.
    pub(super) fn foster(
        &mut self,
        scope: ScopeId,
        id: u64,
        pid: Pid,
        grace: Duration,
        fds: Vec<OwnedFd>,
        effects: &mut Vec<Effect>,
    ) {
        let known = self.registry.get(scope).is_some();
        let known = known || self.registry.find(ScopeId::ALL, id).is_some();
        if let Some(handle) = fds.into_iter().next().filter(|_| !known) {
            let mut inherited = Scope::new(ScopeId::ALL, id, Root::Foster(pid), grace);
            inherited.foster = true;
            self.registry.inherit(scope, inherited);
            effects.push(Effect::Watch { scope, handle });
        }
    }

    pub(super) fn foster_died(
        &mut self,
        scope: ScopeId,
        exit: Exit,
        now: Instant,
        effects: &mut Vec<Effect>,
    ) {
        let Some(found) = self.registry.get_mut(scope) else { return };
        if let Root::Foster(_) = found.root {
            found.root = Root::Dead;
            let reply = Reply::Exited { id: found.id, exit };
            effects.push(Effect::Reply { line: found.parent, reply, about: Some(scope) });
            self.registry.progress(now);
            self.end(scope, None, now, effects);
        }
    }

    pub(super) fn vanished(&mut self, scope: ScopeId, effects: &mut Vec<Effect>) {
        if let Some(found) = self.registry.get_mut(scope).filter(|scope| scope.root == Root::Dead) {
            found.foster = false;
            self.settle(scope, effects);
        }
    }

    /// Nobody asks for these any more: whose they were died with the guards that knew.
    pub(super) fn strays(&mut self, scopes: Vec<ScopeId>, now: Instant, effects: &mut Vec<Effect>) {
        for scope in scopes {
            if self.registry.get(scope).is_some() {
                continue;
            }
            let mut stray = Scope::new(ScopeId::ALL, NOBODY, Root::Dead, Duration::ZERO);
            stray.foster = true;
            stray.told = true;
            self.registry.inherit(scope, stray);
            self.end(scope, Some(crate::spawn::DEFAULT_GRACE), now, effects);
        }
    }
}

/// What a scope is in comes before it. Numbers do not tell: each guard has its own, and a scope is taken over
/// with its line.
fn parents_first(mut rows: Vec<Row>) -> Vec<Row> {
    let parents: HashMap<_, _> = rows.iter().map(|row| (row.scope, row.parent)).collect();
    // No torn row makes this endless.
    let depth = |row: &Row| {
        let above = |scope: &ScopeId| parents.get(scope).copied();
        successors(Some(row.parent), above).take(parents.len()).count()
    };
    rows.sort_by_cached_key(|row| (depth(row), row.scope));
    rows
}

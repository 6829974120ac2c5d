//! What a guard takes over from the other one, and scopes whose processes are nobody's child here.

use std::collections::{BTreeSet, HashMap};
use std::iter::successors;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use super::{Effect, Supervisor, Unknown, attribute, emptied_reply, failed_reply};
use crate::exit::{Exit, ExitStatus};
use crate::protocol::Reply;
use crate::registry::{Release, Root, Scope, ScopeId};
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
            if self.take_row(&row, foster, now, effects) {
                taken.push((row.scope, row.ending.or(orphaned.then_some(row.grace))));
                let is_child = |scope: &Scope| !scope.foster;
                if row.first != 0 && self.registry.get(row.scope).is_some_and(is_child) {
                    self.registry.add_orphan(row.first, &[row.scope]);
                }
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
        for orphan in unknown
            .into_iter()
            .filter(|orphan| !self.registry.knows(orphan.pid))
            .collect::<Vec<_>>()
        {
            let scopes = attribute(orphan.tag, &candidates);
            self.registry.add_orphan(orphan.pid, &scopes);
            burdened.extend(scopes);
        }
        for (scope, ending) in &taken {
            if ending.is_some() {
                self.end(*scope, *ending, now, effects);
            }
            // Of a release command only its deadline is the end.
            if self.owner_gone && !self.is_releasing(*scope) {
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
    fn take_row(
        &mut self,
        row: &Row,
        foster: bool,
        now: Instant,
        effects: &mut Vec<Effect>,
    ) -> bool {
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
                if row.has(Flag::Releases) {
                    self.release_failed(row.parent, failure, effects);
                } else {
                    effects.push(failed_reply(row.parent, id, failure));
                }
                effects.push(Effect::Forget { scope });
                return false;
            }
            (Stage::Intent | Stage::Alive | Stage::Empty, _) if rootless => Root::None,
            (Stage::Intent | Stage::Alive, _) if row.has(Flag::Group) => Root::Group(row.pid),
            (Stage::Intent | Stage::Alive, _) if foster => Root::Foster(row.pid),
            (Stage::Intent | Stage::Alive, _) => Root::Running(row.pid),
            (Stage::Dead | Stage::Empty, _) => Root::Dead,
        };
        let mut inherited = Scope::new(row.parent, id, root, row.grace);
        inherited.foster = foster && row.stage != Stage::Empty;
        inherited.paused = row.has(Flag::Paused);
        inherited.told = row.has(Flag::ToldEmptied);
        inherited.policy = row.policy();
        inherited.joined = row.has(Flag::Joined);
        inherited.once_empty = row.has(Flag::OnceEmpty);
        inherited.alarm = inherited.once_empty.then_some(now);
        inherited.release = match (row.released, row.release) {
            (Some(released), _) => Release::Over(released),
            (None, Some(deadline)) => Release::Due(deadline),
            (None, None) => Release::None,
        };
        if row.has(Flag::Releases) {
            self.take_release(row, inherited, now, effects);
            return true;
        }
        // It was found empty before its command was run.
        inherited.foster &= row.released.is_none();
        let parent = inherited.parent;
        let over = row.stage == Stage::Empty;
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
            if removed.is_to_be_told() {
                effects.push(emptied_reply(scope, removed, Vec::new()));
            }
            effects.push(Effect::Forget { scope });
        }
        !over
    }

    /// A release command that another guard had started, or seen dead.
    fn take_release(
        &mut self,
        row: &Row,
        mut command: Scope,
        now: Instant,
        effects: &mut Vec<Effect>,
    ) {
        command.releases = true;
        let (scope, of, runs) = (row.scope, command.parent, command.root != Root::Dead);
        self.registry.inherit(scope, command);
        let Some(found) = self.registry.get_mut(of) else { return };
        // Nothing of it was left, or the command would not have been started.
        found.foster = false;
        if runs {
            found.release = Release::Running;
            self.release_started(scope, now);
        } else if !matches!(found.release, Release::Over(_)) {
            let status = row.exit.as_ref().map_or(ExitStatus::Unknown, |exit| exit.status);
            self.release_ended(scope, status, effects);
        }
    }

    /// The owner hands over a child whose guards are dead.
    pub(super) fn foster(
        &mut self,
        scope: ScopeId,
        mut child: Scope,
        fds: Vec<OwnedFd>,
        effects: &mut Vec<Effect>,
    ) {
        let known = self.registry.get(scope).is_some();
        if known || self.registry.find(ScopeId::ALL, child.id).is_some() {
            return;
        }
        child.foster = true;
        let mut fds = fds.into_iter();
        // The root of what was let live is dead.
        let handle = if child.told { None } else { fds.next() };
        if child.told {
            child.root = Root::Dead;
        } else if handle.is_none() {
            return;
        }
        self.registry.inherit(scope, child);
        effects.push(Effect::Watch { scope, handle, command: fds.next() });
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
            if found.releases {
                self.release_ended(scope, exit.status, effects);
            } else {
                let reply = Reply::Exited { id: found.id, exit };
                effects.push(Effect::Reply { line: found.parent, reply, about: Some(scope) });
            }
            self.registry.progress(now);
            if self.registry.get(scope).is_some_and(|scope| scope.ladder.is_none()) {
                self.left_something(scope, now, effects);
            }
        }
    }

    pub(super) fn vanished(&mut self, scope: ScopeId, effects: &mut Vec<Effect>) {
        // A group is ours until it is to be ended, or let go once it is empty.
        let is_over = |scope: &&mut Scope| match scope.root {
            Root::Dead => true,
            Root::Group(_) => scope.once_empty || scope.ladder.is_some(),
            Root::None | Root::Starting | Root::Running(_) | Root::Foster(_) => false,
        };
        if let Some(found) = self.registry.get_mut(scope).filter(is_over) {
            found.foster = false;
            self.settle(scope, effects);
        }
    }

    /// Nobody asks for these any more: whose they were died with the guards that knew.
    pub(super) fn strays(
        &mut self,
        scopes: Vec<ScopeId>,
        grace: Duration,
        now: Instant,
        effects: &mut Vec<Effect>,
    ) {
        for scope in scopes {
            if self.registry.get(scope).is_some() {
                continue;
            }
            let mut stray = Scope::new(ScopeId::ALL, NOBODY, Root::Dead, Duration::ZERO);
            stray.foster = true;
            stray.told = true;
            self.registry.inherit(scope, stray);
            self.end(scope, Some(grace), now, effects);
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

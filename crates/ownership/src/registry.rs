//! Scopes and what belongs to them: plain bookkeeping for [`crate::supervisor`].
//!
//! Scopes form a tree. Its top, [`ScopeId::ALL`], is the owner itself: it has no process that we
//! started, and ends when the owner is gone. Every other scope has a root process, or was opened
//! without one for an agent in a thread.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use crate::escalation::Ladder;
use crate::exit::{Process, Released};
use crate::protocol::MAX_NAMED;
use crate::spawn::Leftovers;
use crate::sys::Pid;

/// Number of a scope; also of the line on which its requests come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct ScopeId(pub(crate) u64);

impl ScopeId {
    /// The owner: everything.
    pub(crate) const ALL: Self = Self(0);
}

/// The process that a scope is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Root {
    /// It never had one.
    None,
    /// Being started.
    Starting,
    Running(Pid),
    /// Runs, and is not a child of ours: the guard that was its parent is dead.
    Foster(Pid),
    /// Leads, or led, a group that something else started. Whether it lives is of no concern.
    Group(Pid),
    /// Dead; what it left may still be there.
    Dead,
}

/// How far a scope is with its release command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Release {
    /// There is none.
    None,
    /// To be run once nothing is left, with this deadline.
    Due(Duration),
    /// Nothing is left but the command, a scope of its own in this one.
    Running,
    Over(Released),
}

#[derive(Debug, Clone)]
pub(crate) struct Scope {
    /// Where its news go, and what it ends with.
    pub(crate) parent: ScopeId,
    /// The asking side's name for it.
    pub(crate) id: u64,
    pub(crate) root: Root,
    pub(crate) grace: Duration,
    pub(crate) subs: BTreeSet<ScopeId>,
    /// Children of ours that its processes left to us.
    pub(crate) orphans: BTreeSet<Pid>,
    /// Its processes are no children of ours: that none is left is known from looking, not from the kernel.
    pub(crate) foster: bool,
    /// Stopped: what its processes had already asked for is stopped as it starts.
    pub(crate) paused: bool,
    /// Present once it is being ended.
    pub(crate) ladder: Option<Ladder>,
    /// What was found after the root was dead.
    pub(crate) leftovers: Vec<Process>,
    pub(crate) leftover_count: u32,
    /// What a rule has let go, with its name.
    pub(crate) spared: Vec<(Process, String)>,
    /// What becomes of what its root leaves.
    pub(crate) policy: Leftovers,
    pub(crate) release: Release,
    /// It is the release command of what it is in: nobody is told of it.
    pub(crate) releases: bool,
    /// An adopted group that is let go when nobody in it lives.
    pub(crate) once_empty: bool,
    /// When to look at it without a ladder.
    pub(crate) alarm: Option<Instant>,
    /// Its root is no subreaper: its orphans come to us while it lives.
    pub(crate) joined: bool,
    /// Its end was told, although something of it cannot die or is let live.
    pub(crate) told: bool,
}

impl Scope {
    pub(crate) fn new(parent: ScopeId, id: u64, root: Root, grace: Duration) -> Self {
        Self {
            parent,
            id,
            root,
            grace,
            subs: BTreeSet::new(),
            orphans: BTreeSet::new(),
            foster: false,
            paused: false,
            ladder: None,
            leftovers: Vec::new(),
            leftover_count: 0,
            spared: Vec::new(),
            policy: Leftovers::Kill,
            release: Release::None,
            releases: false,
            once_empty: false,
            alarm: None,
            joined: false,
            told: false,
        }
    }

    /// Nothing of it is left, as the kernel says: its root was seen dead, all orphans were seen dead,
    /// and each left its own children to us before that.
    pub(crate) fn is_empty(&self) -> bool {
        let rootless = self.root == Root::None && self.ladder.is_some();
        (rootless || matches!(self.root, Root::Dead | Root::Group(_)))
            && self.orphans.is_empty()
            && self.subs.is_empty()
            && !self.foster
    }

    /// Whether it takes new processes.
    pub(crate) fn is_open(&self) -> bool {
        self.ladder.is_none() && self.root != Root::Dead
    }

    /// Whether its end was told while something was let live: that it is over is told again then.
    pub(crate) fn is_kept(&self) -> bool {
        self.told && self.policy != Leftovers::Kill
    }

    /// Whether somebody waits to hear that it is over.
    pub(crate) fn is_to_be_told(&self) -> bool {
        !self.releases && (!self.told || self.is_kept())
    }

    pub(crate) fn note_leftovers(&mut self, found: Vec<Process>) {
        let count = u32::try_from(found.len()).unwrap_or(u32::MAX);
        self.leftover_count = self.leftover_count.saturating_add(count);
        let room = MAX_NAMED.saturating_sub(self.leftovers.len());
        self.leftovers.extend(found.into_iter().take(room));
    }

    pub(crate) fn note_spared(&mut self, process: Process, rule: &str) {
        // Of a parent that died in between it may be met again.
        let known = self.spared.iter().any(|(known, _)| known.pid == process.pid);
        if self.spared.len() < MAX_NAMED && !known {
            self.spared.push((process, rule.to_owned()));
        }
    }
}

/// All scopes.
#[derive(Debug, Clone)]
pub(crate) struct Registry {
    scopes: BTreeMap<ScopeId, Scope>,
    roots: BTreeMap<Pid, ScopeId>,
    orphans: BTreeMap<Pid, Vec<ScopeId>>,
    /// Children of ours that were let go: nobody's any more, and not reaped while they live.
    spared: BTreeSet<Pid>,
    next: u64,
}

impl Registry {
    /// Numbers its scopes from `first` on, so that two guards never use the same number.
    pub(crate) fn new(first: u64) -> Self {
        let all = Scope::new(ScopeId::ALL, 0, Root::None, Duration::ZERO);
        Self {
            scopes: BTreeMap::from([(ScopeId::ALL, all)]),
            roots: BTreeMap::new(),
            orphans: BTreeMap::new(),
            spared: BTreeSet::new(),
            next: first,
        }
    }

    pub(crate) fn get(&self, scope: ScopeId) -> Option<&Scope> {
        self.scopes.get(&scope)
    }

    pub(crate) fn get_mut(&mut self, scope: ScopeId) -> Option<&mut Scope> {
        self.scopes.get_mut(&scope)
    }

    /// Scopes and their numbers, parents before what was made in them.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (ScopeId, &Scope)> {
        self.scopes.iter().map(|(id, scope)| (*id, scope))
    }

    /// The scope that the requester on `line` knows as `id`.
    pub(crate) fn find(&self, line: ScopeId, id: u64) -> Option<ScopeId> {
        let subs = &self.scopes.get(&line)?.subs;
        subs.iter().copied().find(|sub| self.scopes.get(sub).is_some_and(|sub| sub.id == id))
    }

    pub(crate) fn add(&mut self, parent: ScopeId, id: u64, root: Root, grace: Duration) -> ScopeId {
        let scope = ScopeId(self.next);
        self.next += 1;
        let mut new = Scope::new(parent, id, root, grace);
        if let Some(parent) = self.scopes.get_mut(&parent) {
            parent.subs.insert(scope);
            new.paused = parent.paused;
        }
        self.scopes.insert(scope, new);
        scope
    }

    /// A scope that another guard had. What it was in, if that is gone, is the owner itself.
    pub(crate) fn inherit(&mut self, scope: ScopeId, inherited: Scope) {
        let mut inherited = inherited;
        if !self.scopes.contains_key(&inherited.parent) {
            inherited.parent = ScopeId::ALL;
        }
        if let Some(parent) = self.scopes.get_mut(&inherited.parent) {
            parent.subs.insert(scope);
        }
        if let Root::Running(pid) = inherited.root {
            self.roots.insert(pid, scope);
        }
        self.scopes.insert(scope, inherited);
    }

    pub(crate) fn remove(&mut self, scope: ScopeId) -> Option<Scope> {
        let removed = self.scopes.remove(&scope)?;
        if let Some(parent) = self.scopes.get_mut(&removed.parent) {
            parent.subs.remove(&scope);
        }
        Some(removed)
    }

    /// `scope` and all that is in it, parents first.
    pub(crate) fn with_subs(&self, scope: ScopeId) -> Vec<ScopeId> {
        let mut all = vec![scope];
        let mut at = 0;
        while let Some(scope) = all.get(at).and_then(|id| self.scopes.get(id)) {
            all.extend(&scope.subs);
            at += 1;
        }
        all
    }

    pub(crate) fn set_running(&mut self, scope: ScopeId, pid: Pid) {
        if let Some(found) = self.scopes.get_mut(&scope) {
            found.root = Root::Running(pid);
            self.roots.insert(pid, scope);
        }
    }

    /// The root that `pid` was is dead; its scope.
    pub(crate) fn root_died(&mut self, pid: Pid) -> Option<ScopeId> {
        let scope = self.roots.remove(&pid)?;
        self.scopes.get_mut(&scope)?.root = Root::Dead;
        Some(scope)
    }

    /// The orphan `pid` is let go; the scopes that it was held against.
    pub(crate) fn spare(&mut self, pid: Pid) -> Vec<ScopeId> {
        let scopes = self.orphan_died(pid);
        self.spared.insert(pid);
        scopes
    }

    /// Whether this is a child that was left to us.
    pub(crate) fn is_orphan(&self, pid: Pid) -> bool {
        self.orphans.contains_key(&pid)
    }

    /// Whether this child of ours was let go.
    pub(crate) fn is_spared(&self, pid: Pid) -> bool {
        self.spared.contains(&pid)
    }

    /// Whether any child of ours was let go.
    pub(crate) fn has_spared(&self) -> bool {
        !self.spared.is_empty()
    }

    /// The orphan `pid` is dead; the scopes that it was held against.
    pub(crate) fn orphan_died(&mut self, pid: Pid) -> Vec<ScopeId> {
        self.spared.remove(&pid);
        let scopes = self.orphans.remove(&pid).unwrap_or_default();
        for scope in &scopes {
            if let Some(scope) = self.scopes.get_mut(scope) {
                scope.orphans.remove(&pid);
            }
        }
        scopes
    }

    pub(crate) fn add_orphan(&mut self, pid: Pid, scopes: &[ScopeId]) {
        self.orphans.insert(pid, scopes.to_vec());
        for scope in scopes {
            if let Some(scope) = self.scopes.get_mut(scope) {
                scope.orphans.insert(pid);
            }
        }
    }

    /// Whether this child of ours is one that we started or recorded.
    pub(crate) fn knows(&self, pid: Pid) -> bool {
        self.roots.contains_key(&pid) || self.orphans.contains_key(&pid) || self.is_spared(pid)
    }

    /// Every child that we started.
    pub(crate) fn roots(&self) -> impl Iterator<Item = Pid> {
        self.roots.keys().copied()
    }

    /// Every child that we started or recorded.
    #[cfg(test)]
    pub(crate) fn known(&self) -> impl Iterator<Item = Pid> {
        self.roots.keys().chain(self.orphans.keys()).copied()
    }

    /// The scope whose process this child of ours is.
    pub(crate) fn root_of(&self, pid: Pid) -> Option<ScopeId> {
        self.roots.get(&pid).copied()
    }

    /// The scopes that a known child stands for.
    pub(crate) fn scopes_of(&self, pid: Pid) -> Vec<ScopeId> {
        let root = self.roots.get(&pid).copied();
        root.into_iter().chain(self.orphans.get(&pid).into_iter().flatten().copied()).collect()
    }

    /// The scopes that may have left us a child: those of the dead `suspects`, and those with orphans.
    /// A root is a subreaper, so nothing comes to us before its death; an orphan is none, nor is a root that
    /// joined its owner's group, and what these double-fork comes to us while they live.
    pub(crate) fn may_have_left(&self, suspects: &[Pid]) -> Vec<ScopeId> {
        let with_orphans = self.orphans.values().flatten().copied();
        let joined = self.iter().filter(|(_, scope)| scope.joined).map(|(id, _)| id);
        let by_the_dead = suspects.iter().flat_map(|pid| self.scopes_of(*pid));
        let mut scopes: Vec<_> = by_the_dead.chain(with_orphans).chain(joined).collect();
        scopes.sort_unstable();
        scopes.dedup();
        scopes
    }

    /// Whether there is anything that is no child of ours.
    pub(crate) fn has_fosters(&self) -> bool {
        self.scopes.values().any(|scope| scope.foster)
    }

    /// Nothing but the owner itself.
    pub(crate) fn is_idle(&self) -> bool {
        self.scopes.len() == 1 && self.orphans.is_empty()
    }

    /// Something died, somewhere.
    pub(crate) fn progress(&mut self, now: Instant) {
        for ladder in self.scopes.values_mut().filter_map(|scope| scope.ladder.as_mut()) {
            ladder.progress(now);
        }
    }

    /// The earliest time at which there is something to do.
    pub(crate) fn due(&self) -> Option<Instant> {
        let due = |scope: &Scope| scope.ladder.as_ref().map(Ladder::due).or(scope.alarm);
        self.scopes.values().filter_map(due).min()
    }
}

//! The supervisor as a pure machine: `step(event, now)` gives what to do, in order. It does no I/O and
//! reads no clock; [`crate::supervisor_loop`] feeds it and acts.
//!
//! Promise: a scope that was started or opened gets exactly one `Emptied`, unless its line is gone. One of
//! which something is let live gets a second one when it is over, which only its owner's library sees.
//!
//! Both guards run this machine, each over what it is the parent of; what one had when it died comes to
//! the other in [`Event::Inherit`].

use std::collections::{BTreeSet, HashSet};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use crate::escalation::{Ladder, Rung};
use crate::exit::{Emptied, Exit, Process};
use crate::protocol::{Failure, Reply, Request};
use crate::registry::{Registry, Release, Root, Scope, ScopeId};
use crate::spawn::Phase;
use crate::sys::Pid;
use crate::sys::wait::Dead;
use crate::table::Row;

pub(crate) use effect::Effect;
use leftovers::stays;

mod effect;
mod groups;
mod inheritance;
mod leftovers;
mod release;
mod requests;

/// Everything that can happen to a supervisor.
#[derive(Debug)]
pub(crate) enum Event {
    /// A record came on this scope's line, with these descriptors.
    Request { line: ScopeId, request: Request, fds: Vec<OwnedFd> },
    /// A request came whose body could not be received for want of descriptors.
    Unreadable { line: ScopeId, id: u64 },
    /// What [`Effect::Spawn`] led to.
    Started { scope: ScopeId, pid: Pid },
    /// A child of ours is number 1 of this scope's pid namespace: it leaves when its root is dead and nobody is left in
    /// there, and is held against the scope until then.
    Housed { scope: ScopeId, first: Pid },
    /// What [`Effect::Spawn`] or [`Effect::OpenLine`] led to.
    Failed { scope: ScopeId, failure: Failure },
    /// [`Effect::OpenLine`] was done.
    Opened { scope: ScopeId },
    /// The other end of a line is closed.
    LineClosed { line: ScopeId },
    /// These children were seen dead, and *after* that the list of our children was read.
    Stock {
        dead: Vec<Dead>,
        /// Children that nobody knows, dead ones among them: adopted orphans.
        unknown: Vec<Unknown>,
        /// Roots that were dead by then, and may have left the unknown ones. Empty when there are none
        /// of these. That orphans may have left them is known without a look.
        suspects: Vec<Pid>,
    },
    /// What a walk of this scope met for the first time.
    Found { scope: ScopeId, members: Vec<Process> },
    /// A rule keeps this process, which is let go. An orphan of ours, or one of a scope whose processes are no
    /// children of ours.
    Spared { scope: ScopeId, process: Process, rule: String },
    /// What stands in this scope, or in one inside, although it was sent KILL long ago.
    Left { scope: ScopeId, members: Vec<Process> },
    /// What the other guard had is ours now. `unknown` are children of ours that nobody knows, `suspects`
    /// roots of these rows that are dead by now.
    Inherit { rows: Vec<Row>, foster: bool, unknown: Vec<Unknown>, suspects: Vec<Pid> },
    /// A root that is no child of ours is dead.
    FosterDied { scope: ScopeId, exit: Exit },
    /// Nothing of this scope, whose processes are no children of ours, was found.
    Vanished { scope: ScopeId },
    /// Scopes that the marks or the cgroups of processes name and that nobody knows; they get this grace.
    Strays { scopes: Vec<ScopeId>, grace: Duration },
    /// A root was stopped by this signal.
    Stopped { scope: ScopeId, signal: i32 },
    /// The owner's pidfd is readable.
    OwnerGone,
    /// The kernel says that we have no child.
    NoChild,
    /// Time has passed.
    Tick,
}

/// A child that nobody told us of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Unknown {
    pub(crate) pid: Pid,
    /// The scope that its environment names.
    pub(crate) tag: Option<ScopeId>,
}

/// The machine.
#[derive(Debug, Clone)]
pub(crate) struct Supervisor {
    registry: Registry,
    owner_gone: bool,
    /// When to leave; `None` for a guard that another one decides for.
    idle_limit: Option<Duration>,
    idle_since: Option<Instant>,
    leaving: bool,
}

impl Supervisor {
    /// Numbers its scopes from `first` on.
    pub(crate) fn new(idle_limit: Option<Duration>, first: u64, now: Instant) -> Self {
        Self {
            registry: Registry::new(first),
            owner_gone: false,
            idle_limit,
            idle_since: Some(now),
            leaving: false,
        }
    }

    /// From now on it leaves when it is idle for this long, or never by itself.
    pub(crate) fn set_idle_limit(&mut self, limit: Option<Duration>, now: Instant) {
        self.idle_limit = limit;
        self.idle_since = self.idle_since.map(|_| now);
    }

    /// Whether it would leave at the next [`Event::Tick`].
    pub(crate) fn is_about_to_leave(&self, now: Instant) -> bool {
        let due =
            self.idle_since.zip(self.idle_limit).is_some_and(|(since, limit)| now >= since + limit);
        due && !self.leaving && !self.owner_gone
    }

    /// It is idle, but not for long enough: others are not.
    pub(crate) fn stay(&mut self, now: Instant) {
        self.idle_since = self.idle_since.map(|_| now);
    }

    pub(crate) fn registry(&self) -> &Registry {
        &self.registry
    }

    /// When the next [`Event::Tick`] is needed.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        let idle = self.idle_since.filter(|_| !self.leaving && !self.owner_gone);
        let idle = idle.zip(self.idle_limit).map(|(since, limit)| since + limit);
        [self.registry.due(), idle].into_iter().flatten().min()
    }

    /// What follows from `event`.
    pub(crate) fn step(&mut self, event: Event, now: Instant) -> Vec<Effect> {
        let mut effects = Vec::new();
        match event {
            Event::Request { line, request, fds } => {
                self.request(line, request, fds, now, &mut effects);
            }
            Event::Unreadable { line, id } => {
                let failure = Failure { phase: Phase::Request, errno: libc::EMFILE };
                effects.push(failed_reply(line, id, failure));
            }
            Event::Started { scope, pid } => self.started(scope, pid, now, &mut effects),
            Event::Housed { scope, first } => self.registry.add_orphan(first, &[scope]),
            Event::Failed { scope, failure } => self.failed(scope, failure, &mut effects),
            Event::Opened { scope } => self.opened(scope, &mut effects),
            Event::LineClosed { line } => self.line_closed(line, now, &mut effects),
            Event::Stock { dead, unknown, suspects } => {
                self.stock(dead, unknown, &suspects, now, &mut effects);
            }
            Event::Found { scope, members } => {
                if let Some(scope) = self.registry.get_mut(scope).filter(|s| s.root == Root::Dead) {
                    scope.note_leftovers(members);
                }
            }
            Event::Spared { scope, process, rule } => {
                self.spared(scope, process, &rule, &mut effects);
            }
            Event::Left { scope, members } => self.left(scope, members, now, &mut effects),
            Event::Inherit { rows, foster, unknown, suspects } => {
                self.inherit(rows, foster, unknown, &suspects, now, &mut effects);
            }
            Event::FosterDied { scope, exit } => self.foster_died(scope, exit, now, &mut effects),
            Event::Vanished { scope } => self.vanished(scope, &mut effects),
            Event::Strays { scopes, grace } => self.strays(scopes, grace, now, &mut effects),
            Event::Stopped { scope, signal } => self.stopped(scope, signal, &mut effects),
            Event::OwnerGone => self.owner_gone(now, &mut effects),
            Event::NoChild => {
                if self.owner_gone && !self.registry.has_fosters() {
                    effects.push(Effect::Exit);
                }
            }
            Event::Tick => self.tick(now, &mut effects),
        }
        self.watch_idle(now);
        effects
    }

    fn watch_idle(&mut self, now: Instant) {
        if !self.registry.is_idle() {
            self.idle_since = None;
        } else if self.idle_since.is_none() {
            self.idle_since = Some(now);
        }
    }

    fn started(&mut self, scope: ScopeId, pid: Pid, now: Instant, effects: &mut Vec<Effect>) {
        let Some(found) = self.registry.get(scope).filter(|found| found.root == Root::Starting)
        else {
            return;
        };
        let (line, id) = (found.parent, found.id);
        let (ending, paused) = (found.ladder.is_some(), found.paused);
        let releases = found.releases;
        self.registry.set_running(scope, pid);
        if releases {
            return self.release_started(scope, now);
        }
        let reply = Reply::Started { id, pid, scope: scope.0 };
        effects.push(Effect::Reply { line, reply, about: Some(scope) });
        if ending {
            effects.push(Effect::Terminate { scope });
        } else if paused {
            effects.push(Effect::Pause { scopes: vec![scope] });
        }
    }

    fn failed(&mut self, scope: ScopeId, failure: Failure, effects: &mut Vec<Effect>) {
        let unborn = |found: &&Scope| matches!(found.root, Root::Starting | Root::None);
        if scope == ScopeId::ALL || self.registry.get(scope).filter(unborn).is_none() {
            return;
        }
        if let Some(removed) = self.registry.remove(scope) {
            if removed.releases {
                self.release_failed(removed.parent, failure, effects);
            } else {
                effects.push(failed_reply(removed.parent, removed.id, failure));
            }
            effects.push(Effect::Forget { scope });
            self.settle(removed.parent, effects);
        }
    }

    fn opened(&self, scope: ScopeId, effects: &mut Vec<Effect>) {
        if let Some(found) = self.registry.get(scope).filter(|_| scope != ScopeId::ALL) {
            let reply = Reply::Opened { id: found.id };
            effects.push(Effect::Reply { line: found.parent, reply, about: Some(scope) });
        }
    }

    /// The owner's own line says nothing by its end: it may have executed another program. A child
    /// that closes its line keeps its scope; a scope that is nothing but its line ends.
    fn line_closed(&mut self, line: ScopeId, now: Instant, effects: &mut Vec<Effect>) {
        let rootless = self.registry.get(line).is_some_and(|scope| scope.root == Root::None);
        if line != ScopeId::ALL && rootless {
            self.end(line, None, now, effects);
            self.settle(line, effects);
        }
    }

    /// Only who shares its terminal has to know.
    fn stopped(&self, scope: ScopeId, signal: i32, effects: &mut Vec<Effect>) {
        if let Some(found) = self.registry.get(scope).filter(|scope| scope.joined) {
            let reply = Reply::Stopped { id: found.id, signal };
            effects.push(Effect::Reply { line: found.parent, reply, about: Some(scope) });
        }
    }

    fn stock(
        &mut self,
        dead: Vec<Dead>,
        unknown: Vec<Unknown>,
        suspects: &[Pid],
        now: Instant,
        effects: &mut Vec<Effect>,
    ) {
        let gone: HashSet<Pid> = dead.iter().map(|dead| dead.pid).collect();
        let (mut touched, mut burdened) = (BTreeSet::new(), BTreeSet::new());
        let candidates = self.registry.may_have_left(suspects);
        for orphan in unknown {
            let scopes = attribute(orphan.tag, &candidates);
            self.registry.add_orphan(orphan.pid, &scopes);
            if !gone.contains(&orphan.pid) {
                burdened.extend(scopes);
            }
        }
        touched.extend(&burdened);
        if !dead.is_empty() {
            self.registry.progress(now);
        }
        for dead in dead {
            touched.extend(self.bury(dead, effects));
        }
        for scope in touched {
            self.follow(scope, burdened.contains(&scope), now, effects);
        }
    }

    /// Everything that it left is recorded. Gives the scopes that it stood for.
    fn bury(&mut self, dead: Dead, effects: &mut Vec<Effect>) -> Vec<ScopeId> {
        let Dead { pid, exit } = dead;
        let root_of = self.registry.root_died(pid);
        if let Some((scope, found)) = root_of.and_then(|s| Some((s, self.registry.get(s)?))) {
            if found.releases {
                self.release_ended(scope, exit.status, effects);
                effects.push(Effect::Reap { pid });
                return vec![scope];
            }
            let reply = Reply::Exited { id: found.id, exit };
            effects.push(Effect::Reply { line: found.parent, reply, about: Some(scope) });
        }
        effects.push(Effect::Reap { pid });
        root_of.map_or_else(|| self.registry.orphan_died(pid), |scope| vec![scope])
    }

    /// After a death: begin to end what it left, or find that nothing is left.
    fn follow(&mut self, scope: ScopeId, burdened: bool, now: Instant, effects: &mut Vec<Effect>) {
        let Some(found) = self.registry.get(scope) else { return };
        if found.root == Root::Dead && !found.is_empty() && found.ladder.is_none() {
            self.left_something(scope, now, effects);
        }
        let ladder = self.registry.get_mut(scope).and_then(|scope| scope.ladder.as_mut());
        if let Some(ladder) = ladder.filter(|_| burdened) {
            ladder.newcomer(now);
        }
        self.settle(scope, effects);
    }

    /// Begins to end `scope` and what is in it. Without a grace, its own counts for all of it.
    fn end(
        &mut self,
        scope: ScopeId,
        grace: Option<Duration>,
        now: Instant,
        effects: &mut Vec<Effect>,
    ) {
        let Some(grace) = grace.or(self.registry.get(scope).map(|scope| scope.grace)) else {
            return;
        };
        for sub in self.registry.with_subs(scope) {
            if sub == scope || !self.is_releasing(sub) {
                self.begin(sub, grace, now, effects);
            }
        }
    }

    fn begin(&mut self, scope: ScopeId, grace: Duration, now: Instant, effects: &mut Vec<Effect>) {
        let Some(found) = self.registry.get_mut(scope) else { return };
        if found.release == Release::Running {
            return;
        }
        if let Some(ladder) = &mut found.ladder {
            ladder.shorten(now, grace);
            return;
        }
        found.ladder = Some(Ladder::begin(now, grace));
        effects.push(Effect::Terminate { scope });
    }

    /// If nothing of `scope` is left, tells so and looks at what it was in.
    fn settle(&mut self, scope: ScopeId, effects: &mut Vec<Effect>) {
        // Lowest first: an empty scope inside may make its parent empty.
        for scope in self.registry.with_subs(scope).into_iter().rev() {
            self.settle_upwards(scope, effects);
        }
    }

    fn settle_upwards(&mut self, mut scope: ScopeId, effects: &mut Vec<Effect>) {
        while scope != ScopeId::ALL
            && self.registry.get(scope).is_some_and(Scope::is_empty)
            && self.is_released(scope, effects)
            && let Some(removed) = self.registry.remove(scope)
        {
            let parent = removed.parent;
            if removed.is_to_be_told() {
                effects.push(emptied_reply(scope, removed, Vec::new()));
            }
            effects.push(Effect::Forget { scope });
            scope = parent;
        }
    }

    /// Something cannot die: its end is told all the same, and it is waited for.
    fn left(
        &mut self,
        scope: ScopeId,
        left: Vec<Process>,
        now: Instant,
        effects: &mut Vec<Effect>,
    ) {
        self.look_later(scope, now);
        let Some(found) = self.registry.get_mut(scope).filter(|_| scope != ScopeId::ALL) else {
            return;
        };
        if found.told || found.releases {
            return;
        }
        let Some(ladder) = found.ladder.as_mut() else {
            return stays(scope, found, left, effects);
        };
        if left.is_empty() {
            return ladder.unreported();
        }
        found.told = true;
        effects.push(emptied_reply(scope, found.clone(), left));
    }

    fn owner_gone(&mut self, now: Instant, effects: &mut Vec<Effect>) {
        if self.owner_gone {
            return;
        }
        self.owner_gone = true;
        let all: Vec<_> = self
            .registry
            .iter()
            .filter(|(id, _)| !self.is_releasing(*id))
            .map(|(id, scope)| (id, scope.grace))
            .collect();
        for (scope, grace) in all {
            self.begin(scope, grace, now, effects);
        }
        self.settle(ScopeId::ALL, effects);
    }

    fn tick(&mut self, now: Instant, effects: &mut Vec<Effect>) {
        self.end_late_releases(now, effects);
        self.look_at_groups(now, effects);
        let due: Vec<_> = self.registry.iter().map(|(id, _)| id).collect();
        let (mut scopes, mut reports) = (Vec::new(), Vec::new());
        for scope in due {
            let ladder = self.registry.get_mut(scope).and_then(|scope| scope.ladder.as_mut());
            match ladder.and_then(|ladder| ladder.step(now)) {
                None => {}
                Some(Rung::Walk) => effects.push(Effect::Walk { scope }),
                Some(Rung::WalkAndKill) => {
                    effects.push(Effect::Walk { scope });
                    scopes.push(scope);
                }
                Some(Rung::Kill) => scopes.push(scope),
                Some(Rung::Report) => {
                    scopes.push(scope);
                    reports.push(Effect::Survey { scope });
                }
            }
        }
        if !scopes.is_empty() {
            effects.push(Effect::Kill { scopes });
        }
        effects.extend(reports);
        if self.is_about_to_leave(now) {
            self.leaving = true;
            effects.push(Effect::Leave);
        }
    }
}

/// Whose orphan it is: of the one scope that may have left it; if there are several, of the one that
/// its environment names, else it is held against all of them. If there is none, against the owner.
fn attribute(tag: Option<ScopeId>, candidates: &[ScopeId]) -> Vec<ScopeId> {
    match tag {
        Some(tag) if candidates.contains(&tag) => vec![tag],
        _ if candidates.is_empty() => vec![ScopeId::ALL],
        _ => candidates.to_vec(),
    }
}

fn failed_reply(line: ScopeId, id: u64, failure: Failure) -> Effect {
    Effect::Reply { line, reply: Reply::Failed { id, failure }, about: None }
}

fn emptied_reply(about: ScopeId, scope: Scope, left: Vec<Process>) -> Effect {
    let Scope { parent, id, leftovers, leftover_count, spared, release, .. } = scope;
    let release = if let Release::Over(released) = release { Some(released) } else { None };
    let emptied = Emptied { leftovers, leftover_count, left, kept: 0, spared, release };
    let reply = Reply::Emptied { id, emptied };
    Effect::Reply { line: parent, reply, about: Some(about) }
}

#[cfg(test)]
#[path = "supervisor_tests.rs"]
mod tests;

//! Lets go what a rule keeps ([`crate::keep`]), before anything of its scope is signalled: an orphan that came to this
//! guard, with all that stands below it. It leaves its scope's cgroup first, so that ending that does not hit it.
//!
//! Each guard judges by itself: what the other one has let go comes to this one as an orphan, and is what it was.

use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

use super::stock::SeenDead;
use super::{Loop, now};
use crate::hook;
use crate::identity::Stat;
use crate::journal;
use crate::keep::{Rules, Verdict, look};
use crate::launch::KEEP;
use crate::membership::{Identity, Member};
use crate::registry::ScopeId;
use crate::supervisor::Event;
use crate::sys::Pid;
use crate::sys::wait;

/// A daemon that was just left has not yet called `setsid`, or does not listen yet. It is waited for, but not for longer
/// than the grace of its scope.
const PATIENCE: Duration = Duration::from_secs(1);

/// Rounds of moving a tree that forks meanwhile.
const MOVE_ROUNDS: usize = 16;

/// What may be kept here.
#[derive(Default)]
pub(super) struct Keeping {
    rules: Rules,
    /// Since when those are waited for that may become what a rule keeps.
    waiting: HashMap<Pid, (u64, Instant)>,
    /// Who was let go, and is no child of ours.
    fosters: HashSet<Identity>,
}

impl Keeping {
    /// The rules that the owner named. What is no rule keeps nobody.
    pub(super) fn of_guard() -> Self {
        let text = std::env::var(KEEP).unwrap_or_default();
        let off = hook::is_off("keep");
        let rules = if off { Rules::default() } else { Rules::parse(&text).unwrap_or_default() };
        Self { rules, ..Self::default() }
    }

    pub(super) fn waits_for(&self, pid: Pid) -> bool {
        self.waiting.get(&pid).is_some_and(|(_, since)| now() < *since + PATIENCE)
    }
}

impl Loop {
    /// There is no rule.
    pub(super) fn keeps_nobody(&self) -> bool {
        self.keeping.rules.is_empty()
    }

    /// Lets go what a rule keeps of these scopes, each of which is being ended.
    pub(super) fn spare(&mut self, scopes: &[ScopeId]) {
        if self.keeps_nobody() {
            return;
        }
        // Nobody tells when somebody comes to us: of a tree in which nobody has died yet nothing is recorded.
        self.adopt(&mut SeenDead::default(), |_, _| ());
        for scope in scopes {
            let Some(found) = self.machine.registry().get(*scope) else { continue };
            let orphans: Vec<_> = found.orphans.iter().copied().collect();
            for pid in orphans {
                self.spare_one(*scope, pid);
            }
        }
    }

    fn spare_one(&mut self, scope: ScopeId, pid: Pid) {
        let Some(stat) = Stat::read(pid).filter(|_| wait::look_at(pid).is_none()) else { return };
        let start = stat.start;
        // It came to us because its parent is dead.
        let (verdict, rule) = self.keeping.rules.judge(&look::facts(pid, &stat, true));
        match (verdict, rule.map(|rule| rule.name.clone())) {
            (Verdict::Keep, Some(rule)) => {
                self.keeping.waiting.remove(&pid);
                let member = Member { pid, stat };
                if self.move_out(&member) {
                    self.let_live(scope, &member, rule);
                }
            }
            (Verdict::Wait, _) => {
                let since = (start, now());
                let known = self.keeping.waiting.entry(pid).or_insert(since);
                // Another process has its number by now.
                if known.0 != start {
                    *known = since;
                }
            }
            (Verdict::End | Verdict::Keep, _) => {
                self.keeping.waiting.remove(&pid);
            }
        }
    }

    fn let_live(&mut self, scope: ScopeId, member: &Member, rule: String) {
        self.write_down_spared(scope, member, &rule);
        let process = member.stat.process(member.pid);
        // That nobody else is left may be known by that.
        self.backlog = true;
        self.feed(Event::Spared { scope, process, rule });
    }

    fn write_down_spared(&self, scope: ScopeId, member: &Member, rule: &str) {
        let spawn = self.machine.registry().get(scope).map_or(0, |scope| scope.id);
        let (pid, start) = (member.pid.cast_unsigned(), member.stat.start);
        let inode = member
            .hold()
            .and_then(|handle| crate::identity::pidfd_inode(std::os::fd::AsFd::as_fd(&handle)));
        let (inode, rule) = (inode.unwrap_or(0), journal::RuleName::of(rule));
        self.write_down(journal::Event::Spared { spawn, pid, start, inode, rule });
    }

    /// Without those that are waited for, and who stands below them: a cgroup has them too.
    pub(super) fn without_waiting(&self, members: Vec<Member>) -> Vec<Member> {
        let pids = self.keeping.waiting.keys().copied().filter(|pid| self.keeping.waits_for(*pid));
        let waiting: Vec<_> = pids.collect();
        if waiting.is_empty() {
            return members;
        }
        let below = self.source.walk(waiting, |_| ());
        let below: HashSet<_> = below.iter().map(Member::identity).collect();
        members.into_iter().filter(|member| !below.contains(&member.identity())).collect()
    }

    /// The grace of these is over: who is no rule's by now is ended.
    /// Whether there was anybody.
    pub(super) fn wait_no_more(&mut self, scopes: &[ScopeId]) -> bool {
        let registry = self.machine.registry();
        let of = |scope: &ScopeId| registry.get(*scope).map(|scope| scope.orphans.clone());
        let pids: Vec<_> = scopes.iter().filter_map(of).flatten().collect();
        let mut any = false;
        for pid in pids.into_iter().filter(|pid| self.keeping.waits_for(*pid)).collect::<Vec<_>>() {
            if let Some((_, since)) = self.keeping.waiting.get_mut(&pid) {
                *since = since.checked_sub(PATIENCE).unwrap_or(*since);
                any = true;
            }
        }
        any
    }

    /// Whether a rule keeps this orphan as it is now.
    pub(super) fn keeps(&self, pid: Pid) -> bool {
        if self.keeping.rules.is_empty() {
            return false;
        }
        let Some(stat) = Stat::read(pid) else { return false };
        self.keeping.rules.judge(&look::facts(pid, &stat, true)).0 == Verdict::Keep
    }

    /// Whether our children are such as were let go: then the kernel does not say any more that none is left.
    pub(super) fn has_spared_only(&self) -> bool {
        let registry = self.machine.registry();
        if !self.owner_gone || !registry.has_spared() {
            return false;
        }
        let children = self.source.own_children();
        children.is_ok_and(|all| all.iter().all(|pid| registry.is_spared(*pid)))
    }

    /// Of a scope that is being ended and whose processes are no children of ours: lets go what a rule keeps, and gives
    /// the others. `tops` are those that were found by other means than their parents.
    pub(super) fn spare_fosters(&mut self, scope: ScopeId, members: Vec<Member>) -> Vec<Member> {
        let ends = self.machine.registry().get(scope).is_some_and(|scope| scope.ladder.is_some());
        if self.keeping.rules.is_empty() || !ends {
            return members;
        }
        let known: HashSet<_> = members.iter().map(|member| member.pid).collect();
        let mut kept = Vec::new();
        let root = self.fosters.get(&scope).map(|foster| foster.member.identity());
        for member in members.iter().filter(|member| Some(member.identity()) != root) {
            let is_known = self.keeping.fosters.contains(&member.identity());
            let left = !known.contains(&member.stat.parent);
            let judged = self.keeping.rules.judge(&look::facts(member.pid, &member.stat, left));
            let (Verdict::Keep, Some(rule)) = judged else { continue };
            let rule = rule.name.clone();
            if is_known {
                kept.push(member.clone());
            } else if self.move_out(member) {
                self.keeping.fosters.insert(member.identity());
                self.let_live(scope, member, rule);
                kept.push(member.clone());
            }
        }
        let below: HashSet<_> = self.below(kept).iter().map(Member::identity).collect();
        members.into_iter().filter(|member| !below.contains(&member.identity())).collect()
    }

    /// Moves a process and what stands below it out of its scope's cgroup, into the one where we stand ourselves. Where it
    /// stands in none of ours nothing is to be done. `false` where it cannot be moved: then it ends with the others.
    fn move_out(&mut self, member: &Member) -> bool {
        if hook::is_off("keep-move") {
            return true;
        }
        for _ in 0..MOVE_ROUNDS {
            let tree = self.below([member.clone()]);
            let inside: Vec<_> = tree.iter().filter(|one| self.stands_in_a_cell(one.pid)).collect();
            if inside.is_empty() {
                return true;
            }
            for one in inside {
                if self.move_to_base(one.pid).is_err() && self.stands_in_a_cell(one.pid) {
                    return false;
                }
            }
        }
        false
    }
}

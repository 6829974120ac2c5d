//! Processes that lost the guard that was their parent: known by the handle of their root and by the mark
//! in their environment. That none is left is known from looking, not from the kernel: this is the
//! degraded state, of which [`crate::supervisor::Event::Inherit`] is the beginning.

use std::collections::{HashMap, HashSet};
use std::ffi::OsStr;
use std::fs;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;

use super::groups::FIRST_MARK;
use super::{Loop, set_up};
use crate::exit::{Exit, ExitStatus, Reached, Usage};
use crate::identity::{self, Stat};
use crate::launch;
use crate::membership::Member;
use crate::peer::Held;
use crate::program::{FIRST_ROLE, KEEPER_ROLE, SUPERVISOR_ROLE, Stand, is_role};
use crate::registry::{Root, ScopeId};
use crate::supervisor::Event;
use crate::sys::Pid;
use crate::sys::wait;
use crate::table::{Flag, Stage};

/// A root that is no child of ours.
pub(super) struct Foster {
    pub(super) handle: OwnedFd,
    pub(super) member: Member,
}

impl Loop {
    /// Watches the process with this number and start time. If it is gone, that is found later.
    pub(super) fn foster(&mut self, scope: ScopeId, pid: Pid, start: u64) {
        let Ok(handle) = wait::open_child(pid) else { return };
        let Some(stat) = Stat::read(pid).filter(|stat| !stat.is_dead()) else { return };
        // One that nobody had looked at before its guard died is known by its mark.
        let same = if start == 0 { self.tag_of(pid) == Some(scope) } else { stat.start == start };
        if same {
            self.fosters.insert(scope, Foster { handle, member: Member { pid, stat } });
            self.meet_early(scope);
        }
    }

    /// In the owner's group a root may end in the moment in which its owner does: the kernel hangs up a group that
    /// nobody can let go on. Who stands below it is held before that, since not all have a mark.
    fn meet_early(&mut self, scope: ScopeId) {
        if set_up::role_numbers().stand == Stand::Near {
            self.foster_members(scope);
        }
    }

    /// Watches what the owner hands over.
    ///
    /// Noted as what was inherited is, so that the other guard can go on with it. Without room for that it
    /// is ours alone.
    pub(super) fn watch(
        &mut self,
        scope: ScopeId,
        handle: Option<OwnedFd>,
        command: Option<OwnedFd>,
    ) {
        if let Some(command) = command {
            self.commands.insert(scope, command);
            self.mirror(Held::Command, scope);
        }
        let slot = self.claim(scope);
        let held = handle.and_then(|handle| {
            let pid = identity::pid_of(handle.as_fd())?;
            Some((handle, Member { pid, stat: Stat::read(pid)? }))
        });
        if let Some(slot) = slot {
            for flag in [Flag::Foster, Flag::ToldStarted] {
                self.table.flag(slot, flag, true);
            }
            match &held {
                Some((_, Member { pid, stat })) => {
                    self.table.set_process(slot, *pid);
                    self.table.set_start(slot, *pid, stat.start);
                }
                None => self.table.advance(slot, Stage::Dead),
            }
            let told = self.machine.registry().get(scope).is_some_and(|scope| scope.told);
            self.table.flag(slot, Flag::ToldEmptied, told);
        }
        if let Some((handle, member)) = held {
            self.fosters.insert(scope, Foster { handle, member });
            self.meet_early(scope);
        }
        self.find_lost_fosters();
    }

    /// Those that were gone before they could be watched.
    pub(super) fn find_lost_fosters(&mut self) {
        let registry = self.machine.registry();
        let lost: Vec<_> = registry
            .iter()
            .filter(|(id, scope)| {
                matches!(scope.root, Root::Foster(_)) && !self.fosters.contains_key(id)
            })
            .map(|(id, _)| id)
            .collect();
        self.fosters_died(lost);
    }

    pub(super) fn fosters_died(&mut self, scopes: Vec<ScopeId>) {
        let mut patience = wait::PATIENCE;
        for scope in scopes {
            let handle = self.fosters.remove(&scope).map(|foster| foster.handle);
            let exit = handle.and_then(|handle| wait::exit_of_other(&handle, &mut patience));
            let unknown = || Exit {
                status: ExitStatus::Unknown,
                usage: Usage::default(),
                reached: Reached::default(),
            };
            let mut exit = exit.unwrap_or_else(unknown);
            exit.reached = self.reached(scope, exit.status);
            self.feed(Event::FosterDied { scope, exit });
        }
    }

    /// Everything of such a scope: its root, what carries its mark, what stands below these, and what was
    /// met before: it may have lost its parent meanwhile, and may never have had the mark.
    pub(super) fn foster_members(&mut self, scope: ScopeId) -> Vec<Member> {
        if self.groups.contains_key(&scope) {
            return self.group_members(scope);
        }
        let root = self.fosters.get(&scope).map(|foster| foster.member.clone());
        let met = self.met.remove(&scope).unwrap_or_default();
        let met = met.into_iter().filter_map(|(member, handle)| {
            let now = Stat::read(member.pid)?;
            // The handle tells whether that number still is the one that was met.
            let same = identity::pid_of(handle.as_fd()) == Some(member.pid);
            same.then_some(Member { pid: member.pid, stat: now })
        });
        let met: Vec<_> = met.collect();
        let celled = self.cell_members(scope);
        let tops = root.into_iter().chain(self.marked(scope)).chain(met).chain(celled);
        let mut members = self.below(tops);
        let mut seen = HashSet::new();
        members.retain(|member| seen.insert(member.identity()));
        let members = self.spare_fosters(scope, members);
        let held = members.iter().filter_map(|member| Some((member.clone(), member.hold()?)));
        let held = held.collect();
        self.met.insert(scope, held);
        members
    }

    /// These and everything below them.
    pub(super) fn below(&self, tops: impl IntoIterator<Item = Member>) -> Vec<Member> {
        let mut members = Vec::new();
        for top in tops {
            let below = self.source.walk([top.pid], |_| ());
            // Another process may have its number by now.
            if below.first().is_some_and(|first| first.identity() == top.identity()) {
                members.extend(below);
            }
        }
        members
    }

    /// Processes whose environment names this scope. All are looked at once in a turn, however many scopes ask:
    /// who is born after that stands below one who was met.
    pub(super) fn marked(&mut self, scope: ScopeId) -> Vec<Member> {
        let marks = self.marks.take().unwrap_or_else(|| self.read_marks());
        let marked = marks.get(&scope).cloned().unwrap_or_default();
        self.marks = Some(marks);
        marked
    }

    fn read_marks(&self) -> HashMap<ScopeId, Vec<Member>> {
        let mut marks: HashMap<_, Vec<_>> = HashMap::new();
        for pid in numbers_of_all().filter(|pid| !self.is_guard(*pid)) {
            let found = Stat::read(pid).filter(|stat| !stat.is_dead());
            let found = found.and_then(|stat| Some((self.tag_of(pid)?, stat)));
            if let Some((tag, stat)) = found
                && Stat::read(pid).is_some_and(|now| now.start == stat.start)
            {
                marks.entry(tag).or_default().push(Member { pid, stat });
            }
        }
        marks
    }

    /// Started from inside such a scope, a guard may carry its mark.
    pub(super) fn is_guard(&self, pid: Pid) -> bool {
        pid == identity::own_pid() || self.is_peer(pid)
    }

    /// Scopes that the marks of living processes name and that neither guard knows. What the owner has
    /// started itself is no stray.
    pub(super) fn strays(&mut self) -> Vec<ScopeId> {
        let celled = self.celled();
        let mut known: HashSet<_> = self.machine.registry().iter().map(|(id, _)| id).collect();
        if let Some(peer) = &self.peer {
            known.extend(self.table.rows(peer.generation).iter().map(|row| row.scope));
        }
        let is_stray = |tag: &ScopeId| !known.contains(tag) && tag.0 < FIRST_MARK;
        let mut strays: Vec<_> =
            self.read_marks().into_keys().chain(celled).filter(is_stray).collect();
        strays.sort_unstable();
        strays.dedup();
        strays
    }

    /// The scope that a process's environment names, if it is one of ours.
    pub(super) fn tag_of(&self, pid: Pid) -> Option<ScopeId> {
        launch::tag_of(pid, &self.owner_identity)
    }
}

pub(super) fn numbers_of_all() -> impl Iterator<Item = Pid> {
    let entries = fs::read_dir("/proc").into_iter().flatten();
    entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
}

/// Whether it is a guard, by its name and its role: to count it, not to spare it.
pub(super) fn is_guard_of_another(member: &Member) -> bool {
    let named = ["warden", "minder", "porter"].contains(&&*member.stat.name);
    let line =
        if named { fs::read(format!("/proc/{}/cmdline", member.pid)) } else { return false };
    let line = line.unwrap_or_default();
    let role = line.split(|byte| *byte == 0).nth(1).unwrap_or_default();
    let role = OsStr::from_bytes(role);
    [KEEPER_ROLE, SUPERVISOR_ROLE, FIRST_ROLE].iter().any(|known| is_role(role, known))
}

//! What dead owners left where we are, while it is ended; how guards say that what is theirs is not such; and cgroups that
//! are empty and could not be removed yet. For [`super`].

use std::io;
use std::time::{Duration, Instant};

use super::members_of;
use crate::cgroup::{self, Place, Stale};
use crate::containment::Containment;
use crate::registry::ScopeId;
use crate::spawn::DEFAULT_GRACE;
use crate::succession::Role;
use crate::supervisor_loop::{Loop, now, scope};

/// What is empty and cannot be removed yet is tried again after this time; what a dead owner left, first
/// after this time, then after twice that, up to [`SLOWEST_LOOK`].
pub(super) const FIRST_LOOK: Duration = Duration::from_millis(20);
const SLOWEST_LOOK: Duration = Duration::from_secs(2);

/// Tries of locking a place that others look at; a dead owner's may be held by those who end it, so not for long.
const HOLD_TRIES: usize = 96;

/// What a dead owner left, while it is ended.
pub(super) struct Ending {
    left: Stale,
    kill_at: Instant,
    pub(super) killed: bool,
}

impl Loop {
    /// Says that a guard lives, where nobody else may say it: what a dead owner left is otherwise ended
    /// by the guards of the next one, which know nothing of what is to be kept.
    pub(in super::super) fn hold_place(&mut self) {
        if self.tier.is_blind() {
            return;
        }
        // Guards that left may have removed the one that we found.
        self.tier.place = self.tier.place.take().filter(Place::is_there);
        for tried in 0..HOLD_TRIES {
            match self.place(false) {
                // Somebody looks whether its owner lives.
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => cgroup::pause(tried),
                Ok(_) | Err(_) => return,
            }
        }
    }

    /// Looks for what dead owners left where we are. Ending it takes longer the more there is, and an owner waits for
    /// our hello and its answers: one after the other is begun with, between these ([`Loop::end_next`]).
    pub(in super::super) fn find_stale(&mut self) {
        if self.tier.leaves_stale || self.succession.role() != Role::Supervisor {
            return;
        }
        let base = self.tier.base.as_ref().ok();
        let base = base.filter(|_| self.tier.asked != Containment::Subreaper).cloned();
        if let Some(base) = &base {
            cgroup::rationed::remove_empty_leaf(base);
        }
        // Those of version 1 last: whoever is told by one of version 2 is not told again.
        let bases = base.iter().flat_map(|base| scope::bases(base)).collect::<Vec<_>>();
        let found = bases.iter().flat_map(|base| cgroup::stale(base)).map(|left| (left, true));
        let groups = self.tier.pens.groups();
        let groups = groups.iter().flat_map(|group| cgroup::stale(group));
        let groups = groups.map(|left| (left, base.is_none()));
        // Most of it is empty, and that is no work; each of the others is held by its lock until its turn.
        self.tier.found = found.chain(groups).filter(|(left, _)| !left.cell.remove()).collect();
    }

    /// Begins to end one of those that were found.
    pub(in super::super) fn end_next(&mut self) {
        let Some((left, tell)) = self.tier.found.pop_front() else { return };
        if tell {
            left.cell.freeze();
            let members = members_of(&left.cell);
            for member in &members {
                member.send(&[libc::SIGTERM, libc::SIGCONT]);
            }
            left.cell.thaw();
            let pids: Vec<_> = members.iter().map(|member| member.pid).collect();
            self.write_down_signal(ScopeId::ALL, libc::SIGTERM, pids);
            self.tier.pause = FIRST_LOOK;
        }
        self.tier.stale.push(Ending { left, kill_at: now() + DEFAULT_GRACE, killed: false });
        // Each look is at all of them.
        if !self.tier.has_found() {
            self.look_at_cells_within(FIRST_LOOK);
        }
    }

    pub(super) fn look_at_cells_within(&mut self, pause: Duration) {
        let due = now() + pause;
        self.tier.due = Some(self.tier.due.map_or(due, |before| before.min(due)));
    }

    /// Goes on with what is being ended or removed, when it is time.
    pub(in super::super) fn look_at_cells(&mut self) {
        if self.tier.due.is_none_or(|due| now() < due) {
            return;
        }
        self.tier.due = None;
        self.tier.lingering.retain(|cell| !cell.remove());
        let (mut killed, mut kept) = (Vec::new(), Vec::new());
        for mut ending in std::mem::take(&mut self.tier.stale) {
            if ending.left.cell.remove() {
                continue;
            }
            if now() >= ending.kill_at {
                if !ending.killed {
                    killed.extend(ending.left.cell.pids());
                }
                if !ending.left.cell.kill() {
                    members_of(&ending.left.cell).iter().for_each(|m| m.send(&[libc::SIGKILL]));
                }
                ending.killed = true;
            }
            kept.push(ending);
        }
        self.tier.stale = kept;
        self.write_down_signal(ScopeId::ALL, libc::SIGKILL, killed);
        if !self.tier.lingering.is_empty() || !self.tier.stale.is_empty() {
            self.tier.pause = (self.tier.pause * 2).min(SLOWEST_LOOK);
            let until_kill = self.tier.stale.iter().filter(|ending| !ending.killed);
            let until_kill = until_kill.map(|e| e.kill_at.saturating_duration_since(now())).min();
            self.look_at_cells_within(until_kill.unwrap_or(SLOWEST_LOOK).min(self.tier.pause));
        }
    }
}

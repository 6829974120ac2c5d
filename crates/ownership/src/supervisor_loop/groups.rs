//! Adopted groups: who belongs to them, and how they are reached.
//!
//! They are held by a handle of their leader, through which the kernel signals the group itself (Linux
//! 6.9) even when the leader is reaped. A number is trusted only while it is known to be the leader's still:
//! the kernel hands it out again when nobody bears it, as process, group or session. So what is found by
//! number counts only if afterwards the leader is not reaped, or its group still has a member.

use std::collections::HashSet;
use std::os::fd::{AsFd, OwnedFd};

use super::Loop;
use super::fosters::numbers_of_all;
use crate::identity::{self, Stat};
use crate::membership::{Member, ProcessGroup};
use crate::peer::Held;
use crate::protocol::Adopted;
use crate::registry::ScopeId;
use crate::supervisor::Event;
use crate::sys::{signal, wait};
use crate::table::{Flag, Row};

/// Marks of what an owner starts itself begin here: no scope of a guard has such a number.
pub(crate) const FIRST_MARK: u64 = 1 << 63;

/// Looks at who is there before nobody is believed: one look may miss who forks and exits.
const LOOKS: usize = 3;

/// A group that something else started.
pub(super) struct Group {
    pub(super) handle: OwnedFd,
    adopted: Adopted,
    /// The leader's death was seen, and who stood in its session by then.
    pub(super) leader_died: bool,
    /// Who was seen when that was certain.
    seen: Vec<Member>,
}

impl Loop {
    pub(super) fn own_group(&mut self, scope: ScopeId, adopted: Adopted, handle: OwnedFd) {
        // Without room for a row it is ours alone.
        if let Some(slot) = self.claim(scope) {
            self.table.set_process(slot, adopted.leader);
            self.table.set_start(slot, adopted.leader, adopted.start);
            self.table.set_mark(slot, adopted.mark);
            for flag in [Flag::Foster, Flag::Group] {
                self.table.flag(slot, flag, true);
            }
            self.table.flag(slot, Flag::Session, adopted.session);
        }
        self.hold_group(scope, adopted, handle);
        self.mirror(Held::Group, scope);
    }

    fn hold_group(&mut self, scope: ScopeId, adopted: Adopted, handle: OwnedFd) {
        // The owner has refused these; a guard may be another one by now.
        let safe = ProcessGroup::led_by(adopted.leader, self.protected).is_some();
        if safe && !self.is_guard(adopted.leader) {
            let group = Group { handle, adopted, leader_died: false, seen: Vec::new() };
            self.groups.insert(scope, group);
            self.note_group(scope);
        }
    }

    /// A group that the other guard had.
    pub(super) fn take_group(&mut self, row: &Row) {
        let adopted = Adopted {
            leader: row.pid,
            start: row.start,
            session: row.has(Flag::Session),
            mark: row.mark,
        };
        let held = self.mirrors.remove(&(Held::Group, row.scope));
        let handle = held.or_else(|| {
            let handle = wait::open_child(row.pid).ok()?;
            Stat::read(row.pid).filter(|stat| stat.start == row.start)?;
            Some(handle)
        });
        if let Some(handle) = handle {
            self.hold_group(row.scope, adopted, handle);
        }
    }

    pub(super) fn let_go_once_empty(&mut self, scope: ScopeId) -> Vec<Event> {
        self.flag(scope, Flag::OnceEmpty, true);
        self.survey(scope)
    }

    /// Its leader is dead. What it has left is nobody's child a moment later, and only its session, group
    /// and mark tell.
    pub(super) fn leader_died(&mut self, scope: ScopeId) {
        let session = self.groups.get_mut(&scope).map(|group| {
            group.leader_died = true;
            group.adopted
        });
        // Just now the number was the leader's.
        let stranger = |number| Stat::read(number).is_some_and(|stat| !stat.is_dead());
        let left = session.filter(|group| group.session && !stranger(group.leader)).map(|group| {
            let left = by_number(group).collect::<Vec<_>>();
            if stranger(group.leader) { Vec::new() } else { left }
        });
        self.note_group(scope);
        if let Some(group) = self.groups.get_mut(&scope) {
            group.seen.extend(left.into_iter().flatten());
        }
    }

    /// Remembers who is there now.
    fn note_group(&mut self, scope: ScopeId) {
        self.marks = None;
        let members = self.group_members(scope);
        if let Some(group) = self.groups.get_mut(&scope) {
            group.seen = members;
        }
    }

    /// TERM and CONT to the group, after who stands below it was noted: a moment later they are nobody's
    /// children. Those are reached one by one, by the walk that follows.
    pub(super) fn terminate_group(&mut self, scope: ScopeId) {
        self.note_group(scope);
        let Some(group) = self.groups.get(&scope) else { return };
        let mut sent = Ok(());
        for number in self.term_and_cont() {
            sent = sent.and(signal::send_group(group.handle.as_fd(), *number));
        }
        let leader = group.adopted.leader;
        self.reached.entry(scope).or_default().group = sent.is_ok().then_some(leader);
        self.write_down_signal(scope, libc::SIGTERM, sent.is_ok().then_some(leader));
    }

    /// Everybody of a group who lives.
    pub(super) fn group_members(&mut self, scope: ScopeId) -> Vec<Member> {
        for _ in 0..LOOKS {
            let members = self.look_at_group(scope);
            if !members.is_empty() {
                return members;
            }
            // Marks that were read before are none of another look.
            self.marks = None;
        }
        Vec::new()
    }

    fn look_at_group(&mut self, scope: ScopeId) -> Vec<Member> {
        let Some(group) = self.groups.get(&scope) else { return Vec::new() };
        let (mark, mut seen) = (group.adopted.mark, group.seen.clone());
        // A stranger may have the reaped leader's number, and have begun in the same clock tick: the handle tells.
        let leader = group.adopted.leader;
        let is_leaders = identity::pid_of(group.handle.as_fd()) == Some(leader);
        seen.retain(|member| is_leaders || member.pid != leader);
        let numbered: Vec<_> = by_number(group.adopted).collect();
        let numbered = if group.has_its_number() { numbered } else { Vec::new() };
        // Scopes of guards have marks of other numbers, and their own ends.
        let marked = match mark {
            FIRST_MARK.. => self.marked(ScopeId(mark)),
            _ => Vec::new(),
        };
        let tops = seen.into_iter().chain(numbered).chain(marked);
        let mut members = self.below(tops);
        let mut seen = HashSet::new();
        members.retain(|member| !self.is_guard(member.pid) && seen.insert(member.identity()));
        members
    }
}

impl Group {
    /// Whether the leader's number is nobody else's: it is not reaped, or its group has a member.
    fn has_its_number(&self) -> bool {
        identity::pid_of(self.handle.as_fd()) == Some(self.adopted.leader)
            || signal::send_group(self.handle.as_fd(), 0).is_ok()
    }
}

/// Who bears the leader's number as that of its group, or of its session.
fn by_number(group: Adopted) -> impl Iterator<Item = Member> {
    let Adopted { leader, session, .. } = group;
    numbers_of_all().filter_map(move |pid| {
        let stat = Stat::read(pid).filter(|stat| !stat.is_dead())?;
        let bears = stat.group == leader || session && stat.session == leader;
        bears.then_some(Member { pid, stat })
    })
}

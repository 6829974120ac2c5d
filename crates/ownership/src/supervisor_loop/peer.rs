//! The other guard: what is said to it, and what follows when it is gone. Each step of
//! [`crate::succession`] in its own function.

use std::collections::HashSet;
use std::os::fd::{AsFd, OwnedFd};

use super::voice::{Line, Word};
use super::{BATCH, Loop, now, set_up};
use crate::exit::ExitStatus;
use crate::identity::Stat;
use crate::journal;
use crate::launch;
use crate::line::{self, Received};
use crate::peer::{Held, Note};
use crate::program::{RoleNumbers, SUPERVISOR_ROLE};
use crate::registry::ScopeId;
use crate::spawn::DEFAULT_GRACE;
use crate::succession::{Gone, Role, Step};
use crate::supervisor::{Event, Unknown};
use crate::sys::wait::{self, Dead};
use crate::sys::{Pid, signal};
use crate::table::{Flag, Row, Stage};

/// The other guard.
pub(super) struct Peer {
    pub(super) handle: OwnedFd,
    /// 0 for a keeper, which is no child of ours.
    pub(super) pid: Pid,
    /// Its number for people.
    shown: Pid,
    pub(super) generation: u32,
    pub(super) link: Line,
    /// Nothing more comes over the link; its death is told by its handle.
    pub(super) hung_up: bool,
    /// It knows that nothing of ours is left.
    told_settled: bool,
}

impl Peer {
    pub(super) fn new(
        handle: OwnedFd,
        (pid, shown): (Pid, Pid),
        generation: u32,
        link: OwnedFd,
    ) -> Self {
        let link = Line::new(link);
        Self { handle, pid, shown, generation, link, hung_up: false, told_settled: false }
    }
}

impl Loop {
    /// Whether this child of ours is the other guard.
    pub(super) fn is_peer(&self, pid: Pid) -> bool {
        self.peer.as_ref().is_some_and(|peer| peer.pid == pid)
    }

    /// The supervisor below us, if it is dead and not reaped.
    pub(super) fn dead_peer(&self) -> Option<Dead> {
        self.peer.as_ref().filter(|peer| peer.pid != 0).and_then(|peer| wait::look_at(peer.pid))
    }

    /// Whether the supervisor below us is on its way out: what it had comes to us before it is seen dead, and
    /// is nobody's leavings. Asked after a list of children was read, it holds for that list.
    pub(super) fn peer_is_leaving(&self) -> bool {
        let below = self.peer.as_ref().filter(|peer| peer.pid != 0);
        below.is_some_and(|peer| Stat::read(peer.pid).is_none_or(|stat| stat.exiting))
    }

    pub(super) fn tell_peer(&mut self, note: &Note, fds: Vec<OwnedFd>) {
        if let Some(peer) = &mut self.peer {
            let word = Word { bytes: note.encode(), fds, heard: None, news: None };
            peer.link.waiting.push_back(word);
        }
    }

    /// At once: what it is about may be all that is left of us a moment later.
    pub(super) fn mirror(&mut self, held: Held, scope: ScopeId) {
        if self.off.mirror {
            return;
        }
        let fd = match held {
            Held::Line => self.lines.get(&scope).map(|line| &line.socket),
            Held::Command => self.commands.get(&scope),
            Held::Group => self.groups.get(&scope).map(|group| &group.handle),
        };
        let Some(copy) = fd.and_then(|fd| fd.try_clone().ok()) else { return };
        self.tell_peer(&Note::Mirror(held, scope), vec![copy]);
        self.flush_link();
    }

    /// What can be said to the other guard is said. Its death is told otherwise.
    pub(super) fn flush_link(&mut self) {
        if let Some(peer) = &mut self.peer {
            let mut heard = Vec::new();
            if !peer.link.flush(&mut heard) {
                peer.link.silence(&mut heard);
            }
        }
    }

    /// One that was not told yet is not told at all: a guard that is stopped would let us run out of
    /// descriptors.
    pub(super) fn unmirror(&mut self, held: Held, scope: ScopeId) {
        let Some(peer) = self.peer.as_mut().filter(|_| scope != ScopeId::ALL) else { return };
        let mirror = Note::Mirror(held, scope).encode();
        let waiting = peer.link.waiting.len();
        peer.link.waiting.retain(|word| word.bytes != mirror);
        if peer.link.waiting.len() == waiting {
            self.tell_peer(&Note::Unmirror(held, scope), Vec::new());
        }
    }

    /// What the other guard has said, and then whether it is gone.
    pub(super) fn hear_peer(&mut self, gone: bool, said: bool) {
        if said || gone {
            self.hear_notes();
        }
        if gone {
            self.peer_gone(Gone::Killed);
        }
    }

    /// A batch of notes; whether there may be more.
    fn hear_notes(&mut self) -> bool {
        for _ in 0..BATCH {
            let Some(peer) = self.peer.as_mut().filter(|peer| !peer.hung_up) else { return false };
            match line::receive(peer.link.socket.as_fd(), &mut self.buffer, false) {
                Ok(Received::Record { bytes, fds }) => {
                    if let Some(note) = Note::decode(&bytes) {
                        self.take_note(note, fds);
                    }
                }
                Ok(Received::Bodiless { .. } | Received::Junk) => {}
                Err(rustix::io::Errno::AGAIN) => return false,
                Ok(Received::End) | Err(_) => peer.hung_up = true,
            }
        }
        true
    }

    fn take_note(&mut self, note: Note, fds: Vec<OwnedFd>) {
        match note {
            Note::Mirror(Held::Line, ScopeId::ALL) => {
                if let Some(line) = fds.into_iter().next() {
                    self.owner_came_back(line);
                }
            }
            Note::Recounted => self.tell_held_news(),
            Note::Mirror(held, scope) => {
                self.mirrors.extend(fds.into_iter().next().map(|fd| ((held, scope), fd)));
            }
            Note::Unmirror(held, scope) => drop(self.mirrors.remove(&(held, scope))),
            Note::Relay(request) => {
                self.feed(Event::Request { line: ScopeId::ALL, request, fds });
            }
            // Whoever waits for it looks again in this turn.
            Note::Settled => self.backlog = true,
        }
    }

    /// The supervisor below us is dead; it is not reaped yet.
    pub(super) fn supervisor_died(&mut self, dead: &Dead) {
        if self.off.keeper_watch {
            wait::reap(dead.pid);
            self.peer = None;
            return;
        }
        self.hear_notes_to_the_end();
        let how = match dead.exit.status {
            ExitStatus::Code(0) => Gone::Left,
            ExitStatus::Code(_) => Gone::ByItself,
            ExitStatus::Signal { signal, .. } if FAULTS.contains(&signal) => Gone::ByItself,
            ExitStatus::Signal { .. } | ExitStatus::Unknown => Gone::Killed,
        };
        wait::reap(dead.pid);
        self.peer_gone(how);
    }

    /// A line that it mirrored in its last moment is not lost.
    fn hear_notes_to_the_end(&mut self) {
        while self.hear_notes() {}
    }

    fn peer_gone(&mut self, how: Gone) {
        self.hear_notes_to_the_end();
        for step in self.succession.peer_gone(how, now()) {
            match step {
                Step::TakeOver => self.take_over(false),
                Step::Foster => self.take_over(true),
                Step::Start => self.start_due = true,
                Step::ServeAlone => self.serve_alone(),
                // It may still have orphans that are nobody's but the owner's: these have no row.
                Step::Leave if self.machine.registry().is_idle() => self.done = true,
                Step::Leave => self.start_due = true,
                Step::Wake | Step::Kill => self.signal_peer(step),
            }
        }
    }

    /// What the other guard had is ours. As fosters, if its children are not.
    fn take_over(&mut self, foster: bool) {
        self.die_at("takeover");
        let Some(peer) = self.peer.take() else { return };
        self.hold_place();
        self.serves = false;
        self.recount = None;
        self.remove_door();
        self.machine.set_idle_limit(None, now());
        let (pid, generation) = (peer.shown.cast_unsigned(), peer.generation);
        self.write_down(journal::Event::Takeover { pid, generation });
        self.table.forget_claims(peer.generation);
        if foster {
            self.table.note_lost_parent();
        }
        let mut rows = self.table.rows(peer.generation);
        if self.off.table {
            rows.clear();
        }
        let children = self.source.own_children().unwrap_or_default();
        for row in &mut rows {
            if !children.contains(&row.first) && !foster {
                row.first = 0;
            }
            self.take_row(row, foster || row.has(Flag::Foster));
        }
        let (unknown, suspects) = match foster {
            true => (Vec::new(), Vec::new()),
            false => self.left_behind(&rows),
        };
        let taken: Vec<_> = rows.iter().map(|row| row.scope).collect();
        // A copy of a template that was not registered must not go on.
        for row in rows.iter().filter(|row| row.pid == 0 && !row.has(Flag::Rootless)) {
            self.mirrors.remove(&(Held::Line, row.scope));
        }
        // Before anything is said on them.
        for scope in &taken {
            self.take_line(*scope);
        }
        self.look_again_for_pens();
        self.feed(Event::Inherit { rows, foster, unknown, suspects });
        for scope in taken {
            self.settle_line(scope);
        }
        self.find_lost_fosters();
        self.end_strays();
        self.mirrors.clear();
        self.backlog = true;
    }

    fn take_row(&mut self, row: &mut Row, foster: bool) {
        if self.was_never_handed_out(row) {
            row.stage = Stage::Intent;
        }
        self.table.take_over(row.slot, self.generation);
        self.rows.insert(row.scope, row.slot);
        if row.first != 0 {
            self.firsts.insert(row.scope, row.first);
        }
        if let Some(command) = self.mirrors.remove(&(Held::Command, row.scope)) {
            self.commands.insert(row.scope, command);
        }
        if foster && !row.has(Flag::Rootless) {
            self.table.flag(row.slot, Flag::Foster, true);
        }
        if row.pid == 0
            || row.has(Flag::Rootless)
            || matches!(row.stage, Stage::Dead | Stage::Empty)
        {
            return;
        }
        if row.has(Flag::Group) {
            self.take_group(row);
        } else if foster {
            self.foster(row.scope, row.pid, row.start);
        } else if let Ok(handle) = wait::open_child(row.pid) {
            self.handles.insert(row.pid, handle);
        } else {
            return;
        }
        let held = self.handles.contains_key(&row.pid) || self.fosters.contains_key(&row.scope);
        if row.start == 0 && held {
            self.unread.push((row.slot, row.pid));
        }
    }

    /// The other end of a scope that is nothing but its line may have died with the guard that made it:
    /// then nobody was told, and who asked asks again.
    fn was_never_handed_out(&self, row: &Row) -> bool {
        let untold = row.has(Flag::Rootless) && !row.has(Flag::ToldStarted);
        let line = self.mirrors.get(&(Held::Line, row.scope));
        untold && line.is_none_or(|line| line::is_closed(line.as_fd()))
    }

    /// Children that have come to us and that no row names, and roots of these rows that are dead.
    fn left_behind(&self, rows: &[Row]) -> (Vec<Unknown>, Vec<Pid>) {
        let roots: HashSet<_> = rows.iter().map(|row| row.pid).collect();
        let children = self.source.own_children().unwrap_or_default();
        let unknown = children
            .into_iter()
            .filter(|pid| !roots.contains(pid) && !self.machine.registry().knows(*pid))
            .map(|pid| Unknown { pid, tag: self.scope_of(pid) })
            .collect();
        let suspects = roots.into_iter().filter(|pid| wait::look_at(*pid).is_some()).collect();
        (unknown, suspects)
    }

    /// A scope that is taken over keeps its line; who is at its other end is told.
    fn take_line(&mut self, scope: ScopeId) {
        if let Some(socket) = self.mirrors.remove(&(Held::Line, scope)) {
            self.lines.insert(scope, Line::new(socket));
            self.hello(scope);
        }
    }

    /// A scope without a process whose line was lost is over; so is the line of one that was over.
    fn settle_line(&mut self, scope: ScopeId) {
        let kept = self.machine.registry().get(scope).is_some();
        let has_line = self.lines.contains_key(&scope);
        if kept && !has_line {
            self.feed(Event::LineClosed { line: scope });
        } else if !kept && let Some(line) = self.lines.remove(&scope) {
            self.parting.push(line);
        }
    }

    /// A new supervisor speaks after us: what it says about a request that is unanswered must not come
    /// before our own answer.
    pub(super) fn start_when_silent(&mut self) {
        let all = self.lines.get(&ScopeId::ALL);
        let silent = all.is_none_or(|line| line.away || line.waiting.is_empty());
        if self.start_due && silent && !self.owner_gone {
            self.start_due = false;
            self.start_supervisor();
        }
    }

    fn start_supervisor(&mut self) {
        match self.try_start() {
            Some(peer) => {
                self.peer = Some(peer);
                self.succession.started(now());
                let lines = self.lines.keys().filter(|scope| **scope != ScopeId::ALL);
                let lines = lines.map(|scope| (Held::Line, *scope));
                let commands = self.commands.keys().map(|scope| (Held::Command, *scope));
                let groups = self.groups.keys().map(|scope| (Held::Group, *scope));
                for (held, scope) in lines.chain(commands).chain(groups).collect::<Vec<_>>() {
                    self.mirror(held, scope);
                }
            }
            None => self.serve_alone(),
        }
    }

    fn try_start(&mut self) -> Option<Peer> {
        let (ours, theirs) = line::pair().ok()?;
        // An owner that executed another program has closed its end: then its death is all that counts.
        let closed = line::pair().ok()?.0;
        let control = self.lines.get(&ScopeId::ALL).map_or(&closed, |line| &line.socket);
        let role = RoleNumbers { before: self.generation, ..set_up::role_numbers() };
        let mut argv = vec![b"minder".to_vec(), role.argument(SUPERVISOR_ROLE).into_bytes()];
        argv.extend(set_up::trailing_args());
        self.table.set_keeper(self.generation);
        let fds = [
            control.as_fd(),
            self.owner.as_fd(),
            theirs.as_fd(),
            self.table.memfd(),
            self.own_handle.as_fd(),
            self.alive.as_fd(),
        ];
        let image = set_up::own_program().ok()?;
        // It takes the next number; nobody else takes one.
        let generation = self.table.last_generation() + 1;
        let started = {
            let inherits = (self.open_files, self.oom_score.as_deref());
            let no_scope = self.tier.no_scope.as_deref();
            launch::start_guard(image.as_fd(), &argv, &fds, self.null.as_fd(), inherits, no_scope)
        };
        let (pid, handle) = started.ok()?;
        Some(Peer::new(handle, (pid, pid), generation, ours))
    }

    /// No supervisor can be had: better one guard than none.
    fn serve_alone(&mut self) {
        self.serves = true;
        self.machine.set_idle_limit(Some(self.idle_limit), now());
        self.hello(ScopeId::ALL);
    }

    /// The owner had other guards before, and what they knew may not have been handed over.
    fn end_strays(&mut self) {
        if self.owner_gone && self.succession.role() == Role::Keeper && self.table.had_others() {
            let scopes = self.strays();
            self.feed(Event::Strays { scopes, grace: DEFAULT_GRACE });
        }
    }

    pub(super) fn see_owner_gone(&mut self) {
        self.hold_place();
        self.owner_gone = true;
        self.start_due = false;
        self.table.mark_sweeping(self.generation);
        self.write_down(journal::Event::OwnerGone);
        self.write_down(journal::Event::SweepBegun);
        for step in self.succession.owner_gone(now()) {
            self.signal_peer(step);
        }
        // A copy of the owner by fork may hold its end and never read.
        self.close(ScopeId::ALL);
        self.feed(Event::OwnerGone);
        self.end_strays();
    }

    /// After the owner's death: whether the supervisor does its part, and whether ours is done.
    pub(super) fn watch_the_other(&mut self) {
        let Some(peer) = &self.peer else { return };
        // The longest end is looked for in all rows: not in every turn.
        if self.succession.due().is_some_and(|due| now() >= due) && !self.off.mark {
            let sweeping = self.table.is_sweeping(peer.generation);
            let grace = self.table.longest_end(peer.generation);
            for step in self.succession.tick(sweeping, grace, now()) {
                self.signal_peer(step);
            }
        }
        if self.owner_gone && self.rows.is_empty() {
            let Some(peer) = &mut self.peer else { return };
            if !std::mem::replace(&mut peer.told_settled, true) {
                self.tell_peer(&Note::Settled, Vec::new());
            }
        }
    }

    fn signal_peer(&mut self, step: Step) {
        let number = match step {
            Step::Wake => libc::SIGCONT,
            Step::Kill => libc::SIGKILL,
            Step::TakeOver | Step::Foster | Step::Start | Step::ServeAlone | Step::Leave => return,
        };
        if let Some(peer) = &self.peer {
            // Fails only if it is dead, which is told otherwise.
            let _ = signal::send(peer.handle.as_fd(), number);
        }
    }

    /// A guard that has nothing leaves only when the other one has nothing either.
    pub(super) fn stay_while_busy(&mut self) {
        if self.machine.is_about_to_leave(now()) && (self.peer_is_busy() || !self.tier.is_done()) {
            self.machine.stay(now());
        }
    }

    /// A keeper that lives and has something left may die before it is done.
    pub(super) fn peer_is_busy(&self) -> bool {
        self.peer.as_ref().is_some_and(|peer| self.table.holds_any(peer.generation))
    }

    /// The start time of what was started: who it is, for the case that it becomes nobody's child. Not
    /// before the owner has its answer.
    pub(super) fn read_starts(&mut self) {
        for (slot, pid) in std::mem::take(&mut self.unread) {
            let start = Stat::read(pid).map_or(0, |stat| stat.start);
            // In this order: what the table has, the other guard does not write down again.
            self.write_down_start(slot, pid, start);
            self.table.set_start(slot, pid, start);
        }
    }
}

/// Signals by which a program ends itself.
const FAULTS: [i32; 6] =
    [libc::SIGABRT, libc::SIGSEGV, libc::SIGBUS, libc::SIGILL, libc::SIGFPE, libc::SIGSYS];

//! What the supervisor does: each effect of [`crate::supervisor`] in its own function.

use std::collections::HashSet;
use std::os::fd::{AsFd, OwnedFd};

use super::fosters::is_guard_of_another;
use super::stock::SeenDead;
use super::voice::Word;
use super::{Loop, now};
use crate::exit::Process;
use crate::journal;
use crate::line::{self, Received};
use crate::membership::{Member, ProcessGroup, Stopped};
use crate::peer::{Held, Note};
use crate::protocol::Reply;
use crate::registry::{Root, ScopeId};
use crate::spawn::DEFAULT_GRACE;
use crate::succession::Role;
use crate::supervisor::{Effect, Event};
use crate::sys::{Pid, signal, wait};
use crate::table::Flag;

/// Rounds of stopping before KILL is sent anyway: where a chain forks and exits faster than it is met.
const STOP_ROUNDS: usize = 32;

impl Loop {
    pub(super) fn act(&mut self, effect: Effect) -> Vec<Event> {
        match effect {
            Effect::Spawn { scope, order, fds } => {
                let started = self.spawn(scope, &order, fds);
                return [Some(started), self.housed(scope)].into_iter().flatten().collect();
            }
            Effect::Release { scope, of } => return vec![self.release(scope, of)],
            Effect::Released { scope, by, released } => self.released(scope, by, released),
            Effect::OpenLine { scope } => return vec![self.open_line(scope)],
            Effect::Reply { line, reply, about } => self.reply(line, &reply, about),
            Effect::Terminate { scope } => self.terminate(scope),
            Effect::Walk { scope } => return self.walk(scope),
            Effect::Kill { scopes } => return self.kill(&scopes),
            Effect::Survey { scope } => return self.survey(scope),
            Effect::Pause { scopes } => self.pause(&scopes),
            Effect::Resume { scope } => self.resume(scope),
            Effect::Reap { pid } => {
                self.die_at("after-exited");
                wait::reap(pid);
                self.handles.remove(&pid);
                self.first_is_gone(pid);
            }
            Effect::Forget { scope } => return self.forget(scope).into_iter().collect(),
            Effect::Watch { scope, handle, command } => self.watch(scope, handle, command),
            Effect::Adopt { scope, group, handle } => self.own_group(scope, group, handle),
            Effect::LetGoOnceEmpty { scope } => return self.let_go_once_empty(scope),
            Effect::FindStrays => {
                return vec![Event::Strays { scopes: self.strays(), grace: DEFAULT_GRACE }];
            }
            // The keeper's word about it is the last: what it does not know is over.
            Effect::Relay { request } if self.succession.role() == Role::Supervisor => {
                self.tell_peer(&Note::Relay(request), Vec::new());
            }
            Effect::Relay { .. } => {}
            Effect::Recount { number } => self.recount(number),
            Effect::Leave => self.leave(),
            // A keeper that has something left may die before it is done: who sees it then?
            Effect::Exit => self.exit(),
        }
        Vec::new()
    }

    fn exit(&mut self) {
        self.done = !self.peer_is_busy() && self.tier.is_done();
        if self.done {
            self.write_down(journal::Event::SweepEnded { left: 0 });
        }
    }

    fn forget(&mut self, scope: ScopeId) -> Option<Event> {
        // Its last words may have to wait for room.
        if let Some(line) = self.lines.remove(&scope) {
            self.parting.push(line);
            self.unmirror(Held::Line, scope);
        }
        self.templates.remove(&scope);
        if self.commands.remove(&scope).is_some() {
            self.unmirror(Held::Command, scope);
        }
        self.reached.remove(&scope);
        self.fosters.remove(&scope);
        if self.groups.remove(&scope).is_some() {
            self.unmirror(Held::Group, scope);
        }
        self.met.remove(&scope);
        self.firsts.remove(&scope);
        let row = self.rows.get(&scope).and_then(|slot| self.table.read(*slot));
        let grace = row.map_or(DEFAULT_GRACE, |row| row.ending.unwrap_or(row.grace));
        self.forget_row(scope);
        let strays = self.leave_cell(scope, grace);
        if strays.is_none() {
            self.leave_pen(scope);
        }
        strays
    }

    fn reply(&mut self, line: ScopeId, reply: &Reply, about: Option<ScopeId>) {
        match reply {
            Reply::Started { .. } => self.die_at("before-started"),
            Reply::Opened { .. } => self.die_at("before-opened"),
            Reply::Exited { .. } => self.die_at("before-exited"),
            Reply::Emptied { .. } => self.die_at("before-emptied"),
            Reply::Hello { .. }
            | Reply::NoScope { .. }
            | Reply::Failed { .. }
            | Reply::Leaving
            | Reply::Resynced { .. }
            | Reply::Stopped { .. }
            | Reply::Pong { .. }
            | Reply::Returned(_)
            | Reply::Recounted { .. } => {}
        }
        if let Reply::Resynced { .. } = reply {
            self.owner_knows_all(line);
        }
        let heard = about.and_then(|scope| self.note_reply(reply, scope));
        let fds = about.and_then(|scope| self.carried(reply, scope)).into_iter().collect();
        let news = self.news(line, reply, about);
        match self.lines.get_mut(&line) {
            Some(line) => line.say(Word { heard, news, ..Word::new(reply, fds) }),
            // Nobody hears a line that is closed.
            None => self.note_heard(heard.as_slice()),
        }
    }

    /// The descriptor that goes with it. Of a process that is gone already, something that is readable as
    /// a dead one's handle is.
    fn carried(&mut self, reply: &Reply, scope: ScopeId) -> Option<OwnedFd> {
        match reply {
            Reply::Opened { .. } => self.fresh.remove(&scope),
            Reply::Started { .. } => {
                let held = match self.machine.registry().get(scope)?.root {
                    Root::Running(pid) => self.handles.get(&pid),
                    Root::Foster(_) => self.fosters.get(&scope).map(|foster| &foster.handle),
                    Root::Group(_) => self.groups.get(&scope).map(|group| &group.handle),
                    Root::None | Root::Starting | Root::Dead => Some(&self.null),
                };
                held.unwrap_or(&self.null).try_clone().ok()
            }
            Reply::Hello { .. }
            | Reply::NoScope { .. }
            | Reply::Failed { .. }
            | Reply::Exited { .. }
            | Reply::Emptied { .. }
            | Reply::Leaving
            | Reply::Resynced { .. }
            | Reply::Stopped { .. }
            | Reply::Pong { .. }
            | Reply::Returned(_)
            | Reply::Recounted { .. } => None,
        }
    }

    /// The group of a scope's root, and its handle, while it is not reaped.
    fn group(&self, scope: ScopeId) -> Option<(ProcessGroup, &OwnedFd)> {
        let Root::Running(pid) = self.machine.registry().get(scope)?.root else { return None };
        Some((ProcessGroup::led_by(pid, self.protected)?, self.handles.get(&pid)?))
    }

    fn send_group(&self, scope: ScopeId, number: i32) {
        if let Some((group, leader)) = self.group(scope) {
            // Gone, or of another user: the walk and the end condition tell.
            let handle = (!self.off.group_handle).then(|| leader.as_fd());
            let _ = group.send(handle, number);
        } else if let Some(foster) = self.fosters.get(&scope) {
            // Never by number: nobody pins that of a foster. Before Linux 6.9 the walk reaches it.
            let _ = signal::send_group(foster.handle.as_fd(), number);
        } else if let Some(group) = self.groups.get(&scope) {
            // The same.
            let _ = signal::send_group(group.handle.as_fd(), number);
        }
    }

    /// What follows TERM, so that a stopped process comes to it.
    pub(super) fn term_and_cont(&self) -> &'static [i32] {
        if self.off.cont { &[libc::SIGTERM] } else { &[libc::SIGTERM, libc::SIGCONT] }
    }

    fn terminate(&mut self, scope: ScopeId) {
        self.die_at("ending");
        self.spare(&[scope]);
        let ladder = self.machine.registry().get(scope).and_then(|scope| scope.ladder.as_ref());
        if let (Some(slot), Some(ladder)) = (self.row(scope), ladder) {
            self.table.set_ending(slot, ladder.grace(now()));
        }
        if self.groups.contains_key(&scope) {
            return self.terminate_group(scope);
        }
        if self.is_foster(scope) {
            // Who dies of the group's signal may be the last that shows whose child somebody is.
            self.walk(scope);
            return;
        }
        let leader = self.group(scope).and(self.stems(scope).first().copied());
        for number in self.term_and_cont() {
            self.send_group(scope, *number);
        }
        self.reached.entry(scope).or_default().group = leader;
        let foster = self.fosters.get(&scope).map(|foster| foster.member.pid);
        self.write_down_signal(scope, libc::SIGTERM, leader.or(foster));
    }

    /// Children of ours that stand for a scope; all are unreaped, so their numbers are theirs.
    fn stems(&self, scope: ScopeId) -> Vec<Pid> {
        let Some(scope) = self.machine.registry().get(scope) else { return Vec::new() };
        let root = match scope.root {
            Root::Running(pid) => Some(pid),
            Root::None | Root::Starting | Root::Foster(_) | Root::Group(_) | Root::Dead => None,
        };
        let orphans = scope.orphans.iter().copied().filter(|pid| !self.keeping.waits_for(*pid));
        root.into_iter().chain(orphans).collect()
    }

    fn members(&mut self, scope: ScopeId) -> Vec<Member> {
        if self.off.walk {
            return Vec::new();
        }
        let mut members = self.source.walk(self.stems(scope), |_| ());
        if self.is_foster(scope) {
            members.extend(self.foster_members(scope));
        }
        let known: HashSet<_> = members.iter().map(Member::identity).collect();
        let celled = self.cell_members(scope).into_iter();
        members.extend(celled.filter(|member| !known.contains(&member.identity())));
        self.without_waiting(members)
    }

    fn is_foster(&self, scope: ScopeId) -> bool {
        self.machine.registry().get(scope).is_some_and(|scope| scope.foster)
    }

    /// Told after a look at a scope whose processes are not our children: there the kernel says nothing.
    fn vanished(&mut self, scope: ScopeId, nobody: bool) -> Option<Event> {
        let vanished = nobody && self.is_foster(scope);
        self.backlog |= vanished;
        vanished.then_some(Event::Vanished { scope })
    }

    /// Who stands in a scope and in what is inside. A child of ours that cannot be looked at (hidden, or
    /// kept by a tracer after its death) is named by its number alone.
    pub(super) fn survey(&mut self, scope: ScopeId) -> Vec<Event> {
        let scopes = self.machine.registry().with_subs(scope);
        let mut alive = Vec::new();
        for scope in &scopes {
            let members = self.members(*scope).into_iter();
            let members = members.filter(|member| !self.is_first(member.pid));
            alive.extend(members.map(|member| member.stat.process(member.pid)));
        }
        let nameless = scopes
            .iter()
            .flat_map(|scope| self.stems(*scope))
            .filter(|pid| wait::look_at(*pid).is_none() && !self.is_first(*pid))
            .map(|pid| Process { pid: pid.cast_unsigned(), name: String::new() });
        let members: Vec<_> = if alive.is_empty() { nameless.collect() } else { alive };
        let nobody = members.is_empty();
        let left = Event::Left { scope, members };
        let vanished = self.vanished(scope, nobody);
        [Some(left), vanished].into_iter().flatten().collect()
    }

    fn walk(&mut self, scope: ScopeId) -> Vec<Event> {
        self.spare(&[scope]);
        let frozen = self.freeze(scope);
        let members = self.members(scope);
        let nobody = members.is_empty();
        let signals = self.term_and_cont();
        // It ends by itself, or is killed with all that it stands for.
        let first = self.firsts.get(&scope).copied();
        let members = members.into_iter().filter(|member| Some(member.pid) != first);
        let reached = self.reached.entry(scope).or_default();
        let mut found = Vec::new();
        for member in members {
            let by_group = reached.group == Some(member.stat.group);
            if by_group || !reached.members.insert(member.identity()) {
                continue;
            }
            member.send(signals);
            // That of a program which was one's owner leaves by itself, when it has ended what it holds.
            if !is_guard_of_another(&member) {
                found.push(member.stat.process(member.pid));
            }
        }
        if let Some(cell) = frozen {
            cell.thaw();
        }
        let met = found.iter().map(|process| process.pid.cast_signed());
        self.write_down_signal(scope, libc::SIGTERM, met.collect::<Vec<_>>());
        let found = Event::Found { scope, members: found };
        [Some(found), self.vanished(scope, nobody)].into_iter().flatten().collect()
    }

    fn kill(&mut self, scopes: &[ScopeId]) -> Vec<Event> {
        self.die_at("killing");
        if self.off.kill {
            return Vec::new();
        }
        let mut events = Vec::new();
        self.spare(scopes);
        if self.wait_no_more(scopes) {
            // These were not met yet.
            events.extend(scopes.iter().flat_map(|scope| self.walk(*scope)).collect::<Vec<_>>());
        }
        self.kill_cells(scopes);
        let members = self.stop_all(scopes);
        for member in &members {
            member.send(&[libc::SIGKILL]);
        }
        for scope in scopes {
            self.send_group(*scope, libc::SIGKILL);
            if self.is_foster(*scope) {
                let members = self.foster_members(*scope);
                for member in &members {
                    member.send(&[libc::SIGKILL]);
                }
                events.extend(self.vanished(*scope, members.is_empty()));
                let met = members.iter().map(|member| member.pid);
                self.write_down_signal(*scope, libc::SIGKILL, met);
            }
        }
        self.write_down_kills(scopes, &members);
        // Who came meanwhile, and is kept by a rule, was left out.
        self.spare(scopes);
        events
    }

    fn write_down_kills(&mut self, scopes: &[ScopeId], members: &[Member]) {
        for scope in scopes {
            let stems = self.stems(*scope).into_iter().filter(|pid| !self.keeps(*pid));
            self.write_down_signal(*scope, libc::SIGKILL, stems.collect::<Vec<_>>());
        }
        // Of several at once it is not known whose the others are.
        let whose = if let [scope] = scopes { *scope } else { ScopeId::ALL };
        let others = members.iter().map(|member| member.pid);
        let others: Vec<_> = others.filter(|pid| !self.machine.registry().knows(*pid)).collect();
        self.write_down_signal(whose, libc::SIGKILL, others);
    }

    fn pause(&mut self, scopes: &[ScopeId]) {
        for scope in scopes {
            self.flag(*scope, Flag::Paused, true);
            self.send_group(*scope, libc::SIGSTOP);
            if self.is_foster(*scope) {
                for member in self.foster_members(*scope) {
                    member.send(&[libc::SIGSTOP]);
                }
            }
        }
        self.stop_all(scopes);
    }

    /// Stops all members of these until a walk meets nobody new and nobody new was handed to us after
    /// it: one walk would miss who is just being handed from a dying parent to the next. Gives all that
    /// were met. The dead are left for later, so that a round takes no longer for them.
    fn stop_all(&mut self, scopes: &[ScopeId]) -> Vec<Member> {
        let mut stopped = Stopped::default();
        if self.off.walk {
            return Vec::new();
        }
        let mut dead = SeenDead::default();
        self.adopt_and_stop(scopes, &mut dead, &mut stopped);
        for _ in 0..STOP_ROUNDS {
            let stems = scopes.iter().flat_map(|scope| self.stems(*scope));
            // Who came since the last look, and is kept by a rule, is let go by the next one.
            let stems = stems.filter(|pid| dead.lives(*pid) && !self.keeps(*pid)).collect();
            let met = stopped.round(self.source, stems);
            let adopted = self.adopt_and_stop(scopes, &mut dead, &mut stopped);
            if !met && !adopted {
                break;
            }
        }
        stopped.members()
    }

    /// Stops each that was handed to us as soon as it is recorded: it may be gone a moment later.
    fn adopt_and_stop(
        &mut self,
        scopes: &[ScopeId],
        dead: &mut SeenDead,
        stopped: &mut Stopped,
    ) -> bool {
        self.adopt(dead, |own, pid| {
            let of = own.machine.registry().scopes_of(pid);
            // The next look lets it go.
            if own.keeps(pid) {
                return;
            }
            if of.iter().any(|scope| scopes.contains(scope)) {
                stopped.round(own.source, vec![pid]);
            }
        })
    }

    /// All of it stands still, so one walk meets everybody.
    fn resume(&mut self, scope: ScopeId) {
        self.flag(scope, Flag::Paused, false);
        let members = self.members(scope);
        self.send_group(scope, libc::SIGCONT);
        for member in members {
            member.send(&[libc::SIGCONT]);
        }
    }

    /// Stops listening first: a request that comes now fails at once at the sender, and one that was
    /// already queued is never answered. Both go to the next supervisor.
    fn leave(&mut self) {
        self.leaving = true;
        let Some(control) = self.lines.get_mut(&ScopeId::ALL) else { return };
        // Fails only on a line without a peer.
        let _ = rustix::net::shutdown(&control.socket, rustix::net::Shutdown::Read);
        while let Ok(Received::Record { .. } | Received::Bodiless { .. } | Received::Junk) =
            line::receive(control.socket.as_fd(), &mut self.buffer, false)
        {}
        control.say(Word::new(&Reply::Leaving, Vec::new()));
    }
}

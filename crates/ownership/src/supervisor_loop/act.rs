//! What the supervisor does: each effect of [`crate::supervisor`] in its own function.

use std::os::fd::{AsFd, OwnedFd};

use rustix::io::Errno;

use super::Loop;
use super::stock::SeenDead;
use super::voice::Line;
use crate::exit::Process;
use crate::launch::{self, Setting};
use crate::line::{self, Received};
use crate::membership::{Member, ProcessGroup, Stopped};
use crate::protocol::{Failure, Order, Reply};
use crate::registry::{Root, ScopeId};
use crate::spawn::Phase;
use crate::supervisor::{Effect, Event};
use crate::sys::{Pid, wait};

/// Rounds of stopping before KILL is sent anyway: where a chain forks and exits faster than it is met.
const STOP_ROUNDS: usize = 32;

impl Loop {
    pub(super) fn act(&mut self, effect: Effect) -> Option<Event> {
        match effect {
            Effect::Spawn { scope, order, fds } => return Some(self.spawn(scope, &order, &fds)),
            Effect::OpenLine { scope } => return Some(self.open_line(scope)),
            Effect::Reply { line, reply, with } => self.reply(line, &reply, with),
            Effect::Terminate { scope } => self.terminate(scope),
            Effect::Walk { scope } => return Some(self.walk(scope)),
            Effect::Kill { scopes } => self.kill(&scopes),
            Effect::Survey { scope } => return Some(self.survey(scope)),
            Effect::Pause { scopes } => self.pause(&scopes),
            Effect::Resume { scope } => self.resume(scope),
            Effect::Reap { pid } => {
                wait::reap(pid);
                self.handles.remove(&pid);
            }
            Effect::Forget { scope } => {
                // Its last words may have to wait for room.
                self.parting.extend(self.lines.remove(&scope));
                self.reached.remove(&scope);
            }
            Effect::Leave => self.leave(),
            Effect::Exit => self.done = true,
        }
        None
    }

    fn spawn(&mut self, scope: ScopeId, order: &Order, fds: &[OwnedFd]) -> Event {
        let failed = |errno: Errno| Event::Failed {
            scope,
            failure: Failure { phase: Phase::Setup, errno: errno.raw_os_error() },
        };
        if fds.iter().any(|fd| self.is_full(fd)) {
            return failed(Errno::MFILE);
        }
        let pair = match order.line.map(|_| line::pair()).transpose() {
            Ok(pair) => pair,
            Err(errno) => return failed(errno),
        };
        let (ours, theirs) = pair.unzip();
        let setting = Setting {
            null: self.null.as_fd(),
            open_files: self.open_files,
            subreaper: !self.off.subreaper,
        };
        let tag = format!("{}:{}", self.owner_identity, scope.0);
        match launch::start_order(order, fds, theirs.as_ref(), &tag, &setting) {
            Ok((pid, pidfd)) => {
                self.handles.insert(pid, pidfd);
                self.lines.extend(ours.map(|ours| (scope, Line::new(ours, None))));
                Event::Started { scope, pid }
            }
            Err(failure) => Event::Failed { scope, failure },
        }
    }

    fn open_line(&mut self, scope: ScopeId) -> Event {
        let pair = line::pair().and_then(|(ours, theirs)| {
            if self.is_full(&theirs) { Err(Errno::MFILE) } else { Ok((ours, theirs)) }
        });
        match pair {
            Ok((ours, theirs)) => {
                self.lines.insert(scope, Line::new(ours, None));
                self.fresh.insert(scope, theirs);
                Event::Opened { scope }
            }
            Err(errno) => Event::Failed {
                scope,
                failure: Failure { phase: Phase::Setup, errno: errno.raw_os_error() },
            },
        }
    }

    fn reply(&mut self, line: ScopeId, reply: &Reply, with: Option<ScopeId>) {
        let fd = with.and_then(|scope| {
            let root = self.machine.registry().get(scope)?.root;
            match root {
                Root::Running(pid) => self.handles.get(&pid)?.try_clone().ok(),
                Root::None | Root::Starting | Root::Dead => self.fresh.remove(&scope),
            }
        });
        // Nobody hears a line that is closed.
        if let Some(line) = self.lines.get_mut(&line) {
            line.waiting.push_back((reply.encode(), fd));
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
        }
    }

    /// What follows TERM, so that a stopped process comes to it.
    fn term_and_cont(&self) -> &'static [i32] {
        if self.off.cont { &[libc::SIGTERM] } else { &[libc::SIGTERM, libc::SIGCONT] }
    }

    fn terminate(&mut self, scope: ScopeId) {
        let leader = self.group(scope).and(self.stems(scope).first().copied());
        for number in self.term_and_cont() {
            self.send_group(scope, *number);
        }
        self.reached.entry(scope).or_default().group = leader;
    }

    /// Children of ours that stand for a scope; all are unreaped, so their numbers are theirs.
    fn stems(&self, scope: ScopeId) -> Vec<Pid> {
        let Some(scope) = self.machine.registry().get(scope) else { return Vec::new() };
        let root = match scope.root {
            Root::Running(pid) => Some(pid),
            Root::None | Root::Starting | Root::Dead => None,
        };
        root.into_iter().chain(scope.orphans.iter().copied()).collect()
    }

    fn members(&self, scope: ScopeId) -> Vec<Member> {
        if self.off.walk { Vec::new() } else { self.source.walk(self.stems(scope), |_| ()) }
    }

    /// Who stands in a scope and in what is inside. A child of ours that cannot be looked at (hidden, or
    /// kept by a tracer after its death) is named by its number alone.
    fn survey(&self, scope: ScopeId) -> Event {
        let scopes = self.machine.registry().with_subs(scope);
        let alive: Vec<_> = scopes
            .iter()
            .flat_map(|scope| self.members(*scope))
            .map(|member| member.stat.process(member.pid))
            .collect();
        let nameless = scopes
            .iter()
            .flat_map(|scope| self.stems(*scope))
            .filter(|pid| wait::look_at(*pid).is_none())
            .map(|pid| Process { pid: pid.cast_unsigned(), name: String::new() });
        let members = if alive.is_empty() { nameless.collect() } else { alive };
        Event::Left { scope, members }
    }

    fn walk(&mut self, scope: ScopeId) -> Event {
        let members = self.members(scope);
        let signals = self.term_and_cont();
        let reached = self.reached.entry(scope).or_default();
        let mut found = Vec::new();
        for member in members {
            let by_group = reached.group == Some(member.stat.group);
            if by_group || !reached.members.insert(member.identity()) {
                continue;
            }
            member.send(signals);
            found.push(member.stat.process(member.pid));
        }
        Event::Found { scope, members: found }
    }

    fn kill(&mut self, scopes: &[ScopeId]) {
        if self.off.kill {
            return;
        }
        for member in self.stop_all(scopes) {
            member.send(&[libc::SIGKILL]);
        }
        for scope in scopes {
            self.send_group(*scope, libc::SIGKILL);
        }
    }

    fn pause(&mut self, scopes: &[ScopeId]) {
        for scope in scopes {
            self.send_group(*scope, libc::SIGSTOP);
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
            let stems = stems.filter(|pid| dead.lives(*pid)).collect();
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
            if of.iter().any(|scope| scopes.contains(scope)) {
                stopped.round(own.source, vec![pid]);
            }
        })
    }

    /// All of it stands still, so one walk meets everybody.
    fn resume(&self, scope: ScopeId) {
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
        control.waiting.push_back((Reply::Leaving.encode(), None));
    }
}

//! Starting what was ordered: its row, its line, its process; and lines of scopes without one.

use std::os::fd::OwnedFd;

use rustix::io::Errno;

use super::voice::Line;
use super::{Loop, NAMESPACE_FILES, START_FILES};
use crate::line;
use crate::peer::Held;
use crate::protocol::{Failure, Image, Order};
use crate::registry::{Release, ScopeId};
use crate::spawn::Phase;
use crate::supervisor::Event;
use crate::table::{Flag, Slot, Stage};

impl Loop {
    pub(super) fn spawn(&mut self, scope: ScopeId, order: &Order, mut fds: Vec<OwnedFd>) -> Event {
        let failed = |errno: Errno| Event::Failed {
            scope,
            failure: Failure { phase: Phase::Setup, errno: errno.raw_os_error() },
        };
        let namespace = self.wants_namespace(scope, order.containment);
        let more = START_FILES + if namespace { NAMESPACE_FILES } else { 0 };
        if self.is_full(fds.len() + more) {
            return failed(Errno::MFILE);
        }
        let pair = match order.line.map(|_| line::pair()).transpose() {
            Ok(pair) => pair,
            Err(errno) => return failed(errno),
        };
        let Some(slot) = self.claim(scope) else { return failed(Errno::AGAIN) };
        self.die_at("claimed");
        let (ours, theirs) = pair.unzip();
        let has_line = ours.is_some();
        if let Some(ours) = ours {
            self.lines.insert(scope, Line::new(ours));
            self.mirror(Held::Line, scope);
        }
        // A copy of a template goes on when it hears it.
        let forks = matches!(order.image, Image::Fork(_));
        if has_line && !forks {
            self.hello(scope);
        }
        if order.release.is_some() {
            self.commands.extend(fds.pop().map(|command| (scope, command)));
            self.mirror(Held::Command, scope);
        }
        let started = self.launch(scope, slot, order, &fds, theirs.as_ref());
        if forks && matches!(started, Event::Started { .. }) {
            self.die_at("registered");
            self.hello(scope);
        }
        started
    }

    /// Starts what was ordered as the process of this scope.
    pub(super) fn launch(
        &mut self,
        scope: ScopeId,
        slot: Slot,
        order: &Order,
        fds: &[OwnedFd],
        theirs: Option<&OwnedFd>,
    ) -> Event {
        match self.start_contained(scope, slot, order, fds, theirs) {
            Ok((pid, pidfd)) => {
                self.die_at("cloned");
                self.handles.insert(pid, pidfd);
                self.table.set_process(slot, pid);
                self.unread.push((slot, pid));
                Event::Started { scope, pid }
            }
            Err(failure) => Event::Failed { scope, failure },
        }
    }

    /// A row for a scope that the machine has.
    pub(super) fn claim(&mut self, scope: ScopeId) -> Option<Slot> {
        let found = self.machine.registry().get(scope)?;
        let (parent, id, grace) = (found.parent, found.id, found.grace);
        let (policy, release, joined) = (found.policy, found.release, found.joined);
        let slot = self.table.claim(self.generation, scope, parent, id, grace)?;
        self.table.set_policy(slot, policy);
        self.table.flag(slot, Flag::Joined, joined);
        if let Release::Due(deadline) = release {
            self.table.set_release(slot, deadline);
        }
        self.rows.insert(scope, slot);
        Some(slot)
    }

    pub(super) fn open_line(&mut self, scope: ScopeId) -> Event {
        let Some(slot) = self.claim(scope) else {
            let failure = Failure { phase: Phase::Setup, errno: libc::EAGAIN };
            return Event::Failed { scope, failure };
        };
        let full = self.is_full(START_FILES);
        let pair = if full { Err(Errno::MFILE) } else { line::pair() };
        match pair {
            Ok((ours, theirs)) => {
                self.lines.insert(scope, Line::new(ours));
                self.mirror(Held::Line, scope);
                self.hello(scope);
                self.fresh.insert(scope, theirs);
                self.table.flag(slot, Flag::Rootless, true);
                self.table.advance(slot, Stage::Alive);
                Event::Opened { scope }
            }
            Err(errno) => Event::Failed {
                scope,
                failure: Failure { phase: Phase::Setup, errno: errno.raw_os_error() },
            },
        }
    }
}

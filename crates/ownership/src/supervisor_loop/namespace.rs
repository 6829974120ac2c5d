//! Scopes that have a pid namespace of their own, where that was asked for by name: a process that is number 1 of it, which
//! [`crate::pid_one`] is, and the scope's root, which is born inside and a child of ours as any other root is.
//!
//! Descent stays the measure: what loses its parent in there comes to number 1, which is held against the scope until it
//! leaves. To kill it is to kill all of the namespace.

use std::os::fd::{AsFd, OwnedFd};

use super::ration::Given as Rationed;
use super::{Loop, set_up};
use crate::containment::Containment;
use crate::launch::{self, Setting};
use crate::line;
use crate::program::FIRST_ROLE;
use crate::protocol::{Failure, Order};
use crate::registry::ScopeId;
use crate::spawn::Phase;
use crate::supervisor::Event;
use crate::sys::{Pid, namespace, signal, wait};
use crate::table::Slot;

impl Loop {
    /// Whether a scope gets a pid namespace. A release command does not: what it is to release is outside, as the number is
    /// that it is told.
    pub(super) fn wants_namespace(&self, scope: ScopeId, wish: Containment) -> bool {
        let releases = self.machine.registry().get(scope).is_some_and(|scope| scope.releases);
        wish.or(self.tier.asked) == Containment::PidNamespace && !releases
    }

    /// Starts number 1, and the order inside.
    pub(super) fn start_in_namespace(
        &mut self,
        scope: ScopeId,
        slot: Slot,
        (order, rationed): (&Order, &Rationed),
        fds: &[OwnedFd],
        (theirs, tag): (Option<&OwnedFd>, &str),
    ) -> Result<(Pid, OwnedFd), Failure> {
        // Where there can be none, that is no news.
        let cell = match self.try_cell(scope, rationed.pen.as_deref()) {
            Err(errno) if rationed.pen.is_some() => {
                return Err(Failure { phase: Phase::Ration, errno });
            }
            cell => cell.ok(),
        };
        let cgroup = cell.as_ref().map(AsFd::as_fd);
        let (ours, its) = line::pair().map_err(|errno| refused(errno.raw_os_error()))?;
        let user = namespace::probe(false).is_err();
        let (first, handle) = self.start_first(slot, tag, (&its, user), cgroup)?;
        drop(its);
        self.die_at("housed");
        let first_of = Some((handle.as_fd(), user));
        let burden = Some(&rationed.burden);
        let setting = Setting { first: first_of, burden, ..self.setting(slot, cgroup) };
        let started = launch::start_order(order, fds, (theirs, None), tag, &setting);
        match &started {
            Ok((_, root)) => {
                // Without it number 1 looks from time to time.
                let _ = line::send(ours.as_fd(), b"root", &[root.as_fd()], false);
                self.firsts.insert(scope, first);
            }
            Err(_) => {
                // Fails only where it is dead already.
                let _ = signal::send(handle.as_fd(), libc::SIGKILL);
                wait::reap_handle(&handle);
                self.table.forget_first(slot);
            }
        }
        started
    }

    /// Number 1, in the scope's cgroup too.
    fn start_first(
        &self,
        slot: Slot,
        tag: &str,
        (its, user): (&OwnedFd, bool),
        cgroup: Option<std::os::fd::BorrowedFd<'_>>,
    ) -> Result<(Pid, OwnedFd), Failure> {
        let failed = |error: std::io::Error| refused(error.raw_os_error().unwrap_or(libc::EIO));
        let image = set_up::own_program().map_err(failed)?;
        // Of a pipe whose other end is ours and the other guard's.
        let path = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&self.alive));
        let guards: OwnedFd = std::fs::File::open(path).map_err(failed)?.into();
        let mut argv = vec![b"porter".to_vec(), FIRST_ROLE.as_bytes().to_vec()];
        argv.extend(set_up::trailing_args());
        let fds = [guards.as_fd(), self.owner.as_fd(), its.as_fd()];
        let words = (self.table.first_word(slot), self.table.failed_word(slot));
        let setting = Setting { words, ..self.setting(slot, cgroup) };
        launch::start_first(image.as_fd(), &argv, &fds, tag, &setting, user)
    }

    /// What is to be told after a start that was in a namespace.
    pub(super) fn housed(&self, scope: ScopeId) -> Option<Event> {
        let first = *self.firsts.get(&scope)?;
        self.machine.registry().get(scope).map(|_| Event::Housed { scope, first })
    }

    /// Whether this is number 1 of a scope's namespace: ours, and nothing that anybody has started.
    pub(super) fn is_first(&self, pid: Pid) -> bool {
        self.firsts.values().any(|first| *first == pid)
    }

    /// This child of ours is reaped.
    pub(super) fn first_is_gone(&mut self, pid: Pid) {
        let scope = self.firsts.iter().find(|(_, first)| **first == pid).map(|(scope, _)| *scope);
        if let Some(scope) = scope {
            self.firsts.remove(&scope);
            if let Some(slot) = self.row(scope) {
                self.table.forget_first(slot);
            }
        }
    }
}

fn refused(errno: i32) -> Failure {
    Failure { phase: Phase::Setup, errno }
}

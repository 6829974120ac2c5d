//! What is asked for on a line, and what may be refused.

use std::os::fd::OwnedFd;
use std::time::Instant;

use super::{Effect, Supervisor, failed_reply};
use crate::protocol::{Failure, Image, Reply, Request};
use crate::registry::{Release, Root, Scope, ScopeId};
use crate::spawn::Phase;

impl Supervisor {
    pub(super) fn request(
        &mut self,
        line: ScopeId,
        request: Request,
        fds: Vec<OwnedFd>,
        now: Instant,
        effects: &mut Vec<Effect>,
    ) {
        if self.leaving {
            return;
        }
        match request {
            // It is asked for again by who did not hear the answer.
            Request::Spawn(order) if self.registry.find(line, order.id).is_some() => {
                self.answer_again(line, order.id, effects);
            }
            Request::Spawn(order) => {
                let carried = 1
                    + usize::from(order.image == Image::Open)
                    + order.fds.len()
                    + usize::from(order.release.is_some());
                let refusal = self.refusal(line, order.id).or((fds.len() != carried)
                    .then_some(Failure { phase: Phase::Request, errno: libc::EMFILE }));
                if let Some(failure) = refusal {
                    return effects.push(failed_reply(line, order.id, failure));
                }
                let scope = self.registry.add(line, order.id, Root::Starting, order.grace);
                if let Some(scope) = self.registry.get_mut(scope) {
                    scope.policy = order.leftovers;
                    scope.joined = order.joins.is_some();
                    scope.release = order.release.map_or(Release::None, Release::Due);
                }
                effects.push(Effect::Spawn { scope, order, fds });
            }
            Request::Open { id, grace } => {
                if let Some(failure) = self.refusal(line, id) {
                    return effects.push(failed_reply(line, id, failure));
                }
                let scope = self.registry.add(line, id, Root::None, grace);
                effects.push(Effect::OpenLine { scope });
            }
            Request::End { id, .. }
            | Request::Pause { id }
            | Request::Resume { id }
            | Request::Disown { id, .. }
                if line == ScopeId::ALL && self.registry.find(line, id).is_none() =>
            {
                effects.push(Effect::Relay { request });
            }
            Request::End { id, grace } => {
                if let Some(scope) = self.registry.find(line, id) {
                    self.end(scope, Some(grace), now, effects);
                    self.settle(scope, effects);
                }
            }
            Request::Pause { id } => {
                effects.push(Effect::Pause { scopes: self.set_paused(line, id, true) });
            }
            Request::Resume { id } => {
                let resumed = self.set_paused(line, id, false);
                effects.extend(resumed.into_iter().map(|scope| Effect::Resume { scope }));
            }
            Request::Resync { number } => {
                effects.push(Effect::Reply {
                    line,
                    reply: Reply::Resynced { number },
                    about: None,
                });
            }
            Request::Ping { number } => {
                effects.push(Effect::Reply { line, reply: Reply::Pong { number }, about: None });
            }
            Request::Foster { id, scope, pid, grace, leftovers, release, kept }
                if line == ScopeId::ALL =>
            {
                let mut child = Scope::new(line, id, Root::Foster(pid), grace);
                child.policy = leftovers;
                child.release = release.map_or(Release::None, Release::Due);
                child.told = kept;
                self.foster(ScopeId(scope), child, fds, effects);
            }
            Request::EndStrays if line == ScopeId::ALL => effects.push(Effect::FindStrays),
            Request::Adopt { id, group, grace } if line == ScopeId::ALL => {
                self.adopt(id, group, grace, fds, now, effects);
            }
            Request::Disown { id, once_empty } if line == ScopeId::ALL => {
                self.disown(id, once_empty, effects);
            }
            Request::Recount { number } if line == ScopeId::ALL => {
                effects.push(Effect::Recount { number });
            }
            Request::Adopt { id, .. } => {
                let failure = Failure { phase: Phase::Request, errno: libc::EPERM };
                effects.push(failed_reply(line, id, failure));
            }
            // A child has no children that are not ours.
            Request::Foster { .. }
            | Request::EndStrays
            | Request::Disown { .. }
            | Request::Recount { .. } => {}
        }
    }

    fn answer_again(&self, line: ScopeId, id: u64, effects: &mut Vec<Effect>) {
        let Some(scope) = self.registry.find(line, id) else { return };
        if let Some(Root::Running(pid) | Root::Foster(pid)) =
            self.registry.get(scope).map(|s| s.root)
        {
            let reply = Reply::Started { id, pid, scope: scope.0 };
            effects.push(Effect::Reply { line, reply, about: Some(scope) });
        }
    }

    /// Notes it of a scope and of all that is in it, and gives these.
    fn set_paused(&mut self, line: ScopeId, id: u64, paused: bool) -> Vec<ScopeId> {
        let Some(scope) = self.registry.find(line, id) else { return Vec::new() };
        let scopes = self.registry.with_subs(scope);
        for scope in &scopes {
            if let Some(scope) = self.registry.get_mut(*scope) {
                scope.paused = paused;
            }
        }
        scopes
    }

    /// Why nothing can be started on this line under this name.
    fn refusal(&self, line: ScopeId, id: u64) -> Option<Failure> {
        let open = self.registry.get(line).is_some_and(Scope::is_open);
        let errno = if !open || self.owner_gone {
            libc::ECANCELED
        } else if self.registry.find(line, id).is_some() {
            libc::EEXIST
        } else {
            return None;
        };
        Some(Failure { phase: Phase::Request, errno })
    }
}

//! Groups that something else started in the owner. While that lives they are left alone; when it is
//! gone they are ended as everything else is. Nobody of ours is their parent, so that nobody is left is known
//! from looking.

use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use super::{Effect, Supervisor, failed_reply};
use crate::protocol::{Adopted, Failure, Reply};
use crate::registry::{Root, Scope, ScopeId};
use crate::spawn::Phase;

/// How often is looked whether a group that is to be let go is empty: a look reads all of `/proc`.
const LOOK: Duration = Duration::from_millis(500);

impl Supervisor {
    pub(super) fn adopt(
        &mut self,
        id: u64,
        group: Adopted,
        grace: Duration,
        fds: Vec<OwnedFd>,
        now: Instant,
        effects: &mut Vec<Effect>,
    ) {
        let line = ScopeId::ALL;
        // Handed over by an owner that cannot know that its guard had it.
        if self.registry.find(line, id).is_some() {
            return;
        }
        let Some(handle) = fds.into_iter().next() else {
            let failure = Failure { phase: Phase::Request, errno: libc::EMFILE };
            return effects.push(failed_reply(line, id, failure));
        };
        let scope = self.registry.add(line, id, Root::Group(group.leader), grace);
        if let Some(found) = self.registry.get_mut(scope) {
            found.foster = true;
        }
        effects.push(Effect::Adopt { scope, group, handle });
        let reply = Reply::Started { id, pid: group.leader, scope: scope.0 };
        effects.push(Effect::Reply { line, reply, about: Some(scope) });
        // It was on its way when the owner died.
        if self.owner_gone {
            self.end(scope, None, now, effects);
        }
    }

    /// Once the owner is gone nothing is let go any more.
    pub(super) fn disown(&mut self, id: u64, once_empty: bool, effects: &mut Vec<Effect>) {
        let Some(scope) = self.registry.find(ScopeId::ALL, id) else { return };
        let adopted =
            |found: &&mut Scope| matches!(found.root, Root::Group(_)) && found.ladder.is_none();
        let Some(found) = self.registry.get_mut(scope).filter(adopted) else { return };
        if once_empty {
            found.once_empty = true;
            effects.push(Effect::LetGoOnceEmpty { scope });
        } else {
            found.foster = false;
            self.settle(scope, effects);
        }
    }

    /// Looks again at groups that are to be let go.
    pub(super) fn look_at_groups(&mut self, now: Instant, effects: &mut Vec<Effect>) {
        let due = |scope: &Scope| {
            scope.once_empty && scope.ladder.is_none() && scope.alarm.is_some_and(|at| now >= at)
        };
        let due: Vec<_> =
            self.registry.iter().filter(|(_, scope)| due(scope)).map(|(id, _)| id).collect();
        for scope in due {
            effects.push(Effect::Survey { scope });
            self.look_later(scope, now);
        }
    }

    /// Somebody is there, or is being looked for.
    pub(super) fn look_later(&mut self, scope: ScopeId, now: Instant) {
        if let Some(found) = self.registry.get_mut(scope).filter(|found| found.once_empty) {
            found.alarm = Some(now + LOOK);
        }
    }
}

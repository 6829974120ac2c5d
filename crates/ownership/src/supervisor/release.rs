//! Release commands: what is run when nothing of a scope is left, and before its end is told.
//!
//! A command is a scope inside the one that it releases, so everything that holds for children holds for
//! it: what it leaves is ended, and it is handed on when a guard dies. Nobody is told of that scope, and what ends
//! its parent, the owner's death too, does not end it: only its deadline does.

use std::time::{Duration, Instant};

use super::{Effect, Supervisor};
use crate::exit::{ExitStatus, Released};
use crate::protocol::Failure;
use crate::registry::{Release, Root, ScopeId};

/// How its parent knows the scope of a release command. Those who ask count from 1.
pub(super) const RELEASE_ID: u64 = u64::MAX;

impl Supervisor {
    /// Nothing of this scope is left: whether it is over, or has a command that is started now.
    pub(super) fn is_released(&mut self, scope: ScopeId, effects: &mut Vec<Effect>) -> bool {
        let Some(found) = self.registry.get_mut(scope) else { return false };
        let Release::Due(deadline) = found.release else { return true };
        found.release = Release::Running;
        found.ladder = None;
        let command = self.registry.add(scope, RELEASE_ID, Root::Starting, deadline);
        if let Some(command) = self.registry.get_mut(command) {
            command.releases = true;
            command.paused = false;
        }
        effects.push(Effect::Release { scope: command, of: scope });
        false
    }

    /// The command runs: from now on its time counts.
    pub(super) fn release_started(&mut self, scope: ScopeId, now: Instant) {
        if let Some(command) = self.registry.get_mut(scope) {
            // One that lasts for ever has no alarm.
            command.alarm = now.checked_add(command.grace);
        }
    }

    pub(super) fn release_failed(
        &mut self,
        of: ScopeId,
        failure: Failure,
        effects: &mut Vec<Effect>,
    ) {
        self.note_released(of, None, Released::NotStarted { errno: failure.errno }, effects);
    }

    /// The command's process is dead. One that was being ended had no time left.
    pub(super) fn release_ended(
        &mut self,
        scope: ScopeId,
        status: ExitStatus,
        effects: &mut Vec<Effect>,
    ) {
        let Some(command) = self.registry.get_mut(scope) else { return };
        command.alarm = None;
        let released = match command.ladder {
            Some(_) => Released::TimedOut,
            None => Released::Ended(status),
        };
        let of = command.parent;
        self.note_released(of, Some(scope), released, effects);
    }

    fn note_released(
        &mut self,
        of: ScopeId,
        by: Option<ScopeId>,
        released: Released,
        effects: &mut Vec<Effect>,
    ) {
        if let Some(found) = self.registry.get_mut(of) {
            found.release = Release::Over(released);
            effects.push(Effect::Released { scope: of, by, released });
        }
    }

    /// Ends commands whose time is over.
    pub(super) fn end_late_releases(&mut self, now: Instant, effects: &mut Vec<Effect>) {
        let late = |alarm: Option<Instant>| alarm.is_some_and(|alarm| now >= alarm);
        let due: Vec<_> = self
            .registry
            .iter()
            .filter(|(_, scope)| scope.releases && scope.ladder.is_none() && late(scope.alarm))
            .map(|(id, _)| id)
            .collect();
        for scope in due {
            self.end(scope, Some(Duration::ZERO), now, effects);
        }
    }

    /// Whether what ends everything else leaves this alone: a command that runs, and what it releases.
    pub(super) fn is_releasing(&self, scope: ScopeId) -> bool {
        self.registry.get(scope).is_some_and(|scope| {
            scope.release == Release::Running || scope.releases && scope.root != Root::Dead
        })
    }
}

//! What becomes of what a root leaves when it ends by itself ([`Leftovers`]).

use std::time::Instant;

use super::{Effect, Supervisor};
use crate::exit::{Emptied, Process};
use crate::protocol::Reply;
use crate::registry::{Release, Root, Scope, ScopeId};
use crate::spawn::Leftovers;

impl Supervisor {
    /// A rule keeps one that is being ended.
    pub(super) fn spared(
        &mut self,
        scope: ScopeId,
        process: Process,
        rule: &str,
        effects: &mut Vec<Effect>,
    ) {
        let ours = process.pid.cast_signed();
        let ours = self.registry.is_orphan(ours).then_some(ours);
        let mut scopes = ours.map_or_else(|| vec![scope], |pid| self.registry.spare(pid));
        // Told once, by the one that it is more likely of.
        scopes.sort_by_key(|held| (*held != scope, *held == ScopeId::ALL));
        if let Some(first) = scopes.first().and_then(|first| self.registry.get_mut(*first)) {
            first.note_spared(process, rule);
        }
        for scope in scopes {
            self.settle(scope, effects);
        }
    }

    /// The root is dead, nobody has asked for an end, and something is there.
    pub(super) fn left_something(
        &mut self,
        scope: ScopeId,
        now: Instant,
        effects: &mut Vec<Effect>,
    ) {
        let Some(found) = self.registry.get(scope) else { return };
        if found.release == Release::Running {
            return;
        }
        match found.policy {
            Leftovers::Kill => self.end(scope, None, now, effects),
            // Comes back as Event::Left.
            Leftovers::Report | Leftovers::Keep if !found.told => {
                effects.push(Effect::Survey { scope });
            }
            Leftovers::Report | Leftovers::Keep => {}
        }
    }
}

/// Tells the end of a scope of which these are let live. If nobody is met, those who were there are dying:
/// their deaths tell.
pub(super) fn stays(
    about: ScopeId,
    scope: &mut Scope,
    left: Vec<Process>,
    effects: &mut Vec<Effect>,
) {
    if scope.root != Root::Dead || scope.policy == Leftovers::Kill || left.is_empty() {
        return;
    }
    scope.told = true;
    let kept = u32::try_from(left.len()).unwrap_or(u32::MAX);
    let left = if scope.policy == Leftovers::Report { left } else { Vec::new() };
    let reply =
        Reply::Emptied { id: scope.id, emptied: Emptied { left, kept, ..Emptied::default() } };
    effects.push(Effect::Reply { line: scope.parent, reply, about: Some(about) });
}

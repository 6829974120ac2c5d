//! Many scopes that are walked in one turn: the next ones are asked to stand still while one is walked.
//!
//! A walk waits until its scope's cgroup is frozen ([`super::containment`]), which is the processes' time and not ours.
//! One after the other that is half of the time that an owner's end takes; on the other processors it is none.

use std::collections::VecDeque;

use super::Loop;
use crate::registry::ScopeId;
use crate::supervisor::Effect;

/// Cgroups that may stand still before they are walked. More than processors can freeze at once is of no use, and who
/// has a handler for TERM is kept from it meanwhile.
const AHEAD: usize = 8;

/// The scopes that are still to be walked.
pub(super) struct Ahead {
    /// Not asked yet.
    walks: VecDeque<ScopeId>,
    /// Asked, and not walked.
    asked: usize,
}

impl Ahead {
    pub(super) fn of(effects: &[Effect]) -> Self {
        let walk = |effect: &Effect| {
            if let Effect::Walk { scope } = effect { Some(*scope) } else { None }
        };
        Self { walks: effects.iter().filter_map(walk).collect(), asked: 0 }
    }

    /// Who is to be asked now, before this effect.
    fn before(&mut self, effect: &Effect) -> Vec<ScopeId> {
        if !matches!(effect, Effect::Walk { .. }) {
            return Vec::new();
        }
        let room = AHEAD.saturating_sub(self.asked).min(self.walks.len());
        let now: Vec<_> = self.walks.drain(..room).collect();
        // This one is walked at once.
        self.asked = (self.asked + now.len()).saturating_sub(1);
        now
    }
}

impl Loop {
    /// Asks cgroups that this effect and the next ones walk to stand still. Each of them is walked in this turn, which
    /// thaws it; where this guard dies before, the other one walks them.
    pub(super) fn freeze_ahead(&mut self, ahead: &mut Ahead, effect: &Effect) {
        // What a rule keeps leaves its cgroup first.
        if !self.keeps_nobody() {
            return;
        }
        let scopes = ahead.before(effect);
        // Alone, it is frozen by its walk.
        if scopes.len() + ahead.asked < 2 {
            return;
        }
        for scope in scopes {
            if let Some(cell) = self.cell_to_freeze(scope) {
                cell.begin_freezing();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every scope is asked once, before its own walk, and never more than so many stand still and are not walked.
    #[test]
    fn the_next_ones_are_asked_and_each_once() {
        for count in [0, 1, 2, AHEAD, AHEAD + 1, 3 * AHEAD + 2] {
            let walk = |number| Effect::Walk { scope: ScopeId(number) };
            let count = u64::try_from(count).expect("few");
            let effects: Vec<_> = (1..=count).flat_map(|number| [walk(number), other()]).collect();
            let mut ahead = Ahead::of(&effects);
            let (mut asked, mut walked) = (Vec::new(), 0);
            for effect in &effects {
                let now = ahead.before(effect);
                asked.extend(now.iter().copied());
                if let Effect::Walk { scope } = effect {
                    assert!(asked.contains(scope), "{scope:?} of {count}");
                    walked += 1;
                } else {
                    assert_eq!(now, []);
                }
                assert!(asked.len() - walked < AHEAD, "{} asked, {walked} walked", asked.len());
            }
            assert_eq!(asked, (1..=count).map(ScopeId).collect::<Vec<_>>());
        }
    }

    fn other() -> Effect {
        Effect::Survey { scope: ScopeId(7) }
    }
}

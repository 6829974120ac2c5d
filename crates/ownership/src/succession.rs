//! Who of the two guards does what when the other one, or the owner, is gone: a pure machine.
//! [`crate::supervisor_loop`] tells it what happened and does the steps that follow.
//!
//! The upper guard is the keeper, the lower one, its child, the supervisor. Whoever survives is the
//! keeper from then on: it keeps what it is the parent of, takes over what the other one had, and
//! starts a new supervisor below itself. So after every death the picture is the same.

use std::time::{Duration, Instant};

/// A supervisor that ends by itself this soon after its start would do so again.
const TOO_SOON: Duration = Duration::from_secs(5);

/// A supervisor that has not begun to end everything this long after the owner's death is stopped, or
/// waits for something that may never come (man 2 vfork).
const SWEEP_LIMIT: Duration = Duration::from_millis(100);

/// What a supervisor may take on top of the longest grace to end everything.
const SWEEP_REST: Duration = Duration::from_secs(3);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    Keeper,
    Supervisor,
}

/// How the other guard ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Gone {
    /// It said that it leaves, because there was nothing to do.
    Left,
    /// It ended by itself otherwise: a refusal at its start, or a fault of ours.
    ByItself,
    /// Somebody killed it, or nobody can say.
    Killed,
}

/// What is to be done, in order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Step {
    /// What the other one had is ours: the kernel made its children ours.
    TakeOver,
    /// What the other one had has lost its parent; it is known by handle and mark only.
    Foster,
    /// Start a supervisor below us.
    Start,
    /// Do the supervisor's work too.
    ServeAlone,
    /// CONT to the other one: somebody may have stopped it.
    Wake,
    /// KILL to the other one.
    Kill,
    /// Nobody needs us any more.
    Leave,
}

#[derive(Debug, Clone)]
pub(crate) struct Succession {
    role: Role,
    /// When the other one was started, while it lives.
    peer: Option<Instant>,
    owner_gone: bool,
    /// When to look whether the supervisor does what it has to do after the owner's death.
    look: Option<Look>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Look {
    /// Whether it has begun.
    Begun(Instant),
    /// Whether it is done.
    Done(Instant),
}

impl Succession {
    /// A guard that is alone so far, if it is the keeper; a supervisor has a keeper from the start.
    pub(crate) fn new(role: Role, now: Instant) -> Self {
        let peer = (role == Role::Supervisor).then_some(now);
        Self { role, peer, owner_gone: false, look: None }
    }

    pub(crate) fn role(&self) -> Role {
        self.role
    }

    #[cfg(test)]
    pub(crate) fn has_peer(&self) -> bool {
        self.peer.is_some()
    }

    /// [`Step::Start`] was done.
    pub(crate) fn started(&mut self, now: Instant) {
        self.peer = Some(now);
        // It looks at the owner itself; a look at it is due as after any death of the owner.
        self.look = self.owner_gone.then_some(Look::Begun(now + SWEEP_LIMIT));
    }

    pub(crate) fn peer_gone(&mut self, how: Gone, now: Instant) -> Vec<Step> {
        let Some(since) = self.peer.take() else { return Vec::new() };
        self.look = None;
        let first = match self.role {
            Role::Keeper => Step::TakeOver,
            Role::Supervisor => Step::Foster,
        };
        let was_keeper = self.role == Role::Keeper;
        self.role = Role::Keeper;
        if self.owner_gone {
            return vec![first];
        }
        match how {
            Gone::Left => vec![first, Step::Leave],
            Gone::ByItself if was_keeper && now < since + TOO_SOON => {
                vec![first, Step::ServeAlone]
            }
            Gone::ByItself | Gone::Killed => vec![first, Step::Start],
        }
    }

    pub(crate) fn owner_gone(&mut self, now: Instant) -> Vec<Step> {
        if std::mem::replace(&mut self.owner_gone, true) || self.peer.is_none() {
            return Vec::new();
        }
        if self.role == Role::Keeper {
            self.look = Some(Look::Begun(now + SWEEP_LIMIT));
        }
        vec![Step::Wake]
    }

    /// When [`Succession::tick`] has something to do.
    pub(crate) fn due(&self) -> Option<Instant> {
        self.look.map(|look| match look {
            Look::Begun(at) | Look::Done(at) => at,
        })
    }

    /// `sweeping`: whether the other one has begun to end everything; `grace`: the longest one that it has.
    pub(crate) fn tick(&mut self, sweeping: bool, grace: Duration, now: Instant) -> Vec<Step> {
        if self.due().is_none_or(|due| now < due) {
            return Vec::new();
        }
        match self.look.take() {
            Some(Look::Begun(_)) if sweeping => {
                self.look = now.checked_add(grace + SWEEP_REST).map(Look::Done);
                Vec::new()
            }
            Some(_) => vec![Step::Kill],
            None => Vec::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn origin() -> Instant {
        #[expect(clippy::disallowed_methods, reason = "an origin for a pure machine")]
        Instant::now()
    }

    const LATER: Duration = Duration::from_secs(6);

    fn keeper(now: Instant) -> Succession {
        let mut keeper = Succession::new(Role::Keeper, now);
        keeper.started(now);
        keeper
    }

    /// Every way in which the other one can be gone, for both roles, with and without an owner.
    #[test]
    fn the_survivor_is_the_keeper() {
        let now = origin();
        let table: [(Role, Gone, Duration, &[Step]); 10] = [
            (Role::Keeper, Gone::Killed, Duration::ZERO, &[Step::TakeOver, Step::Start]),
            (Role::Keeper, Gone::Killed, LATER, &[Step::TakeOver, Step::Start]),
            (Role::Keeper, Gone::ByItself, Duration::ZERO, &[Step::TakeOver, Step::ServeAlone]),
            (Role::Keeper, Gone::ByItself, LATER, &[Step::TakeOver, Step::Start]),
            (Role::Keeper, Gone::Left, LATER, &[Step::TakeOver, Step::Leave]),
            (Role::Supervisor, Gone::Killed, Duration::ZERO, &[Step::Foster, Step::Start]),
            (Role::Supervisor, Gone::Killed, LATER, &[Step::Foster, Step::Start]),
            (Role::Supervisor, Gone::ByItself, Duration::ZERO, &[Step::Foster, Step::Start]),
            (Role::Supervisor, Gone::ByItself, LATER, &[Step::Foster, Step::Start]),
            (Role::Supervisor, Gone::Left, LATER, &[Step::Foster, Step::Leave]),
        ];
        for (role, how, age, expected) in table {
            let mut guard = Succession::new(role, now);
            if role == Role::Keeper {
                guard.started(now);
            }
            let mut orphaned = guard.clone();
            assert_eq!(guard.peer_gone(how, now + age), expected, "{role:?} {how:?} {age:?}");
            assert_eq!((guard.role(), guard.has_peer()), (Role::Keeper, false));
            assert!(guard.peer_gone(how, now + age).is_empty(), "only once");
            assert_eq!(orphaned.owner_gone(now), [Step::Wake]);
            assert_eq!(orphaned.peer_gone(how, now + age), expected[..1], "nothing is started");
        }
    }

    #[test]
    fn a_supervisor_that_does_not_begin_is_killed() {
        let now = origin();
        let mut keeper = keeper(now);
        assert_eq!(keeper.due(), None);
        keeper.owner_gone(now);
        assert!(keeper.owner_gone(now).is_empty(), "only once");
        assert!(keeper.tick(false, LATER, now).is_empty());
        assert_eq!(keeper.tick(false, LATER, now + SWEEP_LIMIT), [Step::Kill]);
        assert_eq!(keeper.due(), None);
    }

    #[test]
    fn a_supervisor_that_has_begun_gets_its_grace() {
        let now = origin();
        let mut keeper = keeper(now);
        keeper.owner_gone(now);
        let begun = now + SWEEP_LIMIT;
        assert!(keeper.tick(true, LATER, begun).is_empty());
        assert_eq!(keeper.due(), Some(begun + LATER + SWEEP_REST));
        assert_eq!(keeper.tick(true, LATER, begun + LATER + SWEEP_REST), [Step::Kill]);
    }

    #[test]
    fn a_supervisor_does_not_judge_its_keeper() {
        let now = origin();
        let mut supervisor = Succession::new(Role::Supervisor, now);
        assert_eq!(supervisor.owner_gone(now), [Step::Wake]);
        assert_eq!(supervisor.due(), None);
    }

    #[test]
    fn an_endless_grace_does_not_overflow() {
        let now = origin();
        let mut keeper = keeper(now);
        keeper.owner_gone(now);
        keeper.tick(true, Duration::from_secs(u64::MAX / 2), now + SWEEP_LIMIT);
        assert_eq!(keeper.due(), None);
    }
}

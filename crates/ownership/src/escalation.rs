//! The ladder that ends a scope, as a pure timer: TERM and CONT at once, a walk for what stands outside
//! of the known groups, KILL after the grace, and again until the kernel says that nothing is left.
//! [`crate::supervisor`] keeps one per scope that is being ended.

use std::time::{Duration, Instant};

/// After this time without a death, members outside the known groups are looked for.
const FIRST_WALK: Duration = Duration::from_millis(1);

/// Deaths put the first walk off no longer than this: where others die all the time, members outside the
/// known groups would never get their TERM.
const LATEST_FIRST_WALK: Duration = Duration::from_millis(50);

/// Walks are repeated for what is born meanwhile, each after twice the time, up to this.
const SLOWEST_WALK: Duration = Duration::from_millis(200);

/// KILL is repeated after this time, then after twice that, up to [`SLOWEST_KILL`].
const FIRST_KILL: Duration = Duration::from_millis(10);

/// A process in state D dies when the kernel lets go of it; asking more often does not help.
const SLOWEST_KILL: Duration = Duration::from_secs(2);

/// What is there this long after KILL is reported as left.
const PATIENCE: Duration = Duration::from_secs(5);

/// Longest grace; longer ones would overflow the clock.
const LONGEST_GRACE: Duration = Duration::from_secs(365 * 24 * 3600);

/// What is due.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Rung {
    /// TERM and CONT to members that had none yet.
    Walk,
    /// The same, and then KILL to all members: somebody has come who was not met yet.
    WalkAndKill,
    /// KILL to all members.
    Kill,
    /// KILL again, and tell what is still there. Once per ladder, unless nobody was met.
    Report,
}

/// A ladder that was begun.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Ladder {
    kill_at: Instant,
    /// When KILL was first sent.
    killed: Option<Instant>,
    reported: bool,
    /// Somebody has come since the last walk.
    unmet: bool,
    /// The first walk is not later.
    walk_by: Instant,
    pause: Duration,
    due: Instant,
}

impl Ladder {
    /// TERM has been sent; KILL follows after `grace`.
    pub(crate) fn begin(now: Instant, grace: Duration) -> Self {
        let kill_at = now + grace.min(LONGEST_GRACE);
        Self {
            kill_at,
            killed: None,
            reported: false,
            unmet: false,
            walk_by: now + LATEST_FIRST_WALK,
            pause: FIRST_WALK,
            due: kill_at.min(now + FIRST_WALK),
        }
    }

    /// A later order can only shorten the grace.
    pub(crate) fn shorten(&mut self, now: Instant, grace: Duration) {
        self.kill_at = self.kill_at.min(now + grace.min(LONGEST_GRACE));
        self.due = self.due.min(self.kill_at.max(now));
    }

    /// Something died: TERM does its work, so the first walk may wait a little more.
    pub(crate) fn progress(&mut self, now: Instant) {
        if self.killed.is_none() && self.pause == FIRST_WALK && !self.unmet {
            self.due = self.kill_at.min(self.walk_by).min(now + FIRST_WALK);
        }
    }

    /// Somebody new has come: a walk is due at once, and after KILL another one soon, however often it
    /// was sent before.
    pub(crate) fn newcomer(&mut self, now: Instant) {
        if self.killed.is_none() {
            self.unmet = true;
            self.due = now;
        } else {
            self.pause = FIRST_KILL;
            self.due = self.due.min(now + FIRST_KILL);
        }
    }

    /// Nobody was met who could be named, and yet it is not over: [`Rung::Report`] comes again.
    pub(crate) fn unreported(&mut self) {
        self.reported = false;
    }

    /// The time that is left until KILL.
    pub(crate) fn grace(&self, now: Instant) -> Duration {
        self.kill_at.saturating_duration_since(now)
    }

    /// When [`Ladder::step`] has something to do.
    pub(crate) fn due(&self) -> Instant {
        self.due
    }

    /// What is due now, if anything.
    pub(crate) fn step(&mut self, now: Instant) -> Option<Rung> {
        if now < self.due {
            return None;
        }
        let Some(killed) = self.killed else {
            return Some(self.step_before_kill(now));
        };
        let rung = if !self.reported && now >= killed + PATIENCE {
            self.reported = true;
            Rung::Report
        } else {
            Rung::Kill
        };
        self.pause = (self.pause * 2).min(SLOWEST_KILL);
        self.due = now + self.pause;
        Some(rung)
    }

    fn step_before_kill(&mut self, now: Instant) -> Rung {
        let unmet = std::mem::take(&mut self.unmet);
        if now >= self.kill_at {
            self.killed = Some(now);
            self.pause = FIRST_KILL;
            self.due = now + self.pause;
            return if unmet { Rung::WalkAndKill } else { Rung::Kill };
        }
        self.pause = (self.pause * 2).min(SLOWEST_WALK);
        self.due = self.kill_at.min(now + self.pause);
        Rung::Walk
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn start() -> Instant {
        #[expect(clippy::disallowed_methods, reason = "an origin for a pure timer")]
        Instant::now()
    }

    /// Runs a ladder on its own due times for `length` and gives what happened when.
    fn run(mut ladder: Ladder, origin: Instant, length: Duration) -> Vec<(Duration, Rung)> {
        let mut happened = Vec::new();
        while ladder.due() <= origin + length {
            let now = ladder.due();
            let rung = ladder.step(now).expect("something is due when it is due");
            happened.push((now - origin, rung));
            assert!(ladder.due() > now, "a ladder never spins");
        }
        happened
    }

    #[test]
    fn walks_then_kills_then_reports_once() {
        let origin = start();
        let grace = Duration::from_millis(300);
        let happened = run(Ladder::begin(origin, grace), origin, Duration::from_secs(20));
        assert_eq!(happened[0], (FIRST_WALK, Rung::Walk));
        let first_kill = happened.iter().find(|(_, rung)| *rung == Rung::Kill).expect("kill");
        assert_eq!(first_kill.0, grace);
        assert!(happened.iter().all(|(at, rung)| (*at < grace) == (*rung == Rung::Walk)));
        let reports: Vec<_> = happened.iter().filter(|(_, rung)| *rung == Rung::Report).collect();
        assert_eq!(reports.len(), 1);
        assert!(reports[0].0 >= grace + PATIENCE && reports[0].0 <= grace + PATIENCE * 2);
        assert!(happened.len() < 40, "an unkillable member costs a few wake-ups, not a spin");
    }

    #[test]
    fn deaths_put_off_the_first_walk_but_never_the_kill() {
        let origin = start();
        let mut ladder = Ladder::begin(origin, Duration::from_millis(10));
        for micros in (0..9_500).step_by(500) {
            let now = origin + Duration::from_micros(micros);
            ladder.progress(now);
            assert_eq!(ladder.step(now), None);
        }
        ladder.progress(origin + Duration::from_millis(10));
        assert_eq!(ladder.step(origin + Duration::from_millis(10)), Some(Rung::Kill));
    }

    #[test]
    fn deaths_without_end_do_not_keep_the_first_walk_back() {
        let origin = start();
        let mut ladder = Ladder::begin(origin, Duration::from_secs(3));
        let walked = (0..3000_u64).find(|half| {
            let now = origin + Duration::from_micros(half * 500);
            ladder.progress(now);
            ladder.step(now) == Some(Rung::Walk)
        });
        assert!(walked.is_some_and(|half| half <= 100), "{walked:?}");
    }

    #[test]
    fn newcomers_get_kill_soon_however_often_it_was_sent() {
        let origin = start();
        let mut ladder = Ladder::begin(origin, Duration::from_millis(100));
        ladder.newcomer(origin);
        assert_eq!(ladder.step(origin), Some(Rung::Walk), "no KILL before the grace is over");
        let mut now = origin;
        while ladder.pause < SLOWEST_KILL {
            now = ladder.due();
            ladder.step(now);
        }
        ladder.newcomer(now);
        assert_eq!(ladder.due(), now + FIRST_KILL);
        ladder.newcomer(now + FIRST_KILL / 2);
        assert_eq!(ladder.due(), now + FIRST_KILL, "more of them do not put it off");
    }

    #[test]
    fn no_grace_kills_at_once() {
        let origin = start();
        let mut ladder = Ladder::begin(origin, Duration::ZERO);
        assert_eq!(ladder.step(origin), Some(Rung::Kill));
    }

    #[test]
    fn an_endless_grace_does_not_overflow() {
        let origin = start();
        let mut ladder = Ladder::begin(origin, Duration::MAX);
        ladder.shorten(origin, Duration::MAX);
        assert_eq!(ladder.step(origin), None);
    }

    proptest! {
        #[test]
        fn the_shortest_order_wins(graces in prop::collection::vec((0_u64..5000, 0_u64..5000), 1..6)) {
            let origin = start();
            let mut ladder = Ladder::begin(origin, Duration::from_millis(5000));
            let mut expected = origin + Duration::from_millis(5000);
            for (at, grace) in graces {
                let (now, grace) = (origin + Duration::from_millis(at), Duration::from_millis(grace));
                ladder.shorten(now, grace);
                expected = expected.min(now + grace);
            }
            let happened = run(ladder, origin, Duration::from_secs(12));
            let first = happened.iter().find(|(_, rung)| *rung == Rung::Kill).expect("kill");
            prop_assert!(origin + first.0 >= expected);
            prop_assert!(first.0 <= Duration::from_millis(10_000));
        }
    }
}

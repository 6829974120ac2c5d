//! When a loop is wedged: from what two witnesses say at each look to a verdict. Pure; time is counted in looks that were
//! made in time, so that time in which nobody could look, or be looked at, counts for nothing.
//!
//! The first witness is the loop's own word: it has not turned, though it was asked to. The second is the kernel's about the
//! thread: at every look it either computed all the time without turning, or slept without being woken once. Disk, a
//! debugger, a stop, a machine that slept or had no time clear the thread, whatever the first witness says.

use std::time::Duration;

/// The loop's thread, as the kernel tells of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Thread {
    /// R, S, D, T, …
    pub(super) state: u8,
    /// Processor time in clock ticks.
    pub(super) cpu: u64,
    /// How often it has slept of its own will.
    pub(super) slept: u64,
    /// It waits for data to reach a disk, in whatever state (`fsync` and its kin).
    pub(super) syncs: bool,
    /// Somebody traces it.
    pub(super) traced: bool,
}

/// What is seen at one look.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Look {
    /// Turns that the loop has made.
    pub(super) turns: u64,
    /// `None` when the thread cannot be looked at.
    pub(super) thread: Option<Thread>,
    /// `CLOCK_MONOTONIC`, which stands still while the machine sleeps.
    pub(super) awake: Duration,
    /// `CLOCK_BOOTTIME`, which does not.
    pub(super) total: Duration,
}

/// How a thread was at all looks since it was under suspicion.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Manner {
    /// It computed all the time.
    Spinning,
    /// It slept and was not woken once.
    Stuck,
}

impl Manner {
    /// In words.
    #[must_use]
    pub fn words(self) -> &'static str {
        match self {
            Self::Spinning => "its thread computed all the time",
            Self::Stuck => "its thread slept and was not woken once",
        }
    }
}

/// What is to be done after a look.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    Fine,
    /// The loop has not turned for half of the limit, or for that long since it was asked: it is asked to.
    Ask,
    /// Both witnesses agree, for the whole limit.
    Wedged(Manner),
}

#[derive(Debug)]
pub(super) struct Machine {
    /// Between two looks.
    interval: Duration,
    /// Looks that make up the limit.
    limit: u32,
    last: Option<Look>,
    /// Looks without a turn.
    silent: u32,
    /// Looks at which the thread was in this manner, without one in between at which it was not.
    manner: Option<(Manner, u32)>,
}

impl Machine {
    pub(super) fn new(interval: Duration, limit: u32) -> Self {
        Self { interval, limit: limit.max(4), last: None, silent: 0, manner: None }
    }

    fn reset(&mut self) {
        self.silent = 0;
        self.manner = None;
    }

    pub(super) fn look(&mut self, look: Look) -> Verdict {
        let Some(last) = self.last.replace(look) else { return Verdict::Fine };
        let awake = look.awake.saturating_sub(last.awake);
        let total = look.total.saturating_sub(last.total);
        // Late: the machine slept, this process was stopped or frozen, or nobody had time.
        if awake < self.interval / 2 {
            // Too early to count: what it was compared with stays.
            self.last = Some(last);
            return Verdict::Fine;
        }
        let late = total > self.interval * 3 || total.saturating_sub(awake) > self.interval;
        if late || look.turns != last.turns {
            self.reset();
            return Verdict::Fine;
        }
        self.silent += 1;
        let manner = last.thread.zip(look.thread).and_then(|(then, now)| manner(then, now));
        self.manner = match (manner, self.manner) {
            (Some(now), Some((then, looks))) if now == then => Some((now, looks + 1)),
            (Some(now), _) => Some((now, 1)),
            (None, _) => None,
        };
        // The second witness is heard from the question on: half of the limit.
        match self.manner {
            Some((manner, looks)) if self.silent >= self.limit && looks * 2 >= self.limit => {
                Verdict::Wedged(manner)
            }
            _ if self.silent.is_multiple_of(self.limit / 2) => Verdict::Ask,
            Some(_) | None => Verdict::Fine,
        }
    }
}

/// How a thread was between two looks; `None` when that may be right.
fn manner(then: Thread, now: Thread) -> Option<Manner> {
    if now.traced || now.syncs || then.syncs {
        return None;
    }
    let (slept, computed) = (now.slept != then.slept, now.cpu > then.cpu);
    match (then.state, now.state) {
        (b'R', b'R') if computed && !slept => Some(Manner::Spinning),
        (b'S', b'S') if !computed && !slept => Some(Manner::Stuck),
        // D: a disk. T, t: stopped or traced. R without time: others have it. Anything that slept has moved.
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const INTERVAL: Duration = Duration::from_millis(100);
    const LIMIT: u32 = 10;
    const STILL: Thread = Thread { state: b'S', cpu: 5, slept: 9, syncs: false, traced: false };

    /// Looks at regular times, changed by `change`; the verdicts.
    fn verdicts(looks: u32, change: impl Fn(u32, &mut Look)) -> Vec<Verdict> {
        let mut machine = Machine::new(INTERVAL, LIMIT);
        let at = |n: u32| {
            let time = INTERVAL * n;
            let mut look = Look { turns: 7, thread: Some(STILL), awake: time, total: time };
            change(n, &mut look);
            look
        };
        (0..looks).map(|n| machine.look(at(n))).collect()
    }

    fn thread(look: &mut Look) -> &mut Thread {
        look.thread.as_mut().expect("a thread")
    }

    fn is_wedged(looks: u32, change: impl Fn(u32, &mut Look)) -> bool {
        verdicts(looks, change).iter().any(|verdict| matches!(verdict, Verdict::Wedged(_)))
    }

    #[test]
    fn one_that_sleeps_or_computes_and_does_not_turn_is_wedged_after_the_limit_and_asked_before() {
        let stuck = verdicts(11, |_, _| ());
        assert_eq!(stuck.iter().position(|v| *v == Verdict::Ask), Some(5));
        assert_eq!(stuck.last(), Some(&Verdict::Wedged(Manner::Stuck)));
        assert!(stuck[..10].iter().all(|v| !matches!(v, Verdict::Wedged(_))));
        let spins = verdicts(11, |n, look| {
            thread(look).state = b'R';
            thread(look).cpu += u64::from(n);
        });
        assert_eq!(spins.last(), Some(&Verdict::Wedged(Manner::Spinning)));
    }

    #[test]
    fn the_first_witness_alone_is_not_enough() {
        // It does not turn, and the thread cannot be looked at, or does something each time.
        assert!(!is_wedged(100, |_, look| look.thread = None));
        assert!(!is_wedged(100, |n, look| thread(look).slept += u64::from(n)));
        assert!(!is_wedged(100, |n, look| thread(look).cpu += u64::from(n)), "asleep at each look");
        assert!(!is_wedged(100, |_, look| thread(look).state = b'R'), "others have the time");
    }

    #[test]
    fn the_second_witness_alone_is_not_enough() {
        assert!(!is_wedged(100, |n, look| look.turns += u64::from(n / 9)));
        // It answers when it is asked.
        assert!(!is_wedged(100, |n, look| look.turns += u64::from((n + 4) / 9)));
    }

    #[test]
    fn a_disk_a_stop_and_a_debugger_clear_it() {
        for state in [b'D', b'T', b't', b'Z', b'X', b'I', b'P'] {
            assert!(!is_wedged(100, |_, look| thread(look).state = state), "{}", char::from(state));
        }
        assert!(!is_wedged(100, |_, look| thread(look).syncs = true), "a sync that sleeps");
        assert!(!is_wedged(100, |_, look| thread(look).traced = true));
        // Once in a while is enough.
        assert!(!is_wedged(100, |n, look| if n % 4 == 0 {
            thread(look).state = b'D'
        }));
    }

    #[test]
    fn time_in_which_nobody_could_look_does_not_count() {
        // The machine slept for an hour, again and again.
        assert!(!is_wedged(100, |n, look| look.total += Duration::from_secs(3600) * (n / 9)));
        // This process was stopped for a second: no look was made in time.
        assert!(!is_wedged(100, |n, look| {
            let stopped = Duration::from_secs(1) * (n / 9);
            look.awake += stopped;
            look.total += stopped;
        }));
        // And it is seen all the same when that is over.
        assert!(is_wedged(40, |n, look| if n > 20 {
            look.total += Duration::from_secs(3600)
        }));
    }
}

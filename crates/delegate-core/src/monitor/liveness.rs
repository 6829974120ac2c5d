//! Whether a child gets on, as a pure machine: heartbeats to the parent, the window without progress, and
//! staleness.
//!
//! Three states are never mixed up ([`Liveness`]): a child that has no channel, one that is quiet, and one
//! that reports. Only progress moves a clock here; that somebody beats proves a living process and no more.
//! [`super::child`] holds one of these while its child runs; `now` is the time since the batch began.

use std::time::Duration;

use delegate_protocol::Limit;

use crate::config::OnStale;

/// The share of the inactivity window after which its one warning comes, in percent.
const WARN_AT: u32 = 80;

/// The limits of a child that does not get on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Patience {
    /// Between two heartbeats to the parent; also how long a child counts as reporting after its last
    /// sign of progress.
    pub heartbeat: Duration,
    /// Whether somebody wants the heartbeats.
    pub touches: bool,
    /// Longest time without progress.
    pub inactivity: Option<Duration>,
    /// Stale without a tool after.
    pub stale_idle: Duration,
    /// Stale inside a tool after.
    pub stale_in_tool: Duration,
    /// What staleness leads to.
    pub on_stale: OnStale,
}

/// What a child was seen to do so far; a snapshot, and not a change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Activity {
    /// Signs of progress; only that it changed counts.
    pub marks: u64,
    /// When the last of them came.
    pub at: Duration,
    /// A tool runs now.
    pub in_tool: bool,
    /// Its silence means something.
    pub reports: bool,
    /// Model calls.
    pub api_calls: u64,
}

impl Activity {
    /// Before anything was seen.
    pub const NONE: Self =
        Self { marks: 0, at: Duration::ZERO, in_tool: false, reports: true, api_calls: 0 };
}

/// What can be said of a running child.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Liveness {
    /// It cannot tell whether it gets on: silence says nothing.
    NoChannel,
    /// It could tell, and has not for longer than a heartbeat.
    Quiet,
    /// It made progress within the last heartbeat.
    Reporting,
}

impl Liveness {
    /// From whether silence means something, and how long it has lasted.
    #[must_use]
    pub fn of(reports: bool, quiet_for: Duration, heartbeat: Duration) -> Self {
        match (reports, quiet_for < heartbeat) {
            (false, _) => Self::NoChannel,
            (true, true) => Self::Reporting,
            (true, false) => Self::Quiet,
        }
    }

    /// The word that people see.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::NoChannel => "no channel",
            Self::Quiet => "quiet",
            Self::Reporting => "reporting",
        }
    }
}

/// A limit, and how long it was.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Expired {
    /// Which.
    pub limit: Limit,
    /// Its length, with every extension.
    pub after: Duration,
}

/// What is due.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub enum Due {
    /// Tell the parent that the child is there.
    Touch,
    /// Warn once: this limit is near, or (staleness that only warns) was passed.
    Warn(Expired),
    /// The wait is over.
    Expired(Expired),
}

/// The clocks of one running child.
#[derive(Debug, Clone)]
pub struct Watch {
    patience: Patience,
    seen: Activity,
    /// The last progress, moved by pauses.
    since: Duration,
    /// Time granted since the last progress.
    granted: Duration,
    /// When it was last looked at: what it did since is not known yet.
    looked: Duration,
    touch_at: Duration,
    warned: bool,
    stale: bool,
}

impl Watch {
    /// The clocks of a child that begins now.
    #[must_use]
    pub const fn new(patience: Patience, now: Duration) -> Self {
        Self {
            patience,
            seen: Activity::NONE,
            since: now,
            granted: Duration::ZERO,
            looked: now,
            touch_at: now.saturating_add(patience.heartbeat),
            warned: false,
            stale: false,
        }
    }

    /// What was seen last.
    #[must_use]
    pub const fn seen(&self) -> Activity {
        self.seen
    }

    /// What can be said of it.
    #[must_use]
    pub fn liveness(&self, now: Duration) -> Liveness {
        Liveness::of(self.seen.reports, self.quiet_for(now), self.patience.heartbeat)
    }

    /// How long it has made no progress; pauses do not count.
    #[must_use]
    pub const fn quiet_for(&self, now: Duration) -> Duration {
        now.saturating_sub(self.since)
    }

    /// Takes what was seen. Progress starts every window again, and takes back what was said of staleness.
    pub fn see(&mut self, activity: Activity, now: Duration) {
        if activity.marks != self.seen.marks {
            // What is told late happened no later than now.
            let at = activity.at.min(now);
            if at >= self.since {
                self.since = at;
                self.granted = Duration::ZERO;
                self.warned = false;
                self.stale = false;
            }
        }
        self.seen = activity;
        self.looked = now;
    }

    /// Grants time: no window ends before so much more has passed.
    pub const fn extend(&mut self, by: Duration) {
        self.granted = self.granted.saturating_add(by);
        self.warned = false;
        self.stale = false;
    }

    /// The clocks stood still from `paused` until `now`.
    pub fn shift(&mut self, paused: Duration, now: Duration) {
        for moment in [&mut self.since, &mut self.looked] {
            let pause = now.saturating_sub(paused.max(*moment));
            *moment = moment.saturating_add(pause);
        }
        self.touch_at = self.touch_at.saturating_add(now.saturating_sub(paused));
    }

    const fn stale_limit(&self, in_tool: bool) -> Expired {
        let (limit, after) = if in_tool {
            (Limit::StaleInTool, self.patience.stale_in_tool)
        } else {
            (Limit::StaleIdle, self.patience.stale_idle)
        };
        Expired { limit, after: after.saturating_add(self.granted) }
    }

    fn window(&self) -> Option<Expired> {
        let after = self.patience.inactivity?.saturating_add(self.granted);
        Some(Expired { limit: Limit::Inactivity, after })
    }

    /// The window's end, less a fifth of the window as it was set.
    fn warning(&self) -> Option<Duration> {
        let window = self.patience.inactivity?;
        Some(self.granted.saturating_add(window.saturating_mul(WARN_AT) / 100))
    }

    /// What is due at `now`, as far as what was [seen](Self::see) goes. What ends the wait is the limit
    /// that ran out first.
    pub fn tick(&mut self, now: Duration) -> Vec<Due> {
        let mut due = Vec::new();
        self.looked = now;
        let quiet = self.quiet_for(now);
        let window = self.window().filter(|window| quiet >= window.after);
        let stale = self.stale_limit(self.seen.in_tool);
        let is_stale = self.seen.reports && quiet >= stale.after;
        if is_stale && !self.stale && self.patience.on_stale == OnStale::Warn {
            due.push(Due::Warn(stale));
        }
        self.stale = is_stale;
        let stale = Some(stale).filter(|_| is_stale && self.patience.on_stale != OnStale::Warn);
        if let Some(first) = window.into_iter().chain(stale).min_by_key(|expired| expired.after) {
            due.push(Due::Expired(first));
            return due;
        }
        if !self.warned
            && self.warning().is_some_and(|after| quiet >= after)
            && let Some(window) = self.window()
        {
            self.warned = true;
            due.push(Due::Warn(window));
        }
        if now >= self.touch_at {
            // Missed ones are not made up for.
            self.touch_at = now.saturating_add(self.patience.heartbeat);
            // Whoever watches the parent may end its turn, then.
            if self.patience.touches && !self.stale {
                due.push(Due::Touch);
            }
        }
        due
    }

    /// The earliest time at which [`Watch::tick`], with what will have been seen by then, could say
    /// something.
    #[must_use]
    pub fn next(&self) -> Duration {
        let Patience { stale_idle, stale_in_tool, .. } = self.patience;
        // It may have entered or left a tool since, which is progress and starts the other limit.
        let unknown = self.looked.saturating_add(stale_idle.min(stale_in_tool));
        let known = if self.seen.reports && !self.stale {
            self.since.saturating_add(self.stale_limit(self.seen.in_tool).after)
        } else {
            unknown
        };
        let window =
            if self.warned { self.window().map(|window| window.after) } else { self.warning() };
        let window = window.map(|after| self.since.saturating_add(after));
        let touch = self.patience.touches.then_some(self.touch_at);
        [Some(known.min(unknown)), window, touch].into_iter().flatten().min().unwrap_or(known)
    }
}

#[cfg(test)]
#[path = "liveness_tests.rs"]
mod tests;

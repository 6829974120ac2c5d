//! The only clock of this crate: everything else takes the time as an argument. A test may bring its own.

use std::time::{Duration, Instant};

use tokio::sync::watch;

/// A clock that stands still until it is told to move, for tests of time limits: those of a batch
/// ([`crate::delegator::Builder::clock`]) are then reached without waiting.
///
/// Only the parent's limits follow it. Beats of a child, and the graces between TERM and KILL, which
/// others keep, follow the real one.
#[derive(Debug, Clone)]
pub struct ManualClock {
    now: watch::Sender<Duration>,
}

impl Default for ManualClock {
    fn default() -> Self {
        Self { now: watch::Sender::new(Duration::ZERO) }
    }
}

impl ManualClock {
    /// Moves it, and wakes whoever waits for that.
    pub fn advance(&self, by: Duration) {
        self.now.send_modify(|now| *now = now.saturating_add(by));
    }

    /// The time that it shows: what was added to it so far.
    pub(crate) fn now(&self) -> Duration {
        *self.now.borrow()
    }
}

/// The clock that all processes of this machine share, in milliseconds. Reading it is no system call.
pub(super) fn machine_ms() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    u64::try_from(now.tv_sec * 1000 + now.tv_nsec / 1_000_000).unwrap_or(0)
}

/// Time since the batch, or the session, began.
#[derive(Debug, Clone)]
pub(crate) enum Clock {
    Real(Instant),
    Manual(ManualClock, Duration),
}

impl Clock {
    #[expect(clippy::disallowed_methods, reason = "the clock of the loop that waits")]
    pub(crate) fn start(manual: Option<ManualClock>) -> Self {
        match manual {
            Some(clock) => {
                let began = clock.now();
                Self::Manual(clock, began)
            }
            None => Self::Real(Instant::now()),
        }
    }

    /// Now.
    pub(crate) fn now(&self) -> Duration {
        match self {
            Self::Real(began) => began.elapsed(),
            Self::Manual(clock, began) => clock.now().saturating_sub(*began),
        }
    }

    /// Waits until then; for ever where that is beyond what the clock can tell, or never.
    pub(crate) async fn sleep_until(&self, at: Option<Duration>) {
        match (self, at) {
            (Self::Real(began), Some(at)) => match began.checked_add(at) {
                Some(at) => tokio::time::sleep_until(at.into()).await,
                None => std::future::pending().await,
            },
            (Self::Manual(clock, began), Some(at)) => {
                let at = began.saturating_add(at);
                // Its sender lives in `clock`.
                if clock.now.subscribe().wait_for(|now| *now >= at).await.is_err() {
                    std::future::pending().await
                }
            }
            (_, None) => std::future::pending().await,
        }
    }
}

//! A ticker of 1 ms, as many agent loops have one: how late its ticks come while something else runs. For `agent_loop`, and
//! for the row `ticker` of the table of benches.

use std::time::{Duration, Instant};

use tokio::time::MissedTickBehavior;

const TICK: Duration = Duration::from_millis(1);

/// Runs `work` beside a ticker, and tells how late each tick was.
pub(crate) async fn watched<T>(work: impl Future<Output = T>) -> (Vec<Duration>, T) {
    let mut ticker = tokio::time::interval(TICK);
    ticker.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut delays = Vec::new();
    let mut last = Instant::now();
    tokio::pin!(work);
    loop {
        tokio::select! {
            biased;
            _ = ticker.tick() => {
                let now = Instant::now();
                delays.push((now - last).saturating_sub(TICK));
                last = now;
            }
            done = &mut work => return (delays, done),
        }
    }
}

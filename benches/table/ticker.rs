//! How late the ticks of 1 ms of an agent loop are while eight children burn processor time: p99, worst, and the time of
//! the batch. `process`, `thread`, or `idle` for two seconds without children.

use std::time::{Duration, Instant};

use delegate_runtime::config::Settings;
use delegate_runtime::{Delegator, Isolation, Task};

use crate::support::agents::Hog;
use crate::watch::watched;

const CHILDREN: usize = 8;

/// Some 200 ms of one processor for each child.
const LIMIT: u64 = 700_000;

/// # Errors
/// What went wrong with the batch.
pub(crate) fn round(with: &str) -> Result<Vec<u128>, String> {
    let isolation = match with {
        "process" => Some(Isolation::Process),
        "thread" => Some(Isolation::Thread),
        "idle" => None,
        _ => return Err(format!("process, thread or idle: {with}")),
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| error.to_string())?;
    let (mut delays, batch) = runtime.block_on(watched(async {
        let Some(isolation) = isolation else {
            tokio::time::sleep(Duration::from_secs(2)).await;
            return Ok(Duration::ZERO);
        };
        let began = Instant::now();
        burn(isolation).await?;
        Ok::<_, String>(began.elapsed())
    }));
    let batch = batch?;
    delays.sort_unstable();
    let worst = delays.last().copied().ok_or("no tick at all")?;
    let late = delays[(delays.len() - 1) * 99 / 100];
    Ok([late, worst, batch].map(|time| time.as_nanos()).to_vec())
}

async fn burn(isolation: Isolation) -> Result<(), String> {
    let state = tempfile::tempdir().map_err(|error| error.to_string())?;
    let settings = Settings { max_concurrent_children: 8, ..Settings::default() };
    let delegator = Delegator::builder().isolation(isolation).settings(settings);
    let delegator = delegator.state_dir(state.path()).build().map_err(|error| error.to_string())?;
    let tasks = (0..CHILDREN).map(|index| Task::of::<Hog>(format!("part {index}"), LIMIT));
    let mut run = delegator.batch(tasks).start().await.map_err(|error| error.to_string())?;
    while run.next().await.is_some() {}
    let report = run.finish().await;
    if report.all_completed() { Ok(()) } else { Err(format!("{:?}", report.statuses())) }
}

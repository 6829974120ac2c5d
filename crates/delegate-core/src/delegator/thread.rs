//! The thread of a delegator and the loop on it: every batch, and the wake-up for consumers.

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use ownership::file_size;
use tokio::sync::mpsc;
use tokio::task::{JoinSet, LocalSet};

use super::Started;
use crate::plan::StartError;
use crate::run::dispatch::Board;
use crate::session::drive::Driver;

/// What is carried out on it.
pub(super) enum Work {
    Batch(Box<Started>),
    Session(Box<Driver>),
}

/// Threads for what blocks: launches, and answers that go to disk.
const BLOCKING_THREADS: usize = 16;

/// For as long as any delegator lives: its blocking threads stay, since tokio panics where none is
/// left and the system has none to give. While one is there, work waits for it instead.
const KEPT: Duration = Duration::from_secs(365 * 24 * 60 * 60);

/// Between two looks of consumers at what other processes have left.
const SWEEP: Duration = Duration::from_secs(30);

/// The thread of every batch of one delegator: a caller whose own loop stalls stops no deadline. It
/// ends when the delegator is dropped and its last batch is done.
pub(super) fn start_loop(board: Arc<Board>) -> Result<mpsc::UnboundedSender<Work>, StartError> {
    let refused = |source| StartError::System { what: "the delegator's thread", source };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .max_blocking_threads(BLOCKING_THREADS)
        .thread_keep_alive(KEPT)
        .build()
        .map_err(refused)?;
    // Asked for in a way that can be refused, before tokio makes the first one.
    drop(thread::Builder::new().spawn(|| ()).map_err(refused)?.join());
    drop(runtime.spawn_blocking(|| ()));
    let (sender, mut started) = mpsc::unbounded_channel::<Work>();
    let serve = async move {
        let mut running = JoinSet::new();
        let mut sweep = tokio::time::interval(SWEEP);
        loop {
            tokio::select! {
                next = started.recv() => match next {
                    Some(Work::Batch(started)) => {
                        let (batch, report) = *started;
                        drop(running.spawn_local(batch.run(report)));
                    }
                    Some(Work::Session(driver)) => drop(running.spawn_local(driver.run())),
                    None => break,
                },
                Some(ended) = running.join_next() => log_panic(ended),
                // Somebody else may have died meanwhile: consumers look again.
                _ = sweep.tick() => board.wake(),
            }
        }
        while let Some(ended) = running.join_next().await {
            log_panic(ended);
        }
    };
    thread::Builder::new()
        .name("delegate-loop".to_owned())
        .spawn(move || {
            file_size::limit_is_an_error();
            LocalSet::new().block_on(&runtime, serve);
        })
        .map_err(refused)?;
    Ok(sender)
}

fn log_panic(ended: Result<(), tokio::task::JoinError>) {
    if let Err(error) = ended {
        tracing::error!(target: "delegate::run", %error, "the loop of a batch has panicked");
    }
}

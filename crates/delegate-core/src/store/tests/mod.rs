//! The store over real SQLite and real files.

mod background;
mod crash;
mod durability;
mod logs;
mod reading;

use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use delegate_protocol::outcome::{ExitReason, Tokens};
use delegate_protocol::{Outcome, RunId, Status};

use super::{NewRun, Store, bare};

/// Generous: a deadline, not an expectation.
const LONG: Duration = Duration::from_secs(60);

fn outcome(task_index: u32, summary: &str) -> Outcome {
    Outcome {
        summary: Some(summary.into()),
        api_calls: 3,
        duration_seconds: 1.25,
        tokens: Tokens { input: 1, output: 2 },
        pid: Some(77),
        launcher: Some("exec".into()),
        ..bare(task_index, Status::Completed, ExitReason::Completed)
    }
}

fn run(id: u128) -> RunId {
    RunId::from_u128(id)
}

fn new_run(id: RunId) -> NewRun {
    NewRun::new(id, "a title", "process", 3)
}

/// Stores an outcome and waits for its acknowledgement.
fn put(store: &Store, run: RunId, outcome: Outcome) -> bool {
    let (said, heard) = mpsc::channel();
    store.put_outcome(run, outcome, move |stored| said.send(stored).unwrap());
    heard.recv_timeout(LONG).unwrap()
}

/// Holds the recorder in a callback until the sender is dropped.
fn stall(store: &Store) -> mpsc::Sender<()> {
    let (release, released) = mpsc::channel::<()>();
    let (said, heard) = mpsc::channel();
    store.put_outcome(run(u128::MAX), outcome(0, ""), move |_| {
        said.send(()).unwrap();
        assert!(released.recv_timeout(LONG).is_err());
    });
    heard.recv_timeout(LONG).unwrap();
    release
}

fn warnings(store: &Store) -> Vec<String> {
    std::iter::from_fn(|| store.take_warning()).collect()
}

fn files_in(dir: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(dir).unwrap();
    let mut names: Vec<_> =
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// A counter for callbacks.
fn counter() -> (Arc<AtomicUsize>, impl Fn() -> usize) {
    let count = Arc::new(AtomicUsize::new(0));
    let read = count.clone();
    (count, move || read.load(Ordering::SeqCst))
}

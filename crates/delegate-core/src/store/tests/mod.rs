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

use delegate_protocol::outcome::{ExitReason, Isolation, Tokens};
use delegate_protocol::{Outcome, RunId, Status};

use super::{NewRun, Store};

/// Generous: a deadline, not an expectation.
const LONG: Duration = Duration::from_secs(60);

fn outcome(task_index: u32, summary: &str) -> Outcome {
    Outcome {
        task_index,
        status: Status::Completed,
        summary: Some(summary.into()),
        error: None,
        exit_reason: ExitReason::Completed,
        truncated: false,
        api_calls: 3,
        duration_seconds: 1.25,
        model: None,
        tokens: Tokens { input: 1, output: 2 },
        tool_trace: Vec::new(),
        cost_usd: None,
        cost_status: "unknown".to_owned(),
        live_transcript: None,
        summary_truncated: false,
        summary_full_path: None,
        stale_paths: Vec::new(),
        handed_off_processes: Vec::new(),
        orphaned_processes: Vec::new(),
        unread_completions: Vec::new(),
        worktree: None,
        schema_valid: None,
        schema_retries: None,
        schema_errors: Vec::new(),
        schema_note: None,
        failure_reason: None,
        timeout_seconds: None,
        timed_out_after_seconds: None,
        timeout_phase: None,
        last_event_age: None,
        diagnostic_path: None,
        missed_steer: None,
        subtree: None,
        approvals: Vec::new(),
        reasoning_tokens: 0,
        files_read: Vec::new(),
        files_written: Vec::new(),
        output_tail: Vec::new(),
        cause: None,
        stderr_tail: None,
        notes: Vec::new(),
        pid: Some(77),
        isolation: Isolation::Process,
        launcher: Some("exec".into()),
        logs: None,
        answer_is_json: false,
        result_path: None,
        result_sha256: None,
        result_bytes: None,
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

//! `manifest.jsonl` of a run: what was dispatched, which children work, how they ended, and where each can
//! be followed. Only appended to, and never in anybody's way: what finds no room is left out and counted
//! in the file.

use std::path::Path;
use std::time::Duration;

use delegate_protocol::{RunId, SubagentId};
use serde::Serialize;

use crate::store::{Log, Store};

/// One line.
#[derive(Debug, Serialize)]
#[serde(untagged)]
pub(super) enum Line<'a> {
    /// The batch begins. A task without a line of its own waits for its turn.
    Run {
        /// Its id.
        run_id: RunId,
        /// Tasks in it.
        tasks: u32,
    },
    /// A child begins (`running`) or has ended.
    Child {
        /// Position in the batch.
        task_index: u32,
        /// Its id.
        subagent_id: SubagentId,
        /// `running`, or the word of its outcome.
        status: &'a str,
        /// What can be followed of it.
        live_transcript: Option<&'a Path>,
    },
}

#[derive(Serialize)]
struct Stamped<'a> {
    /// Seconds since the batch began.
    at: f64,
    #[serde(flatten)]
    line: &'a Line<'a>,
}

/// Appends a line.
pub(super) fn write(store: &Store, run: RunId, now: Duration, line: &Line<'_>) {
    let at = (now.as_secs_f64() * 1000.0).round() / 1000.0;
    match serde_json::to_vec(&Stamped { at, line }) {
        Ok(mut bytes) => {
            bytes.push(b'\n');
            if !store.append(run, 0, Log::Manifest, bytes) {
                tracing::debug!(target: "delegate::run", "a line of the manifest found no room");
            }
        }
        Err(error) => tracing::warn!(target: "delegate::run", %error, "no line of the manifest"),
    }
}

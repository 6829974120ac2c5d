//! What is written down of one child while it runs: its events, stdout and stderr, through the
//! [`Store`].

use std::time::Duration;

use delegate_protocol::{Event, RunId};
use serde::Serialize;

use crate::store::{Log, Store};

/// One child's files.
#[derive(Debug, Clone)]
pub(super) struct Journal {
    pub(super) store: Store,
    pub(super) run: RunId,
    pub(super) task_index: u32,
}

/// A line of events.jsonl: the event, and when, in seconds since the batch began.
#[derive(Serialize)]
struct Line<'a> {
    at: f64,
    #[serde(flatten)]
    event: &'a Event,
}

impl Journal {
    /// Writes an event. A lifecycle event waits for room; progress is dropped (and counted in the
    /// file) before it holds anybody up.
    pub(super) async fn event(&self, event: &Event, now: Duration) {
        let at = (now.as_secs_f64() * 1000.0).round() / 1000.0;
        let mut line = match serde_json::to_vec(&Line { at, event }) {
            Ok(line) => line,
            Err(error) => {
                tracing::warn!(target: "delegate::run", %error, "an event has no JSON");
                return;
            }
        };
        line.push(b'\n');
        while let Err(refused) =
            self.store.append_event(self.run, self.task_index, event.class(), line)
        {
            line = refused.0;
            self.store.events_have_room().await;
        }
    }

    /// Writes output as it came.
    pub(super) fn output(&self, log: Log, bytes: &[u8]) {
        self.store.append(self.run, self.task_index, log, bytes.to_vec());
    }
}

//! What is written down of one child while it runs: its events, stdout and stderr, through the
//! [`Store`].

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use delegate_protocol::{Event, RunId};
use serde::Serialize;

use super::feed::Feed;
use crate::store::{Log, Store};

/// One child's files.
#[derive(Debug, Clone)]
pub(super) struct Journal {
    pub(super) store: Store,
    pub(super) run: RunId,
    pub(super) task_index: u32,
    /// Who watches the run.
    pub(super) feed: Arc<Feed>,
    /// Bytes that found no room.
    pub(super) lost: Rc<Cell<u64>>,
}

/// A line of events.jsonl: the event, and when, in seconds since the batch began.
#[derive(Serialize)]
struct Line<'a> {
    at: f64,
    #[serde(flatten)]
    event: &'a Event,
}

fn line(event: &Event, now: Duration) -> Option<Vec<u8>> {
    let at = (now.as_secs_f64() * 1000.0).round() / 1000.0;
    match serde_json::to_vec(&Line { at, event }) {
        Ok(mut line) => {
            line.push(b'\n');
            Some(line)
        }
        Err(error) => {
            tracing::warn!(target: "delegate::run", %error, "an event has no JSON");
            None
        }
    }
}

impl Journal {
    /// Writes an event. A lifecycle event waits for room; progress is dropped (and counted in the
    /// file) before it holds anybody up.
    pub(super) async fn event(&self, event: &Event, now: Duration) {
        let Some(mut line) = line(event, now) else { return };
        self.feed.line(event.class(), &line);
        let bytes = line.len();
        loop {
            match self.store.append_event(self.run, self.task_index, event.class(), line) {
                Ok(kept) => return self.count(kept, bytes),
                Err(refused) => line = refused.0,
            }
            self.store.events_have_room().await;
        }
    }

    /// Shows an event to who watches, and does not write it.
    pub(super) fn show(&self, event: &Event, now: Duration) {
        if let Some(line) = line(event, now) {
            self.feed.line(event.class(), &line);
        }
    }

    /// Writes output as it came.
    pub(super) fn output(&self, log: Log, bytes: &[u8]) {
        let kept = self.store.append(self.run, self.task_index, log, bytes.to_vec());
        self.count(kept, bytes.len());
    }

    fn count(&self, kept: bool, bytes: usize) {
        if !kept {
            self.lost.set(self.lost.get() + bytes as u64);
        }
    }
}

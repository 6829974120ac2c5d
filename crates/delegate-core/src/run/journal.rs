//! What is written down of one child while it runs: its events, stdout and stderr, through the
//! [`Store`].

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use delegate_protocol::{Event, RunId};

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

/// Bytes that most lines have room in.
const LINE: usize = 512;

/// A line of events.jsonl: the event, and when, in seconds since the batch began. The time is put into the event's
/// own object as text: a wrapper with `flatten` would have every field go through one more serializer.
fn line(event: &Event, now: Duration) -> Option<Vec<u8>> {
    let at = (now.as_secs_f64() * 1000.0).round() / 1000.0;
    let mut line = Vec::with_capacity(LINE);
    line.extend_from_slice(b"{\"at\":");
    let written = serde_json::to_writer(&mut line, &at).and_then(|()| {
        let object = line.len();
        serde_json::to_writer(&mut line, event)?;
        // An event is an object with fields; its own begins here.
        line[object] = b',';
        Ok(())
    });
    match written {
        Ok(()) => {
            line.push(b'\n');
            Some(line)
        }
        Err(error) => {
            tracing::warn!(target: "delegate::run", %error, "an event has no JSON");
            None
        }
    }
}

/// Writes a line so often, for counting instructions (`.ci/instructions`); its bytes.
#[must_use]
pub fn counted_lines(event: &Event, count: usize) -> usize {
    let lines =
        (0..count).filter_map(|_| line(std::hint::black_box(event), Duration::from_secs(7)));
    lines.map(|line| line.len()).sum()
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

#[cfg(test)]
mod tests {
    use delegate_protocol::SubagentId;

    use super::*;

    #[test]
    fn a_line_is_the_event_with_its_time_in_front() {
        let child = SubagentId::new(3, 1);
        for text in ["", "a \"b\"\n{"] {
            let event = Event::Text { child, text: text.to_owned() };
            let line = line(&event, Duration::from_micros(7_000_499)).unwrap();
            assert!(line.starts_with(b"{\"at\":7.0,\"event\":") && line.ends_with(b"}\n"));
            let mut parsed: serde_json::Value = serde_json::from_slice(&line).unwrap();
            parsed.as_object_mut().unwrap().remove("at");
            assert_eq!(parsed, serde_json::to_value(&event).unwrap());
        }
    }
}

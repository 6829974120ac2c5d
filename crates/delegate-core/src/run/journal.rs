//! What is written down of one child while it runs: its events, stdout and stderr, through the
//! [`Store`].

use std::cell::Cell;
use std::io::Write as _;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use delegate_protocol::{Event, RunId};

use super::feed::Feed;
use crate::store::{Lines, Log, Store};

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

/// A line of events.jsonl: the event, and when, in seconds since the batch began. The time is put into the event's
/// own object: a wrapper with `flatten` would have every field go through one more serializer. `false`: it has no JSON,
/// and nothing was appended.
fn write_line(event: &Event, now: Duration, out: &mut Vec<u8>) -> bool {
    let start = out.len();
    out.extend_from_slice(b"{\"at\":");
    write_seconds(now, out);
    let object = out.len();
    if let Err(error) = event.write_json(out) {
        tracing::warn!(target: "delegate::run", %error, "an event has no JSON");
        out.truncate(start);
        return false;
    }
    // An event is an object with fields; its own begins here.
    out[object] = b',';
    out.push(b'\n');
    true
}

/// Seconds to the millisecond, as a floating point number is written in JSON: without zeros at its end, but for one
/// behind the point.
fn write_seconds(now: Duration, out: &mut Vec<u8>) {
    let millis = (now.as_micros() + 500) / 1000;
    let (seconds, millis) = (millis / 1000, millis % 1000);
    let written = match millis {
        0 => write!(out, "{seconds}.0"),
        _ if millis % 100 == 0 => write!(out, "{seconds}.{}", millis / 100),
        _ if millis % 10 == 0 => write!(out, "{seconds}.{:02}", millis / 10),
        _ => write!(out, "{seconds}.{millis:03}"),
    };
    // A vector takes everything.
    drop(written);
}

/// Writes a line so often, for counting instructions (`.ci/instructions`); its bytes.
#[must_use]
pub fn counted_lines(event: &Event, count: usize) -> usize {
    let mut line = Vec::new();
    let mut bytes = 0;
    for _ in 0..count {
        line.clear();
        write_line(std::hint::black_box(event), Duration::from_secs(7), &mut line);
        bytes += line.len();
    }
    bytes
}

impl Journal {
    /// Writes one event.
    pub(super) async fn event(&self, event: &Event, now: Duration) {
        let mut lines = Lines::default();
        self.add(event, now, &mut lines);
        self.hand_on(&mut lines).await;
    }

    /// Adds an event to those that are to be written together, and shows it to who watches.
    pub(super) fn add(&self, event: &Event, now: Duration, lines: &mut Lines) {
        let class = event.class();
        let line = lines.add(class, |bytes| {
            write_line(event, now, bytes);
        });
        if !line.is_empty() {
            self.feed.line(class, line);
        }
    }

    /// Writes what was gathered. Lifecycle events wait for room; progress is dropped (and counted in the file) before
    /// it holds anybody up.
    pub(super) async fn hand_on(&self, lines: &mut Lines) {
        while !lines.is_empty() {
            self.count(self.store.append_events(self.run, self.task_index, lines));
            if !lines.is_empty() {
                self.store.events_have_room().await;
            }
        }
    }

    /// Shows an event to who watches, and does not write it.
    pub(super) fn show(&self, event: &Event, now: Duration) {
        self.add(event, now, &mut Lines::default());
    }

    /// Writes output as it came.
    pub(super) fn output(&self, log: Log, bytes: &[u8]) {
        if !self.store.append(self.run, self.task_index, log, bytes.to_vec()) {
            self.count(bytes.len() as u64);
        }
    }

    fn count(&self, lost: u64) {
        self.lost.set(self.lost.get() + lost);
    }
}

#[cfg(test)]
mod tests {
    use delegate_protocol::SubagentId;

    use super::*;

    fn line(event: &Event, now: Duration) -> Vec<u8> {
        let mut line = Vec::new();
        assert!(write_line(event, now, &mut line));
        line
    }

    #[test]
    fn a_line_is_the_event_with_its_time_in_front() {
        let child = SubagentId::new(3, 1);
        for text in ["", "a \"b\"\n{"] {
            let event = Event::Text { child, text: text.to_owned() };
            let line = line(&event, Duration::from_micros(7_000_499));
            assert!(line.starts_with(b"{\"at\":7.0,\"event\":") && line.ends_with(b"}\n"));
            let mut parsed: serde_json::Value = serde_json::from_slice(&line).unwrap();
            parsed.as_object_mut().unwrap().remove("at");
            assert_eq!(parsed, serde_json::to_value(&event).unwrap());
        }
    }

    #[test]
    fn seconds_are_written_as_a_number_of_json_is() {
        let whole = [0, 1, 59, 86_400, 100_000_000];
        let parts = (0..1000).chain([1001, 1010, 1100]);
        for (seconds, millis) in whole.into_iter().flat_map(|s| parts.clone().map(move |m| (s, m)))
        {
            let now = Duration::from_secs(seconds) + Duration::from_millis(millis);
            let mut written = Vec::new();
            write_seconds(now + Duration::from_micros(400), &mut written);
            let rounded = (now.as_secs_f64() * 1000.0).round() / 1000.0;
            assert_eq!(written, serde_json::to_vec(&rounded).unwrap());
        }
    }
}

//! The queue between an agent and the writer of its line, as a pure machine: what merges with what,
//! and what has to wait. `outbox` adds the waiting.
//!
//! Text is never lost and keeps its order among texts, tools and thoughts. A progress line is a
//! snapshot: a newer one replaces one that still waits, and counts it. Nothing passes a lifecycle
//! event.

use std::collections::VecDeque;

use delegate_protocol::{ChildEvent, Class, Note, Value};

/// Events that wait at most. Merging makes pressure visible long before; tools alone do not come at
/// such a rate.
pub(crate) const QUEUE_EVENTS: usize = 256;

/// Bytes that wait at most, give or take one event: as much as one part of a result.
pub(crate) const QUEUE_BYTES: usize = 1024 * 1024;

/// The largest text of one event, merged or not. Small against the frame cap, so that a beat never
/// waits long behind it.
pub(crate) const MERGED_TEXT: usize = 64 * 1024;

/// Lifecycle events that are taken beyond [`QUEUE_EVENTS`] once the child was asked to stop, so that
/// an agent can report the tools that it ends while it unwinds. One that needs more is not unwinding.
pub(crate) const OVERDRAFT: usize = 64;

/// Events that wait for the writer.
#[derive(Debug, Default)]
pub(crate) struct Queue {
    events: VecDeque<ChildEvent>,
    bytes: usize,
}

/// The event that did not fit.
#[derive(Debug, PartialEq)]
pub(crate) struct Full(pub(crate) ChildEvent);

impl Queue {
    /// Merges or appends. `stopping` lets lifecycle events use the [`OVERDRAFT`].
    ///
    /// # Errors
    /// [`Full`] gives the event back.
    pub(crate) fn push(&mut self, event: ChildEvent, stopping: bool) -> Result<(), Full> {
        let Some(event) = self.merge(event) else { return Ok(()) };
        if !self.has_room(event.class(), stopping) {
            return Err(Full(event));
        }
        self.bytes += size(&event);
        self.events.push_back(event);
        Ok(())
    }

    /// The oldest event.
    pub(crate) fn pop(&mut self) -> Option<ChildEvent> {
        let event = self.events.pop_front()?;
        self.bytes -= size(&event);
        Some(event)
    }

    /// Moves the oldest into `taken`, which is empty: up to so many bytes, and at least one if there is one.
    pub(crate) fn pop_some(&mut self, bytes: usize, taken: &mut VecDeque<ChildEvent>) {
        if self.bytes < bytes {
            std::mem::swap(&mut self.events, taken);
            self.bytes = 0;
            return;
        }
        let before = self.bytes;
        while before - self.bytes < bytes
            && let Some(event) = self.pop()
        {
            taken.push_back(event);
        }
    }

    /// How many wait.
    pub(crate) fn len(&self) -> usize {
        self.events.len()
    }

    /// Forgets everything; for a line without a parent.
    pub(crate) fn clear(&mut self) {
        self.events.clear();
        self.bytes = 0;
    }

    fn has_room(&self, class: Class, stopping: bool) -> bool {
        let overdraft = if stopping && class == Class::Lifecycle { OVERDRAFT } else { 0 };
        let bytes_fit = self.bytes < QUEUE_BYTES || overdraft > 0;
        self.events.len() < QUEUE_EVENTS + overdraft && bytes_fit
    }

    /// `None` when a waiting event took it in. A progress comes back with the count of the one that
    /// it replaces, which has made room.
    fn merge(&mut self, mut event: ChildEvent) -> Option<ChildEvent> {
        match (self.events.back_mut(), &mut event) {
            (Some(ChildEvent::Text { text: last }), ChildEvent::Text { text })
                if last.len() + text.len() <= MERGED_TEXT =>
            {
                last.push_str(text);
                self.bytes += text.len();
                None
            }
            // Thoughts are lines, texts are deltas.
            (Some(ChildEvent::Thinking { text: last }), ChildEvent::Thinking { text })
                if last.len() + 1 + text.len() <= MERGED_TEXT =>
            {
                last.push('\n');
                last.push_str(text);
                self.bytes += 1 + text.len();
                None
            }
            (_, ChildEvent::Progress { merged, .. }) => {
                *merged += self.take_back_progress();
                Some(event)
            }
            _ => Some(event),
        }
    }

    /// Removes the last progress event that no lifecycle event follows; how many it stood for.
    fn take_back_progress(&mut self) -> u64 {
        let recent = self.events.iter().rev().take_while(|event| event.class() == Class::Progress);
        let place = recent.enumerate().find_map(|(back, event)| match event {
            ChildEvent::Progress { merged, .. } => Some((back, merged + 1)),
            ChildEvent::Text { .. }
            | ChildEvent::Thinking { .. }
            | ChildEvent::Tool { .. }
            | ChildEvent::Note(_) => None,
        });
        let Some((back, stood_for)) = place else { return 0 };
        if let Some(old) = self.events.remove(self.events.len() - 1 - back) {
            self.bytes -= size(&old);
        }
        stood_for
    }
}

/// Bytes that an event is counted with.
fn size(event: &ChildEvent) -> usize {
    match event {
        ChildEvent::Text { text } | ChildEvent::Thinking { text } => text.len(),
        ChildEvent::Progress { summary, .. } => summary.len(),
        ChildEvent::Tool { name, preview, args, id, args_bytes } => {
            let texts = name.len()
                + [preview, id]
                    .map(|text| text.as_ref().map_or(0, String::len))
                    .iter()
                    .sum::<usize>();
            // Counted by whoever queued it; arguments that were left out take nothing.
            let args = if *args == Value::Null { 0 } else { *args_bytes };
            texts + usize::try_from(args).unwrap_or(usize::MAX / 2)
        }
        ChildEvent::Note(Note::ToolDone(end)) => end.preview.as_ref().map_or(0, String::len),
        ChildEvent::Note(Note::File { path, .. }) => path.len(),
        ChildEvent::Note(Note::Approval(approval)) => approval.request.len(),
        ChildEvent::Note(
            Note::Call { .. } | Note::Channel { .. } | Note::Steered { .. } | Note::Turn { .. },
        ) => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn text(text: &str) -> ChildEvent {
        ChildEvent::Text { text: text.to_owned() }
    }
    fn thinking(text: &str) -> ChildEvent {
        ChildEvent::Thinking { text: text.to_owned() }
    }
    fn progress(summary: &str, merged: u64) -> ChildEvent {
        ChildEvent::Progress { summary: summary.to_owned(), merged }
    }
    fn tool(name: &str) -> ChildEvent {
        ChildEvent::Tool {
            name: name.to_owned(),
            preview: None,
            args: Value::Null,
            id: None,
            args_bytes: 0,
        }
    }

    fn through(events: &[ChildEvent]) -> Vec<ChildEvent> {
        let mut queue = Queue::default();
        for event in events {
            queue.push(event.clone(), false).unwrap();
        }
        let out: Vec<_> = std::iter::from_fn(|| queue.pop()).collect();
        assert_eq!(queue.bytes, 0);
        out
    }

    /// Every pair of kinds.
    #[test]
    fn only_like_neighbours_merge() {
        let kinds = [text("a"), thinking("a"), progress("a", 0), tool("a")];
        for first in &kinds {
            for second in &kinds {
                let out = through(&[first.clone(), second.clone()]);
                let merged = match (first, second) {
                    (ChildEvent::Text { .. }, ChildEvent::Text { .. }) => vec![text("aa")],
                    (ChildEvent::Thinking { .. }, ChildEvent::Thinking { .. }) => {
                        vec![thinking("a\na")]
                    }
                    (ChildEvent::Progress { .. }, ChildEvent::Progress { .. }) => {
                        vec![progress("a", 1)]
                    }
                    _ => vec![first.clone(), second.clone()],
                };
                assert_eq!(out, merged);
            }
        }
    }

    #[test]
    fn a_newer_progress_passes_text_but_no_tool() {
        let out = through(&[progress("1", 0), text("a"), progress("2", 0), text("b")]);
        assert_eq!(out, [text("a"), progress("2", 1), text("b")]);
        let out = through(&[progress("1", 0), tool("t"), progress("2", 0)]);
        assert_eq!(out, [progress("1", 0), tool("t"), progress("2", 0)]);
    }

    #[test]
    fn a_full_queue_gives_back_and_only_lifecycle_overdraws() {
        let mut queue = Queue::default();
        for _ in 0..QUEUE_EVENTS {
            queue.push(tool("t"), false).unwrap();
        }
        for event in [text("a"), thinking("a"), progress("a", 0), tool("t")] {
            assert_eq!(queue.push(event.clone(), false), Err(Full(event)));
        }
        assert_eq!(queue.push(text("a"), true), Err(Full(text("a"))));
        for _ in 0..OVERDRAFT {
            queue.push(tool("t"), true).unwrap();
        }
        assert_eq!(queue.push(tool("t"), true), Err(Full(tool("t"))));

        let mut queue = Queue::default();
        let large = "x".repeat(MERGED_TEXT);
        let accepted = (0..).take_while(|_| queue.push(text(&large), false).is_ok()).count();
        assert_eq!(accepted, QUEUE_BYTES / MERGED_TEXT);
        assert!(queue.push(tool("t"), false).is_err() && queue.push(tool("t"), true).is_ok());
    }

    fn any_event() -> impl Strategy<Value = ChildEvent> {
        prop_oneof![
            4 => "[a-z]{0,5}".prop_map(|t| text(&t)),
            1 => Just(text(&"x".repeat(40_000))),
            1 => "[a-z]{0,5}".prop_map(|t| thinking(&t)),
            3 => "[a-z]{0,5}".prop_map(|t| progress(&t, 0)),
            1 => "[a-z]{1,5}".prop_map(|t| tool(&t)),
        ]
    }

    /// What must be the same before and after: all text, all thought, the tools in order with the
    /// text before each, and the number of progress events with the last of them.
    fn essence(events: &[ChildEvent]) -> (Vec<String>, Vec<String>, u64, Option<String>) {
        let (mut trail, mut thought) = (vec![String::new()], Vec::new());
        let (mut count, mut last) = (0, None);
        for event in events {
            match event {
                ChildEvent::Text { text } => trail.last_mut().unwrap().push_str(text),
                ChildEvent::Thinking { text } => {
                    thought.extend(text.split('\n').map(str::to_owned))
                }
                ChildEvent::Progress { summary, merged } => {
                    count += merged + 1;
                    last = Some(summary.clone());
                }
                ChildEvent::Tool { name, .. } => trail.extend([name.clone(), String::new()]),
                ChildEvent::Note(_) => {}
            }
        }
        (trail, thought, count, last)
    }

    proptest! {
        #[test]
        fn nothing_is_lost_in_any_order(
            steps in prop::collection::vec((any_event(), 0_usize..3), 0..200)
        ) {
            let mut queue = Queue::default();
            let (mut sent, mut out) = (Vec::new(), Vec::new());
            for (event, pops) in steps {
                sent.push(event.clone());
                let mut rest = queue.push(event, false);
                while let Err(Full(event)) = rest {
                    out.extend(queue.pop());
                    rest = queue.push(event, false);
                }
                prop_assert!(queue.len() <= QUEUE_EVENTS);
                prop_assert!(queue.bytes < QUEUE_BYTES + MERGED_TEXT);
                out.extend((0..pops).filter_map(|_| queue.pop()));
            }
            out.extend(std::iter::from_fn(|| queue.pop()));
            prop_assert_eq!(queue.bytes, 0);
            prop_assert_eq!(essence(&out), essence(&sent));
        }
    }
}

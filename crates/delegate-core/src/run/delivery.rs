//! The queue of events between one batch and its consumer.
//!
//! Two classes. Lifecycle events are never lost: a child's reader waits for room ([`Delivery::send`]),
//! so a consumer that stops reading slows its own batch and no other. Progress never waits: without
//! room it is merged per child, with a count. `finish()` ends the delivery and everything flows.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use delegate_protocol::{Class, Event, SubagentId};
use tokio::sync::Notify;

/// Events that wait for a consumer. A consumer that reads at all empties it between two turns of
/// its loop; with events of some 200 bytes it holds well under a MiB.
pub(crate) const ROOM: usize = 1024;

/// Bytes that wait for a consumer, give or take one event: the usual ones never come near it, 1,024 of
/// the largest (a tool's arguments may be 1 MiB, a frame 16 MiB) would.
pub(crate) const ROOM_BYTES: usize = 8 * 1024 * 1024;

/// Text that waits for a slow consumer, per child. Beyond it the oldest is left out (it stands in
/// events.jsonl) and counted.
pub(crate) const MERGED_TEXT: usize = 64 * 1024;

#[derive(Debug, Default)]
struct State {
    queue: VecDeque<Event>,
    /// What the queue holds ([`Event::weight`]).
    bytes: usize,
    /// What did not fit, merged, per child.
    merged: BTreeMap<SubagentId, Merged>,
    /// The consumer wants no more.
    closed: bool,
    /// The last event was sent.
    complete: bool,
    /// Somebody waits for room.
    waited_for: bool,
}

#[derive(Debug, Default)]
struct Merged {
    text: String,
    left_out: u64,
    thinking: Option<String>,
    progress: Option<String>,
    /// Its position in line; of a child that runs there is none.
    waiting: Option<u32>,
    count: u64,
}

/// The queue; one handle sends, one receives.
#[derive(Debug, Default)]
pub(crate) struct Delivery {
    state: Mutex<State>,
    readable: Notify,
    room: Notify,
    /// Told when the consumer made room: the loops that hold launches back.
    eased: Mutex<Vec<Weak<Notify>>>,
}

impl Delivery {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// From now on this is told when the consumer makes room, as long as somebody holds it.
    pub(crate) fn tell_of_room(&self, eased: &Arc<Notify>) {
        let mut all = self.eased.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|known| known.strong_count() > 0);
        all.push(Arc::downgrade(eased));
    }

    fn ease(&self) {
        let all = self.eased.lock().unwrap_or_else(PoisonError::into_inner);
        all.iter().filter_map(Weak::upgrade).for_each(|eased| eased.notify_one());
    }

    /// Whether the consumer keeps up (or wants no more).
    pub(crate) fn has_room(&self) -> bool {
        let state = self.state();
        state.closed || state.has_room()
    }

    /// Queues events of a child, and takes them. Lifecycle events wait for room; progress is merged without it. The
    /// consumer is woken by [`Delivery::tell`]: once for all events of one read, as waking it for each costs more
    /// than the event.
    pub(crate) async fn send(&self, events: Vec<Event>) {
        let mut events = events.into_iter();
        let mut next = events.next();
        loop {
            let room = self.room.notified();
            next = self.state().take_in(next, &mut events);
            if next.is_none() {
                return;
            }
            self.tell();
            room.await;
        }
    }

    /// Tells the consumer of what was queued.
    pub(crate) fn tell(&self) {
        self.readable.notify_one();
    }

    /// Sends an event of our own (start, complete): at most two per child, so it never waits.
    pub(crate) fn push(&self, event: Event) {
        let mut state = self.state();
        if state.closed {
            return;
        }
        state.append(event);
        drop(state);
        self.readable.notify_one();
    }

    /// Queues progress; without room it is merged.
    pub(crate) fn offer(&self, event: Event) {
        let mut state = self.state();
        if !state.closed {
            state.offer(event);
        }
    }

    /// Nothing more will be sent.
    pub(crate) fn complete(&self) {
        self.state().complete = true;
        self.readable.notify_one();
    }

    /// The consumer wants no more: whoever waits for room goes on.
    pub(crate) fn close(&self) {
        let mut state = self.state();
        state.closed = true;
        state.queue.clear();
        state.bytes = 0;
        state.merged.clear();
        drop(state);
        self.room.notify_waiters();
        self.ease();
        self.readable.notify_one();
    }

    /// Whether there is something to be read, or nothing more will come.
    pub(crate) fn has_some(&self) -> bool {
        let state = self.state();
        state.closed || state.complete || !state.queue.is_empty() || !state.merged.is_empty()
    }

    /// The next event; `None` after the last.
    pub(crate) async fn next(&self) -> Option<Event> {
        // Mostly there is one, and nothing is made ready for waiting.
        if let Ok(event) = self.try_next() {
            return event;
        }
        loop {
            let readable = self.readable.notified();
            match self.try_next() {
                Ok(event) => return event,
                Err(Empty) => readable.await,
            }
        }
    }

    /// The next events, as many as are there, up to `most` bytes and at least one; empty after the last.
    pub(crate) async fn next_some(&self, most: usize) -> Vec<Event> {
        let Some(first) = self.next().await else { return Vec::new() };
        let mut bytes = first.weight();
        let mut events = vec![first];
        while bytes < most
            && let Ok(Some(event)) = self.try_next()
        {
            bytes += event.weight();
            events.push(event);
        }
        events
    }

    fn try_next(&self) -> Result<Option<Event>, Empty> {
        let mut state = self.state();
        let was_full = !state.has_room();
        if state.queue.is_empty() {
            state.release_all();
        }
        let event = state.queue.pop_front();
        state.bytes -= event.as_ref().map_or(0, Event::weight);
        let over = state.closed || state.complete;
        // Half of it: who is let go on for each event that is read goes on for one event.
        let go_on = state.waited_for && state.is_half_empty();
        state.waited_for &= !go_on;
        drop(state);
        if go_on {
            self.room.notify_waiters();
        }
        if was_full {
            self.ease();
        }
        match event {
            Some(event) => Ok(Some(event)),
            None if over => Ok(None),
            None => Err(Empty),
        }
    }
}

/// No event yet.
struct Empty;

impl State {
    fn has_room(&self) -> bool {
        self.queue.len() < ROOM && self.bytes < ROOM_BYTES
    }

    fn is_half_empty(&self) -> bool {
        self.queue.len() <= ROOM / 2 && self.bytes <= ROOM_BYTES / 2
    }

    /// Queues one event after the other; the first that has to wait comes back.
    fn take_in(
        &mut self,
        first: Option<Event>,
        events: &mut impl Iterator<Item = Event>,
    ) -> Option<Event> {
        if self.closed {
            return None;
        }
        for event in first.into_iter().chain(events) {
            match event.class() {
                Class::Progress => self.offer(event),
                Class::Lifecycle if self.has_room() => self.append(event),
                Class::Lifecycle => {
                    self.waited_for = true;
                    return Some(event);
                }
            }
        }
        None
    }

    fn offer(&mut self, event: Event) {
        if self.has_room() {
            self.append(event);
        } else {
            self.merged.entry(event.child()).or_default().take(event);
        }
    }

    /// What was merged for a child goes before its next event.
    fn append(&mut self, event: Event) {
        let child = event.child();
        if let Some(merged) = self.merged.remove(&child) {
            self.extend(merged.into_events(child));
        }
        self.extend([event]);
    }

    fn release_all(&mut self) {
        while let Some((child, merged)) = self.merged.pop_first() {
            self.extend(merged.into_events(child));
        }
    }

    fn extend(&mut self, events: impl IntoIterator<Item = Event>) {
        for event in events {
            self.bytes += event.weight();
            self.queue.push_back(event);
        }
    }
}

impl Merged {
    fn take(&mut self, event: Event) {
        if let Event::Waiting { position, .. } = event {
            self.waiting = Some(position);
            return;
        }
        self.count += 1;
        match event {
            Event::Text { child: _, text } => {
                self.text.push_str(&text);
                // Cutting at twice the size keeps this linear.
                if self.text.len() > 2 * MERGED_TEXT {
                    self.cut_text();
                }
            }
            Event::Thinking { child: _, text } => self.thinking = Some(text),
            Event::Progress { child: _, summary, merged } => {
                self.progress = Some(summary);
                self.count += merged;
            }
            Event::SpawnRequested { .. }
            | Event::Waiting { .. }
            | Event::Start { .. }
            | Event::Tool { .. }
            | Event::Warning { .. }
            | Event::Turn { .. }
            | Event::Complete { .. } => {}
        }
    }

    /// Keeps the last [`MERGED_TEXT`] bytes, cut between characters.
    fn cut_text(&mut self) {
        let mut cut = self.text.len().saturating_sub(MERGED_TEXT);
        while !self.text.is_char_boundary(cut) {
            cut += 1;
        }
        self.text.drain(..cut);
        self.left_out += cut as u64;
    }

    fn into_events(mut self, child: SubagentId) -> Vec<Event> {
        self.cut_text();
        let mut events = Vec::new();
        events.extend(self.waiting.map(|position| Event::Waiting { child, position }));
        if self.left_out > 0 {
            let summary =
                format!("{} bytes of text were not shown to a slow reader", self.left_out);
            events.push(Event::Progress { child, summary, merged: 0 });
        }
        if !self.text.is_empty() {
            events.push(Event::Text { child, text: self.text });
        }
        if let Some(text) = self.thinking {
            events.push(Event::Thinking { child, text });
        }
        if let Some(summary) = self.progress {
            let merged = self.count.saturating_sub(1);
            events.push(Event::Progress { child, summary, merged });
        }
        events
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::Future;
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    const CHILD: SubagentId = SubagentId::new(0, 1);

    fn poll<F: Future>(future: F) -> Poll<F::Output> {
        pin!(future).poll(&mut Context::from_waker(Waker::noop()))
    }

    fn tool(number: usize) -> Event {
        let name = number.to_string();
        Event::Tool { child: CHILD, name, preview: None, args: delegate_protocol::Value::Null }
    }

    fn text(text: &str) -> Event {
        Event::Text { child: CHILD, text: text.to_owned() }
    }

    fn drain(delivery: &Delivery) -> Vec<Event> {
        let mut events = Vec::new();
        while let Poll::Ready(Some(event)) = poll(delivery.next()) {
            events.push(event);
        }
        events
    }

    #[test]
    fn lifecycle_waits_for_room_and_nothing_is_lost() {
        let delivery = Delivery::default();
        for number in 0..ROOM {
            assert!(poll(delivery.send(vec![tool(number)])).is_ready());
        }
        assert!(!delivery.has_room());
        let mut waiting = Box::pin(delivery.send(vec![tool(ROOM), text("t")]));
        let mut context = Context::from_waker(Waker::noop());
        assert!(waiting.as_mut().poll(&mut context).is_pending());
        let half: Vec<_> = (0..ROOM / 2).map(|_| poll(delivery.next())).collect();
        assert_eq!(half[0], Poll::Ready(Some(tool(0))));
        assert!(waiting.as_mut().poll(&mut context).is_ready());
        drop(waiting);
        let rest = drain(&delivery);
        assert_eq!(
            (&rest[rest.len() - 2..], rest.len()),
            (&[tool(ROOM), text("t")][..], ROOM / 2 + 2)
        );
    }

    #[test]
    fn a_few_large_events_use_the_room_up_as_well() {
        let delivery = Delivery::default();
        let large = text(&"x".repeat(ROOM_BYTES / 4));
        for _ in 0..100 {
            assert!(poll(delivery.send(vec![large.clone()])).is_ready());
        }
        assert!(!delivery.has_room());
        assert!(poll(delivery.send(vec![tool(0)])).is_pending());
        let held = delivery.state().queue.iter().map(Event::weight).sum::<usize>();
        assert_eq!(held, delivery.state().bytes);
        assert!(held < ROOM_BYTES + large.weight(), "{held}");
        drain(&delivery);
        assert_eq!(delivery.state().bytes, 0);
        assert!(delivery.has_room());
    }

    #[test]
    fn progress_never_waits_and_is_merged_in_its_place() {
        let delivery = Delivery::default();
        for number in 0..ROOM {
            assert!(poll(delivery.send(vec![tool(number)])).is_ready());
        }
        for _ in 0..100_000 {
            assert!(poll(delivery.send(vec![text("0123456789")])).is_ready());
            assert!(delivery.state().merged[&CHILD].text.len() <= 2 * MERGED_TEXT);
        }
        delivery.push(tool(ROOM));
        let events = drain(&delivery);
        let [left_out, kept, last] = &events[ROOM..] else { panic!("{}", events.len()) };
        assert!(
            matches!(left_out, Event::Progress { summary, .. } if summary.contains("934464 bytes")),
            "{left_out:?}"
        );
        assert!(matches!(kept, Event::Text { text, .. } if text.len() == MERGED_TEXT));
        assert_eq!(last, &tool(ROOM));
    }

    #[test]
    fn merged_progress_says_how_much_it_stands_for() {
        let delivery = Delivery::default();
        for number in 0..ROOM {
            assert!(poll(delivery.send(vec![tool(number)])).is_ready());
        }
        for number in 0..10 {
            let summary = number.to_string();
            let event = Event::Progress { child: CHILD, summary, merged: 1 };
            assert!(poll(delivery.send(vec![event])).is_ready());
        }
        let last = drain(&delivery).pop();
        let summary = "9".to_owned();
        assert_eq!(last, Some(Event::Progress { child: CHILD, summary, merged: 19 }));
    }

    #[test]
    fn a_closed_delivery_lets_everybody_go_on() {
        let delivery = Delivery::default();
        for number in 0..ROOM {
            assert!(poll(delivery.send(vec![tool(number)])).is_ready());
        }
        delivery.close();
        assert!(delivery.has_room());
        assert!(poll(delivery.send(vec![tool(0)])).is_ready());
        assert_eq!(poll(delivery.next()), Poll::Ready(None));
    }

    #[test]
    fn the_end_comes_after_the_last_event() {
        let delivery = Delivery::default();
        delivery.push(tool(0));
        delivery.complete();
        assert_eq!(poll(delivery.next()), Poll::Ready(Some(tool(0))));
        assert_eq!(poll(delivery.next()), Poll::Ready(None));
    }
}

//! The outbox: what an agent says waits here for the one writer of the line. It adds waiting to
//! `queue`: an agent waits while the queue is full, the writer while it is empty.

use std::collections::VecDeque;
use std::mem;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use delegate_protocol::ChildEvent;

use crate::cancel::{Reason, Token};
use crate::queue::{Full, Queue};

/// A bounded, merging queue between the agent's thread and the writer.
#[derive(Debug, Default)]
pub(crate) struct Outbox {
    state: Mutex<State>,
    /// Something left the queue, or the token was raised.
    room: Condvar,
    /// Something entered the queue, or the agent is done.
    work: Condvar,
}

#[derive(Debug, Default)]
struct State {
    queue: Queue,
    done: bool,
    /// The writer has something else to do than events.
    poked: bool,
    /// Who waits. Waking nobody is a system call too, and there are events by the million.
    writer: Writer,
    agent_waits: bool,
    /// Content that an agent emitted after it was asked to stop, while there was no room.
    skipped: u64,
}

/// What the writer does.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum Writer {
    #[default]
    Writes,
    /// It waits for an event.
    Waits,
    /// It waits for more of them.
    Gathers,
}

/// How the writer waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wait {
    /// For an event, at most this long (`None`: as long as it takes).
    ForOne(Option<Duration>),
    /// This long whatever events come, unless the agent needs room, or is done.
    ForMore(Duration),
}

/// What the writer finds.
#[derive(Debug, PartialEq)]
pub(crate) enum Taken {
    /// Some events, the oldest.
    Events,
    /// Nothing came in time.
    Nothing,
    /// The agent is done and everything was taken.
    Done,
}

/// Bytes of events that are taken at once, give or take one event. What else the writer has to do waits no longer
/// than for these.
const TAKEN: usize = 64 * 1024;

impl Outbox {
    /// Queues an event; waits for room. Once `token` is raised nobody waits for content any more:
    /// what finds no room is skipped (its text is still in the account's tail), so that an agent
    /// always reaches its next checkpoint. Without a parent everything is skipped.
    pub(crate) fn put(&self, event: ChildEvent, token: &Token) {
        let mut state = self.state();
        let mut rest = event;
        loop {
            let raised = token.raised();
            if raised == Some(Reason::ParentGone) {
                state.queue.clear();
                return;
            }
            match state.queue.push(rest, raised.is_some()) {
                Ok(()) => break,
                Err(Full(ChildEvent::Text { .. } | ChildEvent::Thinking { .. }))
                | Err(Full(ChildEvent::Progress { .. }))
                    if raised.is_some() =>
                {
                    state.skipped += 1;
                    return;
                }
                Err(Full(event)) => rest = event,
            }
            state = self.wait_for_room(state);
        }
        let writer_waits = state.writer == Writer::Waits;
        if writer_waits {
            state.writer = Writer::Writes;
        }
        drop(state);
        if writer_waits {
            self.work.notify_one();
        }
    }

    fn wait_for_room<'a>(&self, mut state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        state.agent_waits = true;
        if mem::take(&mut state.writer) != Writer::Writes {
            self.work.notify_one();
        }
        self.room.wait(state).unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until the writer has taken everything, so that what is asked next comes behind it; not once the child is
    /// to stop for good.
    pub(crate) fn wait_empty(&self, token: &Token) {
        let mut state = self.state();
        while state.queue.len() > 0 && token.raised() != Some(Reason::ParentGone) {
            state = self.wait_for_room(state);
        }
    }

    /// Moves the oldest events into `taken`, which is empty; `false`: there are none.
    pub(crate) fn try_take(&self, taken: &mut VecDeque<ChildEvent>) -> bool {
        self.pop(&mut self.state(), taken)
    }

    fn pop(&self, state: &mut State, taken: &mut VecDeque<ChildEvent>) -> bool {
        state.queue.pop_some(TAKEN, taken);
        let some = !taken.is_empty();
        if some && mem::take(&mut state.agent_waits) {
            self.room.notify_one();
        }
        some
    }

    /// Waits, then moves the oldest events into `taken`, which is empty.
    pub(crate) fn take(&self, wait: Wait, taken: &mut VecDeque<ChildEvent>) -> Taken {
        let mut guard = self.state();
        let waits = |state: &mut State| {
            let (waits, writer) = match wait {
                Wait::ForOne(_) => (state.queue.len() == 0, Writer::Waits),
                Wait::ForMore(_) => (!state.agent_waits, Writer::Gathers),
            };
            let waits = waits && !state.done && !state.poked;
            state.writer = if waits { writer } else { Writer::Writes };
            waits
        };
        guard = match wait {
            Wait::ForOne(Some(time)) | Wait::ForMore(time) => {
                let waited = self.work.wait_timeout_while(guard, time, waits);
                waited.unwrap_or_else(PoisonError::into_inner).0
            }
            Wait::ForOne(None) => {
                self.work.wait_while(guard, waits).unwrap_or_else(PoisonError::into_inner)
            }
        };
        guard.writer = Writer::Writes;
        let poked = mem::take(&mut guard.poked);
        if self.pop(&mut guard, taken) {
            Taken::Events
        } else if guard.done && !poked {
            Taken::Done
        } else {
            Taken::Nothing
        }
    }

    /// The agent says nothing more.
    pub(crate) fn close(&self) {
        self.state().done = true;
        self.work.notify_one();
    }

    /// Lets a waiting agent look at the token again. Taking the lock first means that nobody is
    /// between looking and waiting.
    pub(crate) fn wake(&self) {
        drop(self.state());
        self.room.notify_all();
    }

    /// Lets the writer look around, whether or not there are events.
    pub(crate) fn poke(&self) {
        self.state().poked = true;
        self.work.notify_one();
    }

    /// Events that wait for the writer.
    pub(crate) fn waiting(&self) -> usize {
        self.state().queue.len()
    }

    /// Content that was skipped because the child was asked to stop.
    pub(crate) fn skipped(&self) -> u64 {
        self.state().skipped
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::queue::QUEUE_EVENTS;
    use delegate_protocol::Value;
    use std::sync::Arc;
    use std::thread;

    fn tool() -> ChildEvent {
        ChildEvent::Tool {
            name: "t".to_owned(),
            preview: None,
            args: Value::Null,
            id: None,
            args_bytes: 0,
        }
    }

    fn full_outbox() -> (Arc<Outbox>, Arc<Token>) {
        let (outbox, token) = (Arc::new(Outbox::default()), Arc::new(Token::default()));
        let woken = Arc::clone(&outbox);
        token.on_raise(move |_| woken.wake());
        for _ in 0..QUEUE_EVENTS {
            outbox.put(tool(), &token);
        }
        (outbox, token)
    }

    /// Starts a thread that puts one event into a full outbox, and waits until it really waits.
    fn blocked(
        outbox: &Arc<Outbox>,
        token: &Arc<Token>,
        event: ChildEvent,
    ) -> thread::JoinHandle<()> {
        let (outbox, token) = (Arc::clone(outbox), Arc::clone(token));
        let (started, here) = crossbeam_channel::bounded(0);
        let thread = thread::spawn(move || {
            started.send(()).unwrap();
            outbox.put(event, &token);
        });
        here.recv().unwrap();
        assert!(!thread.is_finished());
        thread
    }

    #[test]
    fn a_flood_of_text_stays_within_the_bound_and_arrives_whole() {
        const DELTAS: usize = 1_000_000;
        let (outbox, token) = (Arc::new(Outbox::default()), Token::default());
        let reader = thread::spawn({
            let outbox = Arc::clone(&outbox);
            move || {
                let (mut bytes, mut events, mut longest) = (0, 0, 0);
                let mut taken = VecDeque::new();
                loop {
                    longest = longest.max(outbox.state().queue.len());
                    match outbox.take(Wait::ForOne(None), &mut taken) {
                        Taken::Events => {}
                        Taken::Done => return (bytes, events, longest),
                        Taken::Nothing => panic!("nothing came"),
                    }
                    for event in taken.drain(..) {
                        let ChildEvent::Text { text } = event else { panic!("{event:?}") };
                        bytes += text.len();
                        events += 1;
                    }
                    thread::yield_now();
                }
            }
        });
        for _ in 0..DELTAS {
            outbox.put(ChildEvent::Text { text: "delta ".to_owned() }, &token);
        }
        outbox.close();
        let (bytes, events, longest) = reader.join().unwrap();
        assert_eq!(bytes, DELTAS * "delta ".len());
        assert!(longest <= QUEUE_EVENTS, "{longest}");
        assert!(events <= DELTAS);
    }

    #[test]
    fn an_interrupt_frees_a_waiting_agent_and_its_text_is_skipped() {
        let (outbox, token) = full_outbox();
        let agent = blocked(&outbox, &token, ChildEvent::Text { text: "x".to_owned() });
        token.raise(Reason::Interrupt);
        agent.join().unwrap();
        assert_eq!((outbox.skipped(), outbox.state().queue.len()), (1, QUEUE_EVENTS));
        outbox.put(tool(), &token);
        assert_eq!(outbox.state().queue.len(), QUEUE_EVENTS + 1);
    }

    #[test]
    fn a_lost_parent_frees_a_waiting_agent_and_nothing_is_kept() {
        let (outbox, token) = full_outbox();
        let agent = blocked(&outbox, &token, tool());
        token.raise(Reason::ParentGone);
        agent.join().unwrap();
        let mut taken = VecDeque::new();
        assert_eq!(outbox.take(Wait::ForOne(Some(Duration::ZERO)), &mut taken), Taken::Nothing);
        outbox.close();
        assert_eq!(outbox.take(Wait::ForOne(None), &mut taken), Taken::Done);
        assert!(taken.is_empty());
    }

    #[test]
    fn an_agent_that_asks_in_order_waits_until_all_is_taken_or_nobody_takes_it() {
        const LARGE: usize = 4;
        for gone in [false, true] {
            let (outbox, token) = (Arc::new(Outbox::default()), Arc::new(Token::default()));
            let woken = Arc::clone(&outbox);
            token.on_raise(move |_| woken.wake());
            for _ in 0..LARGE {
                outbox.put(ChildEvent::Text { text: "x".repeat(TAKEN) }, &token);
            }
            let waiting = thread::spawn({
                let (outbox, token) = (Arc::clone(&outbox), Arc::clone(&token));
                move || outbox.wait_empty(&token)
            });
            let mut taken = VecDeque::new();
            for left in (1..LARGE).rev() {
                assert_eq!(outbox.take(Wait::ForOne(None), &mut taken), Taken::Events);
                assert_eq!((outbox.waiting(), waiting.is_finished()), (left, false));
                taken.clear();
            }
            token.raise(if gone { Reason::ParentGone } else { Reason::Interrupt });
            if !gone {
                assert_eq!(outbox.take(Wait::ForOne(None), &mut taken), Taken::Events);
            }
            waiting.join().unwrap();
        }
    }

    #[test]
    fn a_waiting_agent_goes_on_when_the_writer_took_something() {
        let (outbox, token) = full_outbox();
        let agent = blocked(&outbox, &token, tool());
        let mut taken = VecDeque::new();
        assert_eq!(outbox.take(Wait::ForOne(None), &mut taken), Taken::Events);
        agent.join().unwrap();
        assert_eq!((taken.len(), outbox.waiting()), (QUEUE_EVENTS, 1));
    }

    /// Who gathers is not woken by each event, and holds up neither an agent without room nor the end.
    #[test]
    fn a_writer_that_gathers_goes_on_when_somebody_needs_it() {
        const LONG: Wait = Wait::ForMore(Duration::from_secs(3600));
        let (outbox, token) = (Arc::new(Outbox::default()), Token::default());
        let gather = || {
            let outbox = Arc::clone(&outbox);
            thread::spawn(move || {
                let mut taken = VecDeque::new();
                (outbox.take(LONG, &mut taken), taken.len())
            })
        };
        let writer = gather();
        for _ in 0..=QUEUE_EVENTS {
            outbox.put(tool(), &token);
        }
        assert_eq!(writer.join().unwrap(), (Taken::Events, QUEUE_EVENTS));
        outbox.poke();
        assert_eq!(gather().join().unwrap(), (Taken::Events, 1));
        let writer = gather();
        outbox.poke();
        assert_eq!(writer.join().unwrap(), (Taken::Nothing, 0));
        let writer = gather();
        outbox.close();
        assert_eq!(writer.join().unwrap(), (Taken::Done, 0));
        let short = Wait::ForMore(Duration::from_nanos(1));
        let outbox = Outbox::default();
        outbox.put(tool(), &token);
        let mut taken = VecDeque::new();
        assert_eq!((outbox.take(short, &mut taken), taken.len()), (Taken::Events, 1));
    }
}

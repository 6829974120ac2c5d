//! What the loop and the I/O of one child both look at while it runs, and the page that the child itself shares with us.

use std::cell::{Cell, OnceCell, RefCell};
use std::collections::VecDeque;
use std::time::Duration;

use delegate_protocol::outcome::NAME_BYTES;
use delegate_protocol::{Beat, ParentMessage, page};
use ownership::page::Page;
use tokio::sync::Notify;

use super::clock::machine_ms;
use crate::collect::cut_off;
use crate::monitor::Pulse;

/// What the loop may look at while a child runs.
#[derive(Debug, Default)]
pub(super) struct Shared {
    pub(super) pulse: RefCell<Pulse>,
    /// What it says that it is doing, once it was asked.
    pub(super) own_word: RefCell<Option<String>>,
    pub(super) answered: Notify,
    /// Words that are to be sent, once it has its task.
    pub(super) steers: RefCell<VecDeque<(u64, String)>>,
    pub(super) steered: Notify,
    /// The turn that is to end, and the one of which the child was told that.
    pub(super) stopped_turn: Cell<u64>,
    told_to_stop: Cell<u64>,
    pub(super) page: Seen,
}

/// The page that a child shares with us, if it has one.
#[derive(Debug, Default)]
pub(super) struct Seen {
    page: OnceCell<Page>,
    /// The last record that was taken in.
    last: Cell<u64>,
}

impl Seen {
    /// From now on there is one.
    pub(super) fn set(&self, page: Option<Page>) {
        if let Some(page) = page {
            let _first = self.page.set(page);
        }
    }

    /// Asks the child to unwind, ahead of the frame that says so too.
    pub(super) fn interrupt(&self) {
        if let Some(page) = self.page.get() {
            page::interrupt(page.words());
            page.wake(page::INTERRUPT);
        }
    }

    /// What it said last there.
    pub(super) fn last_beat(&self) -> Option<Beat> {
        self.record().map(|record| record.beat)
    }

    fn record(&self) -> Option<page::Record> {
        page::read(self.page.get()?.words())
    }
}

impl Shared {
    /// Takes in what stands on the child's page, where that is new.
    pub(super) fn look(&self, now: Duration) {
        let Some(page::Record { beat, at_ms }) = self.page.record() else { return };
        if beat.sequence <= self.page.last.replace(beat.sequence) {
            return;
        }
        let age = Duration::from_millis(machine_ms().saturating_sub(at_ms));
        self.pulse.borrow_mut().record(bounded(beat), now.saturating_sub(age));
    }

    pub(super) async fn next_steer(&self) -> ParentMessage {
        loop {
            let turn = self.stopped_turn.get();
            if self.told_to_stop.replace(turn) < turn {
                return ParentMessage::StopTurn { turn };
            }
            if let Some((number, text)) = self.steers.borrow_mut().pop_front() {
                return ParentMessage::Steer { number, text };
            }
            self.steered.notified().await;
        }
    }
}

/// A worker of another make may name a tool as long as it likes.
pub(super) fn bounded(mut beat: Beat) -> Beat {
    if let Some(tool) = &mut beat.current_tool {
        cut_off(tool, NAME_BYTES);
    }
    beat
}

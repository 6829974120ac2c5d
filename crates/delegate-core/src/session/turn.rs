//! [`Turn`]: the events of one turn of a session, and its outcome. Reads the runs of the session's workers, which
//! [`super::drive`] starts, through [`super::handle`].

use delegate_protocol::Event;
use tokio::sync::oneshot;

use super::drive::Command;
use super::handle::{SessionControl, SessionHandle};
use super::outcome::{self, TurnOutcome};
use crate::run::block_on;

/// A turn of a session. Dropped, it goes on; its outcome is in [`SessionHandle::history`].
#[derive(Debug)]
#[must_use = "its events and its outcome are read through it"]
pub struct Turn<'session> {
    session: &'session mut SessionHandle,
    number: u64,
    /// `None` once it has come.
    waits: Option<oneshot::Receiver<TurnOutcome>>,
    outcome: Option<TurnOutcome>,
    over: bool,
}

impl<'session> Turn<'session> {
    pub(super) const fn new(
        session: &'session mut SessionHandle,
        number: u64,
        outcome: oneshot::Receiver<TurnOutcome>,
    ) -> Self {
        Self { session, number, waits: Some(outcome), outcome: None, over: false }
    }
}

impl Turn<'_> {
    /// Counts the turns of the session from 1.
    #[must_use]
    pub const fn number(&self) -> u64 {
        self.number
    }

    /// As [`SessionHandle::control`].
    #[must_use]
    pub fn control(&self) -> SessionControl {
        self.session.control()
    }

    /// Has the agent unwind from this turn, and go on with the next. One that does not within the grace time is
    /// ended with its worker.
    pub fn stop(&self) {
        drop(self.session.commands.send(Command::StopTurn(self.number)));
    }

    /// The next event; `None` when the turn is over. What earlier turns left unread is passed over.
    pub async fn next(&mut self) -> Option<Event> {
        loop {
            self.look();
            if self.over {
                return None;
            }
            let Self { session, waits, outcome, .. } = self;
            let event = match &mut session.current {
                Some(run) => tokio::select! {
                    biased;
                    event = run.next() => match event {
                        Some(event) => event,
                        None => {
                            session.read = session.current.take().map(|run| run.id());
                            session.open = None;
                            continue;
                        }
                    },
                    come = ready(waits) => {
                        *outcome = come;
                        *waits = None;
                        continue;
                    }
                },
                None => tokio::select! {
                    biased;
                    come = ready(waits) => {
                        *outcome = come;
                        *waits = None;
                        continue;
                    }
                    life = session.lives.recv() => {
                        session.current = life;
                        self.over = self.session.current.is_none();
                        continue;
                    }
                },
            };
            if let Some(event) = self.take(event) {
                return Some(event);
            }
        }
    }

    /// What an event means for this turn; `None`: it is an earlier one's.
    fn take(&mut self, event: Event) -> Option<Event> {
        let earlier = self.session.open.is_some_and(|open| open < self.number);
        if let Event::Turn { turn, end, .. } = &event {
            self.session.open = end.is_none().then_some(*turn);
            if *turn < self.number {
                return None;
            }
            self.over = end.is_some() && *turn == self.number;
        }
        (!earlier).then_some(event)
    }

    /// Its outcome may be there: of a turn that was never begun there are no events, of one that ended with its
    /// worker there are none behind the worker's.
    fn look(&mut self) {
        if let Some(waits) = &mut self.waits
            && let Ok(outcome) = waits.try_recv()
        {
            (self.outcome, self.waits) = (Some(outcome), None);
        }
        if let Some(outcome) = &self.outcome {
            self.over |= !outcome.was_begun() || outcome.run_id == self.session.read;
        }
    }

    /// Blocking twin of [`Turn::next`].
    pub fn next_blocking(&mut self) -> Option<Event> {
        block_on(self.next())
    }

    /// Waits for its end.
    pub async fn finish(mut self) -> TurnOutcome {
        while self.next().await.is_some() {}
        let come = match self.waits.take() {
            Some(waits) => waits.await.ok(),
            None => self.outcome.take(),
        };
        come.unwrap_or_else(|| {
            let why = "the session is over".to_owned();
            outcome::refused(self.session.id, self.number, why)
        })
    }

    /// Blocking twin of [`Turn::finish`].
    #[must_use]
    pub fn finish_blocking(self) -> TurnOutcome {
        block_on(self.finish())
    }
}

/// Ready when it has come, or will never.
async fn ready(waits: &mut Option<oneshot::Receiver<TurnOutcome>>) -> Option<TurnOutcome> {
    match waits {
        Some(waits) => waits.await.ok(),
        None => std::future::pending().await,
    }
}

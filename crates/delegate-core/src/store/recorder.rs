//! The recorder: the one thread that writes. Takes from the [`Inbox`], gives to the
//! [`Database`] and the [`Files`], and falls back to memory where they refuse.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;

use crossbeam_channel::Sender;
use delegate_protocol::{Outcome, RunId};

use super::database::{Database, RunRow, is_busy};
use super::desk::{Desk, Work};
use super::files::Files;
use super::inbox::{Batch, Inbox, Piece, Record, Stored};
use super::memory::{Shared, Trouble};
use super::place;
use super::reserve::Reserve;

/// Bytes of one write that is made of several pieces.
const JOINED: usize = 64 * 1024;

/// What is done once the log pieces before it are written.
enum After {
    CloseRun(RunId),
    Flush(Sender<()>),
}

/// See the module.
pub(super) struct Recorder {
    inbox: Arc<Inbox>,
    shared: Arc<Shared>,
    database: Option<Database>,
    /// Why there is no database.
    refusal: String,
    files: Files,
    reserve: Reserve,
    live: HashMap<RunId, RunRow>,
    after: Vec<(u64, After)>,
    /// Dropped last: tells the handle that all is written and closed.
    _done: Sender<()>,
}

/// An outcome on its way.
struct Arrived {
    run: RunId,
    outcome: Box<Outcome>,
    stored: Stored,
}

impl Recorder {
    pub(super) fn new(
        inbox: Arc<Inbox>,
        shared: Arc<Shared>,
        (database, refusal): (Option<Database>, String),
        (files, reserve): (Files, Reserve),
        done: Sender<()>,
    ) -> Self {
        let (live, after) = (HashMap::new(), Vec::new());
        Self { inbox, shared, database, refusal, files, reserve, live, after, _done: done }
    }

    /// Records until the inbox is closed and empty.
    pub(super) fn run(mut self) {
        let mut batch = Batch::default();
        while self.inbox.take(&mut batch) {
            self.record(&mut batch);
            for piece in joined(batch.pieces.drain(..)) {
                let written = self.files.write(&piece);
                self.warn_of_logs(written);
            }
            self.finish_after(batch.pieces_so_far);
            if let Some(database) = &self.database {
                database.checkpoint();
            }
        }
        let closed = self.files.close(None);
        self.warn_of_logs(closed);
    }

    fn record(&mut self, batch: &mut Batch) {
        let (mut rows, mut arrived) = (Vec::new(), Vec::new());
        let mut works = Vec::new();
        for record in batch.records.drain(..) {
            match record {
                Record::Begin(row) => {
                    self.live.insert(row.id, RunRow { begun: None, ..(*row).clone() });
                    rows.push(*row);
                }
                Record::Outcome { run, mut outcome, stored } => {
                    self.make_folder(&mut outcome);
                    arrived.push(Arrived { run, outcome, stored });
                }
                Record::End { run, status, duration_seconds, ending, pieces_before } => {
                    self.after.push((pieces_before, After::CloseRun(run)));
                    if let Some(mut row) = self.live.remove(&run) {
                        status.clone_into(&mut row.status);
                        row.duration_seconds = Some(duration_seconds);
                        row.ending = Some(ending);
                        rows.push(row);
                    }
                }
                Record::Flush { pieces_before, done } => {
                    self.after.push((pieces_before, After::Flush(done)));
                }
                Record::Work(work) => works.push(work),
            }
        }
        if !rows.is_empty() || !arrived.is_empty() {
            self.store(rows, arrived);
        }
        works.into_iter().for_each(|work| self.work(work));
    }

    fn work(&mut self, work: Work) {
        self.check_place();
        work(Desk { database: self.database.as_mut(), shared: &self.shared });
    }

    /// Gives up a database that is not where it was.
    fn check_place(&mut self) {
        if let Some(reason) = self.database.as_ref().and_then(Database::misplaced) {
            self.shared.set_misplaced();
            self.database = None;
            self.refusal = reason;
        }
    }

    /// An outcome names a folder that is there, or none.
    fn make_folder(&self, outcome: &mut Outcome) {
        // STATE/runs/RUN/N
        let made = |logs: &std::path::Path| match logs.ancestors().nth(3) {
            Some(state) => place::private_dirs_below(state, logs),
            None => place::private_dir(logs),
        };
        if let Some(Err(error)) = outcome.logs.as_deref().map(made) {
            self.warn_of_logs(Err(error));
            outcome.logs = None;
        }
    }

    /// One transaction for all of it; where that fails, one for each, so that what cannot be stored
    /// takes nothing else with it.
    fn store(&mut self, rows: Vec<RunRow>, arrived: Vec<Arrived>) {
        self.check_place();
        let refs: Vec<&RunRow> = rows.iter().collect();
        let outcomes: Vec<_> = arrived.iter().map(|one| (one.run, &*one.outcome)).collect();
        let alone = rows.len() + arrived.len() == 1;
        let whole = match &mut self.database {
            Some(database) => database.write(&refs, &outcomes),
            None => return self.keep_all(rows, arrived, &self.refusal),
        };
        match whole {
            Ok(()) => {
                if rows.iter().any(|row| row.ending.is_none()) {
                    self.reserve.take();
                }
                let mut memory = self.shared.memory();
                rows.iter().for_each(|row| memory.forget_run(row.id));
                drop(memory);
                arrived.into_iter().for_each(|one| (one.stored)(true));
            }
            // The last word about a run, and there may be room for it.
            Err(error)
                if alone
                    && !is_busy(&error)
                    && rows.iter().any(|row| row.ending.is_some())
                    && self.reserve.give() =>
            {
                tracing::warn!(target: "delegate::store", %error, "only that the run has ended is kept");
                self.store(rows, arrived);
            }
            Err(error) if alone || is_busy(&error) => {
                self.keep_all(rows, arrived, &error.to_string());
            }
            Err(_) => {
                rows.into_iter().for_each(|row| self.store(vec![row], Vec::new()));
                arrived.into_iter().for_each(|one| self.store(Vec::new(), vec![one]));
            }
        }
    }

    fn keep_all(&self, rows: Vec<RunRow>, arrived: Vec<Arrived>, reason: &str) {
        let text = || {
            format!(
                "outcomes from now on are kept in memory only, output and events perhaps not at all: \
                 {reason}"
            )
        };
        self.shared.warn(Trouble::Outcomes, text);
        for row in rows {
            let due = row.begun.as_ref().map(|begun| begun.deliveries.clone()).unwrap_or_default();
            due.into_iter().for_each(|delivery| self.shared.keep_delivery(delivery));
            self.shared.keep_run(row);
        }
        for one in arrived {
            self.shared.keep(one.run, *one.outcome);
            (one.stored)(false);
        }
    }

    fn finish_after(&mut self, pieces_so_far: u64) {
        for (pieces_before, after) in std::mem::take(&mut self.after) {
            match after {
                _ if pieces_before > pieces_so_far => self.after.push((pieces_before, after)),
                After::Flush(done) => drop(done),
                After::CloseRun(run) => {
                    let closed = self.files.close(Some(run));
                    self.warn_of_logs(closed);
                }
            }
        }
    }

    fn warn_of_logs(&self, result: io::Result<()>) {
        if let Err(error) = result {
            let text = || format!("not all output and events of children are kept: {error}");
            self.shared.warn(Trouble::Logs, text);
        }
    }
}

/// Pieces of one file that follow each other, as one, up to [`JOINED`]: a child that streams costs a
/// write for some hundred of its events.
fn joined(pieces: impl Iterator<Item = Piece>) -> impl Iterator<Item = Piece> {
    let mut pieces = pieces.peekable();
    std::iter::from_fn(move || {
        let mut first = pieces.next()?;
        while let Some(next) = pieces.next_if(|next| first.can_take(next, JOINED)) {
            first.lines.extend(&next.lines);
        }
        Some(first)
    })
}

/// Should this thread ever die early, nobody waits for it for ever.
impl Drop for Recorder {
    fn drop(&mut self) {
        let text = || "outcomes from now on are kept in memory only: the recorder ended".to_owned();
        for record in self.inbox.abandon() {
            match record {
                Record::Outcome { run, outcome, stored } => {
                    self.shared.warn(Trouble::Outcomes, text);
                    self.shared.keep(run, *outcome);
                    stored(false);
                }
                Record::Work(work) => work(Desk { database: None, shared: &self.shared }),
                Record::Begin(_) | Record::End { .. } | Record::Flush { .. } => {}
            }
        }
    }
}

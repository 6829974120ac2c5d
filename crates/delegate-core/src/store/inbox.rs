//! The queue between everybody and the recorder thread.
//!
//! One lock, held for a push or a swap only, so that a caller never waits for the disk. Two lanes:
//! *records* (begin, outcome, end) are few and never dropped; *log bytes* are bounded in count and in
//! bytes, and what does not fit is counted per file. Records go first: a child that floods its log
//! delays nobody's outcome.
//!
//! A lock and a condition variable instead of a channel, because a bound in bytes, the count of what
//! was dropped and the wakers of those who wait for room must change together.

use std::collections::{HashMap, VecDeque};
use std::mem;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use crossbeam_channel::Sender;
use delegate_protocol::event::Class;
use delegate_protocol::{Outcome, RunId};

use super::Log;
use super::database::RunRow;
use super::desk::Work;
use super::lines::Lines;

/// Log bytes that wait for the disk. A disk takes them in tens of milliseconds, so this bridges a
/// stall of about that length under a flood, and all usual stalls at usual rates.
pub(super) const QUEUE_BYTES: usize = 16 << 20;
/// Pieces that wait: with less than 100 bytes each besides their text, under 2 MiB.
pub(super) const QUEUE_PIECES: usize = 16 * 1024;
/// Lifecycle lines are taken up to this many times the bounds above, so that a flood of text, which
/// stops at the bounds, leaves room for them.
const LIFECYCLE_SHARE: usize = 2;
/// Records of one transaction: bounds the time until the first of them is acknowledged.
const GROUP: usize = 1024;
/// Log bytes taken out at once, so that a record never waits for more than this to be written.
const BITE: usize = 1 << 20;

/// A file of a child.
pub(super) type FileKey = (RunId, u32, Log);

/// Called when an outcome is stored: whether it is on disk.
pub(super) type Stored = Box<dyn FnOnce(bool) + Send>;

/// What is never dropped. Bounded by design: one begin and one end per run, one outcome
/// per child, one piece of work per caller that waits for it and per unit that ends.
pub(super) enum Record {
    Begin(Box<RunRow>),
    Outcome {
        run: RunId,
        outcome: Box<Outcome>,
        stored: Stored,
    },
    End {
        run: RunId,
        status: &'static str,
        duration_seconds: f64,
        /// How it ended besides, as JSON.
        ending: String,
        /// Log pieces that were queued before it.
        pieces_before: u64,
    },
    Flush {
        pieces_before: u64,
        done: Sender<()>,
    },
    /// Something to be done with the database, after every record before it.
    Work(Work),
}

/// Bytes for a file of a child.
pub(super) struct Piece {
    pub(super) file: FileKey,
    pub(super) lines: Lines,
    /// Bytes of this file that were dropped just before it.
    pub(super) dropped_before: u64,
}

impl Piece {
    /// Whether `next` can be written with it in one go of at most `most` bytes.
    pub(super) fn can_take(&self, next: &Self, most: usize) -> bool {
        self.file == next.file
            && next.dropped_before == 0
            && self.lines.len() + next.lines.len() <= most
    }
}

/// What the recorder takes out at once.
#[derive(Default)]
pub(super) struct Batch {
    pub(super) records: Vec<Record>,
    pub(super) pieces: Vec<Piece>,
    /// Pieces that were ever taken out, these included.
    pub(super) pieces_so_far: u64,
}

#[derive(Default)]
struct Lanes {
    records: VecDeque<Record>,
    pieces: VecDeque<Piece>,
    queued_bytes: usize,
    pieces_pushed: u64,
    pieces_popped: u64,
    dropped: HashMap<FileKey, u64>,
    waiting: Vec<Waker>,
    /// The recorder waits for work. Waking nobody is a system call too.
    idle: bool,
    closed: bool,
}

/// The queue. See the module.
pub(super) struct Inbox {
    lanes: Mutex<Lanes>,
    work: Condvar,
    max_bytes: usize,
    max_pieces: usize,
}

impl Inbox {
    pub(super) fn new(max_bytes: usize, max_pieces: usize) -> Self {
        Self { lanes: Mutex::default(), work: Condvar::new(), max_bytes, max_pieces }
    }

    fn lanes(&self) -> MutexGuard<'_, Lanes> {
        self.lanes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Queues a record; gives it back when the recorder is gone.
    pub(super) fn push(&self, mut record: Record) -> Result<(), Record> {
        let mut lanes = self.lanes();
        if lanes.closed {
            return Err(record);
        }
        if let Record::End { pieces_before, .. } | Record::Flush { pieces_before, .. } = &mut record
        {
            *pieces_before = lanes.pieces_pushed;
        }
        lanes.records.push_back(record);
        self.wake_recorder(lanes);
        Ok(())
    }

    /// Queues lines, and takes them. Progress that finds no room is dropped, counted, and left out of what is
    /// given back: the bytes of it. Lifecycle lines that find none stay in `lines`.
    pub(super) fn append(&self, file: FileKey, lines: &mut Lines) -> u64 {
        let mut lanes = self.lanes();
        if lanes.closed {
            lines.clear();
        }
        let mut dropped = 0;
        if !self.has_room(&lanes, Class::Progress) {
            dropped = lines.drop_progress();
            if dropped > 0 {
                *lanes.dropped.entry(file).or_default() += dropped;
            }
        }
        // Where there is room for progress there is for lifecycle lines.
        if lines.is_empty() || !self.has_room(&lanes, Class::Lifecycle) {
            return dropped;
        }
        let lines = mem::take(lines);
        let dropped_before = lanes.dropped.remove(&file).unwrap_or_default();
        lanes.queued_bytes += lines.len();
        lanes.pieces_pushed += 1;
        lanes.pieces.push_back(Piece { file, lines, dropped_before });
        self.wake_recorder(lanes);
        dropped
    }

    fn wake_recorder(&self, mut lanes: MutexGuard<'_, Lanes>) {
        let idle = mem::take(&mut lanes.idle);
        drop(lanes);
        if idle {
            self.work.notify_one();
        }
    }

    /// Ready when a lifecycle line would be taken. Asked and registered under one lock, so that no
    /// wake-up is lost.
    pub(super) fn poll_room(&self, context: &Context<'_>) -> Poll<()> {
        let mut lanes = self.lanes();
        if lanes.closed || self.has_room(&lanes, Class::Lifecycle) {
            return Poll::Ready(());
        }
        if !lanes.waiting.iter().any(|waker| waker.will_wake(context.waker())) {
            lanes.waiting.push(context.waker().clone());
        }
        Poll::Pending
    }

    /// A piece is taken while the queue is under its bounds, whatever its own size: one frame (16 MiB)
    /// is the most that it can be over, and no line is too long to be ever taken.
    fn has_room(&self, lanes: &Lanes, class: Class) -> bool {
        let share = match class {
            Class::Lifecycle => LIFECYCLE_SHARE,
            Class::Progress => 1,
        };
        lanes.queued_bytes < self.max_bytes * share && lanes.pieces.len() < self.max_pieces * share
    }

    /// Waits for work and moves a bite of it into `batch`. `false`: closed, and all is done.
    pub(super) fn take(&self, batch: &mut Batch) -> bool {
        let mut lanes = self.lanes();
        while lanes.records.is_empty() && lanes.pieces.is_empty() {
            if lanes.closed {
                return false;
            }
            lanes.idle = true;
            lanes = self.work.wait(lanes).unwrap_or_else(PoisonError::into_inner);
        }
        let group = lanes.records.len().min(GROUP);
        batch.records.extend(lanes.records.drain(..group));
        lanes.bite(batch);
        let room = self.has_room(&lanes, Class::Lifecycle);
        let wakers = if room { mem::take(&mut lanes.waiting) } else { Vec::new() };
        drop(lanes);
        wakers.into_iter().for_each(Waker::wake);
        true
    }

    /// Takes nothing more; what is queued is still recorded.
    pub(super) fn close(&self) {
        let mut lanes = self.lanes();
        lanes.closed = true;
        let wakers = mem::take(&mut lanes.waiting);
        drop(lanes);
        self.work.notify_all();
        wakers.into_iter().for_each(Waker::wake);
    }

    /// Closes it and hands out the records that nobody will take: the recorder is gone.
    pub(super) fn abandon(&self) -> Vec<Record> {
        self.close();
        self.lanes().records.drain(..).collect()
    }
}

impl Lanes {
    fn bite(&mut self, batch: &mut Batch) {
        let mut taken = 0;
        while taken < BITE {
            let Some(piece) = self.pieces.pop_front() else {
                // Nothing follows that could carry these counts.
                let notes = self.dropped.drain().map(|(file, dropped_before)| Piece {
                    file,
                    lines: Lines::default(),
                    dropped_before,
                });
                batch.pieces.extend(notes);
                break;
            };
            taken += piece.lines.len();
            self.pieces_popped += 1;
            batch.pieces.push(piece);
        }
        self.queued_bytes -= taken;
        batch.pieces_so_far = self.pieces_popped;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A child that floods its log does not hold up an outcome by more than one bite.
    #[test]
    fn a_record_waits_for_one_bite_of_logs_at_most() {
        const PIECE: usize = 64 * 1024;
        let inbox = Inbox::new(QUEUE_BYTES, QUEUE_PIECES);
        let file = (RunId::from_u128(1), 0, Log::Stdout);
        for _ in 0..4 * BITE / PIECE {
            let mut piece = Lines::of(Class::Progress, vec![b'x'; PIECE]);
            assert_eq!((inbox.append(file, &mut piece), piece.len()), (0, 0));
        }
        let mut batch = Batch::default();
        assert!(inbox.take(&mut batch));
        assert!((BITE..BITE + PIECE).contains(&(batch.pieces.len() * PIECE)));
        // It comes last, and goes out with the next bite.
        let (done, _written) = crossbeam_channel::bounded(0);
        assert!(inbox.push(Record::Flush { pieces_before: 0, done }).is_ok());
        let mut next = Batch::default();
        assert!(inbox.take(&mut next));
        assert_eq!((next.records.len(), next.pieces.len()), (1, batch.pieces.len()));
    }
}

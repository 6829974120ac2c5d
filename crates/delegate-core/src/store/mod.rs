//! Runs and results on disk: `runs.sqlite`, and one folder per child with stdout, stderr, events.
//!
//! One thread writes (the *recorder*); nothing here blocks the loop that watches deadlines. Everything
//! goes through one queue (`inbox`, of `lines`) to that thread (`recorder`), which owns the database
//! (`database`, `schema`) and the open files (`files`); readers have a connection of their own
//! ([`Reader`], `again`, `lost`). For runs in the background `desk` keeps completions, by the rules of
//! [`delivery`]; [`retention`] says what is forgotten (`background` asks for both). What the disk does not take stays in memory (`memory`) until the process ends.

mod again;
mod background;
mod database;
pub mod delivery;
mod desk;
mod files;
mod inbox;
mod lineage;
mod lines;
mod lost;
mod memory;
mod owner;
mod place;
mod reader;
mod recorder;
mod reserve;
pub mod retention;
mod schema;
pub mod spill;
#[cfg(test)]
mod tests;
mod types;

use std::fmt;
use std::fs::OpenOptions;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::ThreadId;
use std::time::Duration;

use crossbeam_channel::Receiver;
use delegate_protocol::event::Class;
use delegate_protocol::{Outcome, RunId};
use ownership::file_size;

pub use self::again::KeptRun;
pub(crate) use self::background::seconds_now;
use self::database::{Database, RunRow};
use self::files::Files;
use self::inbox::{Inbox, Record};
pub use self::lines::Lines;
pub(crate) use self::lost::bare;
use self::memory::Shared;
pub(crate) use self::memory::Trouble;
pub(crate) use self::owner::Owner;
pub(crate) use self::owner::start_time;
pub(crate) use self::place::{private_dir, private_file};
pub use self::reader::Reader;
use self::recorder::Recorder;
use self::reserve::Reserve;
pub use self::types::{Begun, Log, NewRun, RunRecord, StoreError};
use crate::config;

/// How long the last handle waits for the recorder to write what is queued: a stuck disk does not
/// keep a program from ending.
const CLOSING: Duration = Duration::from_secs(10);

/// Bounds, each argued at its constant. Tests make them small.
#[derive(Debug, Clone, Copy)]
struct Limits {
    queue_bytes: usize,
    queue_pieces: usize,
    open_files: usize,
    file_bytes: u64,
    #[cfg(test)]
    pages: Option<u32>,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            queue_bytes: inbox::QUEUE_BYTES,
            queue_pieces: inbox::QUEUE_PIECES,
            open_files: files::OPEN_FILES,
            file_bytes: files::FILE_BYTES,
            #[cfg(test)]
            pages: None,
        }
    }
}

/// Handle to the store. Cheap to clone. Dropping the last one waits until all is written (10 s at
/// most).
#[derive(Clone)]
pub struct Store {
    inner: Arc<Inner>,
}

struct Inner {
    state_dir: PathBuf,
    /// Whether files of children can be made.
    keeps_files: bool,
    inbox: Arc<Inbox>,
    shared: Arc<Shared>,
    reader: Reader,
    /// Its thread; `None` when there is none.
    recorder: Option<ThreadId>,
    /// Disconnected when the recorder is done.
    done: Receiver<()>,
}

impl fmt::Debug for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Store").field("state_dir", &self.inner.state_dir).finish_non_exhaustive()
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.inbox.close();
        // The last handle may be dropped by a `stored` callback, on the very thread to wait for.
        if self.recorder != Some(std::thread::current().id()) {
            let _ = self.done.recv_timeout(CLOSING);
        }
    }
}

/// Name of the thread (15 bytes are what the kernel keeps of it).
const RECORDER: &str = "delegate-record";

impl Store {
    /// Opens the store under `state_dir` and starts its recorder thread. Never fails: where nothing
    /// can be kept on disk, outcomes live in memory until the process ends, and
    /// [`Store::take_warning`] says so.
    #[must_use]
    pub fn open(state_dir: &Path) -> Self {
        Self::open_with(state_dir, Limits::default())
    }

    /// The state directory, if anything can be kept there.
    pub(crate) fn kept_in(&self) -> Option<&Path> {
        self.inner.keeps_files.then_some(self.inner.state_dir.as_path())
    }

    /// Queues a warning for people, of which the log has been told, once of each kind.
    #[cfg_attr(
        not(target_os = "linux"),
        expect(dead_code, reason = "the ledger is where processes are owned")
    )]
    pub(crate) fn warn(&self, trouble: Trouble, text: String) {
        self.inner.shared.queue(trouble, || text);
    }

    /// Reads what is there, without a recorder, and without making anything.
    #[must_use]
    pub fn open_existing(state_dir: &Path) -> Reader {
        Reader::new(state_dir)
    }

    fn open_with(state_dir: &Path, limits: Limits) -> Self {
        let shared = Arc::new(Shared::new());
        let (database, refusal, keeps_files) = open_place(state_dir, &shared);
        #[cfg(test)]
        if let (Some(database), Some(pages)) = (&database, limits.pages) {
            database.limit_pages(pages);
        }
        let root = keeps_files.then(|| state_dir.join(RUNS));
        let files = Files::new(root, limits.open_files, limits.file_bytes);
        let kept = (files, Reserve::new(state_dir));
        let inbox = Arc::new(Inbox::new(limits.queue_bytes, limits.queue_pieces));
        let (done, all_done) = crossbeam_channel::bounded(0);
        let recorder =
            Recorder::new(inbox.clone(), shared.clone(), (database, refusal), kept, done);
        let thread = std::thread::Builder::new().name(RECORDER.into());
        let spawned = thread.spawn(move || {
            file_size::limit_is_an_error();
            recorder.run();
        });
        if let Err(error) = &spawned {
            // The recorder was dropped with its closure: the inbox is closed, memory takes all.
            shared.warn(Trouble::Outcomes, || {
                format!("outcomes are kept in memory only: no thread for the store: {error}")
            });
        }
        let (state_dir, reader) = (state_dir.to_owned(), Reader::new(state_dir));
        let (recorder, done) = (spawned.ok().map(|thread| thread.thread().id()), all_done);
        let inner = Inner { state_dir, keeps_files, inbox, shared, reader, recorder, done };
        Self { inner: Arc::new(inner) }
    }

    /// The next thing to tell a person, each once: a read-only or full disk, a network file system,
    /// a damaged database that was moved aside.
    #[must_use]
    pub fn take_warning(&self) -> Option<String> {
        self.inner.shared.take_warning()
    }

    /// Whether every outcome and run said so far is on disk, or on its way there.
    #[must_use]
    pub fn is_durable(&self) -> bool {
        self.inner.shared.is_durable()
    }

    /// Whether what was said to be on disk has been deleted since, or replaced, by somebody else.
    #[must_use]
    pub fn is_misplaced(&self) -> bool {
        self.inner.shared.is_misplaced()
    }

    /// Records a run as this process's. Returns at once.
    pub fn begin_run(&self, run: NewRun) {
        let NewRun { id, title, isolation, tasks, background, rerun_of, begun, above } = run;
        let row = RunRow {
            id,
            started_at: seconds_now(),
            owner: Owner::this_process(),
            title,
            isolation,
            tasks,
            status: "running".into(),
            duration_seconds: None,
            above,
            background,
            resumed: 0,
            rerun_of,
            ending: None,
            begun,
        };
        if let Err(Record::Begin(row)) = self.inner.inbox.push(Record::Begin(Box::new(row))) {
            self.inner.shared.keep_run(*row);
        }
    }

    /// Folder of one child, made by whoever first puts something into it; `None` where nothing can be
    /// kept. Touches no disk.
    #[must_use]
    pub fn child_dir(&self, run: RunId, task_index: u32) -> Option<PathBuf> {
        let folder = || child_folder(&self.inner.state_dir, run, task_index);
        self.inner.keeps_files.then(folder)
    }

    /// Where an answer goes that is too large for its entry ([`spill::Answer`]). Touches no disk.
    #[must_use]
    pub fn result_file(&self, run: RunId, task_index: u32) -> Option<PathBuf> {
        Some(self.child_dir(run, task_index)?.join("result"))
    }

    /// Appends to a file of a child. Returns at once; a slow disk drops log bytes (and says how many
    /// in the file) before it holds anybody up: `false` says that it was dropped. For events see
    /// [`Store::append_events`].
    pub fn append(&self, run: RunId, task_index: u32, log: Log, bytes: Vec<u8>) -> bool {
        // Progress is never given back.
        let mut lines = Lines::of(Class::Progress, bytes);
        self.inner.inbox.append((run, task_index, log), &mut lines) == 0
    }

    /// Appends lines (with their newlines) to the events of a child, and takes them out of `lines`. Returns at once.
    /// Progress that finds no room is dropped and counted, as in [`Store::append`]; its bytes are given back.
    ///
    /// Lifecycle lines are never dropped: while there is no room for them they stay in `lines`. Then wait for
    /// [`Store::events_have_room`], take nothing more from this child meanwhile, and try again.
    pub fn append_events(&self, run: RunId, task_index: u32, lines: &mut Lines) -> u64 {
        lines.fit();
        self.inner.inbox.append((run, task_index, Log::Events), lines)
    }

    /// Waits until a lifecycle line is likely to be taken (another caller may be faster). Needs no
    /// runtime; may be dropped at any time.
    pub fn events_have_room(&self) -> impl Future<Output = ()> + Send + 'static {
        let inbox = self.inner.inbox.clone();
        std::future::poll_fn(move |context| inbox.poll_room(context))
    }

    /// Stores an outcome, then calls `stored` on the recorder thread: `true` when it is on disk,
    /// `false` when it is only in memory. Later log bytes of this child are still taken. Returns at
    /// once, and never drops: the queue of outcomes has no bound of its own, because there is one per
    /// child. A caller that gives a child's place to the next one only after `stored` keeps at most
    /// as many outcomes here as children run at once.
    ///
    /// `stored` must not wait and must not panic. A second outcome of a child changes nothing.
    pub fn put_outcome(
        &self,
        run: RunId,
        outcome: Outcome,
        stored: impl FnOnce(bool) + Send + 'static,
    ) {
        let (outcome, stored) = (Box::new(with_text_paths(outcome)), Box::new(stored));
        if let Err(Record::Outcome { run, outcome, stored }) =
            self.inner.inbox.push(Record::Outcome { run, outcome, stored })
        {
            self.inner.shared.keep(run, *outcome);
            stored(false);
        }
    }

    /// Ends a run (`completed` or `failed`). Returns at once.
    pub fn end_run(&self, run: RunId, status: &'static str, duration: Duration) {
        self.end_run_with(run, status, duration, "{}".to_owned());
    }

    /// The same with what else is known of its end, as JSON.
    pub(crate) fn end_run_with(
        &self,
        run: RunId,
        status: &'static str,
        duration: Duration,
        ending: String,
    ) {
        let duration_seconds = duration.as_secs_f64();
        // Refused only when the recorder died, which was said; the run then shows as it began.
        let _refused = self.inner.inbox.push(Record::End {
            run,
            status,
            duration_seconds,
            ending,
            pieces_before: 0,
        });
    }

    /// Waits until everything said so far is written, at most this long. Blocks.
    pub fn flush(&self, at_most: Duration) {
        let (done, written) = crossbeam_channel::bounded(0);
        if self.inner.inbox.push(Record::Flush { pieces_before: 0, done }).is_ok() {
            // The recorder answers by dropping its end.
            let _ = written.recv_timeout(at_most);
        }
    }

    /// What is on disk, without what is only in memory.
    #[must_use]
    pub fn reader(&self) -> &Reader {
        &self.inner.reader
    }

    /// Reads one outcome back. One that is still queued is not there yet.
    ///
    /// # Errors
    /// When there is none.
    pub fn outcome(&self, run: RunId, task_index: u32) -> Result<Outcome, StoreError> {
        let kept = self.inner.shared.memory().outcome(run, task_index);
        kept.map_or_else(|| self.inner.reader.outcome(run, task_index), Ok)
    }

    /// The entry of a task ([`Reader::entry`]).
    ///
    /// # Errors
    /// It has none yet.
    pub fn entry(&self, run: RunId, task_index: u32) -> Result<Outcome, StoreError> {
        match self.outcome(run, task_index) {
            Err(StoreError::NotFound(why)) => {
                let found = self.find_run(&run.to_string());
                let record = found.map_err(|_| StoreError::NotFound(why))?;
                self.inner.reader.entry(&record, task_index)
            }
            read => read,
        }
    }

    /// The run that a person means by `text`: a whole id, a unique prefix of 4 or more, `latest`
    /// or `-`.
    ///
    /// # Errors
    /// None, or more than one.
    pub fn find_run(&self, text: &str) -> Result<RunRecord, StoreError> {
        reader::find(text, |prefix, limit| self.matching(prefix, limit), |run| self.short_id(run))
    }

    /// Runs, newest first; without those that children have delegated.
    ///
    /// # Errors
    /// When the database cannot be read.
    pub fn runs(&self, limit: usize) -> Result<Vec<RunRecord>, StoreError> {
        self.matching("", limit)
    }

    fn matching(&self, prefix: &str, limit: usize) -> Result<Vec<RunRecord>, StoreError> {
        let mut records = self.inner.reader.matching(prefix, limit)?;
        self.inner.shared.memory().amend(&mut records, prefix);
        records.truncate(limit);
        Ok(records)
    }

    /// The shortest unique prefix of a run id (4 at least).
    #[must_use]
    pub fn short_id(&self, run: RunId) -> String {
        reader::shortest(run, |prefix| {
            let mut ids = self.inner.reader.ids(prefix).unwrap_or_default();
            ids.extend(self.inner.shared.memory().ids(prefix));
            ids
        })
    }
}

/// Folder under the state directory with a folder per run.
const RUNS: &str = "runs";

fn child_folder(state_dir: &Path, run: RunId, task_index: u32) -> PathBuf {
    state_dir.join(RUNS).join(run.to_string()).join(task_index.to_string())
}

/// Makes the place and opens the database; says what is wrong with either, in one warning. Hands
/// back why there is no database, and whether files can be kept.
fn open_place(state_dir: &Path, shared: &Shared) -> (Option<Database>, String, bool) {
    let lock = state_dir.join(database::LOCK_NAME);
    let made = place::private_dir(&state_dir.join(RUNS))
        .and_then(|()| config::refuse_foreign(state_dir))
        .and_then(|()| place::private_file(&lock, OpenOptions::new().append(true)));
    let lock = match made {
        Ok(lock) => lock,
        Err(error) => {
            let reason = format!("{}: {error}", state_dir.display());
            shared.warn(Trouble::Outcomes, || {
                format!("nothing is kept on disk, and outcomes in memory only: {reason}")
            });
            return (None, reason, false);
        }
    };
    if let Some(kind) = place::network_file_system(state_dir) {
        shared.warn(Trouble::Place, || {
            let place = state_dir.display();
            format!(
                "{place} is on a network file system ({kind}): runs of several hosts may damage it"
            )
        });
    }
    let opened = Database::open(state_dir, &lock);
    let reason = opened.remark.unwrap_or_default();
    if opened.database.is_none() {
        shared.warn(Trouble::Outcomes, || {
            format!(
                "outcomes are kept in memory only, output and events perhaps not at all: {reason}"
            )
        });
    } else if !reason.is_empty() {
        shared.warn(Trouble::Moved, || reason.clone());
    }
    (opened.database, reason, true)
}

/// Paths as JSON can carry them: text.
fn with_text_paths(mut outcome: Outcome) -> Outcome {
    for path in [&mut outcome.logs, &mut outcome.result_path].into_iter().flatten() {
        if path.to_str().is_none() {
            *path = path.to_string_lossy().into_owned().into();
        }
    }
    outcome
}

//! The last look at an outcome before it is stored: whether the answer meets its schema, whatever the child
//! says of that, and whether it fits into what its parent takes. Blocks (files, a large schema), so it runs
//! on a thread for that; a bug in here is a note and not a lost outcome.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, Read as _, Seek as _, SeekFrom, Write as _};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use delegate_child::schema::{MAX_CHECKED_BYTES, Schema};
use delegate_protocol::{Outcome, Status, Value};

use crate::collect::budget;
use crate::file_state::registry::Who;
use crate::file_state::{self, FileState};
use crate::jobs::{Jobs, Leaving};
use crate::worktree::Trees;

/// Its name in the child's folder.
const FILE: &str = "summary.txt";

/// What is asked of an answer.
#[derive(Debug, Default)]
pub(super) struct Finalise {
    pub(super) schema: Option<Value>,
    /// Characters.
    pub(super) cap: Option<u64>,
    /// The child's folder; `None` where nothing can be kept.
    pub(super) folder: Option<PathBuf>,
    /// Files that its parent is to read again.
    pub(super) stale: Vec<String>,
    /// Its jobs, if it had any; then its file state is not left yet.
    pub(super) jobs: Option<Left>,
    /// Its worktree, if it had one.
    pub(super) worktree: Option<OwnTree>,
}

/// What a child has beside its process.
#[derive(Debug)]
pub(super) struct Left {
    pub(super) jobs: Jobs,
    pub(super) files: FileState,
    pub(super) who: Who,
}

/// The worktree of a child.
#[derive(Debug)]
pub(super) struct OwnTree {
    pub(super) trees: Arc<Trees>,
    pub(super) index: u32,
    /// Why the child may still work in it, if it may.
    pub(super) alive: Option<&'static str>,
}

impl Finalise {
    /// Carries it out.
    pub(super) async fn carry_out(self, outcome: Outcome) -> Option<Outcome> {
        let is_text = self.schema.is_none() && !outcome.answer_is_json;
        let mut outcome = self.look_at(outcome).await?;
        tell_missed(&mut outcome, is_text);
        Some(outcome)
    }

    async fn look_at(self, outcome: Outcome) -> Option<Outcome> {
        let over = |cap| outcome.summary.as_ref().is_some_and(|text| text.len() as u64 > cap);
        let told = outcome.schema_valid.is_some();
        let alone = self.jobs.is_none() && self.worktree.is_none();
        let small = self.stale.is_empty() && alone;
        if small && self.schema.is_none() && !told && !self.cap.is_some_and(over) {
            return Some(outcome);
        }
        let work = move || {
            let mut this = self;
            let mut outcome = outcome;
            if catch_unwind(AssertUnwindSafe(|| this.apply(&mut outcome))).is_err() {
                tracing::error!(target: "delegate::run", "the last look at an outcome has panicked");
                outcome.notes.push("its answer was not looked at: a bug of ours".to_owned());
            }
            outcome
        };
        // Only a runtime that is shut down gives none.
        tokio::task::spawn_blocking(work).await.ok()
    }

    fn apply(&mut self, outcome: &mut Outcome) {
        self.check(outcome);
        if let Some(cap) = self.cap
            && let Err(error) = self.cut(outcome, cap)
        {
            // Too long is better than lost.
            outcome.notes.push(format!(
                "its answer is over max_summary_chars, and stays so: the whole could not be kept ({error})"
            ));
        }
        if let Some(Left { jobs, files, who }) = self.jobs.take() {
            let Leaving { handed, orphaned, unread } = jobs.leave(&who);
            outcome.handed_off_processes = handed;
            outcome.orphaned_processes = orphaned;
            outcome.unread_completions = unread;
            self.stale = files.leave(&who, SystemTime::now());
        }
        // After the cut, which must not take it away again.
        file_state::remind(outcome, std::mem::take(&mut self.stale));
        if let Some(OwnTree { trees, index, alive }) = self.worktree.take() {
            outcome.worktree = trees.end(index, alive);
            let kept = outcome.worktree.as_ref().and_then(|tree| Some((tree, tree.note.as_ref()?)));
            if let Some((tree, why)) = kept {
                let (path, branch) = (tree.path.display(), &tree.branch);
                outcome.notes.push(format!("its worktree {path} on branch {branch} is {why}"));
            }
        }
    }

    /// The parent's own check. The child's word counts for nothing but how often its agent was asked.
    fn check(&self, outcome: &mut Outcome) {
        let retries = outcome.schema_retries.take().unwrap_or_default().min(1);
        let note = outcome.schema_note.take();
        outcome.schema_valid = None;
        outcome.schema_errors.clear();
        let Some(schema) = &self.schema else { return };
        outcome.schema_retries = Some(retries);
        if outcome.status != Status::Completed {
            let status = outcome.status.word();
            outcome.schema_note =
                Some(format!("there is no answer to check: its status is {status}"));
            return;
        }
        match Schema::compile(schema)
            .map_err(|error| error.to_string())
            .and_then(|schema| Ok(schema.check(&whole(outcome)?)))
        {
            Ok(Ok(())) => outcome.schema_valid = Some(true),
            Ok(Err(errors)) => {
                outcome.schema_valid = Some(false);
                outcome.schema_errors = errors;
                let asked = if retries == 0 { "was not asked" } else { "was asked" };
                outcome.schema_note = note.or_else(|| {
                    Some(format!("the answer does not meet output_schema; its agent {asked} again"))
                });
            }
            Err(why) => outcome.schema_note = Some(format!("the answer was not checked: {why}")),
        }
    }

    fn cut(&self, outcome: &mut Outcome, cap: u64) -> io::Result<()> {
        let Some(text) = &outcome.summary else { return Ok(()) };
        let Some(mut cut) = budget::cut(text, cap) else { return Ok(()) };
        let (path, tail, whole) = match &outcome.result_path {
            Some(path) => {
                // The summary is the head of what is in that file.
                let (tail, whole) = tail_of(path, cap)?;
                (path.clone(), tail, whole)
            }
            None => (self.keep(text)?, text[cut.tail..].to_owned(), text.len() as u64),
        };
        let text = &text[..cut.head];
        cut.line = budget::line_after(text);
        let left_out = whole.saturating_sub((text.len() + tail.len()) as u64);
        let (gap, footer) = (budget::gap(left_out), budget::footer(&path, cut.line));
        outcome.summary = Some(format!("{text}{gap}{tail}{footer}"));
        outcome.summary_truncated = true;
        outcome.summary_full_path = Some(path);
        Ok(())
    }

    /// Writes the whole text. A file or a link that lies there already is not touched and not followed.
    fn keep(&self, text: &str) -> io::Result<PathBuf> {
        let no_folder = || io::Error::new(io::ErrorKind::NotFound, "there is no folder for it");
        let folder = self.folder.as_ref().ok_or_else(no_folder)?;
        let mut builder = DirBuilder::new();
        std::os::unix::fs::DirBuilderExt::mode(builder.recursive(true), 0o700);
        builder.create(folder)?;
        let path = folder.join(FILE);
        let mut options = OpenOptions::new();
        std::os::unix::fs::OpenOptionsExt::mode(options.write(true).create_new(true), 0o600);
        let mut file = options.open(&path)?;
        if let Err(error) = file.write_all(text.as_bytes()) {
            // Half a file must not pass for the whole.
            drop(file);
            std::fs::remove_file(&path)?;
            return Err(error);
        }
        Ok(path)
    }
}

/// What was said to the child in vain, where whoever delegates reads it. An answer that somebody parses stays
/// as it is.
fn tell_missed(outcome: &mut Outcome, is_text: bool) {
    let Some(note) = outcome.missed_note() else { return };
    match (&mut outcome.summary, &mut outcome.error) {
        (Some(summary), _) if is_text => summary.push_str(&note),
        (Some(_), None) => {}
        (_, Some(error)) => error.push_str(&note),
        (None, error @ None) => *error = Some(note.trim_start().to_owned()),
    }
}

/// The whole answer, where it may be checked.
fn whole(outcome: &Outcome) -> Result<String, String> {
    let Some(path) = &outcome.result_path else {
        return Ok(outcome.summary.clone().unwrap_or_default());
    };
    let bytes = outcome.result_bytes.unwrap_or(u64::MAX);
    if bytes > MAX_CHECKED_BYTES {
        return Err(format!("it has {bytes} bytes, at most {MAX_CHECKED_BYTES} are checked"));
    }
    std::fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))
}

/// The tail of a file that is over the cap, and the file's length.
fn tail_of(path: &Path, cap: u64) -> io::Result<(String, u64)> {
    let cap = usize::try_from(cap).unwrap_or(usize::MAX);
    let chars = cap - budget::head_chars(cap);
    let mut file = File::open(path)?;
    let length = file.metadata()?.len();
    // A character has four bytes at most.
    let most = (chars as u64).saturating_mul(4).min(length);
    file.seek(SeekFrom::Start(length - most))?;
    let mut bytes = Vec::new();
    file.take(most).read_to_end(&mut bytes)?;
    let text = String::from_utf8_lossy(&bytes);
    Ok((text[budget::tail_start(&text, chars)..].to_owned(), length))
}

#[cfg(test)]
#[path = "finalise_tests.rs"]
mod tests;

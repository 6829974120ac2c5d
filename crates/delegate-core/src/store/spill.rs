//! An answer as it comes in parts: in memory up to [`MAX_SUMMARY`], beyond that in a file.
//!
//! A plain, synchronous object that its child's reader owns. Only a part that crosses the bound
//! touches the disk ([`Answer::needs_disk`]): an async caller moves the answer to a blocking thread
//! for such a part and for [`Answer::finish`], and reads no further frame of this child meanwhile,
//! which is all the backpressure there needs to be.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

use super::place;

/// Bytes of an answer that an entry carries, and that wait in memory for its end.
pub const MAX_SUMMARY: usize = 16 << 20;

/// An answer over the limit of its task.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("its answer is larger than {limit} bytes (max_result_bytes)")]
pub struct TooLarge {
    /// `max_result_bytes`.
    pub limit: u64,
}

/// A whole answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AnswerText {
    /// The text, or its head when it is longer than [`MAX_SUMMARY`]; cut between characters.
    pub summary: String,
    /// Whether bytes that are not UTF-8 were replaced in the summary.
    pub lossy: bool,
    /// Size of the whole answer in bytes.
    pub bytes: u64,
    /// Where the whole is, when the summary is not.
    pub rest: Rest,
}

/// What became of an answer beyond its summary.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Rest {
    /// There is no more.
    None,
    /// The whole answer is in a file, byte for byte.
    File {
        /// Where.
        path: PathBuf,
        /// SHA-256 of the file, 64 lower-case hex digits.
        sha256: String,
    },
    /// It could not be kept.
    NotKept {
        /// Why.
        reason: String,
    },
}

/// An answer in the making. Dropped before its end, it leaves no file.
#[derive(Debug)]
pub struct Answer {
    path: Option<PathBuf>,
    limit: u64,
    bytes: u64,
    head: Vec<u8>,
    max_head: usize,
    beyond: Beyond,
}

#[derive(Debug)]
enum Beyond {
    /// All of it is in the head.
    Nothing,
    File(Spilled),
    Lost(String),
}

impl Answer {
    /// An empty answer that goes to `path` when it is large ([`super::Store::result_file`]; `None`:
    /// only its head is kept) and has at most `limit` bytes.
    #[must_use]
    pub fn new(path: Option<PathBuf>, limit: u64) -> Self {
        Self::with_head(path, limit, MAX_SUMMARY)
    }

    fn with_head(path: Option<PathBuf>, limit: u64, max_head: usize) -> Self {
        Self { path, limit, bytes: 0, head: Vec::new(), max_head, beyond: Beyond::Nothing }
    }

    /// Bytes so far.
    #[must_use]
    pub const fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Whether a part of this many bytes will be written to disk, and [`Answer::push`] so block.
    #[must_use]
    pub const fn needs_disk(&self, next: usize) -> bool {
        match self.beyond {
            Beyond::Nothing => self.head.len() + next > self.max_head,
            Beyond::File(_) => true,
            Beyond::Lost(_) => false,
        }
    }

    /// Adds the next part. A disk that refuses is not an error here: [`Rest::NotKept`] tells it.
    ///
    /// # Errors
    /// [`TooLarge`]; what was kept so far is removed, and the answer takes nothing more.
    pub fn push(&mut self, part: &[u8]) -> Result<(), TooLarge> {
        self.bytes = self.bytes.saturating_add(part.len() as u64);
        if self.bytes > self.limit {
            self.beyond = Beyond::Lost(TooLarge { limit: self.limit }.to_string());
            return Err(TooLarge { limit: self.limit });
        }
        let room = self.max_head.saturating_sub(self.head.len());
        let inside = part.len().min(room);
        if let Beyond::Nothing = self.beyond
            && inside < part.len()
        {
            self.beyond = Beyond::begin(self.path.as_deref(), &self.head);
        }
        if let Beyond::File(file) = &mut self.beyond
            && let Err(error) = file.write(part)
        {
            self.beyond = Beyond::Lost(error.to_string());
        }
        self.head.extend_from_slice(&part[..inside]);
        Ok(())
    }

    /// The end. Writes what is buffered of a spilled answer.
    #[must_use]
    pub fn finish(mut self) -> AnswerText {
        let rest = match self.beyond {
            Beyond::Nothing => Rest::None,
            Beyond::Lost(reason) => Rest::NotKept { reason },
            Beyond::File(file) => file.finish(),
        };
        if rest != Rest::None {
            cut_between_characters(&mut self.head);
        }
        let (summary, lossy) = match String::from_utf8(self.head) {
            Ok(text) => (text, false),
            Err(error) => (String::from_utf8_lossy(error.as_bytes()).into_owned(), true),
        };
        AnswerText { summary, lossy, bytes: self.bytes, rest }
    }
}

/// Removes the beginning of a character that the cut left at the end.
fn cut_between_characters(head: &mut Vec<u8>) {
    let from = head.len().saturating_sub(3);
    let begins = |byte: &u8| *byte >= 0xC0;
    if let Some(at) = head[from..].iter().rposition(begins).map(|at| from + at)
        && std::str::from_utf8(&head[at..]).is_err_and(|error| error.error_len().is_none())
    {
        head.truncate(at);
    }
}

impl Beyond {
    fn begin(path: Option<&Path>, head: &[u8]) -> Self {
        let Some(path) = path else {
            return Self::Lost("there is no folder for it".into());
        };
        let begun = Spilled::create(path).and_then(|mut file| file.write(head).map(|()| file));
        begun.map_or_else(|error| Self::Lost(error.to_string()), Self::File)
    }
}

/// A file that is removed unless it was finished.
#[derive(Debug)]
struct Spilled {
    path: PathBuf,
    file: File,
    hash: Sha256,
    finished: bool,
}

impl Spilled {
    fn create(path: &Path) -> io::Result<Self> {
        // STATE/runs/RUN/N/result
        if let (Some(folder), Some(state)) = (path.parent(), path.ancestors().nth(4)) {
            place::private_dirs_below(state, folder)?;
        }
        let file = place::private_file(path, OpenOptions::new().write(true).truncate(true))?;
        Ok(Self { path: path.to_owned(), file, hash: Sha256::new(), finished: false })
    }

    fn write(&mut self, part: &[u8]) -> io::Result<()> {
        self.hash.update(part);
        self.file.write_all(part)
    }

    fn finish(mut self) -> Rest {
        self.finished = true;
        let digest = self.hash.finalize_reset();
        let sha256 = digest.iter().map(|byte| format!("{byte:02x}")).collect();
        Rest::File { path: self.path.clone(), sha256 }
    }
}

impl Drop for Spilled {
    fn drop(&mut self) {
        if !self.finished
            && let Err(error) = std::fs::remove_file(&self.path)
        {
            tracing::warn!(target: "delegate::store", "{}: {error}", self.path.display());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hex(bytes: &[u8]) -> String {
        Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
    }

    #[test]
    fn an_answer_that_fits_touches_no_disk() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("result");
        let mut answer = Answer::with_head(Some(path.clone()), 100, 8);
        answer.push(b"1234").unwrap();
        assert!(!answer.needs_disk(4));
        assert!(answer.needs_disk(5));
        answer.push(b"5678").unwrap();
        let text = answer.finish();
        assert_eq!((text.summary.as_str(), text.rest, text.bytes), ("12345678", Rest::None, 8));
        assert!(!path.exists());
    }

    #[test]
    fn at_every_cut_the_head_is_text_and_the_file_is_whole() {
        let whole = "aé€😀bé€😀".repeat(3);
        let dir = tempfile::tempdir().unwrap();
        for cut in 1..whole.len() {
            for part in [1, 3, 64] {
                let path = dir.path().join("result");
                let mut answer = Answer::with_head(Some(path.clone()), 1000, cut);
                whole.as_bytes().chunks(part).for_each(|part| answer.push(part).unwrap());
                let text = answer.finish();
                assert!(whole.starts_with(&text.summary) && !text.lossy, "{cut}");
                assert!(text.summary.len() + 3 >= cut, "{cut}");
                assert_eq!(std::fs::read(&path).unwrap(), whole.as_bytes());
                assert_eq!(text.rest, Rest::File { path, sha256: hex(whole.as_bytes()) });
            }
        }
    }

    #[cfg(unix)]
    #[test]
    fn a_spilled_answer_is_private() {
        use std::os::unix::fs::PermissionsExt;
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("result");
        let mut answer = Answer::with_head(Some(path.clone()), 1000, 1);
        answer.push(b"abc").unwrap();
        drop(answer.finish());
        assert_eq!(std::fs::metadata(path).unwrap().permissions().mode() & 0o777, 0o600);
    }

    #[test]
    fn bytes_that_are_no_text_stay_in_the_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("result");
        let mut answer = Answer::with_head(Some(path.clone()), 1000, 4);
        answer.push(b"a\xffb\xfec").unwrap();
        let text = answer.finish();
        assert_eq!((text.summary.as_str(), text.lossy), ("a\u{fffd}b\u{fffd}", true));
        assert_eq!(std::fs::read(path).unwrap(), b"a\xffb\xfec");
    }

    #[test]
    fn too_much_leaves_no_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("result");
        let mut answer = Answer::with_head(Some(path.clone()), 10, 4);
        answer.push(b"1234567890").unwrap();
        assert!(path.exists());
        assert_eq!(answer.push(b"1"), Err(TooLarge { limit: 10 }));
        assert!(!path.exists());
        assert_eq!(answer.push(b"1"), Err(TooLarge { limit: 10 }));
    }

    #[test]
    fn an_unfinished_answer_leaves_no_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("result");
        let mut answer = Answer::with_head(Some(path.clone()), 10, 4);
        answer.push(b"12345").unwrap();
        drop(answer);
        assert!(!path.exists());
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_disk_that_refuses_leaves_the_head() {
        // Every write to /dev/full fails with ENOSPC; the link is what gets removed.
        let dir = tempfile::tempdir().unwrap();
        let full = dir.path().join("result");
        std::os::unix::fs::symlink("/dev/full", &full).unwrap();
        for path in [None, Some("/dev/null/result".into()), Some(full)] {
            let mut answer = Answer::with_head(path, 1000, 4);
            answer.push("123€".as_bytes()).unwrap();
            answer.push(b"more").unwrap();
            assert!(!answer.needs_disk(1));
            let text = answer.finish();
            assert_eq!((text.summary.as_str(), text.bytes), ("123", 10));
            assert!(matches!(text.rest, Rest::NotKept { reason } if !reason.is_empty()));
        }
    }
}

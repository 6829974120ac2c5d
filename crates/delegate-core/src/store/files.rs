//! The files of children: `runs/<run>/<index>/{stdout,stderr,events.jsonl}`, and the run's
//! `runs/<run>/manifest.jsonl`, written as the bytes come.
//!
//! Owned by the recorder. Opened on the first byte; a bounded number stays open, so that a thousand
//! children do not use up the descriptors. Each file has a cap; what is over it, was dropped in the
//! queue or could not be written is counted and stands in the file as one line.

use std::borrow::Cow;
use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::PathBuf;

use delegate_protocol::RunId;
use delegate_protocol::event::Class;

use super::Log;
use super::inbox::{FileKey, Piece};
use super::place;

/// Files open at once: twice the three files of each of the ten children that run by default, and
/// far below the usual limit of 1,024 descriptors.
pub(super) const OPEN_FILES: usize = 64;
/// Bytes kept of one file. Lifecycle events are kept beyond it.
pub(super) const FILE_BYTES: u64 = 64 << 20;

struct Open {
    file: File,
    length: u64,
    /// Whether the next byte begins a line.
    line_start: bool,
    last_used: u64,
}

/// The open files, and what was not kept of any.
pub(super) struct Files {
    /// The `runs` folder; `None` where nothing can be kept.
    root: Option<PathBuf>,
    max_open: usize,
    max_bytes: u64,
    open: HashMap<FileKey, Open>,
    clock: u64,
    /// Bytes over the cap, and those that the disk refused: told at the end of the run.
    not_kept: HashMap<FileKey, u64>,
}

impl Files {
    pub(super) fn new(root: Option<PathBuf>, max_open: usize, max_bytes: u64) -> Self {
        let (open, not_kept) = (HashMap::new(), HashMap::new());
        Self { root, max_open, max_bytes, open, clock: 0, not_kept }
    }

    /// Writes a piece. An error is counted as bytes that were not kept.
    pub(super) fn write(&mut self, piece: &Piece) -> io::Result<()> {
        let written = self.try_write(piece);
        if written.is_err() {
            let lost = piece.lines.len() as u64 + piece.dropped_before;
            *self.not_kept.entry(piece.file).or_default() += lost;
        }
        written
    }

    fn try_write(&mut self, piece: &Piece) -> io::Result<()> {
        let max_bytes = self.max_bytes;
        let Some(open) = self.file(piece.file)? else { return Ok(()) };
        if piece.dropped_before > 0 {
            open.note(piece.file.2, piece.dropped_before)?;
        }
        let kept = kept_part(piece, max_bytes.saturating_sub(open.length));
        let breaks = matches!(piece.file.2, Log::Events | Log::Manifest) && !open.line_start;
        if breaks && !kept.is_empty() {
            open.write(b"\n")?;
        }
        open.write(&kept)?;
        let over = piece.lines.len() - kept.len();
        if over > 0 {
            *self.not_kept.entry(piece.file).or_default() += over as u64;
        }
        Ok(())
    }

    /// Says what was not kept of a run's files (of every run: `None`), and closes them.
    pub(super) fn close(&mut self, run: Option<RunId>) -> io::Result<()> {
        let of_run = |key: &FileKey| run.is_none_or(|run| key.0 == run);
        let told: Vec<(FileKey, u64)> = self.not_kept.extract_if(|key, _| of_run(key)).collect();
        let mut result = Ok(());
        for (key, bytes) in told {
            let noted = match self.file(key) {
                Ok(Some(open)) => open.note(key.2, bytes),
                Ok(None) => Ok(()),
                Err(error) => Err(error),
            };
            result = result.and(noted);
        }
        self.open.retain(|key, _| !of_run(key));
        result
    }

    fn file(&mut self, key: FileKey) -> io::Result<Option<&mut Open>> {
        let Some(root) = &self.root else { return Ok(None) };
        self.clock += 1;
        if !self.open.contains_key(&key) {
            let (run, index, log) = key;
            let mut folder = root.join(run.to_string());
            if log != Log::Manifest {
                folder.push(index.to_string());
            }
            place::private_dirs_below(root.parent().unwrap_or(root), &folder)?;
            if self.open.len() >= self.max_open {
                let oldest = self.open.iter().min_by_key(|(_, open)| open.last_used);
                if let Some(oldest) = oldest.map(|(key, _)| *key) {
                    self.open.remove(&oldest);
                }
            }
            let path = folder.join(log.file_name());
            let mut file = place::private_file(&path, OpenOptions::new().read(true).append(true))?;
            let length = file.metadata()?.len();
            let line_start = length == 0 || last_byte(&mut file)? == b'\n';
            self.open.insert(key, Open { file, length, line_start, last_used: 0 });
        }
        let mut open = self.open.get_mut(&key);
        if let Some(open) = &mut open {
            open.last_used = self.clock;
        }
        Ok(open)
    }
}

fn last_byte(file: &mut File) -> io::Result<u8> {
    let mut last = [0];
    file.seek(SeekFrom::End(-1))?;
    file.read_exact(&mut last)?;
    Ok(last[0])
}

/// What of a piece is kept when there is this much room: all, or its lifecycle lines and of the rest what fits. A line
/// of events is kept whole or not.
fn kept_part(piece: &Piece, room: u64) -> Cow<'_, [u8]> {
    let mut room = usize::try_from(room).unwrap_or(usize::MAX);
    let all = piece.lines.bytes();
    if all.len() <= room {
        return Cow::Borrowed(all);
    }
    let is_whole = matches!(piece.file.2, Log::Events | Log::Manifest);
    let mut kept = Vec::new();
    for (class, range) in piece.lines.runs() {
        let run = &all[range];
        let fits = match class {
            Class::Lifecycle => run.len(),
            Class::Progress if is_whole && run.len() > room => {
                run[..room].iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1)
            }
            Class::Progress => run.len().min(room),
        };
        kept.extend_from_slice(&run[..fits]);
        room = room.saturating_sub(fits);
    }
    Cow::Owned(kept)
}

impl Open {
    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        let Some(last) = bytes.last() else { return Ok(()) };
        // Until the whole is written: a failed write may have left half a line.
        self.line_start = false;
        self.file.write_all(bytes)?;
        self.length += bytes.len() as u64;
        self.line_start = *last == b'\n';
        Ok(())
    }

    /// One line that says what is missing here, in the language of the file.
    fn note(&mut self, log: Log, bytes: u64) -> io::Result<()> {
        let break_line = if self.line_start { "" } else { "\n" };
        let note = match log {
            Log::Stdout | Log::Stderr => format!("{break_line}[{bytes} bytes not kept]\n"),
            Log::Events | Log::Manifest => {
                format!("{break_line}{{\"event\":\"delegate.not_kept\",\"bytes\":{bytes}}}\n")
            }
        };
        self.write(note.as_bytes())
    }
}

//! [`LongText`]: a text that is kept in memory while it is short and in an unlinked temporary file
//! when it is not. Agents with large answers build one; `serve` sends it in parts.

use std::fmt;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::unix::fs::FileExt;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Bytes that are kept in memory before a file is made: as much as one frame may hold.
pub const IN_MEMORY: usize = 16 * 1024 * 1024;

/// Bytes that are collected before they are written, once there is a file.
const WRITE: usize = 1024 * 1024;

/// A text of any size, written once from front to end.
#[derive(Default)]
pub struct LongText {
    /// What came first; not linked anywhere, so it goes with the process.
    file: Option<File>,
    in_file: u64,
    /// What came last. Holds the whole last push.
    memory: String,
}

impl LongText {
    /// Length in bytes.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.in_file + self.memory.len() as u64
    }

    /// Whether there is nothing.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Appends.
    ///
    /// # Errors
    /// When the temporary file cannot be made or written, for instance because the disk is full.
    pub fn push(&mut self, text: &str) -> io::Result<()> {
        if text.is_empty() {
            // It would be the last push, without the newline to trim.
            return Ok(());
        }
        let limit = if self.file.is_some() { WRITE } else { IN_MEMORY };
        if self.memory.len() + text.len() > limit && !self.memory.is_empty() {
            self.spill()?;
        }
        self.memory.push_str(text);
        Ok(())
    }

    /// Removes one newline from the end, if there is one.
    pub fn trim_newline(&mut self) {
        if self.memory.ends_with('\n') {
            self.memory.pop();
        }
    }

    /// The whole text while it is short enough to be in memory.
    #[must_use]
    pub fn head(&self) -> Option<&str> {
        self.file.is_none().then_some(&*self.memory)
    }

    /// The whole text in memory.
    ///
    /// # Errors
    /// When the temporary file cannot be read.
    pub fn into_text(self) -> io::Result<String> {
        if self.file.is_none() {
            return Ok(self.memory);
        }
        let mut text = String::new();
        self.reader().read_to_string(&mut text)?;
        Ok(text)
    }

    /// Reads it from the front. Several readers may read at once.
    #[must_use]
    pub fn reader(&self) -> LongTextReader<'_> {
        LongTextReader { text: self, at: 0 }
    }

    fn spill(&mut self) -> io::Result<()> {
        let file = match &mut self.file {
            Some(file) => file,
            None => self.file.insert(tempfile::tempfile()?),
        };
        file.write_all(self.memory.as_bytes())?;
        self.in_file += self.memory.len() as u64;
        if self.memory.capacity() > WRITE * 2 {
            self.memory = String::new();
        } else {
            self.memory.clear();
        }
        Ok(())
    }
}

impl From<String> for LongText {
    fn from(memory: String) -> Self {
        Self { file: None, in_file: 0, memory }
    }
}

impl fmt::Debug for LongText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LongText({} bytes)", self.len())
    }
}

/// Reads a [`LongText`] from the front.
#[derive(Debug)]
pub struct LongTextReader<'a> {
    text: &'a LongText,
    at: u64,
}

impl Read for LongTextReader<'_> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let in_file = self.text.in_file;
        let count = match &self.text.file {
            Some(file) if self.at < in_file => {
                let rest = usize::try_from(in_file - self.at).unwrap_or(usize::MAX);
                let want = out.len().min(rest);
                let count = file.read_at(&mut out[..want], self.at)?;
                if count == 0 && want > 0 {
                    return Err(io::ErrorKind::UnexpectedEof.into());
                }
                count
            }
            _ => {
                let start = usize::try_from(self.at - in_file).unwrap_or(usize::MAX);
                let mut rest = self.text.memory.as_bytes().get(start..).unwrap_or_default();
                rest.read(out)?
            }
        };
        self.at += count as u64;
        Ok(count)
    }
}

impl Serialize for LongText {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut text = String::new();
        self.reader().read_to_string(&mut text).map_err(serde::ser::Error::custom)?;
        serializer.serialize_str(&text)
    }
}

impl<'de> Deserialize<'de> for LongText {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer).map(Self::from)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_text_moves_to_a_file_and_comes_back_whole() {
        let piece = "0123456789abcdé\n".repeat(4096);
        let count = 3 * IN_MEMORY / piece.len();
        let mut long = LongText::default();
        let mut longest = 0;
        for _ in 0..count {
            long.push(&piece).unwrap();
            if long.file.is_some() {
                longest = longest.max(long.memory.capacity());
            }
        }
        assert!(long.file.is_some() && longest <= 2 * WRITE + piece.len(), "{longest}");
        long.trim_newline();
        assert_eq!(long.len(), (count * piece.len() - 1) as u64);
        assert_eq!(long.into_text().unwrap(), piece.repeat(count).trim_end_matches('\n'));
    }

    #[test]
    fn an_empty_push_does_not_hide_the_newline_before_it() {
        let mut long = LongText::default();
        long.push(&format!("{}\n", "x".repeat(IN_MEMORY))).unwrap();
        long.push("").unwrap();
        long.trim_newline();
        assert_eq!(long.len(), IN_MEMORY as u64);
    }

    #[test]
    fn a_short_text_needs_no_file() {
        let mut long = LongText::default();
        long.push("a\n\n").unwrap();
        long.trim_newline();
        assert!(long.file.is_none());
        assert_eq!(long.into_text().unwrap(), "a\n");
        let mut empty = LongText::default();
        empty.trim_newline();
        assert!(empty.is_empty());
    }
}

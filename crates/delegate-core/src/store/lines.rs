//! [`Lines`]: what is to stand in a file of a child, and which of it may be left out. Gathered by whoever reads the
//! child, queued by [`super::inbox`], written by [`super::files`].

use std::ops::Range;

use delegate_protocol::event::Class;

/// Bytes of room that nothing is done about.
const SPARE: usize = 4096;

/// Bytes in their order, of both classes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Lines {
    bytes: Vec<u8>,
    /// Neighbours are of different classes, and none is empty.
    runs: Vec<Run>,
}

/// Bytes of one class, up to the next run's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Run {
    class: Class,
    from: usize,
}

impl Lines {
    /// Bytes of one class.
    #[must_use]
    pub fn of(class: Class, bytes: Vec<u8>) -> Self {
        let runs = if bytes.is_empty() { Vec::new() } else { vec![Run { class, from: 0 }] };
        Self { bytes, runs }
    }

    /// Length in bytes.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Whether there is nothing.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// All of it.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Appends what `write` appends; gives those bytes.
    pub fn add(&mut self, class: Class, write: impl FnOnce(&mut Vec<u8>)) -> &[u8] {
        let from = self.bytes.len();
        write(&mut self.bytes);
        debug_assert!(self.bytes.len() >= from, "it only appends");
        self.mark(class, from);
        &self.bytes[from..]
    }

    /// Appends others.
    pub(super) fn extend(&mut self, others: &Self) {
        let base = self.bytes.len();
        self.bytes.extend_from_slice(&others.bytes);
        others.runs.iter().for_each(|run| self.mark(run.class, base + run.from));
    }

    /// What was appended from here on is of this class.
    fn mark(&mut self, class: Class, from: usize) {
        if from < self.bytes.len() && self.runs.last().is_none_or(|last| last.class != class) {
            self.runs.push(Run { class, from });
        }
    }

    /// Gives back the room that is left over: what waits is counted by its length, and a text that has just not fit
    /// leaves as much again behind it.
    pub(super) fn fit(&mut self) {
        if self.bytes.capacity() - self.bytes.len() > SPARE {
            self.bytes.shrink_to_fit();
        }
    }

    pub(super) fn clear(&mut self) {
        self.bytes.clear();
        self.runs.clear();
    }

    /// Leaves lifecycle lines only; how many bytes are gone.
    pub(super) fn drop_progress(&mut self) -> u64 {
        if self.runs.iter().all(|run| run.class == Class::Lifecycle) {
            return 0;
        }
        let all = std::mem::take(self);
        for (class, range) in all.runs() {
            if class == Class::Lifecycle {
                self.add(class, |bytes| bytes.extend_from_slice(&all.bytes[range]));
            }
        }
        (all.len() - self.len()) as u64
    }

    /// Each run, in order.
    pub(super) fn runs(&self) -> impl Iterator<Item = (Class, Range<usize>)> + '_ {
        let ends = self.runs.iter().skip(1).map(|run| run.from).chain([self.bytes.len()]);
        self.runs.iter().zip(ends).map(|(run, end)| (run.class, run.from..end))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn add(lines: &mut Lines, class: Class, line: &str) {
        lines.add(class, |bytes| bytes.extend_from_slice(line.as_bytes()));
    }

    #[test]
    fn neighbours_of_one_class_are_one_run_and_progress_can_be_taken_out() {
        let mut lines = Lines::default();
        for (class, line) in [
            (Class::Lifecycle, "a"),
            (Class::Progress, ""),
            (Class::Lifecycle, "b"),
            (Class::Progress, "p"),
            (Class::Progress, "q"),
            (Class::Lifecycle, "c"),
        ] {
            add(&mut lines, class, line);
        }
        let mut more = Lines::of(Class::Lifecycle, b"d".to_vec());
        add(&mut more, Class::Progress, "r");
        lines.extend(&more);
        let runs: Vec<_> = lines.runs().collect();
        let (kept, left_out) = (Class::Lifecycle, Class::Progress);
        assert_eq!(runs, [(kept, 0..2), (left_out, 2..4), (kept, 4..6), (left_out, 6..7)]);
        assert_eq!(lines.drop_progress(), 3);
        assert_eq!(lines.drop_progress(), 0);
        assert_eq!(lines.bytes(), b"abcd");
        assert_eq!(lines.runs().collect::<Vec<_>>(), [(kept, 0..4)]);
        lines.clear();
        assert_eq!(lines, Lines::of(kept, Vec::new()));
        lines.add(kept, |bytes| bytes.reserve(2 * SPARE));
        add(&mut lines, kept, "e");
        lines.fit();
        assert!(lines.bytes.capacity() <= SPARE, "{}", lines.bytes.capacity());
    }
}

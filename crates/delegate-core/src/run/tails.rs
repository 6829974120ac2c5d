//! The last bytes of what a child streams and prints, bounded. Used by `child_io`.

use std::collections::VecDeque;

/// Appends and keeps the last `most` bytes, cut between characters.
pub(super) fn keep_tail(kept: &mut String, text: &str, most: usize) {
    kept.push_str(text);
    // Cutting at twice the size keeps this linear.
    if kept.len() > 2 * most {
        let mut cut = kept.len() - most;
        while !kept.is_char_boundary(cut) {
            cut += 1;
        }
        kept.drain(..cut);
    }
}

/// The last bytes of a stream.
pub(super) struct Ring {
    bytes: VecDeque<u8>,
    most: usize,
}

impl Ring {
    pub(super) const fn new(most: usize) -> Self {
        Self { bytes: VecDeque::new(), most }
    }

    pub(super) fn push(&mut self, bytes: &[u8]) {
        let new = &bytes[bytes.len().saturating_sub(self.most)..];
        let old = self.bytes.len().saturating_sub(self.most - new.len());
        self.bytes.drain(..old);
        self.bytes.extend(new);
    }

    pub(super) fn into_bytes(self) -> Vec<u8> {
        self.bytes.into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ring_keeps_the_end() {
        let mut ring = Ring::new(4);
        for piece in ["a", "bc", "", "defghi", "j"] {
            ring.push(piece.as_bytes());
        }
        assert_eq!(ring.into_bytes(), b"ghij");
    }

    #[test]
    fn the_tail_of_a_text_is_cut_between_characters() {
        let mut kept = String::new();
        for _ in 0..100 {
            keep_tail(&mut kept, "é", 5);
        }
        assert!(kept.len() <= 10 && kept.chars().all(|letter| letter == 'é'), "{kept}");
    }
}

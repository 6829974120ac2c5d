//! The last bytes of what a child streams and prints, bounded. Used by `child_io`.

use std::collections::VecDeque;

/// Appends and keeps the last `most` bytes and some before them, cut between characters.
pub(super) fn keep_tail(kept: &mut String, text: &str, most: usize) {
    kept.push_str(text);
    // Cutting at twice the size keeps this linear.
    if kept.len() > 2 * most {
        cut_to_tail(kept, most);
    }
}

/// Leaves the last `most` bytes, cut between characters: the same ones in whatever pieces they came.
pub(super) fn cut_to_tail(kept: &mut String, most: usize) {
    let mut cut = kept.len().saturating_sub(most);
    while !kept.is_char_boundary(cut) {
        cut += 1;
    }
    kept.drain(..cut);
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
    fn a_tail_does_not_depend_on_the_pieces_that_it_came_in() {
        let text: String = (0..1000).map(|number| format!("{number} ö ")).collect();
        let letters: Vec<char> = text.chars().collect();
        let tails: Vec<String> = [1, 7, 64, 5000]
            .iter()
            .map(|piece| {
                let mut kept = String::new();
                for piece in letters.chunks(*piece) {
                    keep_tail(&mut kept, &piece.iter().collect::<String>(), 100);
                }
                cut_to_tail(&mut kept, 100);
                kept
            })
            .collect();
        assert!(tails.iter().all(|tail| *tail == tails[0] && text.ends_with(tail)), "{tails:?}");
        assert!((99..=100).contains(&tails[0].len()));
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

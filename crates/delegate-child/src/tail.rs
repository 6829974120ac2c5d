//! [`Tail`]: the last bytes of a stream, for an interrupted child's last words (`account`) and a
//! program's stderr (`agents::command`); and [`clip`], the head of a text.

/// Keeps the last `cap` bytes of what is pushed, in at most twice that memory.
#[derive(Debug)]
pub(crate) struct Tail {
    bytes: Vec<u8>,
    cap: usize,
    /// Something older is gone.
    cut: bool,
}

impl Tail {
    pub(crate) const fn new(cap: usize) -> Self {
        Self { bytes: Vec::new(), cap, cut: false }
    }

    /// Appends; what is older than `cap` bytes goes when the buffer has doubled.
    pub(crate) fn push(&mut self, bytes: &[u8]) {
        let fresh = &bytes[bytes.len().saturating_sub(self.cap)..];
        self.cut |= fresh.len() < bytes.len();
        if self.bytes.len() + fresh.len() > 2 * self.cap {
            let keep = self.cap - fresh.len();
            self.cut = true;
            self.bytes.drain(..self.bytes.len().saturating_sub(keep));
        }
        self.bytes.extend_from_slice(fresh);
    }

    /// The last `max` bytes at most (never more than the cap) as text. A character that the cut went
    /// through is left out; what is not UTF-8 becomes U+FFFD.
    pub(crate) fn text(&self, max: usize) -> String {
        let from = self.bytes.len().saturating_sub(max.min(self.cap));
        let mut last = &self.bytes[from..];
        if from > 0 || self.cut {
            let cut = last.iter().take(3).take_while(|byte| **byte & 0xC0 == 0x80).count();
            last = &last[cut..];
        }
        String::from_utf8_lossy(last).into_owned()
    }
}

/// The head of `text`, at most `max` bytes, cut between characters.
pub(crate) fn clip(text: &str, max: usize) -> &str {
    &text[..floor_char_boundary(text, max)]
}

/// The last place at or before `index` that lies between characters. The standard library's own is
/// newer than the oldest compiler that we support.
pub(crate) fn floor_char_boundary(text: &str, index: usize) -> usize {
    if index >= text.len() {
        return text.len();
    }
    (0..=index).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn cuts_fall_between_characters() {
        assert_eq!(clip("aé", 2), "a");
        assert_eq!(clip("aé", 3), "aé");
        let mut tail = Tail::new(3);
        tail.push("aéé".as_bytes());
        assert_eq!(tail.text(usize::MAX), "é");
        assert_eq!(tail.text(2), "é");
    }

    proptest! {
        #[test]
        fn the_tail_is_the_end_of_everything(pieces: Vec<Vec<u8>>, cap in 1_usize..40) {
            let mut tail = Tail::new(cap);
            for piece in &pieces {
                tail.push(piece);
                prop_assert!(tail.bytes.len() <= 2 * cap);
            }
            let whole = pieces.concat();
            let kept = &tail.bytes[tail.bytes.len().saturating_sub(cap)..];
            prop_assert_eq!(kept, &whole[whole.len().saturating_sub(cap)..]);
        }
    }
}

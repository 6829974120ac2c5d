//! Bytes as they come → text, without holding more than one unfinished character. `pipes` feeds it.

/// Turns a stream of bytes into the very text that `String::from_utf8_lossy` makes of the whole.
#[derive(Debug, Default)]
pub(super) struct Lossy {
    /// The first bytes of a character whose rest has not come yet; at most 3.
    carry: Vec<u8>,
}

impl Lossy {
    /// Appends to `out` what can be decided now.
    pub(super) fn push(&mut self, bytes: &[u8], out: &mut String) {
        let joined;
        let bytes = if self.carry.is_empty() {
            bytes
        } else {
            joined = [&self.carry, bytes].concat();
            self.carry.clear();
            &joined
        };
        let mut chunks = bytes.utf8_chunks().peekable();
        while let Some(chunk) = chunks.next() {
            out.push_str(chunk.valid());
            let invalid = chunk.invalid();
            if chunks.peek().is_none() && may_continue(invalid) {
                self.carry.extend_from_slice(invalid);
            } else if !invalid.is_empty() {
                out.push(char::REPLACEMENT_CHARACTER);
            }
        }
    }

    /// Appends what is left at the end of the stream.
    pub(super) fn finish(&mut self, out: &mut String) {
        if !self.carry.is_empty() {
            self.carry.clear();
            out.push(char::REPLACEMENT_CHARACTER);
        }
    }
}

/// Whether these bytes are the start of a character.
fn may_continue(bytes: &[u8]) -> bool {
    std::str::from_utf8(bytes).is_err_and(|error| error.error_len().is_none())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn any_bytes() -> impl Strategy<Value = Vec<u8>> {
        let piece = prop_oneof![any::<u8>().prop_map(|byte| vec![byte]), ".".prop_map(Vec::from)];
        prop::collection::vec(piece, 0..20).prop_map(|pieces| pieces.concat())
    }

    proptest! {
        #[test]
        fn pieces_decode_as_the_whole(bytes in any_bytes(), step in 1_usize..6) {
            let (mut lossy, mut out) = (Lossy::default(), String::new());
            for piece in bytes.chunks(step) {
                lossy.push(piece, &mut out);
                prop_assert!(lossy.carry.len() <= 3);
            }
            lossy.finish(&mut out);
            prop_assert_eq!(out, String::from_utf8_lossy(&bytes));
        }
    }
}

//! Bytes that come in pieces, as text that is safe for a terminal: line ends and tabs stay, everything
//! else that is not plain text is shown escaped, also what is not UTF-8.

use std::fmt::Write as _;

use crate::cli::render::text::escape_lines;

/// Remembers a character that a piece cut in two.
#[derive(Debug, Default)]
pub(crate) struct Decoder {
    /// At most 3 bytes: the beginning of a character.
    cut: Vec<u8>,
}

impl Decoder {
    /// The text of the next piece.
    pub(crate) fn push(&mut self, bytes: &[u8]) -> String {
        self.cut.extend_from_slice(bytes);
        let whole = self.cut.len() - cut_at_end(&self.cut);
        let rest = self.cut.split_off(whole);
        show(&std::mem::replace(&mut self.cut, rest))
    }

    /// What is left when nothing more comes.
    pub(crate) fn end(&mut self) -> String {
        show(&std::mem::take(&mut self.cut))
    }
}

/// Bytes at the end that begin a character and may go on.
fn cut_at_end(bytes: &[u8]) -> usize {
    let last = bytes.utf8_chunks().last().map_or(&[][..], |chunk| chunk.invalid());
    match std::str::from_utf8(last) {
        Err(error) if error.error_len().is_none() => last.len(),
        _ => 0,
    }
}

fn show(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        text.push_str(&escape_lines(chunk.valid()));
        for byte in chunk.invalid() {
            // Writing to a `String` cannot fail.
            let _: std::fmt::Result = write!(text, "\\x{byte:02x}");
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn where_the_pieces_end_makes_no_difference(
            bytes in prop_oneof![any::<Vec<u8>>(), "[a-zé漢🦀\\n\u{1b}]*".prop_map(String::into_bytes)],
            size in 1_usize..8,
        ) {
            let mut decoder = Decoder::default();
            let mut text: String = bytes.chunks(size).map(|piece| decoder.push(piece)).collect();
            text.push_str(&decoder.end());
            prop_assert_eq!(&text, &show(&bytes));
            prop_assert!(text.chars().all(|c| c == '\n' || c == '\t' || !c.is_control()));
        }
    }

    #[test]
    fn what_is_not_text_is_shown() {
        assert_eq!(show(b"a\xffb\x1b\xe6\xbc\xa2\n"), "a\\xffb\\x1b漢\n");
        let mut decoder = Decoder::default();
        assert_eq!(decoder.push(b"\xe6\xbc"), "");
        assert_eq!(decoder.push(b"\xa2"), "漢");
        assert_eq!(decoder.push(b"\xe6"), "");
        assert_eq!(decoder.end(), "\\xe6");
    }
}

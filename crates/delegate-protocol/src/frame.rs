//! Frames: a little-endian `u32` length, then that many bytes of MessagePack with field names
//! ([`crate::codec`]).
//!
//! [`Encoder`] and [`Decoder`] are typed by the end that holds them ([`crate::message`]), so a
//! child cannot even write a parent's message. Decoding is total: whatever a peer sends becomes a
//! message or a [`FrameError`], never a panic, and no length that a peer names is allocated before
//! its bytes are there.

use std::marker::PhantomData;

use crate::codec::{self, CodecError};
use crate::message::{ChildEnd, End};

/// The largest frame body, in bytes. Larger values go in parts ([`PART`]).
pub const FRAME_CAP: usize = 16 * 1024 * 1024;

/// The size of one part of a value that is sent in parts, in bytes. Small enough that an event or
/// a heartbeat never waits long behind a part, large enough that the header costs nothing.
pub const PART: usize = 1024 * 1024;

const HEADER: usize = 4;

/// A map of one entry, its key, and a binary whose length takes four bytes.
const PART_HEAD: &[u8] = b"\x81\xaaResultPart\xc6";

/// What can be wrong with bytes that a peer sent, or with a message that should be sent.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FrameError {
    /// A frame over [`FRAME_CAP`]. Its body is skipped; the stream stays usable.
    #[error("a frame of {len} bytes is over the cap of {FRAME_CAP} bytes")]
    Oversized {
        /// The length that was announced or would have been sent.
        len: usize,
    },
    /// A whole frame whose body is not a message of this direction.
    #[error("a frame of {len} bytes is not a message: {reason}")]
    Undecodable {
        /// Length of the body.
        len: usize,
        /// The decoder's reason.
        reason: String,
    },
    /// A message that cannot be written as MessagePack.
    #[error("a message cannot be encoded: {reason}")]
    Unencodable {
        /// The encoder's reason.
        reason: String,
    },
    /// The stream ended inside a frame.
    #[error("the stream ended inside a frame: {have} of {want} bytes")]
    Truncated {
        /// Bytes that arrived, header included.
        have: usize,
        /// Bytes that were announced, header included; 4 while the header itself is incomplete.
        want: usize,
    },
}

impl From<CodecError> for FrameError {
    fn from(CodecError(reason): CodecError) -> Self {
        Self::Unencodable { reason }
    }
}

/// Writes the messages that end `E` may send.
#[derive(Debug)]
pub struct Encoder<E: End> {
    end: PhantomData<fn() -> E>,
}

impl<E: End> Default for Encoder<E> {
    fn default() -> Self {
        Self { end: PhantomData }
    }
}

impl<E: End> Encoder<E> {
    /// Appends one frame to `out`. On an error `out` is as it was.
    ///
    /// # Errors
    /// [`FrameError::Oversized`] or [`FrameError::Unencodable`].
    pub fn frame(&self, message: &E::Sends, out: &mut Vec<u8>) -> Result<(), FrameError> {
        let start = out.len();
        out.extend_from_slice(&[0; HEADER]);
        let written = rmp_serde::encode::write_named(out, message);
        let len = out.len() - start - HEADER;
        let checked = match (written, u32::try_from(len)) {
            (Err(error), _) => Err(FrameError::Unencodable { reason: error.to_string() }),
            (Ok(()), Ok(short)) if len <= FRAME_CAP => Ok(short),
            (Ok(()), _) => Err(FrameError::Oversized { len }),
        };
        match checked {
            Ok(short) => {
                out[start..start + HEADER].copy_from_slice(&short.to_le_bytes());
                Ok(())
            }
            Err(error) => {
                out.truncate(start);
                Err(error)
            }
        }
    }
}

impl Encoder<ChildEnd> {
    /// Appends what stands before so many bytes in the frame of a [`crate::ChildMessage::ResultPart`], for a writer that
    /// does not copy them.
    ///
    /// # Errors
    /// [`FrameError::Oversized`].
    pub fn part_head(&self, bytes: usize, out: &mut Vec<u8>) -> Result<(), FrameError> {
        let len = PART_HEAD.len() + size_of::<u32>() + bytes;
        let fits = len <= FRAME_CAP;
        let (Ok(whole), Ok(inside), true) = (u32::try_from(len), u32::try_from(bytes), fits) else {
            return Err(FrameError::Oversized { len });
        };
        out.extend_from_slice(&whole.to_le_bytes());
        out.extend_from_slice(PART_HEAD);
        out.extend_from_slice(&inside.to_be_bytes());
        Ok(())
    }
}

/// Turns bytes as they arrive into the messages that end `E` may receive.
#[derive(Debug)]
pub struct Decoder<E: End> {
    buffer: Vec<u8>,
    /// Bytes before this position are consumed.
    start: usize,
    /// Bytes of an oversized frame that are still to be dropped.
    skip: usize,
    end: PhantomData<fn() -> E>,
}

impl<E: End> Default for Decoder<E> {
    fn default() -> Self {
        Self { buffer: Vec::new(), start: 0, skip: 0, end: PhantomData }
    }
}

impl<E: End> Decoder<E> {
    /// Takes bytes that were read. Call [`Decoder::next_message`] until it gives `None` before the
    /// next push: the buffer then never holds more than one incomplete frame and one read.
    pub fn push(&mut self, mut bytes: &[u8]) {
        let skipped = self.skip.min(bytes.len());
        self.skip -= skipped;
        bytes = &bytes[skipped..];
        if self.start > 0 {
            self.buffer.drain(..self.start);
            self.start = 0;
        }
        self.buffer.extend_from_slice(bytes);
    }

    /// The next whole message, an error about the next frame, or `None` when more bytes are needed.
    /// After an error the stream stays usable.
    pub fn next_message(&mut self) -> Option<Result<E::Receives, FrameError>> {
        let rest = &self.buffer[self.start..];
        let header: [u8; HEADER] = rest.get(..HEADER)?.try_into().ok()?;
        let len = u32::from_le_bytes(header) as usize;
        if len > FRAME_CAP {
            let present = (rest.len() - HEADER).min(len);
            self.skip = len - present;
            self.start += HEADER + present;
            return Some(Err(FrameError::Oversized { len }));
        }
        let body = rest.get(HEADER..HEADER + len)?;
        let message = codec::from_bytes(body)
            .map_err(|CodecError(reason)| FrameError::Undecodable { len, reason });
        self.start += HEADER + len;
        Some(message)
    }

    /// Call at the end of the stream.
    ///
    /// # Errors
    /// [`FrameError::Truncated`] when the stream ended inside a frame.
    pub fn finish(&self) -> Result<(), FrameError> {
        let rest = &self.buffer[self.start..];
        if self.skip > 0 {
            return Err(FrameError::Truncated { have: 0, want: self.skip });
        }
        if rest.is_empty() {
            return Ok(());
        }
        let want = rest
            .get(..HEADER)
            .and_then(|header| <[u8; HEADER]>::try_from(header).ok())
            .map_or(HEADER, |header| HEADER + u32::from_le_bytes(header) as usize);
        Err(FrameError::Truncated { have: rest.len(), want })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::ChildEvent;
    use crate::message::{ChildMessage, ParentEnd};
    use crate::value::Bytes;
    use proptest::prelude::*;

    fn text(len: usize) -> ChildMessage {
        ChildMessage::Event(ChildEvent::Text { text: "x".repeat(len) })
    }

    fn encode(messages: &[ChildMessage]) -> Vec<u8> {
        let mut bytes = Vec::new();
        for message in messages {
            Encoder::<ChildEnd>::default().frame(message, &mut bytes).unwrap();
        }
        bytes
    }

    fn decode(bytes: &[u8], step: usize) -> (Vec<ChildMessage>, Vec<FrameError>) {
        let mut decoder = Decoder::<ParentEnd>::default();
        let (mut messages, mut errors) = (Vec::new(), Vec::new());
        for piece in bytes.chunks(step.max(1)) {
            decoder.push(piece);
            while let Some(next) = decoder.next_message() {
                match next {
                    Ok(message) => messages.push(message),
                    Err(error) => errors.push(error),
                }
            }
        }
        errors.extend(decoder.finish().err());
        (messages, errors)
    }

    #[test]
    fn messages_survive_any_cut() {
        let sent = vec![text(0), text(1), text(70_000), text(3)];
        let bytes = encode(&sent);
        for step in [1, 2, 3, 5, 64, 65_536, bytes.len()] {
            assert_eq!(decode(&bytes, step), (sent.clone(), Vec::new()), "step {step}");
        }
    }

    #[test]
    fn an_oversized_frame_is_an_error_and_the_stream_goes_on() {
        let mut bytes = encode(&[text(1)]);
        let len = FRAME_CAP + 1;
        bytes.extend_from_slice(&u32::try_from(len).unwrap().to_le_bytes());
        bytes.resize(bytes.len() + len, 7);
        bytes.extend(encode(&[text(2)]));
        for step in [4096, 1 << 20, bytes.len()] {
            let (messages, errors) = decode(&bytes, step);
            assert_eq!(messages, [text(1), text(2)]);
            assert_eq!(errors, [FrameError::Oversized { len }]);
        }
    }

    #[test]
    fn an_oversized_message_is_not_written() {
        let mut out = vec![9];
        let error = Encoder::<ChildEnd>::default().frame(&text(FRAME_CAP), &mut out).unwrap_err();
        assert!(matches!(error, FrameError::Oversized { .. }));
        assert_eq!(out, [9]);
    }

    #[test]
    fn a_part_whose_bytes_are_written_behind_its_head_is_the_same_message() {
        for len in [1, 255, 70_000, PART] {
            let bytes = vec![7; len];
            let mut framed = Vec::new();
            Encoder::default().part_head(len, &mut framed).unwrap();
            framed.extend_from_slice(&bytes);
            let sent = vec![ChildMessage::ResultPart(Bytes(bytes))];
            assert_eq!(decode(&framed, 65_536), (sent, Vec::new()));
        }
        let mut out = vec![9];
        assert!(Encoder::default().part_head(FRAME_CAP, &mut out).is_err());
        assert_eq!(out, [9]);
    }

    #[test]
    fn the_end_inside_a_frame_is_named() {
        let bytes = encode(&[text(10)]);
        for cut in 1..bytes.len() {
            let (_, errors) = decode(&bytes[..cut], 7);
            let want = if cut < HEADER { HEADER } else { bytes.len() };
            assert_eq!(errors, [FrameError::Truncated { have: cut, want }]);
        }
    }

    proptest! {
        #[test]
        fn no_bytes_panic_or_hang_the_decoder(bytes: Vec<u8>, step in 1_usize..40) {
            decode(&bytes, step);
        }

        #[test]
        fn a_flipped_byte_never_panics(at: prop::sample::Index, bits: u8, step in 1_usize..40) {
            let mut bytes = encode(&[text(3), text(300), text(0)]);
            let at = at.index(bytes.len());
            bytes[at] ^= bits;
            decode(&bytes, step);
        }
    }
}

//! Values as MessagePack with field names, and back. Total: no bytes panic, overflow the stack, or
//! allocate more than they are.
//!
//! Used for the bodies of [`crate::frame`]s, for [`crate::Value`] and for specs in parts. `read` is our own reader of
//! the format (`format`), since every event passes it; what is written is the library's.

mod format;
mod read;

use serde::{Deserialize, Serialize};

use self::read::Reader;

/// Nesting that a decoder accepts; deeper data is an error, not a stack overflow.
pub const MAX_DEPTH: usize = 128;

/// A value that cannot be written, or bytes that are no such value; with the reason.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct CodecError(pub String);

/// Bytes of a reason that are kept: some quote what they did not expect, and a peer may have sent that
/// by the megabyte.
const REASON: usize = 1024;

impl CodecError {
    fn of(error: &dyn std::fmt::Display) -> Self {
        let mut reason = error.to_string();
        if reason.len() > REASON {
            let cut = (0..=REASON).rev().find(|at| reason.is_char_boundary(*at)).unwrap_or(0);
            reason.truncate(cut);
            reason.push('…');
        }
        Self(reason)
    }
}

/// Any serializable value as MessagePack with field names.
///
/// # Errors
/// When the value refuses to be serialized.
pub fn to_bytes<T: Serialize + ?Sized>(value: &T) -> Result<Vec<u8>, CodecError> {
    rmp_serde::to_vec_named(value).map_err(|error| CodecError::of(&error))
}

/// The reverse of [`to_bytes`], limited to [`MAX_DEPTH`]. The value may borrow from the bytes.
///
/// # Errors
/// When the bytes are not exactly one value of this type.
pub fn from_bytes<'a, T: Deserialize<'a>>(bytes: &'a [u8]) -> Result<T, CodecError> {
    let mut reader = Reader::new(bytes, MAX_DEPTH);
    let value = T::deserialize(&mut reader).map_err(|error| CodecError::of(&error))?;
    if reader.left() > 0 {
        return Err(CodecError("bytes are left after the value".to_owned()));
    }
    Ok(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reason_does_not_repeat_what_a_peer_sent_by_the_megabyte() {
        let unknown = to_bytes(&"é".repeat(1 << 20)).unwrap();
        let CodecError(reason) = from_bytes::<crate::Status>(&unknown).unwrap_err();
        assert!(reason.len() < 2 * REASON && reason.ends_with('…'), "{}", reason.len());
    }

    #[test]
    fn deep_nesting_is_an_error_and_not_a_stack_overflow() {
        let mut deep = vec![0x91; 100_000];
        deep.push(0xc0);
        assert!(from_bytes::<Vec<()>>(&deep).is_err());
        assert!(from_bytes::<crate::Value>(&deep).is_err());
    }

    #[test]
    fn what_follows_a_value_is_refused() {
        let mut bytes = to_bytes(&7_u8).unwrap();
        assert_eq!(from_bytes::<u8>(&bytes), Ok(7));
        bytes.push(0xc0);
        assert!(from_bytes::<u8>(&bytes).is_err());
    }
}

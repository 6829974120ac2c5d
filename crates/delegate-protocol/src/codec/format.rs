//! MessagePack as bytes: what begins a value, how long it is, and whether all of it is there. [`super::read`] makes
//! values of it.

use std::fmt;

use serde::de;

/// Why bytes are not what was wanted.
#[derive(Debug)]
pub(super) struct Wrong(pub(super) String);

impl fmt::Display for Wrong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Wrong {}

impl de::Error for Wrong {
    fn custom<T: fmt::Display>(message: T) -> Self {
        Self(message.to_string())
    }
}

/// The first byte of a value, and with it what the value is.
#[derive(Debug, Clone, Copy)]
pub(super) enum Head {
    Nil,
    Bool(bool),
    Unsigned(u64),
    Signed(i64),
    Float(f64),
    Text(usize),
    Bytes(usize),
    List(usize),
    Map(usize),
    /// Of an application's own kind.
    Extension(usize),
}

/// What has not been read yet.
pub(super) struct Rest<'de>(pub(super) &'de [u8]);

impl<'de> Rest<'de> {
    #[inline]
    pub(super) fn peek(&self) -> Result<u8, Wrong> {
        self.0.first().copied().ok_or_else(ends_early)
    }

    #[inline]
    pub(super) fn take(&mut self, count: usize) -> Result<&'de [u8], Wrong> {
        let (taken, rest) = self.0.split_at_checked(count).ok_or_else(ends_early)?;
        self.0 = rest;
        Ok(taken)
    }

    #[inline]
    pub(super) fn array<const N: usize>(&mut self) -> Result<[u8; N], Wrong> {
        let (taken, rest) = self.0.split_first_chunk().ok_or_else(ends_early)?;
        self.0 = rest;
        Ok(*taken)
    }

    #[inline]
    fn u8(&mut self) -> Result<u8, Wrong> {
        self.array().map(u8::from_be_bytes)
    }

    #[inline]
    fn u16(&mut self) -> Result<u16, Wrong> {
        self.array().map(u16::from_be_bytes)
    }

    #[inline]
    fn u32(&mut self) -> Result<u32, Wrong> {
        self.array().map(u32::from_be_bytes)
    }

    #[inline]
    fn u64(&mut self) -> Result<u64, Wrong> {
        self.array().map(u64::from_be_bytes)
    }

    #[inline]
    fn length8(&mut self) -> Result<usize, Wrong> {
        self.u8().map(usize::from)
    }

    #[inline]
    fn length16(&mut self) -> Result<usize, Wrong> {
        self.u16().map(usize::from)
    }

    #[inline]
    fn length32(&mut self) -> Result<usize, Wrong> {
        self.u32().map(|length| length as usize)
    }

    #[inline]
    pub(super) fn head(&mut self) -> Result<Head, Wrong> {
        let first = self.u8()?;
        Ok(match first {
            0x00..=0x7f => Head::Unsigned(first.into()),
            0x80..=0x8f => Head::Map(usize::from(first & 0x0f)),
            0x90..=0x9f => Head::List(usize::from(first & 0x0f)),
            0xa0..=0xbf => Head::Text(usize::from(first & 0x1f)),
            0xc0 => Head::Nil,
            0xc1 => return Err(Wrong("0xc1 begins no value".to_owned())),
            0xc2 => Head::Bool(false),
            0xc3 => Head::Bool(true),
            0xc4 => Head::Bytes(self.length8()?),
            0xc5 => Head::Bytes(self.length16()?),
            0xc6 => Head::Bytes(self.length32()?),
            0xc7 => Head::Extension(self.length8()?),
            0xc8 => Head::Extension(self.length16()?),
            0xc9 => Head::Extension(self.length32()?),
            0xca => Head::Float(f32::from_be_bytes(self.array()?).into()),
            0xcb => Head::Float(f64::from_be_bytes(self.array()?)),
            0xcc => Head::Unsigned(self.u8()?.into()),
            0xcd => Head::Unsigned(self.u16()?.into()),
            0xce => Head::Unsigned(self.u32()?.into()),
            0xcf => Head::Unsigned(self.u64()?),
            0xd0 => Head::Signed(i8::from_be_bytes(self.array()?).into()),
            0xd1 => Head::Signed(i16::from_be_bytes(self.array()?).into()),
            0xd2 => Head::Signed(i32::from_be_bytes(self.array()?).into()),
            0xd3 => Head::Signed(i64::from_be_bytes(self.array()?)),
            0xd4 => Head::Extension(1),
            0xd5 => Head::Extension(2),
            0xd6 => Head::Extension(4),
            0xd7 => Head::Extension(8),
            0xd8 => Head::Extension(16),
            0xd9 => Head::Text(self.length8()?),
            0xda => Head::Text(self.length16()?),
            0xdb => Head::Text(self.length32()?),
            0xdc => Head::List(self.length16()?),
            0xdd => Head::List(self.length32()?),
            0xde => Head::Map(self.length16()?),
            0xdf => Head::Map(self.length32()?),
            0xe0..=0xff => Head::Signed(i8::from_be_bytes([first]).into()),
        })
    }

    /// Passes over the byte that was peeked at.
    #[inline]
    pub(super) fn skip(&mut self) {
        self.0 = self.0.get(1..).unwrap_or_default();
    }
}

fn ends_early() -> Wrong {
    Wrong("the bytes end inside a value".to_owned())
}

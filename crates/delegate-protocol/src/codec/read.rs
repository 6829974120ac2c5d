//! Reads one MessagePack value from a slice: the half of [`super`] that peers have in their hands. Every event of
//! every child passes here, so texts are borrowed from the slice and nothing is copied before its type wants it.
//!
//! Total: every length is checked against the bytes that are there before anything is made of it, and nesting is
//! counted.

use std::fmt;

use serde::de::value::SeqDeserializer;
use serde::de::{self, Deserialize, DeserializeSeed, Error as _, IntoDeserializer, Unexpected};
use serde::forward_to_deserialize_any;

/// Why bytes are not what was wanted.
#[derive(Debug)]
pub(super) struct Wrong(String);

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

/// What has not been read yet.
pub(super) struct Reader<'de> {
    rest: &'de [u8],
    /// Lists and maps that may still be opened inside each other.
    depth: usize,
}

/// The first byte of a value, and with it what the value is.
enum Head {
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

impl<'de> Reader<'de> {
    pub(super) const fn new(rest: &'de [u8], depth: usize) -> Self {
        Self { rest, depth }
    }

    /// Bytes behind the value.
    #[inline]
    pub(super) const fn left(&self) -> usize {
        self.rest.len()
    }

    #[inline]
    fn peek(&self) -> Result<u8, Wrong> {
        self.rest.first().copied().ok_or_else(ends_early)
    }

    #[inline]
    fn take(&mut self, count: usize) -> Result<&'de [u8], Wrong> {
        let (taken, rest) = self.rest.split_at_checked(count).ok_or_else(ends_early)?;
        self.rest = rest;
        Ok(taken)
    }

    #[inline]
    fn array<const N: usize>(&mut self) -> Result<[u8; N], Wrong> {
        let (taken, rest) = self.rest.split_first_chunk().ok_or_else(ends_early)?;
        self.rest = rest;
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
    fn head(&mut self) -> Result<Head, Wrong> {
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

    /// Opens something that holds others.
    #[inline]
    fn descend(&mut self) -> Result<(), Wrong> {
        self.depth = self.depth.saturating_sub(1);
        if self.depth == 0 { Err(Wrong("it is nested too deeply".to_owned())) } else { Ok(()) }
    }

    #[inline]
    fn text<V: de::Visitor<'de>>(&mut self, length: usize, visitor: V) -> Result<V::Value, Wrong> {
        let bytes = self.take(length)?;
        match std::str::from_utf8(bytes) {
            Ok(text) => visitor.visit_borrowed_str(text),
            // Some peers send bytes as text; whoever takes bytes is content.
            Err(wrong) => visitor
                .visit_borrowed_bytes::<Wrong>(bytes)
                .map_err(|_| Wrong(format!("a text is not UTF-8: {wrong}"))),
        }
    }

    #[inline]
    fn list<V: de::Visitor<'de>>(&mut self, length: usize, visitor: V) -> Result<V::Value, Wrong> {
        self.descend()?;
        let mut items = Items { reader: self, left: length };
        let value = visitor.visit_seq(&mut items)?;
        items.all_taken()?;
        self.depth += 1;
        Ok(value)
    }

    #[inline]
    fn map<V: de::Visitor<'de>>(&mut self, length: usize, visitor: V) -> Result<V::Value, Wrong> {
        self.descend()?;
        let mut items = Items { reader: self, left: length };
        let value = visitor.visit_map(&mut items)?;
        items.all_taken()?;
        self.depth += 1;
        Ok(value)
    }

    fn extension<V: de::Visitor<'de>>(
        &mut self,
        length: usize,
        visitor: V,
    ) -> Result<V::Value, Wrong> {
        let kind = i8::from_be_bytes(self.array()?);
        let parts = [Part::Kind(kind), Part::Bytes(self.take(length)?)];
        visitor.visit_newtype_struct(SeqDeserializer::new(parts.into_iter()))
    }

    /// Whatever is there. Where a list is wanted `bytes_as_list` takes bytes for one.
    #[inline]
    fn any<V: de::Visitor<'de>>(
        &mut self,
        bytes_as_list: bool,
        visitor: V,
    ) -> Result<V::Value, Wrong> {
        match self.head()? {
            Head::Nil => visitor.visit_unit(),
            Head::Bool(value) => visitor.visit_bool(value),
            Head::Unsigned(value) => visitor.visit_u64(value),
            Head::Signed(value) => visitor.visit_i64(value),
            Head::Float(value) => visitor.visit_f64(value),
            Head::Text(length) => self.text(length, visitor),
            Head::Bytes(length) if bytes_as_list => {
                visitor.visit_seq(SeqDeserializer::new(self.take(length)?.iter().copied()))
            }
            Head::Bytes(length) => visitor.visit_borrowed_bytes(self.take(length)?),
            Head::List(length) => self.list(length, visitor),
            Head::Map(length) => self.map(length, visitor),
            Head::Extension(length) => self.extension(length, visitor),
        }
    }

    /// A text where one is expected, whatever is there otherwise: the type says what it thinks of that.
    #[inline]
    fn expect_text<V: de::Visitor<'de>>(&mut self, visitor: V) -> Result<V::Value, Wrong> {
        match self.peek()? {
            short @ 0xa0..=0xbf => {
                self.rest = &self.rest[1..];
                self.text(usize::from(short & 0x1f), visitor)
            }
            _ => self.any(false, visitor),
        }
    }

    /// The 16 bytes of a number that is too large for 64 bits.
    fn wide(&mut self, length: usize) -> Result<[u8; 16], Wrong> {
        let bytes = self.take(length)?;
        bytes.try_into().map_err(|_| Wrong("a number of 128 bits has 16 bytes".to_owned()))
    }
}

fn ends_early() -> Wrong {
    Wrong("the bytes end inside a value".to_owned())
}

impl<'de> de::Deserializer<'de> for &mut Reader<'de> {
    type Error = Wrong;

    fn is_human_readable(&self) -> bool {
        false
    }

    #[inline]
    fn deserialize_any<V: de::Visitor<'de>>(self, visitor: V) -> Result<V::Value, Wrong> {
        self.any(false, visitor)
    }

    #[inline]
    fn deserialize_option<V: de::Visitor<'de>>(self, visitor: V) -> Result<V::Value, Wrong> {
        if self.peek()? == 0xc0 {
            self.rest = &self.rest[1..];
            visitor.visit_none()
        } else {
            visitor.visit_some(self)
        }
    }

    /// A map of one entry: the variant's name and what it holds; or the name alone.
    #[inline]
    fn deserialize_enum<V: de::Visitor<'de>>(
        self,
        _name: &'static str,
        _variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Wrong> {
        match self.peek()? {
            0x81 => {
                self.rest = &self.rest[1..];
                visitor.visit_enum(Variant { reader: self, holds: true })
            }
            0x80..=0x8f | 0xde | 0xdf => {
                let Head::Map(1) = self.head()? else {
                    return Err(Wrong("a variant is a map of one entry".to_owned()));
                };
                visitor.visit_enum(Variant { reader: self, holds: true })
            }
            _ => visitor.visit_enum(Variant { reader: self, holds: false }),
        }
    }

    #[inline]
    fn deserialize_newtype_struct<V: de::Visitor<'de>>(
        self,
        _name: &'static str,
        visitor: V,
    ) -> Result<V::Value, Wrong> {
        visitor.visit_newtype_struct(self)
    }

    /// Written as an empty list.
    fn deserialize_unit_struct<V: de::Visitor<'de>>(
        self,
        _name: &'static str,
        visitor: V,
    ) -> Result<V::Value, Wrong> {
        if self.peek()? == 0x90 {
            self.rest = &self.rest[1..];
            return visitor.visit_unit();
        }
        self.any(false, visitor)
    }

    fn deserialize_i128<V: de::Visitor<'de>>(self, visitor: V) -> Result<V::Value, Wrong> {
        let head = self.head()?;
        if let Head::Unsigned(number) = head {
            visitor.visit_i128(number.into())
        } else if let Head::Signed(number) = head {
            visitor.visit_i128(number.into())
        } else if let Head::Bytes(length) = head {
            visitor.visit_i128(i128::from_be_bytes(self.wide(length)?))
        } else {
            Err(Wrong::invalid_type(Unexpected::Other("no number"), &visitor))
        }
    }

    fn deserialize_u128<V: de::Visitor<'de>>(self, visitor: V) -> Result<V::Value, Wrong> {
        let head = self.head()?;
        if let Head::Unsigned(number) = head {
            visitor.visit_u128(number.into())
        } else if let Head::Bytes(length) = head {
            visitor.visit_u128(u128::from_be_bytes(self.wide(length)?))
        } else {
            Err(Wrong::invalid_type(Unexpected::Other("no number"), &visitor))
        }
    }

    #[inline]
    fn deserialize_seq<V: de::Visitor<'de>>(self, visitor: V) -> Result<V::Value, Wrong> {
        self.any(true, visitor)
    }

    fn deserialize_tuple<V: de::Visitor<'de>>(
        self,
        _length: usize,
        visitor: V,
    ) -> Result<V::Value, Wrong> {
        self.any(true, visitor)
    }

    fn deserialize_tuple_struct<V: de::Visitor<'de>>(
        self,
        _name: &'static str,
        _length: usize,
        visitor: V,
    ) -> Result<V::Value, Wrong> {
        self.any(true, visitor)
    }

    #[inline]
    fn deserialize_struct<V: de::Visitor<'de>>(
        self,
        _name: &'static str,
        _fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Wrong> {
        self.any(true, visitor)
    }

    #[inline]
    fn deserialize_str<V: de::Visitor<'de>>(self, visitor: V) -> Result<V::Value, Wrong> {
        self.expect_text(visitor)
    }

    #[inline]
    fn deserialize_string<V: de::Visitor<'de>>(self, visitor: V) -> Result<V::Value, Wrong> {
        self.expect_text(visitor)
    }

    #[inline]
    fn deserialize_identifier<V: de::Visitor<'de>>(self, visitor: V) -> Result<V::Value, Wrong> {
        self.expect_text(visitor)
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 u8 u16 u32 u64 f32 f64 char bytes byte_buf unit map ignored_any
    }
}

/// The rest of a list, or of a map.
struct Items<'a, 'de> {
    reader: &'a mut Reader<'de>,
    left: usize,
}

impl Items<'_, '_> {
    fn all_taken(&self) -> Result<(), Wrong> {
        if self.left == 0 {
            return Ok(());
        }
        Err(Wrong(format!("{} more than expected", self.left)))
    }

    /// A length that a peer names is worth no more than the bytes that are there: a byte for each at least.
    fn believable(&self) -> Option<usize> {
        Some(self.left.min(self.reader.left()))
    }
}

impl<'de> de::SeqAccess<'de> for Items<'_, 'de> {
    type Error = Wrong;

    #[inline]
    fn next_element_seed<T: DeserializeSeed<'de>>(
        &mut self,
        seed: T,
    ) -> Result<Option<T::Value>, Wrong> {
        let Some(left) = self.left.checked_sub(1) else { return Ok(None) };
        self.left = left;
        seed.deserialize(&mut *self.reader).map(Some)
    }

    fn size_hint(&self) -> Option<usize> {
        self.believable()
    }
}

impl<'de> de::MapAccess<'de> for Items<'_, 'de> {
    type Error = Wrong;

    #[inline]
    fn next_key_seed<K: DeserializeSeed<'de>>(
        &mut self,
        seed: K,
    ) -> Result<Option<K::Value>, Wrong> {
        let Some(left) = self.left.checked_sub(1) else { return Ok(None) };
        self.left = left;
        seed.deserialize(&mut *self.reader).map(Some)
    }

    #[inline]
    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, Wrong> {
        seed.deserialize(&mut *self.reader)
    }

    fn size_hint(&self) -> Option<usize> {
        self.believable()
    }
}

/// A variant whose name is next.
struct Variant<'a, 'de> {
    reader: &'a mut Reader<'de>,
    /// Something stands behind the name.
    holds: bool,
}

impl Variant<'_, '_> {
    fn held(&self, wanted: &'static str) -> Result<(), Wrong> {
        if self.holds {
            return Ok(());
        }
        Err(Wrong::invalid_type(Unexpected::UnitVariant, &wanted))
    }
}

impl<'de> de::EnumAccess<'de> for Variant<'_, 'de> {
    type Error = Wrong;
    type Variant = Self;

    #[inline]
    fn variant_seed<V: DeserializeSeed<'de>>(self, seed: V) -> Result<(V::Value, Self), Wrong> {
        let name = seed.deserialize(&mut *self.reader)?;
        Ok((name, self))
    }
}

impl<'de> de::VariantAccess<'de> for Variant<'_, 'de> {
    type Error = Wrong;

    fn unit_variant(self) -> Result<(), Wrong> {
        if self.holds { <()>::deserialize(self.reader) } else { Ok(()) }
    }

    #[inline]
    fn newtype_variant_seed<T: DeserializeSeed<'de>>(self, seed: T) -> Result<T::Value, Wrong> {
        self.held("newtype variant")?;
        seed.deserialize(self.reader)
    }

    fn tuple_variant<V: de::Visitor<'de>>(
        self,
        _length: usize,
        visitor: V,
    ) -> Result<V::Value, Wrong> {
        self.held("tuple variant")?;
        self.reader.any(true, visitor)
    }

    #[inline]
    fn struct_variant<V: de::Visitor<'de>>(
        self,
        _fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Wrong> {
        self.held("struct variant")?;
        self.reader.any(true, visitor)
    }
}

/// A part of a value of an application's own kind, which is taken for a list of both.
#[derive(Clone, Copy)]
enum Part<'de> {
    Kind(i8),
    Bytes(&'de [u8]),
}

impl<'de> IntoDeserializer<'de, Wrong> for Part<'de> {
    type Deserializer = Self;

    fn into_deserializer(self) -> Self {
        self
    }
}

impl<'de> de::Deserializer<'de> for Part<'de> {
    type Error = Wrong;

    fn deserialize_any<V: de::Visitor<'de>>(self, visitor: V) -> Result<V::Value, Wrong> {
        match self {
            Self::Kind(kind) => visitor.visit_i8(kind),
            Self::Bytes(bytes) => visitor.visit_borrowed_bytes(bytes),
        }
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf option unit
        unit_struct newtype_struct seq tuple tuple_struct map struct enum identifier ignored_any
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::net::IpAddr;

    use proptest::prelude::*;
    use serde::Serialize;
    use serde::de::DeserializeOwned;

    use super::*;
    use crate::codec::MAX_DEPTH;
    use crate::message::ChildMessage;
    use crate::value::Value;

    fn read<'a, T: Deserialize<'a>>(bytes: &'a [u8]) -> Result<T, Wrong> {
        T::deserialize(&mut Reader::new(bytes, MAX_DEPTH))
    }

    /// What a well-known reader of the format makes of it.
    fn reference<T: DeserializeOwned>(bytes: &[u8]) -> Option<T> {
        let mut reference = rmp_serde::Deserializer::new(bytes);
        reference.set_max_depth(MAX_DEPTH);
        T::deserialize(&mut reference).ok()
    }

    #[derive(Debug, PartialEq, Serialize, serde::Deserialize)]
    enum Kind {
        Plain,
        One(u8),
        Two(u8, String),
        Named { a: Option<bool> },
    }

    #[derive(Debug, PartialEq, Serialize, serde::Deserialize)]
    struct Unit;

    #[derive(Debug, PartialEq, Serialize, serde::Deserialize)]
    struct Wrapped(u16);

    #[derive(Debug, PartialEq, Serialize, serde::Deserialize)]
    struct All {
        numbers: (u8, i8, u16, i16, u32, i32, u64, i64, f32, f64),
        wide: Vec<i128>,
        positive: u128,
        kinds: Vec<Kind>,
        nothing: (),
        unit: Unit,
        wrapped: Wrapped,
        letter: char,
        place: IpAddr,
        known: BTreeMap<String, Option<Vec<u8>>>,
        #[serde(default)]
        left_out: bool,
    }

    #[test]
    fn every_kind_of_data_comes_back() {
        let all = All {
            numbers: (200, -100, 40_000, -300, 70_000, -70_000, u64::MAX, i64::MIN, 0.5, -1e300),
            wide: vec![i128::MIN, -1, 7, i128::MAX],
            positive: u128::MAX,
            kinds: vec![
                Kind::Plain,
                Kind::One(3),
                Kind::Two(4, "é".repeat(70_000)),
                Kind::Named { a: Some(true) },
                Kind::Named { a: None },
            ],
            nothing: (),
            unit: Unit,
            wrapped: Wrapped(9),
            letter: 'é',
            place: IpAddr::from([127, 0, 0, 1]),
            known: [("a".to_owned(), None), ("b".repeat(300), Some(vec![0; 20]))].into(),
            left_out: true,
        };
        let bytes = crate::codec::to_bytes(&all).unwrap();
        assert_eq!(read::<All>(&bytes).unwrap(), all);
        for cut in (0..bytes.len()).step_by(97) {
            assert!(read::<All>(&bytes[..cut]).is_err(), "{cut}");
        }
    }

    #[test]
    fn a_text_is_borrowed() {
        let bytes = crate::codec::to_bytes(&("a", "b".repeat(300))).unwrap();
        let (short, long) = read::<(&str, &str)>(&bytes).unwrap();
        assert_eq!((short, long.len()), ("a", 300));
    }

    #[test]
    fn a_value_of_somebody_elses_kind_is_shown_as_a_list() {
        for bytes in [&[0xd4, 0xff, 7][..], &[0xc7, 1, 0xff, 7]] {
            let list = [Value::Int(-1), Value::Bytes(vec![7])];
            assert_eq!(read::<Value>(bytes).unwrap(), Value::List(list.into()));
            assert_eq!(
                reference::<Value>(bytes),
                Some(Value::List(vec![Value::Int(-1), Value::Bytes(vec![7])]))
            );
        }
    }

    #[test]
    fn a_length_without_its_bytes_is_an_error_and_allocates_nothing() {
        for marker in [0xc6, 0xc9, 0xdb, 0xdd, 0xdf] {
            let bytes = [marker, 0xff, 0xff, 0xff, 0xff, 0x01];
            assert!(read::<Value>(&bytes).is_err(), "{marker:x}");
            assert!(read::<Vec<u64>>(&bytes).is_err(), "{marker:x}");
        }
    }

    /// NaN does not equal itself.
    fn shown<T: fmt::Debug>(value: T) -> String {
        format!("{value:?}")
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]

        #[test]
        fn any_bytes_are_read_as_the_reference_reads_them(bytes: Vec<u8>) {
            let ours = read::<Value>(&bytes).ok();
            prop_assert_eq!(shown(ours), shown(reference::<Value>(&bytes)));
            let ours = read::<ChildMessage>(&bytes).ok();
            prop_assert_eq!(shown(ours), shown(reference::<ChildMessage>(&bytes)));
        }

        #[test]
        fn a_damaged_message_is_read_as_the_reference_reads_it(
            at: prop::sample::Index, byte: u8, cut: prop::sample::Index,
        ) {
            let mut bytes = crate::codec::to_bytes(&ChildMessage::Event(crate::ChildEvent::Tool {
                name: "read_file".to_owned(),
                preview: Some("p".repeat(40)),
                args: Value::Map([("path".to_owned(), Value::List(vec![Value::Int(300), Value::Float(0.5)]))].into()),
                id: None,
                args_bytes: 24,
            })).unwrap();
            let at = at.index(bytes.len());
            bytes[at] = byte;
            bytes.truncate(bytes.len().min(cut.index(2 * bytes.len())));
            let ours = read::<ChildMessage>(&bytes).ok();
            prop_assert_eq!(shown(ours), shown(reference::<ChildMessage>(&bytes)));
        }
    }
}

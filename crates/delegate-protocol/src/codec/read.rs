//! Reads one MessagePack value from a slice: the half of [`super`] that peers have in their hands. Every event of
//! every child passes here, so texts are borrowed from the slice and nothing is copied before its type wants it.
//!
//! Total: every length is checked against the bytes that are there before anything is made of it, and nesting is
//! counted.

use serde::de::value::SeqDeserializer;
use serde::de::{self, Deserialize, DeserializeSeed, Error as _, IntoDeserializer, Unexpected};
use serde::forward_to_deserialize_any;

use super::format::{Head, Rest, Wrong};

/// What has not been read yet.
pub(super) struct Reader<'de> {
    rest: Rest<'de>,
    /// Lists and maps that may still be opened inside each other.
    depth: usize,
}

impl<'de> Reader<'de> {
    pub(super) const fn new(bytes: &'de [u8], depth: usize) -> Self {
        Self { rest: Rest(bytes), depth }
    }

    /// Bytes behind the value.
    #[inline]
    pub(super) const fn left(&self) -> usize {
        self.rest.0.len()
    }

    /// Opens something that holds others.
    #[inline]
    fn descend(&mut self) -> Result<(), Wrong> {
        self.depth = self.depth.saturating_sub(1);
        if self.depth == 0 { Err(Wrong("it is nested too deeply".to_owned())) } else { Ok(()) }
    }

    #[inline]
    fn text<V: de::Visitor<'de>>(&mut self, length: usize, visitor: V) -> Result<V::Value, Wrong> {
        let bytes = self.rest.take(length)?;
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
        let kind = i8::from_be_bytes(self.rest.array()?);
        let parts = [Part::Kind(kind), Part::Bytes(self.rest.take(length)?)];
        visitor.visit_newtype_struct(SeqDeserializer::new(parts.into_iter()))
    }

    /// Whatever is there. Where a list is wanted `bytes_as_list` takes bytes for one.
    #[inline]
    fn any<V: de::Visitor<'de>>(
        &mut self,
        bytes_as_list: bool,
        visitor: V,
    ) -> Result<V::Value, Wrong> {
        match self.rest.head()? {
            Head::Nil => visitor.visit_unit(),
            Head::Bool(value) => visitor.visit_bool(value),
            Head::Unsigned(value) => visitor.visit_u64(value),
            Head::Signed(value) => visitor.visit_i64(value),
            Head::Float(value) => visitor.visit_f64(value),
            Head::Text(length) => self.text(length, visitor),
            Head::Bytes(length) if bytes_as_list => {
                visitor.visit_seq(SeqDeserializer::new(self.rest.take(length)?.iter().copied()))
            }
            Head::Bytes(length) => visitor.visit_borrowed_bytes(self.rest.take(length)?),
            Head::List(length) => self.list(length, visitor),
            Head::Map(length) => self.map(length, visitor),
            Head::Extension(length) => self.extension(length, visitor),
        }
    }

    /// A text where one is expected, whatever is there otherwise: the type says what it thinks of that.
    #[inline]
    fn expect_text<V: de::Visitor<'de>>(&mut self, visitor: V) -> Result<V::Value, Wrong> {
        match self.rest.peek()? {
            short @ 0xa0..=0xbf => {
                self.rest.skip();
                self.text(usize::from(short & 0x1f), visitor)
            }
            _ => self.any(false, visitor),
        }
    }

    /// The 16 bytes of a number that is too large for 64 bits.
    fn wide(&mut self, length: usize) -> Result<[u8; 16], Wrong> {
        let bytes = self.rest.take(length)?;
        bytes.try_into().map_err(|_| Wrong("a number of 128 bits has 16 bytes".to_owned()))
    }
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
        if self.rest.peek()? == 0xc0 {
            self.rest.skip();
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
        match self.rest.peek()? {
            0x81 => {
                self.rest.skip();
                visitor.visit_enum(Variant { reader: self, holds: true })
            }
            0x80..=0x8f | 0xde | 0xdf => {
                let Head::Map(1) = self.rest.head()? else {
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
        if self.rest.peek()? == 0x90 {
            self.rest.skip();
            return visitor.visit_unit();
        }
        self.any(false, visitor)
    }

    fn deserialize_i128<V: de::Visitor<'de>>(self, visitor: V) -> Result<V::Value, Wrong> {
        let head = self.rest.head()?;
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
        let head = self.rest.head()?;
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
#[path = "read_tests.rs"]
mod tests;

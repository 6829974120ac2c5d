//! [`Value`]: the one dynamic type of the line.
//!
//! A typed `Params` becomes a map here, crosses as MessagePack, and becomes the same type again in
//! the child. No type of another crate's JSON or MessagePack library shows in our signatures.

use std::collections::BTreeMap;
use std::fmt;

use serde::de::{DeserializeOwned, MapAccess, SeqAccess, Visitor};
use serde::ser::{SerializeMap, SerializeSeq};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::codec;

/// Plain data without a fixed shape. Map keys are text.
///
/// Whole numbers are one kind: `Int` where they fit into 64 signed bits, `UInt` above, so that two
/// equal numbers are always equal values.
#[derive(Debug, Clone, PartialEq, Default)]
pub enum Value {
    /// Nothing.
    #[default]
    Null,
    /// True or false.
    Bool(bool),
    /// A whole number from `i64::MIN` to `i64::MAX`.
    Int(i64),
    /// A whole number above `i64::MAX`.
    UInt(u64),
    /// A floating point number. `NaN` cannot cross the line, since it does not equal itself.
    Float(f64),
    /// Text.
    Text(String),
    /// Raw bytes.
    Bytes(Vec<u8>),
    /// A sequence.
    List(Vec<Value>),
    /// A map with text keys, in the order of the keys.
    Map(BTreeMap<String, Value>),
}

/// A Rust value that cannot become a [`Value`], or a [`Value`] that is not of the wanted type.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ValueError(String);

impl Value {
    /// Turns any serializable value into a `Value`.
    ///
    /// # Errors
    /// When a map key is not text, or a part refuses to be serialized.
    pub fn from_typed<T: Serialize + ?Sized>(typed: &T) -> Result<Self, ValueError> {
        let bytes = codec::to_bytes(typed).map_err(|error| ValueError(error.to_string()))?;
        codec::from_bytes(&bytes).map_err(|error| ValueError(error.to_string()))
    }

    /// Turns this value into a Rust type.
    ///
    /// # Errors
    /// When a field is missing, unknown or of another type; the text names it.
    pub fn to_typed<T: DeserializeOwned>(&self) -> Result<T, ValueError> {
        let bytes = codec::to_bytes(self).map_err(|error| ValueError(error.to_string()))?;
        codec::from_bytes(&bytes).map_err(|error| ValueError(error.to_string()))
    }

    /// The path of the first part that does not equal itself (`NaN`), such as `limits.low[2]`.
    /// The empty path is the value itself.
    #[must_use]
    pub fn first_nan(&self) -> Option<String> {
        match self {
            Self::Float(number) if number.is_nan() => Some(String::new()),
            Self::List(items) => items.iter().enumerate().find_map(|(index, item)| {
                item.first_nan().map(|rest| join(&format!("[{index}]"), &rest))
            }),
            Self::Map(entries) => {
                entries.iter().find_map(|(key, item)| item.first_nan().map(|rest| join(key, &rest)))
            }
            Self::Null
            | Self::Bool(_)
            | Self::Int(_)
            | Self::UInt(_)
            | Self::Float(_)
            | Self::Text(_)
            | Self::Bytes(_) => None,
        }
    }

    /// About how many bytes of memory it takes, for bounds of queues. Reads no text.
    #[must_use]
    pub fn weight(&self) -> usize {
        let inside = match self {
            Self::Null | Self::Bool(_) | Self::Int(_) | Self::UInt(_) | Self::Float(_) => 0,
            Self::Text(text) => text.len(),
            Self::Bytes(bytes) => bytes.len(),
            Self::List(items) => items.iter().map(Self::weight).sum(),
            Self::Map(entries) => {
                let of =
                    |(key, item): (&String, &Self)| size_of::<String>() + key.len() + item.weight();
                entries.iter().map(of).sum()
            }
        };
        size_of::<Self>() + inside
    }

    /// The entry of a map, or `None` for another kind of value.
    #[must_use]
    pub fn get(&self, key: &str) -> Option<&Self> {
        if let Self::Map(entries) = self { entries.get(key) } else { None }
    }

    /// The text of a text value.
    #[must_use]
    pub fn as_text(&self) -> Option<&str> {
        if let Self::Text(text) = self { Some(text) } else { None }
    }
}

fn join(head: &str, rest: &str) -> String {
    if rest.is_empty() || rest.starts_with('[') {
        format!("{head}{rest}")
    } else {
        format!("{head}.{rest}")
    }
}

impl From<&str> for Value {
    fn from(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}

impl From<String> for Value {
    fn from(text: String) -> Self {
        Self::Text(text)
    }
}

impl Serialize for Value {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Null => serializer.serialize_unit(),
            Self::Bool(value) => serializer.serialize_bool(*value),
            Self::Int(value) => serializer.serialize_i64(*value),
            Self::UInt(value) => serializer.serialize_u64(*value),
            Self::Float(value) => serializer.serialize_f64(*value),
            Self::Text(value) => serializer.serialize_str(value),
            Self::Bytes(value) => serializer.serialize_bytes(value),
            Self::List(items) => {
                let mut list = serializer.serialize_seq(Some(items.len()))?;
                for item in items {
                    list.serialize_element(item)?;
                }
                list.end()
            }
            Self::Map(entries) => {
                let mut map = serializer.serialize_map(Some(entries.len()))?;
                for (key, item) in entries {
                    map.serialize_entry(key, item)?;
                }
                map.end()
            }
        }
    }
}

impl<'de> Deserialize<'de> for Value {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ValueVisitor)
    }
}

struct ValueVisitor;

impl<'de> Visitor<'de> for ValueVisitor {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("plain data (null, boolean, number, text, bytes, list, or map with text keys)")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_none<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        Value::deserialize(deserializer)
    }

    fn visit_newtype_struct<D: Deserializer<'de>>(self, d: D) -> Result<Value, D::Error> {
        Value::deserialize(d)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Bool(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(Value::Int(value))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(i64::try_from(value).map_or(Value::UInt(value), Value::Int))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(Value::Float(value))
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(Value::Text(value.to_owned()))
    }

    fn visit_string<E>(self, value: String) -> Result<Value, E> {
        Ok(Value::Text(value))
    }

    fn visit_bytes<E>(self, value: &[u8]) -> Result<Value, E> {
        Ok(Value::Bytes(value.to_vec()))
    }

    fn visit_byte_buf<E>(self, value: Vec<u8>) -> Result<Value, E> {
        Ok(Value::Bytes(value))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut access: A) -> Result<Value, A::Error> {
        // The peer's size hint is not trusted: the list grows as elements really arrive.
        let mut items = Vec::new();
        while let Some(item) = access.next_element()? {
            items.push(item);
        }
        Ok(Value::List(items))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut access: A) -> Result<Value, A::Error> {
        let mut entries = BTreeMap::new();
        while let Some((key, item)) = access.next_entry::<String, Value>()? {
            entries.insert(key, item);
        }
        Ok(Value::Map(entries))
    }
}

/// Raw bytes that cross as one MessagePack binary, not as a list of numbers.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct Bytes(pub Vec<u8>);

impl fmt::Debug for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Bytes({})", self.0.len())
    }
}

impl Serialize for Bytes {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_bytes(&self.0)
    }
}

impl<'de> Deserialize<'de> for Bytes {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct BytesVisitor;
        impl Visitor<'_> for BytesVisitor {
            type Value = Bytes;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("bytes")
            }
            fn visit_bytes<E>(self, value: &[u8]) -> Result<Bytes, E> {
                Ok(Bytes(value.to_vec()))
            }
            fn visit_byte_buf<E>(self, value: Vec<u8>) -> Result<Bytes, E> {
                Ok(Bytes(value))
            }
        }
        deserializer.deserialize_byte_buf(BytesVisitor)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use proptest::prelude::*;

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct Sample {
        from: u64,
        below: i64,
        ratio: f64,
        name: Option<String>,
        kinds: Vec<Kind>,
    }

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    enum Kind {
        Plain,
        Sized(u8),
        Named { a: bool },
    }

    #[test]
    fn a_typed_value_comes_back_equal() {
        let sample = Sample {
            from: u64::MAX,
            below: -3,
            ratio: 0.25,
            name: None,
            kinds: vec![Kind::Plain, Kind::Sized(3), Kind::Named { a: true }],
        };
        let value = Value::from_typed(&sample).unwrap();
        assert_eq!(value.get("from"), Some(&Value::UInt(u64::MAX)));
        assert_eq!(value.to_typed::<Sample>().unwrap(), sample);
    }

    #[test]
    fn keys_that_are_not_text_are_refused() {
        let map = BTreeMap::from([(1_u8, true)]);
        assert!(Value::from_typed(&map).is_err());
    }

    #[test]
    fn the_path_of_a_nan_is_named() {
        let value = Value::from_typed(&BTreeMap::from([("low", vec![1.0, f64::NAN])])).unwrap();
        assert_eq!(value.first_nan().as_deref(), Some("low[1]"));
        assert_eq!(Value::Float(f64::NAN).first_nan().as_deref(), Some(""));
        assert_eq!(Value::Float(1.0).first_nan(), None);
    }

    pub(crate) fn any_value() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::Bool),
            any::<i64>().prop_map(Value::Int),
            (i64::MAX as u64 + 1..).prop_map(Value::UInt),
            any::<f64>().prop_filter("NaN", |f| !f.is_nan()).prop_map(Value::Float),
            ".*".prop_map(Value::Text),
            any::<Vec<u8>>().prop_map(Value::Bytes),
        ];
        leaf.prop_recursive(4, 64, 8, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..8).prop_map(Value::List),
                prop::collection::btree_map(".*", inner, 0..8).prop_map(Value::Map),
            ]
        })
    }

    proptest! {
        #[test]
        fn every_value_survives_the_line(value in any_value()) {
            let bytes = codec::to_bytes(&value).unwrap();
            prop_assert_eq!(codec::from_bytes::<Value>(&bytes).unwrap(), value);
        }
    }
}

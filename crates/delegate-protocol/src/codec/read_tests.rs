//! What the reader makes of every kind of data, and of bytes that are none, beside what a well-known one does.

use std::collections::BTreeMap;
use std::fmt;
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

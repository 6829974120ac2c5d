//! What is written is what the specification says, what was written is read, and nothing that is read is a surprise.

use proptest::prelude::*;

use super::*;

fn call() -> Vec<u8> {
    let fields = [Field(PATH, "/a"), Field(MEMBER, "Ask"), Field(SIGNATURE, "s")];
    let mut body = Bytes::default();
    body.text("why");
    message(CALL, 7, &fields, None, &body.0)
}

/// Byte by byte, as the specification has it.
#[test]
fn a_call_is_written_as_the_specification_says() {
    let expected: &[&[u8]] = &[
        b"l\x01\x02\x01",
        &[8, 0, 0, 0],
        &[7, 0, 0, 0],
        &[39, 0, 0, 0],
        b"\x01\x01o\0\x02\0\0\0/a\0",
        &[0; 5],
        b"\x03\x01s\0\x03\0\0\0Ask\0",
        &[0; 4],
        b"\x08\x01g\0\x01s\0",
        &[0],
        b"\x03\0\0\0why\0",
    ];
    assert_eq!(call(), expected.concat());
}

#[test]
fn an_array_is_as_long_as_its_elements() {
    let mut to = Bytes::default();
    to.byte(9).array(8, |to| {
        to.part().word(1).part().word(2);
    });
    let expected = [9, 0, 0, 0, 12, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0].to_vec();
    assert_eq!(to.0, expected);
    let mut none = Bytes::default();
    none.array(8, |_| {});
    // Also an empty one is aligned.
    assert_eq!(none.0, [0; 8]);
}

#[test]
fn what_was_written_is_read() {
    let read = parse(&call()).expect("a message");
    assert_eq!((read.kind, read.number, read.answers), (CALL, 7, None));
    assert_eq!((read.text(PATH), read.text(MEMBER), read.text(ERROR_NAME)), ("/a", "Ask", ""));
    assert_eq!(read.says.as_deref(), Some("why"));
    let answer = message(ANSWER, 1, &[], Some(7), &[]);
    let read = parse(&answer).expect("a message");
    assert_eq!((read.kind, read.answers, read.says), (ANSWER, Some(7), None));
}

/// Each byte of a message changed to each of some values, and each length of it: read or not, nothing else happens.
#[test]
fn what_is_cut_short_or_changed_is_no_surprise() {
    let whole = call();
    for length in 0..whole.len() {
        assert_eq!(parse(&whole[..length]), None, "{length}");
    }
    for at in 0..whole.len() {
        for value in [0, 1, 0x7f, 0x80, 0xff] {
            let mut bytes = whole.clone();
            bytes[at] = value;
            drop(parse(&bytes));
        }
    }
    let mut head = *whole.first_chunk().expect("a head");
    head[4..8].copy_from_slice(&u32::MAX.to_le_bytes());
    assert_eq!(length(&head), None, "too long");
    head[4..8].copy_from_slice(&8_u32.to_le_bytes());
    head[8..12].fill(0);
    assert_eq!(length(&head), None, "no message has the number 0");
}

proptest! {
    #[test]
    fn any_bytes_are_read_or_not(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        drop(parse(&bytes));
    }

    #[test]
    fn any_fields_behind_a_good_head_are_read_or_not(
        fields in proptest::collection::vec(any::<u8>(), 0..96),
        body in proptest::collection::vec(any::<u8>(), 0..16),
    ) {
        let mut bytes = b"l\x02\0\x01".to_vec();
        bytes.extend(u32::try_from(body.len()).unwrap().to_le_bytes());
        bytes.extend(1_u32.to_le_bytes());
        bytes.extend(u32::try_from(fields.len()).unwrap().to_le_bytes());
        bytes.extend(&fields);
        bytes.resize(bytes.len().next_multiple_of(8), 0);
        bytes.extend(&body);
        prop_assert_eq!(length(bytes.first_chunk().unwrap()), Some(bytes.len()));
        drop(parse(&bytes));
    }

    #[test]
    fn any_texts_arrive(path in "[a-z/]{0,40}", member in "\\PC{0,40}", says in "\\PC{0,40}") {
        let mut body = Bytes::default();
        body.text(&says);
        let fields = [Field(PATH, &path), Field(MEMBER, &member), Field(SIGNATURE, "s")];
        let read = parse(&message(CALL, 3, &fields, Some(9), &body.0)).expect("a message");
        prop_assert_eq!((read.text(PATH), read.text(MEMBER)), (path.as_str(), member.as_str()));
        prop_assert_eq!((read.says, read.answers), (Some(says), Some(9)));
    }
}

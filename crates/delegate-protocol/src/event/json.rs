//! An [`Event`] as JSON, byte for byte what its derived form is, written straight: a child that works sends them by
//! the thousand, and each becomes a line of its log. What comes seldom is left to the library.

use std::collections::BTreeMap;

use serde::Serialize;

use super::Event;
use crate::codec::CodecError;
use crate::id::SubagentId;
use crate::value::Value;

/// Bytes that are looked at together; the compiler has instructions for so many.
const BLOCK: usize = 16;

impl Event {
    /// Appends the event as one JSON object. On an error `out` is as it was.
    ///
    /// # Errors
    /// When a part of it has no JSON.
    pub fn write_json(&self, out: &mut Vec<u8>) -> Result<(), CodecError> {
        let start = out.len();
        let written = write(self, out);
        if written.is_err() {
            out.truncate(start);
        }
        written.map_err(|error| CodecError(error.to_string()))
    }
}

fn write(event: &Event, out: &mut Vec<u8>) -> serde_json::Result<()> {
    match event {
        Event::Tool { child, name, preview, args } => {
            begin(out, event, *child);
            field(out, b",\"name\":", name);
            match preview {
                Some(preview) => field(out, b",\"preview\":", preview),
                None => out.extend_from_slice(b",\"preview\":null"),
            }
            out.extend_from_slice(b",\"args\":");
            value(out, args)?;
        }
        Event::Text { child, text } | Event::Thinking { child, text } => {
            begin(out, event, *child);
            field(out, b",\"text\":", text);
        }
        Event::Progress { child, summary, merged } => {
            begin(out, event, *child);
            field(out, b",\"summary\":", summary);
            out.extend_from_slice(b",\"merged\":");
            seldom(out, merged)?;
        }
        Event::SpawnRequested { .. }
        | Event::Waiting { .. }
        | Event::Start { .. }
        | Event::Warning { .. }
        | Event::Turn { .. }
        | Event::Complete { .. } => return seldom(out, event),
    }
    out.push(b'}');
    Ok(())
}

fn seldom<T: Serialize + ?Sized>(out: &mut Vec<u8>, part: &T) -> serde_json::Result<()> {
    serde_json::to_writer(out, part)
}

/// Name and child.
fn begin(out: &mut Vec<u8>, event: &Event, child: SubagentId) {
    out.extend_from_slice(b"{\"event\":\"");
    out.extend_from_slice(event.name().as_bytes());
    out.extend_from_slice(b"\",\"child\":\"");
    child.write(out);
    out.push(b'"');
}

fn field(out: &mut Vec<u8>, key: &[u8], content: &str) {
    out.extend_from_slice(key);
    text(out, content);
}

fn value(out: &mut Vec<u8>, content: &Value) -> serde_json::Result<()> {
    match content {
        Value::Null => out.extend_from_slice(b"null"),
        Value::Text(content) => text(out, content),
        Value::List(items) => list(out, items)?,
        Value::Map(entries) => map(out, entries)?,
        Value::Bool(_) | Value::Int(_) | Value::UInt(_) | Value::Float(_) | Value::Bytes(_) => {
            seldom(out, content)?;
        }
    }
    Ok(())
}

fn list(out: &mut Vec<u8>, items: &[Value]) -> serde_json::Result<()> {
    out.push(b'[');
    for (index, item) in items.iter().enumerate() {
        if index > 0 {
            out.push(b',');
        }
        value(out, item)?;
    }
    out.push(b']');
    Ok(())
}

fn map(out: &mut Vec<u8>, entries: &BTreeMap<String, Value>) -> serde_json::Result<()> {
    out.push(b'{');
    for (index, (key, item)) in entries.iter().enumerate() {
        if index > 0 {
            out.push(b',');
        }
        text(out, key);
        out.push(b':');
        value(out, item)?;
    }
    out.push(b'}');
    Ok(())
}

fn text(out: &mut Vec<u8>, content: &str) {
    out.push(b'"');
    let mut rest = content.as_bytes();
    loop {
        let (plain, special) = rest.split_at(plain(rest));
        out.extend_from_slice(plain);
        let Some((first, after)) = special.split_first() else { break };
        escape(out, *first);
        rest = after;
    }
    out.push(b'"');
}

/// Bytes at the front that stand for themselves.
fn plain(bytes: &[u8]) -> usize {
    let (blocks, _) = bytes.as_chunks::<BLOCK>();
    let clean =
        |block: &&[u8; BLOCK]| !block.iter().fold(false, |any, byte| any | is_special(*byte));
    let clean = blocks.iter().take_while(clean).count() * BLOCK;
    let rest = &bytes[clean..];
    clean + rest.iter().position(|byte| is_special(*byte)).unwrap_or(rest.len())
}

const fn is_special(byte: u8) -> bool {
    byte < 0x20 || byte == b'"' || byte == b'\\'
}

fn escape(out: &mut Vec<u8>, byte: u8) {
    let letter = match byte {
        b'"' | b'\\' => byte,
        0x08 => b'b',
        b'\t' => b't',
        b'\n' => b'n',
        0x0c => b'f',
        b'\r' => b'r',
        _ => {
            let digit = |half: u8| b"0123456789abcdef"[usize::from(half)];
            return out.extend_from_slice(&[
                b'\\',
                b'u',
                b'0',
                b'0',
                digit(byte >> 4),
                digit(byte & 0x0f),
            ]);
        }
    };
    out.extend_from_slice(&[b'\\', letter]);
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::event::{ChildEvent, Limit};
    use crate::value::tests::any_value;

    fn written(event: &Event) -> String {
        let mut out = b"before".to_vec();
        event.write_json(&mut out).unwrap();
        String::from_utf8(out).unwrap()[6..].to_owned()
    }

    /// Letters of every kind that JSON treats in its own way, and long stretches that it does not.
    fn any_text() -> impl Strategy<Value = String> {
        prop::collection::vec(
            prop_oneof![any::<char>(), prop::char::range('\0', '\u{7f}'), Just('x'), Just('"')],
            0..80,
        )
        .prop_map(|letters| letters.into_iter().collect())
    }

    #[test]
    fn every_byte_is_written_as_the_library_writes_it() {
        let child = SubagentId::new(u32::MAX, 0xab);
        let all: String = (0..=0x7f_u8).map(char::from).collect();
        for at in 0..2 * BLOCK {
            let text = format!("{}{all}é€😀", "x".repeat(at));
            let event = Event::Text { child, text };
            assert_eq!(written(&event), serde_json::to_string(&event).unwrap());
        }
        let seldom = Event::Warning { child, about: Limit::Run, text: all };
        assert_eq!(written(&seldom), serde_json::to_string(&seldom).unwrap());
    }

    proptest! {
        #[test]
        fn events_are_written_as_the_library_writes_them(
            ids: (u32, u32),
            texts in (any_text(), any_text()),
            preview in prop::option::of(any_text()),
            args in any_value(),
            merged: u64,
        ) {
            let child = SubagentId::new(ids.0, ids.1);
            let (name, text) = texts;
            let events = [
                ChildEvent::Tool { name, preview, args, id: None, args_bytes: 0 },
                ChildEvent::Text { text: text.clone() },
                ChildEvent::Thinking { text: text.clone() },
                ChildEvent::Progress { summary: text, merged },
            ];
            for event in events.into_iter().filter_map(|event| event.of(child)) {
                prop_assert_eq!(written(&event), serde_json::to_string(&event).unwrap());
            }
        }
    }
}

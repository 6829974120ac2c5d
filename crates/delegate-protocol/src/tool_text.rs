//! What a tool was called with and what it gave, in short and without a secret: [`result`] and
//! [`input_summary`], for the trace and the output tail of an entry. Pure; `delegate-child` asks.

use std::borrow::Cow;
use std::collections::BTreeMap;

use crate::outcome::InputSummary;
use crate::value::Value;

/// Names of arguments that a summary lists.
pub const MAX_KEYS: usize = 16;

/// Targets that a summary lists.
pub const MAX_TARGETS: usize = 4;

/// Characters of one name or target.
pub const TARGET_CHARS: usize = 200;

/// Arguments that say what a tool works on.
const TARGETS: [&str; 12] = [
    "path",
    "file_path",
    "file",
    "filename",
    "directory",
    "dir",
    "cwd",
    "url",
    "uri",
    "urls",
    "paths",
    "files",
];

/// Words of `status` that mean a failure.
const FAILED: [&str; 4] = ["error", "failed", "failure", "timeout"];

/// Beginnings of a first line that mean a failure. The mere word "error" in a text does not.
const MARKS: [&str; 4] = ["error:", "failed:", "traceback ", "exception:"];

/// What a tool gave: its text, and whether that text tells of a failure.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ToolText {
    /// Content blocks are flattened; anything else that is no text is JSON.
    pub text: String,
    /// It tells of a failure.
    pub is_error: bool,
}

/// Reads what a tool gave, in any of the shapes that agent loops have: a text, content blocks, an object.
#[must_use]
pub fn result(result: &Value) -> ToolText {
    let text = flatten(result);
    let is_error = match result {
        Value::Map(_) => map_tells_error(result) || tells_error(&text),
        Value::Null
        | Value::Bool(_)
        | Value::Int(_)
        | Value::UInt(_)
        | Value::Float(_)
        | Value::Text(_)
        | Value::Bytes(_)
        | Value::List(_) => tells_error(&text),
    };
    ToolText { text: text.into_owned(), is_error }
}

/// Whether the text of a tool tells of a failure: a JSON object with a truthy `error`, or with one of the
/// failure words as its `status`; or a first line that begins with an error mark, in any case.
#[must_use]
pub fn tells_error(text: &str) -> bool {
    let text = text.trim_start();
    if text.starts_with('{') {
        return serde_json::from_str(text).is_ok_and(|value| map_tells_error(&value));
    }
    MARKS
        .iter()
        .any(|mark| text.get(..mark.len()).is_some_and(|head| head.eq_ignore_ascii_case(mark)))
}

fn map_tells_error(value: &Value) -> bool {
    let failed = |status: &str| FAILED.iter().any(|word| status.trim().eq_ignore_ascii_case(word));
    value.get("error").is_some_and(is_truthy)
        || value.get("status").and_then(Value::as_text).is_some_and(failed)
}

fn is_truthy(value: &Value) -> bool {
    match value {
        Value::Null => false,
        Value::Bool(value) => *value,
        Value::Int(value) => *value != 0,
        Value::UInt(value) => *value != 0,
        Value::Float(value) => *value != 0.0,
        Value::Text(text) => !text.is_empty(),
        Value::Bytes(bytes) => !bytes.is_empty(),
        Value::List(items) => !items.is_empty(),
        Value::Map(entries) => !entries.is_empty(),
    }
}

/// The text of a result: that of its blocks, a line each.
fn flatten(value: &Value) -> Cow<'_, str> {
    match value {
        Value::Null => Cow::Borrowed(""),
        Value::Text(text) => Cow::Borrowed(text),
        Value::List(items) => {
            let texts: Vec<_> = items.iter().map(block).collect();
            Cow::Owned(texts.join("\n"))
        }
        Value::Map(entries) => match entries.get("content") {
            Some(content @ (Value::List(_) | Value::Text(_))) if !map_tells_error(value) => {
                flatten(content)
            }
            _ => Cow::Owned(json(value)),
        },
        Value::Bytes(bytes) => Cow::Owned(format!("[{} bytes]", bytes.len())),
        Value::Bool(_) | Value::Int(_) | Value::UInt(_) | Value::Float(_) => {
            Cow::Owned(json(value))
        }
    }
}

/// One block. What is no text (an image) is named by its type, never shown raw.
fn block(value: &Value) -> Cow<'_, str> {
    let Value::Map(entries) = value else { return flatten(value) };
    match (entries.get("text"), entries.get("content"), entries.get("type")) {
        (Some(Value::Text(text)), _, _) => Cow::Borrowed(text),
        (_, Some(content @ (Value::Text(_) | Value::List(_))), _) => flatten(content),
        (_, _, Some(Value::Text(kind))) if kind != "text" => {
            Cow::Owned(format!("[{}]", kind.chars().take(TARGET_CHARS).collect::<String>()))
        }
        _ => Cow::Owned(json(value)),
    }
}

fn json(value: &Value) -> String {
    serde_json::to_string(value).unwrap_or_default()
}

/// What a tool was called with: the names of its arguments, and what it works on. Values of other
/// arguments are not in it.
#[must_use]
pub fn input_summary(args: &Value) -> InputSummary {
    let Value::Map(entries) = args else { return InputSummary::default() };
    InputSummary {
        argument_keys: entries.keys().take(MAX_KEYS).map(|key| short(key)).collect(),
        targets: targets(entries),
    }
}

fn targets(entries: &BTreeMap<String, Value>) -> Vec<String> {
    let named = TARGETS.iter().filter_map(|key| entries.get(*key));
    let texts = named.flat_map(|value| match value {
        Value::List(items) => items.iter().filter_map(Value::as_text).collect(),
        Value::Text(text) => vec![text.as_str()],
        Value::Null
        | Value::Bool(_)
        | Value::Int(_)
        | Value::UInt(_)
        | Value::Float(_)
        | Value::Bytes(_)
        | Value::Map(_) => Vec::new(),
    });
    texts.take(MAX_TARGETS).map(|text| short(&without_credentials(text))).collect()
}

fn short(text: &str) -> String {
    text.chars()
        .take(TARGET_CHARS)
        .map(|letter| if letter.is_control() { ' ' } else { letter })
        .collect()
}

/// An address without name, password, query and fragment, any of which may hold a key; a path as it is.
#[must_use]
pub fn without_credentials(target: &str) -> String {
    let Some((scheme, rest)) = target.split_once("://") else { return target.to_owned() };
    let rest = rest.split(['?', '#']).next().unwrap_or_default();
    let (host, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
    format!("{scheme}://{}{path}", host.rsplit('@').next().unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(json: &str) -> Value {
        serde_json::from_str(json).unwrap()
    }

    #[test]
    fn m050_an_error_is_told_by_an_object_or_by_the_first_line_and_by_nothing_else() {
        for text in [
            "Error: no such file",
            "  FAILED: 3 of 4",
            "traceback (most recent call last):\n  x",
            "Exception: é",
            r#"{"error": "gone"}"#,
            r#"{"error": 1, "status": "ok"}"#,
            r#"{"status": "Timeout"}"#,
            r#"{"status": "failure"}"#,
        ] {
            assert!(tells_error(text), "{text}");
        }
        for text in [
            "",
            "no error: all is well",
            "errors were fixed",
            "all good\nerror: in the second line",
            r#"{"error": null}"#,
            r#"{"error": "", "status": "done"}"#,
            r#"{"error": [], "status": 500}"#,
            r#"{"error": "unfinished"#,
            r#"["error"]"#,
            "tracebacks are rare",
            "errör",
        ] {
            assert!(!tells_error(text), "{text}");
        }
    }

    #[test]
    fn m049_blocks_are_flattened_to_text_and_an_error_inside_one_is_seen() {
        let good = result(&value(
            r#"[{"type":"text","text":"one"},{"type":"image","data":"AAAA"},"two"]"#,
        ));
        assert_eq!(good, ToolText { text: "one\n[image]\ntwo".to_owned(), is_error: false });
        let bad = result(&value(r#"[{"type":"text","text":"{\"error\":\"boom\"}"}]"#));
        assert_eq!(bad, ToolText { text: "{\"error\":\"boom\"}".to_owned(), is_error: true });
        let nested = result(&value(r#"{"content":[{"type":"text","text":"Error: deep"}]}"#));
        assert_eq!(nested, ToolText { text: "Error: deep".to_owned(), is_error: true });
        for text in [&good.text, &bad.text, &nested.text] {
            assert!(!text.contains("type"), "{text}");
        }
        assert!(result(&value(r#"{"error":"x","content":"fine"}"#)).is_error);
        assert_eq!(result(&Value::Null), ToolText { text: String::new(), is_error: false });
        assert_eq!(result(&Value::Bytes(vec![1, 2])).text, "[2 bytes]");
    }

    #[test]
    fn a_summary_names_arguments_and_targets_and_shows_no_other_value() {
        let args = value(
            r#"{"path":"/a/b","content":"secret","url":"https://u:hush@h:1/p?key=hush#hush","n":3}"#,
        );
        let summary = input_summary(&args);
        assert_eq!(summary.argument_keys, ["content", "n", "path", "url"]);
        assert_eq!(summary.targets, ["/a/b", "https://h:1/p"]);
        let files = value(r#"{"files":["1","2","3","4","5"]}"#);
        assert_eq!(input_summary(&files).targets.len(), MAX_TARGETS);
        assert_eq!(input_summary(&Value::Int(7)), InputSummary::default());
        let long = Value::Map(BTreeMap::from([("path".to_owned(), "é".repeat(999).into())]));
        assert_eq!(input_summary(&long).targets[0].chars().count(), TARGET_CHARS);
    }
}

//! YAML text as a tree of nodes that know their place, which `layer` (settings) and the batch file
//! of [`crate::plan`] walk.
//!
//! Strict where YAML is lax: booleans are `true` and `false` only, `010` and `1_000` are text, a
//! key that appears twice is an error at its second place, and a map key is text.

use std::fmt;
use std::path::Path;

use delegate_protocol::Value;
use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_saphyr::Spanned;
use serde_saphyr::options::NonFiniteFloatPolicy;

use super::diagnostic::{Diagnostic, SourceLine};

/// Largest text that is read at all, in bytes. A batch of 100,000 tasks with a page of text each
/// fits; a disk image given by mistake does not.
pub(crate) const MAX_TEXT: usize = 256 << 20;

/// Deepest nesting. Enough for any parameters that a person writes, and far from the end of a 2 MiB
/// stack.
const MAX_DEPTH: usize = 64;

/// What aliases may repeat in one text: at most this many nodes, each text of them at most this
/// long. Together 256 MiB, as much as the largest text itself, and that only for somebody who
/// writes such a file on purpose.
const MAX_REPEATED_NODES: usize = 256 << 10;
const MAX_REPEATED_TEXT: usize = 1 << 10;

/// Where something stands; lines and columns count from 1, columns in characters. Line 0 is
/// "unknown".
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Place {
    pub(crate) line: u32,
    pub(crate) column: u32,
    /// Characters that it takes, as far as that is known.
    pub(crate) width: u32,
}

/// A value and its place.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Node {
    pub(crate) kind: Kind,
    pub(crate) place: Place,
}

/// What a node is.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Kind {
    /// Null, a boolean, a number or text.
    Scalar(Value),
    List(Vec<Node>),
    /// In the order of the file, without duplicates.
    Map(Vec<(Key, Node)>),
}

/// The key of a map entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Key {
    pub(crate) text: String,
    pub(crate) place: Place,
}

impl Node {
    /// What messages call this kind of value, with a short value shown.
    pub(crate) fn describe(&self) -> String {
        match &self.kind {
            Kind::Scalar(Value::Null) => "nothing".to_owned(),
            Kind::Scalar(Value::Bool(value)) => format!("the boolean {value}"),
            Kind::Scalar(Value::Int(value)) => format!("the number {value}"),
            Kind::Scalar(Value::UInt(value)) => format!("the number {value}"),
            Kind::Scalar(Value::Float(value)) => format!("the number {value:?}"),
            Kind::Scalar(Value::Text(text)) => format!("the text `{}`", super::shorten(text, 40)),
            Kind::List(_) | Kind::Scalar(Value::List(_)) => "a list".to_owned(),
            Kind::Map(_) | Kind::Scalar(Value::Map(_)) => "a map".to_owned(),
            Kind::Scalar(Value::Bytes(_)) => "bytes".to_owned(),
        }
    }

    /// A fault for one that stands where a map is wanted. A whole file of text is not shown: one with nothing but a key
    /// in it reads so.
    pub(crate) fn no_map(&self, source: Source<'_>, wanted: &str) -> Diagnostic {
        let is_text = matches!(self.kind, Kind::Scalar(Value::Text(_))) && self.place.column <= 1;
        let held = if is_text { "a text".to_owned() } else { self.describe() };
        let mut fault = source.fault("wrong_type", self.place, format!("{wanted}, not {held}"));
        fault.source = fault.source.filter(|_| !is_text);
        fault
    }

    /// Whether it is null or missing.
    pub(crate) const fn is_null(&self) -> bool {
        matches!(self.kind, Kind::Scalar(Value::Null))
    }

    /// The same data without places.
    pub(crate) fn into_value(self) -> Value {
        match self.kind {
            Kind::Scalar(value) => value,
            Kind::List(items) => Value::List(items.into_iter().map(Self::into_value).collect()),
            Kind::Map(entries) => Value::Map(
                entries.into_iter().map(|(key, node)| (key.text, node.into_value())).collect(),
            ),
        }
    }
}

/// A text and what messages call it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Source<'a> {
    /// `None` when the text is a variable or a flag.
    pub(crate) file: Option<&'a Path>,
    pub(crate) text: &'a str,
}

impl Source<'_> {
    /// A fault at a place of this text.
    pub(crate) fn fault(&self, code: &'static str, place: Place, message: String) -> Diagnostic {
        let mut fault = Diagnostic { code, message, ..Diagnostic::default() };
        fault.file = self.file.map(Path::to_owned);
        if self.file.is_some() && place.line > 0 {
            fault.line = Some(place.line);
            fault.column = Some(place.column.max(1));
            let width = place.width.max(1);
            fault.source = self.line(place.line).map(|text| Box::new(SourceLine { text, width }));
        }
        fault
    }

    /// A line by its number, without its end. A message may end in a log: one that names a key, or stands below one
    /// that does, is not shown.
    fn line(&self, number: u32) -> Option<String> {
        let index = usize::try_from(number).ok()?.checked_sub(1)?;
        // The lines around the present one, outermost first: how far each is indented, and whether it names a key.
        let mut around: Vec<(usize, bool)> = Vec::new();
        for (at, line) in self.lines().enumerate() {
            if !line.trim().is_empty() {
                let own = indent(line);
                around.truncate(around.partition_point(|(indent, _)| *indent < own));
                around.push((own, names_key(line)));
            }
            if at == index {
                let shown = !around.iter().any(|(_, names_key)| *names_key);
                return shown.then(|| line.to_owned());
            }
        }
        None
    }

    /// YAML ends a line with LF, CR LF or CR.
    fn lines(&self) -> impl Iterator<Item = &str> {
        let ended = self.text.split('\n');
        ended.flat_map(|line| line.strip_suffix('\r').unwrap_or(line).split('\r'))
    }
}

/// Names of what is secret, for those that were meant.
const SECRETS: [&str; 7] =
    ["api_key", "api_token", "token", "secret", "password", "authorization", "credentials"];

/// Whether a line names a key, or what may have been meant as one, or has an address with a password in it, or a value that
/// has a name (`&name`): then it may be the value of a key elsewhere.
fn names_key(line: &str) -> bool {
    let in_name = |c: char| c.is_alphanumeric() || c == '_' || c == '-';
    let authority = |rest: &str| rest.split(['/', '?', '#', '\'', '"']).next()?.rfind('@');
    let mut before = ' ';
    let has_anchor = line.chars().any(|c| {
        let starts = before == '&' && in_name(c);
        before = c;
        starts
    });
    let meant = |name: &str| name.len() > 3 && super::nearest::nearest(name, SECRETS).is_some();
    has_anchor
        || line
            .split(|c| !in_name(c))
            .any(|name| delegate_protocol::routing::is_secret_name(name) || meant(name))
        || line.split("://").skip(1).any(|rest| authority(rest).is_some())
}

/// How far a line is indented. An entry of a list may stand as far to the left as the key that has it.
fn indent(line: &str) -> usize {
    let rest = line.trim_start_matches(' ');
    2 * (line.len() - rest.len()) + usize::from(rest.starts_with('-'))
}

/// Parses one document. An empty text is null.
///
/// # Errors
/// `not_yaml`, `duplicate_key`, `wrong_type` (a key that is not text) or `too_large`, with place.
pub(crate) fn parse(source: Source<'_>) -> Result<Node, Diagnostic> {
    if source.text.len() > MAX_TEXT {
        let message =
            format!("the text has {} bytes; at most {MAX_TEXT} are read", source.text.len());
        return Err(source.fault("too_large", Place::default(), message));
    }
    if is_blank(source.text) {
        return Ok(Node {
            kind: Kind::Scalar(Value::Null),
            place: Place { line: 1, column: 1, width: 1 },
        });
    }
    serde_saphyr::from_str_with_options(source.text, options())
        .map_err(|error| to_diagnostic(source, &error))
}

/// Only blank lines and comments; told apart here because "no document" has no place.
fn is_blank(text: &str) -> bool {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    text.lines().all(|line| {
        let line = line.trim();
        line.is_empty() || line.starts_with('#')
    })
}

fn options() -> serde_saphyr::Options {
    // A text has fewer nodes, events and bytes of scalars than it has bytes, and its size is already
    // capped; only what aliases repeat needs a limit of its own.
    serde_saphyr::options! {
        budget: serde_saphyr::budget! {
            max_events: usize::MAX,
            max_nodes: usize::MAX,
            max_total_scalar_bytes: usize::MAX,
            max_total_comment_bytes: usize::MAX,
            max_depth: MAX_DEPTH,
            flow_nesting_limit: MAX_DEPTH,
        },
        alias_limits: serde_saphyr::alias_limits! {
            max_total_replayed_events: MAX_REPEATED_NODES,
            max_replay_stack_depth: 16,
        },
        emit_comments: false,
        strict_booleans: true,
        leading_zero_numbers_as_strings: true,
        underscored_numbers_as_strings: true,
        non_finite_float_policy: NonFiniteFloatPolicy::PassThrough,
        with_snippet: false,
    }
}

fn to_diagnostic(source: Source<'_>, error: &serde_saphyr::Error) -> Diagnostic {
    let place = error.location().map(Place::from).unwrap_or_default();
    let error = error.without_snippet();
    if let serde_saphyr::Error::DuplicateMappingKey { key, .. } = error {
        let key = key.as_deref().unwrap_or_default();
        let message = format!("the key `{}` is set twice", super::shorten(key, 60));
        let fault = source.fault("duplicate_key", place, message);
        return fault.hint("remove one of the two");
    }
    let text = error.to_string();
    if let Some((place, reason)) = Refusal::read(&text) {
        return source.fault("wrong_type", place, reason.to_owned());
    }
    // The place is told by the diagnostic itself.
    let text = text.split(" at line ").next().unwrap_or_default().trim_end();
    source.fault("not_yaml", place, format!("not valid YAML: {text}"))
}

/// Valid YAML that we do not take. An error of ours has no place of its own in this parser, so the
/// place travels in its text.
struct Refusal;

impl Refusal {
    /// Printable, since the parser escapes what is not.
    const MARK: &str = "⟨refused⟩";

    fn error<E: serde::de::Error>(place: Place, reason: &str) -> E {
        let mark = Self::MARK;
        let Place { line, column, width } = place;
        E::custom(format_args!("{mark}{line}{mark}{column}{mark}{width}{mark}{reason}{mark}"))
    }

    fn read(text: &str) -> Option<(Place, &str)> {
        let mut parts = text.split(Self::MARK).skip(1);
        let mut number = || parts.next()?.parse().ok();
        let place = Place { line: number()?, column: number()?, width: number()? };
        Some((place, parts.next()?))
    }
}

impl From<serde_saphyr::Location> for Place {
    fn from(location: serde_saphyr::Location) -> Self {
        let number = |value: u64| u32::try_from(value).unwrap_or(u32::MAX);
        Self {
            line: number(location.line()),
            column: number(location.column()),
            width: number(location.span().len()),
        }
    }
}

impl<'de> Deserialize<'de> for Node {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let spanned = Spanned::<Kind>::deserialize(deserializer)?;
        let node = Self { kind: spanned.value, place: spanned.referenced.into() };
        let repeated = spanned.referenced != spanned.defined;
        if repeated
            && matches!(&node.kind, Kind::Scalar(Value::Text(text)) if text.len() > MAX_REPEATED_TEXT)
        {
            let reason = format!("an alias repeats a text of more than {MAX_REPEATED_TEXT} bytes");
            return Err(Refusal::error(node.place, &reason));
        }
        Ok(node)
    }
}

impl<'de> Deserialize<'de> for Kind {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(KindVisitor)
    }
}

struct KindVisitor;

impl<'de> Visitor<'de> for KindVisitor {
    type Value = Kind;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("plain data (null, boolean, number, text, list, or map with text keys)")
    }

    fn visit_unit<E>(self) -> Result<Kind, E> {
        Ok(Kind::Scalar(Value::Null))
    }

    fn visit_none<E>(self) -> Result<Kind, E> {
        Ok(Kind::Scalar(Value::Null))
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Kind, D::Error> {
        Kind::deserialize(deserializer)
    }

    fn visit_newtype_struct<D: Deserializer<'de>>(self, d: D) -> Result<Kind, D::Error> {
        Kind::deserialize(d)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Kind, E> {
        Ok(Kind::Scalar(Value::Bool(value)))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Kind, E> {
        Ok(Kind::Scalar(Value::Int(value)))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Kind, E> {
        Ok(Kind::Scalar(i64::try_from(value).map_or(Value::UInt(value), Value::Int)))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Kind, E> {
        Ok(Kind::Scalar(Value::Float(value)))
    }

    fn visit_str<E>(self, value: &str) -> Result<Kind, E> {
        Ok(Kind::Scalar(Value::Text(value.to_owned())))
    }

    fn visit_string<E>(self, value: String) -> Result<Kind, E> {
        Ok(Kind::Scalar(Value::Text(value)))
    }

    fn visit_bytes<E>(self, value: &[u8]) -> Result<Kind, E> {
        Ok(Kind::Scalar(Value::Bytes(value.to_vec())))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut access: A) -> Result<Kind, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = access.next_element()? {
            items.push(item);
        }
        Ok(Kind::List(items))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut access: A) -> Result<Kind, A::Error> {
        let mut entries = Vec::new();
        while let Some(key) = access.next_key::<Node>()? {
            let Kind::Scalar(Value::Text(text)) = key.kind else {
                let reason = "a map key must be text; put it in quotes";
                return Err(Refusal::error(key.place, reason));
            };
            entries.push((Key { text, place: key.place }, access.next_value()?));
        }
        Ok(Kind::Map(entries))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn read(text: &str) -> Result<Node, Diagnostic> {
        parse(Source { file: Some(Path::new("f.yaml")), text })
    }

    fn fault(text: &str) -> String {
        read(text).unwrap_err().render(false)
    }

    #[test]
    fn every_node_and_key_knows_its_place() {
        let node = read("# é\na:\n  - 1\n  - {x: yes, y: true}\n").unwrap();
        let Kind::Map(entries) = node.kind else { panic!("a map") };
        assert_eq!(
            entries[0].0,
            Key { text: "a".into(), place: Place { line: 2, column: 1, width: 1 } }
        );
        let Kind::List(items) = &entries[0].1.kind else { panic!("a list") };
        assert_eq!(items[0].place, Place { line: 3, column: 5, width: 1 });
        let Kind::Map(inner) = &items[1].kind else { panic!("a map") };
        assert_eq!(inner[0].1.kind, Kind::Scalar(Value::Text("yes".into())));
        assert_eq!(inner[1].0.place, Place { line: 4, column: 14, width: 1 });
        assert_eq!(inner[1].1.kind, Kind::Scalar(Value::Bool(true)));
    }

    #[test]
    fn scalars_are_strict() {
        for (text, value) in [
            ("", Value::Null),
            ("# only a comment\n", Value::Null),
            ("---\n", Value::Null),
            ("~", Value::Null),
            ("no", Value::from("no")),
            ("On", Value::from("On")),
            ("010", Value::from("010")),
            ("1_000", Value::from("1_000")),
            ("'1'", Value::from("1")),
            ("12", Value::Int(12)),
            ("18446744073709551615", Value::UInt(u64::MAX)),
            ("1e3", Value::Float(1000.0)),
        ] {
            assert_eq!(read(text).unwrap().into_value(), value, "{text:?}");
        }
        assert_eq!(read(".nan").unwrap().into_value().first_nan().as_deref(), Some(""));
    }

    #[test]
    fn a_duplicate_key_is_told_at_its_second_place() {
        assert_eq!(
            fault("a: 1\nb: 2\na: 3\n"),
            "error: the key `a` is set twice\n --> f.yaml:3:1\n3 | a: 3\n  | ^ remove one of the two\n"
        );
    }

    #[test]
    fn a_key_that_is_not_text_is_told_at_its_place() {
        assert_eq!(
            fault("a:\n  1: x\n"),
            "error: a map key must be text; put it in quotes\n --> f.yaml:2:3\n2 |   1: x\n  |   ^\n"
        );
        assert!(fault("? [a]\n: 1\n").contains("f.yaml:1:3"), "{}", fault("? [a]\n: 1\n"));
    }

    #[test]
    fn what_is_not_yaml_is_told_with_its_place() {
        for text in ["a: [1\n", "a: b: c\n", "a: 'x\n", "a: *nowhere\n", "a: 1\n---\nb: 2\n"] {
            let error = read(text).unwrap_err();
            assert_eq!(error.code, "not_yaml", "{text:?}: {error:?}");
            assert!(error.line.is_some(), "{text:?}: {error:?}");
            assert!(!error.message.contains("line"), "{text:?}: {error:?}");
        }
    }

    #[test]
    fn nesting_and_aliases_are_bounded() {
        let deep = "[".repeat(100_000);
        assert_eq!(read(&deep).unwrap_err().code, "not_yaml");
        let mut bomb = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n".to_owned();
        for level in 1..12 {
            let item = format!("*a{}", level - 1);
            bomb.push_str(&format!("a{level}: &a{level} [{}]\n", [item.as_str(); 10].join(", ")));
        }
        assert_eq!(read(&bomb).unwrap_err().code, "not_yaml");
        let long = "x".repeat(MAX_REPEATED_TEXT + 1);
        for text in
            ["a: &a LONG\nb: *a\n", "a: &a [{x: LONG}]\nb: *a\n", "a: &a {x: LONG}\nb: {<<: *a}\n"]
        {
            let error = read(&text.replace("LONG", &long)).unwrap_err();
            assert_eq!((error.code, error.line), ("wrong_type", Some(2)), "{text}: {error:?}");
            assert!(read(&text.replace("LONG", "short")).is_ok(), "{text}");
        }
        assert!(read("a: &a {x: 1}\nb: *a\nc: {<<: *a, y: 2}\n").is_ok());
    }

    proptest! {
        #[test]
        fn no_text_makes_it_panic(text in "(?s)[-a-c:&*\\[\\]{},'\"#|>!?% \n\t\r\u{feff}\u{1b}é0-9.]{0,60}") {
            let _fault = read(&text).map_err(|error| error.render(true));
        }

        #[test]
        fn no_text_at_all_makes_it_panic(text in any::<String>()) {
            let _fault = read(&text).map_err(|error| error.render(false));
        }
    }
}

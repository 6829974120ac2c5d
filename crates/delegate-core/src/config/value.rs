//! One value against its row of the table: [`check`] is the only way to a [`Typed`] value.

use std::collections::BTreeMap;
use std::time::Duration;

use delegate_protocol::{ApiKey, Fallback, Value};

use super::keys::{EFFORTS, KeyInfo, MEMORY, MOST_MONEY, Type};
use super::yaml::{self, Kind, Node, Source};
use super::{
    AtStart, CallLimits, LauncherWish, OnStale, Overflow, PoolStrategy, ProcessIsolation, bytes,
    did_you_mean, duration, pools,
};
use ownership::Containment;

/// A checked value.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Typed {
    Nothing,
    Isolation(ProcessIsolation),
    Flag(bool),
    Count(u64),
    Money(f64),
    Time(Duration),
    OnStale(OnStale),
    AtStart(AtStart),
    Overflow(Overflow),
    Containment(Containment),
    Launcher(LauncherWish),
    Command(Vec<String>),
    Text(String),
    Secret(ApiKey),
    Effort(&'static str),
    Overrides(BTreeMap<String, Value>),
    Fallbacks(Vec<Fallback>),
    Strategies(BTreeMap<String, PoolStrategy>),
    Limits(BTreeMap<String, CallLimits>),
    Helpers(BTreeMap<String, Vec<String>>),
}

/// A value that does not fit its key.
#[derive(Debug)]
pub(crate) struct Wrong {
    pub(crate) code: &'static str,
    pub(crate) message: String,
    pub(crate) hint: Option<String>,
}

/// Checks a value. `is_twin` says that the key was named without `_seconds`; `label` is what the
/// message calls it.
pub(crate) fn check(
    info: &KeyInfo,
    is_twin: bool,
    label: &str,
    node: &Node,
) -> Result<Typed, Wrong> {
    let question = Question { info, is_twin, label, node };
    match (info.kind, &node.kind) {
        (kind, Kind::Scalar(Value::Null)) if is_optional(kind) => Ok(Typed::Nothing),
        (Type::Isolation, Kind::Scalar(value)) => question.isolation(value),
        (Type::Flag, Kind::Scalar(Value::Bool(on))) => Ok(Typed::Flag(*on)),
        (Type::Count { min, max, .. }, Kind::Scalar(value)) => question.count(value, min, max),
        (Type::Money, Kind::Scalar(value)) => question.money(value),
        (Type::Bytes, Kind::Scalar(value)) => question.bytes(value),
        (Type::Seconds { min, .. }, Kind::Scalar(value)) if is_twin => question.text(value, min),
        (Type::Seconds { min, .. }, Kind::Scalar(value)) => question.seconds(value, min),
        (Type::OnStale, Kind::Scalar(Value::Text(word))) => question.on_stale(word),
        (Type::AtStart, Kind::Scalar(Value::Text(word))) => question.at_start(word),
        (Type::Overflow, Kind::Scalar(Value::Text(word))) => question.overflow(word),
        (Type::Containment, Kind::Scalar(Value::Text(word))) => question.containment(word),
        (Type::Launcher, Kind::Scalar(Value::Text(word))) => question.launcher(word),
        (Type::Command, Kind::List(items)) => question.command(items),
        (
            Type::Text | Type::Word | Type::Url | Type::Secret | Type::Path,
            Kind::Scalar(Value::Text(text)),
        ) => question.trimmed(text),
        (Type::Effort, Kind::Scalar(value)) => question.effort(value),
        (Type::Overrides, Kind::Map(_)) => question.overrides(),
        (Type::Fallbacks, Kind::List(items)) => question.fallbacks(items),
        (Type::Strategies, Kind::Map(entries)) => {
            pools::strategies(entries).map(Typed::Strategies).map_err(|fault| question.entry(fault))
        }
        (Type::Limits, Kind::Map(entries)) => {
            pools::limits(entries).map(Typed::Limits).map_err(|fault| question.entry(fault))
        }
        (Type::Helpers, Kind::Map(entries)) => question.helpers(entries),
        (_, Kind::Scalar(_) | Kind::List(_) | Kind::Map(_)) => Err(question.wrong_type(None)),
    }
}

const fn is_optional(kind: Type) -> bool {
    match kind {
        Type::Isolation
        | Type::Command
        | Type::Text
        | Type::Word
        | Type::Url
        | Type::Secret
        | Type::Effort
        | Type::Overrides
        | Type::Money
        | Type::Bytes
        | Type::Path
        | Type::Strategies
        | Type::Limits
        | Type::Helpers
        | Type::Fallbacks => true,
        Type::Count { optional, .. } | Type::Seconds { optional, .. } => optional,
        Type::Flag
        | Type::OnStale
        | Type::AtStart
        | Type::Overflow
        | Type::Containment
        | Type::Launcher => false,
    }
}

/// What is asked of one value.
pub(super) struct Question<'a> {
    pub(super) info: &'a KeyInfo,
    pub(super) is_twin: bool,
    pub(super) label: &'a str,
    pub(super) node: &'a Node,
}

#[expect(clippy::wildcard_enum_match_arm, reason = "any other kind of value is the same fault")]
impl Question<'_> {
    fn wrong(&self, code: &'static str, wanted: &str, hint: Option<String>) -> Wrong {
        let Self { info, label, node, .. } = self;
        // What was typed for a key may be the key.
        let held = if info.kind == Type::Secret { "this".to_owned() } else { node.describe() };
        let message = format!("{label} must be {wanted}, not {held}");
        let hint = hint.or_else(|| Some(format!("{} Default: {}", info.about, info.default)));
        Wrong { code, message, hint }
    }

    pub(super) fn wrong_type(&self, hint: Option<String>) -> Wrong {
        let unquote = || {
            let Kind::Scalar(Value::Text(text)) = &self.node.kind else { return None };
            reads_as_other(text).then(|| "write it without quotes".to_owned())
        };
        self.wrong("wrong_type", &self.wanted(), hint.or_else(unquote))
    }

    fn out_of_range(&self) -> Wrong {
        self.wrong("out_of_range", &self.wanted(), None)
    }

    fn wanted(&self) -> String {
        if self.is_twin {
            format!("a duration such as {}", duration::EXAMPLES)
        } else {
            self.info.kind.to_string()
        }
    }

    fn isolation(&self, value: &Value) -> Result<Typed, Wrong> {
        match value {
            Value::Bool(true) => Ok(Typed::Isolation(ProcessIsolation::On)),
            Value::Bool(false) => Ok(Typed::Isolation(ProcessIsolation::Off)),
            Value::Text(word) if word == "auto" => Ok(Typed::Isolation(ProcessIsolation::Auto)),
            Value::Text(word) if !reads_as_other(word) => {
                let hint = did_you_mean(word, ["false", "true", "auto"]);
                Err(self.wrong("unknown_word", &self.wanted(), hint))
            }
            _ => Err(self.wrong_type(None)),
        }
    }

    fn containment(&self, word: &str) -> Result<Typed, Wrong> {
        word.parse().map(Typed::Containment).map_err(|_| {
            let hint = did_you_mean(word, Containment::ALL.map(Containment::word));
            self.wrong("unknown_word", &self.wanted(), hint)
        })
    }

    fn launcher(&self, word: &str) -> Result<Typed, Wrong> {
        let known = LauncherWish::ALL.into_iter().find(|wish| wish.word() == word);
        known.map(Typed::Launcher).ok_or_else(|| {
            let hint = did_you_mean(word, LauncherWish::ALL.map(LauncherWish::word));
            self.wrong("unknown_word", &self.wanted(), hint)
        })
    }

    fn overflow(&self, word: &str) -> Result<Typed, Wrong> {
        match word {
            "wait" => Ok(Typed::Overflow(Overflow::Wait)),
            "refuse" => Ok(Typed::Overflow(Overflow::Refuse)),
            word => {
                let hint = did_you_mean(word, ["wait", "refuse"]);
                Err(self.wrong("unknown_word", &self.wanted(), hint))
            }
        }
    }

    fn on_stale(&self, word: &str) -> Result<Typed, Wrong> {
        match word {
            "warn" => Ok(Typed::OnStale(OnStale::Warn)),
            "interrupt" => Ok(Typed::OnStale(OnStale::Interrupt)),
            "kill" => Ok(Typed::OnStale(OnStale::Kill)),
            word => {
                let hint = did_you_mean(word, ["warn", "interrupt", "kill"]);
                Err(self.wrong("unknown_word", &self.wanted(), hint))
            }
        }
    }

    fn at_start(&self, word: &str) -> Result<Typed, Wrong> {
        match word {
            "end" => Ok(Typed::AtStart(AtStart::End)),
            "report" => Ok(Typed::AtStart(AtStart::Report)),
            "ignore" => Ok(Typed::AtStart(AtStart::Ignore)),
            word => {
                let hint = did_you_mean(word, ["end", "report", "ignore"]);
                Err(self.wrong("unknown_word", &self.wanted(), hint))
            }
        }
    }

    fn count(&self, value: &Value, min: u64, max: u64) -> Result<Typed, Wrong> {
        let number = match value {
            Value::Int(number) => u64::try_from(*number).ok(),
            Value::UInt(number) => Some(*number),
            Value::Float(_) => {
                return Err(self.wrong_type(Some("write it with digits only".to_owned())));
            }
            _ => return Err(self.wrong_type(None)),
        };
        number
            .filter(|number| (min..=max).contains(number))
            .map(Typed::Count)
            .ok_or_else(|| self.out_of_range())
    }

    fn bytes(&self, value: &Value) -> Result<Typed, Wrong> {
        let (min, max) = MEMORY;
        match value {
            Value::Text(text) => bytes::parse(text)
                .ok_or_else(|| self.wrong_type(None))
                .and_then(|bytes| self.count(&Value::UInt(bytes), min, max)),
            value => self.count(value, min, max),
        }
    }

    fn money(&self, value: &Value) -> Result<Typed, Wrong> {
        #[expect(clippy::cast_precision_loss, reason = "beyond the range that is taken")]
        let dollars = match value {
            Value::Int(number) => *number as f64,
            Value::UInt(number) => *number as f64,
            Value::Float(number) => *number,
            _ => return Err(self.wrong_type(None)),
        };
        if dollars > 0.0 && dollars <= MOST_MONEY {
            return Ok(Typed::Money(dollars));
        }
        let none = (dollars == 0.0).then(|| "write `null` for no limit".to_owned());
        Err(self.wrong("out_of_range", &self.wanted(), none))
    }

    fn seconds(&self, value: &Value, min: Duration) -> Result<Typed, Wrong> {
        match value {
            Value::Int(_) | Value::UInt(_) | Value::Float(_) => duration::from_number(value)
                .filter(|time| in_range(*time, min))
                .map(Typed::Time)
                .ok_or_else(|| {
                    let zero = duration::from_number(value).and_then(|time| self.no_limit(time));
                    self.wrong("out_of_range", &self.wanted(), zero)
                }),
            Value::Text(text) if duration::parse(text).is_some() => {
                let twin = self.info.twin();
                let hint = twin.map(|twin| format!("a duration text belongs to `{twin}`"));
                Err(self.wrong_type(hint))
            }
            _ => Err(self.wrong_type(None)),
        }
    }

    fn text(&self, value: &Value, min: Duration) -> Result<Typed, Wrong> {
        match value {
            Value::Text(text) => match duration::parse(text) {
                Some(time) if in_range(time, min) => Ok(Typed::Time(time)),
                Some(time) => {
                    let (min, max) = (duration::show(min), duration::show(duration::LONGEST));
                    let wanted = format!("from {min} to {max}");
                    Err(self.wrong("out_of_range", &wanted, self.no_limit(time)))
                }
                None => Err(self.wrong_type(None)),
            },
            // A unit is missing; that is no help where the number would be refused all the same.
            Value::Int(number) => Err(self.wrong_type(match duration::from_number(value) {
                Some(time) if in_range(time, min) => {
                    Some(format!("write `{number}s`, or use `{}`", self.info.name))
                }
                Some(time) => self.no_limit(time),
                None => None,
            })),
            _ => Err(self.wrong_type(None)),
        }
    }

    /// People write 0 for "no limit"; where there can be none, it is `null`.
    fn no_limit(&self, time: Duration) -> Option<String> {
        (time.is_zero() && is_optional(self.info.kind))
            .then(|| "write `null` for no limit".to_owned())
    }

    /// Text without blanks around it.
    fn trimmed(&self, text: &str) -> Result<Typed, Wrong> {
        let text = text.trim();
        if text.is_empty() {
            return Ok(Typed::Nothing);
        }
        match self.info.kind {
            Type::Secret => Ok(Typed::Secret(ApiKey::new(text.to_owned()))),
            Type::Word => Ok(Typed::Text(text.to_lowercase())),
            Type::Url => match address_fault(text) {
                None => Ok(Typed::Text(text.to_owned())),
                Some(fault) => Err(Wrong {
                    code: "not_an_address",
                    message: format!("{} {fault}", self.label),
                    hint: Some(format!("{} Default: null", self.info.about)),
                }),
            },
            Type::Path if !text.starts_with('/') && !text.starts_with("~/") => Err(self
                .wrong_type(Some("write the whole path, or one that begins with ~/".to_owned()))),
            _ => Ok(Typed::Text(text.to_owned())),
        }
    }

    fn entry(&self, (name, fault): pools::EntryFault) -> Wrong {
        Wrong {
            code: "wrong_entry",
            message: format!("the entry `{name}` of {} {fault}", self.label),
            hint: Some(self.info.about.to_owned()),
        }
    }

    fn effort(&self, value: &Value) -> Result<Typed, Wrong> {
        match value {
            Value::Bool(false) => Ok(Typed::Effort("none")),
            Value::Text(text) => {
                let text = text.trim().to_ascii_lowercase();
                match EFFORTS.iter().find(|word| **word == text) {
                    Some(word) => Ok(Typed::Effort(word)),
                    None if text.is_empty() => Ok(Typed::Nothing),
                    None => {
                        let hint = did_you_mean(&text, EFFORTS);
                        Err(self.wrong("unknown_word", &self.wanted(), hint))
                    }
                }
            }
            _ => Err(self.wrong_type(None)),
        }
    }
}

/// Why a text is no address of an endpoint. A password in it would show in messages and records.
pub(crate) fn address_fault(text: &str) -> Option<&'static str> {
    let lower = text.to_ascii_lowercase();
    let rest = lower.strip_prefix("https://").or_else(|| lower.strip_prefix("http://"));
    let Some(rest) = rest else { return Some("must begin with https:// or http://") };
    let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
    if authority.is_empty() || text.contains(char::is_whitespace) {
        return Some("is no address: it has no host, or a blank in it");
    }
    authority
        .contains('@')
        .then_some("must not hold a user or password; a key belongs into api_key")
}

fn in_range(time: Duration, min: Duration) -> bool {
    (min..=duration::LONGEST).contains(&time)
}

/// A text that would be a boolean, a number or null without its quotes.
fn reads_as_other(text: &str) -> bool {
    yaml::parse(Source { file: None, text })
        .is_ok_and(|node| matches!(node.kind, Kind::Scalar(ref value) if value.as_text().is_none()))
}

impl Typed {
    pub(crate) const fn isolation(&self) -> Option<ProcessIsolation> {
        if let Self::Isolation(isolation) = self { Some(*isolation) } else { None }
    }

    pub(crate) fn count<N: TryFrom<u64>>(&self) -> Option<N> {
        if let Self::Count(number) = self { N::try_from(*number).ok() } else { None }
    }

    pub(crate) const fn money(&self) -> Option<f64> {
        if let Self::Money(dollars) = self { Some(*dollars) } else { None }
    }

    pub(crate) const fn time(&self) -> Option<Duration> {
        if let Self::Time(time) = self { Some(*time) } else { None }
    }

    pub(crate) const fn containment(&self) -> Option<Containment> {
        if let Self::Containment(what) = self { Some(*what) } else { None }
    }

    pub(crate) const fn launcher(&self) -> Option<LauncherWish> {
        if let Self::Launcher(wish) = self { Some(*wish) } else { None }
    }

    pub(crate) const fn on_stale(&self) -> Option<OnStale> {
        if let Self::OnStale(what) = self { Some(*what) } else { None }
    }

    pub(crate) const fn overflow(&self) -> Option<Overflow> {
        if let Self::Overflow(what) = self { Some(*what) } else { None }
    }

    pub(crate) const fn at_start(&self) -> Option<AtStart> {
        if let Self::AtStart(what) = self { Some(*what) } else { None }
    }

    pub(crate) fn command(&self) -> Option<Vec<String>> {
        if let Self::Command(words) = self { Some(words.clone()) } else { None }
    }

    pub(crate) fn text(&self) -> Option<String> {
        if let Self::Text(text) = self { Some(text.clone()) } else { None }
    }

    pub(crate) fn secret(&self) -> Option<ApiKey> {
        if let Self::Secret(key) = self { Some(key.clone()) } else { None }
    }

    pub(crate) const fn effort(&self) -> Option<&'static str> {
        if let Self::Effort(word) = self { Some(*word) } else { None }
    }

    pub(crate) fn overrides(&self) -> Option<BTreeMap<String, Value>> {
        if let Self::Overrides(entries) = self { Some(entries.clone()) } else { None }
    }

    pub(crate) fn strategies(&self) -> BTreeMap<String, PoolStrategy> {
        if let Self::Strategies(entries) = self { entries.clone() } else { BTreeMap::new() }
    }

    pub(crate) fn limits(&self) -> BTreeMap<String, CallLimits> {
        if let Self::Limits(entries) = self { entries.clone() } else { BTreeMap::new() }
    }

    pub(crate) fn fallbacks(&self) -> Option<Vec<Fallback>> {
        if let Self::Fallbacks(entries) = self { Some(entries.clone()) } else { None }
    }

    pub(crate) fn helpers(&self) -> BTreeMap<String, Vec<String>> {
        if let Self::Helpers(entries) = self { entries.clone() } else { BTreeMap::new() }
    }

    /// Whether it holds a key, which must come from a file.
    pub(crate) fn holds_key(&self) -> bool {
        match self {
            Self::Secret(_) => true,
            Self::Fallbacks(entries) => entries.iter().any(|entry| entry.api_key.is_some()),
            Self::Nothing
            | Self::Isolation(_)
            | Self::Flag(_)
            | Self::Count(_)
            | Self::Time(_)
            | Self::OnStale(_)
            | Self::AtStart(_)
            | Self::Overflow(_)
            | Self::Containment(_)
            | Self::Launcher(_)
            | Self::Command(_)
            | Self::Text(_)
            | Self::Effort(_)
            | Self::Strategies(_)
            | Self::Limits(_)
            | Self::Helpers(_)
            | Self::Overrides(_)
            | Self::Money(_) => false,
        }
    }
}

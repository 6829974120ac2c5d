//! One value against its row of the table: [`check`] is the only way to a [`Typed`] value.

use std::time::Duration;

use delegate_protocol::Value;

use super::keys::{KeyInfo, Type};
use super::yaml::{self, Kind, Node, Source};
use super::{OnStale, ProcessIsolation, did_you_mean, duration};

/// A checked value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Typed {
    Nothing,
    Isolation(ProcessIsolation),
    Flag(bool),
    Count(u64),
    Time(Duration),
    OnStale(OnStale),
    Command(Vec<String>),
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
        (Type::Seconds { min, .. }, Kind::Scalar(value)) if is_twin => question.text(value, min),
        (Type::Seconds { min, .. }, Kind::Scalar(value)) => question.seconds(value, min),
        (Type::OnStale, Kind::Scalar(Value::Text(word))) => question.on_stale(word),
        (Type::Command, Kind::List(items)) => question.command(items),
        (_, Kind::Scalar(_) | Kind::List(_) | Kind::Map(_)) => Err(question.wrong_type(None)),
    }
}

const fn is_optional(kind: Type) -> bool {
    match kind {
        Type::Isolation | Type::Command => true,
        Type::Count { optional, .. } | Type::Seconds { optional, .. } => optional,
        Type::Flag | Type::OnStale => false,
    }
}

/// What is asked of one value.
struct Question<'a> {
    info: &'a KeyInfo,
    is_twin: bool,
    label: &'a str,
    node: &'a Node,
}

#[expect(clippy::wildcard_enum_match_arm, reason = "any other kind of value is the same fault")]
impl Question<'_> {
    fn wrong(&self, code: &'static str, wanted: &str, hint: Option<String>) -> Wrong {
        let Self { info, label, node, .. } = self;
        let message = format!("{label} must be {wanted}, not {}", node.describe());
        let hint = hint.or_else(|| Some(format!("{} Default: {}", info.about, info.default)));
        Wrong { code, message, hint }
    }

    fn wrong_type(&self, hint: Option<String>) -> Wrong {
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

    fn command(&self, items: &[Node]) -> Result<Typed, Wrong> {
        let wrong = |what: &str| Wrong {
            code: "wrong_type",
            message: format!("{} {what}", self.label),
            hint: None,
        };
        let mut words = Vec::new();
        for item in items {
            match &item.kind {
                Kind::Scalar(Value::Text(text)) if !text.contains('\0') => words.push(text.clone()),
                Kind::Scalar(_) | Kind::List(_) | Kind::Map(_) => {
                    let held = item.describe();
                    return Err(wrong(&format!("must be a list of texts, but it holds {held}")));
                }
            }
        }
        match words.first() {
            Some(program) if !program.is_empty() => Ok(Typed::Command(words)),
            _ => Err(wrong("must name a program first")),
        }
    }
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

    pub(crate) const fn time(&self) -> Option<Duration> {
        if let Self::Time(time) = self { Some(*time) } else { None }
    }

    pub(crate) const fn on_stale(&self) -> Option<OnStale> {
        if let Self::OnStale(what) = self { Some(*what) } else { None }
    }

    pub(crate) fn command(&self) -> Option<Vec<String>> {
        if let Self::Command(words) = self { Some(words.clone()) } else { None }
    }
}

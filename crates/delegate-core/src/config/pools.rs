//! The two settings that are maps from a provider's name: in which order the keys of its pool are taken, and
//! how many calls it is sent. Read by `value`, shown by `show`, described by `schema`.

use std::collections::BTreeMap;

use delegate_protocol::Value;

use super::yaml::{Key, Kind, Node};
use super::{CallLimits, PoolStrategy, did_you_mean, shorten};

/// Fields of an entry of `provider_limits`.
pub(crate) const LIMIT_FIELDS: [&str; 2] = ["max_concurrent_calls", "requests_per_minute"];

/// What is wrong with an entry: its name, and a sentence that goes on from it.
pub(crate) type EntryFault = (String, String);

/// `{openai: round_robin}`.
///
/// # Errors
/// The first entry that is none.
pub(crate) fn strategies(
    entries: &[(Key, Node)],
) -> Result<BTreeMap<String, PoolStrategy>, EntryFault> {
    let entry = |(key, node): &(Key, Node)| {
        let words = PoolStrategy::ALL.map(PoolStrategy::word);
        let found = match &node.kind {
            Kind::Scalar(Value::Text(word)) => {
                PoolStrategy::of_word(word.trim()).ok_or_else(|| {
                    let near = did_you_mean(word, words).map(|near| format!("; {near}"));
                    format!("must be one of {}{}", words.join(", "), near.unwrap_or_default())
                })
            }
            Kind::Scalar(_) | Kind::List(_) | Kind::Map(_) => {
                Err(format!("must be one of {}, not {}", words.join(", "), node.describe()))
            }
        };
        let strategy = found.map_err(|fault| (shorten(&key.text, 60), fault))?;
        Ok((name(key)?, strategy))
    };
    entries.iter().map(entry).collect()
}

/// `{openai: {max_concurrent_calls: 4, requests_per_minute: 60}}`.
///
/// # Errors
/// The first entry that is none.
pub(crate) fn limits(entries: &[(Key, Node)]) -> Result<BTreeMap<String, CallLimits>, EntryFault> {
    let entry = |(key, node): &(Key, Node)| {
        let limits = limit(node).map_err(|fault| (shorten(&key.text, 60), fault))?;
        Ok((name(key)?, limits))
    };
    entries.iter().map(entry).collect()
}

fn limit(node: &Node) -> Result<CallLimits, String> {
    let Kind::Map(fields) = &node.kind else {
        return Err(format!("must be a map with {}", LIMIT_FIELDS.join(" and ")));
    };
    let mut limits = CallLimits::default();
    for (key, node) in fields {
        let field = match key.text.as_str() {
            "max_concurrent_calls" => &mut limits.max_concurrent_calls,
            "requests_per_minute" => &mut limits.requests_per_minute,
            name => {
                let near = did_you_mean(name, LIMIT_FIELDS).map(|near| format!("; {near}"));
                let name = shorten(name, 60);
                return Err(format!("has an unknown field `{name}`{}", near.unwrap_or_default()));
            }
        };
        let number = match &node.kind {
            Kind::Scalar(Value::Int(number)) => u32::try_from(*number).ok(),
            Kind::Scalar(Value::Null) => continue,
            Kind::Scalar(_) | Kind::List(_) | Kind::Map(_) => None,
        };
        let number = number.filter(|number| *number > 0);
        *field = Some(number.ok_or_else(|| {
            let held = node.describe();
            format!("needs a whole number from 1 to {} in `{}`, not {held}", u32::MAX, key.text)
        })?);
    }
    Ok(limits)
}

fn name(key: &Key) -> Result<String, EntryFault> {
    let name = key.text.trim();
    if name.is_empty() {
        return Err((String::new(), "needs the name of a provider".to_owned()));
    }
    Ok(name.to_owned())
}

/// As they were typed.
pub(crate) fn show_strategies(strategies: &BTreeMap<String, PoolStrategy>) -> Value {
    let entry = |(name, of): (&String, &PoolStrategy)| (name.clone(), Value::from(of.word()));
    map_or_null(strategies.iter().map(entry).collect())
}

/// As they were typed.
pub(crate) fn show_limits(limits: &BTreeMap<String, CallLimits>) -> Value {
    let entry = |(name, limits): (&String, &CallLimits)| {
        let CallLimits { max_concurrent_calls, requests_per_minute } = *limits;
        let numbers = LIMIT_FIELDS.into_iter().zip([max_concurrent_calls, requests_per_minute]);
        let field = |(name, number): (&str, Option<u32>)| {
            Some((name.to_owned(), Value::Int(number?.into())))
        };
        (name.clone(), Value::Map(numbers.filter_map(field).collect()))
    };
    map_or_null(limits.iter().map(entry).collect())
}

fn map_or_null(entries: BTreeMap<String, Value>) -> Value {
    if entries.is_empty() { Value::Null } else { Value::Map(entries) }
}

//! Values of several parts: programs with arguments, maps, chains. Part of [`super::value::check`].

use std::collections::BTreeMap;

use delegate_protocol::{ApiKey, Fallback, Value};

use super::did_you_mean;
use super::keys::FALLBACK_FIELDS;
use super::value::{Question, Typed, Wrong, address_fault};
use super::yaml::{Key, Kind, Node};

impl Question<'_> {
    pub(super) fn overrides(&self) -> Result<Typed, Wrong> {
        let value = self.node.clone().into_value();
        if let Some(path) = value.first_nan() {
            let message = format!("{} holds a number that is none, at {path}", self.label);
            return Err(Wrong { code: "out_of_range", message, hint: None });
        }
        if let Value::Map(entries) = value {
            Ok(Typed::Overrides(entries))
        } else {
            Err(self.wrong_type(None))
        }
    }

    pub(super) fn fallbacks(&self, items: &[Node]) -> Result<Typed, Wrong> {
        let entries = items.iter().enumerate();
        let entries = entries.map(|(index, item)| {
            fallback(item).map_err(|fault| Wrong {
                code: "wrong_entry",
                message: format!("entry {index} of {} {fault}", self.label),
                hint: Some("write it as {provider: NAME, model: NAME}".to_owned()),
            })
        });
        Ok(Typed::Fallbacks(entries.collect::<Result<_, _>>()?))
    }

    pub(super) fn helpers(&self, entries: &[(Key, Node)]) -> Result<Typed, Wrong> {
        let wrong = |message: String| Wrong { code: "wrong_entry", message, hint: None };
        let mut helpers = BTreeMap::new();
        for (key, node) in entries {
            let name = super::shorten(&key.text, 60);
            let label = format!("`{name}` of {}", self.label);
            if !delegate_child::helper::is_name(&key.text) {
                let rule = "a name has letters, digits, - and _, 64 at most";
                return Err(wrong(format!("{label}: {rule}")));
            }
            let Kind::List(items) = &node.kind else {
                return Err(wrong(format!(
                    "{label} must be a list of texts, not {}",
                    node.describe()
                )));
            };
            let Typed::Command(words) = (Question { label: &label, ..*self }).command(items)?
            else {
                return Err(wrong(format!("{label} must be a list of texts")));
            };
            helpers.insert(key.text.clone(), words);
        }
        Ok(Typed::Helpers(helpers))
    }

    pub(super) fn command(&self, items: &[Node]) -> Result<Typed, Wrong> {
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

/// One entry of a fallback chain, or what is wrong with it.
fn fallback(item: &Node) -> Result<Fallback, String> {
    let Kind::Map(fields) = &item.kind else {
        return Err(format!("must be a map, not {}", item.describe()));
    };
    let mut entry = Fallback::default();
    for (key, node) in fields {
        let name = key.text.as_str();
        if !FALLBACK_FIELDS.contains(&name) {
            let near = did_you_mean(name, FALLBACK_FIELDS);
            let near = near.map(|near| format!("; {near}")).unwrap_or_default();
            return Err(format!("has an unknown field `{}`{near}", super::shorten(name, 60)));
        }
        let text = match &node.kind {
            Kind::Scalar(Value::Text(text)) => text.trim().to_owned(),
            Kind::Scalar(Value::Null) => String::new(),
            Kind::Scalar(_) | Kind::List(_) | Kind::Map(_) => {
                return Err(format!("has a `{name}` that is not text"));
            }
        };
        let set = || (!text.is_empty()).then(|| text.clone());
        match name {
            "provider" => entry.provider = text,
            "model" => entry.model = text,
            "base_url" => {
                entry.base_url = set();
                if let Some(fault) = entry.base_url.as_deref().and_then(address_fault) {
                    return Err(format!("has a `base_url` that {fault}"));
                }
            }
            "api_key" => entry.api_key = set().map(ApiKey::new),
            _ => entry.api_mode = set().map(|mode| mode.to_lowercase()),
        }
    }
    match (entry.provider.is_empty(), entry.model.is_empty()) {
        (false, false) => Ok(entry),
        (true, _) => Err("has no `provider`".to_owned()),
        (_, true) => Err("has no `model`".to_owned()),
    }
}

//! Tasks as they may be stored, so that a run can be resumed: without a value that looks like a secret.
//! What was left out is named with the variable of the environment that gives it again. Pure; written and
//! read by [`crate::store`], asked for by [`crate::delegator`].

use delegate_child::IntoOrder;
use delegate_protocol::{Order, SubagentId, Value, codec};
use serde::{Deserialize, Serialize};

use super::{Plan, Task};

/// Bytes of one task that are kept: any of a batch file, which has 64 MiB at most, and what encoding adds. A longer one, of
/// a program, is not.
pub const MAX_BYTES: usize = 65 << 20;

/// Parts of a name (in small letters) that make a text below it a secret.
const SECRET_NAMES: [&str; 10] = [
    "secret",
    "password",
    "passwd",
    "passphrase",
    "token",
    "api_key",
    "apikey",
    "authorization",
    "credential",
    "private_key",
];

/// The map of variables of a command: every value counts as a secret.
const VARIABLES: &str = "env";

/// A value that was left out.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Withheld {
    /// Field of the task, then keys and positions.
    place: Vec<String>,
    /// Variable that gives it again.
    variable: String,
}

/// The stored form: the task as it crosses a line, less what was left out.
#[derive(Debug, Serialize, Deserialize)]
struct Stored {
    subagent_id: SubagentId,
    order: Order,
    withheld: Vec<Withheld>,
}

/// What is stored of a run besides its tasks.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Facts {
    /// An agent delegated it, which has to be given again ([`super::Parent`]).
    pub by_agent: bool,
    /// Its children had a key, which is not stored.
    pub keyed: bool,
    /// Where they got it from, in words.
    pub route: String,
    /// A text of whoever started it.
    pub note: Option<String>,
}

/// Why a task cannot be read back.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ReviveError {
    /// What was left out is not given again.
    #[error("{place} is not stored, since it may be a secret: set the variable {variable} to it")]
    NotGiven {
        /// Where it was, such as `params.env.TOKEN`.
        place: String,
        /// Which variable.
        variable: String,
    },
    /// It is not what this program writes.
    #[error("what is stored of it cannot be read: {0}")]
    Unreadable(String),
}

impl Plan {
    /// One task for the store; `None` when it is too long for that, or cannot be encoded.
    ///
    /// # Panics
    /// When `index` is not a task of this plan.
    #[must_use]
    pub fn kept(&self, index: usize) -> Option<Vec<u8>> {
        keep(&self.tasks[index], self.subagent_id(index))
    }

    /// What is stored of the run besides its tasks.
    #[must_use]
    pub fn kept_facts(&self, note: Option<String>) -> Facts {
        let routed = &self.frame.routed;
        Facts {
            by_agent: self.frame.by_agent,
            keyed: routed.routing.api_key.is_some(),
            route: routed.reason.clone(),
            note,
        }
    }

    /// Whether its children get a key.
    pub(crate) fn is_keyed(&self) -> bool {
        self.frame.routed.routing.api_key.is_some()
    }
}

fn keep(task: &Task, subagent_id: SubagentId) -> Option<Vec<u8>> {
    let mut order = task.clone().into_order().ok()?;
    let mut withheld = Vec::new();
    withhold(&mut order.params, &mut vec!["params".to_owned()], false, &mut withheld);
    for (key, value) in &mut order.metadata {
        let place = &mut vec!["metadata".to_owned(), key.clone()];
        withhold(value, place, is_secret(key), &mut withheld);
    }
    for (position, image) in order.images.iter_mut().enumerate() {
        // A signed address is a key.
        if image.contains("://") && (image.contains('@') || image.contains('?')) {
            image.clear();
            let task = subagent_id.task_index();
            withheld.push(Withheld {
                place: vec!["images".to_owned(), position.to_string()],
                variable: format!("TASK{task}_IMAGE{position}"),
            });
        }
    }
    let stored = Stored { subagent_id, order, withheld };
    codec::to_bytes(&stored).ok().filter(|bytes| bytes.len() <= MAX_BYTES)
}

fn is_secret(name: &str) -> bool {
    let name = name.to_ascii_lowercase().replace('-', "_");
    SECRET_NAMES.iter().any(|part| name.contains(part))
}

/// A variable of a command keeps its own name; another name is written as one, an item of a list with
/// its position.
fn variable_for(place: &[String]) -> String {
    let is_position = |part: &String| part.bytes().all(|byte| byte.is_ascii_digit());
    let named = place.iter().rposition(|part| !is_position(part)).unwrap_or_default();
    if named > 0 && named + 1 == place.len() && place[named - 1] == VARIABLES {
        return place[named].clone();
    }
    let letter = |c: char| if c.is_ascii_alphanumeric() { c } else { '_' };
    place[named..].join("_").to_ascii_uppercase().chars().map(letter).collect()
}

fn withhold(value: &mut Value, place: &mut Vec<String>, secret: bool, into: &mut Vec<Withheld>) {
    match value {
        Value::Text(text) if secret && !text.is_empty() => {
            into.push(Withheld { place: place.clone(), variable: variable_for(place) });
            *value = Value::Null;
        }
        Value::Map(entries) => {
            let of_env = place.last().is_some_and(|name| name == VARIABLES);
            for (key, value) in entries {
                place.push(key.clone());
                withhold(value, place, of_env || is_secret(key), into);
                place.pop();
            }
        }
        Value::List(items) => {
            let mut option = false;
            for (position, item) in items.iter_mut().enumerate() {
                place.push(position.to_string());
                // Of a list that is named as a secret, each text is one; of arguments what belongs to an
                // option that is: `--token X`, `--token=X`.
                let mut follows = false;
                let mut holds = false;
                if let Value::Text(text) = &*item
                    && text.starts_with('-')
                {
                    match text.split_once('=') {
                        Some((name, _)) => holds = is_secret(name),
                        None => follows = is_secret(text),
                    }
                }
                withhold(item, place, secret || holds || option, into);
                option = follows;
                place.pop();
            }
        }
        Value::Text(_)
        | Value::Bytes(_)
        | Value::Null
        | Value::Bool(_)
        | Value::Int(_)
        | Value::UInt(_)
        | Value::Float(_) => {}
    }
}

/// The task again, and the id of its child. What was left out is asked of `variable`.
///
/// # Errors
/// Something is not given again, or the bytes are not of [`Plan::kept`].
pub fn revive(
    bytes: &[u8],
    variable: &dyn Fn(&str) -> Option<String>,
) -> Result<(Task, SubagentId), ReviveError> {
    let unreadable = |reason: &dyn std::fmt::Display| ReviveError::Unreadable(reason.to_string());
    let mut stored: Stored = codec::from_bytes(bytes).map_err(|error| unreadable(&error))?;
    for Withheld { place, variable: name } in std::mem::take(&mut stored.withheld) {
        let shown = place.join(".");
        let text = variable(&name)
            .ok_or_else(|| ReviveError::NotGiven { place: shown.clone(), variable: name })?;
        if !put_back(&mut stored.order, &place, text) {
            return Err(unreadable(&format!("there is no {shown}")));
        }
    }
    Ok((Task::from(stored.order), stored.subagent_id))
}

/// Whether there was such a place.
fn put_back(order: &mut Order, place: &[String], text: String) -> bool {
    let (root, rest) = match place {
        [field, position] if field == "images" => {
            let image = position.parse().ok().and_then(|at: usize| order.images.get_mut(at));
            return image.map(|image| *image = text).is_some();
        }
        [field, rest @ ..] if field == "params" => (Some(&mut order.params), rest),
        [field, key, rest @ ..] if field == "metadata" => (order.metadata.get_mut(key), rest),
        _ => return false,
    };
    let mut at = root;
    for step in rest {
        at = match at {
            Some(Value::Map(entries)) => entries.get_mut(step),
            Some(Value::List(items)) => step.parse().ok().and_then(|at: usize| items.get_mut(at)),
            _ => None,
        };
    }
    at.map(|value| *value = Value::Text(text)).is_some()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::plan::{Isolation, Means, plan};

    const CANARY: &str = "canary-4711";

    fn json(text: &str) -> Value {
        serde_json::from_str(text).unwrap()
    }

    fn rich() -> Task {
        let params = format!(
            r#"{{"argv":["x","y"],"env":{{"PLAIN":"{CANARY}"}},"list":[{{"Api-Key":"{CANARY}"}}],
               "tokens":["{CANARY}"],"max_tokens":7,"n":-3,"f":1.5,"u":18446744073709551615}}"#
        );
        Task::new("command", "goal")
            .params(json(&params))
            .context("context")
            .timeout(Duration::from_millis(1500))
            .cwd("/tmp")
            .images(["a.png".to_owned(), format!("https://u:{CANARY}@h/p")])
            .group("g")
            .toolsets(["t"])
            .traceparent("00-1")
            .metadata("password", Value::Text(CANARY.to_owned()))
            .metadata("plain", Value::Bytes(vec![1, 2]))
            .output_schema(json(r#"{"type":"object"}"#))
    }

    #[test]
    fn a_task_comes_back_whole_where_everything_is_given_again_and_no_secret_is_stored() {
        let id = SubagentId::new(3, 7);
        let bytes = keep(&rich(), id).unwrap();
        let holds = bytes.windows(CANARY.len()).any(|part| part == CANARY.as_bytes());
        assert!(!holds, "a secret is stored");
        let given = |name: &str| {
            let known = ["PLAIN", "API_KEY", "TOKENS_0", "PASSWORD"];
            let found = known.contains(&name).then(|| CANARY.to_owned());
            found.or_else(|| (name == "TASK3_IMAGE1").then(|| format!("https://u:{CANARY}@h/p")))
        };
        assert_eq!(revive(&bytes, &given), Ok((rich(), id)));
    }

    #[test]
    fn what_is_not_given_again_is_named_with_its_variable() {
        let task = Task::new("command", "goal").params(json(r#"{"env":{"my_Key":"x","E":""}}"#));
        let bytes = keep(&task, SubagentId::new(0, 0)).unwrap();
        let error = revive(&bytes, &|_| None).unwrap_err();
        assert_eq!(
            error.to_string(),
            "params.env.my_Key is not stored, since it may be a secret: set the variable my_Key to it"
        );
        assert!(matches!(revive(b"junk", &|_| None), Err(ReviveError::Unreadable(_))));
    }

    #[test]
    fn what_belongs_to_an_option_that_is_named_as_a_secret_is_one() {
        let text = r#"{"argv":["x","--api-key","canary-4711","--token=canary-4711","-v","y"]}"#;
        let task = Task::new("command", "goal").params(json(text));
        let bytes = keep(&task, SubagentId::new(0, 0)).unwrap();
        assert!(!bytes.windows(CANARY.len()).any(|part| part == CANARY.as_bytes()));
        let given = |name: &str| match name {
            "ARGV_2" => Some(CANARY.to_owned()),
            "ARGV_3" => Some(format!("--token={CANARY}")),
            _ => None,
        };
        assert_eq!(revive(&bytes, &given).unwrap().0, task);
    }

    #[test]
    fn a_task_that_is_too_long_is_not_kept() {
        let task = Task::new("command", "g".repeat(MAX_BYTES));
        assert_eq!(keep(&task, SubagentId::new(0, 0)), None);
    }

    #[test]
    fn facts_name_no_key() {
        let settings = crate::config::Settings {
            base_url: Some("https://h".to_owned()),
            api_key: Some(delegate_protocol::ApiKey::new(CANARY.to_owned())),
            ..Default::default()
        };
        let mut tasks = vec![Task::new("x", "goal")];
        let plan = plan(&mut tasks, &settings, Some(Isolation::Thread), Means::default()).unwrap();
        let facts = plan.kept_facts(None);
        assert!(facts.keyed && !facts.by_agent && !format!("{facts:?}").contains(CANARY));
    }
}

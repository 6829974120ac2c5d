//! Actions on running children that a model asks for with the arguments of its `delegate_task` call: `list`, `steer`,
//! `stop`. Done at once, also in a pause and at the deepest level; only children of the given conversation exist.

use delegate_protocol::{SubagentId, Value};
use serde_json::json;

use super::{ControlError, Operator};
use crate::plan::control_action;

/// Carries out the action of a call; `None` when it wants to delegate, or asks for what does not exist
/// ([`crate::delegator::Delegator::call`] says so).
pub(crate) async fn act(
    operator: &Operator,
    arguments: &Value,
) -> Option<Result<Value, ControlError>> {
    let action = control_action(arguments)?;
    let done = match action {
        "list" => Ok(list(operator).await),
        "steer" => steer(operator, arguments),
        _ => stop(operator, arguments),
    };
    // What is made here is maps and texts.
    Some(done.map(|answer| serde_json::from_value(answer).unwrap_or_default()))
}

async fn list(operator: &Operator) -> serde_json::Value {
    let runs = operator.list().await;
    let children: Vec<_> = runs.iter().flat_map(|run| &run.list.children).collect();
    let waiting: usize = runs.iter().map(|run| run.list.waiting).sum();
    json!({ "subagents": children, "waiting": waiting })
}

fn steer(operator: &Operator, arguments: &Value) -> Result<serde_json::Value, ControlError> {
    let id = child(arguments, "steer")?;
    let Some(message) = text(arguments, "message") else {
        return Err(ControlError::BadRequest("steer needs a message".to_owned()));
    };
    let child = operator.steer(&id.to_string(), message)?;
    Ok(json!({ "status": "accepted", "subagent_id": child }))
}

fn stop(operator: &Operator, arguments: &Value) -> Result<serde_json::Value, ControlError> {
    let id = child(arguments, "stop")?;
    operator.stop(&id.to_string(), false)?;
    Ok(json!({ "status": "stopping", "subagent_id": id }))
}

fn child(arguments: &Value, action: &str) -> Result<SubagentId, ControlError> {
    let Some(id) = text(arguments, "subagent_id") else {
        return Err(ControlError::BadRequest(format!("{action} needs a subagent_id (see list)")));
    };
    // A run, or the latest one, is not a model's to name.
    id.parse().map_err(|_| ControlError::NotFound(id.chars().take(128).collect()))
}

fn text<'a>(arguments: &'a Value, name: &str) -> Option<&'a str> {
    let Value::Map(fields) = arguments else { return None };
    match fields.get(name) {
        Some(Value::Text(text)) => Some(text.trim()).filter(|text| !text.is_empty()),
        _ => None,
    }
}

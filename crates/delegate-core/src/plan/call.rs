//! A call as a model makes it: the arguments of `delegate_task`, plain data of any shape, to tasks.
//! [`crate::plan::plan_call`] checks what comes before the tasks.
#![expect(clippy::wildcard_enum_match_arm, reason = "any other kind of value is the same fault")]

use delegate_protocol::Value;

use super::{MAX_IMAGES, StartError, Task, goals};
use crate::config::{did_you_mean, shorten};

/// The agent whose goals are no prompts, so that their wording is nobody's business.
const COMMAND: &str = "command";

/// What a task, and a call with one, may say.
const FIELDS: [&str; 5] = ["goal", "context", "images", "group", "output_schema"];

/// What only the call itself may say.
const OF_CALL: [&str; 2] = ["tasks", "action"];

/// Taken and ignored: models that learned an older form send them. Which role a child has, what it
/// may use and how long it may go on is not for a model to say.
const IGNORED: [&str; 6] =
    ["role", "toolsets", "max_iterations", "acp_command", "acp_args", "background"];

/// What only an action on running children may say; ignored when the call delegates.
const OF_CONTROL: [&str; 2] = ["subagent_id", "message"];

/// Actions on running children; they start nothing, and are carried out by [`crate::control`].
const CONTROL: [&str; 3] = ["list", "steer", "stop"];

/// The action on running children that a call asks for.
pub(crate) fn control_action(arguments: &Value) -> Option<&'static str> {
    let Value::Map(call) = arguments else { return None };
    let Some(Value::Text(action)) = call.get("action") else { return None };
    CONTROL.into_iter().find(|known| *known == action.trim())
}

/// The arguments as a map.
///
/// # Errors
/// They are something else.
pub(super) fn arguments(arguments: &Value) -> Result<Map<'_>, StartError> {
    match arguments {
        Value::Map(entries) => Ok(entries),
        other => Err(invalid(format!("the arguments must be an object, not {}", kind(other)))),
    }
}

type Map<'a> = &'a std::collections::BTreeMap<String, Value>;

/// Whether the call wants to delegate, and nothing else.
///
/// # Errors
/// An action on running children, or one that does not exist.
pub(super) fn check_action(call: Map<'_>) -> Result<(), StartError> {
    let action = match call.get("action") {
        None | Some(Value::Null) => return Ok(()),
        Some(Value::Text(action)) => action.trim(),
        Some(other) => return Err(invalid(format!("action must be text, not {}", kind(other)))),
    };
    if action.is_empty() || action == "delegate" {
        return Ok(());
    }
    let shown = shorten(action, 40);
    Err(if CONTROL.contains(&action) {
        invalid(format!("the action `{shown}` starts nothing: Delegator::act carries it out"))
    } else {
        invalid(format!("there is no action `{shown}`; leave it out to delegate"))
    })
}

/// The tasks of a call, each for `agent`; beside them what is wrong with the first images that are no
/// images, which is told after what is wrong with tasks and schemas.
///
/// # Errors
/// What is wrong, with the number of the task.
pub(super) fn tasks(
    call: Map<'_>,
    agent: &str,
) -> Result<(Vec<Task>, Result<(), StartError>), StartError> {
    check_fields(call, None)?;
    let listed = match call.get("tasks") {
        None | Some(Value::Null) => Vec::new(),
        Some(Value::List(items)) => items.clone(),
        Some(Value::Text(text)) if text.trim().is_empty() => Vec::new(),
        Some(Value::Text(text)) => match serde_json::from_str(text) {
            Ok(Value::List(items)) => items,
            Ok(other) => {
                let held = kind(&other);
                return Err(invalid(format!("tasks is a JSON text of {held}, not of a list")));
            }
            Err(error) => {
                return Err(invalid(format!("tasks is a text that is not JSON: {error}")));
            }
        },
        Some(other) => return Err(invalid(format!("tasks must be a list, not {}", kind(other)))),
    };
    if listed.is_empty() {
        // An empty list is as none.
        return match call.get("goal") {
            None | Some(Value::Null) => {
                Err(invalid("there is neither a goal nor a task in tasks".to_owned()))
            }
            Some(_) => {
                let (task, images) = task(0, call, agent)?;
                Ok((vec![task], images))
            }
        };
    }
    let task = |(index, item): (usize, &Value)| match item {
        Value::Map(fields) => {
            check_fields(fields, Some(index))?;
            task(index, fields, agent)
        }
        other => Err(at(index, format!("it must be an object with a goal, not {}", kind(other)))),
    };
    let mut wrong = Ok(());
    let mut tasks = Vec::with_capacity(listed.len());
    for (task, images) in listed.iter().enumerate().map(task).collect::<Result<Vec<_>, _>>()? {
        tasks.push(task);
        wrong = wrong.and(images);
    }
    Ok((tasks, wrong))
}

/// Whether goals are worth a child each; not asked where they are no prompts.
///
/// # Errors
/// The first that is not.
pub(super) fn check_goals(tasks: &[Task]) -> Result<(), StartError> {
    for (index, task) in tasks.iter().enumerate().filter(|(_, task)| task.agent != COMMAND) {
        if let Some(reason) = goals::fault(&task.goal, tasks.len()) {
            let goal = shorten(&task.goal, super::SHOWN_GOAL);
            return Err(StartError::InvalidTask { task: index, goal, reason });
        }
    }
    Ok(())
}

fn check_fields(fields: Map<'_>, task: Option<usize>) -> Result<(), StartError> {
    let of_call = if task.is_none() { &OF_CALL[..] } else { &[] };
    let fault = |message: String| match task {
        Some(index) => at(index, message),
        None => invalid(message),
    };
    let known = || FIELDS.iter().chain(of_call).copied();
    for (name, _) in fields.iter().filter(|(_, value)| **value != Value::Null) {
        if IGNORED.contains(&name.as_str())
            || (task.is_none() && OF_CONTROL.contains(&name.as_str()))
        {
            tracing::debug!(target: "delegate::plan", %name, "a field of a call is ignored");
        } else if !known().any(|field| field == name) {
            let hint = did_you_mean(name, known())
                .unwrap_or_else(|| format!("known: {}", known().collect::<Vec<_>>().join(", ")));
            return Err(fault(format!("unknown field `{}`; {hint}", shorten(name, 60))));
        }
    }
    Ok(())
}

fn task(
    index: usize,
    fields: Map<'_>,
    agent: &str,
) -> Result<(Task, Result<(), StartError>), StartError> {
    let text = |name: &str| match fields.get(name) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::Text(text)) => Ok(Some(text.clone())),
        Some(other) => Err(at(index, format!("{name} must be text, not {}", kind(other)))),
    };
    let Some(goal) = text("goal")? else {
        return Err(at(index, "it has no goal".to_owned()));
    };
    let mut task = Task::new(agent, goal);
    // A blank context is none, as the prompt would show an empty block.
    task.context = text("context")?.filter(|context| !context.trim().is_empty());
    task.group = text("group")?;
    if let Some(schema) = fields.get("output_schema") {
        task = task.output_schema(schema.clone());
    }
    Ok(match images(index, fields) {
        Ok(images) => {
            task.images = images;
            (task, Ok(()))
        }
        Err(wrong) => (task, Err(wrong)),
    })
}

fn images(index: usize, fields: Map<'_>) -> Result<Vec<String>, StartError> {
    let image = |item: &Value| match item {
        Value::Text(text) => Ok(text.clone()),
        other => Err(at(index, format!("an image must be text, not {}", kind(other)))),
    };
    match fields.get("images") {
        None | Some(Value::Null) => Ok(Vec::new()),
        Some(Value::Text(one)) => Ok(vec![one.clone()]),
        Some(Value::List(items)) => items.iter().map(image).collect(),
        Some(other) => {
            let what =
                format!("images must be a list of at most {MAX_IMAGES}, not {}", kind(other));
            Err(at(index, what))
        }
    }
}

fn invalid(reason: String) -> StartError {
    StartError::InvalidCall { reason }
}

fn at(task: usize, reason: String) -> StartError {
    invalid(format!("task {task}: {reason}"))
}

const fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "nothing",
        Value::Bool(_) => "a boolean",
        Value::Int(_) | Value::UInt(_) | Value::Float(_) => "a number",
        Value::Text(_) => "text",
        Value::Bytes(_) => "bytes",
        Value::List(_) => "a list",
        Value::Map(_) => "an object",
    }
}

//! Batch files: `tasks:` with optional `defaults:`, in YAML.
//!
//! A task has `goal` (needed), `context`, `agent`, `params`, `timeout` (`90s`) or `timeout_seconds`,
//! `cwd`, `images`, `group`, `toolsets`, `worktree_isolation`, `metadata`, `output_schema` and `traceparent`; `defaults` has the
//! same without `goal`.
//! A field of a task replaces the one of `defaults` as a whole, maps too. The agent is the task's,
//! else that of `defaults`, else `command`. A relative `cwd` is relative to the working directory of
//! the caller, not to the file.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use delegate_protocol::Value;

use crate::config::yaml::{self, Key, Kind, Node, Place, Source};
use crate::config::{Diagnostic, did_you_mean, duration, shorten};
use crate::plan::task::Params;
use crate::plan::{MAX_IMAGES, MIN_TIMEOUT, Origin, Task};

/// The agent of a task that names none.
const DEFAULT_AGENT: &str = "command";

/// A batch as written.
#[derive(Debug, Clone, PartialEq)]
pub struct BatchFile {
    /// The tasks, defaults applied.
    pub tasks: Vec<Task>,
}

/// Parses the text of a batch file. `name` is what messages call it (`-` for standard input).
///
/// # Errors
/// Not YAML, no tasks, no goal, a goal that is not text, an unknown field, a wrong type; with place.
pub fn parse(text: &str, name: &Path) -> Result<BatchFile, Diagnostic> {
    let source = Source { file: Some(name), text };
    let root = yaml::parse(source)?;
    if root.is_null() {
        let fault = source.fault("empty_file", root.place, "the batch file is empty".to_owned());
        return Err(fault.hint("it needs `tasks:`, a list of tasks with a `goal` each"));
    }
    let start = root.place;
    let (mut tasks, mut defaults) = (None, Fields::default());
    for (key, node) in map(source, root, "a batch file")? {
        match key.text.as_str() {
            "tasks" => tasks = Some((key, node)),
            "defaults" if node.is_null() => {}
            "defaults" => defaults = Fields::read(source, node, "`defaults`", &FIELDS[1..])?,
            _ => return Err(unknown(source, &key, "a batch file", &["tasks", "defaults"])),
        }
    }
    let Some((key, node)) = tasks else {
        let fault = source.fault("no_tasks", start, "there is no `tasks:`".to_owned());
        return Err(fault.hint("it is a list of tasks with a `goal` each"));
    };
    let nodes = match node.kind {
        Kind::List(nodes) if !nodes.is_empty() => nodes,
        Kind::List(_) | Kind::Scalar(Value::Null) => {
            return Err(source.fault("no_tasks", key.place, "`tasks` is empty".to_owned()));
        }
        Kind::Scalar(_) | Kind::Map(_) => {
            let message = format!("`tasks` must be a list, not {}", node.describe());
            return Err(source.fault("wrong_type", node.place, message));
        }
    };
    let file = Arc::from(name);
    let tasks = nodes.into_iter().enumerate();
    let tasks = tasks.map(|(index, node)| task(source, index, node, &defaults, &file));
    Ok(BatchFile { tasks: tasks.collect::<Result<_, _>>()? })
}

/// Fields of a task; `defaults` takes all but the first.
const FIELDS: [&str; 14] = [
    "goal",
    "context",
    "agent",
    "params",
    "timeout",
    "timeout_seconds",
    "cwd",
    "images",
    "group",
    "toolsets",
    "worktree_isolation",
    "metadata",
    "output_schema",
    "traceparent",
];

/// What a task or `defaults` says. A field that is null counts as not written.
#[derive(Debug, Default)]
struct Fields {
    goal: Option<String>,
    context: Option<String>,
    agent: Option<String>,
    params: Option<Params>,
    /// The limit, its place, and the name of the field.
    timeout: Option<(Duration, Place, String)>,
    cwd: Option<PathBuf>,
    images: Option<Vec<String>>,
    group: Option<String>,
    toolsets: Option<Vec<String>>,
    worktree_isolation: Option<bool>,
    metadata: Option<BTreeMap<String, Value>>,
    output_schema: Option<Params>,
    traceparent: Option<String>,
}

fn task(
    source: Source<'_>,
    index: usize,
    node: Node,
    defaults: &Fields,
    file: &Arc<Path>,
) -> Result<Task, Diagnostic> {
    let place = node.place;
    let own = Fields::read(source, node, &format!("task {index}"), &FIELDS)?;
    let Some(goal) = own.goal else {
        return Err(source.fault("no_goal", place, format!("task {index} has no `goal`")));
    };
    let agent = own.agent.or_else(|| defaults.agent.clone());
    let timeout = own.timeout.as_ref().or(defaults.timeout.as_ref());
    let at =
        |place: Place| Origin { file: file.clone(), line: place.line, column: place.column.max(1) };
    Ok(Task {
        agent: agent.unwrap_or_else(|| DEFAULT_AGENT.to_owned()),
        goal,
        context: own.context.or_else(|| defaults.context.clone()),
        params: own.params.or_else(|| defaults.params.clone()).unwrap_or_default(),
        timeout: timeout.map(|(limit, _, _)| *limit),
        cwd: own.cwd.or_else(|| defaults.cwd.clone()),
        images: own.images.or_else(|| defaults.images.clone()).unwrap_or_default(),
        group: own.group.or_else(|| defaults.group.clone()),
        toolsets: own.toolsets.or_else(|| defaults.toolsets.clone()),
        worktree_isolation: own.worktree_isolation.or(defaults.worktree_isolation),
        traceparent: own.traceparent.or_else(|| defaults.traceparent.clone()),
        output_schema: own
            .output_schema
            .or_else(|| defaults.output_schema.clone())
            .unwrap_or_default(),
        in_turns: false,
        metadata: own.metadata.or_else(|| defaults.metadata.clone()).unwrap_or_default(),
        origin: Some(at(place)),
        timeout_origin: timeout.map(|(_, place, _)| at(*place)),
    })
}

impl Fields {
    fn read(
        source: Source<'_>,
        node: Node,
        what: &str,
        known: &[&'static str],
    ) -> Result<Self, Diagnostic> {
        let mut fields = Self::default();
        for (key, node) in map(source, node, what)? {
            if !known.contains(&key.text.as_str()) {
                return Err(unknown(source, &key, what, known));
            }
            if !node.is_null() {
                fields.set(source, &key, node)?;
            }
        }
        Ok(fields)
    }

    fn set(&mut self, source: Source<'_>, key: &Key, node: Node) -> Result<(), Diagnostic> {
        match key.text.as_str() {
            "goal" => self.goal = Some(goal(source, key, node)?),
            "context" => self.context = Some(text(source, key, node)?),
            "agent" => self.agent = Some(text(source, key, node)?),
            "output_schema" => self.output_schema = Some(Params::new(&node.into_value())),
            "params" => self.params = Some(Params::new(&node.into_value())),
            "timeout" | "timeout_seconds" => self.set_timeout(source, key, &node)?,
            "cwd" => self.cwd = Some(text(source, key, node)?.into()),
            "images" => self.images = Some(texts(source, key, node, MAX_IMAGES)?),
            "group" => self.group = Some(text(source, key, node)?),
            "toolsets" => self.toolsets = Some(texts(source, key, node, usize::MAX)?),
            "worktree_isolation" => self.worktree_isolation = Some(flag(source, key, &node)?),
            "metadata" => {
                let entries = map(source, node, "`metadata`")?.into_iter();
                self.metadata =
                    Some(entries.map(|(key, node)| (key.text, node.into_value())).collect());
            }
            _ => self.traceparent = Some(text(source, key, node)?),
        }
        Ok(())
    }

    fn set_timeout(
        &mut self,
        source: Source<'_>,
        key: &Key,
        node: &Node,
    ) -> Result<(), Diagnostic> {
        if let Some((_, _, earlier)) = &self.timeout {
            let message = format!("`{earlier}` and `{}` are the same setting", key.text);
            return Err(source.fault("both_set", key.place, message).hint("keep one of the two"));
        }
        let limit = limit(key, &node.kind).ok_or_else(|| {
            let wanted = if key.text == "timeout" {
                format!("a duration such as {}", duration::EXAMPLES)
            } else {
                "a number of seconds".to_owned()
            };
            let message = format!("`{}` must be {wanted}, not {}", key.text, node.describe());
            let fault = source.fault("wrong_type", node.place, message);
            match (&node.kind, key.text.as_str()) {
                (Kind::Scalar(Value::Int(0)), "timeout") => fault.hint(NO_LIMIT),
                (Kind::Scalar(Value::Int(seconds @ 1..)), "timeout") => {
                    fault.hint(format!("write `{seconds}s`"))
                }
                _ => fault,
            }
        })?;
        if limit < MIN_TIMEOUT || limit > duration::LONGEST {
            let (min, max) = (duration::show(MIN_TIMEOUT), duration::show(duration::LONGEST));
            let shown = node.describe();
            let message = format!("`{}` must be from {min} to {max}, not {shown}", key.text);
            let fault = source.fault("out_of_range", node.place, message);
            return Err(if is_zero(&node.kind) { fault.hint(NO_LIMIT) } else { fault });
        }
        self.timeout = Some((limit, key.place, key.text.clone()));
        Ok(())
    }
}

/// For people who write 0.
const NO_LIMIT: &str = "leave it out for no limit of its own";

fn is_zero(kind: &Kind) -> bool {
    match kind {
        Kind::Scalar(Value::Text(text)) => {
            duration::parse(text).is_some_and(|limit| limit.is_zero())
        }
        Kind::Scalar(value) => duration::from_number(value).is_some_and(|limit| limit.is_zero()),
        Kind::List(_) | Kind::Map(_) => false,
    }
}

/// Parameters of the agent that runs where none is named; people write them beside `params`.
const PARAMS_OF_COMMAND: [&str; 2] = ["argv", "env"];

/// The limit of either form; `None` when the value is not of the form.
fn limit(key: &Key, kind: &Kind) -> Option<Duration> {
    match kind {
        Kind::Scalar(Value::Text(text)) if key.text == "timeout" => duration::parse(text),
        Kind::Scalar(Value::Int(_) | Value::UInt(_) | Value::Float(_)) if key.text == "timeout" => {
            None
        }
        // A number that is no time, such as a negative one, is out of range, not of a wrong type.
        Kind::Scalar(value @ (Value::Int(_) | Value::UInt(_) | Value::Float(_))) => {
            Some(duration::from_number(value).unwrap_or_default())
        }
        Kind::Scalar(_) | Kind::List(_) | Kind::Map(_) => None,
    }
}

fn goal(source: Source<'_>, key: &Key, node: Node) -> Result<String, Diagnostic> {
    let place = node.place;
    let goal = text(source, key, node)?;
    if goal.trim().is_empty() {
        return Err(source.fault("blank_goal", place, "the goal is blank".to_owned()));
    }
    Ok(goal)
}

fn text(source: Source<'_>, key: &Key, node: Node) -> Result<String, Diagnostic> {
    let wrong = || {
        let message = format!("`{}` must be text, not {}", key.text, node.describe());
        let fault = source.fault("wrong_type", node.place, message);
        if matches!(node.kind, Kind::Scalar(_)) { fault.hint("put it in quotes") } else { fault }
    };
    match node.kind {
        Kind::Scalar(Value::Text(text)) => Ok(text),
        Kind::Scalar(_) | Kind::List(_) | Kind::Map(_) => Err(wrong()),
    }
}

fn flag(source: Source<'_>, key: &Key, node: &Node) -> Result<bool, Diagnostic> {
    match node.kind {
        Kind::Scalar(Value::Bool(flag)) => Ok(flag),
        Kind::Scalar(_) | Kind::List(_) | Kind::Map(_) => {
            let message = format!("`{}` must be true or false, not {}", key.text, node.describe());
            Err(source.fault("wrong_type", node.place, message))
        }
    }
}

fn texts(
    source: Source<'_>,
    key: &Key,
    node: Node,
    most: usize,
) -> Result<Vec<String>, Diagnostic> {
    match node.kind {
        Kind::List(items) if items.len() <= most => {
            items.into_iter().map(|item| text(source, key, item)).collect()
        }
        Kind::List(items) => {
            let message = format!("{} {}, at most {most} are taken", items.len(), key.text);
            Err(source.fault("out_of_range", key.place, message))
        }
        Kind::Scalar(_) | Kind::Map(_) => {
            let message =
                format!("`{}` must be a list of texts, not {}", key.text, node.describe());
            Err(source.fault("wrong_type", node.place, message))
        }
    }
}

fn map(source: Source<'_>, node: Node, what: &str) -> Result<Vec<(Key, Node)>, Diagnostic> {
    match node {
        Node { kind: Kind::Map(entries), .. } => Ok(entries),
        other => Err(other.no_map(source, &format!("{what} must be a map of fields"))),
    }
}

fn unknown(source: Source<'_>, key: &Key, what: &str, known: &[&'static str]) -> Diagnostic {
    let message = format!("unknown field `{}` in {what}", shorten(&key.text, 60));
    let fault = source.fault("unknown_field", key.place, message);
    if PARAMS_OF_COMMAND.contains(&key.text.as_str()) && known.contains(&"params") {
        return fault.hint(format!("write `params: {{{}: ...}}`", key.text));
    }
    match did_you_mean(&key.text, known.iter().copied()) {
        Some(hint) => fault.hint(hint),
        None => fault.hint(format!("known: {}", known.join(", "))),
    }
}

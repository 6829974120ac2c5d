//! What a child is asked to do: [`TaskSpec`], plain data that names everything.
//!
//! The parent builds it, checks that it survives the line ([`TaskSpec::check_crossing`]) before
//! anything starts, and sends it with `Begin`. Both executors hand an agent the same bytes.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::codec;
use crate::id::SubagentId;
use crate::routing::Routing;
use crate::value::Value;

/// Whether a child may delegate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// It may not.
    #[default]
    Leaf,
    /// It may.
    Orchestrator,
}

/// One task for one child.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TaskSpec {
    // --- identity and lineage ---
    /// Position in the batch, 0-based.
    pub task_index: u32,
    /// Tasks in the batch.
    pub task_count: u32,
    /// The key shared by events, logs and registry.
    pub subagent_id: SubagentId,
    /// Set when the delegating agent is itself a subagent.
    pub parent_subagent_id: Option<SubagentId>,
    /// Depth of this child: 1 below the root.
    pub child_depth: u32,
    /// Whether it may delegate.
    pub role: Role,
    /// The child's own session, made by the parent so that events carry it before the start.
    pub session_id: String,
    /// Session of the parent.
    pub parent_session_id: Option<String>,
    /// Turn of the parent.
    pub parent_turn_id: Option<String>,
    /// Session database for agents that keep one; opened in the child.
    pub session_db_path: Option<PathBuf>,
    /// The delegation that this batch belongs to.
    pub delegation_id: Option<String>,
    /// Append-only transcript of this child.
    pub live_transcript: Option<PathBuf>,

    // --- the work ---
    /// Name of the agent.
    pub agent: String,
    /// What to do: the first user turn.
    pub goal: String,
    /// What to know; last in the prompt, so that one batch shares its prefix.
    pub context: Option<String>,
    /// Parameters of the agent.
    pub params: Value,
    /// Shared head of the prompt, ready made.
    pub system_prompt: Option<String>,
    /// Paths or URLs of images, at most 8.
    pub images: Vec<String>,
    /// JSON Schema that the answer must meet.
    pub output_schema: Option<Value>,
    /// Delivery bucket.
    pub group: Option<String>,
    /// It takes prompts, one after another ([`crate::turn`]), instead of this one goal.
    #[serde(default)]
    pub in_turns: bool,

    // --- where and how ---
    /// Working directory of what the agent starts.
    pub cwd: Option<PathBuf>,
    /// A directory that exists, for the prompt.
    pub workspace_hint: Option<PathBuf>,
    /// Container that the child's commands run in.
    pub container: Option<String>,
    /// Leave project context files out of the prompt.
    pub skip_context_files: bool,
    /// Leave memory out.
    pub skip_memory: bool,
    /// Platform name that the agent reports.
    pub platform: String,
    /// Prefix of its log lines.
    pub log_prefix: String,
    /// No output of its own.
    pub quiet: bool,
    /// Whether anybody listens to thinking and tool events.
    pub relay_events: bool,
    /// Approve dangerous commands once (true) or deny them.
    pub auto_approve: bool,
    /// Where shared helpers are reached; `None` when there are none.
    pub helpers: Option<PathBuf>,
    /// Prompt cache tier.
    pub cache_ttl: Option<String>,
    /// Toolsets that are on; `None` is the agent's default.
    pub enabled_toolsets: Option<Vec<String>>,
    /// Toolsets that are off, applied after expansion.
    pub disabled_toolsets: Vec<String>,
    /// Tools that no toolset may bring in.
    pub blocked_tools: Vec<String>,

    // --- limits ---
    /// Turns.
    pub max_iterations: u32,
    /// Milliseconds between two beats.
    pub heartbeat_interval_ms: u64,
    /// Wall clock from the child's own start, in milliseconds; enforced by the parent.
    pub timeout_ms: Option<u64>,
    /// Largest answer, in bytes.
    pub max_result_bytes: u64,

    // --- model ---
    /// Model, endpoint and key.
    pub routing: Routing,

    // --- passed through ---
    /// W3C trace context.
    pub traceparent: Option<String>,
    /// Opaque to us.
    pub metadata: BTreeMap<String, Value>,
}

/// A spec that would not arrive as it was sent.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{field} cannot cross the process line: {reason}")]
pub struct CrossingError {
    /// The field, such as `params`.
    pub field: &'static str,
    /// What is wrong with it.
    pub reason: String,
}

macro_rules! compare_fields {
    ($left:expr, $right:expr, { $($field:ident),+ $(,)? }) => {{
        // No `..`: a new field that nobody compares does not compile.
        let TaskSpec { $($field),+ } = $left;
        $(
            if *$field != $right.$field {
                return Err(CrossingError {
                    field: stringify!($field),
                    reason: "it arrives changed".to_owned(),
                });
            }
        )+
    }};
}

impl TaskSpec {
    /// Encodes, decodes and compares.
    ///
    /// # Errors
    /// Names the first field that would not arrive as it is.
    pub fn check_crossing(&self) -> Result<(), CrossingError> {
        self.check_numbers()?;
        let bytes = codec::to_bytes(self)
            .map_err(|error| CrossingError { field: "task", reason: error.to_string() })?;
        let back: Self = codec::from_bytes(&bytes)
            .map_err(|error| CrossingError { field: "task", reason: error.to_string() })?;
        compare_fields!(self, back, {
            task_index, task_count, subagent_id, parent_subagent_id, child_depth, role, session_id,
            parent_session_id, parent_turn_id, session_db_path, delegation_id, live_transcript,
            agent, goal, context, params, system_prompt, images, output_schema, group, in_turns,
            cwd, workspace_hint, container, skip_context_files, skip_memory, platform, log_prefix,
            quiet, relay_events, auto_approve, helpers, cache_ttl, enabled_toolsets, disabled_toolsets,
            blocked_tools, max_iterations, heartbeat_interval_ms, timeout_ms, max_result_bytes,
            routing, traceparent, metadata,
        });
        Ok(())
    }

    /// A number that does not equal itself is named with its place, since "changed" would not help.
    fn check_numbers(&self) -> Result<(), CrossingError> {
        let nan = |field, path: String| {
            let place = if path.is_empty() { "it".to_owned() } else { format!("field {path}") };
            CrossingError { field, reason: format!("{place} is NaN") }
        };
        if let Some(path) = self.params.first_nan() {
            return Err(nan("params", path));
        }
        for (key, value) in &self.metadata {
            if let Some(path) = value.first_nan() {
                return Err(nan("metadata", format!("{key}.{path}").trim_end_matches('.').into()));
            }
        }
        Ok(())
    }

    /// The same spec without its keys ([`Routing::without_secrets`]): the only form that may be
    /// stored or logged.
    #[must_use]
    pub fn without_secrets(&self) -> Self {
        Self { routing: self.routing.without_secrets(), ..self.clone() }
    }
}

/// A spec with every optional part empty, for tests of this workspace.
#[doc(hidden)]
#[must_use]
pub fn sample(task_index: u32, agent: &str, goal: &str) -> TaskSpec {
    TaskSpec {
        task_index,
        task_count: task_index + 1,
        subagent_id: SubagentId::new(task_index, 0),
        parent_subagent_id: None,
        child_depth: 1,
        role: Role::Leaf,
        session_id: "20261130_000000_000000".to_owned(),
        parent_session_id: None,
        parent_turn_id: None,
        session_db_path: None,
        delegation_id: None,
        live_transcript: None,
        agent: agent.to_owned(),
        goal: goal.to_owned(),
        context: None,
        params: Value::Null,
        system_prompt: None,
        images: Vec::new(),
        output_schema: None,
        group: None,
        in_turns: false,
        cwd: None,
        workspace_hint: None,
        container: None,
        skip_context_files: true,
        skip_memory: true,
        platform: "subagent".to_owned(),
        log_prefix: format!("[subagent-{task_index}]"),
        quiet: true,
        relay_events: true,
        auto_approve: false,
        helpers: None,
        cache_ttl: None,
        enabled_toolsets: None,
        disabled_toolsets: Vec::new(),
        blocked_tools: Vec::new(),
        max_iterations: 50,
        heartbeat_interval_ms: 30_000,
        timeout_ms: None,
        max_result_bytes: 1 << 30,
        routing: Routing::default(),
        traceparent: None,
        metadata: BTreeMap::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::routing::ApiKey;

    #[test]
    fn a_full_spec_crosses() {
        let mut spec = sample(3, "primes", "part 3");
        spec.params = Value::from_typed(&BTreeMap::from([("from", 1_u64)])).unwrap();
        spec.routing.api_key = Some(ApiKey::new("sk-canary".to_owned()));
        spec.routing.openrouter_min_coding_score = Some(0.5);
        spec.metadata.insert("chat".to_owned(), Value::Int(7));
        assert_eq!(spec.check_crossing(), Ok(()));
    }

    #[test]
    fn the_field_that_cannot_cross_is_named() {
        let mut spec = sample(0, "primes", "g");
        spec.params = Value::from_typed(&BTreeMap::from([("from", f64::NAN)])).unwrap();
        let text = spec.check_crossing().unwrap_err().to_string();
        assert_eq!(text, "params cannot cross the process line: field from is NaN");

        let mut spec = sample(0, "primes", "g");
        spec.routing.openrouter_min_coding_score = Some(f64::NAN);
        assert_eq!(spec.check_crossing().unwrap_err().field, "routing");
    }

    #[test]
    fn a_key_shows_in_no_text_and_in_no_stored_spec() {
        let mut spec = sample(0, "a", "g");
        spec.routing.api_key = Some(ApiKey::new("sk-canary".to_owned()));
        assert!(!format!("{spec:?}").contains("canary"));
        let stored = serde_json::to_string(&spec.without_secrets()).unwrap();
        assert!(!stored.contains("canary"));
    }
}

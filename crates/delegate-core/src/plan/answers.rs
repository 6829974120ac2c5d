//! What is asked of an answer: the schema that it must meet, and how long it may be in its entry.

use std::path::PathBuf;

use delegate_child::schema::Schema;
use delegate_protocol::Value;
use delegate_protocol::spec::CrossingError;

use super::{Headroom, Plan, SHOWN_GOAL, StartError, Task, crossing};
use crate::config::shorten;

/// `max_summary_chars` where an agent delegates and nothing is set.
const AGENT_SUMMARY_CHARS: u32 = 24_000;

impl Plan {
    /// The ceiling of one answer in its entry, in characters, as the settings have it for this caller.
    #[must_use]
    pub fn summary_ceiling(&self) -> Option<u64> {
        let chars = self.settings.max_summary_chars.unwrap_or(if self.frame.by_agent {
            AGENT_SUMMARY_CHARS
        } else {
            0
        });
        (chars > 0).then_some(u64::from(chars))
    }

    /// What the context of the delegating agent has left.
    #[must_use]
    pub const fn headroom(&self) -> Option<Headroom> {
        self.frame.parent.headroom
    }

    /// Transcript that whoever builds the children has named for one of them.
    #[must_use]
    pub fn live_transcript(&self, index: usize) -> Option<PathBuf> {
        self.built.live_transcript(index)
    }

    /// Schema of one task's answer.
    #[must_use]
    pub fn output_schema(&self, index: usize) -> Option<Value> {
        schema_of(&self.tasks[index])
    }
}

/// What is wrong with the schema of its answer.
pub(super) fn check_schema(index: usize, task: &Task) -> Result<(), StartError> {
    let schema = schema_value(task).map_err(|reason| {
        crossing(index, task, CrossingError { field: "output_schema", reason })
    })?;
    let compiled = schema.map_or(Ok(()), |schema| Schema::compile(&schema).map(drop));
    compiled.map_err(|error| StartError::InvalidTask {
        task: index,
        goal: shorten(&task.goal, SHOWN_GOAL),
        reason: error.to_string(),
    })
}

fn schema_value(task: &Task) -> Result<Option<Value>, String> {
    task.output_schema.value().map(|schema| (schema != Value::Null).then_some(schema))
}

/// The schema; one that cannot be data was refused by [`check_schema`].
pub(super) fn schema_of(task: &Task) -> Option<Value> {
    schema_value(task).unwrap_or_default()
}

//! Who an event is about, for consumers that want it beside every event: [`Identity`], made from a
//! child's spec, and [`Relayed`], an event with it as one flat object.

use serde::ser::{Error, Serialize, Serializer};

use crate::event::Event;
use crate::id::RunId;
use crate::spec::TaskSpec;

/// Who a child is.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Identity {
    /// Position in the batch, 0-based.
    pub task_index: u32,
    /// Tasks in the batch.
    pub task_count: u32,
    /// Its goal.
    pub goal: String,
    /// Its id.
    pub subagent_id: String,
    /// Id of the subagent that asked for it, if one did.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub parent_id: Option<String>,
    /// 1 below the root.
    pub depth: u32,
    /// Its model, if one is set.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// Its toolsets, if they are set.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub toolsets: Option<Vec<String>>,
    /// Its own session.
    pub child_session_id: String,
    /// The delegation that it belongs to, if that has an id.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub delegation_id: Option<String>,
    /// The run that holds its outcome, where that is another than the one that is watched: for children of a
    /// child.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub run_id: Option<RunId>,
}

impl Identity {
    /// The one of a spec.
    #[must_use]
    pub fn of(spec: &TaskSpec) -> Self {
        Self {
            task_index: spec.task_index,
            task_count: spec.task_count,
            goal: spec.goal.clone(),
            subagent_id: spec.subagent_id.to_string(),
            parent_id: spec.parent_subagent_id.map(|id| id.to_string()),
            depth: spec.child_depth,
            model: spec.routing.model.clone(),
            toolsets: spec.enabled_toolsets.clone(),
            child_session_id: spec.session_id.clone(),
            delegation_id: spec.delegation_id.clone(),
            run_id: None,
        }
    }

    /// About how many bytes of memory it takes.
    pub(crate) fn weight(&self) -> usize {
        let sets = self.toolsets.iter().flatten().map(String::len).sum::<usize>();
        size_of::<Self>() + self.goal.len() + sets
    }
}

/// An event with who it is about. Its JSON is one flat object; a field of the event stands in place of
/// one of the identity with the same name.
#[derive(Debug, Clone, PartialEq)]
pub struct Relayed {
    /// Who.
    pub identity: Identity,
    /// The number of its batch in the conversation, from 1.
    pub set: u64,
    /// Tools that it has started so far.
    pub tool_count: u64,
    /// What.
    pub event: Event,
}

impl Relayed {
    /// What stands before a line about this child: `[set 2 · 1/3] `, counted from 1; of a batch of one task
    /// `[set 2] `.
    #[must_use]
    pub fn prefix(&self) -> String {
        let Identity { task_index, task_count, .. } = self.identity;
        if task_count == 1 {
            format!("[set {}] ", self.set)
        } else {
            format!("[set {} · {}/{task_count}] ", self.set, u64::from(task_index) + 1)
        }
    }
}

impl Serialize for Relayed {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let object = |value: Result<serde_json::Value, serde_json::Error>| match value {
            Ok(serde_json::Value::Object(fields)) => Ok(fields),
            Ok(_) => Err(S::Error::custom("not an object")),
            Err(error) => Err(S::Error::custom(error)),
        };
        let mut fields = object(serde_json::to_value(&self.identity))?;
        fields.insert("tool_count".to_owned(), self.tool_count.into());
        fields.insert("prefix".to_owned(), self.prefix().into());
        fields.extend(object(serde_json::to_value(&self.event))?);
        fields.serialize(serializer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::SubagentId;
    use crate::spec::sample;

    #[test]
    fn an_event_overrides_its_envelope_and_unknown_fields_are_left_out() {
        let mut spec = sample(3, "agent", "the goal of the task");
        spec.routing.model = Some("m-1".to_owned());
        let child = SubagentId::new(3, 1);
        let event = Event::Start { child, goal: "another goal".to_owned(), pid: Some(7) };
        let relayed = Relayed { identity: Identity::of(&spec), set: 4, tool_count: 2, event };
        let json = serde_json::to_value(&relayed).unwrap();
        assert_eq!(
            (&json["event"], &json["goal"]),
            (&"subagent.start".into(), &"another goal".into())
        );
        assert_eq!((&json["task_index"], &json["tool_count"]), (&3.into(), &2.into()));
        assert_eq!((&json["model"], &json["depth"]), (&"m-1".into(), &spec.child_depth.into()));
        assert_eq!(json["prefix"], format!("[set 4 · 4/{}] ", spec.task_count));
        assert!(json.get("delegation_id").is_none() || spec.delegation_id.is_some());
    }
}

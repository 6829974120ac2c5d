//! A batch of a child: the [`Parent`] that a child is to its own children, and its tasks as they came over
//! the line. Nothing here believes the child: depth, route and tools are those that it was given.

use std::time::Duration;

use delegate_child::IntoOrder;
use delegate_protocol::{Order, Role};

use super::task::Params;
use super::{Frame, Isolation, Means, Parent, Plan, StartError, Task, Tools, admit, plan_within};
use crate::config::Settings;

impl Plan {
    /// What one of its children is to children of its own.
    ///
    /// # Panics
    /// When `index` is not a task of this plan.
    #[must_use]
    pub fn as_parent(&self, index: usize) -> Parent {
        let spec = self.spec(index);
        let above = &self.frame.parent;
        let held =
            |set: &String| spec.enabled_toolsets.as_ref().is_none_or(|own| own.contains(set));
        Parent {
            subagent_id: Some(spec.subagent_id),
            depth: spec.child_depth,
            session_id: Some(spec.session_id),
            turn_id: None,
            delegation_id: spec.delegation_id,
            session_db_path: spec.session_db_path,
            routing: spec.routing,
            live: None,
            pool: above.pool.clone(),
            tools: Tools {
                loaded: Vec::new(),
                disabled: spec.disabled_toolsets,
                mcp: above.tools.mcp.iter().filter(|set| held(set)).cloned().collect(),
                contents: above.tools.contents.clone(),
                enabled: spec.enabled_toolsets,
            },
            cwd: spec.cwd,
            workspaces: spec.workspace_hint.into_iter().collect(),
            container: spec.container,
            cache_ttl: spec.cache_ttl,
            relay_events: spec.relay_events,
            headroom: None,
        }
    }

    /// Depth and role of its children.
    #[must_use]
    pub const fn standing(&self) -> (u32, Role) {
        (self.frame.child_depth, self.frame.role)
    }
}

/// As [`plan`], for tasks that a child gives, and not its model: their answers go to a program, whole.
///
/// # Errors
/// [`StartError`]; nothing was started.
pub(crate) fn plan_nested(
    tasks: &mut Vec<Task>,
    settings: &Settings,
    asked: Option<Isolation>,
    means: Means<'_>,
) -> Result<Plan, StartError> {
    let frame = Frame { by_agent: false, ..admit(settings, means)? };
    plan_within(frame, tasks, settings, asked, means, Ok(()))
}

impl From<Order> for Task {
    fn from(order: Order) -> Self {
        let Order {
            agent,
            goal,
            context,
            params,
            timeout_ms,
            cwd,
            images,
            group,
            toolsets,
            traceparent,
            metadata,
            output_schema,
            worktree_isolation,
        } = order;
        Self {
            params: Params::new(&params),
            output_schema: output_schema.as_ref().map(Params::new).unwrap_or_default(),
            timeout: timeout_ms.map(Duration::from_millis),
            context,
            cwd,
            images,
            group,
            toolsets,
            traceparent,
            metadata,
            worktree_isolation,
            ..Self::new(agent, goal)
        }
    }
}

impl IntoOrder for Task {
    fn into_order(self) -> Result<Order, String> {
        let Self {
            agent,
            goal,
            context,
            params,
            timeout,
            cwd,
            images,
            group,
            toolsets,
            traceparent,
            metadata,
            output_schema,
            worktree_isolation,
            in_turns: _,
            origin: _,
            timeout_origin: _,
        } = self;
        let crossed = |params: &Params, field: &str| {
            params
                .value()
                .map_err(|reason| format!("{field} cannot cross the process line: {reason}"))
        };
        let schema = crossed(&output_schema, "output_schema")?;
        Ok(Order {
            params: crossed(&params, "params")?,
            output_schema: (output_schema != Params::default()).then_some(schema),
            timeout_ms: timeout.map(|time| u64::try_from(time.as_millis()).unwrap_or(u64::MAX)),
            agent,
            goal,
            context,
            cwd,
            images,
            group,
            toolsets,
            traceparent,
            metadata,
            worktree_isolation,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use delegate_protocol::Value;

    #[test]
    fn a_task_is_the_same_after_the_line() {
        let task = Task::new("a", "goal")
            .params(Value::from("p"))
            .context("c")
            .timeout(Duration::from_millis(1500))
            .cwd("/tmp")
            .images(["i"])
            .group("g")
            .toolsets(["web"])
            .traceparent("t")
            .metadata("m", Value::Int(1))
            .output_schema(Value::Bool(true));
        let order = task.clone().into_order().unwrap();
        assert_eq!(Task::from(order), task);
        let plain = Task::new("a", "goal");
        assert_eq!(Task::from(plain.clone().into_order().unwrap()), plain);
    }

    #[test]
    fn what_cannot_cross_is_named() {
        let task = Task::new("a", "goal").output_schema(Value::Float(f64::NAN));
        let refused = Task { params: Params::refused("no map".to_owned()), ..task };
        assert!(refused.into_order().unwrap_err().starts_with("params cannot cross"));
    }
}

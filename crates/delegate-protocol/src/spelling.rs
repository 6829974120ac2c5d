//! The names by which agent loops call what happens in a child: formal ones, older ones, and ours. An
//! adapter hands a loop's callback arguments to [`relayed`] and gets a [`ChildEvent`], or nothing.

use crate::event::ChildEvent;
use crate::value::Value;

/// What happens in a child, by its formal name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Formal {
    /// A child was asked for. Reserved.
    TaskSpawned,
    /// How far the work has come.
    TaskProgress,
    /// A child is done. Reserved.
    TaskCompleted,
    /// A child failed. Reserved.
    TaskFailed,
    /// The agent thinks.
    TaskThinking,
    /// A tool was started.
    ToolStarted,
    /// A tool ended.
    ToolCompleted,
}

/// Older spellings.
pub const LEGACY: [(&str, Formal); 5] = [
    ("_thinking", Formal::TaskThinking),
    ("reasoning.available", Formal::TaskThinking),
    ("tool.started", Formal::ToolStarted),
    ("tool.completed", Formal::ToolCompleted),
    ("subagent_progress", Formal::TaskProgress),
];

/// Stream deltas have one spelling only.
const TEXT: &str = "subagent.text";

impl Formal {
    /// All of them.
    pub const ALL: [Self; 7] = [
        Self::TaskSpawned,
        Self::TaskProgress,
        Self::TaskCompleted,
        Self::TaskFailed,
        Self::TaskThinking,
        Self::ToolStarted,
        Self::ToolCompleted,
    ];

    /// Its name.
    #[must_use]
    pub const fn value(self) -> &'static str {
        match self {
            Self::TaskSpawned => "delegate.task_spawned",
            Self::TaskProgress => "delegate.task_progress",
            Self::TaskCompleted => "delegate.task_completed",
            Self::TaskFailed => "delegate.task_failed",
            Self::TaskThinking => "delegate.task_thinking",
            Self::ToolStarted => "delegate.tool_started",
            Self::ToolCompleted => "delegate.tool_completed",
        }
    }

    /// By its name, or by an older one; `None` for what nobody knows.
    #[must_use]
    pub fn parse(name: &str) -> Option<Self> {
        let formal = Self::ALL.into_iter().find(|formal| formal.value() == name);
        let legacy = || LEGACY.iter().find(|(older, _)| *older == name).map(|(_, formal)| *formal);
        formal.or_else(legacy)
    }
}

/// The event that a callback of an agent loop stands for: event name, tool name, preview, arguments.
/// `None` for what is not shown (a tool that ended, reserved names) and for unknown names.
#[must_use]
pub fn relayed(
    name: &str,
    tool: Option<&str>,
    preview: Option<&str>,
    args: Value,
) -> Option<ChildEvent> {
    // A summary that is handed up may stand where a tool's name stands.
    let line = || preview.or(tool).unwrap_or_default().to_owned();
    if name == TEXT {
        return Some(ChildEvent::Text { text: line() });
    }
    match Formal::parse(name)? {
        Formal::TaskThinking => Some(ChildEvent::Thinking { text: line() }),
        Formal::ToolStarted => Some(ChildEvent::Tool {
            name: tool.unwrap_or_default().to_owned(),
            preview: preview.map(str::to_owned),
            args,
            id: None,
            args_bytes: 0,
        }),
        Formal::TaskProgress => Some(ChildEvent::Progress { summary: line(), merged: 0 }),
        Formal::ToolCompleted
        | Formal::TaskSpawned
        | Formal::TaskCompleted
        | Formal::TaskFailed => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(name: &str) -> Option<ChildEvent> {
        relayed(name, Some("grep"), Some("line"), Value::Null)
    }

    #[test]
    fn m109_every_formal_name_starts_with_delegate() {
        for formal in Formal::ALL {
            assert!(formal.value().starts_with("delegate."), "{formal:?}");
        }
    }

    #[test]
    fn m110_the_older_names_are_exactly_five_and_each_has_its_formal_one() {
        let names: Vec<_> = LEGACY.iter().map(|(name, _)| *name).collect();
        let expected = [
            "_thinking",
            "reasoning.available",
            "tool.started",
            "tool.completed",
            "subagent_progress",
        ];
        assert_eq!(names, expected);
        for (name, formal) in LEGACY {
            assert_eq!(Formal::parse(name), Some(formal));
            assert_eq!(of(name), of(formal.value()), "{name}");
        }
    }

    #[test]
    fn m111_m112_m115_m116_each_spelling_of_a_tool_and_a_thought_is_shown() {
        let tool = Some(ChildEvent::Tool {
            name: "grep".to_owned(),
            preview: Some("line".to_owned()),
            args: Value::Null,
            id: None,
            args_bytes: 0,
        });
        let thought = Some(ChildEvent::Thinking { text: "line".to_owned() });
        assert_eq!((of("tool.started"), of("delegate.tool_started")), (tool.clone(), tool));
        for name in ["_thinking", "reasoning.available", "delegate.task_thinking"] {
            assert_eq!(of(name), thought, "{name}");
        }
        assert_eq!(of("subagent.text"), Some(ChildEvent::Text { text: "line".to_owned() }));
    }

    #[test]
    fn m113_m114_an_ended_tool_reserved_and_unknown_names_show_nothing() {
        for name in [
            "tool.completed",
            "delegate.tool_completed",
            "delegate.task_spawned",
            "delegate.task_completed",
            "delegate.task_failed",
            "no.such.event",
            "",
            "Tool.Started",
        ] {
            assert_eq!(of(name), None, "{name}");
        }
    }

    #[test]
    fn m117_a_ready_summary_in_the_tools_place_is_progress_and_no_tool() {
        for name in ["subagent_progress", "delegate.task_progress"] {
            let event = relayed(name, Some("a, b, c"), None, Value::Null);
            let summary = "a, b, c".to_owned();
            assert_eq!(event, Some(ChildEvent::Progress { summary, merged: 0 }), "{name}");
        }
    }
}

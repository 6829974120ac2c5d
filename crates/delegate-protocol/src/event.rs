//! What a child says while it works ([`ChildEvent`]), and what a consumer sees ([`Event`]).
//!
//! A child names neither itself nor its task: the parent knows which line an event came over and
//! adds the identity, so no child can speak for another. `json` writes an event as a line of its log.

mod json;

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::envelope::Identity;
use crate::id::SubagentId;
use crate::outcome::{Approval, ExitReason, Status, Tokens, ToolEnd, ToolOutput};
use crate::turn::TurnOver;
use crate::value::Value;

/// Whether an event may be merged under pressure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Class {
    /// Never lost, never merged: a full queue makes its sender wait.
    Lifecycle,
    /// May be merged with its successors, with a count of what was merged.
    Progress,
}

/// An event as a child sends it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ChildEvent {
    /// Streamed text, as it came. Neighbouring deltas may be joined.
    Text {
        /// The delta.
        text: String,
    },
    /// The agent thinks, or shows its reasoning.
    Thinking {
        /// The line.
        text: String,
    },
    /// A tool was started.
    Tool {
        /// Name of the tool.
        name: String,
        /// One line on what it is called with.
        preview: Option<String>,
        /// Its arguments.
        args: Value,
        /// The name of the call, where several run at once.
        #[serde(default)]
        id: Option<String>,
        /// Size of its arguments, in bytes; `args` is null where they are too large to be shown.
        #[serde(default)]
        args_bytes: u64,
    },
    /// Content that is not text: how far the work has come.
    Progress {
        /// One line.
        summary: String,
        /// Earlier progress events that this one stands for besides itself.
        merged: u64,
    },
    /// A fact for the parent that no consumer is shown.
    Note(Note),
}

/// What a parent wants to know at once, so that a child that is killed has told it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Note {
    /// The current tool ended.
    ToolDone(ToolEnd),
    /// A model was called.
    Call {
        /// Tokens of this call.
        tokens: Tokens,
        /// Tokens of it that were spent on reasoning.
        reasoning_tokens: u64,
        /// Money of this call in US dollars, if known.
        cost_usd: Option<f64>,
    },
    /// A file was read or written.
    File {
        /// Its path, as the agent names it.
        path: String,
        /// Written, not only read.
        written: bool,
    },
    /// The agent has taken this word of [`crate::ParentMessage::Steer`].
    Steered {
        /// Its number.
        number: u64,
    },
    /// The agent begins this turn ([`crate::turn`]).
    Turn {
        /// Its number.
        number: u64,
    },
    /// The agent asked whether it may do something dangerous, and got its answer.
    Approval(Approval),
    /// Whether silence means anything from now on. An agent that runs somebody else's program cannot
    /// tell whether it gets on.
    Channel {
        /// It does.
        reports: bool,
    },
}

impl ChildEvent {
    /// Whether it may be merged.
    #[must_use]
    pub const fn class(&self) -> Class {
        match self {
            Self::Tool { .. } | Self::Note(_) => Class::Lifecycle,
            Self::Text { .. } | Self::Thinking { .. } | Self::Progress { .. } => Class::Progress,
        }
    }

    /// The event as a consumer sees it, with the child's identity; `None` for a note.
    #[must_use]
    pub fn of(self, child: SubagentId) -> Option<Event> {
        Some(match self {
            Self::Text { text } => Event::Text { child, text },
            Self::Thinking { text } => Event::Thinking { child, text },
            Self::Tool { name, preview, args, id: _, args_bytes: _ } => {
                Event::Tool { child, name, preview, args }
            }
            Self::Progress { summary, merged } => Event::Progress { child, summary, merged },
            Self::Note(_) => return None,
        })
    }

    /// Whether it shows that the work gets on. Blank text does not, however much of it comes; nor does
    /// a word about the channel.
    #[must_use]
    pub fn is_content(&self) -> bool {
        match self {
            Self::Text { text }
            | Self::Thinking { text }
            | Self::Progress { summary: text, .. } => !text.trim().is_empty(),
            Self::Tool { .. } => true,
            Self::Note(note) => !matches!(note, Note::Channel { .. }),
        }
    }
}

/// An event as a consumer sees it.
///
/// Order for one child: `SpawnRequested`, `Waiting` while it waits in line, `Start`, then `Thinking`, `Tool`,
/// `Progress`, `Text` and `Warning` as they come, then exactly one `Complete`. One that takes several prompts has a
/// `Turn` at the begin and at the end of each. Children interleave.
/// After every fifth tool, and before `Complete` for the rest, comes one `Progress` with their names.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event")]
pub enum Event {
    /// The task was accepted. Comes before anything runs.
    #[serde(rename = "subagent.spawn_requested")]
    SpawnRequested {
        /// Which child.
        child: SubagentId,
        /// Its goal.
        goal: String,
        /// Who it is, for a child of a child: those that were started with the run are known by its plan.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        identity: Option<Box<Identity>>,
    },
    /// The task waits at a cap (places of its batch, slots of its tree). Said when that begins, and again when
    /// its position has changed, of the front of the line: a task far back is first heard of when it is near.
    #[serde(rename = "subagent.waiting")]
    Waiting {
        /// Which child.
        child: SubagentId,
        /// Launches until its turn, its own included: 1 is the next of all. Those of other parts of the tree
        /// that come before it count, as far as they are known.
        position: u32,
    },
    /// The child began its task.
    #[serde(rename = "subagent.start")]
    Start {
        /// Which child.
        child: SubagentId,
        /// Its goal.
        goal: String,
        /// Its process, `None` in a thread.
        pid: Option<u32>,
    },
    /// The agent thinks.
    #[serde(rename = "subagent.thinking")]
    Thinking {
        /// Which child.
        child: SubagentId,
        /// The line.
        text: String,
    },
    /// A tool was started.
    #[serde(rename = "subagent.tool")]
    Tool {
        /// Which child.
        child: SubagentId,
        /// Name of the tool.
        name: String,
        /// One line on what it is called with.
        preview: Option<String>,
        /// Its arguments.
        args: Value,
    },
    /// How far the work has come.
    #[serde(rename = "subagent.progress")]
    Progress {
        /// Which child.
        child: SubagentId,
        /// One line.
        summary: String,
        /// Earlier progress events that this one stands for besides itself.
        merged: u64,
    },
    /// Streamed text.
    #[serde(rename = "subagent.text")]
    Text {
        /// Which child.
        child: SubagentId,
        /// The delta.
        text: String,
    },
    /// The child makes no progress; said by the parent, once until it does again.
    #[serde(rename = "subagent.warning")]
    Warning {
        /// Which child.
        child: SubagentId,
        /// Which limit is near, or was passed.
        about: Limit,
        /// One line.
        text: String,
    },
    /// A turn of a child that takes several prompts: it begins, or it has ended and that is stored.
    #[serde(rename = "subagent.turn")]
    Turn {
        /// Which child.
        child: SubagentId,
        /// Which turn of its session, from 1.
        turn: u64,
        /// How it ended; `None`: it begins.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        end: Option<Box<TurnOver>>,
    },
    /// The child has its outcome. Exactly one per child, on every path.
    #[serde(rename = "subagent.complete")]
    Complete {
        /// Which child.
        child: SubagentId,
        /// How it ended, in short.
        end: Complete,
    },
}

/// A limit of time of a child.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Limit {
    /// Wall clock from its own start.
    Run,
    /// Window without progress.
    Inactivity,
    /// No progress while no tool runs.
    StaleIdle,
    /// No progress inside one tool.
    StaleInTool,
}

impl Limit {
    /// The setting that holds it.
    #[must_use]
    pub const fn key(self) -> &'static str {
        match self {
            Self::Run => "child_timeout_seconds",
            Self::Inactivity => "child_inactivity_seconds",
            Self::StaleIdle => "stale_idle_seconds",
            Self::StaleInTool => "stale_in_tool_seconds",
        }
    }
}

/// What `subagent.complete` carries: the outcome in short. The whole outcome is in the report.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Complete {
    /// Status of the task.
    pub status: Status,
    /// Why it ended.
    pub exit_reason: ExitReason,
    /// The first 160 characters of the summary, else of the error, on one line.
    #[serde(default)]
    pub preview: String,
    /// From the child's own start, in seconds.
    pub duration_seconds: f64,
    /// The first 500 characters of the summary.
    pub summary: Option<String>,
    /// What went wrong.
    pub error: Option<String>,
    /// Model calls.
    pub api_calls: u64,
    /// Tokens.
    pub tokens: Tokens,
    /// Tokens of reasoning among them.
    #[serde(default)]
    pub reasoning_tokens: u64,
    /// Money, if known.
    pub cost_usd: Option<f64>,
    /// Files that it read: the first [`COMPLETE_PATHS`].
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub files_read: Vec<String>,
    /// Files that it wrote: the first [`COMPLETE_PATHS`].
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub files_written: Vec<String>,
    /// How its last tools ended.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub output_tail: Vec<ToolOutput>,
}

/// Characters of the preview that `subagent.complete` carries.
pub const COMPLETE_PREVIEW_CHARS: usize = 160;

/// Paths of each kind that `subagent.complete` carries.
pub const COMPLETE_PATHS: usize = 40;

/// Characters of the summary that `subagent.complete` carries.
pub const COMPLETE_SUMMARY_CHARS: usize = 500;

impl Complete {
    fn weight(&self) -> usize {
        let texts = [&self.summary, &self.error].into_iter().flatten().map(String::len);
        let paths = self.files_read.iter().chain(&self.files_written).map(String::len);
        let tail = self.output_tail.iter().map(|end| end.tool.len() + end.preview.len());
        self.preview.len() + texts.chain(paths).chain(tail).sum::<usize>()
    }
}

impl Event {
    /// The child that it is about.
    #[must_use]
    pub const fn child(&self) -> SubagentId {
        match self {
            Self::SpawnRequested { child, .. }
            | Self::Waiting { child, .. }
            | Self::Start { child, .. }
            | Self::Thinking { child, .. }
            | Self::Tool { child, .. }
            | Self::Progress { child, .. }
            | Self::Text { child, .. }
            | Self::Warning { child, .. }
            | Self::Turn { child, .. }
            | Self::Complete { child, .. } => *child,
        }
    }

    /// About how many bytes of memory it takes, for bounds of queues. Reads no text.
    #[must_use]
    pub fn weight(&self) -> usize {
        let length = |text: &Option<String>| text.as_ref().map_or(0, String::len);
        let inside = match self {
            Self::SpawnRequested { goal, identity, .. } => {
                goal.len() + identity.as_ref().map_or(0, |identity| identity.weight())
            }
            Self::Waiting { .. } => 0,
            Self::Start { goal, .. } => goal.len(),
            Self::Thinking { text, .. } | Self::Text { text, .. } => text.len(),
            Self::Warning { text, .. } => text.len(),
            Self::Turn { end, .. } => end.as_ref().map_or(0, |end| end.weight()),
            Self::Tool { name, preview, args, .. } => name.len() + length(preview) + args.weight(),
            Self::Progress { summary, .. } => summary.len(),
            Self::Complete { end, .. } => end.weight(),
        };
        size_of::<Self>() + inside
    }

    /// Its name, such as `subagent.start`.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Self::SpawnRequested { .. } => "subagent.spawn_requested",
            Self::Waiting { .. } => "subagent.waiting",
            Self::Start { .. } => "subagent.start",
            Self::Thinking { .. } => "subagent.thinking",
            Self::Tool { .. } => "subagent.tool",
            Self::Progress { .. } => "subagent.progress",
            Self::Text { .. } => "subagent.text",
            Self::Warning { .. } => "subagent.warning",
            Self::Turn { .. } => "subagent.turn",
            Self::Complete { .. } => "subagent.complete",
        }
    }

    /// Whether it may be merged.
    #[must_use]
    pub const fn class(&self) -> Class {
        match self {
            Self::SpawnRequested { .. }
            | Self::Start { .. }
            | Self::Tool { .. }
            | Self::Warning { .. }
            | Self::Turn { .. }
            | Self::Complete { .. } => Class::Lifecycle,
            Self::Waiting { .. }
            | Self::Thinking { .. }
            | Self::Progress { .. }
            | Self::Text { .. } => Class::Progress,
        }
    }
}

/// Seconds with two decimals, as entries carry them.
#[must_use]
pub fn seconds(duration: Duration) -> f64 {
    (duration.as_secs_f64() * 100.0).round() / 100.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_is_the_tag_on_the_wire() {
        let child = SubagentId::new(0, 1);
        let events = [
            Event::SpawnRequested { child, goal: String::new(), identity: None },
            Event::Waiting { child, position: 3 },
            Event::Start { child, goal: String::new(), pid: None },
            ChildEvent::Thinking { text: String::new() }.of(child).unwrap(),
            ChildEvent::Tool {
                name: String::new(),
                preview: None,
                args: Value::Null,
                id: None,
                args_bytes: 0,
            }
            .of(child)
            .unwrap(),
            ChildEvent::Progress { summary: String::new(), merged: 0 }.of(child).unwrap(),
            ChildEvent::Text { text: String::new() }.of(child).unwrap(),
            Event::Warning { child, about: Limit::Inactivity, text: String::new() },
            Event::Turn { child, turn: 1, end: None },
        ];
        for event in events {
            let json = serde_json::to_value(&event).unwrap();
            assert_eq!(json["event"], event.name());
            assert_eq!(json["child"], "sa-0-00000001");
            assert_eq!(serde_json::from_value::<Event>(json).unwrap(), event);
        }
    }
}

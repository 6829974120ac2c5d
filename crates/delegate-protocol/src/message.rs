//! The messages of each direction, and the ends that may send them.
//!
//! The order on a line is fixed: the child says [`Hello`]; the parent answers with `Begin` (large
//! specs in parts before it); the child sends events and beats, then its result (large ones in
//! parts), then exactly one [`Finish`], and leaves. The stream is ordered, so a result cannot
//! overtake its own events.

use std::fmt;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::ask::{Answer, Question};
use crate::event::ChildEvent;
use crate::outcome::{ExitReason, SchemaWord, Tokens, ToolCall};
use crate::spec::TaskSpec;
use crate::value::Bytes;

/// One end of a line: what it sends is what the other end receives, by type.
pub trait End: fmt::Debug {
    /// What this end may send.
    type Sends: Serialize + fmt::Debug;
    /// What this end may receive.
    type Receives: DeserializeOwned + fmt::Debug;
}

/// The delegating side.
#[derive(Debug)]
pub enum ParentEnd {}

/// The worker's side.
#[derive(Debug)]
pub enum ChildEnd {}

impl End for ParentEnd {
    type Sends = ParentMessage;
    type Receives = ChildMessage;
}

impl End for ChildEnd {
    type Sends = ChildMessage;
    type Receives = ParentMessage;
}

/// What a parent says.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum ParentMessage {
    /// A part of a spec that is over the frame cap: MessagePack bytes, in order, ended by
    /// [`ParentMessage::BeginFromParts`].
    SpecPart(Bytes),
    /// The parts that were sent are the whole spec: start.
    BeginFromParts,
    /// Start this task. Nothing is done before it.
    Begin(Box<TaskSpec>),
    /// Ask the agent to unwind. Said at most once per child; honoured before `Begin` too.
    Interrupt,
    /// A word to the agent that interrupts nothing: it reads it when it likes.
    Notice {
        /// One line.
        text: String,
    },
    /// A word of whoever steers the agent, kept until it is read. Taking it is told by
    /// [`crate::Note::Steered`] with its number; what was not told before `Finish` was missed.
    Steer {
        /// Counts up within one child.
        number: u64,
        /// The text, at most [`STEER_BYTES`].
        text: String,
    },
    /// Ask the agent to unwind from this turn, and from it only; one that is over already is left as it is. For
    /// children that take several prompts.
    StopTurn {
        /// Its number.
        turn: u64,
    },
    /// Tell what you are doing ([`ChildMessage::Dump`]). Answered by the thread that writes the line,
    /// whatever the agent does. Ignored before `Begin`.
    Dump,
    /// What was asked ([`ChildMessage::Ask`]); once per question, in any order.
    Answer {
        /// The question's number.
        number: u64,
        /// The answer.
        answer: Answer,
    },
}

/// What a child says.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum ChildMessage {
    /// The first frame.
    Hello(Hello),
    /// Something happened.
    Event(ChildEvent),
    /// Still here. Sent each heartbeat interval by a thread of its own, so it proves a living
    /// process and not progress; the numbers in it prove progress.
    Beat(Beat),
    /// What the child is doing, for people; at most [`DUMP_BYTES`].
    Dump {
        /// Lines.
        text: String,
    },
    /// A question that waits for its answer. It may overtake events that were said before it. At most
    /// [`crate::ask::QUESTIONS`] are open at once.
    Ask {
        /// Counts up within one child.
        number: u64,
        /// What is asked.
        question: Question,
    },
    /// A part of a result, in order, before [`Finish`].
    ResultPart(Bytes),
    /// The last frame.
    Finish(Box<Finish>),
}

/// The first frame of a child.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    /// [`crate::version::PROTOCOL_VERSION`] of the worker.
    pub protocol: u32,
    /// Version of the worker's program, for messages.
    pub program_version: String,
    /// The worker's pid as it sees itself; 0 in a thread.
    pub pid: u32,
    /// Names of the agents that the worker can run.
    pub agents: Vec<String>,
}

/// A heartbeat record.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Beat {
    /// Counts beats from 1.
    pub sequence: u64,
    /// Model calls so far.
    pub api_calls: u64,
    /// The tool that is running now.
    pub current_tool: Option<String>,
    /// Milliseconds since the last content (text, tool, progress) when the beat was sent.
    pub quiet_ms: u64,
    /// Counts the signs of progress that no event tells: an agent's word that it gets on, and what is not
    /// relayed. A worker that does not count leaves it at 0.
    #[serde(default)]
    pub activity: u64,
}

/// Bytes of a [`ParentMessage::Steer`].
pub const STEER_BYTES: usize = 64 * 1024;

/// Words of [`ParentMessage::Steer`] that wait for one child at most.
pub const STEERS: usize = 32;

/// Bytes of a [`ChildMessage::Dump`].
pub const DUMP_BYTES: usize = 64 * 1024;

/// How a child ended in its own words. The parent checks it against the wait status.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Finish {
    /// Which of the four ends it was.
    pub verdict: Verdict,
    /// Length in bytes of the answer. Equals the sum of the parts when `answer` is `None`.
    pub answer_bytes: u64,
    /// The answer, when it fits into this frame; otherwise it came in parts.
    pub answer: Option<String>,
    /// Whether the answer is the agent's text, or JSON of its typed answer.
    pub answer_is_json: bool,
    /// The answer is empty on purpose: an empty text without it is a failure.
    pub empty_on_purpose: bool,
    /// What went wrong.
    pub error: Option<String>,
    /// Classified cause of a failure, such as `rate_limit`.
    pub failure_reason: Option<String>,
    /// Model calls.
    pub api_calls: u64,
    /// Tokens.
    pub tokens: Tokens,
    /// Model that really answered.
    pub model: Option<String>,
    /// Money, in US dollars.
    pub cost_usd: Option<f64>,
    /// What kind of number that is.
    #[serde(default)]
    pub cost_status: Option<String>,
    /// How the answer met its schema; `None` when none was asked for or there is no answer.
    #[serde(default)]
    pub schema: Option<SchemaWord>,
    /// Calls of tools, oldest first; at most [`crate::outcome::MAX_TOOL_TRACE`].
    pub tool_trace: Vec<ToolCall>,
}

/// The ends that a child can tell of itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// The run completed.
    Completed,
    /// The turn budget was used up; the answer is what there was.
    MaxIterations,
    /// The agent unwound because it was asked to.
    Interrupted,
    /// The run failed.
    Failed,
    /// The agent panicked.
    Panicked,
}

impl Verdict {
    /// The reason that a consumer sees.
    #[must_use]
    pub const fn exit_reason(self) -> ExitReason {
        match self {
            Self::Completed => ExitReason::Completed,
            Self::MaxIterations => ExitReason::MaxIterations,
            Self::Interrupted => ExitReason::Interrupted,
            Self::Failed | Self::Panicked => ExitReason::Error,
        }
    }
}

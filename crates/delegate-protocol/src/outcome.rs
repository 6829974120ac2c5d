//! How a child ended: the entry that a consumer gets, one per task, always.
//!
//! Field names and words are those that agent loops already read. The outcome of a task and the end
//! of its process are two facts; both are here ([`Outcome::status`] and [`Outcome::cause`]).

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::id::RunId;
use crate::job::Job;

/// Tool calls that an entry keeps; older ones are dropped first.
pub const MAX_TOOL_TRACE: usize = 1024;

/// Bytes of stderr that a crash entry carries.
pub const STDERR_TAIL: usize = 8 * 1024;

/// Bytes of an error text. Longer ones are cut where they are made, and again where they arrive.
pub const ERROR_BYTES: usize = 64 * 1024;

/// Bytes of a short word of a child's own: a tool, a model, a classified cause.
pub const NAME_BYTES: usize = 256;

/// Bytes of the head of a tool's result.
pub const PREVIEW_BYTES: usize = 4 * 600;

/// Ends of tools that an entry keeps.
pub const OUTPUT_TAIL: usize = 8;

/// Bytes of what an approval is asked for.
pub const REQUEST_BYTES: usize = 1024;

/// Approvals that an entry keeps; older ones are dropped first.
pub const MAX_APPROVALS: usize = 64;

/// Paths of each kind that an entry keeps.
pub const MAX_PATHS: usize = 4096;

/// Bytes of one path.
pub const PATH_BYTES: usize = 4096;

/// Delegations of a child that its entry names.
pub const MAX_DELEGATIONS: usize = 256;

/// Errors of an answer against its schema that an entry keeps.
pub const MAX_SCHEMA_ERRORS: usize = 20;

/// Bytes of one of them.
pub const SCHEMA_ERROR_BYTES: usize = 500;

/// `cost_status` where nobody knows.
pub const COST_UNKNOWN: &str = "unknown";

/// `cost_status` where an agent told a price and nothing of its kind.
pub const COST_ESTIMATED: &str = "estimated";

/// Status of a task.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Status {
    /// There is an answer.
    Completed,
    /// The run says that it failed, or its answer is empty.
    Failed,
    /// The child crashed, broke the protocol or could not start.
    Error,
    /// A limit ended it.
    Timeout,
    /// It was asked to stop.
    Interrupted,
    /// Its parent died before it had an outcome.
    Unknown,
}

impl Status {
    /// The word that JSON and people see.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Completed => "completed",
            Self::Failed => "failed",
            Self::Error => "error",
            Self::Timeout => "timeout",
            Self::Interrupted => "interrupted",
            Self::Unknown => "unknown",
        }
    }
}

/// Why a run ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ExitReason {
    /// It was done.
    Completed,
    /// Its turn budget was used up.
    MaxIterations,
    /// It was interrupted or killed on request.
    Interrupted,
    /// Something failed.
    Error,
    /// A limit ended it.
    Timeout,
}

/// What happened to the process or thread that carried the child.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "kind")]
pub enum Cause {
    /// It exited by itself.
    Exited {
        /// Exit code, 0 to 255. 0 for a thread that returned.
        code: i32,
    },
    /// A signal ended it.
    Signaled {
        /// Number of the signal.
        signal: i32,
        /// Whether a core was dumped.
        core_dumped: bool,
    },
    /// The kernel ended it because memory ran out.
    OutOfMemory,
    /// Its processor time was used up: the kernel or its guard ended it.
    CpuTimeUsedUp,
    /// No process was started.
    StartFailed {
        /// Step that failed, such as `exec` or `chdir`.
        phase: String,
        /// Error number, where there is one.
        errno: Option<i32>,
        /// Path or program that it was about.
        path: Option<String>,
    },
    /// It started and said nothing within the start limit.
    StartTimeout,
    /// It sent what is not the protocol.
    ProtocolError {
        /// What was wrong.
        detail: String,
    },
    /// A thread that did not return within the grace time. It may still run.
    Abandoned,
    /// Nobody knows: the supervisor or the parent died first, or it cannot be ended yet (a note says so).
    Lost,
}

/// What carried a child.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Isolation {
    /// An OS process of its own.
    Process,
    /// A thread of the parent.
    Thread,
}

impl Isolation {
    /// The word that JSON and people see.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Process => "process",
            Self::Thread => "thread",
        }
    }
}

/// Tokens of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Tokens {
    /// Sent to models.
    pub input: u64,
    /// Received from models.
    pub output: u64,
}

/// One call of a tool.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ToolCall {
    /// Name of the tool.
    pub tool: String,
    /// Size of its arguments, in bytes.
    pub args_bytes: u64,
    /// What it was called with, in short.
    #[serde(default)]
    pub input_summary: InputSummary,
    /// Size of its result, in bytes.
    pub result_bytes: u64,
    /// `ok` or `error`.
    pub status: String,
}

/// What a tool was called with: no value but what it works on, and no credential.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct InputSummary {
    /// Names of its arguments, in order; at most [`crate::tool_text::MAX_KEYS`].
    pub argument_keys: Vec<String>,
    /// Paths and addresses that it works on; at most [`crate::tool_text::MAX_TARGETS`].
    pub targets: Vec<String>,
}

/// How an answer met its schema, as a child tells it.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct SchemaWord {
    /// It does.
    pub valid: bool,
    /// Turns that the agent had besides its first: 0 or 1.
    pub retries: u32,
    /// What is wrong with it; at most [`MAX_SCHEMA_ERRORS`].
    pub errors: Vec<String>,
    /// What became of the one more turn, where that needs words.
    pub note: Option<String>,
}

/// How a tool ended, as a child tells it.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct ToolEnd {
    /// The name of the call, where several run at once.
    #[serde(default)]
    pub id: Option<String>,
    /// Which tool; `None`: the current one.
    #[serde(default)]
    pub tool: Option<String>,
    /// Size of its result, in bytes.
    pub result_bytes: u64,
    /// It went well.
    pub ok: bool,
    /// The head of its result; at most [`PREVIEW_BYTES`].
    pub preview: Option<String>,
}

/// What an agent wanted to be allowed, and the answer. Nobody is asked: see `subagent_auto_approve`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Approval {
    /// What was asked for; at most [`REQUEST_BYTES`].
    pub request: String,
    /// Allowed, for this once.
    pub approved: bool,
}

/// How one tool ended, for people.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ToolOutput {
    /// Name of the tool.
    pub tool: String,
    /// The first 600 characters of what it gave.
    pub preview: String,
    /// It failed.
    pub is_error: bool,
}

/// What a child has delegated, on every level below it.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Subtree {
    /// The runs of its own delegations, oldest first; at most [`MAX_DELEGATIONS`].
    pub runs: Vec<RunId>,
    /// Children on all levels that have an outcome.
    pub children: u64,
    /// Model calls of all of them.
    pub api_calls: u64,
    /// Tokens of all of them.
    pub tokens: Tokens,
    /// Money of all of them, in US dollars, where it is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cost_usd: Option<f64>,
}

/// The git worktree that a child had for itself, and what became of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Worktree {
    /// Where it is, or was.
    pub path: PathBuf,
    /// Its branch.
    pub branch: String,
    /// The commit that it began at.
    pub base: String,
    /// Commits of it that its base does not have.
    pub commits: u64,
    /// There are changes in it that are not committed, or files that are not tracked.
    pub dirty: bool,
    /// It was proved to hold nothing, and is gone with its branch.
    pub pruned: bool,
    /// It could not be looked at, so it stays.
    pub inspection_failed: bool,
    /// Why it stays.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}

/// For serde.
#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
const fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// For serde.
fn cost_unknown() -> String {
    COST_UNKNOWN.to_owned()
}

/// The entry of one task.
///
/// Plain data on purpose: every place that builds one names every field.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Outcome {
    /// Position in the batch, 0-based; results are in this order.
    pub task_index: u32,
    /// Status of the task.
    pub status: Status,
    /// The answer; for an interrupted child its last text. Head only when the answer was spilled
    /// ([`Outcome::result_path`]).
    pub summary: Option<String>,
    /// What went wrong.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// Why it ended.
    pub exit_reason: ExitReason,
    /// The turn budget was used up.
    pub truncated: bool,
    /// Model calls.
    pub api_calls: u64,
    /// From the child's own start, in seconds.
    pub duration_seconds: f64,
    /// The model that answered.
    pub model: Option<String>,
    /// Tokens.
    pub tokens: Tokens,
    /// Calls of tools.
    pub tool_trace: Vec<ToolCall>,
    /// Money, in US dollars; with what its own children spent ([`Outcome::subtree`]).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cost_usd: Option<f64>,
    /// What kind of number that is, in the agent's word, such as `exact`; [`COST_ESTIMATED`] where it
    /// told none, [`COST_UNKNOWN`] where it told no price.
    #[serde(default = "cost_unknown")]
    pub cost_status: String,
    /// Classified cause of a failure.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure_reason: Option<String>,
    /// The limit that really ended the wait, in seconds; null when none did.
    pub timeout_seconds: Option<f64>,
    /// How long it had run by then, in seconds.
    pub timed_out_after_seconds: Option<f64>,
    /// `before_first_llm_call` or `after_llm_calls`.
    pub timeout_phase: Option<String>,
    /// Seconds of silence before the limit.
    pub last_event_age: Option<f64>,
    /// What the child was doing when a limit ended it before its first model call: a text file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub diagnostic_path: Option<PathBuf>,
    /// Tokens of reasoning among [`Outcome::tokens`].
    #[serde(default, skip_serializing_if = "is_zero")]
    pub reasoning_tokens: u64,
    /// Files that it read, in the order of their first mention.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub files_read: Vec<String>,
    /// Files that it wrote, in the order of their first mention.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub files_written: Vec<String>,
    /// How its last [`OUTPUT_TAIL`] tools ended.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub output_tail: Vec<ToolOutput>,
    /// Words to the child that were accepted and that it did not take, one a line. Also in brackets behind
    /// a summary that is text, else behind the error.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub missed_steer: Option<String>,
    /// What it delegated itself, and what that spent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub subtree: Option<Subtree>,
    /// What it asked to be allowed, oldest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub approvals: Vec<Approval>,
    /// What happened to the process or thread.
    pub cause: Option<Cause>,
    /// The last [`STDERR_TAIL`] bytes of stderr, for a crash.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stderr_tail: Option<String>,
    /// What else there is to say: dropped frames, a violation after the result, a killed leftover.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
    /// The process; null in a thread.
    pub pid: Option<u32>,
    /// What really carried it.
    pub isolation: Isolation,
    /// Which launcher started it: `thread` or `exec`. Null when it was never launched.
    pub launcher: Option<String>,
    /// Folder with its stdout, stderr and events; null when they could not be kept.
    pub logs: Option<PathBuf>,
    /// File that one can follow while the child works: what it says and does, for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub live_transcript: Option<PathBuf>,
    /// The summary is head and tail only, since it is over its budget.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub summary_truncated: bool,
    /// File with the whole of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub summary_full_path: Option<PathBuf>,
    /// Files that its parent has read and it changed, where there is no summary that could say so.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub stale_paths: Vec<String>,
    /// Background programs that it handed to its parent, which run.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub handed_off_processes: Vec<Job>,
    /// Background programs that ran at its end, and were ended with it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub orphaned_processes: Vec<Job>,
    /// Background programs that had ended, which it never heard.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unread_completions: Vec<Job>,
    /// The git worktree that it had for itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub worktree: Option<Worktree>,
    /// The answer meets the task's `output_schema`. Null when none was asked for, or there is no answer
    /// to check (then the note says so).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub schema_valid: Option<bool>,
    /// Turns that the agent had to correct it: 0 or 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub schema_retries: Option<u32>,
    /// What is wrong with it; at most [`MAX_SCHEMA_ERRORS`].
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub schema_errors: Vec<String>,
    /// The same for people, in a sentence.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub schema_note: Option<String>,
    /// The summary is JSON of a typed answer.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub answer_is_json: bool,
    /// File with the whole answer, when it was too large for the entry.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub result_path: Option<PathBuf>,
    /// SHA-256 of that file, in hex.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub result_sha256: Option<String>,
    /// Its size in bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub result_bytes: Option<u64>,
}

/// An answer that is not of the asked type.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("task {task_index} has no answer of this type: {reason}")]
pub struct AnswerError {
    /// Which task.
    pub task_index: u32,
    /// Why.
    pub reason: String,
}

impl Outcome {
    /// The words that it did not take, as they stand behind the summary (or the error) of a text answer.
    #[must_use]
    pub fn missed_note(&self) -> Option<String> {
        let missed = self.missed_steer.as_ref()?;
        Some(format!("\n\n[not delivered before it ended: {missed}]"))
    }

    /// The answer as a type. Text agents answer with a `String`.
    ///
    /// # Errors
    /// When the task did not complete, the answer is of another type, or a spilled answer cannot
    /// be read.
    pub fn parse_answer<T: serde::de::DeserializeOwned>(&self) -> Result<T, AnswerError> {
        let fail = |reason: String| AnswerError { task_index: self.task_index, reason };
        if self.status != Status::Completed {
            let why = self.error.as_deref().unwrap_or("no reason was given");
            return Err(fail(format!("its status is {}: {why}", self.status.word())));
        }
        let whole = match self.result_path.as_ref().or(self.summary_full_path.as_ref()) {
            Some(path) => std::fs::read_to_string(path)
                .map_err(|error| fail(format!("{}: {error}", path.display())))?,
            None => {
                let summary = self.summary.as_deref().unwrap_or_default();
                let note = self.missed_note();
                note.and_then(|note| summary.strip_suffix(&note)).unwrap_or(summary).to_owned()
            }
        };
        let parsed = if self.answer_is_json {
            serde_json::from_str(&whole)
        } else {
            serde_json::from_value(serde_json::Value::String(whole))
        };
        parsed.map_err(|error| fail(error.to_string()))
    }
}

//! What a child spent and touched, folded from its notes as they come, so that one that is killed has
//! told it: calls, tokens, money, files, and how its last tools ended. Filled by [`crate::run`].

use std::collections::{BTreeSet, VecDeque};

use delegate_protocol::file::{Change, FileQuestion};
use delegate_protocol::outcome::{
    Approval, MAX_APPROVALS, MAX_PATHS, NAME_BYTES, OUTPUT_TAIL, PATH_BYTES, REQUEST_BYTES,
    ToolEnd, ToolOutput,
};
use delegate_protocol::trace::ToolTrace;
use delegate_protocol::{Beat, Note, Tokens, ToolCall, Value, tool_text};

use super::cut_off;

/// Characters of a tool's output that an entry shows.
const PREVIEW_CHARS: usize = 600;

/// The running account of a child, on its parent's side.
#[derive(Debug, Default)]
pub struct Spent {
    /// Calls by notes, and by beats: a beat may be ahead of the notes that wait behind it.
    calls: [u64; 2],
    pub(super) tokens: Tokens,
    pub(super) reasoning_tokens: u64,
    pub(super) cost_usd: Option<f64>,
    pub(super) read: Paths,
    pub(super) written: Paths,
    pub(super) tail: VecDeque<ToolOutput>,
    pub(super) approvals: VecDeque<Approval>,
    trace: ToolTrace,
}

impl Spent {
    /// Takes the start of a tool.
    pub fn tool(&mut self, name: &str, args: &Value, id: Option<&str>, args_bytes: u64) {
        // A worker of another make may name things as long as it likes, and many of them are kept.
        let summary = tool_text::input_summary(args);
        self.trace.start(id.map(head), head(name), args_bytes, summary);
    }

    /// Its calls of tools by what it told; those that ran ended with it, and not well.
    pub(super) fn tool_trace(&mut self) -> Vec<ToolCall> {
        self.trace.all_done(false);
        self.trace.take()
    }

    /// Takes a note; `tool` is the one that runs.
    pub fn note(&mut self, note: Note, tool: Option<&str>) {
        match note {
            Note::Call { tokens, reasoning_tokens, cost_usd } => {
                self.calls[0] = self.calls[0].saturating_add(1);
                self.tokens.input = self.tokens.input.saturating_add(tokens.input);
                self.tokens.output = self.tokens.output.saturating_add(tokens.output);
                self.reasoning_tokens = self.reasoning_tokens.saturating_add(reasoning_tokens);
                if let Some(cost) = cost_usd {
                    self.cost_usd = Some(self.cost_usd.unwrap_or(0.0) + cost);
                }
            }
            Note::File { path, written: true } => self.written.add(path),
            Note::File { path, written: false } => self.read.add(path),
            Note::ToolDone(ToolEnd { id, tool: named, result_bytes, ok, preview }) => {
                let mut id = id;
                id.iter_mut().for_each(|id| cut_off(id, NAME_BYTES));
                drop(self.trace.done(id.as_deref(), result_bytes, ok));
                if self.tail.len() == OUTPUT_TAIL {
                    self.tail.pop_front();
                }
                let preview = preview.unwrap_or_default().chars().take(PREVIEW_CHARS).collect();
                let mut tool = named.unwrap_or_else(|| tool.unwrap_or("tool").to_owned());
                cut_off(&mut tool, NAME_BYTES);
                self.tail.push_back(ToolOutput { tool, preview, is_error: !ok });
            }
            Note::Approval(mut approval) => {
                cut_off(&mut approval.request, REQUEST_BYTES);
                if self.approvals.len() == MAX_APPROVALS {
                    self.approvals.pop_front();
                }
                self.approvals.push_back(approval);
            }
            Note::Channel { .. } | Note::Steered { .. } | Note::Turn { .. } => {}
        }
    }

    /// Takes what a child asks about a file: reading and changing one is told by that alone.
    pub fn file(&mut self, question: &FileQuestion) {
        match question {
            FileQuestion::Read { path, .. } => self.read.add(path.clone()),
            FileQuestion::Changed { path, change } => {
                self.written.add(path.clone());
                if let Change::Renamed { to, .. } = change {
                    self.written.add(to.clone());
                }
            }
            FileQuestion::Check { .. }
            | FileQuestion::Lock { .. }
            | FileQuestion::Unlock { .. } => {}
        }
    }

    /// Takes a beat.
    pub fn beat(&mut self, beat: &Beat) {
        self.calls[1] = self.calls[1].max(beat.api_calls);
    }

    /// Model calls so far.
    #[must_use]
    pub fn api_calls(&self) -> u64 {
        self.calls[0].max(self.calls[1])
    }
}

/// Of a name that may be long, as much as [`cut_off`] leaves.
fn head(name: &str) -> &str {
    let end = (0..=NAME_BYTES.min(name.len())).rev().find(|at| name.is_char_boundary(*at));
    &name[..end.unwrap_or(0)]
}

/// Paths in the order of their first mention; no more than an entry takes.
#[derive(Debug, Default)]
pub(super) struct Paths {
    known: BTreeSet<String>,
    list: Vec<String>,
}

impl Paths {
    fn add(&mut self, mut path: String) {
        cut_off(&mut path, PATH_BYTES);
        if self.list.len() < MAX_PATHS && !self.known.contains(&path) {
            self.known.insert(path.clone());
            self.list.push(path);
        }
    }

    pub(super) fn into_list(self) -> Vec<String> {
        self.list
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(path: &str, written: bool) -> Note {
        Note::File { path: path.to_owned(), written }
    }

    #[test]
    fn a_call_that_both_a_beat_and_a_note_tell_counts_once() {
        let mut spent = Spent::default();
        let tokens = Tokens { input: 3, output: 4 };
        for cost_usd in [None, Some(0.5), None] {
            spent.note(Note::Call { tokens, reasoning_tokens: 1, cost_usd }, None);
        }
        spent.beat(&Beat { api_calls: 3, ..Beat::default() });
        assert_eq!((spent.api_calls(), spent.reasoning_tokens, spent.cost_usd), (3, 3, Some(0.5)));
        assert_eq!(spent.tokens, Tokens { input: 9, output: 12 });
        // A worker that tells no notes beats, and the other way round.
        spent.beat(&Beat { api_calls: 7, ..Beat::default() });
        assert_eq!(spent.api_calls(), 7);
    }

    /// What is kept of a worker that names things without end is bounded.
    #[test]
    fn calls_of_a_worker_of_another_make_are_bounded() {
        let mut spent = Spent::default();
        let long = "é".repeat(100_000);
        let args = Value::Map([(long.clone(), Value::Text(long.clone()))].into());
        for _ in 0..2 * delegate_protocol::outcome::MAX_TOOL_TRACE {
            spent.tool(&long, &args, Some(&long), u64::MAX);
        }
        let id = Some(long.clone());
        let end = ToolEnd { id, tool: None, result_bytes: 5, ok: true, preview: None };
        spent.note(Note::ToolDone(end), None);
        let trace = spent.tool_trace();
        assert_eq!(trace.len(), delegate_protocol::outcome::MAX_TOOL_TRACE);
        let bytes = |call: &ToolCall| {
            let summary = &call.input_summary;
            let words = summary.argument_keys.iter().chain(&summary.targets);
            call.tool.len() + words.map(String::len).sum::<usize>()
        };
        assert!(trace.iter().all(|call| bytes(call) < 4096 && call.tool.len() <= NAME_BYTES));
        // The end found its call, though both had a name that is cut.
        let last = trace.last().unwrap();
        assert_eq!((last.result_bytes, last.status.as_str()), (5, "ok"));
        assert_eq!(trace[0].status, "ok");
    }

    #[test]
    fn c15_paths_are_told_once_in_order_and_are_bounded() {
        let mut spent = Spent::default();
        for path in ["b", "a", "b", "a"] {
            spent.note(file(path, true), None);
            spent.note(file("r", false), None);
        }
        for number in 0..2 * MAX_PATHS {
            spent.note(file(&number.to_string(), false), None);
        }
        spent.note(file(&"x".repeat(2 * PATH_BYTES), true), None);
        let written = spent.written.into_list();
        assert_eq!((&written[..2], written.len()), (&["b".to_owned(), "a".to_owned()][..], 3));
        assert_eq!(written[2].len(), PATH_BYTES);
        let read = spent.read.into_list();
        assert_eq!((read[0].as_str(), read.len()), ("r", MAX_PATHS));
    }

    #[test]
    fn the_tail_holds_the_last_tools_with_the_head_of_their_output() {
        let mut spent = Spent::default();
        for number in 0..OUTPUT_TAIL + 1 {
            let preview = Some("é".repeat(2 * PREVIEW_CHARS));
            let end =
                ToolEnd { id: None, tool: None, result_bytes: 1, ok: number % 2 == 0, preview };
            spent.note(Note::ToolDone(end), Some(&number.to_string()));
        }
        assert_eq!(spent.tail.len(), OUTPUT_TAIL);
        assert_eq!((spent.tail[0].tool.as_str(), spent.tail[0].is_error), ("1", true));
        assert_eq!(spent.tail[0].preview.chars().count(), PREVIEW_CHARS);
    }
}

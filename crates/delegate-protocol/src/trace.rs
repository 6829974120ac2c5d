//! Calls of tools in their order, with how each ended: [`ToolTrace`]. A child keeps one for its finish, and its
//! parent the same of the events that it sees, so that a child that is killed leaves the trace that it would have
//! told. Pure.

use std::collections::VecDeque;

use crate::outcome::{InputSummary, MAX_TOOL_TRACE, ToolCall};

/// Calls that run at once. Of more, the oldest is taken to have gone well.
const MAX_OPEN: usize = 256;

/// The newest calls of one child, at most [`MAX_TOOL_TRACE`].
#[derive(Debug, Default)]
pub struct ToolTrace {
    /// In the order of the calls; those that run have no status yet.
    calls: VecDeque<ToolCall>,
    /// Calls that are not kept any more.
    dropped: u64,
    /// Calls that run, the latest last.
    open: Vec<Open>,
}

/// A call that runs.
#[derive(Debug)]
struct Open {
    /// The name of the call, where several run at once.
    id: Option<String>,
    /// Its number, from 0.
    number: u64,
}

impl ToolTrace {
    /// A tool starts. A call without an id ends the one before it that had none either, and that was
    /// never said to be done: it is taken to have gone well.
    pub fn start(
        &mut self,
        id: Option<&str>,
        tool: &str,
        args_bytes: u64,
        input_summary: InputSummary,
    ) {
        if id.is_none()
            && let Some(at) = self.open.iter().position(|open| open.id.is_none())
        {
            self.close(at, 0, true);
        }
        if self.open.len() == MAX_OPEN {
            self.close(0, 0, true);
        }
        // The oldest leaves the new one the room of its words: there may be tools by the thousand.
        let oldest = if self.calls.len() == MAX_TOOL_TRACE { self.calls.pop_front() } else { None };
        self.dropped += u64::from(oldest.is_some());
        let (mut name, mut status) =
            oldest.map(|call| (call.tool, call.status)).unwrap_or_default();
        tool.clone_into(&mut name);
        status.clear();
        let number = self.dropped + self.calls.len() as u64;
        self.open.push(Open { id: id.map(str::to_owned), number });
        self.calls.push_back(ToolCall {
            tool: name,
            args_bytes,
            input_summary,
            result_bytes: 0,
            status,
        });
    }

    /// The call of this id, else the latest one that runs, ended. Gives the tool's name.
    pub fn done(&mut self, id: Option<&str>, result_bytes: u64, ok: bool) -> Option<String> {
        let named =
            id.and_then(|id| self.open.iter().rposition(|open| open.id.as_deref() == Some(id)));
        let at = named.or(self.open.len().checked_sub(1))?;
        self.close(at, result_bytes, ok).map(str::to_owned)
    }

    /// Whatever runs has ended with the run.
    pub fn all_done(&mut self, ok: bool) {
        while !self.open.is_empty() {
            self.close(0, 0, ok);
        }
    }

    fn close(&mut self, at: usize, result_bytes: u64, ok: bool) -> Option<&str> {
        let number = self.open.remove(at).number;
        let call = self.call(number)?;
        call.result_bytes = result_bytes;
        if ok { "ok" } else { "error" }.clone_into(&mut call.status);
        Some(&call.tool)
    }

    fn call(&mut self, number: u64) -> Option<&mut ToolCall> {
        let at = usize::try_from(number.checked_sub(self.dropped)?).ok()?;
        self.calls.get_mut(at)
    }

    /// The tool that runs: that of the latest call without an end.
    #[must_use]
    pub fn current(&self) -> Option<&str> {
        let number = self.open.last()?.number;
        let at = usize::try_from(number.checked_sub(self.dropped)?).ok()?;
        self.calls.get(at).map(|call| call.tool.as_str())
    }

    /// The trace so far, oldest first; takes it.
    pub fn take(&mut self) -> Vec<ToolCall> {
        self.dropped += self.calls.len() as u64;
        std::mem::take(&mut self.calls).into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(trace: &mut ToolTrace, id: Option<&str>, name: &str) {
        trace.start(id, name, 1, InputSummary::default());
    }

    fn shown(trace: &[ToolCall]) -> Vec<(&str, u64, &str)> {
        trace.iter().map(|call| (&*call.tool, call.result_bytes, &*call.status)).collect()
    }

    #[test]
    fn the_trace_keeps_the_newest_calls_and_how_they_ended() {
        let mut trace = ToolTrace::default();
        assert_eq!(trace.done(None, 9, true), None);
        for number in 0..MAX_TOOL_TRACE + 2 {
            call(&mut trace, None, &number.to_string());
        }
        assert!(trace.done(None, 3, false).is_some());
        let calls = trace.take();
        assert_eq!(calls.len(), MAX_TOOL_TRACE);
        assert_eq!((calls[0].tool.as_str(), calls[0].status.as_str()), ("2", "ok"));
        let last = calls.last().unwrap();
        assert_eq!((last.result_bytes, last.status.as_str()), (3, "error"));
        assert_eq!(trace.current(), None);
    }

    #[test]
    fn m051_parallel_calls_get_their_own_ends_by_id_and_others_the_latest() {
        let mut trace = ToolTrace::default();
        for (id, name) in [("1", "a"), ("2", "b"), ("3", "c")] {
            call(&mut trace, Some(id), name);
        }
        assert_eq!(trace.current(), Some("c"));
        assert_eq!(trace.done(Some("1"), 10, true).as_deref(), Some("a"));
        assert_eq!(trace.done(Some("3"), 30, true).as_deref(), Some("c"));
        // Nobody has this id: the latest that runs.
        assert_eq!(trace.done(Some("9"), 20, false).as_deref(), Some("b"));
        call(&mut trace, Some("4"), "d");
        trace.all_done(false);
        let expected = [("a", 10, "ok"), ("b", 20, "error"), ("c", 30, "ok"), ("d", 0, "error")];
        assert_eq!(shown(&trace.take()), expected);
    }

    /// An agent that never says that a call is over costs no memory without end.
    #[test]
    fn calls_that_never_end_are_bounded() {
        let mut trace = ToolTrace::default();
        for number in 0..2 * MAX_TOOL_TRACE {
            call(&mut trace, Some(&number.to_string()), "t");
            assert!(trace.open.len() <= MAX_OPEN);
        }
        trace.all_done(true);
        assert!(trace.take().iter().all(|call| call.status == "ok"));
    }
}

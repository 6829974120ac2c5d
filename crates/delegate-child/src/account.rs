//! What a child counts while it runs: calls, tokens, money, tools, its last words. Kept apart from
//! the agent, so that it survives a panic. `session` writes it; `serve` reads it for beats and for
//! the finish.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use delegate_protocol::outcome::MAX_TOOL_TRACE;
use delegate_protocol::{Beat, InputSummary, Tokens, ToolCall, Value};

use crate::tail::Tail;

/// Bytes of emitted text that are kept as an interrupted child's answer.
pub(crate) const LAST_TEXT: usize = 64 * 1024;

/// The running account of one child.
#[derive(Debug)]
pub(crate) struct Account {
    pub(crate) api_calls: u64,
    pub(crate) tokens: Tokens,
    pub(crate) cost_usd: Option<f64>,
    pub(crate) model: Option<String>,
    pub(crate) empty_on_purpose: bool,
    pub(crate) last_text: Tail,
    pub(crate) cost_status: Option<String>,
    /// In the order of the calls; those that run have no status yet.
    trace: VecDeque<ToolCall>,
    /// Calls that are not in the trace any more.
    dropped: u64,
    /// Calls that run, the latest last.
    open: Vec<Open>,
    last_content: Instant,
    /// What was done last, in a word or two.
    last_activity: String,
    /// Signs of progress so far that no event tells.
    activity: u64,
}

/// A call that runs.
#[derive(Debug)]
struct Open {
    /// The name of the call, where several run at once.
    id: Option<String>,
    /// Its number, from 0.
    number: u64,
}

/// Calls that run at once. Of more, the oldest is taken to have gone well.
const MAX_OPEN: usize = 256;

impl Account {
    pub(crate) fn new(now: Instant) -> Self {
        Self {
            api_calls: 0,
            tokens: Tokens::default(),
            cost_usd: None,
            model: None,
            empty_on_purpose: false,
            last_text: Tail::new(LAST_TEXT),
            cost_status: None,
            trace: VecDeque::new(),
            dropped: 0,
            open: Vec::new(),
            last_content: now,
            last_activity: String::new(),
            activity: 0,
        }
    }

    /// There is a sign of progress; `what` it was.
    pub(crate) fn content(&mut self, now: Instant, what: &str) {
        self.last_content = now;
        if self.last_activity != what {
            what.clone_into(&mut self.last_activity);
        }
    }

    /// The last sign of progress is told by no event.
    pub(crate) const fn untold(&mut self) {
        self.activity = self.activity.saturating_add(1);
    }

    /// A model call. Money stays unknown until some call names it.
    pub(crate) fn api_call(&mut self, tokens: Tokens, cost_usd: Option<f64>) {
        self.api_calls = self.api_calls.saturating_add(1);
        self.tokens.input = self.tokens.input.saturating_add(tokens.input);
        self.tokens.output = self.tokens.output.saturating_add(tokens.output);
        if let Some(cost) = cost_usd {
            self.cost_usd = Some(self.cost_usd.unwrap_or(0.0) + cost);
        }
    }

    /// A tool starts. A call without an id ends the one before it that had none either, and that was
    /// never said to be done: it is taken to have gone well.
    pub(crate) fn tool(
        &mut self,
        id: Option<&str>,
        name: &str,
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
        if self.trace.len() == MAX_TOOL_TRACE {
            self.trace.pop_front();
            self.dropped += 1;
        }
        let number = self.dropped + self.trace.len() as u64;
        self.open.push(Open { id: id.map(str::to_owned), number });
        self.trace.push_back(ToolCall {
            tool: name.to_owned(),
            args_bytes,
            input_summary,
            result_bytes: 0,
            status: String::new(),
        });
    }

    /// The call of this id, else the latest one that runs, ended. Gives the tool's name.
    pub(crate) fn tool_done(
        &mut self,
        id: Option<&str>,
        result_bytes: u64,
        ok: bool,
    ) -> Option<String> {
        let named =
            id.and_then(|id| self.open.iter().rposition(|open| open.id.as_deref() == Some(id)));
        let at = named.or(self.open.len().checked_sub(1))?;
        self.close(at, result_bytes, ok)
    }

    /// Whatever runs has ended with the run.
    pub(crate) fn all_done(&mut self, ok: bool) {
        while !self.open.is_empty() {
            self.close(0, 0, ok);
        }
    }

    fn close(&mut self, at: usize, result_bytes: u64, ok: bool) -> Option<String> {
        let number = self.open.remove(at).number;
        let call = self.call(number)?;
        call.result_bytes = result_bytes;
        call.status = if ok { "ok" } else { "error" }.to_owned();
        Some(call.tool.clone())
    }

    fn call(&mut self, number: u64) -> Option<&mut ToolCall> {
        let at = usize::try_from(number.checked_sub(self.dropped)?).ok()?;
        self.trace.get_mut(at)
    }

    fn current_tool(&self) -> Option<String> {
        let number = self.open.last()?.number;
        let at = usize::try_from(number.checked_sub(self.dropped)?).ok()?;
        self.trace.get(at).map(|call| call.tool.clone())
    }

    /// The trace so far, oldest first; takes it.
    pub(crate) fn take_trace(&mut self) -> Vec<ToolCall> {
        self.dropped += self.trace.len() as u64;
        std::mem::take(&mut self.trace).into()
    }

    /// The heartbeat record at `now`.
    pub(crate) fn beat(&self, sequence: u64, now: Instant) -> Beat {
        Beat {
            sequence,
            api_calls: self.api_calls,
            current_tool: self.current_tool(),
            quiet_ms: millis(now.saturating_duration_since(self.last_content)),
            activity: self.activity,
        }
    }

    /// The same in words.
    pub(crate) fn describe(&self, now: Instant) -> String {
        let beat = self.beat(0, now);
        let last = if self.last_activity.is_empty() { "nothing yet" } else { &self.last_activity };
        format!(
            "model calls: {}\ncurrent tool: {}\nlast activity: {last}, {} ms ago\nsigns of progress without an event: {}\n",
            beat.api_calls,
            beat.current_tool.as_deref().unwrap_or("none"),
            beat.quiet_ms,
            beat.activity,
        )
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// Bytes of a value as it crosses; 0 for one that cannot.
pub(crate) fn value_bytes(value: &Value) -> usize {
    if *value == Value::Null {
        return 0;
    }
    delegate_protocol::codec::to_bytes(value).map_or(0, |bytes| bytes.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[expect(clippy::disallowed_methods, reason = "an Instant has no other source")]
    fn now() -> Instant {
        Instant::now()
    }

    #[test]
    fn beats_show_calls_tool_and_quiet_time() {
        let start = now();
        let mut account = Account::new(start);
        account.api_call(Tokens { input: 5, output: 7 }, None);
        account.api_call(Tokens { input: 1, output: 1 }, Some(0.5));
        account.tool(None, "grep", 12, InputSummary::default());
        account.content(start + Duration::from_secs(1), "grep");
        account.untold();
        let beat = account.beat(1, start + Duration::from_secs(3));
        let current_tool = Some("grep".to_owned());
        let expected =
            Beat { sequence: 1, api_calls: 2, current_tool, quiet_ms: 2000, activity: 1 };
        assert_eq!(beat, expected);
        assert_eq!((account.tokens, account.cost_usd), (Tokens { input: 6, output: 8 }, Some(0.5)));
    }

    fn call(account: &mut Account, id: Option<&str>, name: &str) {
        account.tool(id, name, 1, InputSummary::default());
    }

    fn shown(trace: &[ToolCall]) -> Vec<(&str, u64, &str)> {
        trace.iter().map(|call| (&*call.tool, call.result_bytes, &*call.status)).collect()
    }

    #[test]
    fn the_trace_keeps_the_newest_calls_and_how_they_ended() {
        let mut account = Account::new(now());
        assert_eq!(account.tool_done(None, 9, true), None);
        for number in 0..MAX_TOOL_TRACE + 2 {
            call(&mut account, None, &number.to_string());
        }
        assert!(account.tool_done(None, 3, false).is_some());
        let trace = account.take_trace();
        assert_eq!(trace.len(), MAX_TOOL_TRACE);
        assert_eq!((trace[0].tool.as_str(), trace[0].status.as_str()), ("2", "ok"));
        let last = trace.last().unwrap();
        assert_eq!((last.result_bytes, last.status.as_str()), (3, "error"));
        assert_eq!(account.beat(1, now()).current_tool, None);
    }

    #[test]
    fn m051_parallel_calls_get_their_own_ends_by_id_and_others_the_latest() {
        let mut account = Account::new(now());
        for (id, name) in [("1", "a"), ("2", "b"), ("3", "c")] {
            call(&mut account, Some(id), name);
        }
        assert_eq!(account.beat(1, now()).current_tool.as_deref(), Some("c"));
        assert_eq!(account.tool_done(Some("1"), 10, true).as_deref(), Some("a"));
        assert_eq!(account.tool_done(Some("3"), 30, true).as_deref(), Some("c"));
        // Nobody has this id: the latest that runs.
        assert_eq!(account.tool_done(Some("9"), 20, false).as_deref(), Some("b"));
        call(&mut account, Some("4"), "d");
        account.all_done(false);
        let trace = account.take_trace();
        let expected = [("a", 10, "ok"), ("b", 20, "error"), ("c", 30, "ok"), ("d", 0, "error")];
        assert_eq!(shown(&trace), expected);
    }

    /// An agent that never says that a call is over costs no memory without end.
    #[test]
    fn calls_that_never_end_are_bounded() {
        let mut account = Account::new(now());
        for number in 0..2 * MAX_TOOL_TRACE {
            call(&mut account, Some(&number.to_string()), "t");
            assert!(account.open.len() <= MAX_OPEN);
        }
        account.all_done(true);
        assert!(account.take_trace().iter().all(|call| call.status == "ok"));
    }
}

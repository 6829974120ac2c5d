//! What a child counts while it runs: calls, tokens, money, tools, its last words. Kept apart from
//! the agent, so that it survives a panic. `session` writes it; `serve` reads it for beats and for
//! the finish.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use delegate_protocol::outcome::MAX_TOOL_TRACE;
use delegate_protocol::{Beat, Tokens, ToolCall, Value};

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
    trace: VecDeque<ToolCall>,
    current: Option<ToolCall>,
    last_content: Instant,
    /// What was done last, in a word or two.
    last_activity: String,
    /// Signs of progress so far that no event tells.
    activity: u64,
}

impl Account {
    pub(crate) fn new(now: Instant) -> Self {
        Self {
            api_calls: 0,
            tokens: Tokens::default(),
            cost_usd: None,
            model: None,
            empty_on_purpose: false,
            last_text: Tail::new(LAST_TEXT),
            trace: VecDeque::new(),
            current: None,
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

    /// A tool starts. One that was never said to be done is taken to have gone well.
    pub(crate) fn tool(&mut self, name: &str, args_bytes: u64) {
        self.tool_done(0, true);
        let status = String::new();
        self.current =
            Some(ToolCall { tool: name.to_owned(), args_bytes, result_bytes: 0, status });
    }

    /// The current tool, if any, ended.
    pub(crate) fn tool_done(&mut self, result_bytes: u64, ok: bool) {
        let Some(mut call) = self.current.take() else { return };
        call.result_bytes = result_bytes;
        call.status = if ok { "ok" } else { "error" }.to_owned();
        if self.trace.len() == MAX_TOOL_TRACE {
            self.trace.pop_front();
        }
        self.trace.push_back(call);
    }

    /// The trace so far, oldest first; takes it.
    pub(crate) fn take_trace(&mut self) -> Vec<ToolCall> {
        std::mem::take(&mut self.trace).into()
    }

    /// The heartbeat record at `now`.
    pub(crate) fn beat(&self, sequence: u64, now: Instant) -> Beat {
        Beat {
            sequence,
            api_calls: self.api_calls,
            current_tool: self.current.as_ref().map(|call| call.tool.clone()),
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
        account.tool("grep", 12);
        account.content(start + Duration::from_secs(1), "grep");
        account.untold();
        let beat = account.beat(1, start + Duration::from_secs(3));
        let current_tool = Some("grep".to_owned());
        let expected =
            Beat { sequence: 1, api_calls: 2, current_tool, quiet_ms: 2000, activity: 1 };
        assert_eq!(beat, expected);
        assert_eq!((account.tokens, account.cost_usd), (Tokens { input: 6, output: 8 }, Some(0.5)));
    }

    #[test]
    fn the_trace_keeps_the_newest_calls_and_how_they_ended() {
        let mut account = Account::new(now());
        account.tool_done(9, true);
        for call in 0..MAX_TOOL_TRACE + 2 {
            account.tool(&call.to_string(), 1);
        }
        account.tool_done(3, false);
        let trace = account.take_trace();
        assert_eq!(trace.len(), MAX_TOOL_TRACE);
        assert_eq!((trace[0].tool.as_str(), trace[0].status.as_str()), ("2", "ok"));
        let last = trace.last().unwrap();
        assert_eq!((last.result_bytes, last.status.as_str()), (3, "error"));
        assert_eq!(account.beat(1, now()).current_tool, None);
    }
}

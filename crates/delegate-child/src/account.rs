//! What a child counts while it runs: calls, tokens, money, tools, its last words. Kept apart from
//! the agent, so that it survives a panic. `session` writes it; `serve` reads it for beats and for
//! the finish.

use std::time::{Duration, Instant};

use delegate_protocol::trace::ToolTrace;
use delegate_protocol::{Beat, Tokens, Value};

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
    pub(crate) trace: ToolTrace,
    last_content: Instant,
    /// What was done last, in a word or two.
    last_activity: String,
    /// Signs of progress so far that no event tells.
    activity: u64,
    /// Records that were shown to the parent.
    shown: u64,
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
            cost_status: None,
            trace: ToolTrace::default(),
            last_content: now,
            last_activity: String::new(),
            activity: 0,
            shown: 0,
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

    /// The heartbeat record at `now`.
    pub(crate) fn beat(&self, sequence: u64, now: Instant) -> Beat {
        Beat {
            sequence,
            api_calls: self.api_calls,
            current_tool: self.trace.current().map(str::to_owned),
            quiet_ms: millis(now.saturating_duration_since(self.last_content)),
            activity: self.activity,
        }
    }

    /// The same, counted here.
    pub(crate) fn next_beat(&mut self, now: Instant) -> Beat {
        self.shown += 1;
        self.beat(self.shown, now)
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
    use delegate_protocol::InputSummary;

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
        account.trace.start(None, "grep", 12, InputSummary::default());
        account.content(start + Duration::from_secs(1), "grep");
        account.untold();
        let beat = account.beat(1, start + Duration::from_secs(3));
        let current_tool = Some("grep".to_owned());
        let expected =
            Beat { sequence: 1, api_calls: 2, current_tool, quiet_ms: 2000, activity: 1 };
        assert_eq!(beat, expected);
        assert_eq!((account.tokens, account.cost_usd), (Tokens { input: 6, output: 8 }, Some(0.5)));
    }
}

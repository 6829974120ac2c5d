//! What a child was seen to do, folded from its events and beats: the [`Activity`] that its clocks
//! want, and words for people. Filled by [`crate::run`], which alone waits.

use std::time::Duration;

use delegate_protocol::{Beat, ChildEvent, Note};

use crate::monitor::liveness::Activity;

/// Characters of a tool's name that are shown.
const SHOWN: usize = 80;

/// What is known of one running child.
#[derive(Debug, Clone)]
pub struct Pulse {
    activity: Activity,
    tool: Option<String>,
    /// Tools that it has started, and the last of them.
    started: (u64, Option<String>),
    last: &'static str,
    /// What the last beat counted.
    beat: Beat,
    /// Model calls that events have told.
    told_calls: u64,
    /// When the last event came.
    told_at: Option<Duration>,
}

impl Default for Pulse {
    fn default() -> Self {
        Self {
            activity: Activity::NONE,
            tool: None,
            started: (0, None),
            last: "",
            beat: Beat::default(),
            told_calls: 0,
            told_at: None,
        }
    }
}

impl Pulse {
    /// What its clocks want.
    #[must_use]
    pub const fn activity(&self) -> Activity {
        self.activity
    }

    /// The tool that runs now.
    #[must_use]
    pub fn tool(&self) -> Option<&str> {
        self.tool.as_deref()
    }

    /// How many tools it has started, and the last of them.
    #[must_use]
    pub fn tools(&self) -> (u64, Option<&str>) {
        (self.started.0, self.started.1.as_deref())
    }

    /// Takes an event that came at `now`.
    pub fn event(&mut self, event: &ChildEvent, now: Duration) {
        self.told_at = Some(now);
        let last = match event {
            ChildEvent::Text { .. } => "writing",
            ChildEvent::Thinking { .. } => "thinking",
            ChildEvent::Progress { .. } => "making progress",
            ChildEvent::Tool { name, .. } => {
                self.set_tool(Some(name));
                let (count, last) = &mut self.started;
                *count = count.saturating_add(1);
                let shown = name.char_indices().nth(SHOWN).map_or(&**name, |(end, _)| &name[..end]);
                shown.clone_into(last.get_or_insert_default());
                "calling a tool"
            }
            ChildEvent::Note(Note::ToolDone(_)) => {
                self.set_tool(None);
                "done with a tool"
            }
            ChildEvent::Note(Note::Call { .. }) => {
                self.told_calls = self.told_calls.saturating_add(1);
                self.activity.api_calls = self.activity.api_calls.max(self.told_calls);
                "done with a model call"
            }
            ChildEvent::Note(Note::File { .. }) => "working on files",
            ChildEvent::Note(Note::Steered { .. }) => "reading what it was told",
            ChildEvent::Note(Note::Approval(_)) => "asking for approval",
            ChildEvent::Note(Note::Turn { .. }) => "beginning a turn",
            ChildEvent::Note(Note::Channel { reports }) => {
                self.activity.reports = *reports;
                return;
            }
        };
        if event.is_content() {
            self.last = last;
            self.mark(now);
        }
    }

    /// It has asked for something that it will wait for: it gets on.
    pub fn asked(&mut self, now: Duration) {
        self.last = "delegating";
        self.mark(now);
    }

    /// Takes a beat that came at `now`. It proves progress by what it counts, and by nothing else.
    pub fn beat(&mut self, beat: Beat, now: Duration) {
        let counted = beat.activity != self.beat.activity;
        // What an event has told is known, and no progress again.
        let called = beat.api_calls > self.activity.api_calls;
        let changed = beat.current_tool != self.tool;
        if counted {
            self.mark(now.saturating_sub(Duration::from_millis(beat.quiet_ms)));
        } else if called || changed {
            self.mark(now);
        }
        self.activity.api_calls = self.activity.api_calls.max(beat.api_calls);
        self.set_tool(beat.current_tool.as_deref());
        self.beat = beat;
    }

    /// Takes a beat that was found on the page, where it was written at `written`. It may be older than events that
    /// have come, and ahead of others that are on their way: the tool is that of whichever is younger.
    pub fn record(&mut self, mut beat: Beat, written: Duration) {
        if self.told_at.is_some_and(|told| told >= written) {
            beat.current_tool.clone_from(&self.tool);
        }
        self.beat(beat, written);
    }

    /// Tools come by the thousand: the room that one's name has is the next one's.
    fn set_tool(&mut self, tool: Option<&str>) {
        self.activity.in_tool = tool.is_some();
        match tool {
            Some(name) => name.clone_into(self.tool.get_or_insert_default()),
            None => self.tool = None,
        }
    }

    fn mark(&mut self, at: Duration) {
        self.activity.marks = self.activity.marks.wrapping_add(1);
        self.activity.at = self.activity.at.max(at);
    }

    /// One line for whoever watches the parent.
    #[must_use]
    pub fn describe(&self, max_iterations: u32) -> String {
        let doing = match self.tool.as_deref() {
            Some(tool) => format!("running {}", tool.chars().take(SHOWN).collect::<String>()),
            None if !self.last.is_empty() => self.last.to_owned(),
            None => return "a subagent is at work".to_owned(),
        };
        let calls = self.activity.api_calls;
        format!("a subagent is {doing} (iteration {calls}/{max_iterations})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use delegate_protocol::outcome::ToolEnd;
    use delegate_protocol::{Tokens, Value};

    fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn text(text: &str) -> ChildEvent {
        ChildEvent::Text { text: text.to_owned() }
    }

    fn tool(name: &str) -> ChildEvent {
        ChildEvent::Tool {
            name: name.to_owned(),
            preview: None,
            args: Value::Null,
            id: None,
            args_bytes: 0,
        }
    }

    fn call() -> ChildEvent {
        let tokens = Tokens::default();
        ChildEvent::Note(Note::Call { tokens, reasoning_tokens: 0, cost_usd: None })
    }

    #[test]
    fn rb_58_blank_text_is_no_progress_however_much_comes() {
        let mut pulse = Pulse::default();
        for second in 0..10_000 {
            for blank in [text(" "), text(""), text("\n\t"), text("\u{a0}")] {
                pulse.event(&blank, at(second));
            }
        }
        assert_eq!(pulse.activity(), Activity::NONE);
        pulse.event(&text(" a"), at(10_000));
        assert_eq!((pulse.activity().marks, pulse.activity().at), (1, at(10_000)));
    }

    #[test]
    fn c08_a_beat_is_progress_by_what_it_counts_and_not_by_coming() {
        let mut pulse = Pulse::default();
        for second in 1..100 {
            pulse.beat(Beat { sequence: second, ..Beat::default() }, at(second));
        }
        assert_eq!(pulse.activity(), Activity::NONE);
        // A tick of activity alone; it happened 2 s before the beat.
        let tick = Beat { activity: 1, quiet_ms: 2000, ..Beat::default() };
        pulse.beat(tick.clone(), at(100));
        assert_eq!((pulse.activity().marks, pulse.activity().at), (1, at(98)));
        pulse.beat(tick, at(130));
        assert_eq!((pulse.activity().marks, pulse.activity().at), (1, at(98)));
    }

    #[test]
    fn a_beat_that_shows_what_an_event_has_told_is_no_second_progress() {
        let mut pulse = Pulse::default();
        pulse.event(&call(), at(9));
        pulse.event(&tool("grep"), at(10));
        let before = pulse.activity();
        let current_tool = Some("grep".to_owned());
        pulse.beat(Beat { api_calls: 1, current_tool, ..Beat::default() }, at(30));
        assert_eq!(pulse.activity(), before);
    }

    #[test]
    fn calls_and_tools_of_a_worker_that_counts_nothing_are_progress() {
        let mut pulse = Pulse::default();
        pulse.beat(Beat { api_calls: 1, ..Beat::default() }, at(1));
        let grep = Some("grep".to_owned());
        pulse.beat(Beat { api_calls: 1, current_tool: grep.clone(), ..Beat::default() }, at(2));
        assert!(pulse.activity().in_tool);
        pulse.beat(Beat { api_calls: 1, current_tool: grep, ..Beat::default() }, at(3));
        let seen = pulse.activity();
        assert_eq!((seen.marks, seen.at, seen.api_calls), (2, at(2), 1));
    }

    /// A page is no part of the stream.
    #[test]
    fn a_record_may_be_older_than_events_or_ahead_of_them() {
        let mut pulse = Pulse::default();
        pulse.event(&tool("grep"), at(10));
        let before = pulse.activity();
        pulse.record(Beat::default(), at(9));
        assert_eq!(
            (pulse.tool(), pulse.activity()),
            (Some("grep"), before),
            "it had not begun then"
        );
        pulse.record(Beat::default(), at(11));
        assert_eq!(pulse.tool(), None, "its end is on its way");
        let mut pulse = Pulse::default();
        pulse.event(&call(), at(1));
        pulse.record(Beat { api_calls: 3, ..Beat::default() }, at(2));
        pulse.event(&call(), at(3));
        pulse.event(&call(), at(3));
        assert_eq!(pulse.activity().api_calls, 3, "none of them is counted twice");
        pulse.event(&call(), at(4));
        assert_eq!(pulse.activity().api_calls, 4);
    }

    #[test]
    fn a_tool_is_current_until_it_ends_and_a_channel_is_no_progress() {
        let mut pulse = Pulse::default();
        pulse.event(&tool("grep"), at(1));
        assert_eq!((pulse.tool(), pulse.activity().in_tool), (Some("grep"), true));
        pulse.event(&ChildEvent::Note(Note::ToolDone(ToolEnd::default())), at(2));
        assert_eq!((pulse.tool(), pulse.activity().in_tool), (None, false));
        let before = pulse.activity();
        pulse.event(&ChildEvent::Note(Note::Channel { reports: false }), at(3));
        assert_eq!(pulse.activity(), Activity { reports: false, ..before });
    }

    #[test]
    fn m104_m107_the_line_names_the_tool_else_the_last_activity() {
        let mut pulse = Pulse::default();
        assert_eq!(pulse.describe(50), "a subagent is at work");
        pulse.event(&call(), at(1));
        assert_eq!(pulse.describe(50), "a subagent is done with a model call (iteration 1/50)");
        pulse.event(&tool("web_search"), at(2));
        assert_eq!(pulse.describe(50), "a subagent is running web_search (iteration 1/50)");
    }
}

//! For tests only, and a release build has none: mechanisms that are switched off, and the point of a worker's line
//! at which the worker kills itself. `link` comes to these points; a line within one process has none.
//!
//! `DELEGATE_TEST_OFF`: `acknowledge` takes words that steer and tells nobody; `context` loses that field of the spec
//! on its way into a process, and `reasoning` that number on its way out of one (a thread loses neither); `page` uses no
//! shared page, `state` uses a worker again whatever a task has left, and `frames` loses interrupts and beats as frames, so that only the page tells them.
//!
//! `DELEGATE_TEST_DIE_AT=POINT:MESSAGE[:TURN]`, where a turn is counted per point and message, from 1:
//!
//! | point | what has happened |
//! |---|---|
//! | `before-send` | everything before the message was taken by the kernel |
//! | `within-send` | half of its frame was, too |
//! | `after-send` | all of it was |
//! | `unread` | something is there to be read (`MESSAGE` is `read`) |
//! | `before-take` | the message was read, and nobody here knows of it |
//! | `after-take` | whoever reads has acted on it |

use std::borrow::Cow;

use delegate_protocol::{ChildEvent, ChildMessage, Note, ParentMessage};
use rustix::process::{Signal, getpid, kill_process};

const DIE_AT: &str = "DELEGATE_TEST_DIE_AT";

const OFF: &str = "DELEGATE_TEST_OFF";

/// Whether a test has switched this mechanism off.
pub(crate) fn is_off(mechanism: &str) -> bool {
    cfg!(debug_assertions)
        && std::env::var(OFF).is_ok_and(|list| list.split(',').any(|word| word == mechanism))
}

/// What a line of a process loses of what comes down, if a test wants a difference to be found.
pub(crate) fn lose_down(message: &mut ParentMessage) {
    if let ParentMessage::Begin(spec) = message
        && is_off("context")
    {
        spec.context = None;
    }
}

/// Whether an interrupt on the line is not heard.
pub(crate) fn hears_no(message: &ParentMessage) -> bool {
    matches!(message, ParentMessage::Interrupt) && is_off("frames")
}

/// The same for what goes up.
pub(crate) fn lose_up(message: &ChildMessage) -> Cow<'_, ChildMessage> {
    let ChildMessage::Event(ChildEvent::Note(Note::Call { tokens, cost_usd, .. })) = message else {
        return Cow::Borrowed(message);
    };
    if !is_off("reasoning") {
        return Cow::Borrowed(message);
    }
    let (tokens, cost_usd) = (*tokens, *cost_usd);
    let note = Note::Call { tokens, reasoning_tokens: 0, cost_usd };
    Cow::Owned(ChildMessage::Event(ChildEvent::Note(note)))
}

/// Where to die, if anywhere. Each half of a line has its own.
#[derive(Debug, Default)]
pub(crate) struct Crash(Option<At>);

#[derive(Debug)]
struct At {
    point: String,
    message: String,
    /// Times to come there until it happens.
    left: u64,
}

impl Crash {
    pub(crate) fn from_environment() -> Self {
        if !cfg!(debug_assertions) {
            return Self(None);
        }
        Self(std::env::var(DIE_AT).ok().and_then(|text| At::of(&text)))
    }

    /// Whether it is to happen at all.
    pub(crate) const fn is_set(&self) -> bool {
        self.0.is_some()
    }

    /// Whether it is to happen here and now.
    pub(crate) fn comes(&mut self, point: &str, message: &str) -> bool {
        let Some(at) = &mut self.0 else { return false };
        if at.point != point || at.message != message {
            return false;
        }
        at.left = at.left.saturating_sub(1);
        at.left == 0
    }
}

impl At {
    fn of(text: &str) -> Option<Self> {
        let mut parts = text.split(':');
        let (point, message) = (parts.next()?.to_owned(), parts.next()?.to_owned());
        let left = parts.next().map_or(Some(1), |turn| turn.parse().ok())?;
        Some(Self { point, message, left })
    }
}

/// SIGKILL, as anybody else would send it.
pub(crate) fn die() {
    if let Err(error) = kill_process(getpid(), Signal::KILL) {
        tracing::error!(%error, "a process cannot end itself");
    }
}

/// What is sent, by name.
pub(crate) const fn sent(message: &ChildMessage) -> &'static str {
    match message {
        ChildMessage::Hello(_) => "hello",
        ChildMessage::Event(ChildEvent::Text { .. }) => "text",
        ChildMessage::Event(ChildEvent::Thinking { .. }) => "thinking",
        ChildMessage::Event(ChildEvent::Tool { .. }) => "tool",
        ChildMessage::Event(ChildEvent::Note(_)) => "note",
        ChildMessage::Event(ChildEvent::Progress { .. }) => "progress",
        ChildMessage::Beat(_) => "beat",
        ChildMessage::Dump { .. } => "dump",
        ChildMessage::Ask { .. } => "ask",
        ChildMessage::ResultPart(_) => "result-part",
        ChildMessage::Finish(_) => "finish",
    }
}

/// What is taken, by name.
pub(crate) const fn taken(message: &ParentMessage) -> &'static str {
    match message {
        ParentMessage::SpecPart(_) => "spec-part",
        ParentMessage::BeginFromParts => "begin-from-parts",
        ParentMessage::Begin(_) => "begin",
        ParentMessage::Interrupt => "interrupt",
        ParentMessage::Notice { .. } => "notice",
        ParentMessage::Steer { .. } => "steer",
        ParentMessage::StopTurn { .. } => "stop-turn",
        ParentMessage::Dump => "dump",
        ParentMessage::Answer { .. } => "answer",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_happens_at_its_point_and_turn_only() {
        let mut crash = Crash(At::of("after-send:result-part:2"));
        assert!(!crash.comes("before-send", "result-part") && !crash.comes("after-send", "text"));
        assert!(!crash.comes("after-send", "result-part"), "the first one");
        assert!(crash.comes("after-send", "result-part"));
        assert!(!Crash::default().comes("after-send", "result-part"));
        for bad in ["", "after-send", "after-send:text:x"] {
            assert!(At::of(bad).is_none(), "{bad}");
        }
    }
}

//! [`Outside`]: a session as whoever controls runs by id sees and ends it ([`crate::run::sessions`]), in this process or
//! over the control socket. Speaks to `drive` as its holder does.

use std::time::{SystemTime, UNIX_EPOCH};

use tokio::sync::watch;

use super::database::Head;
use super::handle::{Now, SessionControl};
use crate::run::Ended;
use crate::run::sessions::{LiveSession, Talks};

/// One session.
#[derive(Debug)]
pub(super) struct Outside {
    control: SessionControl,
    head: Head,
    conversation: Option<String>,
    started: SystemTime,
}

impl Outside {
    /// Of one that begins now.
    pub(super) fn new(control: SessionControl, head: Head, conversation: Option<String>) -> Self {
        Self { control, head, conversation, started: SystemTime::now() }
    }
}

impl Talks for Outside {
    fn look(&self) -> LiveSession {
        let Now { run, turn, begun, completed, restarts, waiting } = self.control.shared.look();
        LiveSession {
            session_id: self.head.id,
            goal: self.head.goal.clone(),
            conversation: self.conversation.clone(),
            started_at: self.started.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64(),
            run_id: run,
            turn,
            turns: begun,
            completed,
            waiting,
            restarts,
        }
    }

    fn stop(&self, now: bool) {
        if now { self.control.kill() } else { self.control.stop() }
    }

    fn end(&self) -> watch::Receiver<Option<Ended>> {
        self.control.shared.end()
    }
}

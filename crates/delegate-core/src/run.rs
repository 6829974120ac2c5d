//! A running batch as its caller sees it: [`Run`] and [`Control`].

use std::time::Duration;

use delegate_protocol::{Event, RunId, SubagentId};

use crate::report::Report;

/// A running batch. Dropping it ends its children (interrupt, grace, kill).
#[derive(Debug)]
#[must_use = "dropping a Run ends its children"]
pub struct Run {
    pub(crate) id: RunId,
}

impl Run {
    /// Its id.
    #[must_use]
    pub const fn id(&self) -> RunId {
        self.id
    }

    /// A handle for another thread, a signal handler or a UI.
    #[must_use]
    pub fn control(&self) -> Control {
        Control {}
    }

    /// The next event; `None` after the last child's `Complete`.
    pub async fn next(&mut self) -> Option<Event> {
        None
    }

    /// Blocking twin of [`Run::next`].
    pub fn next_blocking(&mut self) -> Option<Event> {
        None
    }

    /// Ends the delivery of events and waits for every outcome.
    pub async fn finish(self) -> Report {
        unimplemented!("skeleton")
    }

    /// Blocking twin of [`Run::finish`].
    pub fn finish_blocking(self) -> Report {
        unimplemented!("skeleton")
    }
}

/// Steers a running batch. Every call is idempotent, and nothing after the end.
#[derive(Debug, Clone)]
pub struct Control {}

impl Control {
    /// Asks every child to unwind; after the grace they are ended. Waiting tasks are not launched.
    pub fn interrupt(&self) {}

    /// The same for one child.
    pub fn stop(&self, _child: SubagentId) {}

    /// Ends every child at once.
    pub fn kill(&self) {}

    /// Stops (SIGSTOP) the workers and pauses their clocks.
    pub fn suspend(&self) {}

    /// Continues the workers and their clocks.
    pub fn resume(&self) {}

    /// Waits (blocking, at most this long) until a [`Control::suspend`] or [`Control::resume`] took
    /// effect.
    pub fn settle(&self, _at_most: Duration) {}
}

//! Callbacks of whoever delegates ([`Listener`]): a child starts, a child has stopped, a child is still
//! there. Called on a thread of their own, so that a slow one holds up no deadline and no child.
//!
//! What waits for that thread is bounded: two calls per child that are never left out, and one sign of
//! life per child, of which a newer one replaces an older one.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use delegate_protocol::envelope::Identity;
use delegate_protocol::event::Complete;
use delegate_protocol::{SubagentId, ToolCall};
use tokio::sync::oneshot;

use crate::monitor::Liveness;
use crate::plan::Plan;

/// How long the end of a batch waits for its last callbacks.
const LAST_CALLS: Duration = Duration::from_secs(10);

/// A child is there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sign {
    /// Which child.
    pub child: SubagentId,
    /// One line: the tool that runs, else what it did last.
    pub description: String,
    /// What can be said of it.
    pub liveness: Liveness,
    /// How long it has made no progress.
    pub quiet_for: Duration,
    /// Model calls so far.
    pub api_calls: u64,
}

/// A child has its outcome.
#[derive(Debug, Clone, PartialEq)]
pub struct Stopped {
    /// Who.
    pub identity: Identity,
    /// How it ended, in short; the whole outcome is in the report.
    pub end: Complete,
    /// Its calls of tools: names, sizes and status only.
    pub tool_trace: Vec<ToolCall>,
}

/// What a delegating program wants to hear. A panic in one of these is caught and logged.
pub trait Listener: Send + Sync {
    /// A child was asked for: once per task, before it waits for its turn.
    fn subagent_start(&self, child: &Identity) {
        _ = child;
    }

    /// A child has its outcome, stored and announced: once per task.
    fn subagent_stop(&self, child: &Stopped) {
        _ = child;
    }

    /// A child is still there; once per heartbeat interval of each running child that is not stale. For
    /// the clock by which somebody else decides whether the delegating program still works.
    fn touch(&self, sign: &Sign) {
        _ = sign;
    }
}

enum Call {
    /// Every task was asked for.
    Starts(Arc<Plan>),
    Stop(Box<Stopped>),
    /// There are signs.
    Touch,
}

type Signs = Arc<Mutex<BTreeMap<SubagentId, Sign>>>;

/// The thread that calls.
pub(super) struct Hooks {
    calls: Sender<Call>,
    signs: Signs,
    done: oneshot::Receiver<()>,
}

impl Hooks {
    /// Starts it; tells of every task at once.
    ///
    /// # Errors
    /// The system has no thread.
    pub(super) fn start(listener: Arc<dyn Listener>, plan: Arc<Plan>) -> std::io::Result<Self> {
        let (calls, received) = channel();
        let (end, done) = oneshot::channel();
        let signs = Signs::default();
        let shared = Arc::clone(&signs);
        let serve = move || {
            serve(&*listener, &received, &shared);
            _ = end.send(());
        };
        thread::Builder::new().name("delegate-hooks".to_owned()).spawn(serve)?;
        let hooks = Self { calls, signs, done };
        hooks.call(Call::Starts(plan));
        Ok(hooks)
    }

    fn call(&self, call: Call) {
        if self.calls.send(call).is_err() {
            tracing::debug!(target: "delegate::run", "the thread of the callbacks is gone");
        }
    }

    /// A child is there.
    pub(super) fn touch(&self, sign: Sign) {
        let mut signs = self.signs.lock().unwrap_or_else(PoisonError::into_inner);
        let first = signs.is_empty();
        signs.insert(sign.child, sign);
        drop(signs);
        if first {
            self.call(Call::Touch);
        }
    }

    /// A child has its outcome; no sign of it is told any more.
    pub(super) fn stop(&self, child: SubagentId, stopped: Stopped) {
        self.signs.lock().unwrap_or_else(PoisonError::into_inner).remove(&child);
        self.call(Call::Stop(Box::new(stopped)));
    }

    /// Waits for the last call; `false` when it does not return.
    pub(super) async fn finish(self) -> bool {
        let Self { calls, signs: _, done } = self;
        drop(calls);
        tokio::time::timeout(LAST_CALLS, done).await.is_ok()
    }
}

fn serve(listener: &dyn Listener, calls: &Receiver<Call>, signs: &Signs) {
    while let Ok(call) = calls.recv() {
        match call {
            Call::Starts(plan) => {
                for index in 0..plan.tasks.len() {
                    guarded(|| listener.subagent_start(&Identity::of(&plan.spec(index))));
                }
            }
            Call::Stop(stopped) => guarded(|| listener.subagent_stop(&stopped)),
            Call::Touch => {
                let signs =
                    std::mem::take(&mut *signs.lock().unwrap_or_else(PoisonError::into_inner));
                for sign in signs.values() {
                    guarded(|| listener.touch(sign));
                }
            }
        }
    }
}

fn guarded(call: impl FnOnce()) {
    if catch_unwind(AssertUnwindSafe(call)).is_err() {
        tracing::warn!(target: "delegate::run", "a callback of the delegating program has panicked");
    }
}

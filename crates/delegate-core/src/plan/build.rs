//! What an agent loop does for each child before anything starts: [`ChildBuilder`], and the order in
//! which it is undone when a later child cannot be built.

use std::collections::BTreeMap;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use delegate_protocol::{TaskSpec, Value};

/// Builds what belongs to one child on the parent's side: its prompt, its transcript, a handle on a
/// session database. Called once per child in the order of the tasks, on the thread that plans, after
/// everything else was checked and before anything starts.
pub trait ChildBuilder: fmt::Debug + Send + Sync {
    /// Builds for one child.
    ///
    /// # Errors
    /// Why it cannot be built, in words for a person: nothing is started, and what was built for the
    /// children before it is undone.
    fn build(&self, child: &TaskSpec) -> Result<Addition, String>;

    /// Takes back what [`ChildBuilder::build`] did for a child that will not start: a later one could
    /// not be built, or the plan was dropped (a dry run). The last child comes first.
    fn undo(&self, child: &TaskSpec) {
        let _ = child;
    }
}

/// What a builder adds to a spec; `None` leaves the field as it is.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Addition {
    /// Shared head of the prompt.
    pub system_prompt: Option<String>,
    /// Append-only transcript of this child.
    pub live_transcript: Option<PathBuf>,
    /// A directory that exists, for the prompt.
    pub workspace_hint: Option<PathBuf>,
    /// More for `metadata`; wins over the task's.
    pub metadata: BTreeMap<String, Value>,
}

/// What was built for the children of a plan so far.
#[derive(Debug, Default)]
pub(super) struct Built {
    pub(super) builder: Option<Arc<dyn ChildBuilder>>,
    /// By task; shorter than the tasks while it is going on, empty without a builder.
    additions: Vec<Addition>,
    /// The children have started: nothing is undone any more.
    started: AtomicBool,
}

impl Built {
    pub(super) fn by(builder: Option<Arc<dyn ChildBuilder>>) -> Self {
        Self { builder, ..Self::default() }
    }

    /// Lays what was built over a spec.
    pub(super) fn add_to(&self, index: usize, spec: &mut TaskSpec) {
        let Some(addition) = self.additions.get(index) else { return };
        let Addition { system_prompt, live_transcript, workspace_hint, metadata } =
            addition.clone();
        spec.system_prompt = system_prompt.or(spec.system_prompt.take());
        spec.live_transcript = live_transcript.or(spec.live_transcript.take());
        spec.workspace_hint = workspace_hint.or(spec.workspace_hint.take());
        spec.metadata.extend(metadata);
    }

    pub(super) fn live_transcript(&self, index: usize) -> Option<PathBuf> {
        self.additions.get(index)?.live_transcript.clone()
    }

    pub(super) fn push(&mut self, addition: Addition) {
        self.additions.push(addition);
    }

    pub(super) fn keep(&self) {
        self.started.store(true, Ordering::Relaxed);
    }

    /// Undoes what was built, the last first, unless the children have started. Whatever a hook does,
    /// the others are asked as well.
    pub(super) fn undo(&mut self, spec: impl Fn(usize, &Self) -> TaskSpec) {
        if self.started.load(Ordering::Relaxed) {
            return;
        }
        while !self.additions.is_empty() {
            let child = spec(self.additions.len() - 1, self);
            self.additions.pop();
            let Some(builder) = &self.builder else { continue };
            if catch_unwind(AssertUnwindSafe(|| builder.undo(&child))).is_err() {
                let child = child.subagent_id;
                tracing::error!(target: "delegate::plan", %child, "undoing has panicked");
            }
        }
    }
}

//! [`Delegator`]: what an agent loop holds. Starts batches.

use std::path::PathBuf;

use delegate_child::Registry;

use crate::config::Settings;
use crate::plan::{Isolation, Plan, StartError, Task};
use crate::report::Report;
use crate::run::Run;
use crate::store::Store;

/// Starts batches of tasks. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Delegator {}

/// Settings of a [`Delegator`] to be.
#[derive(Debug, Default)]
#[must_use]
pub struct Builder {}

impl Builder {
    /// Processes or threads; wins over [`Builder::settings`].
    pub fn isolation(self, _isolation: Isolation) -> Self {
        self
    }

    /// Resolved settings ([`crate::config::load`]).
    pub fn settings(self, _settings: Settings) -> Self {
        self
    }

    /// Where runs and results are kept. Default: `$DELEGATE_STATE_DIR`, else
    /// `$XDG_STATE_HOME/delegate`, else `~/.local/state/delegate`.
    pub fn state_dir(self, _dir: impl Into<PathBuf>) -> Self {
        self
    }

    /// Agents that threads can run, and that the worker program knows. Default: those that
    /// `workers()` was given, and those that ship.
    pub fn registry(self, _registry: Registry) -> Self {
        self
    }

    /// Opens it: the store, and a thread with a loop of its own. No process is started yet.
    ///
    /// # Errors
    /// [`StartError`], for instance when processes are asked for and this program cannot be a worker.
    pub fn build(self) -> Result<Delegator, StartError> {
        Ok(Delegator {})
    }
}

impl Delegator {
    /// A builder.
    pub fn builder() -> Builder {
        Builder::default()
    }

    /// Settings from configuration files and variables; threads unless configured otherwise.
    ///
    /// # Errors
    /// [`StartError::Config`] and those of [`Builder::build`].
    pub fn from_env() -> Result<Self, StartError> {
        Self::builder().build()
    }

    /// A batch to be started.
    pub fn batch(&self, _tasks: impl IntoIterator<Item = Task>) -> Batch {
        Batch {}
    }

    /// Runs and results of this and earlier processes.
    #[must_use]
    pub fn store(&self) -> &Store {
        unimplemented!("skeleton")
    }
}

/// A batch to be started.
#[derive(Debug)]
#[must_use]
pub struct Batch {}

impl Batch {
    /// What lists show for it.
    pub fn title(self, _title: impl Into<String>) -> Self {
        self
    }

    /// The decisions, without starting anything.
    ///
    /// # Errors
    /// As [`Batch::start`].
    pub fn plan(&self) -> Result<Plan, StartError> {
        Err(StartError::EmptyBatch)
    }

    /// Starts it.
    ///
    /// # Errors
    /// Nothing was started, and why.
    pub async fn start(self) -> Result<Run, StartError> {
        Err(StartError::EmptyBatch)
    }

    /// Blocking twin of [`Batch::start`].
    ///
    /// # Errors
    /// Nothing was started, and why.
    pub fn start_blocking(self) -> Result<Run, StartError> {
        Err(StartError::EmptyBatch)
    }

    /// Starts it and waits for the end.
    ///
    /// # Errors
    /// Nothing was started, and why.
    pub async fn run(self) -> Result<Report, StartError> {
        Ok(self.start().await?.finish().await)
    }
}

//! The same names without a runtime: for loops that are not async.
//!
//! Not a copy: these wrap the very same objects, whose work happens on the delegator's own thread
//! either way.
//!
//! ```no_run
//! use delegate_runtime::{Isolation, Task, blocking::Delegator};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let d = Delegator::builder().isolation(Isolation::Thread).build()?;
//! let mut run = d.batch([Task::new("command", "say hello")]).start()?;
//! for event in run.events() {
//!     println!("{}", event.name());
//! }
//! println!("{} task(s)", run.finish().statuses().len());
//! # Ok(())
//! # }
//! ```

mod session;

pub use self::session::{NewSession, SessionHandle, Turn};

use crate::store::Store;
use crate::{
    Control, Event, Isolation, Outcome, Plan, Registry, Report, RunId, StartError, SubagentId,
    Task, config,
};

/// [`crate::Delegator`], blocking.
#[derive(Debug, Clone)]
pub struct Delegator(crate::Delegator);

/// [`crate::Builder`], blocking.
#[derive(Debug, Default)]
#[must_use = "nothing is opened before build"]
pub struct Builder(crate::Builder);

/// [`crate::Batch`], blocking.
#[derive(Debug)]
#[must_use = "nothing runs before start"]
pub struct Batch(crate::Batch);

/// [`crate::Run`], blocking. Dropping it ends its children.
#[derive(Debug)]
#[must_use = "dropping a Run ends its children"]
pub struct Run(crate::Run);

impl Builder {
    /// As [`crate::Builder::isolation`].
    pub fn isolation(self, isolation: Isolation) -> Self {
        Self(self.0.isolation(isolation))
    }

    /// As [`crate::Builder::settings`].
    pub fn settings(self, settings: config::Settings) -> Self {
        Self(self.0.settings(settings))
    }

    /// As [`crate::Builder::state_dir`].
    pub fn state_dir(self, dir: impl Into<std::path::PathBuf>) -> Self {
        Self(self.0.state_dir(dir))
    }

    /// As [`crate::Builder::registry`].
    pub fn registry(self, registry: Registry) -> Self {
        Self(self.0.registry(registry))
    }

    /// As [`crate::Builder::clock`].
    pub fn clock(self, clock: crate::ManualClock) -> Self {
        Self(self.0.clock(clock))
    }

    /// As [`crate::Builder::providers`].
    pub fn providers(self, providers: impl crate::plan::Providers + 'static) -> Self {
        Self(self.0.providers(providers))
    }

    /// As [`crate::Builder::credential_pool`].
    pub fn credential_pool(
        self,
        name: impl Into<String>,
        pool: crate::credentials::PoolSpec,
    ) -> Self {
        Self(self.0.credential_pool(name, pool))
    }

    /// As [`crate::Builder::child_builder`].
    pub fn child_builder(self, builder: impl crate::plan::ChildBuilder + 'static) -> Self {
        Self(self.0.child_builder(builder))
    }

    /// As [`crate::Builder::control_socket`].
    pub fn control_socket(self, listens: bool) -> Self {
        Self(self.0.control_socket(listens))
    }

    /// As [`crate::Builder::control_dir`].
    pub fn control_dir(self, dir: impl Into<std::path::PathBuf>) -> Self {
        Self(self.0.control_dir(dir))
    }

    /// As [`crate::Builder::build`].
    ///
    /// # Errors
    /// As there.
    pub fn build(self) -> Result<Delegator, StartError> {
        self.0.build().map(Delegator)
    }
}

impl Delegator {
    /// A builder.
    pub fn builder() -> Builder {
        Builder::default()
    }

    /// As [`crate::Delegator::templates`].
    #[cfg(target_os = "linux")]
    #[must_use]
    pub fn templates(&self) -> Vec<crate::TemplateAccount> {
        self.0.templates()
    }

    /// As [`crate::Delegator::waiting_workers`].
    #[cfg(target_os = "linux")]
    #[must_use]
    pub fn waiting_workers(&self, agent: &str) -> Vec<u32> {
        self.0.waiting_workers(agent)
    }

    /// As [`crate::Delegator::from_env`].
    ///
    /// # Errors
    /// As there.
    pub fn from_env() -> Result<Self, StartError> {
        crate::Delegator::from_env().map(Self)
    }

    /// A batch to be started.
    pub fn batch(&self, tasks: impl IntoIterator<Item = Task>) -> Batch {
        Batch(self.0.batch(tasks))
    }

    /// A session to be started.
    pub fn session(&self, task: Task) -> NewSession {
        NewSession::new(self.0.session(task))
    }

    /// As [`crate::Delegator::call`].
    pub fn call(&self, arguments: crate::Value, agent: impl Into<String>) -> Batch {
        Batch(self.0.call(arguments, agent))
    }

    /// As [`crate::Delegator::act`].
    #[must_use]
    pub fn act(
        &self,
        arguments: &crate::Value,
        session: &str,
    ) -> Option<Result<crate::Value, crate::control::ControlError>> {
        self.0.act_blocking(arguments, session)
    }

    /// As [`crate::Delegator::pause`].
    pub fn pause(&self) {
        self.0.pause();
    }

    /// As [`crate::Delegator::resume`].
    pub fn resume(&self) {
        self.0.resume();
    }

    /// As [`crate::Delegator::operator`]; its blocking methods end in `_blocking`.
    #[must_use]
    pub fn operator(&self, session: Option<&str>) -> crate::control::Operator {
        self.0.operator(session)
    }

    /// As [`crate::Delegator::files`].
    #[must_use]
    pub fn files(&self, session: Option<&str>) -> crate::file_state::Files {
        self.0.files(session)
    }

    /// As [`crate::Delegator::jobs`].
    #[must_use]
    pub fn jobs(&self, session: Option<&str>) -> crate::jobs::OwnJobs {
        self.0.jobs(session)
    }

    /// As [`crate::Delegator::store`].
    #[must_use]
    pub fn store(&self) -> &Store {
        self.0.store()
    }
}

impl Delegator {
    /// As [`crate::Delegator::completions`]; its blocking methods end in `_blocking`.
    #[must_use]
    pub fn completions(&self, session: Option<&str>) -> crate::Completions {
        self.0.completions(session)
    }

    /// As [`crate::Delegator::wait`].
    ///
    /// # Errors
    /// As there.
    pub fn wait(&self, run: impl Into<RunId>) -> Result<Report, crate::WaitError> {
        self.0.wait_blocking(run)
    }

    /// As [`crate::Delegator::resume_run`].
    ///
    /// # Errors
    /// As there.
    pub fn resume_run(&self, run: RunId) -> Result<Batch, StartError> {
        self.0.resume_run(run).map(Batch)
    }

    /// As [`crate::Delegator::rerun`].
    ///
    /// # Errors
    /// As there.
    pub fn rerun(&self, run: RunId, which: &crate::Which) -> Result<Batch, StartError> {
        self.0.rerun(run, which).map(Batch)
    }
}

impl Batch {
    /// As [`crate::Batch::background`].
    ///
    /// # Errors
    /// As there.
    pub fn background(
        self,
        origin: impl serde::Serialize,
    ) -> Result<crate::Dispatched, StartError> {
        self.0.background_blocking(origin)
    }

    /// As [`crate::Batch::resumable`].
    pub fn resumable(self) -> Self {
        Self(self.0.resumable())
    }

    /// As [`crate::Batch::title`].
    pub fn title(self, title: impl Into<String>) -> Self {
        Self(self.0.title(title))
    }

    /// As [`crate::Batch::session`].
    pub fn session(self, key: impl Into<String>) -> Self {
        Self(self.0.session(key))
    }

    /// As [`crate::Batch::branch`].
    pub fn branch(self, branch: &crate::Branch) -> Self {
        Self(self.0.branch(branch))
    }

    /// As [`crate::Batch::listener`].
    pub fn listener(self, listener: impl crate::Listener + 'static) -> Self {
        Self(self.0.listener(listener))
    }

    /// As [`crate::Batch::parent`].
    pub fn parent(self, parent: crate::plan::Parent) -> Self {
        Self(self.0.parent(parent))
    }

    /// As [`crate::Batch::tasks`].
    pub fn tasks(&self) -> &[Task] {
        self.0.tasks()
    }

    /// As [`crate::Batch::plan`].
    ///
    /// # Errors
    /// As there.
    pub fn plan(&mut self) -> Result<&Plan, StartError> {
        self.0.plan()
    }

    /// Starts it.
    ///
    /// # Errors
    /// Nothing was started, and why.
    pub fn start(self) -> Result<Run, StartError> {
        self.0.start_blocking().map(Run)
    }

    /// Starts it and waits for the end.
    ///
    /// # Errors
    /// Nothing was started, and why.
    pub fn run(self) -> Result<Report, StartError> {
        Ok(self.start()?.finish())
    }
}

impl Run {
    /// Its id.
    #[must_use]
    pub const fn id(&self) -> RunId {
        self.0.id()
    }

    /// As [`crate::Run::task_count`].
    #[must_use]
    pub fn task_count(&self) -> usize {
        self.0.task_count()
    }

    /// As [`crate::Run::outcome`].
    #[must_use]
    pub fn outcome(&self, child: SubagentId) -> Option<Outcome> {
        self.0.outcome(child)
    }

    /// A handle for another thread.
    #[must_use]
    pub fn control(&self) -> Control {
        self.0.control()
    }

    /// Events as they come, until the last child's `Complete`.
    pub fn events(&mut self) -> impl Iterator<Item = Event> + '_ {
        std::iter::from_fn(|| self.0.next_blocking())
    }

    /// The same, each with who it is about; see [`crate::Run::next_relayed`].
    pub fn relayed(&mut self) -> impl Iterator<Item = crate::Relayed> + '_ {
        std::iter::from_fn(|| self.0.next_relayed_blocking())
    }

    /// Ends the delivery of events and waits for every outcome.
    pub fn finish(self) -> Report {
        self.0.finish_blocking()
    }
}

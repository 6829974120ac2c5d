//! [`Delegator`]: what an agent loop holds. Owns the thread on which every batch runs.

mod again;
mod ahead;
mod background;
mod batch;
mod helpers;
mod nest;
mod plans;
mod session;
mod thread;
mod trees;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, Once, OnceLock};

use delegate_child::Registry;
use delegate_protocol::{RunId, Value};
use tokio::sync::{mpsc, oneshot};

pub use self::again::Which;
pub use self::background::WaitError;
pub use self::batch::Batch;
pub use self::session::NewSession;

use self::ahead::Ahead;
use self::batch::Beginning;
use crate::background::Slots;
use crate::config::{self, ProcessIsolation, Settings};
use crate::control::{self, ControlError, Operator, Server};
use crate::file_state::registry::Who;
use crate::file_state::{self, FileState, Files};
use crate::helper::Hub;
use crate::jobs::persist::Keeper;
use crate::jobs::{Jobs, OwnJobs};
use crate::launch::exec::WorkerProgram;
use crate::launch::{Records, limits, program};
use crate::lease::desk::{Clock, Keys, Setup};
use crate::lease::moment::Moment;
use crate::lease::pool::PoolSpec;
use crate::plan::{ChildBuilder, Isolation, Plan, Providers, StartError, Task};
use crate::report::Report;
use crate::run::batch::Batch as BatchLoop;
use crate::run::control::ControlState;
use crate::run::delivery::Delivery;
use crate::run::dispatch::Board;
use crate::run::live::Live;
use crate::run::nest::{Assembled, Kin, Nested};
use crate::run::outlet::Outlet;
use crate::run::{ManualClock, Run, block_on};
use crate::store::Store;
use crate::tree::Caps;

/// Starts batches of tasks. Cheap to clone; all clones share one loop and one store.
///
/// Belongs to the process that opened it: a copy made by fork refuses to start anything.
#[derive(Debug, Clone)]
pub struct Delegator {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    settings: Settings,
    isolation: Option<Isolation>,
    registry: Registry,
    providers: Option<Arc<dyn Providers>>,
    builder: Option<Arc<dyn ChildBuilder>>,
    /// `None` where this program cannot isolate.
    worker: Option<WorkerProgram>,
    /// Templates of it, and workers that wait; made when they are first needed.
    ahead: Ahead,
    records: Records,
    store: Store,
    batches: mpsc::UnboundedSender<thread::Work>,
    pid: u32,
    clock: Option<ManualClock>,
    live: Arc<Live>,
    /// Places of background runs, and where their completions are waited for.
    slots: Arc<Slots>,
    board: Arc<Board>,
    files: FileState,
    jobs: Jobs,
    /// What dead owners left of worktrees was looked at.
    swept: Once,
    keys: Keys,
    control_socket: bool,
    control_dir: Option<PathBuf>,
    /// Listens from the first batch on; `None` where it cannot.
    server: OnceLock<Option<Server>>,
    /// Listens from the first plan on, when helpers are shared.
    hub: Mutex<Option<Hub>>,
}

/// A batch, and who is to get its report.
type Started = (BatchLoop, oneshot::Sender<Report>);

/// Settings of a [`Delegator`] to be.
#[derive(Debug, Default)]
#[must_use = "nothing is opened before build"]
pub struct Builder {
    clock: Option<ManualClock>,
    isolation: Option<Isolation>,
    settings: Settings,
    state_dir: Option<PathBuf>,
    registry: Option<Registry>,
    providers: Option<Arc<dyn Providers>>,
    builder: Option<Arc<dyn ChildBuilder>>,
    pools: BTreeMap<String, PoolSpec>,
    no_control_socket: bool,
    control_dir: Option<PathBuf>,
}

impl Builder {
    /// Whether runs can be listed, steered and stopped from outside (`delegate steer`). Default: yes.
    pub fn control_socket(mut self, listens: bool) -> Self {
        self.no_control_socket = !listens;
        self
    }

    /// Where the control socket lies: a directory that only this user can enter. Default:
    /// `$XDG_RUNTIME_DIR/delegate`, else `/tmp/delegate-UID`.
    pub fn control_dir(mut self, dir: impl Into<PathBuf>) -> Self {
        self.control_dir = Some(dir.into());
        self
    }

    /// Processes or threads; wins over [`Builder::settings`].
    pub fn isolation(mut self, isolation: Isolation) -> Self {
        self.isolation = Some(isolation);
        self
    }

    /// Resolved settings ([`crate::config::load`]).
    pub fn settings(mut self, settings: Settings) -> Self {
        self.settings = settings;
        self
    }

    /// Where runs and results are kept. Default: `$DELEGATE_STATE_DIR`, else
    /// `$XDG_STATE_HOME/delegate`, else `~/.local/state/delegate`.
    pub fn state_dir(mut self, dir: impl Into<PathBuf>) -> Self {
        self.state_dir = Some(dir.into());
        self
    }

    /// Agents that threads can run. Default: those that `workers()` was given, and those that ship.
    /// Worker processes have the agents of their program.
    pub fn registry(mut self, registry: Registry) -> Self {
        self.registry = Some(registry);
        self
    }

    /// A clock of your own for the limits of every batch, for tests of them.
    pub fn clock(mut self, clock: ManualClock) -> Self {
        self.clock = Some(clock);
        self
    }

    /// What the agent loop knows of providers, for the setting `provider`. Default: nothing.
    pub fn providers(mut self, providers: impl Providers + 'static) -> Self {
        self.providers = Some(Arc::new(providers));
        self
    }

    /// A pool of keys that this program has, by the name of a provider, or `custom:NAME` for an endpoint. Wins
    /// over one of the same name in the file of the setting `credential_pools`.
    pub fn credential_pool(mut self, name: impl Into<String>, pool: PoolSpec) -> Self {
        self.pools.insert(name.into(), pool);
        self
    }

    /// What the agent loop does for each child before anything starts. Default: nothing.
    pub fn child_builder(mut self, builder: impl ChildBuilder + 'static) -> Self {
        self.builder = Some(Arc::new(builder));
        self
    }

    /// Opens it: the store, and a thread with a loop of its own. No process is started yet.
    ///
    /// # Errors
    /// [`StartError`], for instance when processes are asked for and this program cannot be a worker.
    pub fn build(self) -> Result<Delegator, StartError> {
        let worker = worker_program(self.isolation, &self.settings)?;
        limits::check(&self.settings, worker.is_some())?;
        let env = config::process_env();
        let state_dir = self.state_dir.unwrap_or_else(|| config::state_dir(&env));
        let switch = env.iter().find(|(name, _)| name == file_state::SWITCH);
        let switch = switch.map(|(_, value)| value.clone());
        let keys = Setup {
            file: self.settings.credential_pools.clone(),
            own: self.pools,
            state_dir: state_dir.clone(),
            clock: self.clock.clone().map_or_else(Default::default, |clock| Clock {
                now: Arc::new(move || Moment::default().after(clock.now())),
                is_manual: true,
            }),
            env,
        };
        let keys = Keys::open(keys, &self.settings)
            .map_err(|wrong| StartError::Config(Box::new(wrong)))?;
        let store = Store::open(&state_dir);
        let records = Records::open(&store, &self.settings);
        let worker =
            worker.map(|worker| WorkerProgram { owner: records.kept_by(worker.owner), ..worker });
        // What a child starts itself is held as it is.
        let worker = worker.map(|worker| {
            let owner = worker.owner.with_containment(self.settings.containment);
            let hidden_variables = keys.variables().iter().cloned().collect();
            WorkerProgram { owner, hidden_variables, ..worker }
        });
        let board = Arc::<Board>::default();
        let batches = thread::start_loop(Arc::clone(&board))?;
        let keeper = program::shim().and_then(|shim| Keeper::in_state_dir(shim, store.kept_in()?));
        let jobs = Jobs::new(program::owner().map(|owner| records.kept_by(owner)), keeper);
        let inner = Inner {
            settings: self.settings,
            isolation: self.isolation,
            registry: self.registry.unwrap_or_else(program::registry),
            providers: self.providers,
            builder: self.builder,
            worker,
            ahead: Ahead::default(),
            records,
            store,
            batches,
            pid: std::process::id(),
            clock: self.clock,
            live: Arc::default(),
            slots: Arc::default(),
            board,
            files: FileState::switched_by(switch.as_deref()),
            jobs,
            swept: Once::new(),
            keys,
            control_socket: !self.no_control_socket,
            control_dir: self.control_dir,
            server: OnceLock::new(),
            hub: Mutex::default(),
        };
        Ok(Delegator { inner: Arc::new(inner) })
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.records.finish();
    }
}

/// The worker program where processes may be used. Where they are required and there is none, that
/// is an error now and not at the first spawn.
fn worker_program(
    asked: Option<Isolation>,
    settings: &Settings,
) -> Result<Option<WorkerProgram>, StartError> {
    let required = match asked {
        Some(Isolation::Thread) => return Ok(None),
        Some(Isolation::Process) => true,
        Some(Isolation::Auto) => false,
        None => match settings.process_isolation {
            None | Some(ProcessIsolation::Off) => return Ok(None),
            Some(ProcessIsolation::On) => true,
            Some(ProcessIsolation::Auto) => false,
        },
    };
    if required && !cfg!(target_os = "linux") {
        return Err(StartError::Unsupported { os: std::env::consts::OS });
    }
    match program::worker(settings.worker_command.as_deref()) {
        None if required => Err(match program::unreadable() {
            Some(source) => StartError::System {
                what: "this program cannot execute itself again, /proc/self/exe is needed for it",
                source,
            },
            None => StartError::NotItsOwnWorker,
        }),
        worker => Ok(worker),
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
        let sources = config::Sources::of_process();
        let loaded = config::load(&sources).map_err(|wrong| StartError::Config(Box::new(wrong)))?;
        for note in &loaded.notes {
            tracing::warn!(target: "delegate::config", "{note}");
        }
        Self::builder().settings(loaded.settings).build()
    }

    /// A batch to be started.
    pub fn batch(&self, tasks: impl IntoIterator<Item = Task>) -> Batch {
        self.given(tasks.into_iter().collect(), None)
    }

    /// A batch as a model asks for it: `arguments` are those of its `delegate_task` call, each task is
    /// for `agent`. Needs [`Batch::parent`]. What is wrong with it is told by [`Batch::plan`] and
    /// [`Batch::start`], in words for the model; until then it has no tasks.
    pub fn call(&self, arguments: Value, agent: impl Into<String>) -> Batch {
        self.given(Vec::new(), Some((arguments, agent.into())))
    }

    fn given(&self, tasks: Vec<Task>, call: Option<(Value, String)>) -> Batch {
        Batch {
            listener: None,
            delegator: self.clone(),
            tasks,
            call,
            parent: None,
            plan: None,
            title: None,
            session: None,
            branch: None,
            isolation: None,
            resumable: false,
            detached: false,
            note: None,
            from: None,
            turns: None,
        }
    }

    /// Runs and results of this and earlier processes.
    #[must_use]
    pub fn store(&self) -> &Store {
        &self.inner.store
    }

    /// Files as the agent that delegates sees them: what it reads through this is what the end of a child reminds
    /// it of. `session` is the key of its conversation ([`Batch::session`]), where there are several.
    #[must_use]
    pub fn files(&self, session: Option<&str>) -> Files {
        Files::new(self.inner.files.clone(), Who::Parent(session.unwrap_or_default().into()))
    }

    /// Background programs that children handed over; they end with this delegator. `session` as in
    /// [`Delegator::files`].
    #[must_use]
    pub fn jobs(&self, session: Option<&str>) -> OwnJobs {
        OwnJobs::new(self.inner.jobs.clone(), Who::Parent(session.unwrap_or_default().into()))
    }

    /// What a worker process executes, for people; `None` where only threads are possible.
    #[must_use]
    pub fn worker_description(&self) -> Option<&str> {
        self.inner.worker.as_ref().map(|worker| worker.description.as_str())
    }
}

impl Delegator {
    /// Starts nothing from now on: a batch is refused with [`StartError::Paused`], and what waits in line
    /// waits on. What runs goes on, and can be listed, steered and stopped.
    pub fn pause(&self) {
        self.inner.live.pause(true);
    }

    /// Starts things again, in every run.
    pub fn resume(&self) {
        self.inner.live.pause(false);
    }

    /// Lists, steers, stops and waits by id, as the control socket does. With a session only what belongs
    /// to that conversation exists ([`Batch::session`]).
    #[must_use]
    pub fn operator(&self, session: Option<&str>) -> Operator {
        Operator::new(Arc::clone(&self.inner.live), session.map(str::to_owned))
    }

    /// Carries out an action on running children that a model asks for with the `arguments` of its `delegate_task`
    /// call: `list`, `steer` (`subagent_id`, `message`) or `stop` (`subagent_id`). At once, in a pause and at any
    /// depth. Only children of batches of this conversation exist ([`Batch::session`]). `None`: the call is
    /// not such an action, and is for [`Delegator::call`].
    pub async fn act(
        &self,
        arguments: &Value,
        session: &str,
    ) -> Option<Result<Value, ControlError>> {
        control::act(&self.operator(Some(session)), arguments).await
    }

    /// Blocking twin of [`Delegator::act`].
    #[must_use]
    pub fn act_blocking(
        &self,
        arguments: &Value,
        session: &str,
    ) -> Option<Result<Value, ControlError>> {
        block_on(self.act(arguments, session))
    }

    /// Hands something to the thread of every batch.
    fn at_loop(&self, work: thread::Work) -> Result<(), StartError> {
        self.inner.batches.send(work).map_err(|_| StartError::System {
            what: "the delegator's thread is gone",
            source: std::io::ErrorKind::BrokenPipe.into(),
        })
    }

    /// A plan may be made before a fork, and started behind it.
    fn check_process(&self) -> Result<(), StartError> {
        let owner = self.inner.pid;
        if std::process::id() == owner { Ok(()) } else { Err(StartError::ForeignProcess { owner }) }
    }

    fn start(&self, plan: Plan, beginning: Beginning) -> Result<(Run, Option<usize>), StartError> {
        self.check_process()?;
        let inner = &self.inner;
        let Beginning {
            title,
            listener,
            session,
            branch,
            captured,
            kept,
            background,
            resumes,
            rerun_of,
            turns,
        } = beginning;
        if inner.control_socket {
            inner.server.get_or_init(|| Server::start(&inner.live, inner.control_dir.as_deref()));
        }
        let set = inner.live.set_number(session.as_deref(), plan.delegation_id());
        let branch = branch.unwrap_or_default();
        let tree = branch.tree(Caps::of(&plan.settings));
        let delivery = Arc::new(Delivery::default());
        let nested = Nested {
            nest: Arc::<Inner>::clone(inner),
            kin: Kin { tree, subtree: None, above: None },
            outlet: Outlet::root(Arc::clone(&delivery)),
            listener,
            session,
        };
        let control = Arc::<ControlState>::default();
        let run = resumes.unwrap_or_else(RunId::random);
        let (place, position) = match &captured {
            Some(_) => self.place(&plan.settings, run, &control)?,
            None => (None, None),
        };
        let made = inner.assemble_as(plan, nested, title, (run, control))?;
        let Assembled { mut batch, control, report, reported } = made;
        if resumes.is_some() {
            self.take_over(run)?;
        }
        branch.attach(&control);
        let plan = Arc::clone(&batch.plan);
        batch.dispatch = captured.map(|captured| captured.dispatch(inner, run, &plan));
        batch.kept = kept;
        batch.background = background;
        batch.rerun_of = rerun_of;
        batch.common.turns = turns;
        batch._place = place;
        self.at_loop(thread::Work::Batch(Box::new((batch, report))))?;
        plan.keep_built();
        let store = inner.store.clone();
        Ok((Run::new(run, set, plan, delivery, control, store, reported), position))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A copy made by fork has the number of another process.
    #[test]
    fn a_copy_in_another_process_starts_nothing_and_plans_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let builder = Delegator::builder().isolation(Isolation::Thread).state_dir(dir.path());
        let mut delegator = builder.build().unwrap();
        let task = || [Task::new("command", "goal")];
        let mut planned = delegator.batch(task());
        assert!(planned.plan().is_ok());
        let plan = planned.plan.take().unwrap();
        drop(planned);
        Arc::get_mut(&mut delegator.inner).unwrap().pid += 1;
        let foreign = |error| matches!(error, Some(StartError::ForeignProcess { .. }));
        assert!(foreign(delegator.batch(task()).plan().err()));
        assert!(foreign(delegator.batch(task()).start_blocking().err()));
        assert!(
            foreign(delegator.start(plan, Beginning::default()).err()),
            "planned before the fork"
        );
        assert_eq!(delegator.store().runs(1).unwrap(), []);
    }
}

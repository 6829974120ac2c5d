//! [`NewSession`]: a session to be started ([`crate::session`]).

use std::sync::{Arc, Weak};
use std::time::Duration;

use delegate_protocol::RunId;

use super::thread::Work;
use super::{Delegator, Inner};
use crate::plan::{Isolation, Parent, StartError, Task};
use crate::run::Run;
use crate::run::turns::Turns;
use crate::session::SessionHandle;
use crate::session::drive::{self, Opening};
use crate::session::machine::Policy;

/// Workers that may take the place of lost ones, where nothing else is said.
const RESTARTS: u32 = 3;

/// Within so much time.
const WINDOW: Duration = Duration::from_secs(600);

/// A session to be started.
#[derive(Debug)]
#[must_use = "nothing runs before start"]
pub struct NewSession {
    delegator: Delegator,
    task: Task,
    title: Option<String>,
    isolation: Option<Isolation>,
    parent: Option<Parent>,
    key: Option<String>,
    policy: Policy,
}

impl Delegator {
    /// A session to be started: a worker whose agent takes several prompts, one after another
    /// ([`delegate_child::Agent::turn`]). The task says which agent, with which parameters, and what for; its
    /// timeout, else the setting `child_timeout_seconds`, is that of each turn.
    pub fn session(&self, task: Task) -> NewSession {
        let settings = &self.inner.settings;
        let policy = Policy {
            max_restarts: RESTARTS,
            window: WINDOW,
            turn_timeout: task.timeout.or(settings.child_timeout),
            idle_timeout: None,
            max_turns: None,
            grace: settings.interrupt_grace,
        };
        NewSession {
            delegator: self.clone(),
            task,
            title: None,
            isolation: None,
            parent: None,
            key: None,
            policy,
        }
    }
}

impl NewSession {
    /// What lists show for it. Default: the goal.
    pub fn title(mut self, title: impl Into<String>) -> Self {
        self.title = Some(title.into());
        self
    }

    /// Processes or threads; instead of the delegator's.
    pub const fn isolation(mut self, isolation: Isolation) -> Self {
        self.isolation = Some(isolation);
        self
    }

    /// The agent that delegates, as [`super::Batch::parent`].
    pub fn parent(mut self, parent: Parent) -> Self {
        self.parent = Some(parent);
        self
    }

    /// The conversation that it belongs to, as [`super::Batch::session`].
    pub fn conversation(mut self, key: impl Into<String>) -> Self {
        self.key = Some(key.into());
        self
    }

    /// From the begin of a turn to its end. Then the turn is stopped; an agent that does not unwind within the
    /// interrupt grace loses its worker. Default: the task's timeout.
    pub const fn turn_timeout(mut self, limit: Duration) -> Self {
        self.policy.turn_timeout = Some(limit);
        self
    }

    /// Without a turn for so long the session ends. Default: never.
    pub const fn idle_timeout(mut self, limit: Duration) -> Self {
        self.policy.idle_timeout = Some(limit);
        self
    }

    /// Turns that may begin. Default: any number.
    pub const fn max_turns(mut self, turns: u64) -> Self {
        self.policy.max_turns = Some(turns);
        self
    }

    /// So many workers may take the place of lost ones within this time; one more loss and the session gives up.
    /// Default: 3 within 10 minutes.
    pub const fn max_restarts(mut self, restarts: u32, within: Duration) -> Self {
        self.policy.max_restarts = restarts;
        self.policy.window = within;
        self
    }

    /// Starts it.
    ///
    /// # Errors
    /// Nothing was started, and why; [`StartError::TakesNoTurns`] for an agent that does not declare it.
    pub async fn start(self) -> Result<SessionHandle, StartError> {
        self.start_blocking()
    }

    /// Blocking twin of [`NewSession::start`].
    ///
    /// # Errors
    /// As there.
    pub fn start_blocking(self) -> Result<SessionHandle, StartError> {
        let Self { delegator, mut task, title, isolation, parent, key, policy } = self;
        let inner = &delegator.inner;
        // A worker of another make tells its agents only when it runs, and refuses by itself.
        let foreign = inner.settings.worker_command.is_some() && inner.worker.is_some();
        let (agent, registry) = (task.agent.clone(), &inner.registry);
        if !foreign && registry.contains(&agent) && !registry.takes_turns(&agent) {
            return Err(StartError::TakesNoTurns { agent });
        }
        task.in_turns = true;
        task.timeout = None;
        let goal = task.goal.clone();
        let title = title.unwrap_or_else(|| goal.clone());
        let conversation =
            key.clone().or_else(|| parent.as_ref().and_then(|parent| parent.session_id.clone()));
        let again: Weak<Inner> = Arc::downgrade(inner);
        let launch = move |turns: Turns| -> Result<Run, StartError> {
            let inner = again.upgrade().ok_or_else(|| StartError::System {
                what: "its delegator was dropped",
                source: std::io::ErrorKind::NotFound.into(),
            })?;
            let mut batch = Delegator { inner }.batch([task.clone()]).title(title.clone());
            batch.isolation = isolation;
            batch.turns = Some(turns);
            batch.parent = parent.clone().map(Box::new);
            batch.session = key.clone();
            batch.start_blocking()
        };
        let opening = Opening {
            id: RunId::random(),
            agent,
            goal,
            conversation,
            policy,
            store: inner.store.clone(),
            live: Arc::clone(&inner.live),
            launch: Arc::new(launch),
            clock: inner.clock.clone(),
            keep: Box::new(delegator.clone()),
        };
        let (handle, driver) = drive::open(opening)?;
        delegator.at_loop(Work::Session(Box::new(driver)))?;
        Ok(handle)
    }
}

//! The zygote launcher: one template for each agent, started when the agent is first needed, of which each
//! worker is a copy ([`delegate_child::worker::template`]).
//!
//! A copy that cannot be had is asked for once more, of a fresh template, and then the program is executed: a
//! start that failed has started nothing, so nothing runs twice. A template that is no use (it does not come
//! up, cannot prepare, has threads, or copies slower than it starts) is not tried again; why is kept for the
//! report.

use std::collections::HashMap;
use std::ffi::OsString;
use std::io::Read;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use delegate_child::worker::template::{CONTROL_FD, Prepared, REPORT_BYTES, TEMPLATE_ROLE, UP};
use delegate_child::worker::{LINE_FD, WORKER_ROLE};
use ownership::{ChildEvent, Containment, Owned, Spawn, template};

use super::exec::{self, Pipes, WorkerProgram};
use super::{Launch, Launched, StartFailure, failure};

/// A template that has not come up and prepared its agent by then is none. The reference agent takes 4 s.
const PREPARE_LIMIT: Duration = Duration::from_secs(30);

/// Templates of one agent that may die without a copy between them.
const MAX_DEATHS: u32 = 3;

/// From TERM until KILL: a template holds nothing that needs an end.
const GRACE: Duration = Duration::from_millis(200);

/// Templates of one worker program.
#[derive(Debug)]
pub struct Zygotes {
    worker: WorkerProgram,
    containment: Containment,
    /// By agent. Each has a lock of its own, held while its template starts: who needs it waits for it.
    templates: Mutex<HashMap<String, Arc<Mutex<State>>>>,
}

#[derive(Debug, Default)]
struct State {
    template: Option<Template>,
    /// Why there is none, for good.
    unfit: Option<String>,
    /// Those that died since a copy was made.
    deaths: u32,
    /// How many were started.
    started: u32,
    /// Of the last one.
    prepared: Option<Prepared>,
}

#[derive(Debug, Clone)]
struct Template {
    owned: Arc<Owned>,
    alive: Arc<AtomicBool>,
}

/// What is known of the template of an agent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Account {
    /// The agent.
    pub agent: String,
    /// What its last template had ready.
    pub prepared: Option<Prepared>,
    /// Its process, if one lives.
    pub pid: Option<u32>,
    /// Why workers are executed instead.
    pub unfit: Option<String>,
    /// Templates that were started.
    pub started: u32,
}

impl Zygotes {
    /// None is started yet.
    #[must_use]
    pub fn new(worker: WorkerProgram, containment: Containment) -> Self {
        Self { worker, containment, templates: Mutex::default() }
    }

    /// Starts one worker: as a copy, or by executing the program where there can be no copy.
    ///
    /// # Errors
    /// As of the exec launcher: nothing was started.
    pub(super) fn launch(&self, launch: Launch) -> Result<Launched, StartFailure> {
        let state = self.state(&launch.agent);
        for _ in 0..2 {
            let Some(template) = self.template(&state, &launch.agent) else { break };
            let pipes = Pipes::open().map_err(|error| failure("pipes", &error))?;
            let (spawn, ours) = exec::spawn(&self.worker, pipes, &launch);
            let sink = Arc::clone(&launch.sink);
            match self.worker.owner.spawn(spawn.copy_of(&template.owned), move |event| sink(event))
            {
                Ok(owned) => {
                    lock(&state).deaths = 0;
                    return Ok(ours.launched(Arc::new(owned), "zygote"));
                }
                Err(error) => {
                    tracing::debug!(target: "delegate::launch::zygote", %error, "no copy");
                    lock(&state).give_up(&template, &error.to_string());
                }
            }
        }
        // An executed worker carries one task.
        exec::launch(&self.worker, Launch { again: None, ..launch })
    }

    /// What is known of each template, by agent.
    #[must_use]
    pub fn accounts(&self) -> Vec<Account> {
        let states: Vec<_> = lock(&self.templates)
            .iter()
            .map(|(agent, state)| (agent.clone(), Arc::clone(state)))
            .collect();
        let account = |(agent, state): (String, Arc<Mutex<State>>)| {
            let state = lock(&state);
            let alive = state.template.as_ref().filter(|template| template.is_alive());
            Account {
                agent,
                prepared: state.prepared.clone(),
                pid: alive.map(|template| template.owned.pid()),
                unfit: state.unfit.clone(),
                started: state.started,
            }
        };
        let mut accounts: Vec<_> = states.into_iter().map(account).collect();
        accounts.sort_by(|one, other| one.agent.cmp(&other.agent));
        accounts
    }

    /// Why the workers of this agent are executed, if so.
    #[must_use]
    pub fn unfit(&self, agent: &str) -> Option<String> {
        lock(&self.state(agent)).unfit.clone()
    }

    /// Whether a worker of this agent may carry several tasks. The template says it, so it is started.
    pub(super) fn is_reusable(&self, agent: &str) -> bool {
        let state = self.state(agent);
        let is_there = self.template(&state, agent).is_some();
        is_there && lock(&state).prepared.as_ref().is_some_and(|prepared| prepared.reusable)
    }

    fn state(&self, agent: &str) -> Arc<Mutex<State>> {
        Arc::clone(lock(&self.templates).entry(agent.to_owned()).or_default())
    }

    /// A living template, started if there is none.
    fn template(&self, state: &Mutex<State>, agent: &str) -> Option<Template> {
        let mut state = lock(state);
        if let Some(template) = state.template.clone() {
            if template.is_alive() {
                return Some(template);
            }
            state.give_up(&template, "it has ended");
        }
        if state.unfit.is_some() {
            return None;
        }
        state.started += 1;
        match self.start(agent) {
            Ok((template, prepared, exec)) => {
                let slow = is_slower(&prepared, exec);
                state.prepared = Some(prepared);
                if slow.is_some() {
                    state.unfit = slow;
                    return None;
                }
                state.template = Some(template.clone());
                Some(template)
            }
            Err(why) => {
                tracing::debug!(target: "delegate::launch::zygote", agent, why, "no template");
                state.unfit = Some(why);
                None
            }
        }
    }

    #[expect(
        clippy::disallowed_methods,
        reason = "what executing the program costs is measured here"
    )]
    fn start(&self, agent: &str) -> Result<(Template, Prepared, Duration), String> {
        let args = template_args(&self.worker.args, agent)
            .ok_or("the worker program is of another make, which is no template")?;
        let (mut ours, theirs) = UnixStream::pair().map_err(|error| error.to_string())?;
        ours.set_read_timeout(Some(PREPARE_LIMIT)).map_err(|error| error.to_string())?;
        let mut spawn = Spawn::program(self.worker.program.clone())
            .args(&args)
            .fd(LINE_FD, theirs.into())
            .template(CONTROL_FD)
            .grace(GRACE)
            .containment(self.containment)
            .purpose(format!("template of {agent}"));
        if args.len() > 1 {
            // Its roles run in a test of libtest, beside one more thread that does nothing.
            spawn = spawn.env(template::TEST_THREADS, "2");
        }
        let spawn = self.worker.without_keys(spawn);
        let alive = Arc::new(AtomicBool::new(true));
        let lives = Arc::clone(&alive);
        let begun = Instant::now();
        let owned = self
            .worker
            .owner
            .spawn(spawn, move |event| {
                if !matches!(event, ChildEvent::Stopped(_)) {
                    lives.store(false, Ordering::Release);
                }
            })
            .map_err(|error| error.to_string())?;
        let mut up = [0];
        let silent = |error: std::io::Error| format!("it did not come up: {error}");
        ours.read_exact(&mut up).map_err(silent)?;
        let exec = begun.elapsed();
        if up != [UP] {
            return Err("it is no template".to_owned());
        }
        let mut report = Vec::new();
        ours.take(REPORT_BYTES)
            .read_to_end(&mut report)
            .map_err(|error| format!("it was not ready within {PREPARE_LIMIT:?}: {error}"))?;
        let prepared: Prepared = serde_json::from_slice(&report)
            .map_err(|_| "it ended while it prepared its agent".to_owned())?;
        match prepared.failed {
            Some(why) => Err(format!("it could not be prepared: {why}")),
            None if prepared.agent != agent => Err("it prepared another agent".to_owned()),
            None => Ok((Template { owned: Arc::new(owned), alive }, prepared, exec)),
        }
    }
}

impl Template {
    fn is_alive(&self) -> bool {
        self.alive.load(Ordering::Acquire)
    }
}

impl State {
    /// No copy comes from this one any more.
    fn give_up(&mut self, template: &Template, why: &str) {
        let same = |own: &Template| Arc::ptr_eq(&own.owned, &template.owned);
        if self.template.as_ref().is_some_and(same) {
            self.template = None;
            self.deaths += 1;
            if self.deaths >= MAX_DEATHS {
                self.unfit =
                    Some(format!("{} templates gave no copy, the last: {why}", self.deaths));
            }
        }
    }
}

/// Why executing the program and preparing the agent again is better, if it is.
fn is_slower(prepared: &Prepared, exec: Duration) -> Option<String> {
    let exec = u64::try_from(exec.as_micros()).unwrap_or(u64::MAX);
    let anew = exec.saturating_add(prepared.prepare_us);
    (prepared.fork_us > anew)
        .then(|| format!("a copy takes {} µs, executing and preparing {anew} µs", prepared.fork_us))
}

/// Its arguments in the role of a template; `None` for a program that has no worker role of ours.
fn template_args(args: &[OsString], agent: &str) -> Option<Vec<OsString>> {
    let mut args = args.to_vec();
    let role = args.iter_mut().find(|arg| *arg == WORKER_ROLE)?;
    *role = OsString::from(format!("{TEMPLATE_ROLE}={agent}"));
    Some(args)
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn prepared(fork_us: u64, prepare_us: u64) -> Prepared {
        Prepared {
            agent: "a".into(),
            agents: Vec::new(),
            reusable: false,
            failed: None,
            prepare_us,
            fork_us,
            fork_us_small_pages: 0,
            anonymous_kib: 0,
            huge_kib: 0,
        }
    }

    #[test]
    fn a_copy_is_used_unless_the_program_starts_faster_with_all_that_it_prepares() {
        let exec = Duration::from_micros(800);
        assert_eq!(is_slower(&prepared(150, 0), exec), None);
        assert_eq!(is_slower(&prepared(5000, 4201), exec), None);
        let why = is_slower(&prepared(5000, 4199), exec).expect("slower");
        assert_eq!(why, "a copy takes 5000 µs, executing and preparing 4999 µs");
    }

    #[test]
    fn only_a_program_with_our_worker_role_is_a_template() {
        let own = ["@delegate-worker".into(), "--exact".into()];
        let found = template_args(&own, "primes").expect("a template");
        assert_eq!(found, ["@delegate-template=primes", "--exact"]);
        assert_eq!(template_args(&["worker.py".into()], "primes"), None);
    }
}

//! What delegators say of their tasks, for [`super`]: asked over their control sockets, all at once, and for a moment only.
//! Whoever does not answer by then is shown without, as one that is stopped or has no socket.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::time::{Duration, Instant};

use delegate_core::control::{self, Ask, Client, LiveRunInfo};
use delegate_core::run::{LiveChild, LiveSession};
use serde_json::{Value, json};

use crate::cli::render::text::{escape, took};

/// How long all of them together may take.
const PATIENCE: Duration = Duration::from_millis(500);

/// Questions that nobody answered and that are still out, with `--watch`: then nobody is asked.
const MOST_OUT: usize = 32;

/// Characters of a session's id: a prefix that [`crate::cli::commands::stop`] takes, unless another begins as well.
const SHORT: usize = 8;

static OUT: AtomicUsize = AtomicUsize::new(0);

/// A task, and the run that it is of.
#[derive(Debug, Clone)]
pub(super) struct Task {
    run_id: String,
    child: LiveChild,
    /// That it is the worker of.
    session: Option<LiveSession>,
}

/// The tasks of delegators, by the numbers of these.
pub(super) type Tasks = HashMap<u32, Vec<Task>>;

/// Asks all delegators of this user.
pub(super) fn ask(dir: &Path) -> Tasks {
    let mut tasks = Tasks::new();
    if OUT.load(Ordering::Relaxed) > MOST_OUT {
        return tasks;
    }
    let (tell, told) = channel();
    let dir = dir.to_owned();
    // To connect may take as long as whoever listens is stopped.
    aside(move || {
        for client in control::clients(&dir, None) {
            let tell = tell.clone();
            aside(move || ask_one(client, &tell));
        }
    });
    let until = now() + PATIENCE;
    // Ends as soon as the last of them has answered.
    while let Ok((pid, its)) = told.recv_timeout(until.saturating_duration_since(now())) {
        tasks.entry(pid).or_default().extend(its);
    }
    tasks
}

/// On a thread of its own, which is waited for by nobody.
fn aside(work: impl FnOnce() + Send + 'static) {
    let out = Arc::new(Out::new());
    let work = move || {
        let _out = out;
        work();
    };
    // Without a thread, nobody is asked.
    drop(std::thread::Builder::new().name("ps-tasks".into()).spawn(work));
}

/// A question that is out.
struct Out;

impl Out {
    fn new() -> Self {
        OUT.fetch_add(1, Ordering::Relaxed);
        Self
    }
}

impl Drop for Out {
    fn drop(&mut self) {
        OUT.fetch_sub(1, Ordering::Relaxed);
    }
}

fn ask_one(mut client: Client, tell: &Sender<(u32, Vec<Task>)>) {
    let Ok(answer) = client.ask(Ask::List) else { return };
    let pid = answer.get("pid").and_then(Value::as_u64).and_then(|pid| pid.try_into().ok());
    let runs = answer.get("runs").cloned().unwrap_or_default();
    let runs: Result<Vec<LiveRunInfo>, _> = serde_json::from_value(runs);
    if let (Some(pid), Ok(runs)) = (pid, runs) {
        // An earlier version tells none.
        let sessions = answer.get("sessions").cloned().unwrap_or_default();
        let sessions: Vec<LiveSession> = serde_json::from_value(sessions).unwrap_or_default();
        let of = |run: LiveRunInfo| {
            let (run_id, session) = (run.run_id.to_string(), sessions.iter());
            let session = session.clone().find(|one| one.run_id == Some(run.run_id)).cloned();
            let task =
                move |child| Task { run_id: run_id.clone(), child, session: session.clone() };
            run.list.children.into_iter().map(task)
        };
        // Fails only when nobody waits any more.
        drop(tell.send((pid, runs.into_iter().flat_map(of).collect())));
    }
}

/// The task that this process of an owner's works on.
pub(super) fn of_process(tasks: &Tasks, owner: u32, pid: u32) -> Option<&Task> {
    tasks.get(&owner)?.iter().find(|task| task.child.pid == Some(pid))
}

/// Those of an owner that have no process of their own.
pub(super) fn in_threads(tasks: &Tasks, owner: u32) -> impl Iterator<Item = &Task> {
    tasks.get(&owner).into_iter().flatten().filter(|task| task.child.pid.is_none())
}

impl Task {
    pub(super) fn state(&self) -> &str {
        &self.child.state
    }

    /// `task 2 running 4.1s: count tests (tool rg, model m)`; of a session `session k7f3, turn 3 running 4.1s: …`.
    pub(super) fn line(&self) -> String {
        let LiveChild { task_index, state, goal, running_seconds, tool, model, .. } = &self.child;
        let time = running_seconds.and_then(|time| Duration::try_from_secs_f64(time).ok());
        let time = time.map_or_else(String::new, |time| format!(" {}", took(time)));
        let parts = [("tool", tool), ("model", model)];
        let parts =
            parts.iter().filter_map(|(name, part)| Some(format!("{name} {}", part.as_ref()?)));
        let parts = parts.collect::<Vec<_>>().join(", ");
        let parts = if parts.is_empty() { parts } else { format!(" ({parts})") };
        let who = self.session.as_ref().map(of_session);
        let who = who.unwrap_or_else(|| format!("task {task_index}"));
        escape(&format!("{who} {state}{time}: {goal}{parts}")).into_owned()
    }

    pub(super) fn value(&self) -> Value {
        let mut value = serde_json::to_value(&self.child).unwrap_or_else(|_| json!({}));
        if let Some(fields) = value.as_object_mut() {
            fields.insert("run_id".to_owned(), self.run_id.clone().into());
            fields.insert("session".to_owned(), json!(self.session));
        }
        value
    }
}

/// What it does, or how many turns it has had.
fn of_session(session: &LiveSession) -> String {
    let LiveSession { session_id, turn, turns, waiting, .. } = session;
    let what = match turn {
        Some(turn) => format!("turn {turn}"),
        None => format!("between turns ({turns} so far)"),
    };
    let line = if *waiting == 0 { String::new() } else { format!(", {waiting} in line") };
    let id: String = session_id.to_string().chars().take(SHORT).collect();
    format!("session {id}, {what}{line},")
}

#[expect(clippy::disallowed_methods, reason = "a command that waits for answers")]
fn now() -> Instant {
    Instant::now()
}

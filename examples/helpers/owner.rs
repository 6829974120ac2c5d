//! Helper: a program that delegates, to be ended from outside in every state of its children.
//!
//! `owner JOB`, where JOB is JSON: `state` (directory), `tasks` (`agent`, `goal`, `params`,
//! `timeout_seconds`, `goal_bytes` to add to the goal), `places`, `start_timeout_seconds`, `grace_seconds`,
//! `heartbeat_ms`, `worker_command`, `depth`, `background` (a text, the conversation: nobody follows the events), `prompts`
//! (of a session of the first task, one after the other), `threads`. Its agents
//! are those that ship and `step` of the fault suite. What its loop takes in stands in `owner.log` of
//! the state directory, so that a test knows what it has seen.
//!
//! It prints JSON lines: `{"run":ID}`, every event of the batch as it comes, and at the end
//! `{"report":{"verified_empty":…,"warnings":[…],"left_running":[…],"results":[…]}}`. Words on its stdin,
//! one a line:
//!
//! | word | does |
//! |---|---|
//! | `exit`, `abort`, `segv` | ends this process so, at once |
//! | `steer` | `left` to the first child that runs |
//! | `interrupt`, `kill`, `suspend`, `resume` | to the batch |
//! | `again` | after a report: runs the same tasks once more |
//!
//! After a report, the end of stdin is the end.
#![expect(clippy::disallowed_methods, clippy::exit, reason = "a program that ends in every way")]
#![expect(clippy::print_stderr, reason = "the agent of the fault suite prints")]

#[path = "../../tests/support/step.rs"]
mod step;

use std::error::Error;
use std::fs::File;
use std::io::{self, BufRead, Write};
use std::path::Path;
use std::process::ExitCode;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use delegate_runtime::blocking::Delegator;
use delegate_runtime::config::Settings;
use delegate_runtime::{Control, Isolation, Report, Task, Value};
use rustix::process::{Signal, getpid, kill_process};
use serde::Deserialize;
use serde_json::json;

#[derive(Deserialize)]
struct Job {
    state: String,
    tasks: Vec<JobTask>,
    #[serde(default = "four")]
    places: u32,
    #[serde(default)]
    start_timeout_seconds: Option<u64>,
    #[serde(default)]
    grace_seconds: Option<u64>,
    #[serde(default)]
    heartbeat_ms: Option<u64>,
    #[serde(default)]
    inactivity_seconds: Option<u64>,
    #[serde(default)]
    worker_command: Option<Vec<String>>,
    #[serde(default)]
    depth: Option<u32>,
    #[serde(default)]
    background: Option<String>,
    #[serde(default)]
    prompts: Vec<String>,
    #[serde(default)]
    threads: bool,
}

#[derive(Deserialize)]
struct JobTask {
    agent: String,
    goal: String,
    #[serde(default)]
    params: Value,
    #[serde(default)]
    timeout_seconds: Option<u64>,
    #[serde(default)]
    goal_bytes: usize,
}

fn four() -> u32 {
    4
}

impl Job {
    fn settings(&self) -> Settings {
        let mut settings = Settings {
            max_concurrent_children: self.places,
            worker_command: self.worker_command.clone(),
            max_spawn_depth: self.depth.unwrap_or(1),
            child_inactivity: self.inactivity_seconds.map(Duration::from_secs),
            ..Settings::default()
        };
        if let Some(seconds) = self.start_timeout_seconds {
            settings.start_timeout = Duration::from_secs(seconds);
        }
        if let Some(seconds) = self.grace_seconds {
            settings.interrupt_grace = Duration::from_secs(seconds);
            settings.terminate_grace = Duration::from_secs(seconds);
        }
        if let Some(milliseconds) = self.heartbeat_ms {
            settings.heartbeat_interval = Duration::from_millis(milliseconds);
        }
        settings
    }

    fn tasks(&self) -> impl Iterator<Item = Task> {
        self.tasks.iter().map(|task| {
            let goal = task.goal.clone() + &" more".repeat(task.goal_bytes / " more".len());
            let made = Task::new(&task.agent, &goal).params(task.params.clone());
            match task.timeout_seconds {
                Some(seconds) => made.timeout(Duration::from_secs(seconds)),
                None => made,
            }
        })
    }
}

fn main() -> ExitCode {
    delegate_runtime::workers().agent(|| step::Stepper).or_else(host)
}

fn host() -> Result<(), Box<dyn Error>> {
    let job = std::env::args().nth(1).ok_or("owner JOB")?;
    let job: Job = serde_json::from_str(&job)?;
    let log = File::create(Path::new(&job.state).join("owner.log"))?;
    let seen = tracing_subscriber::EnvFilter::new("delegate::run=debug");
    tracing_subscriber::fmt().with_env_filter(seen).with_ansi(false).with_writer(log).init();
    let delegator = Delegator::builder()
        .isolation(if job.threads { Isolation::Thread } else { Isolation::Process })
        .settings(job.settings())
        .state_dir(&job.state)
        .build()?;
    let (controls, control) = channel::<Control>();
    let (word, words) = channel::<String>();
    std::thread::spawn(move || listen(&control, &word));
    if let Some(session) = &job.background {
        let handle = delegator.batch(job.tasks()).session(session).background("an origin")?;
        say(&json!({"run": handle.id().to_string()}))?;
        say(&report(&delegator.wait(&handle)?))?;
        next(&words);
        return Ok(());
    }
    if !job.prompts.is_empty() {
        return talk(&delegator, &job, &words);
    }
    loop {
        let mut run = delegator.batch(job.tasks()).start()?;
        controls.send(run.control())?;
        say(&json!({"run": run.id().to_string()}))?;
        for event in run.events() {
            say(&serde_json::to_value(&event)?)?;
        }
        say(&report(&run.finish()))?;
        if next(&words).as_deref() != Some("again") {
            return Ok(());
        }
    }
}

/// A session: prints `{"session":ID}`, events, `{"turn":OUTCOME}` after each prompt, waits for a word, and at its end
/// prints `{"session_end":…}`.
fn talk(delegator: &Delegator, job: &Job, words: &Receiver<String>) -> Result<(), Box<dyn Error>> {
    let task = job.tasks().next().ok_or("a session needs a task")?;
    let mut session = delegator.session(task).start()?;
    say(&json!({"session": session.id().to_string()}))?;
    for prompt in &job.prompts {
        let mut turn = session.prompt(prompt)?;
        for event in turn.events() {
            say(&serde_json::to_value(&event)?)?;
        }
        say(&json!({"turn": turn.finish()}))?;
    }
    next(words);
    say(&json!({"session_end": session.close()}))?;
    next(words);
    Ok(())
}

fn next(words: &Receiver<String>) -> Option<String> {
    words.recv().ok()
}

fn report(report: &Report) -> serde_json::Value {
    let results: Vec<_> = report.results().map(|outcome| outcome.into_entry()).collect();
    json!({"report": {
        "verified_empty": report.verified_empty(),
        "warnings": report.warnings(),
        "left_running": report.left_running(),
        "results": results,
    }})
}

fn say(line: &serde_json::Value) -> io::Result<()> {
    let mut out = io::stdout().lock();
    writeln!(out, "{line}")?;
    out.flush()
}

/// Does what the words say; those about the next batch go to the host.
fn listen(controls: &Receiver<Control>, words: &Sender<String>) {
    let mut control = None;
    for word in io::stdin().lock().lines().map_while(Result::ok) {
        control = controls.try_iter().last().or(control);
        match word.as_str() {
            "exit" => std::process::exit(3),
            "abort" => std::process::abort(),
            "segv" => loop {
                // The runtime's own handler takes the first one and steps aside.
                let _sent = kill_process(getpid(), Signal::SEGV);
            },
            word => match (word, &control) {
                ("interrupt", Some(control)) => control.interrupt(),
                ("steer", Some(control)) => {
                    let list = control.list_blocking();
                    for child in list.into_iter().flat_map(|list| list.children).take(1) {
                        // It may have ended by now.
                        control.steer(child.child, "left").ok();
                    }
                }
                ("kill", Some(control)) => control.kill(),
                ("suspend", Some(control)) => control.suspend(),
                ("resume", Some(control)) => control.resume(),
                _ => drop(words.send(word.to_owned())),
            },
        }
    }
}

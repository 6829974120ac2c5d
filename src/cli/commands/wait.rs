//! `delegate wait ID…`: waits for the end of runs and sessions, and repeats their exit code. Asks whoever runs them
//! ([`crate::cli::control`]), and the store for those that have ended or do not listen. It waits, so it
//! reads the clock.

use std::io::{self, Write as _};
use std::time::{Duration, Instant};

use clap::Args;
use clap_complete::engine::ArgValueCompleter;
use delegate_core::control::{Ask, ControlError};
use delegate_core::run::Ended;
use delegate_core::session::list;
use delegate_core::store::{RunRecord, Store, StoreError};
use serde_json::json;

use crate::cli::Context;
use crate::cli::commands::completion;
use crate::cli::control::{self, ControlArgs};
use crate::cli::exit::{Ending, Exit};
use crate::cli::fault::Fault;
use crate::cli::render::text::escape;

/// Between two looks at the store, for a run that does not listen.
const AGAIN: Duration = Duration::from_millis(100);

/// `delegate wait`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  delegate wait latest
  delegate wait k7f3 m2qa --timeout 10m

The exit code is that of the run or session; of several the first that is not 0. 124 when the time is over: the runs
go on.")]
pub(crate) struct WaitArgs {
    /// Ids of runs (a prefix, `latest` or -) or of sessions
    #[arg(value_name = "ID", required = true, add = ArgValueCompleter::new(completion::run_ids))]
    ids: Vec<String>,
    /// At most so long, all together, such as 90s or 5m
    #[arg(long, value_name = "DURATION", value_parser = control::parse_duration)]
    timeout: Option<Duration>,
    #[command(flatten)]
    control: ControlArgs,
}

/// Waits for all of them.
///
/// # Errors
/// No such run, or the time is over.
#[expect(clippy::disallowed_methods, reason = "this file waits")]
pub(crate) fn run(args: &WaitArgs, context: &Context) -> Result<Exit, Fault> {
    let start = Instant::now();
    let left = || args.timeout.map(|limit| limit.saturating_sub(start.elapsed()));
    // All are looked up before the first is waited for: a wrong name is told at once.
    let ids = args.ids.iter().map(|id| control::id(context, id, None));
    let ids = ids.collect::<Result<Vec<_>, _>>()?;
    let mut worst = Exit::Done;
    let mut told = Vec::new();
    for id in ids {
        let exit = one(args, context, &id, &left)?;
        told.push(json!({ "id": id, "exit_code": exit.code() }));
        if worst == Exit::Done {
            worst = exit;
        }
    }
    if args.control.json {
        control::done(&args.control, "delegate.wait/1", json!({ "runs": told }), "")?;
    }
    Ok(worst)
}

fn one(
    args: &WaitArgs,
    context: &Context,
    id: &str,
    left: &impl Fn() -> Option<Duration>,
) -> Result<Exit, Fault> {
    let seconds = left().map(|left| left.as_secs_f64());
    let wait = |id| Ask::Wait { id, seconds };
    let refused = match control::ask_within(context, &args.control, id, left(), wait) {
        Ok(answer) => {
            let end = serde_json::from_value::<Ended>(answer.value["end"].clone());
            let end = end.map_err(|_| Fault::Control(ControlError::Unknown))?;
            if !end.durable {
                tell(&format!("{id}: {NOT_KEPT}"));
            }
            return Ok(exit_of(end));
        }
        Err(Fault::Control(error)) => error,
        Err(other) => return Err(other),
    };
    // Its process may have ended with it, before it could answer.
    let in_store = matches!(refused.code(), "not_found" | "gone" | "unknown_end" | "silent");
    if !in_store || args.control.session.is_some() {
        return Err(Fault::Control(refused));
    }
    let store = Store::open_existing(&context.state_dir);
    loop {
        let run: RunRecord = match store.find_run(id) {
            Ok(run) => run,
            Err(error) => match of_session(context, id, error)? {
                Some(exit) => return Ok(exit),
                None => {
                    pause(left())?;
                    continue;
                }
            },
        };
        match run.status.as_str() {
            "running" => {}
            status => {
                // Of a run that nobody ended no promise is known, and its status says enough.
                let (verified, durable) = store.promises(run.id)?.unwrap_or((true, true));
                let all_completed = status == "completed";
                if status == "unknown" {
                    let known = run.counts.iter().filter(|(word, _)| word != "unknown");
                    let known: u32 = known.map(|(_, count)| count).sum();
                    let tasks = run.tasks;
                    tell(&format!(
                        "{id}: its owner died; {known} of {tasks} tasks have an outcome (delegate show {id})"
                    ));
                } else if !durable {
                    tell(&format!("{id}: {NOT_KEPT}"));
                }
                let ending = Ending { by_signal: None, verified, durable, all_completed };
                return Ok(ending.exit());
            }
        }
        pause(left())?;
    }
}

/// How the command exits because of a session that has ended; `None` while it goes on. Where there is none either, the run
/// is what is missing.
fn of_session(context: &Context, id: &str, no_run: StoreError) -> Result<Option<Exit>, Fault> {
    let Ok(session) = list::find(&context.state_dir, id) else { return Err(no_run.into()) };
    if session.status == "running" {
        return Ok(None);
    }
    let lost = session.status == "lost";
    if lost {
        tell(&format!("{id}: its owner died in or behind turn {}", session.turns));
    }
    // Of the promises of one that was not waited for nothing is known; what it came to is on record.
    let (by_signal, verified, durable) = (None, true, true);
    let all_completed = session.all_completed() && !lost;
    Ok(Some(Ending { by_signal, verified, durable, all_completed }.exit()))
}

/// Until the next look.
fn pause(left: Option<Duration>) -> Result<(), Fault> {
    if left.is_some_and(|left| left.is_zero()) {
        return Err(Fault::Control(ControlError::Elapsed));
    }
    std::thread::park_timeout(left.map_or(AGAIN, |left| left.min(AGAIN)));
    Ok(())
}

/// What is told where outcomes are missing.
const NOT_KEPT: &str = "it has ended, and not every outcome could be kept on disk";

/// One line for people; the exit code is for programs.
fn tell(line: &str) {
    // Who cannot be told has the exit code.
    drop(writeln!(io::stderr().lock(), "{}", escape(line)));
}

fn exit_of(end: Ended) -> Exit {
    let Ended { all_completed, verified_empty, durable, .. } = end;
    Ending { by_signal: None, verified: verified_empty, durable, all_completed }.exit()
}

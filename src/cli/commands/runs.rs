//! `delegate runs`: past and present runs, newest first. [`super::prune`] forgets some.

use std::time::{SystemTime, UNIX_EPOCH};

use delegate_core::store::Store;

use crate::cli::args::{RunsArgs, RunsVerb};
use crate::cli::commands::prune;
use crate::cli::exit::Exit;
use crate::cli::fault::Fault;
use crate::cli::render::{human, json};
use crate::cli::{Context, write_out};

/// Lists them.
///
/// # Errors
/// A store that cannot be read, or an output that cannot be written.
pub(crate) fn run(args: &RunsArgs, context: &Context) -> Result<Exit, Fault> {
    if let Some(RunsVerb::Prune(args)) = &args.verb {
        return prune::run(args, context);
    }
    let store = Store::open_existing(&context.state_dir);
    let runs = store.runs(usize::try_from(args.limit).unwrap_or(usize::MAX))?;
    if args.json {
        write_out(|to| json::runs(to, &runs))?;
        return Ok(Exit::Done);
    }
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64();
    write_out(|to| {
        if runs.is_empty() {
            return writeln!(to, "no runs yet");
        }
        runs.iter().try_for_each(|run| {
            writeln!(to, "{}", human::run_line(run, &store.short_id(run.id), now, context.out))
        })
    })?;
    Ok(Exit::Done)
}

//! `delegate rerun RUN`: runs tasks of an earlier run again, as a new run. [`super::run`] carries it out.

use clap::Args;
use clap_complete::engine::ArgValueCompleter;
use delegate_core::delegator::Which;
use delegate_core::store::Store;

use crate::cli::Context;
use crate::cli::args::AgainArgs;
use crate::cli::commands::detach::{self, Given};
use crate::cli::commands::{completion, run};
use crate::cli::control;
use crate::cli::exit::Exit;
use crate::cli::fault::Fault;

/// `delegate rerun`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  delegate rerun k7f3 --failed
  delegate rerun latest --task 2 --task 5 --timeout 10m
  delegate rerun latest --background               all tasks, in the background

It makes a new run, which names the old one; the old one stays as it is. To launch what has no outcome
in the same run: `delegate resume`. Options are those that the run was started with, unless they are given
again.")]
pub(crate) struct RerunArgs {
    /// Id of a run: a prefix, `latest` or -
    #[arg(value_name = "RUN", add = ArgValueCompleter::new(completion::run_ids))]
    run: String,
    /// Only the tasks that did not complete
    #[arg(long, conflicts_with = "tasks")]
    failed: bool,
    /// Only this task, from 0 (repeatable) [default: all]
    #[arg(long = "task", value_name = "N")]
    tasks: Vec<u32>,
    #[command(flatten)]
    again: AgainArgs,
}

/// Runs them.
///
/// # Errors
/// Nothing was started, and why.
pub(crate) fn run(args: &RerunArgs, context: &Context) -> Result<Exit, Fault> {
    if args.again.background {
        return detach::start(context, false, args.again.output.json);
    }
    in_front(args, context, Given::default())
}

/// The same in this process.
///
/// # Errors
/// As [`run()`].
pub(crate) fn in_front(args: &RerunArgs, context: &Context, given: Given) -> Result<Exit, Fault> {
    let store = Store::open_existing(&context.state_dir);
    let record = control::stored_run(context, &store, &args.run)?;
    let note = store.kept(record.clone())?.and_then(|kept| kept.facts.note);
    let opened = run::open(&args.again.as_run(note.as_deref())?, context)?;
    let which = match (args.failed, args.tasks.as_slice()) {
        (true, _) => Which::Failed,
        (false, []) => Which::All,
        (false, tasks) => Which::Tasks(tasks.to_vec()),
    };
    let batch = opened.delegator.rerun(record.id, &which)?;
    run::carry_out(opened, batch, context, given)
}

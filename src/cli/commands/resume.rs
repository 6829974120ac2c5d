//! `delegate resume RUN`: goes on with a run whose process is gone, in the same run. [`super::run`] carries it
//! out.

use clap::Args;
use clap_complete::engine::ArgValueCompleter;
use delegate_core::store::Store;

use crate::cli::Context;
use crate::cli::args::AgainArgs;
use crate::cli::commands::detach::{self, Given};
use crate::cli::commands::{completion, run};
use crate::cli::control;
use crate::cli::exit::Exit;
use crate::cli::fault::Fault;

/// `delegate resume`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  delegate resume latest
  delegate resume k7f3 --background

It launches the tasks that have no outcome, and only these: a task that failed has one (see `delegate
rerun RUN --failed`). The run keeps its id and its children keep theirs. Options are those that the run
was started with, unless they are given again. What is never stored, keys and variables in `env`, has to
be there again.")]
pub(crate) struct ResumeArgs {
    /// Id of a run: a prefix, `latest` or -
    #[arg(value_name = "RUN", add = ArgValueCompleter::new(completion::run_ids))]
    run: String,
    #[command(flatten)]
    again: AgainArgs,
}

/// Resumes it.
///
/// # Errors
/// Nothing was started, and why.
pub(crate) fn run(args: &ResumeArgs, context: &Context) -> Result<Exit, Fault> {
    if args.again.background {
        return detach::start(context, false, args.again.output.json);
    }
    in_front(args, context, Given::default())
}

/// The same in this process.
///
/// # Errors
/// As [`run()`].
pub(crate) fn in_front(args: &ResumeArgs, context: &Context, given: Given) -> Result<Exit, Fault> {
    let store = Store::open_existing(&context.state_dir);
    let record = control::stored_run(context, &store, &args.run)?;
    let kept = store.kept(record.clone())?;
    let note = kept.and_then(|kept| kept.facts.note);
    let opened = run::open(&args.again.as_run(note.as_deref())?, context)?;
    let batch = opened.delegator.resume_run(record.id)?;
    run::carry_out(opened, batch, context, given)
}

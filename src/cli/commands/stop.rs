//! `delegate stop ID [CHILD]`: ends a run, a child or a session, through [`crate::cli::control`].

use clap::Args;
use clap_complete::engine::ArgValueCompleter;
use delegate_core::control::Ask;

use crate::cli::Context;
use crate::cli::commands::completion;
use crate::cli::control::{self, ControlArgs};
use crate::cli::exit::Exit;
use crate::cli::fault::Fault;

/// `delegate stop`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  delegate stop latest            each child may unwind, then it is ended; none is launched any more
  delegate stop k7f3/2            that child only
  delegate stop k7f3 --now        no grace
  delegate stop m2qa              a session (see delegate sessions), or the run of its worker: the session ends

It returns when it was said, not when all have ended: see `delegate wait`.")]
pub(crate) struct StopArgs {
    /// Id of a run (a prefix, `latest` or -), of a child, RUN/CHILD, or of a session
    #[arg(value_name = "ID", add = ArgValueCompleter::new(completion::run_ids))]
    id: String,
    /// Number or id of a child
    #[arg(value_name = "CHILD")]
    child: Option<String>,
    /// End it at once
    #[arg(long)]
    now: bool,
    #[command(flatten)]
    control: ControlArgs,
}

/// Stops it.
///
/// # Errors
/// No such run, child or session.
pub(crate) fn run(args: &StopArgs, context: &Context) -> Result<Exit, Fault> {
    let id = control::id(context, &args.id, args.child.as_deref())?;
    let stop = |id| Ask::Stop { id, now: args.now };
    let value = control::ask(context, &args.control, &id, stop)?.value;
    let who = match value["session_id"].as_str() {
        Some(session) if session.starts_with(&id) => format!("session {id}"),
        Some(session) => format!("session {session}, whose worker {id} is,"),
        None => id,
    };
    let said =
        if args.now { format!("{who} is being ended") } else { format!("{who} was asked to stop") };
    control::done(&args.control, "delegate.stop/1", value, &said)
}

//! `delegate pause ID [CHILD]`: no launches in a run, or a child that stands still, through
//! [`crate::cli::control`].

use clap::Args;
use clap_complete::engine::ArgValueCompleter;
use delegate_core::control::Ask;

use crate::cli::Context;
use crate::cli::commands::completion;
use crate::cli::control::{self, ControlArgs};
use crate::cli::exit::Exit;
use crate::cli::fault::Fault;

/// `delegate pause`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  delegate pause latest           launch nothing more; what runs goes on
  delegate pause latest --off     launch again
  delegate pause k7f3/2           stop the processes (SIGSTOP) and the clocks of one child
  delegate pause k7f3/2 --off     let it go on")]
pub(crate) struct PauseArgs {
    /// Id of a run (a prefix, `latest` or -), of a child, or RUN/CHILD
    #[arg(value_name = "ID", add = ArgValueCompleter::new(completion::run_ids))]
    id: String,
    /// Number or id of a child
    #[arg(value_name = "CHILD")]
    child: Option<String>,
    /// Go on
    #[arg(long)]
    off: bool,
    #[command(flatten)]
    control: ControlArgs,
}

/// Pauses it, or lets it go on.
///
/// # Errors
/// No such run or child.
pub(crate) fn run(args: &PauseArgs, context: &Context) -> Result<Exit, Fault> {
    let id = control::id(context, &args.id, args.child.as_deref())?;
    let ask = |id| if args.off { Ask::Resume { id } } else { Ask::Pause { id } };
    let value = control::ask(context, &args.control, &id, ask)?.value;
    let said = format!("{id} {}", if args.off { "goes on" } else { "is paused" });
    control::done(&args.control, "delegate.pause/1", value, &said)
}

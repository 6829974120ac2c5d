//! `delegate steer ID [CHILD] TEXT`: says something to a running child, through [`crate::cli::control`].

use clap::Args;
use clap_complete::engine::ArgValueCompleter;
use delegate_core::control::Ask;

use crate::cli::Context;
use crate::cli::commands::completion;
use crate::cli::control::{self, ControlArgs};
use crate::cli::exit::Exit;
use crate::cli::fault::Fault;

/// `delegate steer`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  delegate steer k7f3/2 'leave the tests alone'
  delegate steer latest 2 'look at src/ first'
  delegate steer latest 'shorter'                of a run with one task

The agent reads it when it likes, at its next tool result at the latest; nothing is interrupted. What it
has not read at its end stands in its entry as missed_steer. Text of - is read from standard input.")]
pub(crate) struct SteerArgs {
    /// Id of a run (a prefix, `latest` or -), of a child, RUN/CHILD, or of a session
    #[arg(value_name = "ID", add = ArgValueCompleter::new(completion::run_ids))]
    id: String,
    /// Number or id of a child where ID is a run of several, then what to say
    #[arg(value_name = "TEXT", required = true, num_args = 1..=2)]
    words: Vec<String>,
    #[command(flatten)]
    control: ControlArgs,
}

/// Says it.
///
/// # Errors
/// No such child, or it was not accepted.
pub(crate) fn run(args: &SteerArgs, context: &Context) -> Result<Exit, Fault> {
    let (child, text) = match &args.words[..] {
        [child, text] => (Some(child.as_str()), text),
        [text] => (None, text),
        _ => return Err(Fault::System("arguments", std::io::ErrorKind::InvalidInput.into())),
    };
    let text = if text == "-" {
        let read = std::io::read_to_string(std::io::stdin().lock());
        read.map_err(|error| Fault::System("standard input cannot be read", error))?
    } else {
        text.clone()
    };
    let id = control::id(context, &args.id, child)?;
    let steer = |id| Ask::Steer { id, text: text.clone() };
    let value = control::ask(context, &args.control, &id, steer)?.value;
    let said = format!("accepted for {}", value["child"].as_str().unwrap_or("the child"));
    control::done(&args.control, "delegate.steer/1", value, &said)
}

//! `delegate extend ID [CHILD] DURATION`: more time for a child, through [`crate::cli::control`].

use clap::Args;
use clap_complete::engine::ArgValueCompleter;
use delegate_core::config::Diagnostic;
use delegate_core::control::Ask;

use crate::cli::Context;
use crate::cli::commands::completion;
use crate::cli::control::{self, ControlArgs};
use crate::cli::exit::Exit;
use crate::cli::fault::Fault;

/// `delegate extend`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  delegate extend k7f3/2 5m       its limit, and its present window without progress, end 5 min later
  delegate extend latest 90s      the same for each child of the run that has no result yet

A limit that is not set stays so. Said twice it is twice as much.")]
pub(crate) struct ExtendArgs {
    /// Id of a run (a prefix, `latest` or -), of a child, or RUN/CHILD
    #[arg(value_name = "ID", add = ArgValueCompleter::new(completion::run_ids))]
    id: String,
    /// Number or id of a child where ID is a run, then by how much, such as 90s or 5m
    #[arg(value_name = "DURATION", required = true, num_args = 1..=2)]
    words: Vec<String>,
    #[command(flatten)]
    control: ControlArgs,
}

/// Gives it.
///
/// # Errors
/// No such run or child, or no duration.
pub(crate) fn run(args: &ExtendArgs, context: &Context) -> Result<Exit, Fault> {
    let (by, child) = args
        .words
        .split_last()
        .map_or(("", None), |(by, rest)| (by.as_str(), rest.first().map(String::as_str)));
    let by = control::parse_duration(by).map_err(|hint| Diagnostic {
        code: "usage",
        message: format!("`{by}` is not a duration"),
        hint: Some(hint),
        ..Diagnostic::default()
    })?;
    let id = control::id(context, &args.id, child)?;
    let extend = |id| Ask::Extend { id, seconds: by.as_secs_f64() };
    let value = control::ask(context, &args.control, &id, extend)?.value;
    let said = format!("{id} has {} s more", by.as_secs_f64());
    control::done(&args.control, "delegate.extend/1", value, &said)
}

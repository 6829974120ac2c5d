//! `delegate watch ID`: the events of a run from now on, as JSON lines, through [`crate::cli::control`].

use clap::Args;
use clap_complete::engine::ArgValueCompleter;
use delegate_core::control::{Ask, Watched};
use serde_json::json;

use crate::cli::commands::completion;
use crate::cli::control::{self, ControlArgs};
use crate::cli::exit::Exit;
use crate::cli::fault::Fault;
use crate::cli::render::json as objects;
use crate::cli::{Context, write_out};

/// `delegate watch`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  delegate watch latest
  delegate watch k7f3 | jq -r 'select(.event == \"subagent.complete\") | .child'

Each line is one of events.jsonl. It begins with a line that has the schema, and ends with one that has
`end`. Whoever reads too slowly loses progress (a line `lost` counts it), and in the end the line.")]
pub(crate) struct WatchArgs {
    /// Id of a run: a prefix, `latest` or -
    #[arg(value_name = "ID", add = ArgValueCompleter::new(completion::run_ids))]
    id: String,
    /// Only what belongs to this conversation exists
    #[arg(long, value_name = "KEY")]
    session: Option<String>,
}

/// Shows them.
///
/// # Errors
/// No such run goes on, or its delegator is gone.
pub(crate) fn run(args: &WatchArgs, context: &Context) -> Result<Exit, Fault> {
    let id = control::id(context, &args.id, None)?;
    let common = ControlArgs { session: args.session.clone(), json: true };
    let mut called = control::ask(context, &common, &id, |id| Ask::Watch { id })?;
    let head = json!({ "schema": "delegate.events/1", "run_id": called.value["run_id"] });
    write_out(|to| objects::line(to, &head))?;
    loop {
        let (line, end) = match called.client.watched().map_err(Fault::Control)? {
            Watched::Event(event) => (event, None),
            Watched::Lost(count) => (json!({ "lost": count }), None),
            Watched::End(end) => {
                let ended = end["reason"] == "ended";
                (json!({ "end": end }), Some(if ended { Exit::Done } else { Exit::Failed }))
            }
        };
        write_out(|to| objects::line(to, &line))?;
        if let Some(exit) = end {
            return Ok(exit);
        }
    }
}

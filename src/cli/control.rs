//! What the verbs that control a run from outside share: which id is meant, whom to ask, what to say.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use delegate_core::config::duration;
use delegate_core::control::{self, Ask, Called, ControlError};
use delegate_core::session::{SessionRecord, list};
use delegate_core::store::{Reader, RunRecord, Store, StoreError};
use serde_json::{Value, json};

use crate::cli::exit::Exit;
use crate::cli::fault::Fault;
use crate::cli::render::{json as objects, text};
use crate::cli::{Context, value_of, write_out};

/// Options of all of them.
#[derive(Debug, Args)]
pub(crate) struct ControlArgs {
    /// Only what belongs to this conversation exists
    #[arg(long, value_name = "KEY")]
    pub(crate) session: Option<String>,
    /// Print one JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

/// Where the sockets are.
pub(crate) fn directory(context: &Context) -> PathBuf {
    control::directory(|name| value_of(&context.env, name).map(Into::into))
}

/// `RUN` and `CHILD` as one id. `latest` is the newest run of this state directory, and of no other.
pub(crate) fn id(context: &Context, run: &str, child: Option<&str>) -> Result<String, Fault> {
    let (run, inner) = run.split_once('/').map_or((run, None), |(run, child)| (run, Some(child)));
    let run = match run {
        "latest" | "-" => Store::open_existing(&context.state_dir).find_run(run)?.id.to_string(),
        other => other.to_owned(),
    };
    Ok(match child.or(inner) {
        Some(child) => format!("{run}/{child}"),
        None => run,
    })
}

/// The run that a person means, for verbs that read what is stored. Of a session they are told the run of its worker.
pub(crate) fn stored_run(
    context: &Context,
    store: &Reader,
    text: &str,
) -> Result<RunRecord, Fault> {
    store.find_run(text).map_err(|no_run| match list::find(&context.state_dir, text) {
        Ok(SessionRecord { run_id: run, .. }) if matches!(no_run, StoreError::NotFound(_)) => {
            Fault::Control(ControlError::Session { id: text.to_owned(), run })
        }
        _ => no_run.into(),
    })
}

/// Asks whoever runs it.
pub(crate) fn ask(
    context: &Context,
    args: &ControlArgs,
    id: &str,
    ask: impl Fn(String) -> Ask,
) -> Result<Called, Fault> {
    ask_within(context, args, id, None, ask)
}

/// The same, where nobody is waited for longer before it is known who is to be asked.
pub(crate) fn ask_within(
    context: &Context,
    args: &ControlArgs,
    id: &str,
    patience: Option<Duration>,
    ask: impl Fn(String) -> Ask,
) -> Result<Called, Fault> {
    control::call_within(&directory(context), args.session.as_deref(), id, patience, ask)
        .map_err(Fault::Control)
}

/// Says that it was done: a line for people, or the answer with its schema.
pub(crate) fn done(
    args: &ControlArgs,
    schema: &str,
    value: Value,
    said: &str,
) -> Result<Exit, Fault> {
    write_out(|to| {
        if args.json {
            let mut object = json!({ "schema": schema });
            if let (Some(object), Value::Object(more)) = (object.as_object_mut(), value) {
                object.extend(more);
            }
            objects::line(to, &object)
        } else {
            writeln!(to, "{}", text::escape(said))
        }
    })?;
    Ok(Exit::Done)
}

pub(crate) fn parse_duration(text: &str) -> Result<Duration, String> {
    duration::parse(text).ok_or_else(|| format!("write it as {}", duration::EXAMPLES))
}

/// How the command exits because of a refusal.
pub(crate) fn exit(error: &ControlError) -> Exit {
    match error.code() {
        "not_found" | "ambiguous" => Exit::NotFound,
        "needs_child" | "needs_run" | "bad_request" => Exit::BadInput,
        "elapsed" => Exit::Elapsed,
        _ => Exit::Failed,
    }
}

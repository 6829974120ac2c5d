//! `delegate sessions`: past and present sessions, newest first, or the turns of one.

use std::time::{SystemTime, UNIX_EPOCH};

use clap::Args;
use clap_complete::engine::ArgValueCompleter;
use delegate_core::session::list::{self, Seen};
use delegate_core::session::{SessionRecord, TurnRecord};
use serde_json::json;

use crate::cli::commands::completion;
use crate::cli::commands::session::Whole;
use crate::cli::exit::Exit;
use crate::cli::fault::Fault;
use crate::cli::render::json as write;
use crate::cli::render::text::{escape, from_seconds, label, took};
use crate::cli::{Context, warn, write_out};

/// Characters of a prompt, an answer or a goal in one line.
const SHOWN: usize = 40;

/// `delegate sessions`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  delegate sessions
  delegate sessions latest
  delegate sessions k7f3 --json")]
pub(crate) struct SessionsArgs {
    /// Id of a session (a prefix, `latest` or -): its turns
    #[arg(value_name = "ID", add = ArgValueCompleter::new(completion::session_ids))]
    id: Option<String>,
    /// How many
    #[arg(long, value_name = "N", default_value_t = 20)]
    limit: usize,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Lists them.
///
/// # Errors
/// No such session, or a state directory that cannot be read.
pub(crate) fn run(args: &SessionsArgs, context: &Context) -> Result<Exit, Fault> {
    let dir = &context.state_dir;
    if let Some(id) = &args.id {
        let session = list::find(dir, id)?;
        let turns = list::turns(dir, &session)?;
        write_out(|to| {
            if args.json {
                return write::line(to, &Whole::new(&session, turns, Vec::new()));
            }
            turns.iter().try_for_each(|turn| writeln!(to, "{}", of_turn(turn)))
        })?;
        return Ok(Exit::Done);
    }
    let Seen { sessions: all, damaged } = list::look(dir)?;
    let shown = &all[..all.len().min(args.limit)];
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64();
    let list = json!({ "schema": "delegate.sessions/1", "sessions": shown, "damaged": damaged });
    damaged.iter().for_each(|one| warn(&one.to_string()));
    write_out(|to| {
        if args.json {
            return write::line(to, &list);
        }
        if shown.is_empty() && damaged.is_empty() {
            return writeln!(to, "no sessions yet");
        }
        shown.iter().try_for_each(|session| {
            writeln!(to, "{}", of_session(session, &list::short_id(&all, session.id), now))
        })
    })?;
    // Not all is shown.
    Ok(if damaged.is_empty() { Exit::Done } else { Exit::BrokenPromise })
}

fn of_session(session: &SessionRecord, id: &str, now: f64) -> String {
    let age = took(from_seconds((now - session.started_at).max(0.0)));
    let plural = if session.turns == 1 { "turn" } else { "turns" };
    let why = session.why.as_deref().map(|why| format!(", {}", why.replace('_', " ")));
    let replaced = match session.restarts {
        0 => String::new(),
        restarts => format!(", {restarts} replaced"),
    };
    let refused = match session.refused {
        0 => String::new(),
        refused => format!(", {refused} not asked"),
    };
    format!(
        "{id}  {}  {age} ago  {}  {}  {} {plural} ({} completed{refused}{replaced}{})",
        session.status,
        escape(&session.agent),
        label(&session.goal, SHOWN),
        session.turns,
        session.completed,
        why.unwrap_or_default(),
    )
}

fn of_turn(turn: &TurnRecord) -> String {
    let outcome = turn.outcome.as_ref();
    let never = outcome.is_some_and(|outcome| !outcome.was_begun());
    let time = outcome.filter(|_| !never).map_or_else(String::new, |outcome| {
        format!(" in {}", took(from_seconds(outcome.duration_seconds)))
    });
    let status = if never { "not asked" } else { &*turn.status };
    let said = outcome.map(|outcome| {
        let text = if outcome.answer.is_empty() {
            outcome.error.as_deref()
        } else {
            Some(&*outcome.answer)
        };
        label(text.unwrap_or_default(), SHOWN)
    });
    let said = said.map_or_else(String::new, |said| format!(": {said}"));
    format!("{}  {status}{time}  {}{said}", turn.number, label(&turn.prompt, SHOWN))
}

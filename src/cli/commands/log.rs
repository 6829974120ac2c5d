//! `delegate log --kills`: who was ended by whom, when and why, from the ledger and what guards wrote.

use std::io::{self, Write};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use clap::Args;
use delegate_core::config;
use ownership::ledger::{self, EndedBy, Kill};
use serde_json::{Value, json};

use crate::cli::exit::Exit;
use crate::cli::fault::Fault;
use crate::cli::render::text::{ago, escape};
use crate::cli::render::{Style, json};
use crate::cli::{Context, LEDGER, warn, write_out};

/// `delegate log`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  delegate log --kills                who was ended, by whom and why
  delegate log --kills --since 1h     in the last hour
  delegate log --kills --json         for a program

What a child wrote is shown by `delegate logs`. Who ended by itself and left nobody is not in it.")]
pub(crate) struct LogArgs {
    /// Ends that somebody brought about
    #[arg(long, required = true)]
    kills: bool,
    /// Not older than this, such as 1h [default: all that is kept]
    #[arg(long, value_name = "DURATION", value_parser = parse_since)]
    since: Option<Duration>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

fn parse_since(text: &str) -> Result<Duration, String> {
    let since = config::duration::parse(text).filter(|since| *since <= config::duration::LONGEST);
    since.ok_or_else(|| format!("write it as {}", config::duration::EXAMPLES))
}

/// Prints them, oldest first.
///
/// # Errors
/// A ledger that cannot be read, or an output that cannot be written.
pub(crate) fn run(args: &LogArgs, context: &Context) -> Result<Exit, Fault> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let since = args.since.map_or(0, |since| now.saturating_sub(since).as_millis());
    let since = u64::try_from(since).unwrap_or(u64::MAX);
    let path = context.state_dir.join(LEDGER);
    let kills = ledger::kills(&path, &context.state_dir, since)
        .map_err(|error| Fault::System("the kills cannot be read", io::Error::other(error)))?;
    let unreadable = ledger::unreadable(&path).unwrap_or_default();
    let exit = if unreadable.is_empty() { Exit::Done } else { Exit::BrokenPromise };
    if args.json {
        write_out(|to| json::line(to, &report(&kills, &unreadable)))?;
        return Ok(exit);
    }
    unreadable.iter().for_each(|row| warn(&super::janitor::unreadable(row)));
    write_out(|to| {
        if kills.is_empty() {
            return writeln!(to, "nobody was ended");
        }
        kills.iter().try_for_each(|kill| say(to, kill, now, context.out))
    })?;
    Ok(exit)
}

fn by(by: EndedBy) -> &'static str {
    match by {
        EndedBy::Owner => "owner",
        EndedBy::Supervisor => "supervisor",
        EndedBy::Keeper => "keeper",
        EndedBy::Itself => "itself",
        EndedBy::Watchdog => "watchdog",
        EndedBy::Janitor | _ => "janitor",
    }
}

fn name(kill: &Kill) -> String {
    let row = kill.row.as_ref();
    let argv = row.map(|row| row.argv.join(" ")).filter(|argv| !argv.is_empty());
    let purpose = row.map(|row| row.purpose.clone()).filter(|purpose| !purpose.is_empty());
    match (purpose, argv) {
        (Some(purpose), Some(argv)) => format!("{purpose}: {argv}"),
        (Some(one), None) | (None, Some(one)) => one,
        (None, None) => "a process without a row".to_owned(),
    }
}

fn say(to: &mut dyn Write, kill: &Kill, now: Duration, style: Style) -> io::Result<()> {
    let dot = style.dot();
    let when = ago(now.saturating_sub(Duration::from_millis(kill.at)));
    let pid = kill.pid.map_or(String::new(), |pid| format!("{pid} "));
    let owner = kill.owner.as_ref().map_or(String::new(), |owner| format!(", of {}", owner.pid));
    let why = if kill.why.is_empty() { "no reason was given" } else { &kill.why };
    let by_whom = match kill.by {
        EndedBy::Itself => "by itself".to_owned(),
        EndedBy::Janitor => "by the janitor".to_owned(),
        one @ (EndedBy::Owner | EndedBy::Supervisor | EndedBy::Keeper | EndedBy::Watchdog | _) => {
            format!("by its {}", by(one))
        }
    };
    let line = format!("{when}{dot}{pid}{}{owner}{dot}{by_whom}: {why}", name(kill));
    writeln!(to, "{}", escape(&line))?;
    for act in kill.acts.iter().filter(|act| act.what.starts_with("sent ")) {
        let pid = act.pid.map_or(String::new(), |pid| format!(" to {pid}"));
        writeln!(to, "    {} {}{pid}: {}", by(act.by), escape(&act.what), escape(&act.why))?;
    }
    Ok(())
}

fn report(kills: &[Kill], unreadable: &[String]) -> Value {
    let seconds = |millis| Duration::from_millis(millis).as_secs_f64();
    let values = kills.iter().map(|kill| {
        let acts = kill.acts.iter().map(|act| {
            json!({"time": seconds(act.at), "by": by(act.by), "what": act.what, "pid": act.pid, "why": act.why})
        });
        json!({
            "time": seconds(kill.at),
            "by": by(kill.by),
            "why": kill.why,
            "pid": kill.pid,
            "owner_pid": kill.owner.as_ref().map(|owner| owner.pid),
            "owner_start_ticks": kill.owner.as_ref().and_then(|owner| owner.start),
            "purpose": kill.row.as_ref().map(|row| &row.purpose),
            "command": kill.row.as_ref().map(|row| &row.argv),
            "acts": acts.collect::<Vec<_>>(),
        })
    });
    json!({"schema": "delegate.kills/1", "kills": values.collect::<Vec<_>>(),
        "ledger_rows_unreadable": unreadable})
}

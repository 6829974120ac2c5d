//! `delegate runs prune`: forgets runs by age, count and size.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use clap::Args;
use delegate_core::config::{Diagnostic, duration};
use delegate_core::session::list;
use delegate_core::store::Store;
use delegate_core::store::retention::{Candidate, Pruned, Retention};
use delegate_protocol::RunId;
use serde_json::json;

use crate::cli::commands::detach;
use crate::cli::exit::Exit;
use crate::cli::fault::Fault;
use crate::cli::render::{json as objects, text};
use crate::cli::{Context, warn_of, write_out};

/// `delegate runs prune`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  delegate runs prune --older-than 30d --dry-run
  delegate runs prune --keep 200 --max-size 2G

A run goes with its results and its files when any of the limits says so. One that goes on never does,
nor one in the background whose completion nobody has taken yet. Sessions go by --older-than, counted from their end.")]
pub(crate) struct PruneArgs {
    /// Runs that began longer ago, such as 30d or 12h
    #[arg(long, value_name = "DURATION", value_parser = parse_age)]
    older_than: Option<Duration>,
    /// All but so many of the newest
    #[arg(long, value_name = "N")]
    keep: Option<usize>,
    /// The oldest, until the rest takes so much at most, such as 500M or 2G
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    max_size: Option<u64>,
    /// Say what would go; forget nothing
    #[arg(long)]
    dry_run: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Forgets them.
///
/// # Errors
/// No limit, or a store that cannot be written.
pub(crate) fn run(args: &PruneArgs, context: &Context) -> Result<Exit, Fault> {
    let PruneArgs { older_than, keep, max_size: max_bytes, dry_run, json } = *args;
    let limits = Retention { older_than, keep, max_bytes };
    if limits == Retention::default() {
        return Err(Diagnostic {
            code: "usage",
            message: "nothing says which runs may go".to_owned(),
            hint: Some(
                "give --older-than, --keep or --max-size, and --dry-run to see first".to_owned(),
            ),
            ..Diagnostic::default()
        }
        .into());
    }
    let store = Store::open(&context.state_dir);
    warn_of(&store);
    let pruned = store.prune(limits, dry_run, SystemTime::now())?;
    if !dry_run {
        detach::forget_ended(context, 0);
    }
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64();
    let prune = |age| list::prune(&context.state_dir, age, now, dry_run);
    let sessions = older_than.map(prune).transpose()?.unwrap_or_default();
    let freed: u64 = pruned.forgotten.iter().map(|one| one.bytes).sum();
    write_out(|to| {
        if json {
            return objects::line(to, &object(&pruned, &sessions, freed, dry_run));
        }
        let short = |one: &Candidate| {
            format!("{}  {}", &one.run.id.to_string()[..6], text::label(&one.run.title, 40))
        };
        for one in &pruned.forgotten {
            writeln!(to, "{}  {}", short(one), size(one.bytes))?;
        }
        for one in &pruned.held {
            writeln!(to, "{}  stays: {}", short(one), one.held.unwrap_or_default())?;
        }
        let verb = if dry_run { "would go" } else { "forgotten" };
        let runs = text::count(pruned.forgotten.len(), "run", "runs");
        writeln!(to, "{runs} {verb}, {}; {} kept", size(freed), pruned.kept)?;
        if !sessions.is_empty() {
            writeln!(to, "{} {verb}", text::count(sessions.len(), "session", "sessions"))?;
        }
        Ok(())
    })?;
    for failed in &pruned.failed {
        crate::cli::warn(failed);
    }
    Ok(if pruned.failed.is_empty() { Exit::Done } else { Exit::BrokenPromise })
}

fn object(pruned: &Pruned, sessions: &[RunId], freed: u64, dry_run: bool) -> serde_json::Value {
    let one = |one: &Candidate| {
        json!({
            "run_id": one.run.id, "title": one.run.title, "status": one.run.status,
            "started_at": one.run.started_at, "bytes": one.bytes, "held": one.held,
        })
    };
    json!({
        "schema": "delegate.prune/1", "dry_run": dry_run, "freed_bytes": freed, "kept": pruned.kept,
        "forgotten": pruned.forgotten.iter().map(one).collect::<Vec<_>>(),
        "held": pruned.held.iter().map(one).collect::<Vec<_>>(), "failed": pruned.failed,
        "sessions": sessions,
    })
}

/// For people.
fn size(bytes: u64) -> String {
    const UNITS: [&str; 4] = ["KiB", "MiB", "GiB", "TiB"];
    let mut rest = bytes;
    let mut unit = "B";
    for larger in UNITS {
        if rest < 10_240 {
            break;
        }
        rest /= 1024;
        unit = larger;
    }
    format!("{rest} {unit}")
}

fn parse_age(text: &str) -> Result<Duration, String> {
    let days = text.strip_suffix('d').and_then(|days| days.parse::<u64>().ok());
    let age = days.and_then(|days| days.checked_mul(86_400)).map(Duration::from_secs);
    age.or_else(|| duration::parse(text))
        .ok_or_else(|| "write it as `30d`, `12h` or `90m`".to_owned())
}

fn parse_size(text: &str) -> Result<u64, String> {
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let shift = match unit.to_ascii_uppercase().trim_end_matches('B').trim_end_matches('I') {
        "" => 0,
        "K" => 10,
        "M" => 20,
        "G" => 30,
        "T" => 40,
        _ => 64,
    };
    let number: Option<u64> = number.parse().ok();
    number
        .and_then(|number| number.checked_mul(1_u64.checked_shl(shift)?))
        .ok_or_else(|| "write it as `500M` or `2G`".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages_and_sizes_are_read_and_nonsense_is_not() {
        assert_eq!(parse_age("30d"), Ok(Duration::from_secs(30 * 86_400)));
        assert_eq!(parse_age("1h30m"), Ok(Duration::from_secs(5400)));
        let sizes = ["0", "10", "3K", "3kb", "2MiB", "1G"].map(|text| parse_size(text).unwrap());
        assert_eq!(sizes, [0, 10, 3072, 3072, 2 << 20, 1 << 30]);
        for text in ["", "d", "-1d", "1w"] {
            assert!(parse_age(text).is_err(), "{text}");
        }
        for text in ["", "G", "1X", "-1", "99999999999T", "1.5G"] {
            assert!(parse_size(text).is_err(), "{text}");
        }
        assert_eq!(
            (size(9_999), size(20_480), size(5 << 30)),
            ("9999 B".into(), "20 KiB".into(), "5120 MiB".into())
        );
    }
}

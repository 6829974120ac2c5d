//! `delegate janitor`: what owners that are dead have left here, graded by evidence. Looks only, unless it is told to
//! end what is proved or what a person picks; what decides is [`ownership::janitor`].

use std::io::{self, IsTerminal as _, Write};
use std::time::Duration;

use clap::Args;
use delegate_core::config::{self, Diagnostic};
use ownership::janitor::{Cleaned, EmptyGroup, Fate, Finding, Found, Grade, Janitor};
use serde_json::{Value, json};

use crate::cli::exit::Exit;
use crate::cli::fault::Fault;
use crate::cli::render::text::{clip, count, escape, pad, took};
use crate::cli::render::{Paint, Style, json};
use crate::cli::{Context, LEDGER, warn, write_out};

/// The folder of exempt jobs in the state directory.
pub(crate) const JOBS: &str = "exempt";

/// `delegate janitor`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  delegate janitor                 what is left over, and how sure that is; ends nobody
  delegate janitor --kill          end what is proved: TERM, 3 s of grace, KILL
  delegate janitor --pick          choose on this terminal whom to end
  delegate janitor --json          for a program

A grade is `proved` when a record of the ledger was found again in every field and its owner has
certainly ended, or when the process stands below such a one; `likely` when it only bears a dead
owner's mark; `unknown` when it cannot be told. Names, ports and parents are no evidence.

Exits with 0 when nothing proved or likely is left, 1 when something is, 3 when somebody could not
be ended or that could not be written down.")]
pub(crate) struct JanitorArgs {
    /// End what is proved
    #[arg(long)]
    kill: bool,
    /// Ask on the terminal whom to end, one by one
    #[arg(long, conflicts_with = "json")]
    pick: bool,
    /// Time between TERM and KILL, such as 3s or 500ms
    #[arg(long, value_name = "DURATION", default_value = "3s", value_parser = parse_grace)]
    grace: Duration,
    /// Show also what is spared, and why
    #[arg(long)]
    all: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

fn parse_grace(text: &str) -> Result<Duration, String> {
    let grace = config::duration::parse(text).filter(|grace| *grace <= config::duration::LONGEST);
    grace.ok_or_else(|| format!("write it as {}", config::duration::EXAMPLES))
}

/// Looks, and ends whom it is told to.
///
/// # Errors
/// `--pick` without a terminal, or an output that cannot be written.
pub(crate) fn run(args: &JanitorArgs, context: &Context) -> Result<Exit, Fault> {
    if args.pick && !(io::stdin().is_terminal() && io::stderr().is_terminal()) {
        return Err(Fault::from(Diagnostic {
            code: "no_terminal",
            message: "--pick asks on a terminal, and standard input or standard error is none"
                .into(),
            hint: Some("--kill ends what is proved without asking".into()),
            ..Diagnostic::default()
        }));
    }
    let janitor = Janitor::of(context.state_dir.join(LEDGER));
    let janitor = janitor.with_jobs(context.state_dir.join(JOBS));
    let finding = janitor.look();
    let mut cleaned = Cleaned::default();
    let mut removed = Vec::new();
    if args.kill {
        cleaned = janitor.end_proved(&finding, args.grace);
        removed = janitor.remove_groups(&finding);
    }
    let rest = if args.kill { janitor.look() } else { finding.clone() };
    if args.json {
        let exit = exit(&rest, &cleaned);
        let value = report(&finding, args.kill.then_some((&cleaned, &removed[..])));
        write_out(|to| json::line(to, &value))?;
        return Ok(exit);
    }
    if let Some(why) = &finding.trouble {
        warn(&format!("{why}; without the ledger nothing is proved"));
    } else if !finding.ledger {
        warn("there is no ledger here, so only marks are seen, and nothing is proved");
    }
    finding.unreadable_rows.iter().for_each(|row| warn(&unreadable(row)));
    if !finding.whole {
        warn("only your own processes are shown here (hidepid)");
    }
    write_out(|to| {
        table(to, &finding.found, context.out)?;
        if args.all {
            spared(to, &finding)?;
        }
        groups(to, &finding, args.kill.then_some(&removed[..]))
    })?;
    if args.kill {
        write_out(|to| told(to, &cleaned, context.out))?;
    }
    let (mut rest, mut all) = (rest, cleaned);
    if args.pick && !rest.found.is_empty() {
        let picked = ask(&rest.found)?;
        let picked: Vec<&Found> = picked.iter().filter_map(|at| rest.found.get(*at)).collect();
        let more = janitor.end_picked(&picked, args.grace);
        write_out(|to| told(to, &more, context.out))?;
        all.fates.extend(more.fates);
        all.unwritten = all.unwritten.or(more.unwritten);
        rest = janitor.look();
    }
    let exit = exit(&rest, &all);
    write_out(|to| ending(to, &rest, args))?;
    Ok(exit)
}

/// A row of the ledger that cannot be read.
pub(crate) fn unreadable(row: &str) -> String {
    format!("the ledger's {row}; it is left alone, and all others are read")
}

/// Whether something is left, and whether all that was asked for was done.
fn exit(rest: &Finding, cleaned: &Cleaned) -> Exit {
    let stays = cleaned.fates.iter().any(|(_, fate)| matches!(fate, Fate::Left(_)));
    if stays || cleaned.unwritten.is_some() || !rest.unreadable_rows.is_empty() {
        Exit::BrokenPromise
    } else if rest.found.iter().any(|found| found.grade >= Grade::Likely) {
        Exit::Failed
    } else {
        Exit::Done
    }
}

fn table(to: &mut dyn Write, found: &[Found], style: Style) -> io::Result<()> {
    if found.is_empty() {
        return writeln!(to, "nothing is left over");
    }
    let number = |at: usize| format!("{}", at + 1);
    let width = number(found.len()).len();
    for (at, one) in found.iter().enumerate() {
        let paint = match one.grade {
            Grade::Proved => Paint::Bad,
            Grade::Likely => Paint::Busy,
            Grade::Unknown | _ => Paint::Faint,
        };
        let grade = style.paint(paint, &pad(one.grade.word(), 8));
        let what = format!(
            "{} {}, {}, {} old, of owner {}",
            one.identity.pid,
            escape(&one.name),
            bytes(one.rss),
            took(one.age),
            one.owner.pid
        );
        writeln!(to, "{:>width$} {grade} {what}", number(at))?;
        let indent = width + 10;
        let room = style.width.map_or(usize::MAX, |columns| columns.saturating_sub(indent));
        let line = |text: &str| clip(&escape(text), room, style.ellipsis()).into_owned();
        if let Some(row) = one.row.as_ref().filter(|row| !row.purpose.is_empty()) {
            writeln!(to, "{:indent$}for: {}", "", line(&row.purpose))?;
        }
        if !one.command.is_empty() {
            writeln!(to, "{:indent$}runs: {}", "", line(&one.command.join(" ")))?;
        }
        writeln!(to, "{:indent$}{}", "", style.paint(Paint::Faint, &line(&one.because())))?;
    }
    Ok(())
}

fn spared(to: &mut dyn Write, finding: &Finding) -> io::Result<()> {
    finding.spared.iter().try_for_each(|one| {
        writeln!(to, "spared: {} {}: {}", one.pid, escape(&one.name), one.why.words())
    })
}

fn told(to: &mut dyn Write, cleaned: &Cleaned, style: Style) -> io::Result<()> {
    for (process, fate) in &cleaned.fates {
        let (paint, words) = match fate {
            Fate::Ended => (Paint::Good, "ended".to_owned()),
            Fate::Gone => (Paint::Faint, "was gone".to_owned()),
            Fate::Left(why) => (Paint::Bad, format!("could not be ended: {why}")),
            Fate::NotNow | _ => {
                (Paint::Busy, "was not signalled: it is not what was found any more".to_owned())
            }
        };
        let words = style.paint(paint, &words);
        writeln!(to, "{} {}: {words}", process.pid, escape(&process.name))?;
    }
    if let Some(why) = &cleaned.unwritten {
        writeln!(to, "not written in the ledger, so not all was done: {}", escape(why))?;
    }
    Ok(())
}

fn ending(to: &mut dyn Write, rest: &Finding, args: &JanitorArgs) -> io::Result<()> {
    let of = |grade| rest.found.iter().filter(|found| found.grade == grade).count();
    let (proved, likely, unknown) = (of(Grade::Proved), of(Grade::Likely), of(Grade::Unknown));
    if proved + likely + unknown == 0 {
        return if args.kill || args.pick { writeln!(to, "0 processes left") } else { Ok(()) };
    }
    let left = count(rest.found.len(), "process", "processes");
    write!(to, "{left} left: {proved} proved, {likely} likely, {unknown} unknown")?;
    match (args.kill, args.pick) {
        (false, false) if proved > 0 => writeln!(to, "; --kill ends what is proved"),
        (_, false) => writeln!(to, "; --pick asks about each"),
        (_, true) => writeln!(to),
    }
}

/// Asks on the terminal whom to end; gives their places.
fn ask(found: &[Found]) -> Result<Vec<usize>, Fault> {
    const QUESTION: &str = "whom to end? numbers such as 1 3-5, nothing for nobody: ";
    loop {
        let asked = write!(io::stderr().lock(), "{QUESTION}").and_then(|()| io::stderr().flush());
        asked.map_err(|error| Fault::System("cannot ask on the terminal", error))?;
        let mut line = String::new();
        let read = io::stdin().read_line(&mut line);
        let read = read.map_err(|error| Fault::System("cannot read the answer", error))?;
        match picks(&line, found.len()) {
            Some(picks) => return Ok(picks),
            None if read == 0 => return Ok(Vec::new()),
            None => warn(&format!("`{}` names nobody of the list", line.trim())),
        }
    }
}

/// Places in a list of so many, from numbers and ranges; `None` when one of them is not in it.
fn picks(line: &str, of: usize) -> Option<Vec<usize>> {
    let mut picks = Vec::new();
    for word in line.split([' ', ',', '\n', '\r', '\t']).filter(|word| !word.is_empty()) {
        let (first, last) = word.split_once('-').unwrap_or((word, word));
        let (first, last): (usize, usize) = (first.parse().ok()?, last.parse().ok()?);
        if first == 0 || last > of || first > last {
            return None;
        }
        picks.extend(first - 1..last);
    }
    picks.sort_unstable();
    picks.dedup();
    Some(picks)
}

/// Empty cgroups: what is to be done about them, or was.
fn groups(
    to: &mut dyn Write,
    finding: &Finding,
    removed: Option<&[&EmptyGroup]>,
) -> io::Result<()> {
    for group in &finding.groups {
        let word = match removed {
            None => "empty cgroup (--kill removes it)",
            Some(removed) if removed.contains(&group) => "empty cgroup, removed",
            Some(_) => "empty cgroup, not removed: somebody holds it by now",
        };
        let dir = group.dir.display().to_string();
        let owner = group.owner_pid;
        writeln!(to, "{word}: {} of owner {owner}: {}", escape(&dir), group.because())?;
    }
    Ok(())
}

fn group_value(group: &EmptyGroup) -> Value {
    json!({
        "path": group.dir,
        "owner_pid": group.owner_pid,
        "owner_start_ticks": group.owner_start,
        "owner_pid_namespace": group.owner_namespace,
        "evidence": group.because(),
    })
}

fn report(finding: &Finding, done: Option<(&Cleaned, &[&EmptyGroup])>) -> Value {
    let cleaned = done.map(|(cleaned, _)| cleaned);
    let removed = done.map(|(_, removed)| removed.iter().map(|one| &one.dir).collect::<Vec<_>>());
    let found = finding.found.iter().map(|one| {
        json!({
            "grade": one.grade.word(),
            "pid": one.identity.pid,
            "start_ticks": one.identity.start,
            "pidfd_inode": one.identity.inode,
            "name": one.name,
            "command": one.command,
            "purpose": one.row.as_ref().map(|row| &row.purpose),
            "owner_pid": one.owner.pid,
            "owner_start_ticks": one.owner.start,
            "age_seconds": one.age.as_secs_f64(),
            "rss_bytes": one.rss,
            "state": one.state,
            "below_pid": one.below,
            "evidence": one.evidence.iter().map(ToString::to_string).collect::<Vec<_>>(),
        })
    });
    let spared = finding.spared.iter().map(|one| {
        json!({"pid": one.pid, "name": one.name, "owner_pid": one.owner, "why": one.why.words()})
    });
    let ended = cleaned.map(|cleaned| {
        cleaned.fates.iter().map(|(process, fate)| fate_of(process, fate)).collect::<Vec<_>>()
    });
    json!({
        "schema": "delegate.janitor/1",
        "left_over": found.collect::<Vec<_>>(),
        "spared": spared.collect::<Vec<_>>(),
        "ledger": finding.ledger,
        "ledger_trouble": finding.trouble,
        "ledger_rows_unreadable": finding.unreadable_rows,
        "all_users_shown": finding.whole,
        "unreadable_environments": finding.unreadable,
        "empty_cgroups": finding.groups.iter().map(group_value).collect::<Vec<_>>(),
        "ended": ended,
        "cgroups_removed": removed,
        "not_written": cleaned.and_then(|cleaned| cleaned.unwritten.clone()),
    })
}

fn fate_of(process: &ownership::Process, fate: &Fate) -> Value {
    let (word, why) = match fate {
        Fate::Ended => ("ended", None),
        Fate::Gone => ("gone", None),
        Fate::Left(why) => ("left", Some(why)),
        Fate::NotNow | _ => ("not_signalled", None),
    };
    json!({"pid": process.pid, "name": process.name, "fate": word, "why": why})
}

/// Bytes in the unit that fits: `812 KiB`, `1.2 GiB`.
pub(crate) fn bytes(bytes: u64) -> String {
    let units = ["B", "KiB", "MiB", "GiB", "TiB"];
    let (mut whole, mut tenths, mut unit) = (bytes, 0, 0);
    while whole >= 1024 && unit + 1 < units.len() {
        tenths = whole % 1024 * 10 / 1024;
        whole /= 1024;
        unit += 1;
    }
    if whole < 10 && unit > 0 {
        format!("{whole}.{tenths} {}", units[unit])
    } else {
        format!("{whole} {}", units[unit])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn picks_are_numbers_of_the_list() {
        assert_eq!(picks("1 3-5, 4\n", 5), Some(vec![0, 2, 3, 4]));
        assert_eq!(picks("\n", 5), Some(vec![]));
        for wrong in ["0", "6", "3-2", "2-6", "all", "-1", "1-", "1 x"] {
            assert_eq!(picks(wrong, 5), None, "{wrong}");
        }
    }

    #[test]
    fn bytes_have_a_unit() {
        let shown = [0, 1023, 1024, 1536, 10 * 1024 * 1024, 5_000_000_000].map(bytes);
        assert_eq!(shown, ["0 B", "1023 B", "1.0 KiB", "1.5 KiB", "10 MiB", "4.6 GiB"]);
    }
}

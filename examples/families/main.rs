//! What agent programs leave behind, measured: families of children × the end of their owner × without us,
//! under `delegate own`, and started over `ownership`. Each case has a pid namespace of its own, in which
//! another owner and a stranger stand beside it. `docs/families.md` is what it printed.
//!
//! `families [--miniatures] [--tier T] [--jsonl] [ROW…]` prints the table, or a JSON line for each case. Missing
//! programs are said; `.ci/programs` installs them. `families --storms [ROUNDS]` is about members that fork and exit
//! all the time.
#![expect(
    clippy::disallowed_methods,
    reason = "runs owners that know nothing of us, and measures time"
)]
#![expect(clippy::print_stdout, clippy::print_stderr, reason = "prints a table")]

mod inside;
mod look;
mod miniatures;
mod outside;
mod rows;
mod storms;
mod table;

use std::path::Path;
use std::process::ExitCode;

use outside::Tools;
use rows::{ROWS, Row};
use serde_json::json;
use table::{Case, End, Mode, Tier};

const HELP: &str = "\
What agent programs leave behind, measured: a table, from real runs.

families [--miniatures] [--tier TIER] [--jsonl] [ROW…]
families --storms [ROUNDS [STORM…]]

  --storms      members that fork and exit all the time, so many rounds each: 1000 (20 of the
                control, and of the fork storm)
  --miniatures  each kind of leftover in a few lines, instead of the families
  --tier TIER   what holds a tree together: subreaper
  --jsonl       a JSON object for each case instead of the table
  ROW           only these rows, for instance `redis` or `M05`

Each case runs in a pid namespace of its own (root, or user namespaces). Programs that are
missing are skipped and said; `.ci/programs` installs them. Exit code 1 if something is not
as it must be, 2 if nothing was run.";

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let result = match args.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        ["-h" | "--help", ..] => {
            println!("{HELP}");
            return ExitCode::SUCCESS;
        }
        ["@inside", row, end, mode, tier, dir] => inside(row, end, mode, tier, Path::new(dir)),
        ["@storm", kind, mode, rounds, dir] => storm(kind, mode, rounds, Path::new(dir)),
        ["--storms"] => show_storms("1000", &[]),
        ["--storms", rounds, kinds @ ..] => show_storms(rounds, kinds),
        words => Wanted::of(words).and_then(show),
    };
    result.unwrap_or_else(|error| {
        eprintln!("families: {error}");
        ExitCode::from(2)
    })
}

fn inside(row: &str, end: &str, mode: &str, tier: &str, dir: &Path) -> Result<ExitCode, String> {
    let row = rows::find(row).ok_or("no such row")?.name;
    let end = End::ALL.into_iter().find(|known| known.name() == end).ok_or("no such end")?;
    let mode = Mode::ALL.into_iter().find(|known| known.name() == mode).ok_or("no such mode")?;
    let case = Case { row, end, mode, tier: named(tier)? };
    let seen = inside::run(&case, &Tools::find()?, dir)?;
    println!("{}", json!(seen));
    Ok(ExitCode::SUCCESS)
}

fn named(tier: &str) -> Result<Tier, String> {
    let found = Tier::ALL.into_iter().find(|known| known.name() == tier);
    let names = || Tier::ALL.map(Tier::name).join(", ");
    found.ok_or_else(|| format!("no tier {tier:?}; there are: {}", names()))
}

/// What the command line asks for.
struct Wanted {
    jsonl: bool,
    tier: Tier,
    rows: Vec<&'static Row>,
}

impl Wanted {
    fn of(words: &[&str]) -> Result<Self, String> {
        let (mut jsonl, mut tier, mut all, mut rows) = (false, Tier::Subreaper, ROWS, Vec::new());
        let mut words = words.iter();
        while let Some(word) = words.next() {
            match *word {
                "--jsonl" => jsonl = true,
                "--miniatures" => all = miniatures::ROWS,
                "--tier" => tier = named(words.next().ok_or("--tier TIER")?)?,
                name => rows.push(rows::find(name).ok_or_else(|| {
                    let known = ROWS.iter().chain(miniatures::ROWS).map(|row| row.name);
                    format!("no row {name:?}; there are: {}", known.collect::<Vec<_>>().join(", "))
                })?),
            }
        }
        if rows.is_empty() {
            rows.extend(all);
        }
        Ok(Self { jsonl, tier, rows })
    }
}

fn show(wanted: Wanted) -> Result<ExitCode, String> {
    if let Some(why) = outside::no_namespace() {
        return Err(format!("no pid namespace may be made here ({why}); nothing was run"));
    }
    if let Some(why) = wanted.tier.refusal() {
        let tier = wanted.tier.name();
        return Err(format!("no {tier} can be had here ({why}); nothing was run"));
    }
    let tools = Tools::find()?;
    let (mut rows, mut skipped) = (Vec::new(), Vec::new());
    for row in wanted.rows {
        match tools.missing(row).as_slice() {
            [] => rows.push(row),
            ["root"] => skipped.push((row, "only root may do it".to_owned())),
            missing => {
                skipped.push((row, format!("{} not installed (.ci/programs)", missing.join(", "))));
            }
        }
    }
    let results = outside::run(table::cases(&rows, wanted.tier), |case, seen| {
        let (row, end, mode) = (case.row, case.end.name(), case.mode.name());
        let faults = table::faults(case, seen);
        if wanted.jsonl {
            let seen = seen.as_ref().ok();
            println!(
                "{}",
                json!({"row": row, "end": end, "mode": mode, "seen": seen, "faults": faults})
            );
        } else {
            let seen = seen.as_ref().map(|seen| format!("{} of {} left", seen.left, seen.started));
            let shown =
                if faults.is_empty() { seen.unwrap_or_default() } else { faults.join("; ") };
            eprintln!("{row}, {end}, {mode}: {shown}");
        }
    });
    if wanted.jsonl {
        for (row, why) in &skipped {
            println!("{}", json!({"row": row.name, "skipped": why}));
        }
    } else {
        println!("{}\n", outside::machine());
        print!("{}", table::markdown(&results, &skipped));
    }
    let failed = results.iter().any(|(case, seen)| !table::faults(case, seen).is_empty());
    Ok(ExitCode::from(u8::from(failed)))
}

fn storm(kind: &str, mode: &str, rounds: &str, dir: &Path) -> Result<ExitCode, String> {
    let mode = Mode::ALL.into_iter().find(|known| known.name() == mode).ok_or("no such mode")?;
    let rounds = rounds.parse().map_err(|_| format!("{rounds:?} is no number of rounds"))?;
    let storm = storms::run(kind, mode, rounds, &Tools::find()?, dir)?;
    println!("{}", json!(storm));
    Ok(ExitCode::SUCCESS)
}

/// One after another: a storm keeps the machine busy.
fn show_storms(rounds: &str, kinds: &[&str]) -> Result<ExitCode, String> {
    let asked: u32 = rounds.parse().map_err(|_| format!("{rounds:?} is no number of rounds"))?;
    let known = storms::KINDS.map(|(kind, ..)| kind);
    if let Some(unknown) = kinds.iter().find(|kind| !known.contains(kind)) {
        return Err(format!("no storm {unknown:?}; there are: {}", known.join(", ")));
    }
    if let Some(why) = outside::no_namespace() {
        return Err(format!("no pid namespace may be made here ({why}); nothing was run"));
    }
    Tools::find()?;
    let mut all = Vec::new();
    for kind in known.into_iter().filter(|kind| kinds.is_empty() || kinds.contains(kind)) {
        for mode in Mode::ALL {
            let rounds = storms::rounds(kind, mode, asked);
            let limit = (120 + u64::from(rounds) * 20).to_string();
            let words = [kind, mode.name(), &rounds.to_string()];
            let storm = outside::alone("@storm", &words, &limit);
            eprint!("{}", storms::line(kind, mode, &storm));
            all.push((kind, mode, storm));
        }
    }
    println!("{}\n\n{}", outside::machine(), storms::markdown(&all));
    let holds = all.iter().all(|(kind, mode, storm)| storms::holds(kind, *mode, storm));
    Ok(ExitCode::from(u8::from(!holds)))
}

//! The table that anybody can repeat: our figures beside those of bare programs and of other ways to do the same work,
//! taken in turns in one run, with ratios, goals, and whether they are met. `cargo bench --bench table -- --help`.
//!
//! `rows` says what is measured, `peers` builds and finds the others, `participant` asks one of them, `ours` answers for
//! us, `judge` is pure, `show` prints; `growth` counts what ever more children cost, `sampled` gives the rows to criterion.
#![expect(clippy::disallowed_methods, reason = "a bench reads the clock and starts programs")]
#![expect(clippy::print_stdout, clippy::print_stderr, reason = "a table is what it is for")]

mod crowd;
mod growth;
mod judge;
mod ours;
mod participant;
mod peers;
mod rows;
mod sampled;
mod show;
#[path = "../support/mod.rs"]
mod support;
mod ticker;
#[path = "../../examples/support/ticker.rs"]
mod watch;

use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};

use judge::{Figures, Verdict, judge};
use participant::Participant;
use peers::{Peers, Who};
use rows::{Bench, Group};

const HELP: &str = "\
Measures delegate beside bare programs and other ways to do the same work, in turns, and prints a table.

usage: cargo bench --bench table -- [OPTIONS]

  --rounds N           rounds of each row (15); what takes long has fewer
  --only ROW           this row alone; may be given more than once
  --growth             what 1, 10, 100, 1,000 and 4,000 children cost instead (--only N for one number)
  --criterion [TEXT]   each column as a criterion bench instead; those with TEXT in ROW/COLUMN
  --json               as JSON, one object
  --list               the rows and what they measure
  --help               this

The table comes on standard output, progress on standard error. What is missing here is a row that says so. The programs
that are measured stand in benches/peers and are built into target/peers. Python's packages are looked for in
target/peers/venv, or where BENCH_PYTHON says:
  python3 -m venv target/peers/venv && target/peers/venv/bin/pip install httpx openai loky ray
";

/// Rounds without a number.
const ROUNDS: usize = 15;

/// Rounds that are not counted, first.
const WARM: usize = 1;

/// Between two asks: a shelf is filled again, a page cache settles, as where children come one by one.
const REST: Duration = Duration::from_millis(5);

/// Nobody needs longer for one answer.
const PATIENCE: Duration = Duration::from_secs(300);

/// What was asked for on the command line.
#[derive(Debug, Default)]
struct Wish {
    rounds: Option<usize>,
    only: Vec<String>,
    growth: bool,
    /// What is to be in the names of the columns.
    criterion: Option<String>,
    json: bool,
}

/// One column, measured.
struct Measured {
    name: String,
    /// Or why there are none.
    figures: Result<Figures, String>,
}

/// One goal, judged.
struct Judged {
    ours: &'static str,
    other: &'static str,
    bound: judge::Bound,
    verdict: Option<Verdict>,
}

/// A group, measured and judged.
struct Answer {
    key: &'static str,
    title: &'static str,
    unit: &'static str,
    columns: Vec<Measured>,
    goals: Vec<Judged>,
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let mut code = ExitCode::SUCCESS;
    let role = support::main(|| {
        code = match arguments.first().map(String::as_str) {
            Some("@ours") => ours::serve(&arguments[1..]),
            Some("@still") => crowd::serve_still(),
            _ => run(&arguments),
        };
    });
    if role == ExitCode::SUCCESS { code } else { role }
}

fn run(arguments: &[String]) -> ExitCode {
    let wish = match wish(arguments) {
        Ok(Some(wish)) => wish,
        Ok(None) => return ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("table: {why}; nothing was measured. cargo bench --bench table -- --help");
            return ExitCode::from(2);
        }
    };
    let machine = show::Machine::now();
    let peers = Peers::prepare();
    let began = Instant::now();
    if wish.growth {
        let grown = growth::measure(&peers, &wish.only);
        growth::show(&grown, &machine, wish.json);
        return ExitCode::SUCCESS;
    }
    let rounds = wish.rounds.unwrap_or(ROUNDS);
    let groups: Vec<Group> = rows::groups();
    if let Some(filter) = &wish.criterion {
        sampled::measure(&peers, &groups, filter);
        return ExitCode::SUCCESS;
    }
    let chosen = groups
        .into_iter()
        .filter(|group| wish.only.is_empty() || wish.only.iter().any(|key| key == group.key));
    let mut answers = Vec::new();
    for group in chosen {
        eprintln!("{:>5} s  {}: {}", began.elapsed().as_secs(), group.key, group.title);
        answers.push(answer(&peers, group, rounds));
    }
    if wish.json {
        println!("{}", show::json(&answers, &machine, rounds));
    } else {
        print!("{}", show::text(&answers, &machine, rounds));
    }
    ExitCode::SUCCESS
}

/// `None`: it was answered.
fn wish(arguments: &[String]) -> Result<Option<Wish>, String> {
    let mut wish = Wish::default();
    let mut words = arguments.iter().map(String::as_str).peekable();
    while let Some(word) = words.next() {
        match word {
            "--help" | "-h" => {
                print!("{HELP}");
                return Ok(None);
            }
            "--list" => {
                for group in rows::groups() {
                    println!("{:<16} {}", group.key, group.title);
                }
                return Ok(None);
            }
            "--rounds" => {
                let rounds = words.next().and_then(|number| number.parse().ok());
                wish.rounds =
                    Some(rounds.filter(|rounds| *rounds > 0).ok_or("--rounds needs a number")?);
            }
            "--only" => {
                wish.only.push(words.next().ok_or("--only needs the name of a row")?.to_owned())
            }
            "--growth" => wish.growth = true,
            "--criterion" => {
                let filter = words.next_if(|word| !word.starts_with("--"));
                wish.criterion = Some(filter.unwrap_or_default().to_owned());
            }
            "--json" => wish.json = true,
            // Cargo's word for every bench.
            "--bench" => {}
            _ => return Err(format!("unknown word {word:?}")),
        }
    }
    let known: Vec<&str> = rows::groups().iter().map(|group| group.key).collect();
    let unknown = wish.only.iter().find(|key| {
        if wish.growth { key.parse::<usize>().is_err() } else { !known.contains(&key.as_str()) }
    });
    match unknown {
        Some(key) if wish.growth => Err(format!("--only {key}: with --growth it is a number")),
        Some(key) => Err(format!("no row {key:?}; there are {}", known.join(", "))),
        None => Ok(Some(wish)),
    }
}

fn answer(peers: &Peers, group: Group, rounds: usize) -> Answer {
    let columns = match &group.bench {
        Some(bench) => of_bench(bench, rounds),
        None => in_turns(peers, &group, rounds),
    };
    let figures = |name: &str| {
        let column = columns.iter().find(|column| column.name == name);
        column.and_then(|column| column.figures.as_ref().ok().copied())
    };
    let goals = group.goals.iter().map(|goal| Judged {
        ours: goal.ours,
        other: goal.other,
        bound: goal.bound,
        verdict: judge(goal.bound, figures(goal.ours), figures(goal.other)),
    });
    let goals = goals.collect();
    Answer { key: group.key, title: group.title, unit: group.unit, columns, goals }
}

fn of_bench(bench: &Bench, rounds: usize) -> Vec<Measured> {
    let rounds = rounds.min(bench.rounds);
    match Peers::bench(bench, rounds) {
        Ok(rows) => {
            let measured =
                rows.into_iter().map(|(name, figures)| Measured { name, figures: Ok(figures) });
            measured.collect()
        }
        Err(why) => vec![Measured { name: bench.name.to_owned(), figures: Err(why) }],
    }
}

/// Whoever takes part in a group; two columns of one participant share it.
struct Side {
    who: Who,
    process: Result<Participant, String>,
}

/// One of each per round, beginning with another one each time, so that what disturbs the machine disturbs all of them.
fn in_turns(peers: &Peers, group: &Group, rounds: usize) -> Vec<Measured> {
    let mut sides: Vec<Side> = Vec::new();
    for column in &group.columns {
        if !sides.iter().any(|side| side.who == column.who) {
            let process = peers.start(&column.who);
            if let Err(why) = &process {
                eprintln!("!! MISSING in this table, {}: {why}", column.name);
            }
            sides.push(Side { who: column.who.clone(), process });
        }
    }
    let count = group.columns.len();
    let mut taken: Vec<Vec<f64>> = vec![Vec::new(); count];
    for round in 0..rounds + WARM {
        // Two columns of one request have the same answer.
        let mut heard: Vec<(usize, &str, Vec<f64>)> = Vec::new();
        for turn in 0..count {
            let at = (turn + round) % count;
            let column = &group.columns[at];
            let warm = if column.rounds == 1 { 0 } else { WARM };
            if round >= column.rounds.saturating_add(warm) {
                continue;
            }
            let side = sides.iter().position(|side| side.who == column.who).expect("it is there");
            let before =
                heard.iter().find(|(of, request, _)| *of == side && *request == column.request);
            let numbers = match before {
                Some((_, _, numbers)) => numbers.clone(),
                None => {
                    let Ok(process) = &mut sides[side].process else { continue };
                    let answered = process.ask(&column.request, PATIENCE);
                    thread::sleep(REST);
                    match answered {
                        Ok(numbers) => {
                            heard.push((side, &column.request, numbers.clone()));
                            numbers
                        }
                        Err(why) => {
                            eprintln!("!! FAILED, {}: {why}", column.name);
                            sides[side].process = Err(why);
                            continue;
                        }
                    }
                }
            };
            if round >= warm
                && let Some(number) = numbers.get(column.place)
            {
                taken[at].push(number / column.per);
            }
        }
    }
    let measured = group.columns.iter().zip(taken).map(|(column, values)| {
        let side = sides.iter().find(|side| side.who == column.who).expect("it is there");
        let figures = match &side.process {
            Err(why) => Err(why.clone()),
            Ok(_) => Figures::of(values).ok_or_else(|| "no answer had that number".to_owned()),
        };
        Measured { name: column.name.clone(), figures }
    });
    measured.collect()
}

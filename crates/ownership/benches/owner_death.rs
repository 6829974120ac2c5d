//! How long an owner's children outlive it, and what their guards cost while nothing happens: ours beside a
//! bare C supervisor and a dash script (`peers/`), in turn, in one run.
//!
//! `cargo bench -p delegate-ownership --bench owner_death [-- ROUNDS [obey|escape|ignore|idle] [rows]]`; medians,
//! minima, and the ratio of the minima to the C supervisor's. The peers know groups alone, so they are told of
//! every session that escapes from theirs; ours finds them. With `rows` each figure comes once more on a line of its own,
//! for the table of all (`cargo bench --bench table`). With `criterion [TEXT]` those with TEXT in their name are criterion
//! benches (but for the long ones, which wait a grace out, and what idle guards cost, which is no time).
#![expect(clippy::disallowed_methods, reason = "a bench reads the clock and starts the owner bare")]
#![expect(clippy::print_stdout, clippy::print_stderr, reason = "a table is what it is for")]

use std::process::ExitCode;
use std::time::Duration;

#[path = "support/idle.rs"]
mod idle;
#[path = "support/owners.rs"]
mod owners;
#[path = "../tests/support/process.rs"]
mod process;
#[path = "../tests/support/small.rs"]
mod small;

use criterion::Criterion;
use owners::{Kind, Peers, Shape};

const ROUNDS: usize = 15;

/// Children of an owner.
const COUNTS: [usize; 3] = [1, 10, 100];

/// Rounds that take a whole grace each.
const LONG_ROUNDS: usize = 3;

/// The grace that the peers have built in.
const GRACE: Duration = Duration::from_secs(3);

fn main() -> ExitCode {
    if let Some(code) = ownership::owner::run_if_asked() {
        return code;
    }
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if arguments.first().is_some_and(|role| role == owners::ROLE) {
        return owners::own(&arguments[1..]);
    }
    let rounds = arguments.iter().find_map(|argument| argument.parse().ok()).unwrap_or(ROUNDS);
    let only = |part: &str| {
        let parts = ["obey", "escape", "ignore", "idle"];
        let named: Vec<_> = arguments.iter().filter(|one| parts.contains(&one.as_str())).collect();
        named.is_empty() || named.iter().any(|one| *one == part)
    };
    let dir = tempfile::tempdir().expect("a folder");
    let peers = Peers::prepare(dir.path());
    if let Some(at) = arguments.iter().position(|argument| argument == "criterion") {
        sampled(&peers, arguments.get(at + 1).map_or("", String::as_str));
        return ExitCode::SUCCESS;
    }
    if only("obey") {
        deaths(&peers, "children that obey TERM", Shape::Obey, &COUNTS, rounds);
    }
    if only("escape") {
        let name = "of each child a session and a double-forked daemon too";
        deaths(&peers, name, Shape::Escape, &COUNTS, rounds);
    }
    if only("ignore") {
        let rounds = rounds.min(LONG_ROUNDS);
        deaths(&peers, "children that ignore TERM, grace 3 s", Shape::Ignore, &[1, 10], rounds);
    }
    if only("idle") {
        idle::table(&peers);
    }
    ExitCode::SUCCESS
}

/// Each kind of owner by itself, as criterion benches.
fn sampled(peers: &Peers, filter: &str) {
    let mut criterion = Criterion::default()
        .sample_size(ROUNDS)
        .warm_up_time(Duration::from_millis(300))
        .measurement_time(Duration::from_secs(2));
    for (shape, count) in
        [Shape::Obey, Shape::Escape].map(|shape| COUNTS.map(|count| (shape, count))).concat()
    {
        for kind in peers.kinds() {
            let name = format!("owner/{shape:?}, N={count}: {}", kind.name());
            if !name.contains(filter) {
                continue;
            }
            criterion.bench_function(&name, |bench| {
                // One a sample, whatever criterion asks for: most of a round is to start them.
                bench.iter_custom(|rounds| {
                    let took = owners::death(peers, kind, shape, count).expect("nobody is left");
                    took.mul_f64(rounds as f64)
                });
            });
        }
    }
    criterion.final_summary();
}

/// What one kind of owner took, for each number of children.
#[derive(Clone)]
struct Row {
    kind: Kind,
    times: Vec<Vec<Duration>>,
    /// Who lived on, in all rounds.
    left: usize,
}

fn deaths(peers: &Peers, what: &str, shape: Shape, counts: &[usize], rounds: usize) {
    let new = |kind| Row { kind, times: vec![Vec::new(); counts.len()], left: 0 };
    let mut rows: Vec<Row> = peers.kinds().into_iter().map(new).collect();
    let kinds = rows.len();
    for round in 0..rounds {
        for (at, count) in counts.iter().enumerate() {
            for turn in 0..kinds {
                let row = &mut rows[(turn + round) % kinds];
                match owners::death(peers, row.kind, shape, *count) {
                    Ok(took) => row.times[at].push(took),
                    Err(alive) => row.left += alive,
                }
            }
        }
    }
    let grace = if shape == Shape::Ignore { GRACE } else { Duration::ZERO };
    rows.iter_mut().flat_map(|row| &mut row.times).for_each(|times| {
        times.iter_mut().for_each(|time| *time = time.saturating_sub(grace));
        times.sort_unstable();
    });
    let beyond = if grace.is_zero() { "" } else { "beyond the grace, " };
    println!("\nowner SIGKILL to the last one gone, {what}; {rounds} rounds");
    println!("{beyond}median / minimum in µs (times the C supervisor's)");
    let heads: String =
        counts.iter().map(|count| format!("{:>32}", format!("N={count}"))).collect();
    println!("{:<24}{heads}", "");
    let bare = rows.iter().find(|row| row.kind == Kind::C).cloned();
    for row in rows.iter().filter(|_| in_rows()) {
        for (count, times) in counts.iter().zip(&row.times) {
            let figures = times.get(times.len() / 2).zip(times.first());
            let Some((median, minimum)) = figures.filter(|_| row.left == 0) else { continue };
            let name = format!("{shape:?}, N={count}: {}", row.kind.name());
            let name = name.replacen(char::is_uppercase, &name[..1].to_lowercase(), 1);
            let rounds = times.len();
            println!("@row\t{name}\t{}\t{}\t{rounds}", median.as_micros(), minimum.as_micros());
        }
    }
    for row in &rows {
        let cells: String = (0..counts.len()).map(|at| cell(row, bare.as_ref(), at)).collect();
        let left = if row.left > 0 { format!("  {} LEFT", row.left) } else { String::new() };
        println!("{:<24}{cells}{left}", row.kind.name());
    }
}

/// Whether a program reads it.
fn in_rows() -> bool {
    std::env::args().any(|argument| argument == "rows")
}

fn cell(row: &Row, bare: Option<&Row>, at: usize) -> String {
    let both = |row: &Row| {
        Some((
            row.times[at].get(row.times[at].len() / 2)?.as_micros(),
            row.times[at].first()?.as_micros(),
        ))
    };
    let Some((median, minimum)) = both(row) else { return format!("{:>32}", "never") };
    let ratios = bare.and_then(both).filter(|(median, minimum)| *median > 0 && *minimum > 0);
    let ratios = ratios.map_or(String::new(), |(median_bare, minimum_bare)| {
        let times = |ours: u128, bare: u128| ours * 100 / bare;
        let (median, minimum) = (times(median, median_bare), times(minimum, minimum_bare));
        format!(" ({}.{:02} / {}.{:02})", median / 100, median % 100, minimum / 100, minimum % 100)
    });
    format!("{:>32}", format!("{median} / {minimum}{ratios}"))
}

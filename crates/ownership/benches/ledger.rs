//! Rows a second of 1, 3, 8 and 16 writing processes: the ledger, and beside it, in the same run and interleaved, bare
//! SQLite with the same table and settings. A row is a child from intent to end, three states.
//!
//! `cargo bench -p delegate-ownership --bench ledger [-- ROUNDS [rows] | spawns | criterion [TEXT]]`; medians; with `rows` each figure once more on a
//! line of its own, as µs a row, for the table of all (`cargo bench --bench table`). `waits`: each intent is waited for, as a
//! spawn does; the bare writer commits each state. `queue`: nobody waits; the bare writer commits 100 rows at a time.
//! Then, what a ledger adds to a spawn: the same program started with and without one, in turns.
#![expect(clippy::disallowed_methods, reason = "a bench reads the clock and starts writers")]
#![expect(clippy::print_stdout, reason = "a table is what it is for")]

use std::io::{BufRead, BufReader, Read, Write};
use std::path::Path;
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use criterion::Criterion;
use ownership::exit::ExitStatus;
use ownership::ledger::{EndedBy, Intent, Ledger, PATIENCE, next_spawn};
use ownership::{Owner, Program, Spawn};
use rusqlite::{Connection, TransactionBehavior, params};

/// The role of a writer; what it writes with, the file and the number of rows follow.
const WRITER: &str = "@bench-writer";
const WRITERS: [usize; 4] = [1, 3, 8, 16];
/// Rows of all writers together.
const ROWS: usize = 4800;
const ROUNDS: usize = 3;

/// Spawns with and without a ledger.
const SPAWNS: usize = 400;

fn main() -> ExitCode {
    if let Some(code) = ownership::owner::run_if_asked() {
        return code;
    }
    let arguments: Vec<String> = std::env::args().collect();
    if let [_, role, what, file, rows] = arguments.as_slice()
        && role == WRITER
    {
        write(what, Path::new(file), rows.parse().expect("a number of rows"));
        return ExitCode::SUCCESS;
    }
    if arguments.iter().any(|argument| argument == "spawns") {
        spawns();
        return ExitCode::SUCCESS;
    }
    if let Some(at) = arguments.iter().position(|argument| argument == "criterion") {
        sampled(arguments.get(at + 1).map_or("", String::as_str));
        return ExitCode::SUCCESS;
    }
    let rounds = arguments.iter().find_map(|argument| argument.parse().ok()).unwrap_or(ROUNDS);
    println!("rows/s of {ROWS} rows, {rounds} rounds, medians; ratio = ledger / bare");
    println!("{:<8}{:>8}{:>10}{:>10}{:>8}", "", "writers", "ledger", "bare", "ratio");
    for kind in ["waits", "queue"] {
        for writers in WRITERS {
            let (mut ledger, mut bare) = (Vec::new(), Vec::new());
            for _ in 0..rounds {
                ledger.push(rate(&format!("ledger-{kind}"), writers));
                bare.push(rate(&format!("bare-{kind}"), writers));
            }
            if arguments.iter().any(|argument| argument == "rows") {
                for (name, rates) in [("ledger", &ledger), ("bare", &bare)] {
                    let best = rates.iter().copied().fold(f64::MIN, f64::max);
                    let [median, least] = [median(rates.clone()), best].map(|rate| 1e6 / rate);
                    println!("@row\t{kind}, {writers}: {name}\t{median}\t{least}\t{rounds}");
                }
            }
            let (ledger, bare) = (median(ledger), median(bare));
            println!("{kind:<8}{writers:>8}{ledger:>10.0}{bare:>10.0}{:>8.2}", ledger / bare);
        }
    }
    spawns();
    ExitCode::SUCCESS
}

/// A row of each kind of writer, as criterion benches.
fn sampled(filter: &str) {
    let mut criterion = Criterion::default()
        .sample_size(10)
        .warm_up_time(Duration::from_millis(300))
        .measurement_time(Duration::from_secs(2));
    for kind in ["ledger-waits", "bare-waits", "ledger-queue", "bare-queue"] {
        for writers in WRITERS {
            let name = format!("ledger/{kind}, {writers} writers");
            if !name.contains(filter) {
                continue;
            }
            // As many rows as one run of the writers has, whatever criterion asks for.
            criterion.bench_function(&name, |bench| {
                let row = || 1.0 / rate(kind, writers);
                bench.iter_custom(|rows| Duration::from_secs_f64(row() * rows as f64));
            });
        }
    }
    criterion.final_summary();
}

fn spawns() {
    let dir = tempfile::tempdir().expect("dir");
    let ledger = Arc::new(Ledger::open(dir.path().join("ledger.sqlite")));
    let program = Program::current().expect("this program");
    let without = Owner::new(program.clone(), Vec::new());
    let with = Owner::new(program, Vec::new()).with_ledger(ledger);
    let (mut bare, mut kept) = (Vec::new(), Vec::new());
    for _ in 0..SPAWNS {
        for (owner, times) in [(&without, &mut bare), (&with, &mut kept)] {
            let began = Instant::now();
            let child = owner.spawn(Spawn::new("/bin/true"), |_| {}).expect("a child");
            times.push(began.elapsed().as_secs_f64() * 1e6);
            child.wait_empty();
        }
    }
    let late = |times: &[f64]| {
        let mut times = times.to_vec();
        times.sort_by(f64::total_cmp);
        times[times.len() * 99 / 100]
    };
    println!(
        "\nspawn of /bin/true to its handle, {SPAWNS} each in turns, µs: median / 99th of 100"
    );
    println!("without a ledger {:>8.0} / {:.0}", median(bare.clone()), late(&bare));
    println!("with a ledger    {:>8.0} / {:.0}", median(kept.clone()), late(&kept));
}

fn median(mut rates: Vec<f64>) -> f64 {
    rates.sort_by(f64::total_cmp);
    rates[rates.len() / 2]
}

/// Rows a second of so many writers that begin at once.
fn rate(what: &str, writers: usize) -> f64 {
    let dir = tempfile::tempdir().expect("dir");
    let file = dir.path().join("ledger.sqlite");
    drop(Ledger::open(&file));
    let rows = ROWS / writers;
    let mut children: Vec<_> = (0..writers).map(|_| start(what, &file, rows)).collect();
    let mut said: Vec<_> = children
        .iter_mut()
        .map(|child| BufReader::new(child.stdout.take().expect("stdout")))
        .collect();
    for ready in &mut said {
        ready.read_line(&mut String::new()).expect("ready");
    }
    let began = Instant::now();
    for child in &mut children {
        child.stdin.take().expect("stdin").write_all(b"\n").expect("go");
    }
    for ready in &mut said {
        ready.read_line(&mut String::new()).expect("done");
    }
    let took = began.elapsed();
    for mut child in children {
        assert!(child.wait().expect("wait").success());
    }
    let sql = "SELECT count(*) FROM children WHERE state = 'ended'";
    let count: u32 =
        Connection::open(&file).expect("open").query_row(sql, [], |row| row.get(0)).expect("count");
    assert_eq!(usize::try_from(count), Ok(rows * writers), "{what}: all rows are there");
    f64::from(count) / took.as_secs_f64()
}

fn start(what: &str, file: &Path, rows: usize) -> Child {
    Command::new(std::env::current_exe().expect("this program"))
        .args([WRITER, what])
        .arg(file)
        .arg(rows.to_string())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("a writer")
}

/// Says that it is ready, waits for its start, writes, and says that it is done.
fn write(what: &str, file: &Path, rows: usize) {
    let (tool, kind) = what.split_once('-').expect("TOOL-KIND");
    let waits = kind == "waits";
    let mut tool: Box<dyn FnMut()> = match tool {
        "ledger" => {
            let ledger = Ledger::open(file);
            Box::new(move || through_ledger(&ledger, rows, waits))
        }
        _ => {
            let mut connection = Connection::open(file).expect("open");
            connection.busy_timeout(Duration::from_secs(60)).expect("timeout");
            connection.pragma_update(None, "synchronous", "NORMAL").expect("synchronous");
            Box::new(move || bare(&mut connection, rows, if waits { 1 } else { 100 }))
        }
    };
    println!("ready");
    std::io::stdin().read_exact(&mut [0]).expect("go");
    tool();
    println!("done");
}

fn through_ledger(ledger: &Ledger, rows: usize, waits: bool) {
    for _ in 0..rows {
        let spawn = next_spawn();
        let intent = Intent::new(spawn, Path::new("/bin/sleep"), &["sleep".into(), "600".into()]);
        let ticket = ledger.intent(intent.purpose("bench"));
        if waits {
            let _late = ticket.wait(PATIENCE);
        }
        ledger.ending(spawn, EndedBy::Owner, "");
        ledger.exited(spawn, ExitStatus::Code(0));
        ledger.ended(spawn, None, EndedBy::Itself, "");
    }
    assert!(ledger.flush(Duration::from_secs(60)), "{:?}", ledger.trouble());
}

/// The same rows with nothing around SQLite: an insert, and two updates.
fn bare(connection: &mut Connection, rows: usize, at_once: usize) {
    let owner = std::process::id();
    connection
        .execute("INSERT INTO owners VALUES (NULL, 'b', 1, ?1, 1, 1, NULL)", [owner])
        .expect("owner");
    let owner = connection.last_insert_rowid();
    for first in (0..rows).step_by(at_once) {
        let spawns = first..rows.min(first + at_once);
        for state in ["intent", "running", "ended"] {
            let transaction = connection
                .transaction_with_behavior(TransactionBehavior::Immediate)
                .expect("begin");
            for spawn in spawns.clone() {
                let sql = if state == "intent" {
                    "INSERT INTO children (owner, spawn, state, intent_at, purpose, argv, executable, dir, why)
                     VALUES (?1, ?2, ?3, 1700000000000, 'bench', 'sleep 600', '/bin/sleep', '', '')"
                } else {
                    "UPDATE children SET state = ?3, exit_code = 0, ended_by = 'owner' WHERE owner = ?1 AND spawn = ?2"
                };
                let mut statement = transaction.prepare_cached(sql).expect("prepare");
                let spawn = i64::try_from(spawn).expect("few");
                statement.execute(params![owner, spawn, state]).expect("execute");
            }
            transaction.commit().expect("commit");
        }
    }
}

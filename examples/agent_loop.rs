//! An agent loop that must stay responsive while it delegates work that needs a CPU.
//!
//! The loop has a ticker of 1 ms on a runtime of one thread, as many agent loops do. It measures how
//! late each tick comes with nothing else to do, while a batch of eight hogs runs in threads of this process, while
//! the same batch runs in processes, and while these go second (`child_nice`, `child_cpu_weight`). Run it with
//! `--release`:
//!
//! ```text
//! cargo run --release --example agent_loop
//! ```
#![expect(clippy::disallowed_methods, reason = "the ticker measures, so it reads the clock")]
#![expect(clippy::print_stdout, reason = "an example shows its results")]

use std::error::Error;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use delegate_runtime::config::Settings;
use delegate_runtime::{Agent, Delegator, Event, Failure, Isolation, Ration, Session, Task};

#[path = "support/ticker.rs"]
mod ticker;

use ticker::watched;

const IDLE: Duration = Duration::from_secs(2);
const TASKS: u64 = 8;
const NUMBERS_PER_TASK: u64 = 300_000;

#[derive(serde::Serialize, serde::Deserialize)]
struct Range {
    from: u64,
    to: u64,
}

/// Counts primes by trial division: nothing but CPU.
struct Primes;

impl Agent for Primes {
    const NAME: &'static str = "primes";
    type Params = Range;
    type Answer = u64;

    fn run(&mut self, range: Range, session: &mut Session) -> Result<u64, Failure> {
        let mut found = 0;
        for n in range.from.max(2)..range.to {
            session.checkpoint()?;
            if n % 100_000 == 0 {
                session.progress(n);
            }
            found += u64::from((2..).take_while(|d| d * d <= n).all(|d| n % d != 0));
        }
        Ok(found)
    }
}

fn main() -> ExitCode {
    delegate_runtime::workers().agent(|| Primes).or_else(host)
}

#[tokio::main(flavor = "current_thread")]
async fn host() -> Result<(), Box<dyn Error>> {
    println!("{:<10} {:>12} {:>12} {:>12}", "", "worst", "p99", "batch");
    let (delays, ()) = watched(tokio::time::sleep(IDLE)).await;
    show("idle", delays, None);
    let (threads, processes) = (Isolation::Thread, Isolation::Process);
    let none = Ration::default();
    for (name, isolation, ration) in [
        ("threads", threads, none),
        ("processes", processes, none),
        ("nice 10", processes, Ration { nice: Some(10), ..none }),
        ("weight 10", processes, Ration { cpu_weight: Some(10), ..none }),
    ] {
        let started = Instant::now();
        let (delays, primes) = watched(delegate(isolation, ration)).await;
        show(name, delays, Some((started.elapsed(), primes?)));
    }
    Ok(())
}

/// Delegates one batch, follows its events, and adds up the answers.
async fn delegate(isolation: Isolation, ration: Ration) -> Result<u64, Box<dyn Error>> {
    let settings = Settings { ration, ..Settings::default() };
    let delegator = Delegator::builder().isolation(isolation).settings(settings).build()?;
    let tasks = (0..TASKS).map(|index| {
        let range = Range { from: index * NUMBERS_PER_TASK, to: (index + 1) * NUMBERS_PER_TASK };
        Task::of::<Primes>(format!("part {index}"), range).timeout(Duration::from_secs(120))
    });
    let mut run = delegator.batch(tasks).start().await?;
    while let Some(event) = run.next().await {
        if let Event::Start { child, pid, .. } = event {
            tracing::debug!(%child, ?pid, "started");
        }
    }
    let report = run.finish().await;
    let mut primes = 0;
    for outcome in report.results() {
        primes += outcome.answer::<Primes>()?;
    }
    Ok(primes)
}

fn show(name: &str, mut delays: Vec<Duration>, batch: Option<(Duration, u64)>) {
    delays.sort_unstable();
    let at = |part: usize| delays.get(delays.len().saturating_sub(1) * part / 100).copied();
    let (worst, p99) = (at(100).unwrap_or_default(), at(99).unwrap_or_default());
    let batch =
        batch.map_or(String::new(), |(time, primes)| format!("{time:.1?}, {primes} primes"));
    println!("{name:<10} {worst:>12.1?} {p99:>12.1?} {batch:>12}");
}

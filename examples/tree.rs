//! A child that delegates: a chief counts primes with children of its own, each an OS process that the root
//! starts, counts and ends.
//!
//! ```text
//! cargo run --example tree
//! delegate show latest
//! ```
#![expect(clippy::print_stdout, reason = "an example shows its results")]

use std::error::Error;
use std::process::ExitCode;

use delegate_runtime::config::Settings;
use delegate_runtime::{Agent, Delegator, Event, Failure, Isolation, Session, Task};

#[derive(serde::Serialize, serde::Deserialize)]
struct Range {
    from: u64,
    to: u64,
}

struct Primes;

impl Agent for Primes {
    const NAME: &'static str = "primes";
    type Params = Range;
    type Answer = u64;

    fn run(&mut self, range: Range, session: &mut Session) -> Result<u64, Failure> {
        let mut found = 0;
        for n in range.from.max(2)..range.to {
            session.checkpoint()?;
            found += u64::from((2..).take_while(|d| d * d <= n).all(|d| n % d != 0));
        }
        Ok(found)
    }
}

struct Chief;

impl Agent for Chief {
    const NAME: &'static str = "chief";
    type Params = Range;
    type Answer = u64;

    fn run(&mut self, range: Range, session: &mut Session) -> Result<u64, Failure> {
        let middle = u64::midpoint(range.from, range.to);
        let halves = [(range.from, middle), (middle, range.to)];
        let tasks = halves
            .map(|(from, to)| Task::of::<Primes>(format!("{from} to {to}"), Range { from, to }));
        // Waits, and lends its slot meanwhile. Interrupts and refusals leave through `?`.
        let mut found = 0;
        for outcome in session.delegate(tasks)? {
            found += outcome.answer::<Primes>().map_err(|error| Failure::new(error.to_string()))?;
        }
        Ok(found)
    }
}

fn main() -> ExitCode {
    delegate_runtime::workers().agent(|| Primes).agent(|| Chief).or_else(host)
}

#[tokio::main(flavor = "current_thread")]
async fn host() -> Result<(), Box<dyn Error>> {
    // A child at depth 1 may delegate; 4 children of all levels work at once.
    let settings =
        Settings { max_spawn_depth: 2, max_tree_children: Some(4), ..Settings::default() };
    let delegator =
        Delegator::builder().isolation(Isolation::Process).settings(settings).build()?;
    let chiefs = [(0, 20_000), (20_000, 40_000)].map(|(from, to)| {
        Task::of::<Chief>(format!("chief of {from} to {to}"), Range { from, to })
    });
    let mut run = delegator.batch(chiefs).start().await?;
    while let Some(relayed) = run.next_relayed().await {
        let who = relayed.identity;
        if let Event::Complete { end, .. } = relayed.event {
            let indent = "  ".repeat(who.depth as usize);
            println!("{indent}{}: {} {}", who.goal, end.status.word(), end.preview);
        }
    }
    let mut found = 0;
    for outcome in run.finish().await.results() {
        found += outcome.answer::<Chief>()?;
    }
    println!("{found} primes");
    Ok(())
}

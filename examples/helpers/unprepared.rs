//! Helper: a program that delegates and forgot the first line of `main`: it cannot be its own worker.
//!
//! `unprepared STATE_DIR` asks for processes and says how that was refused, then runs a task in a
//! thread, which needs no such line.

use std::error::Error;
use std::io::{self, Write};

use delegate_runtime::blocking::Delegator;
use delegate_runtime::{Isolation, Task};

fn main() -> Result<(), Box<dyn Error>> {
    let state = std::env::args_os().nth(1).ok_or("unprepared STATE_DIR")?;
    let builder = |isolation| Delegator::builder().isolation(isolation).state_dir(&state);
    let mut out = io::stdout();
    match builder(Isolation::Process).build() {
        Ok(_) => writeln!(out, "process: accepted")?,
        Err(error) => writeln!(out, "process: refused: {error}")?,
    }
    let delegator = builder(Isolation::Thread).build()?;
    let report = delegator.batch([Task::new("command", "no program")]).run()?;
    let outcome = report.results().next().ok_or("no outcome")?;
    Ok(writeln!(out, "thread: {} in {}", outcome.status.word(), outcome.isolation.word())?)
}

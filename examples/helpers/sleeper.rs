//! Helper: does nothing for a while.
//!
//! `sleeper [SECONDS]` (default 600) prints its pid on one line, sleeps, and exits 0. The well-behaved
//! neighbour of the others, and what they start when they need a process that just stays.
#![expect(clippy::disallowed_methods, reason = "a test program: sleeping is what it is for")]

use std::io::{self, Write};
use std::thread;
use std::time::Duration;

fn main() -> io::Result<()> {
    let seconds = std::env::args().nth(1).and_then(|text| text.parse().ok()).unwrap_or(600);
    writeln!(io::stdout(), "{}", std::process::id())?;
    thread::sleep(Duration::from_secs(seconds));
    Ok(())
}

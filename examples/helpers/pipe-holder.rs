//! Helper: leaves a grandchild that keeps its pipes.
//!
//! `pipe-holder [SECONDS]` starts itself again as a holder that inherits stdout and stderr and sleeps
//! (default 600 s), prints `holder PID`, and exits 0 at once. The pipe has no end although its
//! process has: whoever waits for the end of the pipe waits for the grandchild.
#![expect(clippy::disallowed_methods, reason = "a test program that misbehaves on purpose")]

use std::io::{self, Write};
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

const HOLDER: &str = "--holder";

fn main() -> io::Result<()> {
    let args: Vec<String> = std::env::args().collect();
    if args.get(1).map(String::as_str) == Some(HOLDER) {
        let seconds = args.get(2).and_then(|text| text.parse().ok()).unwrap_or(600);
        thread::sleep(Duration::from_secs(seconds));
        return Ok(());
    }
    let seconds = args.get(1).map_or("600", String::as_str);
    let me = std::env::current_exe()?;
    let holder = Command::new(me).args([HOLDER, seconds]).stdin(Stdio::null()).spawn()?;
    let mut out = io::stdout();
    writeln!(out, "holder {}", holder.id())?;
    out.flush()
}

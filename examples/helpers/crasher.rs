//! Helper: ends badly.
//!
//! `crasher HOW [TEXT]` writes TEXT (default `about to crash`) on stderr and then ends by HOW: a number
//! (exit code), a signal (`segv`, `abrt`, `kill`, `term`), or `panic`.

use std::io::{self, Write};
use std::process::ExitCode;

use rustix::process::{Signal, getpid, kill_process};

fn main() -> io::Result<ExitCode> {
    let args: Vec<String> = std::env::args().collect();
    let how = args.get(1).map_or("1", String::as_str);
    writeln!(io::stderr(), "{}", args.get(2).map_or("about to crash", String::as_str))?;
    match how {
        "segv" => die_by(Signal::SEGV),
        "abrt" => die_by(Signal::ABORT),
        "kill" => die_by(Signal::KILL),
        "term" => die_by(Signal::TERM),
        "panic" => panic!("this helper panics on purpose"),
        code => Ok(ExitCode::from(code.parse::<u8>().unwrap_or(2))),
    }
}

/// Sends itself the signal until it works: the runtime's own SEGV handler takes the first one for a
/// stack overflow that was none, and steps aside.
fn die_by(signal: Signal) -> io::Result<ExitCode> {
    loop {
        kill_process(getpid(), signal)?;
    }
}

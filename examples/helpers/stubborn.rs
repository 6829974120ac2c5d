//! Helper: does not want to end.
//!
//! `stubborn [run|stop] [SECONDS]` ignores TERM, INT and HUP, prints `ready PID` once they are
//! ignored, and sleeps (default 600 s). With `stop` it sends itself SIGSTOP after that line, so that
//! only CONT or KILL reaches it.
//!
//! It ignores them as a shell script does: `sh` sets the traps and executes this program again, and an
//! ignored signal stays ignored across exec (man 2 execve).
#![expect(clippy::disallowed_methods, reason = "a test program that misbehaves on purpose")]

use std::io::{self, Write};
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::thread;
use std::time::Duration;

use rustix::process::{Signal, getpid, kill_process};

const TRAPPED: &str = "--trapped";

fn main() -> io::Result<()> {
    let mut args: Vec<String> = std::env::args().skip(1).collect();
    if args.first().map(String::as_str) != Some(TRAPPED) {
        let script = "trap '' TERM INT HUP; exec \"$0\" \"$@\"";
        let me = std::env::current_exe()?;
        return Err(Command::new("sh").args(["-c", script]).arg(me).arg(TRAPPED).args(args).exec());
    }
    args.remove(0);
    let mut out = io::stdout();
    writeln!(out, "ready {}", std::process::id())?;
    out.flush()?;
    if args.first().map(String::as_str) == Some("stop") {
        kill_process(getpid(), Signal::STOP)?;
    }
    let seconds = args.get(1).and_then(|text| text.parse().ok()).unwrap_or(600);
    thread::sleep(Duration::from_secs(seconds));
    Ok(())
}

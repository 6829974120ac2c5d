//! Helper: says nothing.
//!
//! `mute exit` exits 0 without a word. `mute close [SECONDS]` closes its stdout and stderr and runs on
//! (default 600 s): whoever takes the end of the pipe for the end of the process is wrong.
//! `mute close-then-exit [CODE]` closes both and exits at once.
#![expect(clippy::disallowed_methods, reason = "a test program: sleeping is what it is for")]

use std::fs::OpenOptions;
use std::io;
use std::process::ExitCode;
use std::thread;
use std::time::Duration;

fn main() -> io::Result<ExitCode> {
    let args: Vec<String> = std::env::args().collect();
    let number = args.get(2).and_then(|text| text.parse::<u32>().ok());
    match args.get(1).map_or("exit", String::as_str) {
        "exit" => Ok(ExitCode::SUCCESS),
        "close" => {
            close_outputs()?;
            thread::sleep(Duration::from_secs(number.unwrap_or(600).into()));
            Ok(ExitCode::SUCCESS)
        }
        "close-then-exit" => {
            close_outputs()?;
            Ok(ExitCode::from(u8::try_from(number.unwrap_or(0)).unwrap_or(u8::MAX)))
        }
        _ => Ok(ExitCode::from(2)),
    }
}

/// Gives up this process's ends of both pipes; `/dev/null` takes their numbers.
fn close_outputs() -> io::Result<()> {
    let null = OpenOptions::new().write(true).open("/dev/null")?;
    rustix::stdio::dup2_stdout(&null)?;
    rustix::stdio::dup2_stderr(&null)?;
    Ok(())
}

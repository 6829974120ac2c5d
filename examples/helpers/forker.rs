//! Helper: makes a family that tries to get away.
//!
//! `forker [stay|leave] [SECONDS]` starts three descendants that sleep (default 600 s), prints their
//! pids as one line of JSON, and sleeps too (`stay`) or exits 0 (`leave`):
//!
//! ```text
//! {"self":10,"plain":11,"session":12,"daemon":14}
//! ```
//!
//! `plain` stays in group and session. `session` called setsid(2). `daemon` was forked twice with a
//! setsid(2) between, so that its parent (13) is gone. None of them keeps the pipes.
#![expect(clippy::disallowed_methods, reason = "a test program that misbehaves on purpose")]

use std::io::{self, BufRead, BufReader, Read, Write};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

fn main() -> io::Result<()> {
    let args: Vec<String> = std::env::args().collect();
    let seconds = args.get(2).map_or("600", String::as_str);
    match args.get(1).map_or("stay", String::as_str) {
        "--plain" => sleep(seconds),
        "--session" => {
            rustix::process::setsid()?;
            announce()?;
            sleep(seconds)
        }
        "--middle" => {
            rustix::process::setsid()?;
            let daemon = start("--plain", seconds, Stdio::null())?;
            writeln!(io::stdout(), "{}", daemon.id())
        }
        what => family(what == "stay", seconds),
    }
}

fn family(stay: bool, seconds: &str) -> io::Result<()> {
    let plain = start("--plain", seconds, Stdio::null())?.id();
    let mut session = start("--session", seconds, Stdio::piped())?;
    first_line(&mut session)?;
    let mut middle = start("--middle", seconds, Stdio::piped())?;
    let daemon = first_line(&mut middle)?;
    middle.wait()?;
    let (own, session) = (std::process::id(), session.id());
    let mut out = io::stdout();
    writeln!(
        out,
        "{{\"self\":{own},\"plain\":{plain},\"session\":{session},\"daemon\":{daemon}}}"
    )?;
    out.flush()?;
    if stay { sleep(seconds) } else { Ok(()) }
}

/// This program again in another role, without our pipes.
fn start(role: &str, seconds: &str, stdout: Stdio) -> io::Result<Child> {
    let mut command = Command::new(std::env::current_exe()?);
    command.args([role, seconds]).stdin(Stdio::null()).stdout(stdout).stderr(Stdio::null()).spawn()
}

/// Says that the setsid is done, and gives the pipe up.
fn announce() -> io::Result<()> {
    let mut out = io::stdout();
    writeln!(out, "{}", std::process::id())?;
    out.flush()?;
    Ok(rustix::stdio::dup2_stdout(std::fs::File::open("/dev/null")?)?)
}

fn first_line(child: &mut Child) -> io::Result<String> {
    let stdout = child.stdout.as_mut().map(|pipe| pipe as &mut dyn Read);
    let mut line = String::new();
    BufReader::new(stdout.ok_or(io::ErrorKind::BrokenPipe)?).read_line(&mut line)?;
    Ok(line.trim().to_owned())
}

fn sleep(seconds: &str) -> io::Result<()> {
    thread::sleep(Duration::from_secs(seconds.parse().unwrap_or(600)));
    Ok(())
}

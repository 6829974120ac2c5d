//! How long an owner's children outlive it: SIGKILL of the owner → the last of 1, 10, 100 children
//! is gone. `cargo bench -p delegate-ownership --bench owner_death [-- ROUNDS]`; medians and minima.
#![expect(clippy::disallowed_methods, reason = "a bench reads the clock and starts the owner bare")]
#![expect(clippy::print_stdout, reason = "a table is what it is for")]

use std::io::{BufRead, BufReader, Write};
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use ownership::{Owner, Program, Spawn};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

/// The role of the owner that is killed; the number of children follows.
const OWNER: &str = "@bench-owner";
const ROUNDS: usize = 15;

fn main() -> ExitCode {
    if let Some(code) = ownership::owner::run_if_asked() {
        return code;
    }
    let arguments: Vec<String> = std::env::args().collect();
    if arguments.get(1).is_some_and(|role| role == OWNER) {
        own(arguments[2].parse().expect("a number of children"));
        return ExitCode::SUCCESS;
    }
    let rounds = arguments.iter().find_map(|argument| argument.parse().ok()).unwrap_or(ROUNDS);
    println!("owner SIGKILL to the last child gone, {rounds} rounds; median / minimum in µs");
    let mut taken = [(1, Vec::new()), (10, Vec::new()), (100, Vec::new())];
    for _ in 0..rounds {
        for (children, times) in &mut taken {
            times.push(death(*children));
        }
    }
    for (children, mut times) in taken {
        times.sort_unstable();
        let (median, minimum) = (times[times.len() / 2].as_micros(), times[0].as_micros());
        println!("{children:>5} {median:>8} / {minimum}");
    }
    ExitCode::SUCCESS
}

/// Starts children that obey SIGTERM, says their numbers, and waits to be killed.
fn own(children: usize) {
    let owner = Owner::new(Program::current().expect("this program"), Vec::new());
    let start = |_| owner.spawn(Spawn::new("sleep").arg("600"), |_| {}).expect("a child");
    let owned: Vec<_> = (0..children).map(start).collect();
    for child in &owned {
        println!("{}", child.pid());
    }
    std::io::stdout().flush().expect("a reader");
    loop {
        std::thread::park();
    }
}

fn death(children: usize) -> Duration {
    let program = std::env::current_exe().expect("this program");
    let mut owner = Command::new(program)
        .args([OWNER, &children.to_string()])
        .stdout(Stdio::piped())
        .spawn()
        .expect("an owner");
    let lines = BufReader::new(owner.stdout.take().expect("its output")).lines();
    let handle = |line: std::io::Result<String>| {
        let pid = line.expect("a line").parse().ok().and_then(Pid::from_raw);
        pidfd_open(pid.expect("a process"), PidfdFlags::empty()).expect("a handle")
    };
    let handles: Vec<_> = lines.take(children).map(handle).collect();
    let began = Instant::now();
    owner.kill().expect("a signal");
    for handle in &handles {
        // Readable once the process has ended (man 2 pidfd_open).
        poll(&mut [PollFd::new(handle, PollFlags::IN)], None).expect("a wait");
    }
    let took = began.elapsed();
    owner.wait().expect("a status");
    took
}

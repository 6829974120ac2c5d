//! A process that writes a ledger, for tests that kill, stop or crowd it.
//!
//! `ledger-writer FILE CHILDREN [keep]`: writes down that many children from intent to end, as an owner does, and
//! prints the longest wait for an intent in ms; with `keep`, says that all is written and stays. With `twins FILE`
//! in the place of both: two processes with one number (only in a pid namespace of its own).
#![expect(clippy::disallowed_methods, reason = "tests start, kill and measure it")]
#![expect(clippy::print_stdout, reason = "its starter reads it")]

use std::io::Read;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::{Child, Command, ExitCode};
use std::sync::Arc;
use std::time::{Duration, Instant};

use ownership::exit::ExitStatus;
use ownership::ledger::{EndedBy, Intent, Ledger, PATIENCE, next_spawn};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().collect();
    match arguments.get(1..).unwrap_or_default() {
        [role, file] if role == "twins" => twins(Path::new(file)),
        [file, children, rest @ ..] => {
            write(Path::new(file), children.parse().expect("a number"), !rest.is_empty());
        }
        _ => return ExitCode::from(2),
    }
    ExitCode::SUCCESS
}

fn write(file: &Path, children: usize, keep: bool) {
    let ledger = Ledger::open(file);
    let own = rustix::process::getpid();
    let pidfd = Arc::new(pidfd_open(own, PidfdFlags::empty()).expect("pidfd"));
    let mut longest = Duration::ZERO;
    for number in 0..children {
        let spawn = next_spawn();
        let intent = Intent::new(spawn, Path::new("/bin/true"), &["true".into()]);
        let began = Instant::now();
        let _late = ledger.intent(intent.purpose(&number.to_string())).wait(PATIENCE);
        longest = longest.max(began.elapsed());
        ledger.started(spawn, own.as_raw_nonzero().get().cast_unsigned(), Arc::clone(&pidfd));
        ledger.exited(spawn, ExitStatus::Code(0));
        ledger.ended(spawn, None, EndedBy::Itself, "");
    }
    assert!(ledger.flush(Duration::from_secs(120)), "{:?}", ledger.trouble());
    println!("{}", longest.as_millis());
    if keep {
        let _ended = std::io::stdin().read(&mut [0]);
    }
}

/// Writes down a process, ends it, and starts others with its number until one began in the same clock tick; says
/// what the ledger makes of the first one then.
fn twins(file: &Path) {
    let is_initial = std::fs::read_link("/proc/self/ns/pid").is_ok_and(|name| {
        // The initial namespace (linux/proc_ns.h).
        name.to_str() == Some("pid:[4026531836]")
    });
    assert!(!is_initial, "only in a pid namespace of its own: it takes the numbers of others");
    let ledger = Ledger::open(file);
    for _ in 0..500 {
        let spawn = next_spawn();
        let _late = ledger.intent(Intent::new(spawn, Path::new("sleep"), &[])).wait(PATIENCE);
        let mut first = sleep();
        let number = first.id();
        ledger.started(spawn, number, Arc::new(handle(number)));
        let start = start_of(number);
        assert!(ledger.flush(PATIENCE), "{:?}", ledger.trouble());
        first.kill().expect("kill");
        first.wait().expect("wait");
        std::fs::write("/proc/sys/kernel/ns_last_pid", (number - 1).to_string()).expect("last pid");
        let mut second = sleep();
        let is_twin = second.id() == number && start_of(number) == start;
        if is_twin {
            let row = ledger.history(1).expect("history").remove(0);
            let had_inode = row.identity.as_ref().is_some_and(|who| who.inode.is_some());
            println!("{:?} inode:{had_inode}", row.verify().child);
        }
        second.kill().expect("kill");
        second.wait().expect("wait");
        if is_twin {
            return;
        }
    }
    println!("no twins");
}

fn sleep() -> Child {
    Command::new("sleep").arg("60").spawn().expect("sleep")
}

fn handle(number: u32) -> OwnedFd {
    let pid = Pid::from_raw(number.cast_signed()).expect("a process");
    pidfd_open(pid, PidfdFlags::empty()).expect("pidfd")
}

fn start_of(number: u32) -> Option<u64> {
    let text = std::fs::read_to_string(format!("/proc/{number}/stat")).ok()?;
    text.rsplit_once(") ")?.1.split(' ').nth(19)?.parse().ok()
}

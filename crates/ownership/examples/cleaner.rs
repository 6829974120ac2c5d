//! A fixture: the janitor over the ledger of a directory, as a program of its own.
//!
//! `cleaner look DIR` prints `found GRADE PID` and `spared PID WHY`; `cleaner kill DIR GRACE_MS` ends what is proved and prints
//! `fate PID WORD` too; `cleaner pick DIR PID…` ends these on a person's word. Each prints `trouble WHY` where there is some.
//! `cleaner start DIR` is an owner that cleans up at its start, prints a line once it runs, and stays until its stdin ends.
#![expect(clippy::print_stdout, reason = "its starter reads it")]

use std::io::Read;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use ownership::janitor::{Cleaned, Fate, Finding, Found, Janitor, Schedule};
use ownership::{Ledger, Owner, Program};

const GRACE: Duration = Duration::from_millis(300);

fn main() -> ExitCode {
    if let Some(code) = ownership::owner::run_if_asked() {
        return code;
    }
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    match args[..] {
        ["look", dir] => say(&janitor(dir).look()),
        ["kill", dir, grace] => {
            let janitor = janitor(dir);
            let finding = janitor.look();
            say(&finding);
            let grace = Duration::from_millis(grace.parse().expect("milliseconds"));
            tell(&janitor.end_proved(&finding, grace));
        }
        ["pick", dir, ref pids @ ..] => {
            let janitor = janitor(dir);
            let finding = janitor.look();
            let is_picked = |found: &&Found| pids.contains(&&*found.identity.pid.to_string());
            let picked: Vec<_> = finding.found.iter().filter(is_picked).collect();
            tell(&janitor.end_picked(&picked, GRACE));
        }
        ["start", dir] => start(Path::new(dir)),
        _ => return ExitCode::from(2),
    }
    ExitCode::SUCCESS
}

fn janitor(dir: &str) -> Janitor {
    Janitor::of(Path::new(dir).join("ledger.sqlite")).with_jobs(Path::new(dir).join("exempt"))
}

fn say(finding: &Finding) {
    for found in &finding.found {
        println!("found {} {} {}", found.grade.word(), found.identity.pid, found.because());
    }
    for one in &finding.spared {
        println!("spared {} {:?}", one.pid, one.why);
    }
    if let Some(why) = &finding.trouble {
        println!("trouble {why}");
    }
}

fn tell(cleaned: &Cleaned) {
    for (process, fate) in &cleaned.fates {
        let word = match fate {
            Fate::Ended => "ended",
            Fate::Gone => "gone",
            Fate::NotNow => "not-now",
            Fate::Left(_) | _ => "left",
        };
        println!("fate {} {word}", process.pid);
    }
    if let Some(why) = &cleaned.unwritten {
        println!("trouble {why}");
    }
}

fn start(dir: &Path) {
    let ledger = Arc::new(Ledger::open(dir.join("ledger.sqlite")));
    let owner = Owner::new(Program::current().expect("this program"), Vec::new());
    let _owner = owner.with_ledger(ledger).with_janitor(Schedule::at_start().ending(GRACE));
    println!("runs");
    let _ended = std::io::stdin().read(&mut [0]);
}

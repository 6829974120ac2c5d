//! A fixture: an owner with one child, whose end is not like others'.
//!
//! `end-owner DIR report|keep` has a child that leaves a daemon (`DIR/left`) with that policy.
//! `end-owner DIR release SCRIPT` has one that sleeps (`DIR/child`), or ends when there is `DIR/go`, and
//! has SCRIPT as its release command. Both write `DIR/told` when they were told of its end: what became of
//! the command.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use ownership::{Leftovers, Owner, Program, Spawn};

const LEAVES: &str = r#"(setsid sh -c 'echo $$ > "$DIR/left"; exec sleep 600' &)
while ! [ -s "$DIR/left" ]; do sleep 0.01; done"#;

const WAITS: &str = r#"echo $$ > "$DIR/child"; while ! [ -e "$DIR/go" ]; do sleep 0.01; done"#;

/// Longer than any test.
const DEADLINE: Duration = Duration::from_secs(60);

fn main() -> ExitCode {
    if let Some(code) = ownership::owner::run_if_asked() {
        return code;
    }
    let args: Vec<String> = std::env::args().skip(1).collect();
    let (Some(dir), Some(how)) = (args.first().map(PathBuf::from), args.get(1)) else {
        return ExitCode::from(2);
    };
    let owner = Owner::new(Program::current().expect("this program"), Vec::new());
    let shell = |script: &str| Spawn::new("/bin/sh").arg("-c").arg(script).env("DIR", &dir);
    let spawn = match how.as_str() {
        "report" => shell(LEAVES).leftovers(Leftovers::Report),
        "keep" => shell(LEAVES).leftovers(Leftovers::Keep),
        _ => {
            let script = args.get(2).expect("a script");
            shell(WAITS).release(["sh", "-c", script.as_str()], DEADLINE)
        }
    };
    let child = owner.spawn(spawn.grace(Duration::from_millis(100)), |_| {}).expect("spawn");
    let told = child.wait_empty().and_then(|emptied| emptied.release);
    std::fs::write(dir.join("told.new"), format!("{told:?}\n")).expect("write");
    std::fs::rename(dir.join("told.new"), dir.join("told")).expect("rename");
    loop {
        std::thread::park();
    }
}

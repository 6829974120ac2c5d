//! A fixture: an owner with one child, whose end is not like others'.
//!
//! `end-owner DIR report|keep` has a child that leaves a daemon (`DIR/left`) with that policy, and writes
//! `DIR/told` when it was told of its end.

use std::process::ExitCode;

use ownership::{Leftovers, Owner, Program, Spawn};

const LEAVES: &str = r#"(setsid sh -c 'echo $$ > "$DIR/left"; exec sleep 600' &)
while ! [ -s "$DIR/left" ]; do sleep 0.01; done"#;

fn main() -> ExitCode {
    if let Some(code) = ownership::owner::run_if_asked() {
        return code;
    }
    let mut args = std::env::args_os().skip(1);
    let (Some(dir), Some(how)) = (args.next(), args.next()) else { return ExitCode::from(2) };
    let owner = Owner::new(Program::current().expect("this program"), Vec::new());
    let policy = if how == "report" { Leftovers::Report } else { Leftovers::Keep };
    let spawn = Spawn::new("/bin/sh").arg("-c").arg(LEAVES).env("DIR", &dir).leftovers(policy);
    let child = owner.spawn(spawn, |_| {}).expect("spawn");
    child.wait_empty();
    std::fs::write(std::path::Path::new(&dir).join("told"), "").expect("write");
    loop {
        std::thread::park();
    }
}

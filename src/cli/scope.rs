//! The door of a user's systemd: where only that can give a cgroup that may be written, and a cgroup was asked for by name,
//! this program executes itself again in a scope of it. For `delegate own`, before anything else is done.
//!
//! A scope, and not a service: terminal, streams, environment, process number and parent stay what they are.

use std::ffi::OsString;
// detached-spawn: ok — to go on as another program, which starts nothing
use std::os::unix::process::CommandExt;
// detached-spawn: ok — to go on as another program, which starts nothing
use std::process::Command;

use ownership::containment::Tier;
use ownership::{Containment, Machine};

/// What opens the door.
// detached-spawn: ok — executed in our own place, in a scope that stays below our parent
const SYSTEMD_RUN: &str = "systemd-run";

/// What asks for a scope whose cgroup is ours.
const ASKS: [&str; 7] = ["--user", "--scope", "--quiet", "--collect", "-p", "Delegate=yes", "--"];

/// The argument that says that it was done: what did not help does not help twice.
pub(crate) const DONE: &str = "--in-scope";

/// Comes back where there is nothing to be done, and where it could not be done, with the reason.
#[expect(
    clippy::disallowed_methods,
    reason = "what it has and what it promises is asked for by the program that comes after it, which is this one"
)]
pub(crate) fn enter(asked: Containment, verbs: &[&str]) -> Result<(), String> {
    if asked != Containment::Cgroup {
        return Ok(());
    }
    let machine = Machine::look();
    if machine.refusal(Tier::Cgroup).is_none() || !machine.has_a_door() {
        return Ok(());
    }
    let failed = |error: std::io::Error| {
        format!(
            "this user's systemd could give a cgroup, and {SYSTEMD_RUN} cannot be executed: {error}; \
             with --containment auto it starts without"
        )
    };
    let own = std::env::current_exe().map_err(failed)?;
    let mut args: Vec<OsString> = std::env::args_os().skip(1).collect();
    let verb = args.iter().position(|arg| verbs.iter().any(|verb| arg == verb));
    let Some(verb) = verb else { return Ok(()) };
    args.insert(verb + 1, DONE.into());
    // detached-spawn: ok — nothing is started: this process goes on as another program, and that as ours again
    let error = Command::new(SYSTEMD_RUN).args(ASKS).arg(own).args(args).exec();
    Err(failed(error))
}

//! Storms: chains whose links fork, set a session and exit all the time, ignore TERM, and die faster than
//! they can be looked at one by one. Each storm has a pid namespace of its own.

mod support;

use std::path::Path;

/// Five chains; each link forks, and its parent exits at once.
const CHAINS: &str = include_str!("support/chains.c");

/// Times between two hops; 0 is as fast as the machine forks.
const MILLIS: [&str; 3] = ["5", "2", "0"];

/// Runs `chain-owner HOW 6` for each kind of chain: shells, and [`CHAINS`] of each speed.
fn each_storm_ends(how: &str) {
    let dir = tempfile::tempdir().expect("dir");
    let chains = support::compile(dir.path(), "chain-link", CHAINS);
    storm(how, None);
    for millis in MILLIS {
        storm(how, Some((&chains, millis)));
    }
}

#[expect(clippy::disallowed_methods, reason = "an owner in a namespace of its own")]
#[expect(clippy::print_stderr, clippy::print_stdout, reason = "skips loudly, and shows its times")]
fn storm(how: &str, chains: Option<(&Path, &str)>) {
    let mut command = std::process::Command::new("setsid");
    command.args(["-w", "unshare", "--pid", "--fork", "--mount-proc", "--kill-child"]);
    command.args(["timeout", "-s", "KILL", "60"]);
    command.arg(support::example("chain-owner")).args([how, "6"]);
    if let Some((program, millis)) = chains {
        command.arg(program).arg(millis);
    }
    let output = command.output().expect("unshare");
    let text = String::from_utf8_lossy(&output.stderr);
    if text.contains("Operation not permitted") {
        eprintln!("SKIPPED: no pid namespace may be made here: {text}");
        return;
    }
    assert!(output.status.success(), "{chains:?} {text}");
    println!("{how} {chains:?}\n{text}");
}

/// In a scope that ends, at once and after a grace in which they storm on.
#[test]
fn chains_that_fork_and_exit_all_the_time_are_ended() {
    each_storm_ends("end");
}

/// Below a root that lives on, and reaps nobody where it is not a shell.
#[test]
fn chains_that_fork_and_exit_all_the_time_end_with_their_owner() {
    each_storm_ends("die");
}

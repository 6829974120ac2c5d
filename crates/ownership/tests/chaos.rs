//! The short form of chaos. The long one is `cargo run --release -p delegate-ownership --example chaos -- 1000`.

mod support;

use std::process::Output;

/// Enough for each kind of victim to be met a few times.
const ROUNDS: &str = "40";

/// `None` where no pid namespace may be made.
#[expect(clippy::disallowed_methods, reason = "it makes a namespace of its own")]
#[expect(clippy::print_stderr, reason = "skips loudly")]
fn chaos(args: &[&str], off: &str) -> Option<(Output, String)> {
    let mut command = std::process::Command::new(support::example("chaos"));
    command.args(args).env("OWNERSHIP_TEST_OFF", off).stdin(std::process::Stdio::null());
    let output = command.output().expect("chaos");
    let text = [&output.stdout[..], &output.stderr].concat();
    let text = String::from_utf8_lossy(&text).into_owned();
    if text.contains("Operation not permitted") && !text.contains("seed") {
        eprintln!("SKIPPED: no pid namespace may be made here: {text}");
        return None;
    }
    Some((output, text))
}

#[test]
fn nothing_is_left_and_nothing_lost_whoever_is_killed() {
    let Some((output, text)) = chaos(&[ROUNDS], "") else { return };
    println!("{text}");
    assert!(output.status.success(), "{text}");
}

/// Guards that do not send KILL leave those that ignore TERM.
#[test]
fn chaos_sees_what_is_left() {
    if support::no_hooks() {
        return;
    }
    let Some((output, text)) = chaos(&["1", "7"], "kill") else { return };
    assert!(!output.status.success() && text.contains("LEFT"), "{text}");
}

//! The short form of chaos. The long one is `cargo run --release -p delegate-ownership --example chaos -- 1000`.

mod support;

/// Enough for each kind of victim to be met a few times.
const ROUNDS: &str = "40";

#[test]
fn nothing_is_left_and_nothing_lost_whoever_is_killed() {
    let mut command = std::process::Command::new(support::example("chaos"));
    #[expect(clippy::disallowed_methods, reason = "it makes a namespace of its own")]
    let output = command.arg(ROUNDS).stdin(std::process::Stdio::null()).output().expect("chaos");
    let (out, error) =
        (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    if error.contains("Operation not permitted") && !out.contains("seed") {
        eprintln!("SKIPPED: no pid namespace may be made here: {error}");
        return;
    }
    println!("{out}{error}");
    assert!(output.status.success(), "{out}{error}");
}

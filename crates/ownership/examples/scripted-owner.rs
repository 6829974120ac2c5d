//! A fixture: an owner that does what it reads and says what happens (`support/scripted.rs`).

use std::process::ExitCode;

#[path = "support/scripted.rs"]
mod scripted;

fn main() -> ExitCode {
    ownership::owner::run_if_asked().unwrap_or_else(scripted::run)
}

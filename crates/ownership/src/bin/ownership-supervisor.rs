//! The supervisor as a small program of its own, used where it stands beside its owner.

use std::process::ExitCode;

fn main() -> ExitCode {
    ownership::owner::run_if_asked().unwrap_or(ExitCode::from(2))
}

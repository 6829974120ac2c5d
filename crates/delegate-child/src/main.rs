//! The stock worker: every agent that ships, and nothing else.

use std::process::ExitCode;

fn main() -> ExitCode {
    if let Some(code) = ownership::owner::run_if_asked() {
        return code;
    }
    delegate_child::worker::run_if_asked(&delegate_child::Registry::shipped())
        .unwrap_or(ExitCode::from(2))
}

//! The stock worker: every agent that ships, and nothing else. As a supervisor it is asked by the
//! same first argument as any other program of this workspace.

use std::io::{self, Write};
use std::process::ExitCode;

fn main() -> ExitCode {
    if let Some(code) = ownership::owner::run_if_asked() {
        return code;
    }
    let registry = delegate_child::Registry::shipped();
    delegate_child::worker::run_if_asked(&registry).unwrap_or_else(|| {
        let text =
            "delegate-child is started by a delegating program, not by hand (see `delegate`)";
        // Nobody is left to tell when stderr is closed; the exit code still says it.
        writeln!(io::stderr(), "{text}").map_or(ExitCode::from(2), |()| ExitCode::from(2))
    })
}

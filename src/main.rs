//! The `delegate` command. The same program is also every worker and supervisor that it starts, so
//! the roles come before anything else; the command itself is in [`cli`].

mod cli;

use std::process::ExitCode;

fn main() -> ExitCode {
    delegate_runtime::workers().or_else(cli::main)
}

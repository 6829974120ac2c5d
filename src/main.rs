//! The `delegate` command. The same program is also every worker it starts, so the roles come before
//! anything else; the command itself is in [`cli`].

mod cli;

use std::process::ExitCode;

fn main() -> ExitCode {
    cli::main()
}

//! `delegate trust FILE`: a file of a working tree may set commands, keys and endpoints from now on.

use delegate_core::config;

use crate::cli::args::TrustArgs;
use crate::cli::exit::Exit;
use crate::cli::fault::Fault;
use crate::cli::render::text::escape;
use crate::cli::{Context, write_out};

/// Records it, and says what the file sets.
///
/// # Errors
/// A file that is no configuration, or a record that cannot be written.
pub(crate) fn run(args: &TrustArgs, context: &Context) -> Result<Exit, Fault> {
    let trusted = config::trust(&args.file, &context.state_dir)?;
    let file = trusted.file.to_string_lossy();
    let sets = match trusted.keys.as_slice() {
        [] => "it sets no command, key or endpoint".to_owned(),
        keys => format!("it sets {}", keys.join(", ")),
    };
    write_out(|to| {
        writeln!(to, "{} is trusted until it changes; {}", escape(&file), escape(&sets))
    })?;
    Ok(Exit::Done)
}

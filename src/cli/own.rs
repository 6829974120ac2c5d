//! `delegate own`: any program under guards of its own. The work is [`ownership::wrap`]'s; here are its arguments, and the
//! exit codes that such commands have.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, ValueHint};
use delegate_core::config::duration;

use crate::cli::Context;
use crate::cli::exit::Exit;

/// Exit status of `own` when it failed itself, as of env(1).
const FAILED: u8 = 125;

/// `delegate own`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  delegate own -- npm run dev
  delegate own --grace 10s -- ./server --port 8080
  delegate wrap --report /dev/fd/3 -- agent 3>ended.json

Terminal, signals, streams and everything else that a program finds pass through. When it ends, in whatever way, what
it has left is ended too; the same when this command is killed or its terminal is closed.

Exit status: the program's own; of one that a signal has ended, the same signal (128+N in a shell);
125 own failed, 126 the program cannot be executed, 127 there is no such program.")]
pub(crate) struct OwnArgs {
    /// Time between TERM and KILL for what is left, such as 3s or 500ms
    #[arg(long, value_name = "DURATION", default_value = "3s", value_parser = parse_grace)]
    grace: Duration,
    /// Write what was ended to this file, as one JSON object
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    report: Option<PathBuf>,
    /// Do not say what was ended
    #[arg(short, long)]
    quiet: bool,
    /// The program, by name or path, and its arguments
    #[arg(
        value_name = "PROGRAM",
        required = true,
        trailing_var_arg = true,
        allow_hyphen_values = true
    )]
    #[arg(value_hint = ValueHint::CommandWithArguments)]
    command: Vec<OsString>,
}

fn parse_grace(text: &str) -> Result<Duration, String> {
    duration::parse(text).ok_or_else(|| format!("expected a time such as {}", duration::EXAMPLES))
}

/// Runs it to its end.
#[cfg(target_os = "linux")]
pub(crate) fn run(args: &OwnArgs, context: &Context) -> ExitCode {
    let mut words = args.command.iter().cloned();
    let Some(program) = words.next() else { return FAILED.into() };
    ownership::wrap::Wrap::new("own", program, words.collect())
        .grace(args.grace)
        .quiet(args.quiet)
        .report_to(args.report.clone())
        .ledger(Some(context.state_dir.join("ledger.sqlite")))
        .run()
}

/// There is nothing that could own it.
#[cfg(not(target_os = "linux"))]
pub(crate) fn run(args: &OwnArgs, _context: &Context) -> ExitCode {
    let _ = (&args.grace, &args.report, args.quiet, &args.command);
    crate::cli::warn("owned processes are not supported on this system; nothing was started");
    FAILED.into()
}

/// The exit code for a line that could not be read: that of `own`, if it was meant.
pub(crate) fn refused(args: &[OsString], exit: Exit) -> ExitCode {
    let meant = args.iter().skip(1).find(|arg| !arg.to_string_lossy().starts_with('-'));
    let is_own = meant.is_some_and(|verb| verb == "own" || verb == "wrap");
    if is_own && exit == Exit::BadInput { FAILED.into() } else { exit.into() }
}

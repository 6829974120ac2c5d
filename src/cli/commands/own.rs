//! `delegate own`: any program under guards of its own. The work is [`ownership::wrap`]'s; here are its arguments, and the
//! exit codes that such commands have.

use std::ffi::OsString;
#[cfg(target_os = "linux")]
use std::io::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, ValueHint};
#[cfg(target_os = "linux")]
use delegate_core::config;
use delegate_core::config::duration;
use ownership::Containment;
#[cfg(target_os = "linux")]
use ownership::keep::Rules;

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
  delegate own --keep tmux,ssh-agent -- agent
  delegate own --containment pid-namespace -- ./install-everything
  delegate own --list-rules

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
    /// Let live what these rules keep (see --list-rules), with all that stands below it; nothing by default
    #[arg(long, value_name = "RULE", value_delimiter = ',')]
    keep: Vec<String>,
    /// Show all rules: what each keeps, what is checked, and why
    #[arg(long)]
    list_rules: bool,
    /// What holds the tree together: auto, subreaper, cgroup or pid-namespace
    #[arg(long, value_name = "TIER", default_value = "auto")]
    containment: Containment,
    /// Do not say what was ended
    #[arg(short, long)]
    quiet: bool,
    /// The program, by name or path, and its arguments
    #[arg(
        value_name = "PROGRAM",
        required_unless_present = "list_rules",
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
    let rules = match rules(context) {
        Ok(rules) => rules,
        Err(why) => return wrong(&why),
    };
    if args.list_rules {
        let listed = crate::cli::write_out(|to| write!(to, "{rules}"));
        return if listed.is_ok() { ExitCode::SUCCESS } else { FAILED.into() };
    }
    let kept = match rules.named(args.keep.iter().map(String::as_str)) {
        Ok(kept) => kept,
        Err(name) => {
            return wrong(&format!(
                "there is no rule {name:?}; delegate own --list-rules shows them"
            ));
        }
    };
    let mut words = args.command.iter().cloned();
    let Some(program) = words.next() else { return FAILED.into() };
    ownership::wrap::Wrap::new("own", program, words.collect())
        .grace(args.grace)
        .quiet(args.quiet)
        .report_to(args.report.clone())
        .keep(kept, rules)
        .containment(args.containment)
        .ledger(Some(context.state_dir.join("ledger.sqlite")))
        .run()
}

/// The file of a person's own rules, in the directory of that person's configuration.
#[cfg(target_os = "linux")]
const RULES: &str = "keep.rules";

/// Those that ship, and the person's own.
#[cfg(target_os = "linux")]
fn rules(context: &Context) -> Result<Rules, String> {
    let shipped = Rules::shipped();
    let Some(path) = config::user_dir(&context.env).map(|dir| dir.join(RULES)) else {
        return Ok(shipped);
    };
    match std::fs::read_to_string(&path) {
        Ok(text) => match Rules::parse(&text) {
            Ok(own) => Ok(shipped.and(own)),
            Err(bad) => Err(format!("{}, {bad}", path.display())),
        },
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(shipped),
        Err(error) => Err(format!("{} cannot be read: {error}", path.display())),
    }
}

#[cfg(target_os = "linux")]
fn wrong(what: &str) -> ExitCode {
    // Where standard error is closed there is nobody to tell.
    drop(writeln!(std::io::stderr().lock(), "own: {what}; nothing was started"));
    FAILED.into()
}

/// There is nothing that could own it.
#[cfg(not(target_os = "linux"))]
pub(crate) fn run(args: &OwnArgs, _context: &Context) -> ExitCode {
    let _ = (&args.grace, &args.report, args.quiet, &args.command, &args.keep, args.list_rules);
    let _ = args.containment;
    crate::cli::warn("owned processes are not supported on this system; nothing was started");
    FAILED.into()
}

/// The exit code for a line that could not be read: that of `own`, if it was meant.
pub(crate) fn refused(args: &[OsString], exit: Exit) -> ExitCode {
    let meant = args.iter().skip(1).find(|arg| !arg.to_string_lossy().starts_with('-'));
    let is_own = meant.is_some_and(|verb| verb == "own" || verb == "wrap");
    if is_own && exit == Exit::BadInput { FAILED.into() } else { exit.into() }
}

//! The `delegate` command: presentation over the library, and nothing else. It reads arguments
//! ([`args`]), hands them to one verb ([`commands`]), and turns what comes back into text
//! ([`render`]) and an exit code ([`exit`]).

mod args;
mod commands;
mod control;
mod exit;
mod fault;
mod logging;
mod printer;
mod render;
mod screen;
mod signals;
mod stage;

use std::ffi::OsString;
use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser as _;
use delegate_core::config::{self, Diagnostic};

use args::{Cli, Global, Verb};
use exit::Exit;
use fault::Fault;
use logging::Logging;
use render::Style;

/// The variable that names the state directory; the flag is handed on in its place.
const STATE_DIR: &str = "DELEGATE_STATE_DIR";

/// The ledger in the state directory.
#[cfg(target_os = "linux")]
const LEDGER: &str = "ledger.sqlite";

/// What every verb may want to know of its surroundings, read once.
#[derive(Debug)]
pub(crate) struct Context {
    /// The environment, where it is text.
    env: Vec<(String, String)>,
    /// Where runs and results are.
    state_dir: PathBuf,
    /// The same when a flag said it, for hints.
    state_flag: Option<PathBuf>,
    /// What standard output shows.
    out: Style,
    /// What standard error shows.
    err: Style,
    /// Log lines go to standard error.
    logs_to_stderr: bool,
}

impl Context {
    fn new(global: &Global, logs_to_stderr: bool) -> Self {
        let mut env = text_env();
        if let Some(dir) = &global.state_dir {
            env.retain(|(name, _)| name != STATE_DIR);
            env.push((STATE_DIR.to_owned(), dir.to_string_lossy().into_owned()));
        }
        // The library reads a text; a flag may be any path.
        let state_dir = global.state_dir.clone().unwrap_or_else(|| config::state_dir(&env));
        let value = |name: &str| value_of(&env, name);
        let out = Style::of(screen::columns(io::stdout()), value);
        let err = Style::of(screen::columns(io::stderr()), value);
        Self { state_dir, state_flag: global.state_dir.clone(), out, err, logs_to_stderr, env }
    }
}

fn text_env() -> Vec<(String, String)> {
    let text = |(name, value): (OsString, OsString)| {
        Some((name.into_string().ok()?, value.into_string().ok()?))
    };
    std::env::vars_os().filter_map(text).collect()
}

fn value_of(env: &[(String, String)], name: &str) -> Option<String> {
    env.iter().find(|(key, _)| key == name).map(|(_, value)| value.clone())
}

/// The command as a process: its arguments in, its exit code out.
pub(crate) fn main() -> ExitCode {
    if let Some(exit) = commands::completion::answer() {
        return exit.into();
    }
    let args: Vec<OsString> = std::env::args_os().collect();
    let json = args::wants_json(args.iter().map(OsString::as_os_str));
    let cli = match Cli::try_parse_from(&args) {
        Ok(cli) => cli,
        Err(error) => return commands::own::refused(&args, usage(&error, json)),
    };
    let logging = Logging::of(&cli.global, |name| value_of(&text_env(), name));
    let context = Context::new(&cli.global, logging.as_ref().is_some_and(Logging::to_stderr));
    let started = logging.map_or(Ok(()), |logging| logging.start());
    if let (Verb::Own(args), Ok(())) = (&cli.verb, &started) {
        return commands::own::run(args, &context);
    }
    // Its program is to find what we found; everything else is ours.
    ownership::file_size::limit_is_an_error();
    let result = started.and_then(|()| dispatch(&cli.verb, &context));
    match result {
        Ok(exit) => exit.into(),
        Err(fault) => report(fault, starts(&cli.verb), json, &context).into(),
    }
}

/// Whether it starts tasks, so that people are told where it did not.
const fn starts(verb: &Verb) -> bool {
    matches!(verb, Verb::Run(_) | Verb::Session(_) | Verb::Resume(_) | Verb::Rerun(_))
}

fn dispatch(verb: &Verb, context: &Context) -> Result<Exit, Fault> {
    match verb {
        Verb::Run(args) => commands::run::run(args, context),
        Verb::Runs(args) => commands::runs::run(args, context),
        Verb::Session(args) => commands::session::run(args, context),
        Verb::Sessions(args) => commands::sessions::run(args, context),
        Verb::Show(args) => commands::show::run(args, context),
        Verb::Logs(args) => commands::logs::run(args, context),
        Verb::Wait(args) => commands::wait::run(args, context),
        Verb::Watch(args) => commands::watch::run(args, context),
        Verb::Helper(args) => commands::helper::run(args),
        Verb::Steer(args) => commands::steer::run(args, context),
        Verb::Stop(args) => commands::stop::run(args, context),
        Verb::Pause(args) => commands::pause::run(args, context),
        Verb::Extend(args) => commands::extend::run(args, context),
        Verb::Doctor(args) => commands::doctor::run(args, context),
        #[cfg(target_os = "linux")]
        Verb::Janitor(args) => commands::janitor::run(args, context),
        #[cfg(target_os = "linux")]
        Verb::Ps(args) => commands::ps::run(args, context),
        #[cfg(target_os = "linux")]
        Verb::Log(args) => commands::log::run(args, context),
        #[cfg(target_os = "linux")]
        Verb::Keys(args) => commands::keys::run(args, context),
        Verb::Trust(args) => commands::trust::run(args, context),
        Verb::Config(args) => commands::config::run(args, context),
        Verb::Completion(args) => commands::completion::run(args),
        Verb::Man(args) => commands::man::run(args),
        Verb::Shim(args) => commands::shim::run(args, context),
        Verb::Resume(args) => commands::resume::run(args, context),
        Verb::Rerun(args) => commands::rerun::run(args, context),
        Verb::Host(args) => commands::detach::host(args, context),
        // It ends as its program does: see `main`.
        Verb::Own(_) => Ok(Exit::BadInput),
        Verb::Exec(args) => Err(commands::exec(args).into()),
    }
}

/// What clap could not read, or help that was asked for.
fn usage(error: &clap::Error, json: bool) -> Exit {
    if !error.use_stderr() {
        return write_out(|to| write!(to, "{}", error.render()))
            .map_or(Exit::BrokenPromise, |()| Exit::Done);
    }
    if json {
        let (message, hint) = in_one_line(&error.render().to_string());
        let fault = Diagnostic { code: "usage", message, hint, ..Diagnostic::default() };
        // The exit code says it as well.
        drop(say_json(&fault));
    } else {
        // Where standard error is closed there is nobody to tell.
        drop(error.print());
    }
    Exit::BadInput
}

/// Message and tip of clap's text, which has a paragraph for each.
fn in_one_line(text: &str) -> (String, Option<String>) {
    let words = |part: &str| part.split_whitespace().collect::<Vec<_>>().join(" ");
    let mut paragraphs = text.split("\n\n").map(words);
    let message = paragraphs.next().unwrap_or_default();
    let message = message.strip_prefix("error: ").unwrap_or(&message).to_owned();
    let hint = paragraphs.find_map(|part| part.strip_prefix("tip: ").map(str::to_owned));
    (message, hint)
}

/// Tells what went wrong: one JSON object on standard output, or a text on standard error.
fn report(fault: Fault, is_run: bool, json: bool, context: &Context) -> Exit {
    let exit = fault.exit();
    let nothing_started = is_run && exit == Exit::BadInput;
    let fault = fault.into_diagnostic();
    if json && say_json(&fault).is_ok() {
        return exit;
    }
    let mut text = fault.render(context.err.color);
    if nothing_started {
        text.push_str("nothing was started\n");
    }
    // Where standard error is closed there is nobody to tell.
    drop(io::stderr().lock().write_all(text.as_bytes()));
    exit
}

fn say_json(fault: &Diagnostic) -> Result<(), Fault> {
    write_out(|to| writeln!(render::json::Safe(to), "{}", fault.to_json()))
}

/// Writes to standard output; a reader that had enough is no fault.
fn write_out(write: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> Result<(), Fault> {
    let mut to = io::BufWriter::new(io::stdout().lock());
    let result = write(&mut to).and_then(|()| to.flush());
    printer::forgive_closed_pipe(result).map_err(Fault::Output)
}

/// One warning, to standard error.
fn warn(text: &str) {
    let text = render::text::escape(text);
    drop(writeln!(io::stderr().lock(), "warning: {text}"));
}

/// Tells what the store has to say, each thing once.
fn warn_of(store: &delegate_core::store::Store) {
    std::iter::from_fn(|| store.take_warning()).for_each(|warning| warn(&warning));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_clap_says_fits_one_line() {
        let said = |line: &str| {
            let error = Cli::try_parse_from(line.split_whitespace()).unwrap_err();
            in_one_line(&error.render().to_string())
        };
        let (message, hint) = said("delegate run");
        assert_eq!(message, "the following required arguments were not provided: <FILE|GOAL>...");
        assert_eq!(hint, None);
        let (message, hint) = said("delegate rnu");
        assert_eq!(message, "unrecognized subcommand 'rnu'");
        assert!(hint.unwrap().contains("'run"));
    }
}

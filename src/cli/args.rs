//! What may be typed: the command line as clap reads it, and the small parsers of its values.
//! Nothing here acts.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum, ValueHint};
use clap_complete::engine::ArgValueCompleter;
use delegate_core::config::Diagnostic;
use delegate_core::plan::Isolation;
use delegate_protocol::{SubagentId, Value};

use crate::cli::commands::completion;
use crate::cli::commands::config::ConfigArgs;
use crate::cli::commands::doctor::DoctorArgs;
use crate::cli::commands::{
    detach::HostArgs, extend::ExtendArgs, helper::HelperArgs, pause::PauseArgs, prune::PruneArgs,
    rerun::RerunArgs, resume::ResumeArgs, session::SessionArgs, sessions::SessionsArgs,
    steer::SteerArgs, stop::StopArgs, wait::WaitArgs, watch::WatchArgs,
};
#[cfg(target_os = "linux")]
use crate::cli::commands::{janitor::JanitorArgs, keys::KeysArgs, log::LogArgs, ps::PsArgs};
use crate::cli::exit;

/// Delegate tasks to subagents, each in an OS process of its own that cannot outlive its owner.
#[derive(Debug, Parser)]
#[command(name = "delegate", version, max_term_width = 100)]
#[command(after_help = after_help())]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) global: Global,
    #[command(subcommand)]
    pub(crate) verb: Verb,
}

fn after_help() -> String {
    format!(
        "Examples:\n  \
         delegate run tasks.yaml            run a batch and watch it\n  \
         delegate logs latest 2 -f          follow what its third task says\n  \
         delegate show latest --json        its results, for a program\n\n{}\n\n\
         A run is named by its id, a prefix of it (4 characters or more), `latest` or `-`.",
        exit::table()
    )
}

const EVERYWHERE: &str = "Options of every verb";

/// Flags of every verb.
#[derive(Debug, Args)]
pub(crate) struct Global {
    /// Where runs and results are kept [default: $DELEGATE_STATE_DIR, else $XDG_STATE_HOME/delegate]
    #[arg(long, global = true, help_heading = EVERYWHERE, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub(crate) state_dir: Option<PathBuf>,
    /// Log what this program does: -v info, -vv debug, -vvv trace
    #[arg(short, global = true, help_heading = EVERYWHERE, action = clap::ArgAction::Count, conflicts_with = "log_level")]
    pub(crate) verbose: u8,
    /// Log at this level or filter, such as `debug` or `delegate_core=trace` [variable: DELEGATE_LOG]
    #[arg(long, global = true, help_heading = EVERYWHERE, value_name = "LEVEL")]
    pub(crate) log_level: Option<String>,
    /// Log to this file instead of stderr [variable: DELEGATE_LOG_FILE]
    #[arg(long, global = true, help_heading = EVERYWHERE, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) log_file: Option<PathBuf>,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub(crate) enum Verb {
    /// Run a batch of tasks and wait for all of them
    Run(Box<RunArgs>),
    /// List runs, newest first
    Runs(RunsArgs),
    /// Have one worker answer several prompts, one after another
    Session(Box<SessionArgs>),
    /// List sessions, newest first, or the turns of one
    Sessions(SessionsArgs),
    /// Show the results of a run
    Show(ShowArgs),
    /// Show what the children of a run wrote and said
    Logs(LogsArgs),
    /// Launch what has no outcome in a run whose process is gone
    Resume(Box<ResumeArgs>),
    /// Run tasks of an earlier run again, as a new run
    Rerun(Box<RerunArgs>),
    /// Wait for the end of runs; exit as they did
    Wait(WaitArgs),
    /// Print the events of a run from now on, as JSON lines
    Watch(WatchArgs),
    /// Reach a helper that all children of a batch share, from a child
    Helper(HelperArgs),
    /// Say something to a running child
    Steer(SteerArgs),
    /// Ask a run or a child to stop, or end it
    Stop(StopArgs),
    /// Launch nothing more in a run, or let a child stand still
    Pause(PauseArgs),
    /// Give a child more time
    Extend(ExtendArgs),
    /// Show who owns what that lives here, with memory, ports and why it is alive
    #[cfg(target_os = "linux")]
    Ps(PsArgs),
    /// Show who was ended by whom, and why
    #[cfg(target_os = "linux")]
    Log(LogArgs),
    /// Find what dead owners have left on this machine, and end what is proved
    #[cfg(target_os = "linux")]
    Janitor(JanitorArgs),
    /// Show what this machine offers to hold processes, what is used, and why not the rest
    Doctor(DoctorArgs),
    /// Show which keys of providers work, which rest and until when
    #[cfg(target_os = "linux")]
    Keys(KeysArgs),
    /// Allow a configuration file of a working tree to set commands, keys and endpoints
    Trust(TrustArgs),
    /// Show, check and describe the configuration
    Config(ConfigArgs),
    /// Print the completion script of a shell; it knows run ids
    Completion(CompletionArgs),
    /// Print the manual page of this command, or of one verb
    Man(ManArgs),
    /// Run any program so that nothing that it starts outlives it
    #[command(visible_alias = "wrap")]
    Own(crate::cli::commands::own::OwnArgs),
    /// Put a program under `own` for everybody who starts it by its name
    Shim(crate::cli::commands::shim::ShimArgs),
    /// What `--background` starts
    #[command(hide = true)]
    Host(HostArgs),
    /// A word that people try; answered with the right one
    #[command(hide = true)]
    Exec(ExecArgs),
}

/// `delegate run`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  delegate run tasks.yaml                       every task in a process of its own
  delegate run tasks.yaml -j 4 --timeout 90s    four at once, each for 90 s at most
  generate-tasks | delegate run -               the batch from standard input
  delegate run --agent command --params '{\"argv\": [\"wc\", \"-c\"]}' 'first text' 'second text'
  delegate run tasks.yaml --explain --dry-run   what would run, and why so
  delegate run tasks.yaml --json > report.json  one object, nothing else
  delegate run tasks.yaml --background          prints the id of the run, and comes back at once

Ctrl-C asks the children to end and prints what there is, twice kills them. Ctrl-Z stops them and
their clocks. Progress goes to stderr, results to stdout.")]
pub(crate) struct RunArgs {
    /// A batch file, or - for standard input; with --agent: goals, one task each
    #[arg(value_name = "FILE|GOAL", required = true, value_hint = ValueHint::FilePath)]
    pub(crate) input: Vec<String>,
    /// Give each GOAL to this agent, instead of reading a batch file
    #[arg(long, value_name = "NAME")]
    pub(crate) agent: Option<String>,
    /// Parameters of that agent, as JSON
    #[arg(long, value_name = "JSON", requires = "agent", value_parser = parse_params)]
    pub(crate) params: Option<Value>,
    /// Read this configuration file as well, before all others
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) config: Option<PathBuf>,
    /// Where each task runs [default: as configured, else process]
    #[arg(long, value_enum)]
    pub(crate) isolation: Option<IsolationArg>,
    /// What holds each child together: auto, subreaper, cgroup or pid-namespace [default: as configured, else auto]
    #[arg(long, value_name = "TIER")]
    pub(crate) containment: Option<ownership::Containment>,
    /// Children that run at once; the rest wait in order
    #[arg(short, long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) jobs: Option<u32>,
    /// Limit of each child from its own start, such as 90s, 5m or 1h30m
    #[arg(long, value_name = "DURATION")]
    pub(crate) timeout: Option<String>,
    /// Set a key of the configuration, such as interrupt_grace=5s (repeatable)
    #[arg(long = "set", value_name = "KEY=VALUE", value_parser = parse_setting)]
    pub(crate) settings: Vec<(String, String)>,
    /// Check everything and print what would run; start nothing
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// Print each decision and its reason
    #[arg(long)]
    pub(crate) explain: bool,
    /// Come back at once: a process of its own runs the batch (see `delegate wait`)
    #[arg(short = 'd', long, conflicts_with_all = ["jsonl", "dry_run", "explain"])]
    pub(crate) background: bool,
    /// What lists call it [default: the file, or the first goal]
    #[arg(long, value_name = "TITLE")]
    pub(crate) name: Option<String>,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

/// Options of `resume` and `rerun`.
#[derive(Debug, Args)]
pub(crate) struct AgainArgs {
    /// Come back at once: a process of its own runs it (see `delegate wait`)
    #[arg(short = 'd', long, conflicts_with = "jsonl")]
    pub(crate) background: bool,
    /// Read this configuration file as well, before all others
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) config: Option<PathBuf>,
    /// Children that run at once; the rest wait in order
    #[arg(short, long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) jobs: Option<u32>,
    /// Limit of each child from its own start, such as 90s, 5m or 1h30m
    #[arg(long, value_name = "DURATION")]
    pub(crate) timeout: Option<String>,
    /// Set a key of the configuration, such as interrupt_grace=5s (repeatable)
    #[arg(long = "set", value_name = "KEY=VALUE", value_parser = parse_setting)]
    pub(crate) settings: Vec<(String, String)>,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

/// The options of a run that are stored with it.
#[derive(Debug, Default, serde::Serialize, serde::Deserialize)]
#[serde(default)]
struct Options {
    config: Option<PathBuf>,
    jobs: Option<u32>,
    timeout: Option<String>,
    containment: Option<String>,
    settings: Vec<(String, String)>,
    /// Keys whose value may hold a secret, and is not stored.
    withheld: Vec<String>,
}

/// Settings that take anything, and so may hold a header or a key.
const WITHHELD: [&str; 2] = ["request_overrides", "fallback_providers"];

impl RunArgs {
    /// The options as they are stored, for `resume` and `rerun`.
    pub(crate) fn note(&self) -> String {
        let may_hold = |key: &str| WITHHELD.iter().any(|name| key.contains(name));
        let (withheld, settings): (Vec<_>, Vec<_>) =
            self.settings.iter().cloned().partition(|(key, _)| may_hold(key));
        let options = Options {
            config: self.config.as_ref().and_then(|file| std::path::absolute(file).ok()),
            jobs: self.jobs,
            timeout: self.timeout.clone(),
            containment: self.containment.map(|tier| tier.to_string()),
            settings,
            withheld: withheld.into_iter().map(|(key, _)| key).collect(),
        };
        serde_json::to_string(&options).unwrap_or_default()
    }
}

impl AgainArgs {
    /// The options of that run, those apart that are given again.
    ///
    /// # Errors
    /// One that is not stored is not given again.
    pub(crate) fn as_run(&self, note: Option<&str>) -> Result<RunArgs, Diagnostic> {
        let stored: Options =
            note.and_then(|note| serde_json::from_str(note).ok()).unwrap_or_default();
        let given = |key: &String| self.settings.iter().any(|(own, _)| own == key);
        if let Some(key) = stored.withheld.iter().find(|key| !given(key)) {
            return Err(Diagnostic {
                code: "not_given",
                message: format!("the run was started with --set {key}=…, which is not stored"),
                hint: Some(format!("it may hold a secret: give --set {key}=… again")),
                ..Diagnostic::default()
            });
        }
        let mut settings = stored.settings;
        settings.retain(|(key, _)| !given(key));
        settings.extend(self.settings.iter().cloned());
        Ok(RunArgs {
            input: Vec::new(),
            agent: None,
            params: None,
            config: self.config.clone().or(stored.config),
            isolation: None,
            containment: stored.containment.and_then(|tier| tier.parse().ok()),
            jobs: self.jobs.or(stored.jobs),
            timeout: self.timeout.clone().or(stored.timeout),
            settings,
            dry_run: false,
            explain: false,
            background: self.background,
            name: None,
            output: self.output,
        })
    }
}

/// Which form the results of a run take.
#[derive(Debug, Clone, Copy, Default, Args)]
pub(crate) struct OutputArgs {
    /// Print the report as one JSON object
    #[arg(long, conflicts_with = "jsonl")]
    pub(crate) json: bool,
    /// Print events as they come, one JSON object per line, then the report
    #[arg(long)]
    pub(crate) jsonl: bool,
    /// No progress and no table; only the ending
    #[arg(short, long)]
    pub(crate) quiet: bool,
}

/// `--isolation`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum IsolationArg {
    /// An OS process per task; where that is not possible nothing starts
    Process,
    /// A thread of this process per task
    Thread,
    /// Processes for two tasks or more, a thread for a single one
    Auto,
}

impl From<IsolationArg> for Isolation {
    fn from(arg: IsolationArg) -> Self {
        match arg {
            IsolationArg::Process => Self::Process,
            IsolationArg::Thread => Self::Thread,
            IsolationArg::Auto => Self::Auto,
        }
    }
}

/// `delegate runs`.
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
#[command(after_help = "Examples:
  delegate runs
  delegate runs --limit 100 --json
  delegate runs prune --older-than 30d --keep 200")]
pub(crate) struct RunsArgs {
    #[command(subcommand)]
    pub(crate) verb: Option<RunsVerb>,
    /// How many
    #[arg(long, value_name = "N", default_value_t = 20)]
    pub(crate) limit: u32,
    /// Print one JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

/// What may be done with the list.
#[derive(Debug, Subcommand)]
pub(crate) enum RunsVerb {
    /// Forget runs by age, count and size
    Prune(PruneArgs),
}

/// `delegate show`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  delegate show latest
  delegate show k7f3 --json")]
pub(crate) struct ShowArgs {
    /// Id of a run, a prefix of it, `latest` or -
    #[arg(value_name = "ID", add = ArgValueCompleter::new(completion::run_ids))]
    pub(crate) run: String,
    /// Print one JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

/// `delegate logs`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  delegate logs latest                  stdout, stderr and events of every child
  delegate logs k7f3 2 -f               follow one child until the run ends
  delegate logs k7f3 2 --stdout > out   the bytes as the child wrote them

On a terminal control characters are shown escaped. One file of one child goes to a pipe or a file
as it is.")]
pub(crate) struct LogsArgs {
    /// Id of a run, a prefix of it, `latest` or -
    #[arg(value_name = "ID", add = ArgValueCompleter::new(completion::run_ids))]
    pub(crate) run: String,
    /// Number of a task, from 0, or id of its child [default: all]
    #[arg(value_name = "CHILD", value_parser = parse_child)]
    pub(crate) child: Option<u32>,
    /// Go on until the run ends
    #[arg(short, long)]
    pub(crate) follow: bool,
    /// Only what it wrote to standard output
    #[arg(long)]
    pub(crate) stdout: bool,
    /// Only what it wrote to standard error
    #[arg(long)]
    pub(crate) stderr: bool,
    /// Only its events, one JSON object per line
    #[arg(long)]
    pub(crate) events: bool,
}

/// `delegate trust`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  delegate trust delegate.yaml

The permission is for this path with this content: after a change the file is asked about again.")]
pub(crate) struct TrustArgs {
    /// The configuration file
    #[arg(value_hint = ValueHint::FilePath)]
    pub(crate) file: PathBuf,
}

/// `delegate completion`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  source <(delegate completion bash)                                   in ~/.bashrc
  source <(delegate completion zsh)                                    in ~/.zshrc
  delegate completion fish | source                                    in config.fish")]
pub(crate) struct CompletionArgs {
    /// The shell
    #[arg(value_enum)]
    pub(crate) shell: clap_complete::Shell,
}

/// `delegate man`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  delegate man | man -l -
  delegate man run > delegate-run.1")]
pub(crate) struct ManArgs {
    /// A verb [default: the whole command]
    #[arg(value_name = "VERB")]
    pub(crate) page: Option<String>,
}

/// `delegate exec`, which does not exist.
#[derive(Debug, Args)]
pub(crate) struct ExecArgs {
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, hide = true)]
    pub(crate) rest: Vec<std::ffi::OsString>,
}

/// Whether errors must be JSON, asked before clap has understood the line.
pub(crate) fn wants_json<'a>(mut args: impl Iterator<Item = &'a std::ffi::OsStr>) -> bool {
    args.find_map(|arg| match arg.to_str() {
        Some("--json" | "--jsonl") => Some(true),
        Some("--") => Some(false),
        _ => None,
    })
    .unwrap_or(false)
}

pub(crate) fn parse_setting(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((key, value)) if !key.trim().is_empty() => {
            Ok((key.trim().to_owned(), value.to_owned()))
        }
        _ => Err("write it as KEY=VALUE".to_owned()),
    }
}

pub(crate) fn parse_params(text: &str) -> Result<Value, String> {
    serde_json::from_str(text).map_err(|error| format!("not JSON: {error}"))
}

fn parse_child(text: &str) -> Result<u32, String> {
    if let Ok(index) = text.parse() {
        return Ok(index);
    }
    text.parse::<SubagentId>()
        .map(SubagentId::task_index)
        .map_err(|_| "expected the number of a task (from 0) or an id such as sa-2-00c0ffee".into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;
    use clap::error::ErrorKind;

    fn run_args(line: &str) -> RunArgs {
        let cli = Cli::try_parse_from(line.split_whitespace()).unwrap();
        let Verb::Run(args) = cli.verb else { panic!("{line} is not a run") };
        *args
    }

    #[test]
    fn the_definition_is_sound() {
        Cli::command().debug_assert();
    }

    #[test]
    fn a_run_is_read_whole() {
        let args = run_args(
            "delegate run tasks.yaml --isolation thread -j 4 --timeout 1m30s --set a.b=c=d --set x= \
             --dry-run --explain --json --config c.yaml",
        );
        assert_eq!(args.input, ["tasks.yaml"]);
        assert_eq!(args.isolation, Some(IsolationArg::Thread));
        assert_eq!(args.jobs, Some(4));
        assert_eq!(args.timeout.as_deref(), Some("1m30s"));
        assert_eq!(args.settings, [("a.b".into(), "c=d".into()), ("x".into(), String::new())]);
        assert!(args.dry_run && args.explain && args.output.json && !args.output.jsonl);
        assert_eq!(args.config, Some("c.yaml".into()));

        let args = run_args("delegate run --agent primes first second");
        assert_eq!(args.agent.as_deref(), Some("primes"));
        assert_eq!(args.input, ["first", "second"]);
        assert_eq!(run_args("delegate run -").input, ["-"]);
    }

    #[test]
    fn what_is_refused_is_refused_for_its_reason() {
        for (line, kind) in [
            ("delegate", ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand),
            ("delegate run", ErrorKind::MissingRequiredArgument),
            ("delegate run a --json --jsonl", ErrorKind::ArgumentConflict),
            ("delegate run a --isolation fork", ErrorKind::InvalidValue),
            ("delegate run a -j 0", ErrorKind::ValueValidation),
            ("delegate run a --set b", ErrorKind::ValueValidation),
            ("delegate run a --params {}", ErrorKind::MissingRequiredArgument),
            ("delegate rnu a", ErrorKind::InvalidSubcommand),
            ("delegate logs latest two", ErrorKind::ValueValidation),
            ("delegate runs -v --log-level debug", ErrorKind::ArgumentConflict),
            ("delegate run --help", ErrorKind::DisplayHelp),
            ("delegate --version", ErrorKind::DisplayVersion),
        ] {
            let error = Cli::try_parse_from(line.split_whitespace()).unwrap_err();
            assert_eq!(error.kind(), kind, "{line}: {error}");
        }
    }

    #[test]
    fn every_verb_that_people_see_has_examples() {
        for verb in Cli::command().get_subcommands().filter(|verb| !verb.is_hide_set()) {
            let help = verb.get_after_help().map(ToString::to_string).unwrap_or_default();
            assert!(help.contains("Examples:\n  "), "{}", verb.get_name());
        }
    }

    #[test]
    fn a_child_is_a_number_or_an_id() {
        assert_eq!(parse_child("3"), Ok(3));
        assert_eq!(parse_child("sa-3-0000beef"), Ok(3));
        for text in ["", "-1", "three", "sa-3"] {
            assert!(parse_child(text).is_err(), "{text}");
        }
    }

    #[test]
    fn json_is_seen_before_the_line_is_understood() {
        let asks = |line: &str| wants_json(line.split_whitespace().map(std::ffi::OsStr::new));
        assert!(asks("delegate run --nonsense --json"));
        assert!(asks("delegate run --jsonl x"));
        assert!(!asks("delegate run x"));
        assert!(!asks("delegate run --agent a -- --json"));
    }
}

//! From the arguments of `delegate run` to a batch and its settings. Nothing is started here.

use std::io::{self, Read};
use std::path::{Path, PathBuf};

use delegate_core::config::{self, Diagnostic, Loaded, Sources};
use delegate_core::plan::{Isolation, Task, batch_file};

use crate::cli::Context;
use crate::cli::args::RunArgs;
use crate::cli::fault::Fault;

/// What is to be run.
#[derive(Debug)]
pub(crate) struct Input {
    /// The tasks in order.
    pub(crate) tasks: Vec<Task>,
    /// What lists show: the file, or the first goal.
    pub(crate) title: String,
}

impl Input {
    /// Reads the batch file, or takes the goals of the command line. Standard input may have been read
    /// already.
    ///
    /// # Errors
    /// A file that cannot be read or is no batch.
    pub(crate) fn read(args: &RunArgs, stdin: Option<String>) -> Result<Self, Fault> {
        if let Some(agent) = &args.agent {
            let title = args.input.first().cloned().unwrap_or_default();
            let task = |goal: &String| {
                let task = Task::new(agent, goal);
                args.params.iter().cloned().fold(task, Task::params)
            };
            return Ok(Self { tasks: args.input.iter().map(task).collect(), title });
        }
        let [file] = args.input.as_slice() else {
            return Err(many_files(args).into());
        };
        let text = match stdin.filter(|_| file == "-") {
            Some(text) => Ok(text),
            None if file == "-" => read_bounded(io::stdin()),
            None => config::plain::open(Path::new(file)).and_then(read_bounded),
        };
        let text = text.map_err(|error| unreadable(file, &error))?;
        let batch = batch_file::parse(&text, Path::new(file))?;
        let title = if file == "-" { "standard input".to_owned() } else { file.clone() };
        Ok(Self { tasks: batch.tasks, title })
    }
}

/// A batch of a million short tasks has about as many bytes. What is longer is a slip (`/dev/zero`), or
/// texts that belong into files of their own.
const MAX_BYTES: u64 = 64 << 20;

/// Reads a text of [`MAX_BYTES`] at most, and no byte more than one beyond.
pub(crate) fn read_bounded(from: impl Read) -> io::Result<String> {
    let mut bytes = Vec::new();
    from.take(MAX_BYTES + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > MAX_BYTES {
        return Err(io::ErrorKind::FileTooLarge.into());
    }
    String::from_utf8(bytes).map_err(|_| io::ErrorKind::InvalidData.into())
}

fn many_files(args: &RunArgs) -> Diagnostic {
    Diagnostic {
        code: "usage",
        message: format!("one batch file is read at a time; {} were given", args.input.len()),
        hint: Some("to give goals, name their agent: delegate run --agent NAME GOAL…".to_owned()),
        ..Diagnostic::default()
    }
}

#[expect(clippy::wildcard_enum_match_arm, reason = "any other kind has its own text")]
pub(crate) fn unreadable(file: &str, error: &io::Error) -> Diagnostic {
    let (code, message) = match error.kind() {
        io::ErrorKind::NotFound => ("missing_file", "there is no such batch file".to_owned()),
        io::ErrorKind::InvalidData => ("not_text", "the batch file is not UTF-8 text".to_owned()),
        io::ErrorKind::FileTooLarge => {
            let most = MAX_BYTES >> 20;
            (
                "too_large",
                format!("the batch file is larger than {most} MiB, the most that is read"),
            )
        }
        _ => ("unreadable_file", format!("the batch file cannot be read: {error}")),
    };
    Diagnostic { code, message, file: Some(PathBuf::from(file)), ..Diagnostic::default() }
}

/// Settings from flags, variables and files.
///
/// # Errors
/// What is wrong with one of them.
pub(crate) fn settings(args: &RunArgs, context: &Context) -> Result<Loaded, Fault> {
    let cwd = std::env::current_dir()
        .map_err(|error| Fault::System("the working directory cannot be found", error))?;
    Ok(config::load(&Sources {
        explicit: args.config.clone(),
        cwd,
        env: context.env.clone(),
        flags: flags(args),
    })?)
}

/// Flags as settings: key, text as typed, and the name for messages.
fn flags(args: &RunArgs) -> Vec<(String, String, String)> {
    let jobs = args.jobs.map(|jobs| ("max_concurrent_children", jobs.to_string(), "--jobs"));
    let timeout = args.timeout.clone().map(|limit| ("child_timeout", limit, "--timeout"));
    let held = args.containment.map(|tier| ("containment", tier.to_string(), "--containment"));
    let named = [jobs, timeout, held].into_iter().flatten();
    let named = named.map(|(key, text, flag)| (key.to_owned(), text, flag.to_owned()));
    let set = args.settings.iter().cloned();
    named.chain(set.map(|(key, text)| (key, text, "--set".to_owned()))).collect()
}

/// Where tasks run: the flag; else what is configured (`None`); else processes.
pub(crate) fn isolation(args: &RunArgs, loaded: &Loaded) -> Option<Isolation> {
    match (args.isolation, loaded.settings.process_isolation) {
        (Some(asked), _) => Some(asked.into()),
        (None, Some(_)) => None,
        (None, None) => Some(Isolation::Process),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::args::{Cli, Verb};
    use clap::Parser as _;
    use delegate_core::config::{ProcessIsolation, Settings};
    use delegate_protocol::Value;

    fn args(line: &[&str]) -> RunArgs {
        let line = ["delegate", "run"].iter().chain(line);
        let Verb::Run(args) = Cli::try_parse_from(line).unwrap().verb else { unreachable!() };
        *args
    }

    #[test]
    fn one_task_per_goal() {
        let input = Input::read(&args(&["--agent", "a", "first goal", "second"]), None).unwrap();
        assert_eq!(input.tasks, [Task::new("a", "first goal"), Task::new("a", "second")]);
        assert_eq!(input.title, "first goal");
        let with =
            Input::read(&args(&["--agent", "a", "--params", r#"{"n": 3}"#, "g"]), None).unwrap();
        let params = Value::Map([("n".to_owned(), Value::Int(3))].into());
        assert_eq!(with.tasks, [Task::new("a", "g").params(params)]);
    }

    #[test]
    fn a_file_that_cannot_be_read_is_named() {
        let fault = |line: &[&str]| Input::read(&args(line), None).unwrap_err().into_diagnostic();
        let missing = fault(&["/nonexistent/x.yaml"]);
        assert_eq!(missing.code, "missing_file");
        assert_eq!(missing.file, Some("/nonexistent/x.yaml".into()));
        assert_eq!(fault(&["/"]).code, "unreadable_file");
        assert_eq!(fault(&["/dev/zero"]).code, "unreadable_file");
        assert!(fault(&["a.yaml", "b.yaml"]).hint.unwrap().contains("--agent"));
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), b"\xff\xfe").unwrap();
        assert_eq!(fault(&[file.path().to_str().unwrap()]).code, "not_text");
    }

    #[test]
    fn flags_become_settings_with_their_names() {
        let given = flags(&args(&["x", "-j", "4", "--timeout", "90s", "--set", "a.b=c"]));
        let expected = [
            ("max_concurrent_children", "4", "--jobs"),
            ("child_timeout", "90s", "--timeout"),
            ("a.b", "c", "--set"),
        ];
        let expected = expected.map(|(a, b, c)| (a.to_owned(), b.to_owned(), c.to_owned()));
        assert_eq!(given, expected);
    }

    #[test]
    fn processes_where_nothing_is_said() {
        let loaded = |process_isolation| Loaded {
            settings: Settings { process_isolation, ..Settings::default() },
            files: Vec::new(),
            notes: Vec::new(),
            origins: std::collections::BTreeMap::new(),
        };
        let plain = args(&["x"]);
        let thread = args(&["x", "--isolation", "thread"]);
        assert_eq!(isolation(&plain, &loaded(None)), Some(Isolation::Process));
        assert_eq!(isolation(&plain, &loaded(Some(ProcessIsolation::Off))), None);
        let on = loaded(Some(ProcessIsolation::On));
        assert_eq!(isolation(&thread, &on), Some(Isolation::Thread));
    }
}

//! `own`: runs a program so that nothing that it starts outlives it. The same as `delegate own`, without the rest.

use std::process::ExitCode;

fn main() -> ExitCode {
    ownership::owner::run_if_asked().unwrap_or_else(own)
}

#[cfg(not(target_os = "linux"))]
fn own() -> ExitCode {
    ExitCode::from(125)
}

#[cfg(target_os = "linux")]
fn own() -> ExitCode {
    command::run(std::env::args_os().skip(1))
}

#[cfg(target_os = "linux")]
mod command {
    use std::ffi::OsString;
    use std::io::Write as _;
    use std::path::PathBuf;
    use std::process::ExitCode;
    use std::time::Duration;

    use ownership::Containment;
    use ownership::containment::CHOICES;
    use ownership::keep::{Rules, SHIPPED};
    use ownership::wrap::{FAILED, Wrap};

    const HELP: &str = "\
Run a program so that nothing that it starts outlives it

Usage: own [OPTIONS] [--] PROGRAM [ARGS]...

Options:
  --grace DURATION  Time between TERM and KILL for what is left, such as 3s or 500ms [default: 3s]
  --keep RULES      Let live what these rules keep, such as tmux,ssh-agent; none by default
  --list-rules      Show the rules, as they may be written, and what each needs
  --containment T   What holds the tree together: auto, subreaper, cgroup or pid-namespace [default: auto]
  --report FILE     Write what was ended to FILE as one JSON object; /dev/fd/N works
  --quiet           Do not say what was ended
  --help            Print this

Examples:
  own -- npm run dev
  own --grace 10s -- ./server --port 8080
  own --keep tmux -- agent
  own --report /dev/fd/3 -- agent 3>ended.json

Exit status: the program's own; of one that a signal has ended, the same signal (128+N in a shell);
125 own failed, 126 the program cannot be executed, 127 there is no such program.
";

    pub(crate) fn run(mut args: impl Iterator<Item = OsString>) -> ExitCode {
        let mut grace = Duration::from_secs(3);
        let (mut quiet, mut report) = (false, None);
        let (rules, mut kept, mut containment) =
            (Rules::shipped(), Rules::default(), Containment::Auto);
        let program = loop {
            let Some(arg) = args.next() else { return wrong("which program?") };
            match arg.to_str() {
                Some("--help" | "-h") => {
                    drop(std::io::stdout().write_all(HELP.as_bytes()));
                    return ExitCode::SUCCESS;
                }
                Some("--quiet") => quiet = true,
                Some("--grace") => match args.next().as_ref().and_then(duration) {
                    Some(given) => grace = given,
                    None => return wrong("--grace needs a time such as 3s or 500ms"),
                },
                Some("--list-rules") => {
                    drop(std::io::stdout().write_all(SHIPPED.as_bytes()));
                    return ExitCode::SUCCESS;
                }
                Some("--keep") => {
                    let names = args.next().and_then(|names| names.into_string().ok());
                    let Some(names) = names else { return wrong("--keep needs names of rules") };
                    match rules.named(names.split(',')) {
                        Ok(named) => kept = kept.and(named),
                        Err(name) => {
                            return wrong(&format!(
                                "there is no rule {name:?}; own --list-rules shows them"
                            ));
                        }
                    }
                }
                Some("--containment") => {
                    match args.next().map(|word| word.to_string_lossy().parse()) {
                        Some(Ok(asked)) => containment = asked,
                        Some(Err(error)) => return wrong(&error.to_string()),
                        None => return wrong(&format!("--containment needs {CHOICES}")),
                    }
                }
                Some("--report") => match args.next() {
                    Some(file) => report = Some(PathBuf::from(file)),
                    None => return wrong("--report needs a file"),
                },
                Some("--") => match args.next() {
                    Some(program) => break program,
                    None => return wrong("which program?"),
                },
                Some(option) if option.starts_with('-') => {
                    return wrong(&format!("there is no option {option}"));
                }
                _ => break arg,
            }
        };
        let wrap = Wrap::new("own", program, args.collect()).grace(grace).quiet(quiet);
        wrap.report_to(report).keep(kept, rules).containment(containment).run()
    }

    /// `3s`, `500ms`, `2m`, or seconds.
    fn duration(text: &OsString) -> Option<Duration> {
        let text = text.to_str()?;
        let digits = text.find(|letter: char| !letter.is_ascii_digit()).unwrap_or(text.len());
        let number: u64 = text[..digits].parse().ok()?;
        match &text[digits..] {
            "ms" => Some(Duration::from_millis(number)),
            "" | "s" => Some(Duration::from_secs(number)),
            "m" => Some(Duration::from_secs(number.checked_mul(60)?)),
            _ => None,
        }
    }

    fn wrong(what: &str) -> ExitCode {
        let text = format!("own: {what}; nothing was started (own --help)\n");
        drop(std::io::stderr().write_all(text.as_bytes()));
        ExitCode::from(FAILED)
    }
}

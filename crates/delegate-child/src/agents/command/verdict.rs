//! How a program's end reads. Pure.

use std::path::Path;

use delegate_protocol::outcome::STDERR_TAIL;
use ownership::{ExitStatus, SpawnError};

use crate::agent::Failure;
use crate::tail::Tail;

/// Signals by name, as far as a program is likely to end by them. The numbers are those of the common
/// architectures of Linux (man 7 signal); others show as a number only.
const SIGNALS: [(i32, &str); 20] = [
    (1, "SIGHUP"),
    (2, "SIGINT"),
    (3, "SIGQUIT"),
    (4, "SIGILL"),
    (5, "SIGTRAP"),
    (6, "SIGABRT"),
    (7, "SIGBUS"),
    (8, "SIGFPE"),
    (9, "SIGKILL"),
    (10, "SIGUSR1"),
    (11, "SIGSEGV"),
    (12, "SIGUSR2"),
    (13, "SIGPIPE"),
    (14, "SIGALRM"),
    (15, "SIGTERM"),
    (24, "SIGXCPU"),
    (25, "SIGXFSZ"),
    (26, "SIGVTALRM"),
    (29, "SIGIO"),
    (31, "SIGSYS"),
];

/// The failure of an end that is not exit code 0; `None` when nobody knows how it ended.
pub(super) fn of_exit(
    program: &str,
    status: Option<ExitStatus>,
    stderr: &Tail,
) -> Result<(), Failure> {
    let end = match status {
        Some(ExitStatus::Code(0)) => return Ok(()),
        Some(ExitStatus::Code(code)) => format!("exit code {code}"),
        Some(ExitStatus::Signal { signal, core_dumped }) => {
            let name = SIGNALS.iter().find(|(number, _)| *number == signal);
            let name = name.map_or_else(String::new, |(_, name)| format!(" ({name})"));
            let core = if core_dumped { ", core dumped" } else { "" };
            format!("killed by signal {signal}{name}{core}")
        }
        Some(ExitStatus::Unknown) | None => {
            "lost: its guards were killed, so how it ended is not known".to_owned()
        }
    };
    let stderr = stderr.text(STDERR_TAIL);
    let stderr = stderr.trim_end();
    let said = if stderr.is_empty() { String::new() } else { format!("\nstderr:\n{stderr}") };
    Err(Failure::new(format!("{program}: {end}{said}")))
}

/// Nothing was started: step, path and the system's words.
pub(super) fn not_started(program: &str, error: &SpawnError) -> Failure {
    let path = error.path.as_deref().filter(|path| *path != Path::new(program));
    let path = path.map_or_else(String::new, |path| format!(" {}", path.display()));
    let (step, why) = (error.phase.word(), &error.detail);
    Failure::Failed {
        message: format!("{program} cannot be started: {step}{path}: {why}"),
        reason: Some("start_failed".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(status: Option<ExitStatus>, said: &str) -> String {
        let mut stderr = Tail::new(64 * 1024);
        stderr.push(said.as_bytes());
        match of_exit("prog", status, &stderr) {
            Err(Failure::Failed { message, .. }) => message,
            other => format!("{other:?}"),
        }
    }

    #[test]
    fn only_exit_code_0_is_success() {
        assert_eq!(words(Some(ExitStatus::Code(0)), "noise"), "Ok(())");
        assert_eq!(words(Some(ExitStatus::Code(3)), ""), "prog: exit code 3");
        let signal = |signal, core_dumped| Some(ExitStatus::Signal { signal, core_dumped });
        assert_eq!(words(signal(9, false), ""), "prog: killed by signal 9 (SIGKILL)");
        let text = words(signal(11, true), "oh\n");
        assert_eq!(text, "prog: killed by signal 11 (SIGSEGV), core dumped\nstderr:\noh");
        assert_eq!(words(signal(40, false), ""), "prog: killed by signal 40");
        assert!(words(None, "").starts_with("prog: lost"));
    }

    #[test]
    fn the_last_8_kib_of_stderr_are_told() {
        let said = format!("{}end", "x".repeat(3 * STDERR_TAIL));
        let text = words(Some(ExitStatus::Code(1)), &said);
        assert!(text.ends_with("xend") && text.len() < STDERR_TAIL + 100, "{}", text.len());
    }
}

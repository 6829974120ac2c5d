//! What was ended and what was kept, in one line for people and as one JSON object for programs. Texts only.

use std::fmt::Write as _;

use crate::exit::{ExitStatus, Process};

/// How a wrapped program ended, and what ended with it.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct EndedReport {
    /// The program, as it was asked for.
    pub program: String,
    /// How it ended.
    pub status: ExitStatus,
    /// It was ended because its terminal was closed.
    pub hung_up: bool,
    /// What it left and was ended; at most 16.
    pub ended: Vec<Process>,
    /// How many these were in all.
    pub ended_count: u32,
    /// What cannot die.
    pub left: Vec<Process>,
}

/// Names of signals 1 to 31 on Linux (man 7 signal), without `SIG`.
const NAMES: [&str; 31] = [
    "HUP", "INT", "QUIT", "ILL", "TRAP", "ABRT", "BUS", "FPE", "KILL", "USR1", "SEGV", "USR2",
    "PIPE", "ALRM", "TERM", "STKFLT", "CHLD", "CONT", "STOP", "TSTP", "TTIN", "TTOU", "URG",
    "XCPU", "XFSZ", "VTALRM", "PROF", "WINCH", "IO", "PWR", "SYS",
];

fn signal_name(number: i32) -> String {
    let at = usize::try_from(number).ok().and_then(|number| number.checked_sub(1));
    match at.and_then(|at| NAMES.get(at)) {
        Some(name) => format!("SIG{name}"),
        None => format!("signal {number}"),
    }
}

impl EndedReport {
    /// For people, or `None` when there is nothing to say. `command` is who speaks.
    #[must_use]
    pub fn line(&self, command: &str) -> Option<String> {
        if self.ended_count == 0 && self.left.is_empty() {
            return None;
        }
        let program = self.program.rsplit('/').next().unwrap_or(&self.program);
        let how = match self.status {
            _ if self.hung_up => "ended by SIGHUP".to_owned(),
            ExitStatus::Code(code) => format!("exited {code}"),
            ExitStatus::Signal { signal, .. } => format!("ended by {}", signal_name(signal)),
            ExitStatus::Unknown => "ended".to_owned(),
        };
        let mut line = format!("{command}: {} {how}", printable(program));
        if self.ended_count > 0 {
            let names = self.ended.iter().map(|process| process.name.as_str());
            let more = self.ended_count.saturating_sub(self.ended.len().try_into().unwrap_or(0));
            let mut counted = counted(names);
            if more > 0 {
                counted.push(format!("{more} more"));
            }
            let listed = counted.join(", ");
            // Nothing fails that is written into a string.
            let _ = write!(line, "; ended with it: {} ({listed})", self.ended_count);
        }
        if !self.left.is_empty() {
            let pids = self.left.iter().map(|one| format!("{} {}", one.pid, printable(&one.name)));
            let pids = pids.collect::<Vec<_>>().join(", ");
            let _ = write!(line, "; cannot be ended and still there: {pids}");
        }
        Some(line)
    }

    /// For programs: one object, without a line end.
    #[must_use]
    pub fn json(&self) -> String {
        let status = match self.status {
            ExitStatus::Code(code) => format!("{{\"code\":{code}}}"),
            ExitStatus::Signal { signal, core_dumped } => format!(
                "{{\"signal\":{signal},\"name\":\"{}\",\"core_dumped\":{core_dumped}}}",
                signal_name(signal)
            ),
            ExitStatus::Unknown => "null".to_owned(),
        };
        format!(
            "{{\"schema\":\"delegate.own/1\",\"program\":{},\"status\":{status},\"hung_up\":{},\
             \"ended_count\":{},\"ended\":{},\"left\":{}}}",
            quoted(&self.program),
            self.hung_up,
            self.ended_count,
            processes(&self.ended),
            processes(&self.left),
        )
    }
}

fn processes(list: &[Process]) -> String {
    let one = |process: &Process| {
        format!("{{\"pid\":{},\"name\":{}}}", process.pid, quoted(&process.name))
    };
    format!("[{}]", list.iter().map(one).collect::<Vec<_>>().join(","))
}

/// A JSON string (RFC 8259, 7).
fn quoted(text: &str) -> String {
    let mut quoted = String::from("\"");
    for letter in text.chars() {
        match letter {
            '"' => quoted.push_str("\\\""),
            '\\' => quoted.push_str("\\\\"),
            letter if letter.is_control() => {
                let _ = write!(quoted, "\\u{:04x}", u32::from(letter));
            }
            letter => quoted.push(letter),
        }
    }
    quoted.push('"');
    quoted
}

/// A process chooses its own name: nothing of it drives a terminal, or turns the text around it.
pub(super) fn printable(name: &str) -> String {
    let turns = |letter| matches!(letter, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{2069}');
    let is_bad = |letter: char| letter.is_control() || turns(letter) || letter == '\u{feff}';
    name.chars().map(|letter| if is_bad(letter) { '?' } else { letter }).collect()
}

/// Names in the order in which they came first, with how often each came.
fn counted<'a>(names: impl Iterator<Item = &'a str>) -> Vec<String> {
    let mut counted: Vec<(String, usize)> = Vec::new();
    for name in names.map(printable) {
        match counted.iter_mut().find(|(known, _)| *known == name) {
            Some((_, count)) => *count += 1,
            None => counted.push((name, 1)),
        }
    }
    let text = |(name, count)| if count == 1 { name } else { format!("{name} ×{count}") };
    counted.into_iter().map(text).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(status: ExitStatus, names: &[&str]) -> EndedReport {
        let process = |name: &&str| Process { pid: 7, name: (*name).to_owned() };
        EndedReport {
            program: "/opt/bin/codex".into(),
            status,
            hung_up: false,
            ended: names.iter().map(process).collect(),
            ended_count: names.len().try_into().unwrap(),
            left: Vec::new(),
        }
    }

    #[test]
    fn what_was_ended_stands_in_one_line() {
        let by_hup = ExitStatus::Signal { signal: libc::SIGHUP, core_dumped: false };
        let mut said = report(by_hup, &["playwright-mcp", "chrome", "chrome", "chrome"]);
        let line = "own: codex ended by SIGHUP; ended with it: 4 (playwright-mcp, chrome ×3)";
        assert_eq!(said.line("own").as_deref(), Some(line));
        said.ended_count = 20;
        assert!(said.line("own").unwrap().ends_with("20 (playwright-mcp, chrome ×3, 16 more)"));
        said.left = vec![Process { pid: 9, name: "dd\u{1b}[2J".into() }];
        assert!(said.line("own").unwrap().ends_with("still there: 9 dd?[2J"));
        assert_eq!(report(ExitStatus::Code(0), &[]).line("own"), None);
        let exited = report(ExitStatus::Code(3), &["a\n"]).line("own");
        assert_eq!(exited.as_deref(), Some("own: codex exited 3; ended with it: 1 (a?)"));
    }

    #[test]
    fn nothing_drives_a_terminal() {
        assert_eq!(printable("a\u{1b}[2J\u{9b}1m\r\n\u{202e}\u{2066}b\u{feff}"), "a?[2J?1m????b?");
        assert_eq!(printable("größer 日本"), "größer 日本");
    }

    #[test]
    fn programs_get_an_object() {
        let json = report(ExitStatus::Code(3), &["a\"\\\n"]).json();
        assert_eq!(
            json,
            "{\"schema\":\"delegate.own/1\",\"program\":\"/opt/bin/codex\",\"status\":{\"code\":3},\
             \"hung_up\":false,\"ended_count\":1,\
             \"ended\":[{\"pid\":7,\"name\":\"a\\\"\\\\\\u000a\"}],\"left\":[]}"
        );
    }

    #[test]
    fn signals_have_names() {
        let named = [1, 9, 19, 31, 34].map(signal_name);
        assert_eq!(named, ["SIGHUP", "SIGKILL", "SIGSTOP", "SIGSYS", "signal 34"]);
    }
}

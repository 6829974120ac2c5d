//! What a child met of its ration, in the words of an entry. Pure.

use delegate_protocol::{Cause, Outcome};
use ownership::{ExitStatus, Ration, Reached};

use crate::config::{bytes, duration};

/// One word for it, the gravest first.
pub(super) fn word(reached: Reached) -> Option<&'static str> {
    match reached {
        Reached { memory: 1.., .. } => Some("out_of_memory"),
        Reached { cpu: true, .. } => Some("max_cpu_seconds"),
        Reached { processes: 1.., .. } => Some("max_processes"),
        Reached { memory: 0, processes: 0, cpu: false } => None,
    }
}

/// What ended its process, where that was a limit: a KILL that came from elsewhere is told from it.
pub(super) fn cause(reached: Reached, exit: Option<ExitStatus>) -> Option<Cause> {
    let Some(ExitStatus::Signal { signal, .. }) = exit else { return None };
    match reached {
        Reached { memory: 1.., .. } if signal == KILL => Some(Cause::OutOfMemory),
        Reached { cpu: true, .. } => Some(Cause::CpuTimeUsedUp),
        Reached { .. } => None,
    }
}

/// SIGKILL, by which the kernel ends whoever memory is taken from.
const KILL: i32 = 9;

/// How a [`sentence`] begins, by what was met first.
const BEGINNINGS: [&str; 3] =
    ["out of memory", "its processor time was used up", "it had as many processes as it may"];

/// What an outcome says of limits that were met.
pub(crate) fn met(outcome: &Outcome) -> Option<&str> {
    let begins = |note: &&String| BEGINNINGS.iter().any(|beginning| note.starts_with(beginning));
    outcome.notes.iter().find(begins).map(String::as_str)
}

/// All of it, for people.
pub(super) fn sentence(reached: Reached, ration: &Ration) -> Option<String> {
    let Reached { memory, processes, cpu } = reached;
    let [no_memory, no_cpu, no_process] = BEGINNINGS;
    let limit = |text: Option<String>| text.map_or_else(String::new, |text| format!(" ({text})"));
    let memory = (memory > 0).then(|| {
        let limit = limit(ration.memory.map(|most| format!("max_memory {}", bytes::show(most))));
        format!("{no_memory}{limit}: the kernel ended {memory} of its processes")
    });
    let cpu = cpu.then(|| {
        let limit = limit(ration.cpu.map(|most| format!("max_cpu {}", duration::show(most))));
        format!("{no_cpu}{limit}")
    });
    let processes = (processes > 0).then(|| {
        let limit = limit(ration.processes.map(|most| format!("max_processes {most}")));
        format!("{no_process}{limit}: {processes} more were refused")
    });
    let all: Vec<_> = [memory, cpu, processes].into_iter().flatten().collect();
    (!all.is_empty()).then(|| all.join("; "))
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOTHING: Reached = Reached { memory: 0, processes: 0, cpu: false };
    const KILLED: Option<ExitStatus> = Some(ExitStatus::Signal { signal: 9, core_dumped: false });
    const TOLD: Option<ExitStatus> = Some(ExitStatus::Signal { signal: 15, core_dumped: false });

    /// Every pair of what was met and how it ended.
    #[test]
    fn a_limit_is_told_from_a_kill_and_the_gravest_is_named() {
        for (memory, processes, cpu) in [0, 2]
            .into_iter()
            .flat_map(|m| [0, 3].map(|p| (m, p)))
            .flat_map(|(m, p)| [false, true].map(|cpu| (m, p, cpu)))
        {
            let reached = Reached { memory, processes, cpu };
            assert_eq!(word(reached).is_none(), reached == NOTHING);
            let sentence = sentence(reached, &Ration::default());
            assert_eq!(sentence.is_none(), reached == NOTHING);
            let sentence = sentence.unwrap_or_default();
            assert_eq!(sentence.contains("memory"), memory > 0, "{sentence}");
            assert_eq!(sentence.contains("3 more"), processes > 0, "{sentence}");
            assert_eq!(sentence.contains("used up"), cpu, "{sentence}");
            let expected = match (memory > 0, cpu) {
                (true, _) => Some(Cause::OutOfMemory),
                (false, true) => Some(Cause::CpuTimeUsedUp),
                (false, false) => None,
            };
            assert_eq!(cause(reached, KILLED), expected);
            assert_eq!(cause(reached, TOLD), cpu.then_some(Cause::CpuTimeUsedUp));
            assert_eq!(cause(reached, Some(ExitStatus::Code(0))), None, "it ended by itself");
            assert_eq!(cause(reached, None), None);
        }
    }

    #[test]
    fn the_limit_itself_is_named() {
        let ration = Ration { memory: Some(64 << 20), processes: Some(9), ..Ration::default() };
        let text = sentence(Reached { memory: 1, processes: 1, cpu: false }, &ration);
        let text = text.expect("a sentence");
        assert!(text.contains("max_memory 64MiB") && text.contains("max_processes 9"), "{text}");
    }
}

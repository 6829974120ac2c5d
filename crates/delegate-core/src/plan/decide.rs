//! Where the children of a batch run: one pure function of what was said and how many tasks there
//! are.

use delegate_protocol::Isolation as Ran;

use super::{Isolation, StartError};
use crate::config::ProcessIsolation;

/// Whether this system can isolate tasks in processes. The only place that says so.
pub(super) const HAS_PROCESSES: bool = cfg!(target_os = "linux");

/// What the decision depends on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Question {
    /// The caller's word (a builder or a flag): wins, and speaks for single tasks too.
    pub(super) asked: Option<Isolation>,
    /// `delegation.process_isolation`.
    pub(super) setting: Option<ProcessIsolation>,
    /// `delegation.isolate_single_task`.
    pub(super) isolate_single_task: bool,
    /// Tasks of the batch.
    pub(super) tasks: usize,
    /// Why there can be no processes, if so.
    pub(super) lacks: Option<Lack>,
}

/// What process isolation needs and this program does not have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Lack {
    /// A system with an implementation.
    System,
    /// A program that can be a worker.
    Worker,
}

impl Lack {
    /// What is missing, given whether there is a worker program.
    pub(super) const fn of(has_worker: bool) -> Option<Self> {
        match (HAS_PROCESSES, has_worker) {
            (false, _) => Some(Self::System),
            (true, false) => Some(Self::Worker),
            (true, true) => None,
        }
    }

    const fn words(self) -> &'static str {
        match self {
            Self::System => "this system has no process isolation yet",
            Self::Worker => "this program is not its own worker",
        }
    }
}

/// Decides, with one sentence on why.
///
/// # Errors
/// [`StartError::Unsupported`] or [`StartError::NotItsOwnWorker`] where processes are required and
/// cannot be had: only `auto` may choose.
pub(super) fn decide(question: Question) -> Result<(Ran, String), StartError> {
    let (wish, who) = match (question.asked, question.setting) {
        (Some(Isolation::Process), _) => {
            return required("the caller asked for processes", question);
        }
        (Some(Isolation::Thread), _) => {
            return Ok((Ran::Thread, "the caller asked for threads".to_owned()));
        }
        (Some(Isolation::Auto), _) => (ProcessIsolation::Auto, "the caller asked for auto"),
        (None, Some(setting)) => (setting, setting_words(setting)),
        (None, None) => {
            return Ok((Ran::Thread, "nobody asked for processes".to_owned()));
        }
    };
    let single = question.tasks < 2;
    let kept_single = single && !question.isolate_single_task;
    let size = if !single {
        "a batch of two or more gets processes"
    } else if kept_single {
        "a single task stays in a thread"
    } else {
        "isolate_single_task is true"
    };
    match (wish, question.lacks) {
        (ProcessIsolation::Off, _) => Ok((Ran::Thread, who.to_owned())),
        (ProcessIsolation::On | ProcessIsolation::Auto, _) if kept_single => {
            Ok((Ran::Thread, format!("{who}; {size}")))
        }
        (ProcessIsolation::On, _) => required(&format!("{who}; {size}"), question),
        (ProcessIsolation::Auto, Some(lack)) => {
            Ok((Ran::Thread, format!("{who}; {}", lack.words())))
        }
        (ProcessIsolation::Auto, None) => Ok((Ran::Process, format!("{who}; {size}"))),
    }
}

fn required(reason: &str, question: Question) -> Result<(Ran, String), StartError> {
    match question.lacks {
        None => Ok((Ran::Process, reason.to_owned())),
        Some(Lack::System) => Err(StartError::Unsupported { os: std::env::consts::OS }),
        Some(Lack::Worker) => Err(StartError::NotItsOwnWorker),
    }
}

const fn setting_words(setting: ProcessIsolation) -> &'static str {
    match setting {
        ProcessIsolation::Off => "the setting process_isolation is false",
        ProcessIsolation::On => "the setting process_isolation is true",
        ProcessIsolation::Auto => "the setting process_isolation is auto",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ASKED: [Option<Isolation>; 4] =
        [None, Some(Isolation::Process), Some(Isolation::Thread), Some(Isolation::Auto)];
    const SETTINGS: [Option<ProcessIsolation>; 4] = [
        None,
        Some(ProcessIsolation::Off),
        Some(ProcessIsolation::On),
        Some(ProcessIsolation::Auto),
    ];

    /// The contract as a table, written apart from the code: `P`rocess, `T`hread, `E`rror.
    /// Columns: (1 task, 2 tasks) without `isolate_single_task`, then the same with it.
    fn expected(
        asked: Option<Isolation>,
        setting: Option<ProcessIsolation>,
        has_processes: bool,
    ) -> &'static str {
        use ProcessIsolation::{Auto, Off, On};
        match (asked, setting, has_processes) {
            (Some(Isolation::Process), _, true) => "PPPP",
            (Some(Isolation::Process), _, false) => "EEEE",
            (Some(Isolation::Thread), _, _) => "TTTT",
            (Some(Isolation::Auto), _, true) => "TPPP",
            (Some(Isolation::Auto), _, false) => "TTTT",
            (None, None | Some(Off), _) => "TTTT",
            (None, Some(On | Auto), true) => "TPPP",
            (None, Some(On), false) => "TEEE",
            (None, Some(Auto), false) => "TTTT",
        }
    }

    #[test]
    fn every_combination_is_as_the_contract_says() {
        let mut seen = 0;
        for asked in ASKED {
            for setting in SETTINGS {
                for lacks in [None, Some(Lack::System), Some(Lack::Worker)] {
                    let row = [(false, 1), (false, 2), (true, 1), (true, 2)].map(
                        |(isolate_single_task, tasks)| {
                            seen += 1;
                            let question =
                                Question { asked, setting, isolate_single_task, tasks, lacks };
                            match decide(question) {
                                Ok((Ran::Process, _)) => 'P',
                                Ok((Ran::Thread, _)) => 'T',
                                Err(StartError::Unsupported { .. })
                                    if lacks == Some(Lack::System) =>
                                {
                                    'E'
                                }
                                Err(StartError::NotItsOwnWorker) if lacks == Some(Lack::Worker) => {
                                    'E'
                                }
                                Err(other) => panic!("{other}"),
                            }
                        },
                    );
                    let row: String = row.iter().collect();
                    assert_eq!(
                        row,
                        expected(asked, setting, lacks.is_none()),
                        "{asked:?} {setting:?} {lacks:?}"
                    );
                }
            }
        }
        assert_eq!(seen, 4 * 4 * 3 * 4);
    }

    #[test]
    fn the_reason_names_where_the_decision_came_from() {
        let question = Question {
            asked: None,
            setting: Some(ProcessIsolation::On),
            isolate_single_task: false,
            tasks: 1,
            lacks: None,
        };
        let reason = |question| decide(question).unwrap().1;
        assert_eq!(
            reason(question),
            "the setting process_isolation is true; a single task stays in a thread"
        );
        let asked = Question { asked: Some(Isolation::Auto), tasks: 3, ..question };
        assert_eq!(
            reason(asked),
            "the caller asked for auto; a batch of two or more gets processes"
        );
        let single = Question { isolate_single_task: true, ..question };
        assert!(reason(single).ends_with("isolate_single_task is true"));
        let alone = Question { lacks: Some(Lack::Worker), ..asked };
        assert!(reason(alone).ends_with("this program is not its own worker"));
    }
}

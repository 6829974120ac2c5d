//! Why a verb could not do what was asked, with its exit code and its form for people and programs.

use std::io;

use delegate_core::config::Diagnostic;
use delegate_core::control::ControlError;
use delegate_core::plan::{Origin, StartError, Task};
use delegate_core::store::StoreError;

use crate::cli::control;
use crate::cli::exit::Exit;

/// Why not.
#[derive(Debug)]
pub(crate) enum Fault {
    /// Something that a person wrote is wrong.
    Input(Box<Diagnostic>),
    /// A batch could not be started.
    Start(StartError, Option<Origin>),
    /// No such run or child, or a store that cannot be read.
    Store(StoreError),
    /// Whoever runs it refused, or is not there.
    Control(ControlError),
    /// Results could not be written.
    Output(io::Error),
    /// The system refused something else.
    System(&'static str, io::Error),
}

impl From<Diagnostic> for Fault {
    fn from(fault: Diagnostic) -> Self {
        Self::Input(Box::new(fault))
    }
}

impl From<StartError> for Fault {
    fn from(error: StartError) -> Self {
        Self::of_start(error, &[])
    }
}

impl From<StoreError> for Fault {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}

impl Fault {
    /// A batch of these tasks could not be started.
    pub(crate) fn of_start(error: StartError, tasks: &[Task]) -> Self {
        if let StartError::Config(fault) = error {
            return Self::Input(fault);
        }
        let task = error.task().and_then(|index| tasks.get(index));
        let place = task.and_then(Task::origin).cloned();
        Self::Start(error, place)
    }

    /// How the command exits because of it.
    pub(crate) fn exit(&self) -> Exit {
        match self {
            Self::Input(_) | Self::Start(..) | Self::System(..) => Exit::BadInput,
            Self::Store(StoreError::NotFound(_) | StoreError::Ambiguous { .. }) => Exit::NotFound,
            Self::Store(_) => Exit::Failed,
            Self::Control(error) => control::exit(error),
            Self::Output(_) => Exit::BrokenPromise,
        }
    }

    /// What to say about it.
    pub(crate) fn into_diagnostic(self) -> Diagnostic {
        let (code, message) = match self {
            Self::Control(error) => (control_code(&error), error.to_string()),
            Self::Input(fault) => return *fault,
            Self::Start(error, place) => return not_started(&error, place),
            Self::Store(error) => (store_code(&error), error.to_string()),
            Self::Output(error) => {
                ("output", format!("results could not be written to standard output: {error}"))
            }
            Self::System(what, error) => ("system", format!("{what}: {error}")),
        };
        Diagnostic { code, message, ..Diagnostic::default() }
    }
}

fn not_started(error: &StartError, place: Option<Origin>) -> Diagnostic {
    let text = error.to_string();
    // It has a line of its own in text, and its exit code for programs.
    let text = text.strip_suffix("; nothing was started").unwrap_or(&text);
    Diagnostic {
        code: start_code(error),
        message: text.to_owned(),
        line: place.as_ref().map(|place| place.line),
        column: place.as_ref().map(|place| place.column),
        file: place.map(|place| place.file.to_path_buf()),
        ..Diagnostic::default()
    }
}

const fn start_code(error: &StartError) -> &'static str {
    match error {
        StartError::NoParent => "no_parent",
        StartError::InvalidCall { .. } => "invalid_call",
        StartError::TooDeep { .. } => "too_deep",
        StartError::NoOrchestrators { .. } => "no_orchestrators",
        StartError::NoRoute { .. } => "no_route",
        StartError::NotBuilt { .. } => "not_built",
        StartError::NoWorktree { .. } => "no_worktree",
        StartError::EmptyBatch => "empty_batch",
        StartError::TooManyTasks { .. } => "too_many_tasks",
        StartError::BlankGoal { .. } => "blank_goal",
        StartError::UnknownAgent { .. } => "unknown_agent",
        StartError::TakesNoTurns { .. } => "takes_no_turns",
        StartError::Crossing { .. } => "cannot_cross",
        StartError::InvalidTask { .. } => "invalid_task",
        StartError::Unsupported { .. } => "unsupported",
        StartError::NoContainment { .. } => "no_containment",
        StartError::NoLimit { .. } => "no_limit",
        StartError::NotItsOwnWorker => "not_its_own_worker",
        StartError::Config(_) => "configuration",
        StartError::BackgroundFull { .. } => "background_full",
        StartError::NotKept { .. } => "not_kept",
        StartError::NothingLeft { .. } => "nothing_left",
        StartError::NotResumable { .. } => "not_resumable",
        StartError::NotGiven { .. }
        | StartError::KeyNotGiven { .. }
        | StartError::ParentNotGiven { .. } => "not_given",
        StartError::Unreadable(_) => "store",
        StartError::Paused => "paused",
        StartError::ForeignProcess { .. } => "foreign_process",
        StartError::System { .. } => "system",
        _ => "not_started",
    }
}

/// As the protocol says it; what this side does not know is a refusal.
fn control_code(error: &ControlError) -> &'static str {
    const KNOWN: [&str; 11] = [
        "not_found",
        "ambiguous",
        "needs_child",
        "needs_run",
        "ended",
        "not_accepted",
        "elapsed",
        "bad_request",
        "busy",
        "gone",
        "silent",
    ];
    KNOWN.into_iter().find(|known| *known == error.code()).unwrap_or("refused")
}

const fn store_code(error: &StoreError) -> &'static str {
    match error {
        StoreError::NotFound(_) => "not_found",
        StoreError::Ambiguous { .. } => "ambiguous",
        StoreError::Io { .. } => "store",
        _ => "store",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_fault_has_its_code_and_exit() {
        let io_error = || io::Error::other("why");
        let store_io =
            StoreError::Io { what: "cannot read", path: "x".into(), reason: "why".into() };
        let fault = Diagnostic { code: "unknown_key", ..Diagnostic::default() };
        let cases: [(Fault, u8, &str); 8] = [
            (fault.clone().into(), 2, "unknown_key"),
            (StartError::Config(Box::new(fault)).into(), 2, "unknown_key"),
            (StartError::EmptyBatch.into(), 2, "empty_batch"),
            (StoreError::NotFound("no run `x`".into()).into(), 4, "not_found"),
            (StoreError::Ambiguous { prefix: "x".into(), found: vec![] }.into(), 4, "ambiguous"),
            (store_io.into(), 1, "store"),
            (Fault::Output(io_error()), 3, "output"),
            (Fault::System("cannot", io_error()), 2, "system"),
        ];
        for (fault, exit, code) in cases {
            assert_eq!((fault.exit().code(), fault.into_diagnostic().code), (exit, code));
        }
    }

    #[test]
    fn that_nothing_was_started_is_said_once() {
        let text = Fault::from(StartError::BlankGoal { task: 3 }).into_diagnostic().message;
        assert_eq!(text, "task 3: the goal is blank");
    }
}

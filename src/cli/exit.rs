//! Exit codes: one table, from which help and man page are made, and the one decision that picks the
//! code of a run.

use std::process::ExitCode;

/// How the command ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Exit {
    /// Everything was done.
    Done,
    /// Some task did not complete, or something that was asked could not be done.
    Failed,
    /// Bad input; nothing was started.
    BadInput,
    /// Done, but a promise could not be kept.
    BrokenPromise,
    /// No such run or child.
    NotFound,
    /// What was waited for did not come in time.
    Elapsed,
    /// Ended by SIGHUP: its terminal is gone.
    HungUp,
    /// Ended by Ctrl-C.
    Interrupted,
    /// Ended by SIGTERM.
    Terminated,
}

/// What Rust exits with after a panic; never picked here, only documented.
const PANIC: u8 = 101;

impl Exit {
    const ALL: [Self; 9] = [
        Self::Done,
        Self::Failed,
        Self::BadInput,
        Self::BrokenPromise,
        Self::NotFound,
        Self::Elapsed,
        Self::HungUp,
        Self::Interrupted,
        Self::Terminated,
    ];

    /// The number that the caller of the command sees.
    pub(crate) const fn code(self) -> u8 {
        match self {
            Self::Done => 0,
            Self::Failed => 1,
            Self::BadInput => 2,
            Self::BrokenPromise => 3,
            Self::NotFound => 4,
            Self::Elapsed => 124,
            Self::HungUp => 129,
            Self::Interrupted => 130,
            Self::Terminated => 143,
        }
    }

    /// The one with this number; what is none is a failure.
    pub(crate) fn of_code(code: u8) -> Self {
        Self::ALL.into_iter().find(|exit| exit.code() == code).unwrap_or(Self::Failed)
    }

    const fn meaning(self) -> &'static str {
        match self {
            Self::Done => "done; of `run`: all tasks completed",
            Self::Failed => "some task did not complete",
            Self::BadInput => "bad input; nothing was started",
            Self::BrokenPromise => {
                "done, but something is left, is not verified, or was not stored"
            }
            Self::NotFound => "no such run or child",
            Self::Elapsed => "the time of `wait --timeout` is over",
            Self::HungUp => "ended by SIGHUP (its terminal was closed)",
            Self::Interrupted => "ended by Ctrl-C",
            Self::Terminated => "ended by SIGTERM",
        }
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit.code())
    }
}

/// The table as help shows it, in the order of the codes.
pub(crate) fn table() -> String {
    let mut rows: Vec<_> = Exit::ALL.map(|exit| (exit.code(), exit.meaning())).into();
    rows.push((PANIC, "a fault of this program"));
    rows.sort_unstable();
    let lines: Vec<_> = rows.iter().map(|(code, text)| format!("  {code:>3}  {text}")).collect();
    format!("Exit codes:\n{}", lines.join("\n"))
}

/// What is known at the end of a run.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Ending {
    /// Set when a signal ended it.
    pub(crate) by_signal: Option<Exit>,
    /// The kernel confirmed that nothing is left.
    pub(crate) verified: bool,
    /// Every outcome is on disk.
    pub(crate) durable: bool,
    /// Every task completed.
    pub(crate) all_completed: bool,
}

impl Ending {
    /// The code of a run. A signal comes first, since shells act on it; a broken promise before a
    /// failed task.
    pub(crate) fn exit(self) -> Exit {
        match self {
            Self { by_signal: Some(exit), .. } => exit,
            Self { verified: false, .. } | Self { durable: false, .. } => Exit::BrokenPromise,
            Self { all_completed: false, .. } => Exit::Failed,
            Self { .. } => Exit::Done,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_ending_has_its_code() {
        let signals = [Exit::HungUp, Exit::Interrupted, Exit::Terminated];
        for by_signal in signals.map(Some).into_iter().chain([None]) {
            for bits in 0..8_u8 {
                let [verified, durable, all_completed] = [1, 2, 4].map(|bit| bits & bit != 0);
                let code = Ending { by_signal, verified, durable, all_completed }.exit().code();
                let expected = match (by_signal, verified && durable, all_completed) {
                    (Some(Exit::HungUp), ..) => 129,
                    (Some(Exit::Interrupted), ..) => 130,
                    (Some(_), ..) => 143,
                    (None, false, _) => 3,
                    (None, true, false) => 1,
                    (None, true, true) => 0,
                };
                assert_eq!(code, expected, "{by_signal:?} {verified} {durable} {all_completed}");
            }
        }
    }

    #[test]
    fn the_table_lists_every_code_once_in_order() {
        let text = table();
        let codes: Vec<u8> = text
            .lines()
            .skip(1)
            .map(|line| line.split_whitespace().next().unwrap().parse().unwrap())
            .collect();
        assert_eq!(codes, [0, 1, 2, 3, 4, 101, 124, 129, 130, 143]);
    }
}

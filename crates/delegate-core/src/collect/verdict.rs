//! Status and exit reason of a child, in one order, the first rule that fits: it could not start; its own
//! last word; what stopped it; how it broke off. Pure, and tested over every combination.

use delegate_protocol::event::Limit;
use delegate_protocol::message::Verdict;
use delegate_protocol::{ExitReason, Finish, Status};
use ownership::ExitStatus;

use super::{Said, Subject, limits, signal_name};
use crate::monitor::{CancelReason, Facts};

/// The answer that a model gives up with; it is no answer.
const GIVE_UP: &str = "(empty)";

/// What an entry says of the end.
#[derive(Debug)]
pub(super) struct Judgement {
    pub(super) status: Status,
    pub(super) exit_reason: ExitReason,
    pub(super) error: Option<String>,
}

/// Decides.
pub(super) fn judge(subject: &Subject, facts: &Facts, said: &Said) -> Judgement {
    if let Some(failure) = &subject.start_failure {
        return error(format!("it could not start ({}): {}", failure.phase, failure.detail));
    }
    match &said.finish {
        Some(finish) => judge_finish(subject, facts, said, finish),
        None => judge_silence(subject, facts, said),
    }
}

/// The child's own word, as far as it holds.
fn judge_finish(subject: &Subject, facts: &Facts, said: &Said, finish: &Finish) -> Judgement {
    let told = || finish.error.clone();
    match finish.verdict {
        Verdict::Interrupted => stopped(subject, facts).unwrap_or_else(|| Judgement {
            status: Status::Interrupted,
            exit_reason: ExitReason::Interrupted,
            error: told().or_else(|| Some("it was interrupted".to_owned())),
        }),
        Verdict::Failed => Judgement {
            status: Status::Failed,
            exit_reason: ExitReason::Error,
            error: told().or_else(|| Some("it failed and gave no reason".to_owned())),
        },
        Verdict::Panicked => error(told().unwrap_or_else(|| "the agent panicked".to_owned())),
        Verdict::Completed | Verdict::MaxIterations => {
            let judgement = judge_answer(said, finish);
            // What it could not do for want of something may be missing in its answer, and it may not know.
            match limits::sentence(subject.reached, &subject.ration) {
                Some(limit) if judgement.status == Status::Completed => Judgement {
                    status: Status::Failed,
                    exit_reason: ExitReason::Error,
                    error: Some(limit),
                },
                Some(_) | None => judgement,
            }
        }
    }
}

fn judge_answer(said: &Said, finish: &Finish) -> Judgement {
    if let Some(fault) = &said.answer.fault {
        return Judgement {
            status: Status::Failed,
            exit_reason: ExitReason::Error,
            error: Some(fault.clone()),
        };
    }
    if said.answer.bytes != finish.answer_bytes {
        return error(format!(
            "its answer should have {} bytes, {} arrived",
            finish.answer_bytes, said.answer.bytes
        ));
    }
    let empty = said.answer.bytes == 0 || said.answer.text.trim() == GIVE_UP;
    let exit_reason = finish.verdict.exit_reason();
    if empty && !finish.empty_on_purpose {
        return Judgement {
            status: Status::Failed,
            exit_reason,
            error: Some("it gave no answer".to_owned()),
        };
    }
    Judgement { status: Status::Completed, exit_reason, error: None }
}

/// A child that never finished.
fn judge_silence(subject: &Subject, facts: &Facts, said: &Said) -> Judgement {
    if let Some(stopped) = stopped(subject, facts) {
        return stopped;
    }
    // Whatever else it did, that is why.
    if let Some(limit) = limits::sentence(subject.reached, &subject.ration) {
        return error(limit);
    }
    if facts.start_timeout {
        let limit = subject.start_limit.as_secs_f64();
        return error(format!("it said nothing within its start limit of {limit} s"));
    }
    if let Some(violation) = violation(facts, said) {
        return error(format!("it broke the protocol: {violation}"));
    }
    error(match facts.exit {
        Some(ExitStatus::Code(code)) => format!("it exited with code {code} and left no result"),
        Some(ExitStatus::Signal { signal, .. }) => {
            format!("signal {signal} ({}) ended it", signal_name(signal))
        }
        Some(ExitStatus::Unknown) => NOT_KNOWN.to_owned(),
        None if facts.lost => NOT_KNOWN.to_owned(),
        None => "it waits in the kernel and takes no signal yet".to_owned(),
    })
}

/// Both guards of it were killed.
const NOT_KNOWN: &str = "how it ended is not known: its guards were killed";

/// The judgement of a child that we stopped; the strongest reason wins.
fn stopped(subject: &Subject, facts: &Facts) -> Option<Judgement> {
    let never = facts.launched_at.is_none() && !facts.start_timeout;
    let abandoned =
        if facts.abandoned { "; its thread did not return and was abandoned" } else { "" };
    Some(match facts.cancel? {
        CancelReason::Timeout | CancelReason::Stale => Judgement {
            status: Status::Timeout,
            exit_reason: ExitReason::Timeout,
            error: Some(format!("{}{abandoned}{}", limit_text(subject, facts), doing(subject))),
        },
        CancelReason::Interrupt | CancelReason::Kill if never => Judgement {
            status: Status::Interrupted,
            exit_reason: ExitReason::Interrupted,
            error: Some("the batch was stopped before its turn".to_owned()),
        },
        CancelReason::Interrupt => Judgement {
            status: Status::Interrupted,
            exit_reason: ExitReason::Interrupted,
            error: Some(match &subject.over_budget {
                Some(limit) => format!("it was stopped: {limit}{abandoned}"),
                None => format!("it was interrupted{abandoned}"),
            }),
        },
        CancelReason::Kill => Judgement {
            status: Status::Interrupted,
            exit_reason: ExitReason::Interrupted,
            error: Some(format!("it was killed on request{abandoned}")),
        },
    })
}

/// Which limit it was, how long, and where it was written.
fn limit_text(subject: &Subject, facts: &Facts) -> String {
    let (limit, after) = facts.expired.map_or_else(
        || (Limit::Run, subject.limit.unwrap_or_default()),
        |expired| (expired.limit, expired.after),
    );
    let (after, key) = (after.as_secs_f64(), limit.key());
    match (limit, &subject.limit_place) {
        (Limit::Run, Some(place)) => format!("its limit of {after} s ran out ({place})"),
        (Limit::Run, None) => format!("its limit of {after} s ran out"),
        (Limit::Inactivity, _) => format!("it made no progress for {after} s ({key})"),
        (Limit::StaleIdle, _) => format!("it was stale: no progress for {after} s ({key})"),
        (Limit::StaleInTool, _) => {
            format!("it was stale: no progress for {after} s inside a tool ({key})")
        }
    }
}

fn doing(subject: &Subject) -> String {
    let path = subject.diagnostic.as_ref();
    path.map_or_else(String::new, |path| format!("; what it was doing: {}", path.display()))
}

fn error(text: String) -> Judgement {
    Judgement { status: Status::Error, exit_reason: ExitReason::Error, error: Some(text) }
}

pub(super) fn violation(facts: &Facts, said: &Said) -> Option<String> {
    facts.violation.clone().or_else(|| cut(facts, said).cloned()).or_else(|| {
        said.oversized.map(|(_, largest)| {
            let cap = delegate_protocol::FRAME_CAP;
            format!("a frame of {largest} bytes is over the cap of {cap} bytes")
        })
    })
}

/// A stream that ended inside of a frame, where that is the child's doing: one that was killed or
/// crashed in its last write broke nothing, its end is the cause.
fn cut<'said>(facts: &Facts, said: &'said Said) -> Option<&'said String> {
    said.cut.as_ref().filter(|_| facts.exit == Some(ExitStatus::Code(0)))
}

#[cfg(test)]
#[path = "verdict_tests.rs"]
mod tests;

//! From what is known of a child to its outcome: a pure fold, the only place that decides a status.
//!
//! Inputs are the [`Facts`] of [`crate::monitor`] and what its stream held ([`Said`], filled by
//! [`crate::run`]). A status comes from frames and the wait status, never from reading a text.

use std::path::PathBuf;
use std::time::Duration;

use delegate_protocol::event::seconds;
use delegate_protocol::outcome::{
    COST_ESTIMATED, COST_UNKNOWN, ERROR_BYTES, InputSummary, MAX_SCHEMA_ERRORS, MAX_TOOL_TRACE,
    NAME_BYTES, SCHEMA_ERROR_BYTES, STDERR_TAIL, SchemaWord, Subtree,
};
use delegate_protocol::{
    Cause, ExitReason, Finish, Isolation, Outcome, Status, ToolCall, tool_text,
};
use ownership::{ExitStatus, Process, Ration, Reached};

use crate::launch::StartFailure;
use crate::monitor::Facts;

pub mod budget;
mod complete;
pub mod cost;
pub(crate) mod limits;
pub mod spent;
mod verdict;

pub use complete::complete;

use cost::{Bill, Node, Spending, roll_up};
use spent::Spent;
use verdict::{judge, violation};

/// What a child's stream and pipes held by the time that it was over.
#[derive(Debug, Default)]
pub struct Said {
    /// Its last frame.
    pub finish: Option<Finish>,
    /// The answer, from that frame or from the parts before it.
    pub answer: Answer,
    /// The end of the text that it streamed, for a child that never finished.
    pub last_text: String,
    /// The last bytes of its stderr.
    pub stderr: Vec<u8>,
    /// Frames over the cap that were skipped, and the largest.
    pub oversized: Option<(u64, usize)>,
    /// Messages after its last frame.
    pub late: u64,
    /// Bytes of its output and of its progress that found no room on their way to its logs.
    pub lost: u64,
    /// How the stream ended, when it was not between two frames.
    pub cut: Option<String>,
    /// When it last sent content.
    pub last_content_at: Option<Duration>,
    /// What it spent and touched.
    pub spent: Spent,
}

/// An answer as it was taken in.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Answer {
    /// The text, or its head when it was spilled.
    pub text: String,
    /// Bytes of the whole answer that arrived.
    pub bytes: u64,
    /// The file that holds the whole, with its SHA-256 in hex.
    pub file: Option<(PathBuf, String)>,
    /// Bytes that are not UTF-8 were replaced in the text.
    pub lossy: bool,
    /// Why only the head was kept.
    pub not_kept: Option<String>,
    /// Why it is no answer.
    pub fault: Option<String>,
}

/// The task that an outcome is about.
#[derive(Debug)]
pub struct Subject {
    /// Position in the batch.
    pub task_index: u32,
    /// What carried it, or would have.
    pub isolation: Isolation,
    /// `exec` or `thread`; `None` when it was never launched.
    pub launcher: Option<&'static str>,
    /// Its wall clock limit.
    pub limit: Option<Duration>,
    /// Where that limit was written.
    pub limit_place: Option<String>,
    /// Its start limit.
    pub start_limit: Duration,
    /// Folder of its logs.
    pub logs: Option<PathBuf>,
    /// Why it could not start.
    pub start_failure: Option<StartFailure>,
    /// What it was doing when its time was over.
    pub diagnostic: Option<PathBuf>,
    /// Words to it that were accepted and that it did not take.
    pub missed: Vec<String>,
    /// What it delegated, and what that spent.
    pub subtree: Option<Subtree>,
    /// Which limit of what may be spent it was stopped for.
    pub over_budget: Option<String>,
    /// What its process and all that it started had met of their ration.
    pub reached: Reached,
    /// That ration.
    pub ration: Ration,
    /// What can be followed of it while it works.
    pub live_transcript: Option<PathBuf>,
}

/// What the child has spent itself: its last word, else what was seen of it.
#[must_use]
pub fn own_spending(said: &Said) -> Spending {
    let Said { finish, spent, .. } = said;
    Spending {
        api_calls: finish.as_ref().map_or_else(|| spent.api_calls(), |finish| finish.api_calls),
        tokens: finish.as_ref().map_or(spent.tokens, |finish| finish.tokens),
        cost_usd: finish.as_ref().map_or(spent.cost_usd, |finish| finish.cost_usd),
    }
}

/// Folds everything into the entry. What those below the child spent is added to its money, layer by layer.
#[must_use]
pub fn outcome(subject: Subject, facts: &Facts, mut said: Said) -> Outcome {
    if let Some(finish) = &mut said.finish {
        bound(finish);
    }
    let judgement = judge(&subject, facts, &said);
    let cause = cause(&subject, facts, &said, judgement.status);
    let crashed = judgement.status == Status::Error && !said.stderr.is_empty();
    let timed_out = judgement.status == Status::Timeout;
    let began = facts.started_at.or(facts.launched_at);
    let duration = began.map_or(Duration::ZERO, |at| facts.ended_at.saturating_sub(at));
    let notes = notes(&subject, facts, &said);
    let own = own_spending(&said);
    // A child that has not told its trace itself has told each call.
    let tool_trace = match &mut said.finish {
        Some(finish) => std::mem::take(&mut finish.tool_trace),
        None => bounded(said.spent.tool_trace()),
    };
    let summary = summary(judgement.status, &mut said);
    let mut finish = said.finish;
    let word = finish.as_mut().and_then(|finish| finish.schema.take());
    let spent = said.spent;
    let api_calls = own.api_calls;
    let (cost_usd, cost_status) = bill(own, finish.as_ref(), subject.subtree.as_ref());
    let timed_out_at = facts.timed_out_at.filter(|_| timed_out);
    let (result_path, result_sha256) = said.answer.file.unzip();
    Outcome {
        task_index: subject.task_index,
        status: judgement.status,
        summary,
        error: judgement.error,
        exit_reason: judgement.exit_reason,
        truncated: judgement.exit_reason == ExitReason::MaxIterations,
        api_calls,
        duration_seconds: seconds(duration),
        model: finish.as_ref().and_then(|finish| finish.model.clone()),
        tokens: own.tokens,
        cost_usd,
        cost_status,
        subtree: subject.subtree,
        failure_reason: finish
            .as_ref()
            .and_then(|finish| finish.failure_reason.clone())
            .or_else(|| limits::word(subject.reached).map(str::to_owned)),
        timeout_seconds: facts
            .expired
            .map(|expired| expired.after)
            .or(subject.limit)
            .filter(|_| timed_out)
            .map(|limit| limit.as_secs_f64()),
        timed_out_after_seconds: timed_out_at
            .zip(began)
            .map(|(at, began)| seconds(at.saturating_sub(began))),
        timeout_phase: timed_out.then(|| timeout_phase(api_calls).to_owned()),
        last_event_age: timed_out_at
            .zip(said.last_content_at.or(began))
            .map(|(at, last)| seconds(facts.quiet_for.unwrap_or(at.saturating_sub(last)))),
        diagnostic_path: subject.diagnostic.filter(|_| timed_out),
        reasoning_tokens: spent.reasoning_tokens,
        files_read: spent.read.into_list(),
        files_written: spent.written.into_list(),
        output_tail: spent.tail.into(),
        missed_steer: (!subject.missed.is_empty()).then(|| subject.missed.join("\n")),
        approvals: spent.approvals.into(),
        live_transcript: subject.live_transcript,
        summary_truncated: false,
        summary_full_path: None,
        stale_paths: Vec::new(),
        handed_off_processes: Vec::new(),
        orphaned_processes: Vec::new(),
        unread_completions: Vec::new(),
        worktree: None,
        schema_valid: word.as_ref().map(|word| word.valid),
        schema_retries: word.as_ref().map(|word| word.retries),
        schema_errors: word.as_ref().map_or_else(Vec::new, |word| word.errors.clone()),
        schema_note: word.and_then(|word| word.note),
        cause,
        stderr_tail: crashed.then(|| tail(&said.stderr, STDERR_TAIL)),
        notes,
        pid: facts.pid,
        isolation: subject.isolation,
        launcher: subject.launcher.map(str::to_owned),
        logs: subject.logs,
        answer_is_json: finish.as_ref().is_some_and(|finish| finish.answer_is_json),
        tool_trace,
        result_bytes: result_path.is_some().then_some(said.answer.bytes),
        result_path,
        result_sha256,
    }
}

/// Our own session keeps these bounds; a worker of another make need not.
fn bound(finish: &mut Finish) {
    let Finish { error, failure_reason, model, cost_status, schema, tool_trace, .. } = finish;
    *tool_trace = bounded(std::mem::take(tool_trace));
    let words = failure_reason.iter_mut().chain(model).chain(cost_status);
    words.for_each(|word| cut_off(word, NAME_BYTES));
    error.iter_mut().for_each(|text| cut_off(text, ERROR_BYTES));
    if let Some(SchemaWord { valid: _, retries: _, errors, note }) = schema {
        errors.truncate(MAX_SCHEMA_ERRORS);
        errors.iter_mut().for_each(|error| cut_off(error, SCHEMA_ERROR_BYTES));
        note.iter_mut().for_each(|note| cut_off(note, ERROR_BYTES));
    }
}

fn bounded(mut trace: Vec<ToolCall>) -> Vec<ToolCall> {
    trace.drain(..trace.len().saturating_sub(MAX_TOOL_TRACE));
    for ToolCall { tool, args_bytes: _, input_summary, result_bytes: _, status } in &mut trace {
        [tool, status].into_iter().for_each(|word| cut_off(word, NAME_BYTES));
        let InputSummary { argument_keys, targets } = input_summary;
        argument_keys.truncate(tool_text::MAX_KEYS);
        targets.truncate(tool_text::MAX_TARGETS);
        let words = argument_keys.iter_mut().chain(targets);
        words.for_each(|word| cut_off(word, 4 * tool_text::TARGET_CHARS));
    }
    trace
}

/// The bill of a child with those below it, and what kind of number it is: in the agent's word, else told by
/// whether there is a number.
fn bill(own: Spending, finish: Option<&Finish>, below: Option<&Subtree>) -> (Option<f64>, String) {
    let told = finish.and_then(|finish| finish.cost_status.clone());
    let known = if own.cost_usd.is_some() { COST_ESTIMATED } else { COST_UNKNOWN };
    let Some(below) = below else {
        return (own.cost_usd, told.unwrap_or_else(|| known.to_owned()));
    };
    let status = told.or_else(|| own.cost_usd.map(|_| known.to_owned()));
    let before = Bill { cost_usd: own.cost_usd.unwrap_or_default(), source: None, status };
    let after = roll_up(before, &[Node { own: Spending::below(below), children: Vec::new() }]);
    let billed = own.cost_usd.is_some() || after.source.is_some();
    (billed.then_some(after.cost_usd), after.status.unwrap_or_else(|| known.to_owned()))
}

/// Keeps `most` bytes at most, cut between characters.
pub(crate) fn cut_off(text: &mut String, most: usize) {
    let end = (0..=most.min(text.len())).rev().find(|at| text.is_char_boundary(*at));
    text.truncate(end.unwrap_or(0));
    text.shrink_to_fit();
}

fn cause(subject: &Subject, facts: &Facts, said: &Said, status: Status) -> Option<Cause> {
    if let Some(failure) = &subject.start_failure {
        return Some(Cause::StartFailed {
            phase: failure.phase.clone(),
            errno: failure.errno,
            path: failure.path.clone(),
        });
    }
    if facts.start_timeout {
        return Some(Cause::StartTimeout);
    }
    facts.launched_at?;
    if facts.abandoned {
        return Some(Cause::Abandoned);
    }
    let broken = said.finish.is_none() && facts.cancel.is_none();
    let short = status == Status::Error
        && said.finish.as_ref().is_some_and(|finish| finish.answer_bytes != said.answer.bytes);
    if let Some(detail) = violation(facts, said).filter(|_| broken || short) {
        return Some(Cause::ProtocolError { detail });
    }
    if let Some(limited) = limits::cause(subject.reached, facts.exit) {
        return Some(limited);
    }
    Some(match facts.exit {
        Some(ExitStatus::Code(code)) => Cause::Exited { code },
        Some(ExitStatus::Signal { signal, core_dumped }) => Cause::Signaled { signal, core_dumped },
        Some(ExitStatus::Unknown) | None => Cause::Lost,
    })
}

fn notes(subject: &Subject, facts: &Facts, said: &Said) -> Vec<String> {
    let mut notes: Vec<String> = subject.over_budget.iter().cloned().collect();
    notes.extend(limits::sentence(subject.reached, &subject.ration));
    if !subject.missed.is_empty() {
        let count = subject.missed.len();
        notes.push(format!("{count} word(s) to it were not taken before its end (missed_steer)"));
    }
    if let Some((count, largest)) = said.oversized {
        let cap = delegate_protocol::FRAME_CAP;
        notes.push(format!(
            "{count} frame(s) over the cap of {cap} bytes were skipped, the largest of {largest} bytes"
        ));
    }
    if said.lost > 0 {
        notes.push(format!(
            "{} bytes of its output and progress are not in its logs: it wrote faster than the disk",
            said.lost
        ));
    }
    if said.answer.lossy {
        notes.push("its answer is not UTF-8; other bytes were replaced".to_owned());
    }
    if let Some(reason) = &said.answer.not_kept {
        let (head, whole) = (said.answer.text.len(), said.answer.bytes);
        notes.push(format!("only {head} of the {whole} bytes of its answer were kept: {reason}"));
    }
    if said.finish.is_some() {
        if said.late > 0 {
            notes.push(format!("{} message(s) after its result were ignored", said.late));
        }
        if let Some(violation) = facts.violation.as_ref().or(said.cut.as_ref()) {
            notes.push(format!("after its result it broke the protocol: {violation}"));
        }
        match facts.exit {
            Some(ExitStatus::Code(0) | ExitStatus::Unknown) | None => {}
            Some(ExitStatus::Code(code)) => {
                notes.push(format!("after its result it exited with code {code}"));
            }
            Some(ExitStatus::Signal { signal, .. }) => notes.push(format!(
                "after its result signal {signal} ({}) ended it",
                signal_name(signal)
            )),
        }
    }
    if let Some(cut) = said.cut.as_ref().filter(|_| said.finish.is_none()) {
        notes.push(format!("its stream was cut: {cut}"));
    }
    if facts.lingered {
        notes.push("it stayed after its result and was ended".to_owned());
    }
    if let Some(emptied) = &facts.emptied {
        if emptied.leftover_count > 0 {
            notes.push(format!(
                "it left {} process(es) behind, which were ended: {}",
                emptied.leftover_count,
                names(&emptied.leftovers)
            ));
        }
        if !emptied.left.is_empty() {
            notes.push(format!("could not be ended yet: {}", names(&emptied.left)));
        }
    }
    notes
}

fn names(processes: &[Process]) -> String {
    let names: Vec<_> =
        processes.iter().map(|process| format!("{} ({})", process.name, process.pid)).collect();
    names.join(", ")
}

/// What the child had to say: its answer; for one that was stopped or failed, what there was.
fn summary(status: Status, said: &mut Said) -> Option<String> {
    // Taken and not copied: it may be 16 MiB.
    let answer = std::mem::take(&mut said.answer.text);
    if status == Status::Completed {
        return Some(answer);
    }
    let partial = if answer.is_empty() { std::mem::take(&mut said.last_text) } else { answer };
    match status {
        Status::Failed | Status::Timeout | Status::Interrupted => {
            (!partial.is_empty()).then_some(partial)
        }
        Status::Completed | Status::Error | Status::Unknown => None,
    }
}

const fn timeout_phase(api_calls: u64) -> &'static str {
    if api_calls == 0 { "before_first_llm_call" } else { "after_llm_calls" }
}

fn tail(bytes: &[u8], most: usize) -> String {
    let start = bytes.len().saturating_sub(most);
    String::from_utf8_lossy(&bytes[start..]).into_owned()
}

/// The name of a signal by its Linux number (man 7 signal), or `SIG` and the number.
#[must_use]
pub fn signal_name(signal: i32) -> String {
    let name = match signal {
        1 => "HUP",
        2 => "INT",
        3 => "QUIT",
        4 => "ILL",
        5 => "TRAP",
        6 => "ABRT",
        7 => "BUS",
        8 => "FPE",
        9 => "KILL",
        11 => "SEGV",
        13 => "PIPE",
        14 => "ALRM",
        15 => "TERM",
        24 => "XCPU",
        25 => "XFSZ",
        31 => "SYS",
        _ => return format!("SIG{signal}"),
    };
    format!("SIG{name}")
}

#[cfg(test)]
#[path = "collect_tests.rs"]
mod tests;

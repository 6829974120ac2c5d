//! The entry of a task whose parent died before it had an outcome: made when it is read, from what the dead
//! run left. Nothing of it is stored, so that whoever resumes the run knows what has no outcome.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::Path;

use delegate_protocol::outcome::{COST_UNKNOWN, STDERR_TAIL};
use delegate_protocol::{Cause, ExitReason, Isolation, Outcome, Status, Tokens};

use super::Log;

/// Bytes of its last event that the entry shows.
const LAST_EVENT: usize = 500;

/// `folder` is that of the child; there is none when it was never launched.
pub(super) fn entry(task_index: u32, isolation: &str, folder: Option<&Path>) -> Outcome {
    let error = "its parent died before it had an outcome".to_owned();
    let mut outcome = bare(task_index, Status::Unknown, ExitReason::Error);
    outcome.error = Some(error);
    outcome.cause = Some(Cause::Lost);
    if isolation == Isolation::Thread.word() {
        outcome.isolation = Isolation::Thread;
    }
    let Some(folder) = folder else {
        outcome.notes.push("nothing is known of a start".to_owned());
        return outcome;
    };
    let events = folder.join(Log::Events.file_name());
    match tail(&events, 64 * 1024) {
        Ok(text) => {
            let last = text.lines().rev().find(|line| line.starts_with('{') && line.ends_with('}'));
            let last = last.map(|line| clipped(line, LAST_EVENT));
            // Its first one may not have been written whole.
            let said =
                last.map_or("it said nothing".to_owned(), |line| format!("its last event: {line}"));
            outcome.notes.push(said);
            outcome.live_transcript = Some(events);
        }
        Err(_) => outcome.notes.push("it said nothing".to_owned()),
    }
    let stderr = tail(&folder.join(Log::Stderr.file_name()), STDERR_TAIL as u64);
    outcome.stderr_tail = stderr.ok().filter(|text| !text.is_empty());
    outcome.logs = Some(folder.to_owned());
    outcome
}

fn clipped(line: &str, most: usize) -> &str {
    let end = (0..=most.min(line.len())).rev().find(|end| line.is_char_boundary(*end));
    &line[..end.unwrap_or_default()]
}

/// The last bytes of a file, as text.
fn tail(path: &Path, most: u64) -> io::Result<String> {
    let mut file = File::open(path)?;
    let length = file.metadata()?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(most)))?;
    let mut bytes = Vec::new();
    file.take(most).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// An entry of which only the status is known.
pub(crate) fn bare(task_index: u32, status: Status, exit_reason: ExitReason) -> Outcome {
    Outcome {
        task_index,
        status,
        summary: None,
        error: None,
        exit_reason,
        truncated: false,
        api_calls: 0,
        duration_seconds: 0.0,
        model: None,
        tokens: Tokens::default(),
        tool_trace: Vec::new(),
        cost_usd: None,
        cost_status: COST_UNKNOWN.to_owned(),
        live_transcript: None,
        summary_truncated: false,
        summary_full_path: None,
        stale_paths: Vec::new(),
        handed_off_processes: Vec::new(),
        orphaned_processes: Vec::new(),
        unread_completions: Vec::new(),
        worktree: None,
        schema_valid: None,
        schema_retries: None,
        schema_errors: Vec::new(),
        schema_note: None,
        failure_reason: None,
        timeout_seconds: None,
        timed_out_after_seconds: None,
        timeout_phase: None,
        last_event_age: None,
        diagnostic_path: None,
        missed_steer: None,
        subtree: None,
        approvals: Vec::new(),
        reasoning_tokens: 0,
        files_read: Vec::new(),
        files_written: Vec::new(),
        output_tail: Vec::new(),
        cause: None,
        stderr_tail: None,
        notes: Vec::new(),
        pid: None,
        isolation: Isolation::Process,
        launcher: None,
        logs: None,
        answer_is_json: false,
        result_path: None,
        result_sha256: None,
        result_bytes: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_entry_has_what_the_child_left() {
        let dir = tempfile::tempdir().unwrap();
        let never = entry(3, "thread", None);
        assert_eq!((never.status, never.cause), (Status::Unknown, Some(Cause::Lost)));
        assert_eq!((never.task_index, never.isolation), (3, Isolation::Thread));
        assert_eq!(never.notes, ["nothing is known of a start"]);

        std::fs::write(dir.path().join("events.jsonl"), "{\"eve").unwrap();
        assert_eq!(entry(0, "process", Some(dir.path())).notes, ["it said nothing"]);
        std::fs::write(dir.path().join("stderr"), "boom\n").unwrap();
        // The last line is cut off, as a kill does it.
        let events = format!("{{\"event\":\"a\"}}\n{{\"event\":\"{}\"}}\n{{\"eve", "é".repeat(400));
        std::fs::write(dir.path().join("events.jsonl"), events).unwrap();
        let left = entry(0, "process", Some(dir.path()));
        assert_eq!(left.stderr_tail.as_deref(), Some("boom\n"));
        assert_eq!(left.logs.as_deref(), Some(dir.path()));
        assert!(left.notes[0].starts_with("its last event: {\"event\":\"é"), "{:?}", left.notes);
        assert!(left.notes[0].len() <= LAST_EVENT + 20);
    }
}

//! What programs read. Every object names its schema and version; within a version fields are only
//! added.

use std::io::{self, Write};

use delegate_core::store::RunRecord;
use delegate_protocol::{Event, Outcome, RunId};
use serde::Serialize;

use crate::cli::render::text::is_unsafe;

/// A writer for JSON that a terminal may show: what drives one is written as `\u…` in it. Outside of
/// strings JSON has no such character, so that the meaning stays the same. Whoever writes must not
/// halve characters; `serde_json` never does.
pub(crate) struct Safe<W>(pub(crate) W);

impl<W: Write> Write for Safe<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match std::str::from_utf8(bytes) {
            Ok(text) => self.write_text(text)?,
            Err(_) => self.0.write_all(bytes)?,
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

impl<W: Write> Safe<W> {
    fn write_text(&mut self, mut text: &str) -> io::Result<()> {
        // The end of a line is our own: within strings it is escaped already.
        let drives = |c: char| is_unsafe(c) && c != '\n';
        while let Some(at) = text.find(drives) {
            let (plain, rest) = text.split_at(at);
            self.0.write_all(plain.as_bytes())?;
            let mut rest = rest.chars();
            if let Some(c) = rest.next() {
                write!(self.0, "\\u{:04x}", u32::from(c))?;
            }
            text = rest.as_str();
        }
        self.0.write_all(text.as_bytes())
    }
}

/// One value and a line end.
///
/// # Errors
/// Those of the writer.
pub(crate) fn line<T: Serialize>(to: &mut dyn Write, value: &T) -> io::Result<()> {
    serde_json::to_writer(Safe(&mut *to), value)?;
    to.write_all(b"\n")
}

/// The first line of `--jsonl`.
#[derive(Debug, Serialize)]
pub(crate) struct EventsHead {
    schema: &'static str,
    run_id: RunId,
}

impl EventsHead {
    /// For this run.
    pub(crate) const fn of(run_id: RunId) -> Self {
        Self { schema: "delegate.events/1", run_id }
    }
}

/// One event of `--jsonl`.
#[derive(Debug, Serialize)]
pub(crate) struct EventLine<'a> {
    task_index: u32,
    #[serde(flatten)]
    event: &'a Event,
}

impl<'a> EventLine<'a> {
    /// For this event.
    pub(crate) const fn of(event: &'a Event) -> Self {
        Self { task_index: event.child().task_index(), event }
    }
}

fn results(to: &mut dyn Write, outcomes: impl Iterator<Item = Outcome>) -> io::Result<()> {
    to.write_all(br#","results":["#)?;
    for (position, outcome) in outcomes.enumerate() {
        if position > 0 {
            to.write_all(b",")?;
        }
        serde_json::to_writer(Safe(&mut *to), &outcome)?;
    }
    to.write_all(b"]")
}

/// One run with its outcomes so far, written as they are read.
///
/// # Errors
/// Those of the writer.
pub(crate) fn stored_run(
    to: &mut dyn Write,
    run: &RunRecord,
    outcomes: impl Iterator<Item = Outcome>,
) -> io::Result<()> {
    let mut head = Vec::new();
    serde_json::to_writer(Safe(&mut head), &RunObject::of(run))?;
    head.pop(); // the closing brace; the results follow inside
    to.write_all(br#"{"schema":"delegate.run/1","#)?;
    to.write_all(&head[1..])?;
    results(to, outcomes)?;
    to.write_all(b"}\n")
}

/// A list of runs.
///
/// # Errors
/// Those of the writer.
pub(crate) fn runs(to: &mut dyn Write, runs: &[RunRecord]) -> io::Result<()> {
    #[derive(Serialize)]
    struct Runs<'a> {
        schema: &'static str,
        runs: Vec<RunObject<'a>>,
    }
    let runs = runs.iter().map(RunObject::of).collect();
    line(to, &Runs { schema: "delegate.runs/1", runs })
}

#[derive(Debug, Serialize)]
struct RunObject<'a> {
    run_id: RunId,
    title: &'a str,
    status: &'a str,
    isolation: &'a str,
    tasks: u32,
    counts: serde_json::Map<String, serde_json::Value>,
    started_at: f64,
    total_duration_seconds: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    parent_run_id: Option<RunId>,
    #[serde(skip_serializing_if = "Option::is_none")]
    parent_task_index: Option<u32>,
    background: bool,
    resumed: u32,
    rerun_of: Option<RunId>,
}

impl<'a> RunObject<'a> {
    fn of(run: &'a RunRecord) -> Self {
        let RunRecord {
            id,
            started_at,
            duration_seconds,
            status,
            tasks,
            counts,
            title,
            isolation,
            above,
            background,
            resumed,
            rerun_of,
            process: _,
        } = run;
        Self {
            run_id: *id,
            title,
            status,
            isolation,
            tasks: *tasks,
            counts: counts.iter().map(|(word, number)| (word.clone(), (*number).into())).collect(),
            started_at: *started_at,
            total_duration_seconds: *duration_seconds,
            parent_run_id: above.map(|(run, _)| run),
            parent_task_index: above.map(|(_, task)| task),
            background: *background,
            resumed: *resumed,
            rerun_of: *rerun_of,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::render::human::tests::{complete, outcome};
    use delegate_protocol::Status;
    use serde_json::Value;

    fn parsed(write: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> Value {
        let mut bytes = Vec::new();
        write(&mut bytes).unwrap();
        let text = String::from_utf8(bytes).unwrap();
        assert!(text.ends_with('\n') && text.matches('\n').count() == 1, "{text}");
        serde_json::from_str(&text).unwrap()
    }

    #[test]
    fn what_drives_a_terminal_is_escaped_and_means_the_same() {
        let evil = "a\x1b[2J\u{9b}31m\u{202e}\u{7f}\u{feff}é漢\n";
        let mut bytes = Vec::new();
        line(&mut bytes, &evil).unwrap();
        let text = String::from_utf8(bytes).unwrap();
        assert_eq!(text, "\"a\\u001b[2J\\u009b31m\\u202e\\u007f\\ufeffé漢\\n\"\n");
        assert_eq!(serde_json::from_str::<String>(&text).unwrap(), evil);
    }

    #[test]
    fn an_event_line_carries_task_child_and_fields() {
        let event = complete(2, Status::Failed, 1.5, "why\nnot");
        let json = parsed(|to| line(to, &EventLine::of(&event)));
        assert_eq!(json["task_index"], 2);
        assert_eq!(json["child"], "sa-2-00000001");
        assert_eq!(json["event"], "subagent.complete");
        assert_eq!(json["end"]["status"], "failed");
        let head = parsed(|to| line(to, &EventsHead::of(RunId::from_u128(7))));
        assert_eq!(head["schema"], "delegate.events/1");
        assert_eq!(head["run_id"], RunId::from_u128(7).to_string());
    }

    #[test]
    fn a_stored_run_is_one_object_with_its_results() {
        let run = RunRecord {
            id: RunId::from_u128(7),
            started_at: 12.5,
            duration_seconds: None,
            status: "running".into(),
            tasks: 3,
            counts: vec![("completed".into(), 2)],
            title: "a \"b\"".into(),
            isolation: "process".into(),
            process: None,
            above: None,
            background: false,
            resumed: 0,
            rerun_of: None,
        };
        let outcomes = [outcome(0, Status::Completed), outcome(1, Status::Failed)];
        let json = parsed(|to| stored_run(to, &run, outcomes.clone().into_iter()));
        assert_eq!(json["schema"], "delegate.run/1");
        assert_eq!(json["title"], "a \"b\"");
        assert_eq!(json["counts"]["completed"], 2);
        assert_eq!(json["results"][1]["status"], "failed");
        assert_eq!(json["total_duration_seconds"], Value::Null);
        assert_eq!(
            parsed(|to| stored_run(to, &run, [].into_iter()))["results"],
            Value::Array(vec![])
        );

        let list = parsed(|to| runs(to, &[run.clone(), run.clone()]));
        assert_eq!(list["schema"], "delegate.runs/1");
        assert_eq!(list["runs"][1]["run_id"], run.id.to_string());
    }
}

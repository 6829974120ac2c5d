//! A batch as a consumer sees it: its events, its outcomes, and both as plain JSON.

use std::fs;

use delegate_runtime::{Event, Outcome, Report, Task};
use serde_json::{Value, json};

use crate::support::Rig;

/// Everything that a consumer saw of one batch.
pub struct Seen {
    pub events: Vec<Event>,
    pub outcomes: Vec<Outcome>,
    pub report: Report,
}

/// Runs a batch and reads every event.
pub fn watch(rig: &Rig, tasks: impl IntoIterator<Item = Task>) -> Seen {
    watch_with(rig, tasks, |_, _| {})
}

/// As [`watch`]; `each` sees every event as it comes.
pub fn watch_with(
    rig: &Rig,
    tasks: impl IntoIterator<Item = Task>,
    mut each: impl FnMut(&Event, &delegate_runtime::Control),
) -> Seen {
    let mut run = rig.delegator.batch(tasks).start().unwrap();
    let control = run.control();
    let events: Vec<Event> = run.events().inspect(|event| each(event, &control)).collect();
    let report = run.finish();
    let outcomes = report.results().collect();
    Seen { events, outcomes, report }
}

impl Seen {
    /// The events of one task.
    pub fn of(&self, index: u32) -> Vec<&Event> {
        self.events.iter().filter(|event| event.child().task_index() == index).collect()
    }

    /// What is the same in both executors for one task: the outcome, and its events in segments.
    pub fn essence(&self, index: u32) -> Value {
        json!({
            "outcome": essence_of(&self.outcomes[index as usize]),
            "events": segments(&self.of(index)),
        })
    }

    /// The events that one child's file holds.
    pub fn written(&self, index: u32) -> Vec<Value> {
        let logs = self.outcomes[index as usize].logs.as_ref().expect("a child has logs");
        let text = fs::read_to_string(logs.join("events.jsonl")).unwrap();
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }
}

/// An outcome without what the executor and the clock decide.
pub fn essence_of(outcome: &Outcome) -> Value {
    let mut entry = serde_json::to_value(&**outcome).unwrap();
    for field in [
        "pid",
        "isolation",
        "launcher",
        "logs",
        "stderr_tail",
        "duration_seconds",
        "timed_out_after_seconds",
        "last_event_age",
        "diagnostic_path",
        "result_path",
        "live_transcript",
        "summary_full_path",
    ] {
        entry.as_object_mut().unwrap().remove(field);
    }
    entry
}

/// Between two lifecycle events text may be joined, and a progress line replaced by the next, at the
/// will of the clock. What that leaves the same is compared: the whole text, the thoughts, the last
/// progress line, and how many there were.
pub fn segments(events: &[&Event]) -> Vec<Value> {
    let mut list = Vec::new();
    let mut open = Segment::default();
    for event in events {
        match event {
            Event::Text { text, .. } => open.text.push_str(text),
            Event::Thinking { text, .. } => open.thoughts.push(text.clone()),
            Event::Progress { summary, merged, .. } => {
                open.progress = Some(summary.clone());
                open.steps += merged + 1;
            }
            // How often it is told where one stands is at the will of the clock.
            Event::Waiting { .. } => {}
            Event::Warning { about, .. } => list.push(json!(["warning", about])),
            Event::Turn { turn, end, .. } => {
                list.push(std::mem::take(&mut open).into_json());
                let mut end = serde_json::to_value(end).unwrap();
                if let Some(end) = end.as_object_mut() {
                    end.remove("duration_seconds");
                }
                list.push(json!(["turn", turn, end]));
            }
            Event::SpawnRequested { goal, .. } => list.push(json!(["requested", goal])),
            Event::Start { goal, .. } => list.push(json!(["start", goal])),
            Event::Tool { name, preview, args, .. } => {
                list.push(std::mem::take(&mut open).into_json());
                list.push(json!(["tool", name, preview, args]));
            }
            Event::Complete { end, .. } => {
                list.push(std::mem::take(&mut open).into_json());
                let mut end = serde_json::to_value(end).unwrap();
                end.as_object_mut().unwrap().remove("duration_seconds");
                list.push(json!(["complete", end]));
            }
        }
    }
    list
}

#[derive(Default)]
struct Segment {
    text: String,
    thoughts: Vec<String>,
    progress: Option<String>,
    steps: u64,
}

impl Segment {
    fn into_json(self) -> Value {
        json!([self.text, self.thoughts.join("\n"), self.progress, self.steps])
    }
}

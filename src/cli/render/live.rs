//! The live view as a pure model: events go in with the time, lines come out. `commands::run` owns the
//! clock and the terminal; the same model gives names to the plain lines and to the final table.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use delegate_protocol::{Event, Status, SubagentId};

use crate::cli::render::below::Below;
use crate::cli::render::text::{
    clip, clock, columns, count, escape, first_line, from_seconds, head, last_line, took,
};
use crate::cli::render::{Paint, Style, text};

/// Columns of a name.
const LABEL_COLUMNS: usize = 28;

/// Columns of `interrupted`, the longest word of a state.
pub(crate) const STATE_COLUMNS: usize = 11;

/// Bytes of a child's current line that are kept for the view; more than any terminal shows.
const NOTE_BYTES: usize = 512;

/// Ended tasks that are kept for the view. A longer batch does not fit a terminal, so that only
/// those that run are shown, and their number is bounded by the places.
const ENDED_ROWS: usize = 256;

/// What is known of a batch while it runs.
#[derive(Debug)]
pub(crate) struct Model {
    /// Names in task order, one short text per task.
    labels: Vec<Box<str>>,
    label_columns: usize,
    waiting: BTreeSet<u32>,
    running: BTreeMap<u32, Running>,
    ended: BTreeMap<u32, Ended>,
    ended_count: usize,
    not_completed: usize,
    places: u32,
    /// Children of children.
    below: Below,
}

#[derive(Debug)]
struct Running {
    child: SubagentId,
    since: Duration,
    pid: Option<u32>,
    note: Note,
}

#[derive(Debug)]
struct Ended {
    status: Status,
    took: Duration,
    note: Box<str>,
}

/// The newest line of a child. Streamed text arrives in pieces.
#[derive(Debug, Default)]
pub(crate) struct Note {
    line: String,
    /// The next piece of text goes on with this line.
    open: bool,
}

impl Note {
    /// The line.
    pub(crate) fn line(&self) -> &str {
        &self.line
    }

    /// Takes in what a child says or does.
    pub(crate) fn event(&mut self, event: &Event) {
        match event {
            Event::Tool { name, preview: Some(preview), .. } => {
                self.set(&format!("{}: {}", head(name, NOTE_BYTES), head(preview, NOTE_BYTES)));
            }
            Event::Tool { name, preview: None, .. } => self.set(name),
            Event::Thinking { text, .. } | Event::Warning { text, .. } => self.set(text),
            Event::Progress { summary, .. } => self.set(summary),
            Event::Text { text, .. } => self.push(text),
            Event::Turn { turn, .. } => self.set(&format!("turn {turn}")),
            Event::SpawnRequested { .. }
            | Event::Waiting { .. }
            | Event::Start { .. }
            | Event::Complete { .. } => {}
        }
    }

    fn set(&mut self, line: &str) {
        first_line(head(line, NOTE_BYTES)).clone_into(&mut self.line);
        self.open = false;
    }

    fn push(&mut self, delta: &str) {
        for piece in delta.split_inclusive('\n') {
            let text = piece.trim_end_matches('\n');
            if !self.open && text.trim().is_empty() {
                continue; // a blank line does not hide what was said before
            }
            if !self.open {
                self.line.clear();
            }
            let room = NOTE_BYTES.saturating_sub(self.line.len());
            self.line.push_str(head(text, room));
            self.open = !piece.ends_with('\n');
        }
    }
}

impl Model {
    /// Before the first event: how many run at once.
    pub(crate) fn new(places: u32) -> Self {
        Self {
            labels: Vec::new(),
            label_columns: 0,
            waiting: BTreeSet::new(),
            running: BTreeMap::new(),
            ended: BTreeMap::new(),
            ended_count: 0,
            not_completed: 0,
            places,
            below: Below::default(),
        }
    }

    /// Takes in what happened at `now` (since the start of the run).
    pub(crate) fn apply(&mut self, event: &Event, now: Duration) {
        if self.below.apply(event, now) {
            return;
        }
        let task = event.child().task_index();
        match event {
            Event::SpawnRequested { goal, .. } => {
                // A resume announces nothing of what had ended before.
                let before = usize::try_from(task).unwrap_or(0);
                if self.labels.len() < before {
                    self.labels.resize(before, Box::default());
                }
                self.name(task, goal);
                self.waiting.insert(task);
            }
            Event::Start { goal, pid, .. } => {
                self.name(task, goal);
                self.waiting.remove(&task);
                let child = event.child();
                let row = Running { child, since: now, pid: *pid, note: Note::default() };
                self.running.insert(task, row);
            }
            Event::Waiting { .. } => {}
            Event::Tool { .. }
            | Event::Thinking { .. }
            | Event::Warning { .. }
            | Event::Progress { .. }
            | Event::Turn { .. }
            | Event::Text { .. } => self.note(task, |note| note.event(event)),
            Event::Complete { end, .. } => {
                self.waiting.remove(&task);
                self.running.remove(&task);
                self.ended_count += 1;
                self.not_completed += usize::from(end.status != Status::Completed);
                let said = match (&end.error, &end.summary) {
                    (Some(error), _) => first_line(head(error, NOTE_BYTES)),
                    (None, Some(answer)) => last_line(answer, NOTE_BYTES).0,
                    (None, None) => "",
                };
                let row = Ended {
                    status: end.status,
                    took: from_seconds(end.duration_seconds),
                    note: said.into(),
                };
                if self.ended.len() < ENDED_ROWS {
                    self.ended.insert(task, row);
                }
            }
        }
    }

    fn name(&mut self, task: u32, goal: &str) {
        let Ok(index) = usize::try_from(task) else { return };
        // Tasks are announced in order, so that this grows by one at a time.
        if index == self.labels.len() {
            let label = text::label(goal, LABEL_COLUMNS);
            self.label_columns = self.label_columns.max(columns(&label));
            self.labels.push(label.into());
        }
    }

    fn note(&mut self, task: u32, change: impl FnOnce(&mut Note)) {
        if let Some(row) = self.running.get_mut(&task) {
            change(&mut row.note);
        }
    }

    /// What the child of an event is called, with its number: one of the run by its task, one below by the way
    /// to it.
    pub(crate) fn who(&self, child: SubagentId) -> String {
        let Some(path) = self.below.path(child) else {
            let task = child.task_index();
            return format!("{task} {}", self.label(task));
        };
        let top = self.below.top(child).map_or(0, SubagentId::task_index);
        format!("{top} {} > {path}", self.label(top))
    }

    /// The name of a task: the first line of its goal, shortened.
    pub(crate) fn label(&self, task: u32) -> &str {
        usize::try_from(task).ok().and_then(|index| self.labels.get(index)).map_or("", |l| l)
    }

    /// Columns of the longest name.
    pub(crate) const fn label_columns(&self) -> usize {
        self.label_columns
    }

    /// Columns of the largest task number.
    pub(crate) fn index_columns(&self) -> usize {
        self.labels.len().saturating_sub(1).to_string().len()
    }

    /// At most `height` lines: every task where all fit, else those that run and a line that counts
    /// the others.
    pub(crate) fn lines(&self, now: Duration, height: usize, style: Style) -> Vec<String> {
        if self.labels.len() <= height.min(ENDED_ROWS) {
            let tasks = (0..).take(self.labels.len());
            let mut lines = Vec::new();
            for task in tasks {
                lines.extend(self.line(task, now, style));
                // What is below is left out before a task is.
                let room = height.saturating_sub(self.labels.len() + self.shown_below(&lines));
                if let Some(row) = self.running.get(&task) {
                    lines.extend(self.below.lines(row.child, now, style).into_iter().take(room));
                }
            }
            return lines;
        }
        let shown = height.saturating_sub(1);
        let mut lines: Vec<_> = self
            .running
            .keys()
            .take(shown)
            .filter_map(|task| self.line(*task, now, style))
            .collect();
        if height > 0 {
            lines.push(self.others(self.running.len() - lines.len(), style));
        }
        lines
    }

    /// Lines that are there beside those of tasks, with all tasks but those that follow.
    fn shown_below(&self, lines: &[String]) -> usize {
        lines.len().saturating_sub(self.labels.len())
    }

    fn others(&self, hidden: usize, style: Style) -> String {
        let mut parts = Vec::new();
        if hidden > 0 {
            parts.push(format!("{hidden} more running"));
        }
        parts.push(format!("{} waiting", self.waiting.len()));
        parts.push(match self.not_completed {
            0 => format!("{} done", self.ended_count),
            bad => format!("{} done, {bad} of them not completed", self.ended_count),
        });
        let line = format!("  {} {}", style.waiting(), parts.join(style.dot()));
        fit(&line, style)
    }

    fn line(&self, task: u32, now: Duration, style: Style) -> Option<String> {
        if let Some(row) = self.running.get(&task) {
            let cells = Cells {
                sign: style.running(),
                paint: Paint::Busy,
                state: "running",
                time: clock(now.saturating_sub(row.since)),
                pid: row.pid,
                note: &row.note.line,
            };
            return Some(self.row(task, &cells, style));
        }
        if let Some(row) = self.ended.get(&task) {
            let cells = Cells {
                sign: style.ended(row.status),
                paint: Paint::of(row.status),
                state: row.status.word(),
                time: took(row.took),
                pid: None,
                note: &row.note,
            };
            return Some(self.row(task, &cells, style));
        }
        let place = self.waiting.iter().position(|waiting| *waiting == task)?;
        let note = self.queue_note(place);
        let cells = Cells {
            sign: style.waiting(),
            paint: Paint::Faint,
            state: "waiting",
            time: String::new(),
            pid: None,
            note: &note,
        };
        Some(self.row(task, &cells, style))
    }

    fn queue_note(&self, place: usize) -> String {
        let line = if place == 0 { "next".to_owned() } else { format!("{} before it", place) };
        let places = usize::try_from(self.places).unwrap_or(usize::MAX);
        format!("{line}, {} of {} taken", self.running.len(), count(places, "place", "places"))
    }

    fn row(&self, task: u32, cells: &Cells<'_>, style: Style) -> String {
        let head = format!(
            " {task:>index$} {label}  ",
            index = self.index_columns(),
            label = text::pad(self.label(task), self.label_columns),
        );
        let state = text::pad(cells.state, STATE_COLUMNS);
        let pid = cells.pid.map(|pid| pid.to_string()).unwrap_or_default();
        let tail = format!(" {:>7}  {pid:>7}  {}", cells.time, escape(cells.note));
        let tail = tail.trim_end();
        let used = 2 + columns(cells.sign) + columns(&head) + columns(&state);
        match style.width.map(|width| width.checked_sub(used)) {
            Some(None) => fit(&format!("  {}{head}{state}", cells.sign), style),
            room => {
                let tail = clip(tail, room.flatten().unwrap_or(usize::MAX), style.ellipsis());
                let sign = style.paint(cells.paint, cells.sign);
                format!("  {sign}{head}{}{tail}", style.paint(cells.paint, &state))
            }
        }
    }
}

struct Cells<'a> {
    sign: &'static str,
    paint: Paint,
    state: &'static str,
    time: String,
    pid: Option<u32>,
    note: &'a str,
}

fn fit(line: &str, style: Style) -> String {
    clip(line, style.width.unwrap_or(usize::MAX), style.ellipsis()).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::render::human::tests::{complete, requested, started};
    use delegate_protocol::{ChildEvent, SubagentId, Value};

    const fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn child(task: u32) -> SubagentId {
        SubagentId::new(task, 1)
    }

    fn says(task: u32, text: &str) -> Event {
        ChildEvent::Text { text: text.into() }.of(child(task)).unwrap()
    }

    fn model(events: &[Event]) -> Model {
        let mut model = Model::new(2);
        for event in events {
            model.apply(event, at(1));
        }
        model
    }

    fn three() -> Vec<Event> {
        vec![
            requested(0, "count-tests"),
            requested(1, "biggest-file"),
            requested(2, "slow-survey"),
            started(0, "count-tests", Some(41207)),
            started(1, "biggest-file", None),
            ChildEvent::Tool {
                name: "rg".into(),
                preview: Some("212 matches so far".into()),
                args: Value::Null,
                id: None,
                args_bytes: 0,
            }
            .of(child(0))
            .unwrap(),
            complete(1, Status::Completed, 0.32, "481 lines"),
        ]
    }

    #[test]
    fn one_line_per_child_in_task_order() {
        let lines = model(&three()).lines(at(5), 10, Style::PLAIN);
        assert_eq!(
            lines,
            [
                "  ● 0 count-tests   running        0:04    41207  rg: 212 matches so far",
                "  ✔ 1 biggest-file  completed      0.3s           481 lines",
                "  ◌ 2 slow-survey   waiting                       next, 1 of 2 places taken",
            ]
        );
        assert!(model(&three()).lines(at(5), 10, Style::ASCII)[2].starts_with("  . 2 slow"));
    }

    #[test]
    fn a_batch_that_does_not_fit_shows_what_runs_and_counts_the_rest() {
        let mut events = three();
        events.push(started(2, "slow-survey", None));
        events.push(requested(3, "d"));
        let model = model(&events);
        let lines = model.lines(at(1), 3, Style::PLAIN);
        assert_eq!(lines.len(), 3);
        assert!(lines[0].contains("count-tests") && lines[1].contains("slow-survey"));
        assert_eq!(lines[2], "  ◌ 1 waiting · 1 done");
        assert_eq!(
            model.lines(at(1), 2, Style::ASCII)[1],
            "  . 1 more running - 1 waiting - 1 done"
        );
        assert_eq!(model.lines(at(1), 0, Style::PLAIN), [""; 0]);
    }

    #[test]
    fn no_line_is_wider_than_the_terminal() {
        let mut events = three();
        events.push(says(0, &"漢".repeat(300)));
        let model = model(&events);
        for width in 0..120 {
            for height in [2, 10] {
                for line in model.lines(at(1), height, Style::PLAIN.wide(width)) {
                    assert!(columns(&line) <= width, "{width}: {line}");
                }
            }
        }
    }

    #[test]
    fn a_child_cannot_drive_the_terminal() {
        let events = [
            requested(0, "goal \x1b[31m"),
            started(0, "goal \x1b[31m", None),
            says(0, "\x1b[2J\r\x07"),
        ];
        for line in model(&events).lines(at(1), 5, Style::PLAIN) {
            assert!(!line.chars().any(char::is_control), "{line:?}");
            assert!(line.contains("\\x1b[31m") && line.contains("\\x1b[2J\\r\\x07"));
        }
    }

    #[test]
    fn streamed_text_shows_its_newest_line() {
        for (deltas, line) in [
            (&["hel", "lo"][..], "hello"),
            (&["one\n", "two"], "two"),
            (&["one\ntwo\n"], "two"),
            (&["one", "\n"], "one"),
            (&["one", "more\n\n"], "onemore"),
            (&["a\nb", "c\nd"], "d"),
            (&["a\n", "\n", "\n"], "a"),
            (&["a", "b\n"], "ab"),
        ] {
            let mut note = Note::default();
            deltas.iter().for_each(|delta| note.push(delta));
            assert_eq!(note.line, line, "{deltas:?}");
        }
        let mut note = Note::default();
        note.push(&"é".repeat(10_000));
        note.push("x");
        assert!(note.line.len() <= NOTE_BYTES);
    }

    #[test]
    fn memory_per_ended_task_is_a_name() {
        let mut model = Model::new(2);
        for task in 0..5000 {
            model.apply(&requested(task, &"long goal ".repeat(100)), at(0));
            model.apply(&started(task, "", None), at(0));
            model.apply(&complete(task, Status::Failed, 0.1, "x"), at(0));
        }
        assert_eq!(model.ended.len(), ENDED_ROWS);
        assert!(model.running.is_empty() && model.waiting.is_empty());
        assert!(model.labels.iter().all(|label| columns(label) <= LABEL_COLUMNS));
        assert!(model.lines(at(0), 10, Style::PLAIN)[0].contains("5000 done, 5000 of them not"));
    }

    #[test]
    fn a_resume_names_its_tasks_although_the_first_ones_had_ended_before() {
        let events = [requested(2, "the third"), requested(4, "the last"), started(4, "", None)];
        let model = model(&events);
        assert_eq!([0, 2, 3, 4].map(|task| model.label(task)), ["", "the third", "", "the last"]);
        let lines = model.lines(at(1), 9, Style::PLAIN);
        assert_eq!(lines.len(), 2, "those that wait or run: {lines:?}");
        assert!(lines[0].contains("the third") && lines[1].contains("the last"), "{lines:?}");
    }

    #[test]
    fn an_event_of_a_child_that_nobody_announced_changes_nothing() {
        let model = model(&[says(7, "x"), started(9, "late", None)]);
        assert_eq!(model.lines(at(1), 5, Style::PLAIN).len(), 0);
        assert_eq!(model.label(9), "");
    }
}

//! What people read besides the live view: plain lines, the table of results, the ending, lists. A
//! child's text is always shown escaped.

use std::fmt::Write as _;
use std::io::{self, Write};
use std::time::Duration;

use delegate_core::report::LeftRunning;
use delegate_core::store::RunRecord;
use delegate_protocol::{Cause, Event, Outcome, Status};

use crate::cli::render::live::{Model, STATE_COLUMNS};
use crate::cli::render::text::{
    ago, clip, columns, count, escape, first_line, from_seconds, head, label, last_line, pad, took,
};
use crate::cli::render::{Paint, Style};

/// Columns of a line at a pipe that holds a child's text; a terminal has its own width.
const PIPE_COLUMNS: usize = 200;

/// Bytes of a child's text that a line can show.
const SHOWN_BYTES: usize = 4 * 1024;

/// One line for a change, where the terminal cannot be redrawn; `None` for what is no change.
pub(crate) fn plain_line(event: &Event, model: &Model, style: Style) -> Option<String> {
    let name = model.who(event.child());
    let line = match event {
        Event::Start { pid: Some(pid), .. } => {
            format!("{} {name} running, process {pid}", style.running())
        }
        Event::Start { pid: None, .. } => format!("{} {name} running", style.running()),
        Event::Complete { end, .. } => {
            let sign = style.ended(end.status);
            let said = match (&end.error, &end.summary) {
                (Some(error), _) => format!(": {}", shown(error)),
                (None, Some(summary)) if !first_line(summary).is_empty() => {
                    format!(": {}", quoted(summary, style))
                }
                (None, _) => String::new(),
            };
            let time = took(from_seconds(end.duration_seconds));
            format!("{sign} {name} {} in {time}{said}", end.status.word())
        }
        Event::Warning { text, .. } => format!("{} {name}: {}", style.running(), shown(text)),
        Event::Turn { turn, end: Some(end), .. } => {
            let said = end.error.as_deref().unwrap_or(&end.preview);
            let time = took(from_seconds(end.duration_seconds));
            let (sign, word) = (style.ended(end.status), end.status.word());
            format!("{sign} {name} turn {turn} {word} in {time}: {}", shown(said))
        }
        Event::Turn { turn, end: None, .. } => {
            format!("{} {name} turn {turn}", style.running())
        }
        Event::SpawnRequested { .. }
        | Event::Waiting { .. }
        | Event::Thinking { .. }
        | Event::Tool { .. }
        | Event::Progress { .. }
        | Event::Text { .. } => return None,
    };
    Some(clip(&line, style.width.unwrap_or(PIPE_COLUMNS), style.ellipsis()).into_owned())
}

/// First line of a child's text, safe.
fn shown(text: &str) -> String {
    escape(head(first_line(head(text, SHOWN_BYTES)), SHOWN_BYTES)).into_owned()
}

/// The last line of an answer, marked where it is not the only one.
fn quoted(text: &str, style: Style) -> String {
    let (line, more) = last_line(text, SHOWN_BYTES);
    let before = if more { format!("{} ", style.ellipsis()) } else { String::new() };
    format!("\"{before}{}\"", escape(line))
}

/// The table of results. Rows are written one at a time, so that a long batch is never in memory.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Table {
    /// How it may look.
    pub(crate) style: Style,
    /// Columns of the task number.
    pub(crate) index: usize,
    /// Columns of the name; 0 where names are not known.
    pub(crate) label: usize,
    /// 0 for a task of the run, more for what it has delegated.
    pub(crate) depth: usize,
}

impl Table {
    /// One row.
    ///
    /// # Errors
    /// Those of the writer.
    pub(crate) fn row(self, to: &mut dyn Write, name: &str, outcome: &Outcome) -> io::Result<()> {
        let Self { style, index, label, depth } = self;
        let name = if label > 0 { format!("{}  ", pad(name, label)) } else { String::new() };
        let time = took(from_seconds(outcome.duration_seconds));
        let indent = "  ".repeat(depth);
        let head = format!("  {indent}{task:>index$} {name}", task = outcome.task_index);
        let state = pad(outcome.status.word(), STATE_COLUMNS);
        let used = columns(&head) + columns(&state);
        let room = style.width.unwrap_or(PIPE_COLUMNS).saturating_sub(used);
        let tail = format!("{time:>7}  {}", detail(outcome, style));
        let tail = clip(tail.trim_end(), room, style.ellipsis());
        writeln!(to, "{head}{}{tail}", style.paint(Paint::of(outcome.status), &state))
    }
}

/// What there is to say about an outcome: its answer, or what went wrong.
fn detail(outcome: &Outcome, style: Style) -> String {
    let summary = outcome.summary.as_deref().filter(|text| !first_line(text).is_empty());
    let mut text = match (&outcome.error, summary, outcome.status) {
        (Some(error), ..) => shown(error),
        (None, Some(summary), Status::Completed) => quoted(summary, style),
        (None, ..) => outcome.cause.as_ref().map_or(String::new(), cause),
    };
    if outcome.status == Status::Timeout
        && outcome.error.is_none()
        && let Some(limit) = outcome.timeout_seconds
    {
        text = format!("limit {}", took(from_seconds(limit)));
    }
    let mut add = |part: &str| {
        let gap = if text.is_empty() { "" } else { "; " };
        push(&mut text, format_args!("{gap}{part}"));
    };
    if outcome.status != Status::Completed && summary.is_some() {
        add("partial answer kept");
    }
    if let (Some(bytes), Some(path)) = (outcome.result_bytes, &outcome.result_path) {
        let path = path.to_string_lossy();
        add(&format!("{bytes} bytes in {}", escape(&path)));
    }
    if outcome.schema_valid == Some(false) {
        let first = outcome.schema_errors.first().map_or("", String::as_str);
        add(&format!("not by its output_schema: {}", shown(first)));
    }
    if let Some(note) = outcome.notes.first() {
        add(&shown(note));
    }
    text
}

fn push(text: &mut String, part: std::fmt::Arguments<'_>) {
    // Writing to a `String` cannot fail.
    let _: std::fmt::Result = text.write_fmt(part);
}

/// What happened to the process, in words.
fn cause(cause: &Cause) -> String {
    match cause {
        Cause::Exited { code: 0 } => String::new(),
        Cause::Exited { code } => format!("exit code {code}"),
        Cause::Signaled { signal, core_dumped: false } => format!("ended by signal {signal}"),
        Cause::Signaled { signal, core_dumped: true } => {
            format!("ended by signal {signal}, core dumped")
        }
        Cause::OutOfMemory => "out of memory".to_owned(),
        Cause::CpuTimeUsedUp => "processor time used up".to_owned(),
        Cause::StartFailed { phase, path, .. } => match path {
            Some(path) => format!("could not start: {} {}", shown(phase), shown(path)),
            None => format!("could not start: {}", shown(phase)),
        },
        Cause::StartTimeout => "said nothing after its start".to_owned(),
        Cause::ProtocolError { detail } => format!("broke the protocol: {}", shown(detail)),
        Cause::Abandoned => "its thread did not return and may still run".to_owned(),
        Cause::Lost => "nobody saw its end".to_owned(),
    }
}

/// What is left of a batch after its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Leftovers<'a> {
    /// The kernel says: nothing.
    None,
    /// These, and why.
    Some(&'a [LeftRunning]),
    /// Nobody could ask; with the reason.
    Unverified(&'a str),
}

impl<'a> Leftovers<'a> {
    /// From what a report says.
    pub(crate) fn of(left: &'a [LeftRunning], verified: bool, warnings: &'a [String]) -> Self {
        match (left, verified) {
            ([], true) => Self::None,
            ([], false) => Self::Unverified(
                warnings.first().map_or("the supervisor was gone before the end", String::as_str),
            ),
            (left, _) => Self::Some(left),
        }
    }

    fn words(self) -> String {
        match self {
            Self::None => "0 processes left".to_owned(),
            Self::Unverified(why) => format!("not verified: {}", shown(why)),
            Self::Some(left) => {
                let each: Vec<_> = left.iter().map(one_left).collect();
                format!("{} left: {}", count(left.len(), "process", "processes"), each.join(", "))
            }
        }
    }
}

fn one_left(left: &LeftRunning) -> String {
    let pid = left.pid.map(|pid| format!("{pid} ")).unwrap_or_default();
    format!("{pid}{} of task {} ({})", shown(&left.name), left.task_index, shown(&left.why))
}

/// The last line of every ending: `2 completed, 1 timeout in 64.2s · 0 processes left · delegate …`.
pub(crate) fn ending(
    statuses: &[Status],
    total: Duration,
    left: Leftovers<'_>,
    hint: &str,
    style: Style,
) -> String {
    let paint = match left {
        Leftovers::None => Paint::Good,
        Leftovers::Some(_) | Leftovers::Unverified(_) => Paint::Bad,
    };
    let left = style.paint(paint, &left.words());
    let dot = style.dot();
    format!("{} in {}{dot}{left}{dot}{hint}", counts(statuses), took(total))
}

/// `2 completed, 1 timeout`, in the order of the words' definition.
fn counts(statuses: &[Status]) -> String {
    let mut sorted = statuses.to_vec();
    sorted.sort_unstable();
    let groups = sorted.chunk_by(|a, b| a == b);
    let parts: Vec<_> =
        groups.map(|group| format!("{} {}", group.len(), group[0].word())).collect();
    if parts.is_empty() { "no task".to_owned() } else { parts.join(", ") }
}

/// One run in the list of runs. `short` is its shown id, `now` in seconds since the epoch.
pub(crate) fn run_line(run: &RunRecord, short: &str, now: f64, style: Style) -> String {
    let time = run.duration_seconds.map_or(String::new(), |s| took(from_seconds(s)));
    let counts: Vec<_> = run.counts.iter().map(|(word, n)| format!("{n} {word}")).collect();
    let counts =
        if counts.is_empty() { String::new() } else { format!(" ({})", counts.join(", ")) };
    let mut marks = if run.background { " background".to_owned() } else { String::new() };
    if run.resumed > 0 {
        push(&mut marks, format_args!(" resumed {}x", run.resumed));
    }
    if let Some(of) = run.rerun_of {
        push(&mut marks, format_args!(" rerun of {}", &of.to_string()[..6]));
    }
    let line = format!(
        "{}  {}  {}  {time:>7}  {}  {}{counts}{marks}",
        pad(short, 6),
        pad(&ago(from_seconds(now - run.started_at)), 8),
        pad(&run.status, STATE_COLUMNS),
        label(&run.title, 40),
        count(usize::try_from(run.tasks).unwrap_or(usize::MAX), "task", "tasks"),
    );
    clip(&line, style.width.unwrap_or(PIPE_COLUMNS), style.ellipsis()).into_owned()
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use delegate_protocol::event::Complete;
    use delegate_protocol::{ExitReason, Isolation, RunId, SubagentId, Tokens};
    use std::path::PathBuf;

    pub(crate) fn requested(task: u32, goal: &str) -> Event {
        let child = SubagentId::new(task, 1);
        Event::SpawnRequested { child, goal: goal.into(), identity: None }
    }

    pub(crate) fn started(task: u32, goal: &str, pid: Option<u32>) -> Event {
        Event::Start { child: SubagentId::new(task, 1), goal: goal.into(), pid }
    }

    pub(crate) fn complete(task: u32, status: Status, seconds: f64, text: &str) -> Event {
        let said = Some(text.to_owned());
        let (summary, error) =
            if status == Status::Completed { (said, None) } else { (None, said) };
        let end = Complete {
            status,
            exit_reason: ExitReason::Completed,
            preview: String::new(),
            duration_seconds: seconds,
            summary,
            error,
            api_calls: 0,
            tokens: Tokens::default(),
            reasoning_tokens: 0,
            cost_usd: None,
            files_read: Vec::new(),
            files_written: Vec::new(),
            output_tail: Vec::new(),
        };
        Event::Complete { child: SubagentId::new(task, 1), end }
    }

    pub(crate) fn outcome(task_index: u32, status: Status) -> Outcome {
        Outcome {
            task_index,
            status,
            summary: None,
            error: None,
            exit_reason: ExitReason::Completed,
            truncated: false,
            api_calls: 0,
            duration_seconds: 4.12,
            model: None,
            tokens: Tokens::default(),
            tool_trace: Vec::new(),
            cost_usd: None,
            cost_status: "unknown".to_owned(),
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
            pid: Some(41207),
            isolation: Isolation::Process,
            launcher: Some("exec".into()),
            logs: None,
            answer_is_json: false,
            result_path: None,
            result_sha256: None,
            result_bytes: None,
        }
    }

    fn row(style: Style, name: &str, outcome: &Outcome) -> String {
        let mut text = Vec::new();
        let label = columns(name);
        Table { style, index: 1, label, depth: 0 }.row(&mut text, name, outcome).unwrap();
        String::from_utf8(text).unwrap().trim_end_matches('\n').to_owned()
    }

    #[test]
    fn plain_lines_are_one_per_change() {
        let mut model = Model::new(1);
        let events = [
            requested(0, "count"),
            started(0, "count", Some(7)),
            complete(0, Status::Completed, 0.32, "line one\nline two\x1b[2J"),
            requested(1, "other"),
            started(1, "other", None),
            complete(1, Status::Timeout, 60.0, "limit 60 s\x07"),
        ];
        let mut lines = Vec::new();
        for event in &events {
            model.apply(event, Duration::ZERO);
            lines.extend(plain_line(event, &model, Style::PLAIN));
        }
        assert_eq!(
            lines,
            [
                "● 0 count running, process 7",
                "✔ 0 count completed in 0.3s: \"… line two\\x1b[2J\"",
                "● 1 other running",
                "✖ 1 other timeout in 60.0s: limit 60 s\\x07",
            ]
        );
    }

    #[test]
    fn a_row_says_how_it_ended() {
        let mut done = outcome(0, Status::Completed);
        done.summary = Some("212 tests\nin 31 files".into());
        assert_eq!(
            row(Style::PLAIN, "count-tests", &done),
            "  0 count-tests  completed     4.1s  \"… in 31 files\""
        );
        let mut late = outcome(2, Status::Timeout);
        late.timeout_seconds = Some(60.0);
        late.summary = Some("half".into());
        assert_eq!(
            row(Style::PLAIN, "slow", &late),
            "  2 slow  timeout       4.1s  limit 60.0s; partial answer kept"
        );
        let mut crashed = outcome(1, Status::Error);
        crashed.cause = Some(Cause::Signaled { signal: 11, core_dumped: false });
        crashed.notes = vec!["a leftover was killed".into()];
        assert_eq!(
            row(Style::PLAIN, "", &crashed),
            "  1 error         4.1s  ended by signal 11; a leftover was killed"
        );
        let mut large = outcome(3, Status::Completed);
        large.result_bytes = Some(1 << 29);
        large.result_path = Some(PathBuf::from("/s/result"));
        assert!(row(Style::PLAIN, "x", &large).ends_with("536870912 bytes in /s/result"));
    }

    #[test]
    fn rows_fit_and_are_safe() {
        let mut done = outcome(0, Status::Completed);
        done.summary = Some("漢字\x1b]0;x\x07".repeat(200));
        for width in 30..120 {
            let line = row(Style::PLAIN.wide(width), "名前", &done);
            assert!(columns(&line) <= width, "{width}: {line}");
            assert!(!line.chars().any(char::is_control));
        }
        assert!(columns(&row(Style::PLAIN, "名前", &done)) <= PIPE_COLUMNS);
    }

    #[test]
    fn every_ending_says_what_is_left() {
        let statuses = [Status::Completed, Status::Timeout, Status::Completed];
        let end = |left, style| {
            ending(&statuses, Duration::from_millis(64_200), left, "delegate logs k7f3 2", style)
        };
        assert_eq!(
            end(Leftovers::None, Style::PLAIN),
            "2 completed, 1 timeout in 64.2s · 0 processes left · delegate logs k7f3 2"
        );
        let left = [LeftRunning {
            task_index: 1,
            pid: Some(41),
            name: "rg\x1b".into(),
            why: "it waits in the kernel".into(),
        }];
        assert_eq!(
            end(Leftovers::of(&left, true, &[]), Style::ASCII),
            "2 completed, 1 timeout in 64.2s - 1 process left: 41 rg\\x1b of task 1 (it waits in \
             the kernel) - delegate logs k7f3 2"
        );
        let why = ["the supervisor was killed".to_owned()];
        assert!(
            end(Leftovers::of(&[], false, &why), Style::PLAIN)
                .contains(" · not verified: the supervisor was killed · ")
        );
        assert_eq!(Leftovers::of(&[], true, &why), Leftovers::None);
    }

    #[test]
    fn a_run_in_the_list() {
        let run = RunRecord {
            id: RunId::from_u128(1),
            started_at: 1000.0,
            duration_seconds: Some(64.2),
            status: "failed".into(),
            tasks: 3,
            counts: vec![("completed".into(), 2), ("timeout".into(), 1)],
            title: "tasks.yaml\x1b".into(),
            isolation: "process".into(),
            process: None,
            above: None,
            background: false,
            resumed: 0,
            rerun_of: None,
        };
        assert_eq!(
            run_line(&run, "k7f3", 1180.0, Style::PLAIN),
            "k7f3    3m ago    failed         64.2s  tasks.yaml\\x1b  3 tasks (2 completed, 1 timeout)"
        );
    }
}

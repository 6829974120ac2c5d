//! Children of children in the live view and the plain lines: a pure model beside [`super::live`], which shows
//! them below their parents. Those that have ended leave it: their parent's outcome tells of them.

use std::collections::BTreeMap;
use std::time::Duration;

use delegate_protocol::{Event, SubagentId};

use crate::cli::render::live::Note;
use crate::cli::render::text::{self, clip, clock, escape};
use crate::cli::render::{Paint, Style};

/// Columns of a name.
const LABEL_COLUMNS: usize = 28;

/// Steps of a path that a name shows.
const STEPS: usize = 8;

#[derive(Debug)]
struct Row {
    parent: Option<SubagentId>,
    depth: u32,
    label: Box<str>,
    since: Option<Duration>,
    note: Note,
    /// It is over, and said by one more line at most.
    over: bool,
}

/// The children of children that run or wait. Few: those that run are bounded by the slots of the tree, those
/// that wait are told of as the consumer reads.
#[derive(Debug, Default)]
pub(crate) struct Below {
    rows: BTreeMap<SubagentId, Row>,
}

impl Below {
    /// Takes an event in; `false` when it is about a task of the run itself.
    pub(crate) fn apply(&mut self, event: &Event, now: Duration) -> bool {
        self.rows.retain(|_, row| !row.over);
        let child = event.child();
        if let Event::SpawnRequested { goal, identity: Some(identity), .. } = event {
            let parent = identity.parent_id.as_ref().and_then(|id| id.parse().ok());
            let row = Row {
                parent,
                depth: identity.depth,
                label: text::label(goal, LABEL_COLUMNS).into(),
                since: None,
                note: Note::default(),
                over: false,
            };
            self.rows.insert(child, row);
            return true;
        }
        let Some(row) = self.rows.get_mut(&child) else { return false };
        match event {
            Event::Start { .. } => row.since = Some(now),
            Event::Complete { .. } => row.over = true,
            Event::SpawnRequested { .. }
            | Event::Waiting { .. }
            | Event::Thinking { .. }
            | Event::Tool { .. }
            | Event::Progress { .. }
            | Event::Text { .. }
            | Event::Warning { .. }
            | Event::Turn { .. } => row.note.event(event),
        }
        true
    }

    /// What a child of a child is called: the names on the way to it, from the top.
    pub(crate) fn path(&self, child: SubagentId) -> Option<String> {
        let mut names = Vec::new();
        let mut next = Some(child);
        while let Some(row) = next.and_then(|id| self.rows.get(&id)).filter(|_| names.len() < STEPS)
        {
            names.push(&*row.label);
            next = row.parent;
        }
        names.reverse();
        (!names.is_empty()).then(|| names.join(" > "))
    }

    /// The child of the root above it, as far as it is known.
    pub(crate) fn top(&self, child: SubagentId) -> Option<SubagentId> {
        let mut at = self.rows.get(&child)?.parent?;
        for _ in 0..STEPS {
            match self.rows.get(&at) {
                Some(row) => at = row.parent?,
                None => break,
            }
        }
        Some(at)
    }

    /// The lines of everything below a child, parents before their children.
    pub(crate) fn lines(&self, above: SubagentId, now: Duration, style: Style) -> Vec<String> {
        let mut lines = Vec::new();
        let mut left: Vec<SubagentId> = self.of(above).collect();
        while let Some(child) = left.pop() {
            if let Some(row) = self.rows.get(&child) {
                lines.push(line(row, now, style));
                // Bounded: each has one parent, and the rows are all there are.
                left.extend(self.of(child).filter(|below| *below != child).take(self.rows.len()));
            }
            if lines.len() > self.rows.len() {
                break;
            }
        }
        lines
    }

    /// Those below a child, the first last.
    fn of(&self, above: SubagentId) -> impl Iterator<Item = SubagentId> + '_ {
        let below = self.rows.iter().rev().filter(move |(_, row)| row.parent == Some(above));
        below.filter(|(_, row)| !row.over).map(|(child, _)| *child)
    }
}

fn line(row: &Row, now: Duration, style: Style) -> String {
    let depth = usize::try_from(row.depth).unwrap_or(STEPS).min(STEPS);
    let (sign, paint, state) = match row.since {
        Some(_) => (style.running(), Paint::Busy, "running"),
        None => (style.waiting(), Paint::Faint, "waiting"),
    };
    let time = row.since.map(|since| clock(now.saturating_sub(since))).unwrap_or_default();
    let text = format!("{}  {state} {time}  {}", row.label, escape(row.note.line()));
    let indent = "  ".repeat(depth + 1);
    let room = style.width.unwrap_or(usize::MAX).saturating_sub(indent.len() + 2);
    format!(
        "{indent}{} {}",
        style.paint(paint, sign),
        clip(text.trim_end(), room, style.ellipsis())
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use delegate_protocol::envelope::Identity;
    use delegate_protocol::{ChildEvent, Status};

    use crate::cli::render::human::tests::{complete, started};

    fn asked(id: SubagentId, parent: SubagentId, depth: u32, goal: &str) -> Event {
        let identity = Identity {
            task_index: id.task_index(),
            task_count: 1,
            goal: goal.to_owned(),
            subagent_id: id.to_string(),
            parent_id: Some(parent.to_string()),
            depth,
            model: None,
            toolsets: None,
            child_session_id: String::new(),
            delegation_id: None,
            run_id: None,
        };
        Event::SpawnRequested {
            child: id,
            goal: goal.to_owned(),
            identity: Some(Box::new(identity)),
        }
    }

    #[test]
    fn grandchildren_stand_below_their_parents_until_they_end() {
        let [chief, mid, leaf] = [1, 2, 3].map(|nonce| SubagentId::new(0, nonce));
        let mut below = Below::default();
        let at = Duration::from_secs;
        assert!(!below.apply(&started(0, "chief", None), at(0)));
        assert!(below.apply(&asked(mid, chief, 2, "mid"), at(0)));
        assert!(below.apply(&Event::Start { child: mid, goal: "mid".into(), pid: None }, at(1)));
        assert!(below.apply(&asked(leaf, mid, 3, "leaf"), at(2)));
        let says = ChildEvent::Text { text: "hello".into() }.of(mid).unwrap();
        assert!(below.apply(&says, at(2)));
        assert_eq!(below.path(leaf).as_deref(), Some("mid > leaf"));
        assert_eq!(below.top(leaf), Some(chief));
        let lines = below.lines(chief, at(4), Style::PLAIN);
        assert_eq!(lines.len(), 2);
        assert!(
            lines[0].starts_with("      ") && lines[0].contains("mid  running 0:03  hello"),
            "{lines:?}"
        );
        assert!(lines[1].contains("leaf  waiting"), "{lines:?}");
        let Event::Complete { end, .. } = complete(0, Status::Completed, 1.0, "done") else {
            panic!()
        };
        assert!(below.apply(&Event::Complete { child: mid, end }, at(5)));
        assert_eq!(below.path(mid).as_deref(), Some("mid"), "its last line still has its name");
        assert!(!below.apply(&started(0, "chief", None), at(6)));
        assert_eq!(below.path(mid), None);
    }
}

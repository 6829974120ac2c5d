//! What [`super`] prints, and where: answers to stdout, the rest to stderr.

use delegate_core::session::{SessionEnd, SessionHandle, TurnOutcome, list};
use delegate_protocol::{Event, Status};
use serde::Serialize;
use serde_json::{Map, Value};

use super::SCHEMA;
use crate::cli::Context;
use crate::cli::args::OutputArgs;
use crate::cli::printer::Printer;
use crate::cli::render::text::{escape, escape_lines, from_seconds, took};
use crate::cli::render::{Style, json};

/// Reasons of what could be no prompt that are kept for the one object.
const MOST: usize = 1000;

/// The one object of `--json`, and of `delegate sessions ID --json`.
#[derive(Serialize)]
pub(crate) struct Whole {
    pub(crate) schema: &'static str,
    /// Its `turns` are a number in lists, which is `begun` here.
    #[serde(flatten)]
    session: Map<String, Value>,
    pub(crate) turns: Vec<list::TurnRecord>,
    /// What could be no prompt, and why.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) not_asked: Vec<String>,
}

impl Whole {
    pub(crate) fn new(
        session: &list::SessionRecord,
        turns: Vec<list::TurnRecord>,
        not_asked: Vec<String>,
    ) -> Self {
        let session = match serde_json::to_value(session) {
            Ok(Value::Object(mut fields)) => {
                let begun = fields.remove("turns").unwrap_or_default();
                fields.insert("begun".to_owned(), begun);
                fields
            }
            // It is a structure of plain fields.
            Ok(_) | Err(_) => Map::new(),
        };
        Self { schema: SCHEMA, session, turns, not_asked }
    }
}

/// A line of `--jsonl` that is no event.
#[derive(Serialize)]
#[serde(rename_all = "snake_case")]
enum Line {
    Outcome(Box<TurnOutcome>),
    /// What could be no prompt, and why.
    NotAsked(String),
    End(SessionEnd),
}

/// What is printed, and where.
pub(super) struct Show {
    pub(super) output: OutputArgs,
    pub(super) style: Style,
    pub(super) out: Printer,
    pub(super) err: Printer,
}

impl Show {
    pub(super) async fn begin(&self, session: &SessionHandle, context: &Context) {
        let id = session.id();
        if self.output.jsonl {
            let head = serde_json::json!({ "schema": SCHEMA, "session_id": id.to_string() });
            return self.line(head).await;
        }
        if !self.output.quiet {
            let all = list::sessions(&context.state_dir).unwrap_or_default();
            self.tell(format!("session {}", list::short_id(&all, id))).await;
        }
    }

    pub(super) async fn event(&self, event: Event) {
        if self.output.jsonl {
            self.line(event).await;
        }
    }

    pub(super) async fn turn(&self, outcome: TurnOutcome) {
        if self.output.jsonl {
            return self.line(Line::Outcome(Box::new(outcome))).await;
        }
        if !self.output.quiet || outcome.status != Status::Completed {
            let (sign, word) = (self.style.ended(outcome.status), outcome.status.word());
            let time = took(from_seconds(outcome.duration_seconds));
            let error = outcome.error.as_deref().unwrap_or_default();
            let said =
                if error.is_empty() { String::new() } else { format!(": {}", escape(error)) };
            self.tell(format!("{sign} turn {} {word} in {time}{said}", outcome.turn)).await;
        }
        if !self.output.json && !outcome.answer.is_empty() {
            self.out.ready().await;
            self.out.line(escape_lines(&outcome.answer).into_owned());
        }
    }

    /// Something that could be no prompt.
    pub(super) async fn no_prompt(&self, why: String, all: &mut Vec<String>) {
        self.tell(format!("error: {why}")).await;
        if self.output.jsonl {
            self.line(Line::NotAsked(why.clone())).await;
        }
        // They are counted by who reads them; there may be any number.
        if all.len() < MOST {
            all.push(why);
        }
    }

    /// The ends of prompts that were never begun, for programs; people are told how many there are.
    pub(super) async fn refused(&self, turns: impl Iterator<Item = &list::TurnRecord>) {
        if !self.output.jsonl {
            return;
        }
        for outcome in turns.filter_map(|turn| turn.outcome.clone()) {
            self.line(Line::Outcome(Box::new(outcome))).await;
        }
    }

    pub(super) async fn end(&self, end: &SessionEnd) {
        if self.output.jsonl {
            return self.line(Line::End(end.clone())).await;
        }
        let SessionEnd { why, turns, completed, restarts, verified_empty, .. } = end;
        let left = if *verified_empty {
            "0 processes left"
        } else {
            "not verified: processes may be left"
        };
        let restarts = match restarts {
            0 => String::new(),
            1 => format!("{}1 worker replaced", self.style.dot()),
            more => format!("{}{more} workers replaced", self.style.dot()),
        };
        let plural = if *turns == 1 { "turn" } else { "turns" };
        let dot = self.style.dot();
        let word = why.word().replace('_', " ");
        self.tell(format!(
            "{turns} {plural}, {completed} completed{restarts}{dot}{word}{dot}{left}"
        ))
        .await;
    }

    async fn line(&self, value: impl Serialize + Send + 'static) {
        self.out.ready().await;
        self.out.print(move |to| json::line(to, &value));
    }

    pub(super) async fn tell(&self, line: String) {
        self.err.ready().await;
        self.err.line(line);
    }
}

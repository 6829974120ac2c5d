//! `delegate session`: one worker that answers several prompts, from a terminal, a script or its options. Progress goes
//! to stderr, answers to stdout. [`super::sessions`] shows what is stored of it.

use std::io::{self, BufRead};
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueHint};
use delegate_core::config::{Diagnostic, duration};
use delegate_core::plan::Task;
use delegate_core::session::{
    PromptError, SessionControl, SessionEnd, SessionHandle, TurnOutcome, Why, list,
};
use delegate_protocol::{Event, Status, Value};
use serde::Serialize;
use tokio::sync::mpsc;

use crate::cli::args::{IsolationArg, OutputArgs, RunArgs, parse_params, parse_setting};
use crate::cli::commands::run;
use crate::cli::exit::{Ending, Exit};
use crate::cli::fault::Fault;
use crate::cli::printer::Printer;
use crate::cli::render::Style;
use crate::cli::render::json;
use crate::cli::render::text::{escape, escape_lines, from_seconds, took};
use crate::cli::signals::{Heard, Signals};
use crate::cli::stage::{Stage, command_loop, no_thread};
use crate::cli::{Context, warn};

/// `schema` of the first line, and of the one object.
pub(crate) const SCHEMA: &str = "delegate.session/1";

/// `delegate session`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  delegate session -- ./assistant --serve                prompts are lines of standard input
  delegate session --prompt 'first' --prompt 'second' -- ./assistant
  delegate session --agent chat --params '{\"model\": \"small\"}' --timeout 5m
  delegate session --jsonl -- ./assistant < prompts.txt  each event and outcome, a JSON object a line
  delegate sessions latest                               what came of each turn

PROGRAM is started once. It reads a JSON object a line: {\"turn\": 1, \"prompt\": \"…\"}, and answers each with
{\"answer\": \"…\"} (see docs/sessions.md). Ctrl-C stops the turn that runs; between two turns, or twice, it ends the
session. A worker that is lost is replaced, and reads what was before.")]
pub(crate) struct SessionArgs {
    /// What is asked, in order (repeatable) [default: each line of standard input]
    #[arg(short, long = "prompt", value_name = "TEXT")]
    prompts: Vec<String>,
    /// The agent
    #[arg(long, value_name = "NAME", default_value = "command")]
    agent: String,
    /// Parameters of the agent, as JSON
    #[arg(long, value_name = "JSON", conflicts_with = "program", value_parser = parse_params)]
    params: Option<Value>,
    /// What the session is for: lists show it, and the agent gets it
    #[arg(long, value_name = "TEXT", default_value = "a session")]
    goal: String,
    /// Read this configuration file as well, before all others
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    config: Option<PathBuf>,
    /// Where it runs [default: as configured, else process]
    #[arg(long, value_enum)]
    isolation: Option<IsolationArg>,
    /// Limit of each turn, such as 90s, 5m or 1h30m
    #[arg(long, value_name = "DURATION")]
    timeout: Option<String>,
    /// Without a turn for so long the session ends
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    idle: Option<Duration>,
    /// Turns that may begin
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    max_turns: Option<u64>,
    /// Lost workers that are replaced within 10 minutes; one more, and the session gives up
    #[arg(long, value_name = "N", default_value_t = 3)]
    max_restarts: u32,
    /// Set a key of the configuration, such as interrupt_grace=5s (repeatable)
    #[arg(long = "set", value_name = "KEY=VALUE", value_parser = parse_setting)]
    settings: Vec<(String, String)>,
    #[command(flatten)]
    output: OutputArgs,
    /// A program that takes prompts, and its arguments
    #[arg(value_name = "PROGRAM", last = true)]
    program: Vec<String>,
}

fn parse_duration(text: &str) -> Result<Duration, String> {
    let fits = |time: &Duration| (Duration::from_secs(1)..=duration::LONGEST).contains(time);
    duration::parse(text)
        .filter(fits)
        .ok_or_else(|| format!("write it as {}, at least 1s", duration::EXAMPLES))
}

/// The window of `--max-restarts`.
const WINDOW: Duration = Duration::from_secs(600);

/// Opens a session, asks, and prints what is answered.
///
/// # Errors
/// Nothing was started, or the answers could not be written.
pub(crate) fn run(args: &SessionArgs, context: &Context) -> Result<Exit, Fault> {
    let task = task(args)?;
    let opened = run::open(&as_run(args), context)?;
    let mut new = opened.delegator.session(task).max_restarts(args.max_restarts, WINDOW);
    if let Some(idle) = args.idle {
        new = new.idle_timeout(idle);
    }
    if let Some(turns) = args.max_turns {
        new = new.max_turns(turns);
    }
    command_loop()?.block_on(async {
        let Stage { mut signals, out, err } = Stage::open()?;
        let prompts = prompts(args.prompts.clone()).map_err(no_thread)?;
        let session = new.start().await?; // the last step that may fail
        let show = Show { output: args.output, style: context.err, out, err };
        show.begin(&session, context).await;
        let id = session.id();
        let Talked { end, all_completed, by_signal } =
            talk(session, prompts, !args.prompts.is_empty(), &mut signals, &show).await;
        end.warnings.iter().for_each(|warning| warn(warning));
        show.end(&end).await;
        if args.output.json {
            let record = list::find(&context.state_dir, &id.to_string())?;
            let turns = list::turns(&context.state_dir, &record)?;
            let whole = Whole { schema: SCHEMA, session: record, turns };
            show.out.ready().await;
            show.out.print(move |to| json::line(to, &whole));
        }
        let Show { out, err, .. } = show;
        drop(err.finish().await);
        crate::cli::printer::forgive_closed_pipe(out.finish().await).map_err(Fault::Output)?;
        let gave_up = matches!(end.why, Why::GaveUp | Why::TakesNoTurns);
        let ending = Ending {
            by_signal,
            verified: end.verified_empty,
            durable: end.durable,
            all_completed: all_completed && !gave_up,
        };
        Ok(ending.exit())
    })
}

fn task(args: &SessionArgs) -> Result<Task, Diagnostic> {
    let task = Task::new(&args.agent, &args.goal);
    if args.program.is_empty() {
        if args.agent == "command" && args.params.is_none() {
            return Err(Diagnostic {
                code: "usage",
                message: "a session needs somebody who answers".to_owned(),
                hint: Some("delegate session -- PROGRAM, or --agent NAME".to_owned()),
                ..Diagnostic::default()
            });
        }
        return Ok(task.params(args.params.clone().unwrap_or_default()));
    }
    let argv = args.program.iter().cloned().map(Value::Text).collect();
    Ok(task.params(Value::Map([("argv".to_owned(), Value::List(argv))].into())))
}

/// What a session shares with a run.
fn as_run(args: &SessionArgs) -> RunArgs {
    RunArgs {
        input: Vec::new(),
        agent: None,
        params: None,
        config: args.config.clone(),
        isolation: args.isolation,
        containment: None,
        jobs: None,
        timeout: args.timeout.clone(),
        settings: args.settings.clone(),
        dry_run: false,
        explain: false,
        background: false,
        name: None,
        output: args.output,
    }
}

/// Those of the options; without any each line of standard input that is not blank, read by a thread. What cannot be a
/// prompt comes as the reason why.
fn prompts(given: Vec<String>) -> io::Result<mpsc::Receiver<Result<String, String>>> {
    let (send, prompts) = mpsc::channel(1);
    let feed = move || {
        let all: Box<dyn Iterator<Item = Result<String, String>>> = if given.is_empty() {
            let blank =
                |line: &Result<String, String>| line.as_ref().is_ok_and(|it| it.trim().is_empty());
            Box::new(lines(io::stdin().lock()).filter(move |line| !blank(line)))
        } else {
            Box::new(given.into_iter().map(Ok))
        };
        for prompt in all {
            if send.blocking_send(prompt).is_err() {
                return;
            }
        }
    };
    std::thread::Builder::new().name("prompts".to_owned()).spawn(feed)?;
    Ok(prompts)
}

/// Its lines, each by itself: one that is no text costs no other one.
fn lines(mut from: impl BufRead) -> impl Iterator<Item = Result<String, String>> {
    let (mut number, mut over) = (0_u64, false);
    std::iter::from_fn(move || {
        if over {
            return None;
        }
        let mut line = Vec::new();
        number += 1;
        match from.read_until(b'\n', &mut line) {
            Ok(0) => None,
            Ok(_) => {
                let text = String::from_utf8(line);
                let no_text =
                    |_| format!("line {number} of standard input is not UTF-8; it was not asked");
                Some(text.map_err(no_text))
            }
            Err(error) => {
                over = true;
                Some(Err(format!("standard input cannot be read any further: {error}")))
            }
        }
    })
}

struct Talked {
    end: SessionEnd,
    all_completed: bool,
    by_signal: Option<Exit>,
}

/// Asks until there is nothing more to ask, somebody wants to leave, or the session is over by itself.
async fn talk(
    mut session: SessionHandle,
    mut prompts: mpsc::Receiver<Result<String, String>>,
    of_options: bool,
    signals: &mut Signals,
    show: &Show,
) -> Talked {
    let (mut all_completed, mut by_signal, mut not_asked) = (true, None, 0);
    let control = session.control();
    while by_signal.is_none() {
        let prompt = tokio::select! {
            prompt = prompts.recv() => match prompt {
                Some(Ok(prompt)) => prompt,
                Some(Err(why)) => {
                    all_completed = false;
                    show.tell(format!("error: {why}")).await;
                    continue;
                }
                None => break,
            },
            heard = signals.next() => {
                by_signal = leave(heard);
                continue;
            }
            () = control.over() => break,
        };
        let mut turn = match session.prompt(prompt) {
            Ok(turn) => turn,
            Err(PromptError::Over) => {
                not_asked = 1;
                break;
            }
            Err(error) => {
                all_completed = false;
                show.tell(format!("error: {error}")).await;
                continue;
            }
        };
        let mut stopped = false;
        loop {
            tokio::select! {
                event = turn.next() => match event {
                    Some(event) => show.event(event).await,
                    None => break,
                },
                heard = signals.next() => {
                    if heard == Heard::Interrupt && !stopped {
                        stopped = true;
                        turn.stop();
                    } else if let Some(exit) = leave(heard) {
                        end_at_once(&control, by_signal.is_some());
                        by_signal = by_signal.or(Some(exit));
                    }
                }
            }
        }
        let outcome = turn.finish().await;
        all_completed &= outcome.status == Status::Completed;
        show.turn(outcome).await;
    }
    let end =
        async { if by_signal.is_some() { session.stop().await } else { session.close().await } };
    tokio::pin!(end);
    let end = loop {
        tokio::select! {
            end = &mut end => break end,
            heard = signals.next() => if leave(heard).is_some() { end_at_once(&control, true) },
        }
    };
    if by_signal.is_none() {
        not_asked += rest(&mut prompts, of_options).await;
        if not_asked > 0 {
            all_completed = false;
            let prompts = if not_asked == 1 { "prompt was" } else { "prompts were" };
            let reason = escape(&end.reason);
            show.tell(format!("error: {not_asked} {prompts} not asked: {reason}")).await;
        }
    }
    Talked { end, all_completed, by_signal }
}

/// Prompts that nobody will ask. Those of options all come; a line of standard input only if it was read already.
async fn rest(prompts: &mut mpsc::Receiver<Result<String, String>>, of_options: bool) -> usize {
    let mut rest = 0;
    if of_options {
        while prompts.recv().await.is_some() {
            rest += 1;
        }
    } else {
        while prompts.try_recv().is_ok() {
            rest += 1;
        }
    }
    rest
}

/// Asked once it is interrupted, asked again it is killed.
fn end_at_once(control: &SessionControl, again: bool) {
    if again { control.kill() } else { control.stop() }
}

/// How the command ends because of a signal; Ctrl-Z is no end, and stops nothing here.
const fn leave(heard: Heard) -> Option<Exit> {
    match heard {
        Heard::Interrupt => Some(Exit::Interrupted),
        Heard::Terminate => Some(Exit::Terminated),
        Heard::HangUp => Some(Exit::HungUp),
        Heard::Suspend => None,
    }
}

/// The one object of `--json`, and of `delegate sessions ID --json`.
#[derive(Serialize)]
pub(crate) struct Whole {
    pub(crate) schema: &'static str,
    #[serde(flatten)]
    pub(crate) session: list::SessionRecord,
    pub(crate) turns: Vec<list::TurnRecord>,
}

/// A line of `--jsonl` that is no event.
#[derive(Serialize)]
#[serde(rename_all = "snake_case")]
enum Line {
    Outcome(Box<TurnOutcome>),
    End(SessionEnd),
}

/// What is printed, and where.
struct Show {
    output: OutputArgs,
    style: Style,
    out: Printer,
    err: Printer,
}

impl Show {
    async fn begin(&self, session: &SessionHandle, context: &Context) {
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

    async fn event(&self, event: Event) {
        if self.output.jsonl {
            self.line(event).await;
        }
    }

    async fn turn(&self, outcome: TurnOutcome) {
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

    async fn end(&self, end: &SessionEnd) {
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

    async fn tell(&self, line: String) {
        self.err.ready().await;
        self.err.line(line);
    }
}

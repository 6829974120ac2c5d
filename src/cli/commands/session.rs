//! `delegate session`: one worker that answers several prompts, from a terminal, a script or its options. Progress goes
//! to stderr, answers to stdout. [`super::sessions`] shows what is stored of it.

mod input;
mod show;

use std::io;
use std::path::PathBuf;
use std::pin::pin;
use std::time::Duration;

use clap::{Args, ValueHint};
use delegate_core::config::{Diagnostic, duration};
use delegate_core::plan::Task;
use delegate_core::session::{PromptError, SessionControl, SessionEnd, SessionHandle, Why};
use delegate_protocol::{Status, Value};
use tokio::sync::mpsc;

use crate::cli::args::{IsolationArg, OutputArgs, RunArgs, parse_params, parse_setting};
use crate::cli::commands::run;
use crate::cli::exit::{Ending, Exit};
use crate::cli::fault::Fault;
use crate::cli::printer::{forgive_closed_pipe, reader_gone};
use crate::cli::render::json;
use crate::cli::render::text::escape;
use crate::cli::signals::{Heard, Signals};
use crate::cli::stage::{Stage, command_loop, no_thread};
use crate::cli::{Context, warn};

use show::Show;
pub(crate) use show::Whole;

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
        let prompts = input::prompts(args.prompts.clone()).map_err(no_thread)?;
        let session = new.start().await?; // the last step that may fail
        let show = Show { output: args.output, style: context.err, out, err };
        show.begin(&session, context).await;
        let control = session.control();
        let Talked { end, all_completed, by_signal, no_prompts, shown } =
            talk(session, prompts, !args.prompts.is_empty(), &mut signals, &show).await;
        end.warnings.iter().for_each(|warning| warn(warning));
        let record = control.record();
        let turns = record.iter().flat_map(|(_, turns)| turns);
        show.refused(turns.filter(|turn| turn.number > shown)).await;
        show.end(&end).await;
        if let Some((session, turns)) = record.filter(|_| args.output.json) {
            let whole = Whole::new(&session, turns, no_prompts);
            show.out.ready().await;
            show.out.print(move |to| json::line(to, &whole));
        }
        let Show { out, err, .. } = show;
        drop(err.finish().await);
        forgive_closed_pipe(out.finish().await).map_err(Fault::Output)?;
        let gave_up = matches!(end.why, Why::GaveUp | Why::TakesNoTurns);
        let ending = Ending {
            by_signal,
            verified: end.verified_empty,
            durable: end.durable,
            all_completed: all_completed && !gave_up && end.limits_met == 0,
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

struct Talked {
    end: SessionEnd,
    all_completed: bool,
    by_signal: Option<Exit>,
    /// What could be no prompt, and why.
    no_prompts: Vec<String>,
    /// The number of the last turn whose end was shown.
    shown: u64,
}

/// Why no more is asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Leaving {
    /// Whoever read the answers has gone.
    ReaderGone,
    Signal(Exit),
}

/// Asks until there is nothing more to ask, somebody wants to leave, or the session is over by itself.
async fn talk(
    mut session: SessionHandle,
    mut prompts: mpsc::Receiver<Result<String, String>>,
    of_options: bool,
    signals: &mut Signals,
    show: &Show,
) -> Talked {
    let (mut all_completed, mut leaving, mut shown) = (true, None, 0);
    let mut no_prompts = Vec::new();
    let control = session.control();
    let mut reader_gone = pin!(reader_gone(io::stdout()));
    // Of the prompt that the session was over for.
    let mut not_asked = 0_usize;
    while leaving.is_none() {
        let prompt = tokio::select! {
            prompt = prompts.recv() => match prompt {
                Some(Ok(prompt)) => prompt,
                Some(Err(why)) => {
                    show.no_prompt(why, &mut no_prompts).await;
                    continue;
                }
                None => break,
            },
            heard = signals.next() => {
                leaving = leave(heard).map(Leaving::Signal);
                continue;
            }
            () = &mut reader_gone => {
                leaving = Some(Leaving::ReaderGone);
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
                show.no_prompt(error.to_string(), &mut no_prompts).await;
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
                        end_at_once(&control, leaving.is_some());
                        leaving = leaving.or(Some(Leaving::Signal(exit)));
                    }
                }
                () = &mut reader_gone, if leaving.is_none() => {
                    leaving = Some(Leaving::ReaderGone);
                    control.stop();
                }
            }
        }
        let outcome = turn.finish().await;
        all_completed &= outcome.status == Status::Completed;
        shown = outcome.turn;
        show.turn(outcome).await;
    }
    if leaving.is_some() {
        control.stop();
    }
    let by_signal = match leaving {
        Some(Leaving::Signal(exit)) => Some(exit),
        Some(Leaving::ReaderGone) | None => None,
    };
    if leaving == Some(Leaving::ReaderGone) || control.is_over() || not_asked > 0 {
        not_asked += refuse_rest(&mut session, &mut prompts, of_options).await;
    }
    let mut end = pin!(session.close());
    let end = loop {
        tokio::select! {
            end = &mut end => break end,
            heard = signals.next() => if leave(heard).is_some() { end_at_once(&control, true) },
        }
    };
    if not_asked > 0 {
        let prompts = if not_asked == 1 { "prompt was" } else { "prompts were" };
        let reason = match leaving {
            Some(Leaving::ReaderGone) => "whoever read the answers has gone".into(),
            Some(Leaving::Signal(_)) | None => escape(&end.reason),
        };
        show.tell(format!("error: {not_asked} {prompts} not asked: {reason}")).await;
    }
    all_completed &= not_asked == 0 && no_prompts.is_empty();
    Talked { end, all_completed, by_signal, no_prompts, shown }
}

/// Has what nobody will ask put on record; says how many there were. The session is over, or ends.
async fn refuse_rest(
    session: &mut SessionHandle,
    prompts: &mut mpsc::Receiver<Result<String, String>>,
    of_options: bool,
) -> usize {
    let mut refused = 0;
    while let Some(prompt) = input::rest(prompts, of_options).await {
        refused += 1;
        // One that is taken all the same is refused by whoever ends the session.
        if let Ok(prompt) = prompt
            && let Ok(turn) = session.prompt(prompt)
        {
            drop(turn.finish().await);
        }
    }
    refused
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

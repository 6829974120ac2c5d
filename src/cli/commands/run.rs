//! `delegate run`: checks, starts and watches a batch, and prints how it ended. [`super::batch`] reads
//! what is asked, [`super::follow`] waits, [`super::detach`] has another process do it; here are the steps in
//! their order, for `resume` and `rerun` too.

use std::io::{self, Write as _};
use std::time::Duration;

use delegate_core::config::Loaded;
use delegate_core::delegator::{Batch, Delegator};
use delegate_core::plan::Plan;
use delegate_core::report::Report;
use delegate_protocol::Status;

use crate::cli::args::{OutputArgs, RunArgs};
use crate::cli::commands::batch::{self, Input};
use crate::cli::commands::detach::{self, Given};
use crate::cli::commands::follow::{Watch, Watched};
use crate::cli::exit::{Ending, Exit};
use crate::cli::fault::Fault;
use crate::cli::render::Style;
use crate::cli::render::explain::{self, Explained};
use crate::cli::render::human::{self, Leftovers, Table};
use crate::cli::render::json;
use crate::cli::render::live::Model;
use crate::cli::render::text::escape;
use crate::cli::stage::{Stage, command_loop};
use crate::cli::{Context, warn, warn_of, write_out};

/// For the last records of a run to reach the disk.
const LAST_WRITES: Duration = Duration::from_secs(5);

/// A delegator, and how its batch is to be run.
pub(crate) struct Opened {
    pub(crate) delegator: Delegator,
    loaded: Loaded,
    dry_run: bool,
    explain: bool,
    output: OutputArgs,
    /// Somebody has said where tasks run.
    said: bool,
}

/// Runs a batch to its end, or has another process do so.
///
/// # Errors
/// Nothing was started, or the results could not be written.
pub(crate) fn run(args: &RunArgs, context: &Context) -> Result<Exit, Fault> {
    if args.background {
        let stdin = args.agent.is_none() && args.input == ["-"];
        return detach::start(context, stdin, args.output.json);
    }
    in_front(args, context, Given::default())
}

/// Runs a batch to its end, in this process.
///
/// # Errors
/// As [`run`].
pub(crate) fn in_front(args: &RunArgs, context: &Context, given: Given) -> Result<Exit, Fault> {
    let Input { tasks, title } = Input::read(args, given.stdin.clone())?;
    let opened = open(args, context)?;
    let title = args.name.clone().unwrap_or(title);
    let batch = opened.delegator.batch(tasks).title(title).resumable_with(args.note());
    carry_out(opened, batch, context, given)
}

/// Settings and delegator.
///
/// # Errors
/// Nothing was started, and why.
pub(crate) fn open(args: &RunArgs, context: &Context) -> Result<Opened, Fault> {
    let loaded = batch::settings(args, context)?;
    loaded.notes.iter().for_each(|note| warn(note));
    let mut builder =
        Delegator::builder().settings(loaded.settings.clone()).state_dir(&context.state_dir);
    if let Some(isolation) = batch::isolation(args, &loaded) {
        builder = builder.isolation(isolation);
    }
    let delegator = builder.build()?;
    warn_of(delegator.store());
    let said = args.isolation.is_some() || loaded.settings.process_isolation.is_some();
    let RunArgs { dry_run, explain, output, .. } = *args;
    Ok(Opened { delegator, loaded, dry_run, explain, output, said })
}

/// Plans it, runs it and prints how it ended.
///
/// # Errors
/// As [`run`].
pub(crate) fn carry_out(
    opened: Opened,
    batch: Batch,
    context: &Context,
    given: Given,
) -> Result<Exit, Fault> {
    let Opened { delegator, loaded, dry_run, explain, mut output, said } = opened;
    let mut batch = if given.reply.is_some() { batch.detached() } else { batch };
    let planned = batch.plan().map(|_| ());
    planned.map_err(|error| Fault::of_start(error, batch.tasks()))?;
    let plan = batch.plan()?;
    let explained = Explained::of(plan, &loaded, delegator.worker_description(), said);
    if dry_run {
        print_plan(output, explain, plan, &explained, &loaded, context)?;
        return Ok(Exit::Done);
    }
    if explain {
        drop(io::stderr().lock().write_all(explained.text().as_bytes()));
    }
    let headline = explain::headline(plan, &loaded, context.err);
    let tasks = plan.tasks.len();
    if given.reply.is_some() {
        // Nobody reads along; what remains in the log is the report.
        output = OutputArgs { json: true, jsonl: false, quiet: true };
    }

    command_loop()?.block_on(async {
        let Stage { mut signals, out, err } = Stage::open()?;
        let run = batch.start().await?; // the last step that may fail
        let short = delegator.store().short_id(run.id());
        if let Some(reply) = &given.reply {
            // On record before anybody is told its id.
            delegator.store().flush(LAST_WRITES);
            let (short, title) = (delegator.store().short_id(run.id()), run.title());
            if reply.started(run.id(), &short, &title, tasks).is_err() {
                // A run of which nobody knows does not go on.
                run.control().interrupt();
            }
        }
        let places = loaded.settings.max_concurrent_children;
        let mut watch = Watch::new(&run, output, places, context, out, err);
        watch.begin(&format!("run {short}{}{headline}", context.err.dot()));
        let Watched { report, model } = watch.follow(run, &mut signals, &delegator).await;
        // So that the end of the run is on disk as well before this process leaves.
        delegator.store().flush(LAST_WRITES);
        let ending = Ending {
            by_signal: None,
            verified: report.verified_empty() && report.left_running().is_empty(),
            durable: delegator.store().is_durable(),
            all_completed: report.all_completed(),
        };
        let printed = Printed { report, model, hint: String::new() };
        let printed = printed.with_hint(&short, ending.durable, context);
        let last_words = print_end(&watch, printed, output, context);
        let by_signal = watch.leave(last_words, &mut signals).await.map_err(Fault::Output)?;
        Ok(Ending { by_signal, ..ending }.exit())
    })
}

fn print_plan(
    output: OutputArgs,
    explain: bool,
    plan: &Plan,
    explained: &Explained,
    loaded: &Loaded,
    context: &Context,
) -> Result<(), Fault> {
    write_out(|to| {
        if output.json || output.jsonl {
            return explained.json(to, plan);
        }
        if explain {
            to.write_all(explained.text().as_bytes())?;
        }
        writeln!(to, "{}", explain::headline(plan, loaded, context.out))?;
        explain::tasks(to, plan, context.out)?;
        writeln!(to, "nothing was started (--dry-run)")
    })
}

/// What the end prints.
struct Printed {
    report: Report,
    model: Model,
    hint: String,
}

impl Printed {
    /// Which verb shows more: the logs of the first task that did not complete, else the results. None
    /// where not everything is stored, which is said instead.
    fn with_hint(self, short: &str, durable: bool, context: &Context) -> Self {
        if !durable {
            return Self { hint: "not all outcomes are stored".to_owned(), ..self };
        }
        let bad = self.report.statuses().iter().position(|status| *status != Status::Completed);
        let mut hint = match bad {
            Some(task) => format!("delegate logs {short} {task}"),
            None => format!("delegate show {short}"),
        };
        if let Some(dir) = &context.state_flag {
            hint.push_str(&format!(" --state-dir {}", escape(&dir.to_string_lossy())));
        }
        Self { hint, ..self }
    }

    fn ending(&self, style: Style) -> String {
        let Self { report, hint, .. } = self;
        let (left, verified) = (report.left_running(), report.verified_empty());
        let left = Leftovers::of(left, verified, report.warnings());
        human::ending(report.statuses(), report.total_duration(), left, hint, style)
    }
}

/// Results to standard output. Where that is JSON, the ending goes to standard error; else it is given
/// back, for a standard output that takes nothing.
fn print_end(
    watch: &Watch,
    printed: Printed,
    output: OutputArgs,
    context: &Context,
) -> Option<String> {
    for warning in printed.report.warnings() {
        watch.tell(format!("warning: {}", escape(warning)));
    }
    let ending = printed.ending(context.err);
    if output.json || output.jsonl {
        let last_words = if output.quiet {
            Some(ending)
        } else {
            watch.tell(ending);
            None
        };
        watch.print(move |to| {
            printed.report.write_json(&mut json::Safe(&mut *to))?;
            writeln!(to)
        });
        return last_words;
    }
    let style = context.out;
    watch.print(move |to| {
        let Printed { report, model, .. } = &printed;
        let (index, label) = (model.index_columns(), model.label_columns());
        let table = Table { style, index, label, depth: 0 };
        if !output.quiet {
            for outcome in report.results() {
                table.row(to, model.label(outcome.task_index), &outcome)?;
            }
        }
        writeln!(to, "{}", printed.ending(style))
    });
    Some(ending)
}

//! `delegate show ID`: the outcomes of one run, so far or at its end.

use std::time::{SystemTime, UNIX_EPOCH};

use delegate_core::store::{Reader, RunRecord, Store, StoreError};
use delegate_protocol::Outcome;

use crate::cli::args::ShowArgs;
use crate::cli::exit::Exit;
use crate::cli::fault::Fault;
use crate::cli::render::human::{self, Table};
use crate::cli::render::json;
use crate::cli::{Context, write_out};

/// Shows them.
///
/// # Errors
/// No such run, a store that cannot be read, or an output that cannot be written.
pub(crate) fn run(args: &ShowArgs, context: &Context) -> Result<Exit, Fault> {
    let store = Store::open_existing(&context.state_dir);
    let run = store.find_run(&args.run)?;
    let mut unreadable = None;
    let outcomes = outcomes(&store, &run, &mut unreadable);
    if args.json {
        write_out(|to| json::stored_run(to, &run, outcomes))?;
    } else {
        write_out(|to| table(to, &store, &run, outcomes, context))?;
    }
    unreadable.map_or(Ok(Exit::Done), |error| Err(Fault::Store(error)))
}

/// Outcomes in task order, read one at a time. A task without one is left out; the first that cannot
/// be read ends the list.
fn outcomes(
    store: &Reader,
    run: &RunRecord,
    unreadable: &mut Option<StoreError>,
) -> impl Iterator<Item = Outcome> {
    (0..run.tasks)
        .map(|task| match store.outcome(run.id, task) {
            Ok(outcome) => Some(Some(outcome)),
            Err(StoreError::NotFound(_)) => Some(None),
            Err(error) => {
                *unreadable = Some(error);
                None
            }
        })
        .take_while(Option::is_some)
        .flatten()
        .flatten()
}

fn table(
    to: &mut dyn std::io::Write,
    store: &Reader,
    run: &RunRecord,
    outcomes: impl Iterator<Item = Outcome>,
    context: &Context,
) -> std::io::Result<()> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64();
    writeln!(to, "{}", human::run_line(run, &store.short_id(run.id), now, context.out))?;
    let index = run.tasks.saturating_sub(1).to_string().len();
    let table = Table { style: context.out, index, label: 0 };
    let mut shown = 0;
    for outcome in outcomes {
        table.row(to, "", &outcome)?;
        shown += 1;
    }
    match run.tasks - shown {
        0 => Ok(()),
        missing => writeln!(to, "  {missing} without an outcome"),
    }
}

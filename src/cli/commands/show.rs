//! `delegate show ID`: the outcomes of one run, so far or at its end.

use std::io::{self, Write};
use std::time::{SystemTime, UNIX_EPOCH};

use delegate_core::store::{Reader, RunRecord, Store, StoreError};
use delegate_protocol::Outcome;

use crate::cli::args::ShowArgs;
use crate::cli::control;
use crate::cli::exit::Exit;
use crate::cli::fault::Fault;
use crate::cli::render::human::{self, Table};
use crate::cli::render::{Style, json};
use crate::cli::{Context, write_out};

/// Shows them.
///
/// # Errors
/// No such run, a store that cannot be read, or an output that cannot be written.
pub(crate) fn run(args: &ShowArgs, context: &Context) -> Result<Exit, Fault> {
    let store = Store::open_existing(&context.state_dir);
    let run = control::stored_run(context, &store, &args.run)?;
    let mut unreadable = None;
    let outcomes = outcomes(&store, &run, &mut unreadable);
    if args.json {
        write_out(|to| json::stored_run(to, &run, outcomes))?;
    } else {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64();
        let title = human::run_line(&run, &store.short_id(run.id), now, context.out);
        write_out(|to| {
            writeln!(to, "{title}")?;
            table(to, &store, &run, outcomes, context.out)
        })?;
    }
    unreadable.map_or(Ok(Exit::Done), |error| Err(Fault::Store(error)))
}

/// Outcomes in task order, read one at a time. A task without one is left out, or told as lost where its
/// parent died; the first that cannot
/// be read ends the list.
fn outcomes(
    store: &Reader,
    run: &RunRecord,
    unreadable: &mut Option<StoreError>,
) -> impl Iterator<Item = Outcome> {
    (0..run.tasks)
        .map(|task| match store.entry(run, task) {
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
    to: &mut dyn Write,
    store: &Reader,
    run: &RunRecord,
    outcomes: impl Iterator<Item = Outcome>,
    style: Style,
) -> io::Result<()> {
    let index = run.tasks.saturating_sub(1).to_string().len();
    let table = Table { style, index, label: 0, depth: 0 };
    let mut shown = 0;
    for outcome in outcomes {
        table.row(to, "", &outcome)?;
        delegated(to, store, table, &outcome)?;
        shown += 1;
    }
    match run.tasks.saturating_sub(shown) {
        0 => Ok(()),
        missing => {
            // Of a run that goes on they come; of one whose disk was full they do not.
            let promises = store.promises(run.id).ok().flatten();
            let ended = run.status != "running";
            let lost = ended && promises.is_some_and(|(_, durable)| !durable);
            let why = if lost { ": it could not be kept on disk" } else { "" };
            writeln!(to, "  {missing} without an outcome{why}")
        }
    }
}

/// Levels that are shown; a tree is rarely deeper than three.
const LEVELS: usize = 16;

/// What a child has delegated, below it. What cannot be read is left out: its own run tells why.
fn delegated(
    to: &mut dyn Write,
    store: &Reader,
    above: Table,
    outcome: &Outcome,
) -> io::Result<()> {
    let Some(subtree) = outcome.subtree.as_ref().filter(|_| above.depth < LEVELS) else {
        return Ok(());
    };
    let table = Table { depth: above.depth + 1, ..above };
    for run in &subtree.runs {
        let Ok(run) = store.find_run(&run.to_string()) else { continue };
        for outcome in outcomes(store, &run, &mut None) {
            table.row(to, "", &outcome)?;
            delegated(to, store, table, &outcome)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::render::human::tests::outcome;
    use delegate_core::store::{NewRun, Store};
    use delegate_protocol::{RunId, Status};
    use std::time::Duration;

    #[test]
    fn outcomes_of_a_run_that_still_goes_on() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(dir.path());
        let id = RunId::random();
        let new = NewRun::new(id, "t", "thread", 3);
        store.begin_run(new);
        for (task, status) in [(0, Status::Completed), (2, Status::Failed)] {
            store.put_outcome(id, outcome(task, status), |_| ());
        }
        store.flush(Duration::from_secs(30));

        let store = Store::open_existing(dir.path());
        let run = store.find_run("latest").unwrap();
        let mut unreadable = None;
        let mut text = Vec::new();
        table(&mut text, &store, &run, outcomes(&store, &run, &mut unreadable), Style::PLAIN)
            .unwrap();
        assert!(unreadable.is_none());
        assert_eq!(
            String::from_utf8(text).unwrap(),
            "  0 completed     4.1s\n  2 failed        4.1s\n  1 without an outcome\n"
        );
    }
}

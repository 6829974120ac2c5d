//! Takes finished journals into the tables, each exactly once, whenever the folding is killed.
//!
//! One transaction applies a journal and writes its name down; then the file goes, then the name. Killed before the
//! commit: nothing happened. Killed after it: the name says that only the file is to be removed. The commit is
//! synced before the file goes.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use rusqlite::{Connection, Transaction, TransactionBehavior};

use super::database::{self, Event as Line, Known, Which};
use super::evidence::{Standing, standing};
use super::row::{End, EndedBy, Intent, Policy, Row, State};
use crate::exit::{ExitStatus, Released};
use crate::identity::{self, Identity};
use crate::journal::{self, Contents, Event, Finished, Guard, Record, Why};

/// A point at which a test kills the folding.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    Read,
    Applied,
    Named,
    Committed,
    Removed,
    Forgotten,
}

/// Folds what is finished under `dir`; hands back how many journals that were.
pub(super) fn fold(
    connection: &mut Connection,
    dir: &Path,
    at: &mut dyn FnMut(Step),
) -> Result<usize, String> {
    let said = |error: &dyn std::fmt::Display| format!("{}: {error}", dir.display());
    let paths = journal::files(dir).map_err(|error| said(&error))?;
    forget_removed(connection, &paths).map_err(|error| said(&error))?;
    let mut folded = 0;
    for path in paths {
        if owner_lives(&path) {
            continue;
        }
        let finished = match Finished::take(&path) {
            Ok(Some(finished)) => finished,
            Ok(None) => continue,
            Err(error) => {
                // One that cannot be read does not keep the others from being folded.
                tracing::warn!(path = %path.display(), %error, "journal not folded");
                continue;
            }
        };
        let is_over = |owner: &Identity| standing(owner).has_ended();
        let Some(owner) = finished.contents.owner.clone().filter(is_over) else { continue };
        at(Step::Read);
        fold_one(connection, &finished, &owner, at).map_err(|error| said(&error))?;
        folded += 1;
    }
    Ok(folded)
}

/// Whether it seems to, by the name alone: its guards need not meet us at the file. The head says more.
fn owner_lives(journal: &Path) -> bool {
    let here = identity::own_namespace();
    let named = journal::owner_of_name(journal).map(|owner| Identity { namespace: here, ..owner });
    named.is_some_and(|owner| standing(&owner) == Standing::Same)
}

fn fold_one(
    connection: &mut Connection,
    finished: &Finished,
    owner: &Identity,
    at: &mut dyn FnMut(Step),
) -> Result<(), Box<dyn std::error::Error>> {
    let name = name_of(&finished.path);
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    let known = "SELECT 1 FROM folded WHERE journal = ?1";
    if !transaction.prepare_cached(known)?.exists([&name])? {
        apply(&transaction, owner, &finished.contents)?;
        at(Step::Applied);
        transaction.execute("INSERT INTO folded (journal) VALUES (?1)", [&name])?;
        at(Step::Named);
    }
    transaction.commit()?;
    at(Step::Committed);
    std::fs::remove_file(&finished.path)?;
    at(Step::Removed);
    connection.execute("DELETE FROM folded WHERE journal = ?1", [&name])?;
    at(Step::Forgotten);
    Ok(())
}

fn name_of(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

/// Names whose files are gone are of no more use.
fn forget_removed(connection: &Connection, there: &[PathBuf]) -> rusqlite::Result<()> {
    let names: Vec<String> = connection
        .prepare("SELECT journal FROM folded")?
        .query_map([], |row| row.get(0))?
        .collect::<Result<_, _>>()?;
    let gone = names.iter().filter(|name| !there.iter().any(|path| name_of(path) == **name));
    for name in gone {
        connection.execute("DELETE FROM folded WHERE journal = ?1", [name])?;
    }
    Ok(())
}

fn apply(
    transaction: &Transaction<'_>,
    owner: &Identity,
    contents: &Contents,
) -> rusqlite::Result<()> {
    let id = database::owner_id(transaction, owner)?;
    let known = database::known(transaction, id, owner)?;
    let mut living = database::select(transaction, &Which::Living)?;
    continue_rows(&mut living, &known, owner, contents);
    for row in &living {
        let id = database::owner_id(transaction, &row.owner)?;
        database::upsert(transaction, id, row)?;
    }
    for record in &contents.records {
        if let Some(line) = line(record, id) {
            database::note(transaction, &line)?;
        }
    }
    Ok(())
}

/// What a journal says goes into rows, and those that were never written are made.
fn continue_rows(living: &mut Vec<Row>, known: &Known, owner: &Identity, contents: &Contents) {
    for (spawn, tale) in tales(&contents.records) {
        let is_it = |row: &&mut Row| is_about(row, owner, spawn, &tale);
        if let Some(row) = living.iter_mut().find(is_it) {
            continue_row(row, &tale);
        } else if tale.started.is_some() && !is_known(known, spawn, &tale) {
            // Its intent was never written: the ledger was late and the owner died.
            let intent =
                Intent::new(spawn, Path::new(""), &[]).purpose("known from a journal only");
            let mut row = Row::of(intent, owner, tale.first);
            continue_row(&mut row, &tale);
            living.push(row);
        }
    }
    living.extend(spared(living, known, owner, &contents.records));
    if let Some((guard, at)) = swept(&contents.records) {
        // Two owners of one process have two pairs of guards: what certainly lives is not over because one
        // of these was done.
        let is_over = |row: &&mut Row| row.verify().child != Standing::Same;
        let its =
            living.iter_mut().filter(|row| row.owner == *owner && row.policy == Policy::Owned);
        let its = its.filter(is_over);
        its.for_each(|row| row.finish(None, ended_by(guard), "its owner was gone", at));
    }
}

/// Rows for what a rule has let live: each is a child of its own from then on, which may outlive its owner.
fn spared(living: &[Row], known: &Known, owner: &Identity, records: &[Record]) -> Vec<Row> {
    let mut rows: Vec<Row> = Vec::new();
    for Record { at, event, .. } in records {
        let Event::Spared { pid, start, inode, rule, .. } = *event else { continue };
        let number = SPARED | u64::from(pid);
        let is_there = |row: &Row| row.owner == *owner && row.spawn == number;
        if known.spawns.contains(&number) || rows.iter().chain(living).any(is_there) {
            continue;
        }
        let why = format!("--keep {rule}");
        let intent = Intent::new(number, Path::new(""), &[]).purpose("kept by a rule");
        let mut row = Row::of(intent.exempt(&why, None), owner, *at);
        let known = |number: u64| (number != 0).then_some(number);
        let (start, inode) = (known(start), known(inode));
        row.identity = Some(Identity { pid, start, inode, cgroup: None, ..owner.clone() });
        row.state = State::Running;
        rows.push(row);
    }
    rows
}

/// Numbers of these: above all that an owner gives to what it starts itself.
const SPARED: u64 = 1 << 48;

/// Living rows as they would be after a folding. Nothing is written, no journal goes.
pub(super) fn preview(connection: &Connection, dir: &Path) -> Result<Vec<Row>, String> {
    let said = |error: &dyn std::fmt::Display| format!("{}: {error}", dir.display());
    let read = |error: rusqlite::Error| error.to_string();
    let mut rows = database::select(connection, &Which::Living).map_err(read)?;
    for path in journal::files(dir).map_err(|error| said(&error))? {
        if owner_lives(&path) {
            continue;
        }
        let Ok(Some(finished)) = Finished::take(&path) else { continue };
        let is_over = |owner: &Identity| standing(owner).has_ended();
        let Some(owner) = finished.contents.owner.clone().filter(is_over) else { continue };
        let id = database::find_owner(connection, &owner).map_err(read)?.unwrap_or(-1);
        let known = database::known(connection, id, &owner).map_err(read)?;
        continue_rows(&mut rows, &known, &owner, &finished.contents);
    }
    rows.retain(|row| row.state != State::Ended);
    Ok(rows)
}

/// What a journal says of one child.
#[derive(Debug, Default)]
struct Tale {
    first: u64,
    last: u64,
    started: Option<(u32, u64, u64)>,
    exit: Option<ExitStatus>,
    is_empty: bool,
    left: u32,
    released: Option<Released>,
    killed: Option<(EndedBy, &'static str)>,
}

fn tales(records: &[Record]) -> BTreeMap<u64, Tale> {
    let mut tales = BTreeMap::<u64, Tale>::new();
    for Record { at, guard, event } in records {
        let spawn = match *event {
            Event::Started { spawn, .. }
            | Event::Exited { spawn, .. }
            | Event::Emptied { spawn, .. }
            | Event::Left { spawn, .. }
            | Event::KillSent { spawn, .. }
            | Event::Released { spawn, .. } => spawn,
            Event::OwnerGone
            | Event::SweepBegun
            | Event::SweepEnded { .. }
            | Event::Takeover { .. }
            | Event::NoCgroup { .. }
            | Event::NoDoor { .. }
            | Event::Spared { .. }
            | Event::Reattached => continue,
        };
        let tale = tales.entry(spawn).or_insert_with(|| Tale { first: *at, ..Tale::default() });
        tale.last = *at;
        match *event {
            Event::Started { pid, start, inode, .. } => tale.started = Some((pid, start, inode)),
            Event::Exited { status, .. } => tale.exit = Some(status),
            Event::Emptied { .. } => tale.is_empty = true,
            Event::Left { .. } => tale.left += 1,
            Event::Released { released, .. } => tale.released = Some(released),
            Event::KillSent { why, .. } => {
                let by = if why == Why::Asked { EndedBy::Owner } else { ended_by(*guard) };
                // A leftover of a child that had ended by itself does not say who ended the child.
                if why != Why::Leftover && tale.exit.is_none() {
                    tale.killed.get_or_insert((by, words(why)));
                }
            }
            Event::OwnerGone
            | Event::SweepBegun
            | Event::SweepEnded { .. }
            | Event::Takeover { .. }
            | Event::NoCgroup { .. }
            | Event::NoDoor { .. }
            | Event::Spared { .. }
            | Event::Reattached => {}
        }
    }
    // Nobody's scope.
    tales.remove(&0);
    tales
}

/// Whether a row is of this child: by its number, or by who it is, since one that a child of the owner asked
/// for over its own line is in the ledger under that child's number for it.
fn is_about(row: &Row, owner: &Identity, spawn: u64, tale: &Tale) -> bool {
    let of_owner = row.owner == Identity { cgroup: row.owner.cgroup.clone(), ..owner.clone() };
    let same_child = |identity: &Identity| {
        (identity.boot, identity.namespace) == (owner.boot, owner.namespace)
            && tale.started.is_some_and(|(pid, start, inode)| {
                let same_start = (identity.pid, identity.start) == (pid, Some(start));
                let differs = inode != 0 && identity.inode.is_some_and(|known| known != inode);
                same_start && !differs || inode != 0 && identity.inode == Some(inode)
            })
    };
    (of_owner && row.spawn == spawn) || row.identity.as_ref().is_some_and(same_child)
}

/// Whether a child that no living row is about has a row that has ended.
fn is_known(known: &Known, spawn: u64, tale: &Tale) -> bool {
    let same = |(pid, start, inode)| {
        known.starts.contains(&(pid, start)) || inode != 0 && known.inodes.contains(&inode)
    };
    known.spawns.contains(&spawn) || tale.started.is_some_and(same)
}

fn continue_row(row: &mut Row, tale: &Tale) {
    if let (None, Some((pid, start, inode))) = (&row.identity, tale.started) {
        let known = |number: u64| (number != 0).then_some(number);
        let (start, inode) = (known(start), known(inode));
        row.identity = Some(Identity { pid, start, inode, cgroup: None, ..row.owner.clone() });
    }
    if row.state == State::Intent && tale.started.is_some() {
        row.state = State::Running;
    }
    row.exit = row.exit.or(tale.exit);
    if let Some((by, why)) = tale.killed {
        row.blame(by, why);
    }
    let end = (tale.left > 0).then_some(End::Left(tale.left));
    if tale.is_empty || end.is_some() {
        row.finish(end, EndedBy::Itself, "", tale.last);
        row.released(tale.released);
    }
}

/// Who saw, and when, that nothing of the owner's is left.
fn swept(records: &[Record]) -> Option<(Guard, u64)> {
    records.iter().rev().find_map(|record| {
        (record.event == Event::SweepEnded { left: 0 }).then_some((record.guard, record.at))
    })
}

pub(super) fn ended_by(guard: Guard) -> EndedBy {
    match guard {
        Guard::Keeper => EndedBy::Keeper,
        Guard::Supervisor => EndedBy::Supervisor,
    }
}

pub(super) fn words(why: Why) -> &'static str {
    match why {
        Why::Asked => "asked",
        Why::OwnerGone => "its owner was gone",
        Why::Leftover => "left behind by its scope",
        Why::GraceOver => "its grace was over",
        Why::Unattributed => "nobody's",
    }
}

pub(super) fn sent(signal: i32) -> &'static str {
    match signal {
        libc::SIGKILL => "sent KILL",
        libc::SIGTERM => "sent TERM",
        libc::SIGCONT => "sent CONT",
        libc::SIGSTOP => "sent STOP",
        _ => "sent a signal",
    }
}

/// The line that is kept of a record; what is in the child's row is not kept twice.
fn line(record: &Record, owner: i64) -> Option<Line<'static>> {
    let Record { at, guard, event } = *record;
    let who = database::by_word(ended_by(guard));
    let line = |what, pid| Line { owner: Some(owner), at, who, what, spawn: None, pid, detail: "" };
    Some(match event {
        Event::OwnerGone => line("owner gone", None),
        Event::SweepBegun => line("sweep begun", None),
        Event::SweepEnded { left: 0 } => line("sweep ended, nothing left", None),
        Event::SweepEnded { .. } => line("sweep ended, some cannot die", None),
        Event::Takeover { pid, .. } => line("took over", Some(pid)),
        Event::NoCgroup { spawn, .. } => Line { spawn: Some(spawn), ..line("no cgroup", None) },
        Event::Spared { spawn, pid, .. } => {
            Line { spawn: Some(spawn), ..line("let live by a rule", Some(pid)) }
        }
        Event::NoDoor { .. } => line("no directory to be found in after an exec", None),
        Event::Reattached => line("owner re-attached after an exec", None),
        Event::Left { spawn, pid } => Line { spawn: Some(spawn), ..line("cannot die", Some(pid)) },
        Event::KillSent { spawn, pid, signal, why } => {
            let what = sent(signal);
            Line { spawn: Some(spawn), detail: words(why), ..line(what, Some(pid)) }
        }
        Event::Started { .. }
        | Event::Exited { .. }
        | Event::Emptied { .. }
        | Event::Released { .. } => return None,
    })
}

/// A row that is to be ended, and how.
pub(super) struct Settled<'a> {
    pub(super) row: Row,
    pub(super) end: End,
    pub(super) by: EndedBy,
    pub(super) why: &'a str,
}

/// Ends rows that nobody else will; says how many. Those that had ended or are not there are none.
pub(super) fn settle(
    connection: &mut Connection,
    rows: &[Settled<'_>],
    now: u64,
) -> rusqlite::Result<usize> {
    if rows.is_empty() {
        return Ok(0);
    }
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    let mut settled = 0;
    for mut row in database::select(&transaction, &Which::Living)? {
        let is_it = |to: &&Settled<'_>| to.row.owner == row.owner && to.row.spawn == row.spawn;
        let Some(Settled { end, by, why, .. }) = rows.iter().find(is_it) else { continue };
        row.finish(Some(*end), *by, why, now);
        let owner = database::owner_id(&transaction, &row.owner)?;
        database::upsert(&transaction, owner, &row)?;
        let (at, who) = (now, database::by_word(*by));
        let pid = row.identity.map(|identity| identity.pid);
        let (owner, spawn) = (Some(owner), Some(row.spawn));
        let line = Line { owner, at, who, what: "settled", spawn, pid, detail: why };
        database::note(&transaction, &line)?;
        settled += 1;
    }
    transaction.commit()?;
    Ok(settled)
}

#[cfg(test)]
#[path = "fold_tests.rs"]
mod tests;

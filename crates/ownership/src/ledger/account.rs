//! The ledger as whoever looks from outside sees it: who may live, by rows and by journals that were not folded yet,
//! and who was ended by whom. Reading changes nothing; `say` writes what the janitor is about to do, since
//! nobody is ended without a line.

use std::collections::HashMap;
use std::fs;
use std::path::Path;

use rusqlite::{Connection, TransactionBehavior};

use super::database::{self, Event as Line};
use super::fold::{self, ended_by};
use super::row::{EndedBy, Row, now_ms};
use super::{LedgerError, place, read_only};
use crate::identity::{BootId, Identity};
use crate::journal::{self, Event};

/// What is written down of those who may live.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct Account {
    /// Rows that have not ended, with what journals of dead owners add to them.
    pub rows: Vec<Row>,
    /// Whether there is a ledger at all. Without one there are no rows.
    pub exists: bool,
    /// Rows that could not be read, in words: the others are all there.
    pub unreadable: Vec<String>,
}

/// Reads the ledger at `path` and the journals under `dir`. Changes nothing.
///
/// # Errors
/// When it cannot be read, is damaged, a newer program's or no ledger: then nothing is known.
pub fn account(path: &Path, dir: &Path) -> Result<Account, LedgerError> {
    let Some(connection) = read_only(path)? else { return Ok(Account::default()) };
    let sound = connection.query_row("PRAGMA quick_check(1)", [], |row| row.get::<_, String>(0));
    let sound = sound.map_err(|error| LedgerError::new(path, &error))?;
    if sound != "ok" {
        return Err(LedgerError::new(path, &sound));
    }
    let rows = fold::preview(&connection, dir).map_err(|why| LedgerError::new(path, &why))?;
    let unreadable =
        database::unreadable(&connection).map_err(|error| LedgerError::new(path, &error))?;
    Ok(Account { rows, exists: true, unreadable })
}

/// Rows of the ledger at `path` that cannot be read, in words: something stands in them that cannot stand there. What else
/// is told of the ledger is told without them.
///
/// # Errors
/// As [`account`].
pub fn unreadable(path: &Path) -> Result<Vec<String>, LedgerError> {
    let fault = |error: rusqlite::Error| LedgerError::new(path, &error);
    let Some(connection) = read_only(path)? else { return Ok(Vec::new()) };
    let mut found = database::unreadable(&connection).map_err(fault)?;
    let mut acts = Vec::new();
    each_act(&connection, 0, |id, act| {
        acts.extend(act.err().map(|error| format!("row {id} of events: {error}")));
    })
    .map_err(fault)?;
    found.extend(acts);
    Ok(found)
}

/// A signal that was sent, or another act by which somebody was ended.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Act {
    /// When, in unix milliseconds.
    pub at: u64,
    /// Who did it.
    pub by: EndedBy,
    /// What, such as `sent TERM`.
    pub what: String,
    /// To whom.
    pub pid: Option<u32>,
    /// Why.
    pub why: String,
}

/// One end that somebody brought about: of a child, or of a process that no row is about.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Kill {
    /// When it was over, or when the last thing was done about it, in unix milliseconds.
    pub at: u64,
    /// Who ended it.
    pub by: EndedBy,
    /// Why.
    pub why: String,
    /// Whose it was.
    pub owner: Option<Identity>,
    /// Its pid, where it is known.
    pub pid: Option<u32>,
    /// What was written down of it.
    pub row: Option<Row>,
    /// What was done, in order of writing. Of the signals to one scope the first 32 are written down.
    pub acts: Vec<Act>,
}

/// Who was ended since `since` (unix milliseconds), oldest first: from rows, what guards wrote, and journals that
/// were not folded yet. Children that ended by themselves and left nobody are not among them.
///
/// # Errors
/// As [`account`].
pub fn kills(path: &Path, dir: &Path, since: u64) -> Result<Vec<Kill>, LedgerError> {
    let fault = |error: rusqlite::Error| LedgerError::new(path, &error);
    let (rows, mut acts) = match read_only(path)? {
        None => (Vec::new(), Vec::new()),
        Some(connection) => (
            database::select(&connection, &database::Which::Newest(u32::MAX)).map_err(fault)?,
            noted(&connection, since).map_err(fault)?,
        ),
    };
    let journals = journal::files(dir).map_err(|error| LedgerError::new(dir, &error))?;
    for journal in journals {
        // One that cannot be read hides no other.
        let Ok(bytes) = fs::read(&journal) else { continue };
        let contents = journal::read(&bytes);
        let owner = contents.owner.or_else(|| journal::owner_of_name(&journal));
        let Some(owner) = owner else { continue };
        acts.extend(contents.records.iter().filter(|record| record.at >= since).filter_map(
            |record| {
                let Event::KillSent { spawn, pid, signal, why } = record.event else { return None };
                let (what, why) = (fold::sent(signal).to_owned(), fold::words(why).to_owned());
                let by = ended_by(record.guard);
                let pid = Some(pid);
                Some((Some(key(&owner)), spawn, Act { at: record.at, by, what, pid, why }))
            },
        ));
    }
    Ok(group(rows, acts, since))
}

/// Who an owner is, without what may change.
type Key = (Option<BootId>, Option<u64>, u32, Option<u64>);

fn key(owner: &Identity) -> Key {
    (owner.boot, owner.namespace, owner.pid, owner.start)
}

type Told = (Option<Key>, u64, Act);

fn noted(connection: &Connection, since: u64) -> rusqlite::Result<Vec<Told>> {
    let mut told = Vec::new();
    each_act(connection, since, |_, act| told.extend(act.ok()))?;
    Ok(told)
}

/// Each line about somebody who was ended, with its number.
fn each_act(
    connection: &Connection,
    since: u64,
    mut take: impl FnMut(i64, rusqlite::Result<Told>),
) -> rusqlite::Result<()> {
    // A file of the first version has no such table.
    let Ok(mut statement) = connection.prepare(
        "SELECT boot, namespace, owners.pid, owners.start, at, who, what, spawn, events.pid, detail,
             events.id
         FROM events LEFT JOIN owners ON owners.id = events.owner
         WHERE at >= ?1 AND (what LIKE 'sent %' OR who = 'janitor' OR who = 'watchdog') ORDER BY events.id",
    ) else {
        return Ok(());
    };
    let mut rows = statement.query([database::signed(since)])?;
    while let Some(row) = rows.next()? {
        match read_act(row) {
            Err(error) if !database::is_of_row(&error) => return Err(error),
            act => take(row.get(10)?, act),
        }
    }
    Ok(())
}

fn read_act(row: &rusqlite::Row<'_>) -> rusqlite::Result<Told> {
    let boot: Option<String> = row.get(0)?;
    let long = |at| row.get::<_, Option<i64>>(at).map(|n| n.map(i64::cast_unsigned));
    let known = |at| long(at).map(|n| n.filter(|n| *n != 0));
    let pid: Option<u32> = row.get(2)?;
    let owner = boot.zip(pid).map(|(boot, pid)| (BootId::parse(&boot), pid));
    let (namespace, start) = (known(1)?, known(3)?);
    let owner = owner.map(|(boot, pid)| (boot, namespace, pid, start));
    let who: String = row.get(5)?;
    let by = database::by_of(Some(&who)).unwrap_or(EndedBy::Owner);
    let act = Act {
        at: row.get::<_, i64>(4)?.cast_unsigned(),
        by,
        what: row.get(6)?,
        pid: row.get(8)?,
        why: row.get(9)?,
    };
    Ok((owner, long(7)?.unwrap_or(0), act))
}

fn group(rows: Vec<Row>, acts: Vec<Told>, since: u64) -> Vec<Kill> {
    let mut of_child: HashMap<(Key, u64), Vec<Act>> = HashMap::new();
    // Of those that no row is about.
    let mut of_others: HashMap<(Option<Key>, Option<u32>), Vec<Act>> = HashMap::new();
    for (owner, spawn, act) in acts {
        match owner {
            Some(owner) if spawn != 0 => of_child.entry((owner, spawn)).or_default().push(act),
            _ => of_others.entry((owner, act.pid)).or_default().push(act),
        }
    }
    let mut kills = Vec::new();
    for row in rows {
        let acts = of_child.remove(&(key(&row.owner), row.spawn)).unwrap_or_default();
        let by_somebody = row.ended_by.filter(|by| *by != EndedBy::Itself);
        let ended = row.ended_at.filter(|at| *at >= since && by_somebody.is_some());
        let Some(at) = ended.or_else(|| acts.last().map(|act| act.at)) else { continue };
        // What it left was ended, where it itself ended by itself.
        let of_row = by_somebody.map(|by| (by, row.why.clone()));
        let Some((by, why)) = of_row.or_else(|| acts.first().map(|a| (a.by, a.why.clone()))) else {
            continue;
        };
        let pid = row.identity.as_ref().map(|identity| identity.pid);
        kills.push(Kill { at, by, why, owner: Some(row.owner.clone()), pid, row: Some(row), acts });
    }
    let children = of_child.into_iter().map(|((owner, _), acts)| (Some(owner), acts));
    let others = of_others.into_iter().map(|((owner, _), acts)| (owner, acts));
    for (owner, acts) in children.chain(others) {
        let (Some(first), Some(last)) = (acts.first(), acts.last()) else { continue };
        let (at, by, why, pid) = (last.at, first.by, first.why.clone(), first.pid);
        kills.push(Kill { at, by, why, owner: owner.map(identity), pid, row: None, acts });
    }
    kills.sort_by_key(|kill| (kill.at, kill.pid));
    kills
}

fn identity((boot, namespace, pid, start): Key) -> Identity {
    Identity { boot, pid, start, inode: None, namespace, cgroup: None }
}

/// Something that is done to a process from outside its owner and guards.
#[derive(Debug, Clone)]
pub(crate) struct Deed {
    pub(crate) owner: Option<Identity>,
    pub(crate) spawn: Option<u64>,
    pub(crate) pid: u32,
    pub(crate) what: &'static str,
    pub(crate) detail: String,
}

/// Writes down what is done, and syncs it. Never makes the file.
///
/// # Errors
/// When it cannot be written.
pub(crate) fn say(path: &Path, who: &str, deeds: &[Deed]) -> Result<(), LedgerError> {
    let write = || {
        let mut connection = place::reopen(path)?;
        let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
        for Deed { owner, spawn, pid, what, detail } in deeds {
            let owner =
                owner.as_ref().map(|owner| database::owner_id(&transaction, owner)).transpose()?;
            let (at, spawn, pid) = (now_ms(), *spawn, Some(*pid));
            database::note(&transaction, &Line { owner, at, who, what, spawn, pid, detail })?;
        }
        transaction.commit()
    };
    write().map_err(|error: rusqlite::Error| LedgerError::new(path, &error))
}

/// As [`super::Ledger::settle`], of a ledger that this process does not write: the janitor's ends.
///
/// # Errors
/// When it cannot be written.
pub(crate) fn settle(path: &Path, ended: &[(Row, String)]) -> Result<usize, LedgerError> {
    let settled: Vec<_> = ended
        .iter()
        .map(|(row, why)| fold::Settled {
            row: row.clone(),
            end: row.exit.map_or(super::End::Lost, super::End::Exited),
            by: EndedBy::Janitor,
            why,
        })
        .collect();
    let write = || fold::settle(&mut place::reopen(path)?, &settled, now_ms());
    write().map_err(|error: rusqlite::Error| LedgerError::new(path, &error))
}

//! Rows to and from SQL. [`crate::ledger::writer`] writes with it, readers read, both with connections of their own.

use std::collections::HashSet;
use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};

use rusqlite::types::Type;
use rusqlite::{Connection, OptionalExtension, Transaction, params};

use super::row::{End, EndedBy, Policy, Row, State};
use crate::exit::ExitStatus;
use crate::identity::{BootId, Identity};

/// Between the arguments in `argv`; [`super::redact`] leaves no control character in them.
const BETWEEN: char = '\u{1f}';

/// The row of an owner, made if there is none.
pub(super) fn owner_id(transaction: &Transaction<'_>, owner: &Identity) -> rusqlite::Result<i64> {
    if let Some(id) = find_owner(transaction, owner)? {
        return Ok(id);
    }
    let Identity { boot, pid, start, inode, namespace, cgroup } = owner;
    let mut insert = transaction.prepare_cached(
        "INSERT INTO owners (boot, namespace, pid, start, inode) VALUES (?1, ?2, ?3, ?4, ?5)",
    )?;
    insert.execute(params![
        boot.map(|boot| boot.to_string()).unwrap_or_default(),
        signed(namespace.unwrap_or(0)),
        pid,
        signed(start.unwrap_or(0)),
        signed(inode.unwrap_or(0)),
    ])?;
    let id = transaction.last_insert_rowid();
    transaction.execute("UPDATE owners SET cgroup = ?2 WHERE id = ?1", params![id, cgroup])?;
    Ok(id)
}

/// The row of an owner, if there is one.
pub(super) fn find_owner(
    connection: &Connection,
    owner: &Identity,
) -> rusqlite::Result<Option<i64>> {
    let Identity { boot, pid, start, inode, namespace, .. } = owner;
    let key = params![
        boot.map(|boot| boot.to_string()).unwrap_or_default(),
        signed(namespace.unwrap_or(0)),
        pid,
        signed(start.unwrap_or(0)),
        signed(inode.unwrap_or(0)),
    ];
    let mut find = connection.prepare_cached(
        "SELECT id FROM owners
         WHERE boot = ?1 AND namespace = ?2 AND pid = ?3 AND start = ?4 AND inode = ?5",
    )?;
    find.query_row(key, |row| row.get(0)).optional()
}

/// The owner that had this number and start time in this boot and pid namespace.
pub(super) fn owner_at(
    connection: &Connection,
    (boot, namespace): (Option<BootId>, Option<u64>),
    pid: u32,
    start: u64,
) -> rusqlite::Result<Option<Identity>> {
    let mut find = connection.prepare_cached(
        "SELECT inode FROM owners WHERE boot = ?1 AND namespace = ?2 AND pid = ?3 AND start = ?4",
    )?;
    let text = boot.map(|boot| boot.to_string()).unwrap_or_default();
    let key = params![text, signed(namespace.unwrap_or(0)), pid, signed(start)];
    let inode = find.query_row(key, |row| row.get::<_, i64>(0)).optional()?;
    Ok(inode.map(|inode| Identity {
        boot,
        pid,
        start: Some(start),
        inode: (inode != 0).then_some(inode.cast_unsigned()),
        namespace,
        cgroup: None,
    }))
}

/// Writes a row as it is now, whether it is there or not.
pub(super) fn upsert(transaction: &Transaction<'_>, owner: i64, row: &Row) -> rusqlite::Result<()> {
    let (exempt, expires) = match &row.policy {
        Policy::Owned => (None, None),
        Policy::Exempt { reason, expires } => (Some(reason), expires.map(signed)),
    };
    let identity = row.identity.as_ref();
    let exit = exit_columns(row.exit);
    let mut statement = transaction.prepare_cached(
        "INSERT INTO children (owner, spawn, state, intent_at, purpose, argv, executable, dir, exempt, expires,
             release, pid, start, inode, cgroup, exit_code, exit_signal, core_dumped, ended_at, end, left_over,
             ended_by, why)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18, ?19, ?20, ?21,
             ?22, ?23)
         ON CONFLICT (owner, spawn) DO UPDATE SET state = excluded.state, pid = excluded.pid,
             start = excluded.start, inode = excluded.inode, cgroup = excluded.cgroup,
             exit_code = excluded.exit_code, exit_signal = excluded.exit_signal,
             core_dumped = excluded.core_dumped, ended_at = excluded.ended_at, end = excluded.end,
             left_over = excluded.left_over, ended_by = excluded.ended_by, why = excluded.why",
    )?;
    statement.execute(params![
        owner,
        signed(row.spawn),
        state_word(row.state),
        signed(row.intent_at),
        row.purpose,
        row.argv.join(&BETWEEN.to_string()),
        row.executable,
        row.dir,
        exempt,
        expires,
        packed(&row.release),
        identity.map(|identity| identity.pid),
        identity.and_then(|identity| identity.start).map(signed),
        identity.and_then(|identity| identity.inode).map(signed),
        identity.and_then(|identity| identity.cgroup.as_ref()),
        exit.0,
        exit.1,
        exit.2,
        row.ended_at.map(signed),
        row.end.map(end_word),
        row.end.and_then(|end| if let End::Left(left) = end { Some(left) } else { None }),
        row.ended_by.map(by_word),
        row.why,
    ])?;
    Ok(())
}

/// A line of the record of what guards did and what happened to the file.
pub(super) struct Event<'a> {
    pub(super) owner: Option<i64>,
    pub(super) at: u64,
    pub(super) who: &'a str,
    pub(super) what: &'a str,
    pub(super) spawn: Option<u64>,
    pub(super) pid: Option<u32>,
    pub(super) detail: &'a str,
}

pub(super) fn note(connection: &Connection, event: &Event<'_>) -> rusqlite::Result<()> {
    let Event { owner, at, who, what, spawn, pid, detail } = event;
    let mut statement = connection.prepare_cached(
        "INSERT INTO events (owner, at, who, what, spawn, pid, detail)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)",
    )?;
    let values = params![owner, signed(*at), who, what, spawn.map(signed), pid, detail];
    statement.execute(values).map(drop)
}

/// Which rows.
pub(super) enum Which {
    /// Not ended, oldest first.
    Living,
    /// The newest so many, newest first.
    Newest(u32),
}

/// How the children of one boot, ended or not, can be recognised.
#[derive(Debug, Default)]
pub(super) struct Known {
    /// Spawn ids of the owner that was asked for.
    pub(super) spawns: HashSet<u64>,
    pub(super) starts: HashSet<(u32, u64)>,
    pub(super) inodes: HashSet<u64>,
}

/// The children that were started where `owner` was: same boot, same pid namespace.
pub(super) fn known(connection: &Connection, id: i64, owner: &Identity) -> rusqlite::Result<Known> {
    let mut statement = connection.prepare_cached(
        "SELECT owner, spawn, children.pid, children.start, children.inode
         FROM children JOIN owners ON owners.id = children.owner WHERE boot = ?1 AND namespace = ?2",
    )?;
    let boot = owner.boot.map(|boot| boot.to_string()).unwrap_or_default();
    let mut rows = statement.query(params![boot, signed(owner.namespace.unwrap_or(0))])?;
    let mut known = Known::default();
    while let Some(row) = rows.next()? {
        // What is no number is nobody's.
        let long = |at| row.get::<_, Option<i64>>(at).ok().flatten().map(i64::cast_unsigned);
        if row.get::<_, i64>(0)? == id {
            known.spawns.extend(long(1));
        }
        let pid = row.get::<_, Option<u32>>(2).ok().flatten();
        known.starts.extend(pid.zip(long(3)));
        known.inodes.extend(long(4));
    }
    Ok(known)
}

/// One that cannot be read hides no other: see [`unreadable`].
pub(super) fn select(connection: &Connection, which: &Which) -> rusqlite::Result<Vec<Row>> {
    let mut found = Vec::new();
    for_each(connection, which, |_, row| {
        found.extend(row.ok());
    })?;
    Ok(found)
}

/// Rows in which something stands that cannot stand there, each as words without what stands there.
pub(super) fn unreadable(connection: &Connection) -> rusqlite::Result<Vec<String>> {
    let mut found = Vec::new();
    for_each(connection, &Which::Newest(u32::MAX), |id, row| {
        found.extend(row.err().map(|error| format!("row {id} of children: {error}")));
    })?;
    found.reverse();
    Ok(found)
}

/// Whether it is about what stands in one row, and not about the file.
pub(super) fn is_of_row(error: &rusqlite::Error) -> bool {
    use rusqlite::Error::{
        FromSqlConversionFailure, IntegralValueOutOfRange, InvalidColumnType, Utf8Error,
    };
    matches!(
        error,
        FromSqlConversionFailure(..)
            | IntegralValueOutOfRange(..)
            | InvalidColumnType(..)
            | Utf8Error(..)
    )
}

fn for_each(
    connection: &Connection,
    which: &Which,
    mut take: impl FnMut(i64, rusqlite::Result<Row>),
) -> rusqlite::Result<()> {
    let release = connection
        .prepare("SELECT release FROM children LIMIT 0")
        .map_or("NULL AS release", |_| "children.release AS release");
    let (condition, number) = match which {
        Which::Living => ("state <> 'ended' ORDER BY children.id LIMIT ?1", -1),
        Which::Newest(limit) => ("1 ORDER BY children.id DESC LIMIT ?1", i64::from(*limit)),
    };
    let mut statement = connection.prepare(&format!(
        "SELECT children.*, {release}, owners.boot AS owner_boot, owners.namespace AS owner_namespace,
             owners.pid AS owner_pid, owners.start AS owner_start, owners.inode AS owner_inode,
             owners.cgroup AS owner_cgroup
         FROM children JOIN owners ON owners.id = children.owner WHERE {condition}"
    ))?;
    let mut rows = statement.query([number])?;
    while let Some(row) = rows.next()? {
        match read(row) {
            Err(error) if !is_of_row(&error) => return Err(error),
            read => take(row.get("id")?, read),
        }
    }
    Ok(())
}

fn read(row: &rusqlite::Row<'_>) -> rusqlite::Result<Row> {
    let known = |name| row.get::<_, i64>(name).map(|n| (n != 0).then_some(n.cast_unsigned()));
    let long = |name| row.get::<_, Option<i64>>(name).map(|n| n.map(i64::cast_unsigned));
    let text = |name| row.get::<_, String>(name);
    let owner = Identity {
        boot: BootId::parse(&text("owner_boot")?),
        pid: row.get("owner_pid")?,
        start: known("owner_start")?,
        inode: known("owner_inode")?,
        namespace: known("owner_namespace")?,
        cgroup: row.get("owner_cgroup")?,
    };
    let identity = match row.get::<_, Option<u32>>("pid")? {
        None => None,
        Some(pid) => Some(Identity {
            pid,
            start: long("start")?,
            inode: long("inode")?,
            cgroup: row.get("cgroup")?,
            ..owner.clone()
        }),
    };
    let exit = exit_of(row.get("exit_code")?, row.get("exit_signal")?, row.get("core_dumped")?);
    let policy = match row.get::<_, Option<String>>("exempt")? {
        None => Policy::Owned,
        Some(reason) => Policy::Exempt { reason, expires: long("expires")? },
    };
    let left: Option<u32> = row.get("left_over")?;
    let end = row.get::<_, Option<String>>("end")?;
    let argv = text("argv")?;
    Ok(Row {
        spawn: row.get::<_, i64>("spawn")?.cast_unsigned(),
        state: state_of(&text("state")?).ok_or_else(|| unknown("state"))?,
        intent_at: row.get::<_, i64>("intent_at")?.cast_unsigned(),
        purpose: text("purpose")?,
        argv: argv.split(BETWEEN).filter(|_| !argv.is_empty()).map(str::to_owned).collect(),
        executable: text("executable")?,
        dir: text("dir")?,
        policy,
        identity,
        exit,
        ended_at: long("ended_at")?,
        end: end.map(|word| end_of(&word, exit, left).ok_or_else(|| unknown("end"))).transpose()?,
        ended_by: by_of(row.get::<_, Option<String>>("ended_by")?.as_deref()),
        why: text("why")?,
        release: unpacked(&row.get::<_, Option<Vec<u8>>>("release")?.unwrap_or_default()),
        owner,
    })
}

fn unknown(column: &str) -> rusqlite::Error {
    rusqlite::Error::InvalidColumnType(0, column.to_owned(), Type::Text)
}

/// SQLite's integers have a sign; the bits are kept.
pub(super) fn signed(number: u64) -> i64 {
    number.cast_signed()
}

type ExitColumns = (Option<i32>, Option<i32>, Option<bool>);

fn exit_columns(exit: Option<ExitStatus>) -> ExitColumns {
    match exit {
        // Nobody knows, or is to know, more than that it ended.
        None | Some(ExitStatus::Unknown) => (None, None, None),
        Some(ExitStatus::Code(code)) => (Some(code), None, None),
        Some(ExitStatus::Signal { signal, core_dumped }) => (None, Some(signal), Some(core_dumped)),
    }
}

fn exit_of(code: Option<i32>, signal: Option<i32>, core: Option<bool>) -> Option<ExitStatus> {
    let signal =
        signal.map(|signal| ExitStatus::Signal { signal, core_dumped: core.unwrap_or_default() });
    code.map(ExitStatus::Code).or(signal)
}

/// NUL-terminated words.
fn packed(words: &[OsString]) -> Option<Vec<u8>> {
    let bytes = words.iter().flat_map(|word| [word.as_bytes(), &[0]].concat()).collect();
    (!words.is_empty()).then_some(bytes)
}

fn unpacked(bytes: &[u8]) -> Vec<OsString> {
    let words = bytes.split_inclusive(|byte| *byte == 0);
    words.map(|word| OsString::from_vec(word.strip_suffix(&[0]).unwrap_or(word).to_vec())).collect()
}

fn state_word(state: State) -> &'static str {
    match state {
        State::Intent => "intent",
        State::Running => "running",
        State::Ended => "ended",
    }
}

fn state_of(word: &str) -> Option<State> {
    [State::Intent, State::Running, State::Ended]
        .into_iter()
        .find(|state| state_word(*state) == word)
}

fn end_word(end: End) -> &'static str {
    match end {
        End::Exited(_) => "exited",
        End::Lost => "lost",
        End::Left(_) => "left",
        End::NotStarted => "not started",
    }
}

fn end_of(word: &str, exit: Option<ExitStatus>, left: Option<u32>) -> Option<End> {
    match word {
        // Of one that ended while nobody of ours was its parent, no number was stored.
        "exited" => Some(End::Exited(exit.unwrap_or(ExitStatus::Unknown))),
        "lost" => Some(End::Lost),
        "left" => left.map(End::Left),
        "not started" => Some(End::NotStarted),
        _ => None,
    }
}

pub(super) fn by_word(by: EndedBy) -> &'static str {
    match by {
        EndedBy::Owner => "owner",
        EndedBy::Supervisor => "supervisor",
        EndedBy::Keeper => "keeper",
        EndedBy::Itself => "itself",
        EndedBy::Janitor => "janitor",
        EndedBy::Watchdog => "watchdog",
    }
}

pub(super) fn by_of(word: Option<&str>) -> Option<EndedBy> {
    use EndedBy::{Itself, Janitor, Keeper, Owner, Supervisor, Watchdog};
    [Owner, Supervisor, Keeper, Itself, Janitor, Watchdog]
        .into_iter()
        .find(|by| Some(by_word(*by)) == word)
}

//! The tables, version by version. A file of an older version is brought up to date when it is opened for writing.

use rusqlite::{Connection, TransactionBehavior};

/// Version of the schema (`user_version`).
///
/// * 1: `owners` and `children`.
/// * 2: `children.release`, the command that undoes work in another daemon; `events`, what guards did and what
///   happened to the file; `folded`, the journals that are in the tables but perhaps still on disk.
pub(super) const VERSION: i64 = 2;

/// `SQLite`'s header field for whose file it is ("ownl"): a database of something else is not touched.
pub(super) const APPLICATION: i64 = 0x6f77_6e6c;

const STEPS: [&str; 2] = [
    "CREATE TABLE owners (
         id INTEGER PRIMARY KEY,
         boot TEXT NOT NULL,
         namespace INTEGER NOT NULL,
         pid INTEGER NOT NULL,
         start INTEGER NOT NULL,
         inode INTEGER NOT NULL,
         cgroup TEXT,
         UNIQUE (boot, namespace, pid, start, inode)
     );
     CREATE TABLE children (
         id INTEGER PRIMARY KEY,
         owner INTEGER NOT NULL REFERENCES owners (id),
         spawn INTEGER NOT NULL,
         state TEXT NOT NULL,
         intent_at INTEGER NOT NULL,
         purpose TEXT NOT NULL,
         argv TEXT NOT NULL,
         executable TEXT NOT NULL,
         dir TEXT NOT NULL,
         exempt TEXT,
         expires INTEGER,
         pid INTEGER,
         start INTEGER,
         inode INTEGER,
         cgroup TEXT,
         exit_code INTEGER,
         exit_signal INTEGER,
         core_dumped INTEGER,
         ended_at INTEGER,
         end TEXT,
         left_over INTEGER,
         ended_by TEXT,
         why TEXT NOT NULL,
         UNIQUE (owner, spawn)
     );
     CREATE INDEX living ON children (id) WHERE state <> 'ended';
     PRAGMA application_id = 0x6f776e6c;
     PRAGMA user_version = 1;",
    "ALTER TABLE children ADD COLUMN release BLOB;
     CREATE TABLE events (
         id INTEGER PRIMARY KEY,
         owner INTEGER REFERENCES owners (id),
         at INTEGER NOT NULL,
         who TEXT NOT NULL,
         what TEXT NOT NULL,
         spawn INTEGER,
         pid INTEGER,
         detail TEXT NOT NULL
     );
     CREATE TABLE folded (journal TEXT PRIMARY KEY NOT NULL);
     PRAGMA user_version = 2;",
];

/// What a file is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Found {
    /// Nothing yet.
    Fresh,
    /// A ledger of this or an older version.
    Known(i64),
    /// A ledger of a newer program.
    Newer(i64),
    /// A database of something else.
    Foreign,
}

pub(super) fn found(connection: &Connection) -> rusqlite::Result<Found> {
    let number = |name| connection.pragma_query_value(None, name, |row| row.get::<_, i64>(0));
    let (version, application) = (number("user_version")?, number("application_id")?);
    let tables = "SELECT count(*) FROM sqlite_master";
    let tables: i64 = connection.query_row(tables, [], |row| row.get(0))?;
    Ok(match (application, version) {
        (APPLICATION, newer) if newer > VERSION => Found::Newer(newer),
        (APPLICATION, known) if known > 0 => Found::Known(known),
        (0, 0) if tables == 0 => Found::Fresh,
        _ => Found::Foreign,
    })
}

/// Brings a file up to [`VERSION`], in one transaction. Nobody is waited for where nothing is to be done.
pub(super) fn migrate(connection: &mut Connection, found: Found) -> rusqlite::Result<()> {
    if found != Found::Known(VERSION) {
        let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
        // Asked again inside: another process may have done it meanwhile.
        let version: i64 =
            transaction.pragma_query_value(None, "user_version", |row| row.get(0))?;
        for step in STEPS.iter().skip(usize::try_from(version).unwrap_or(usize::MAX)) {
            transaction.execute_batch(step)?;
        }
        transaction.commit()?;
    }
    // Touches the roots of the tables, where damage is most often seen.
    for table in ["owners", "children", "events", "folded"] {
        connection.query_row(&format!("SELECT max(rowid) FROM {table}"), [], |_| Ok(()))?;
    }
    Ok(())
}

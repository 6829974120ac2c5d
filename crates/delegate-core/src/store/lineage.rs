//! Which child a run belongs to: the table `lineage` beside `runs`. It comes with the first writer that knows it,
//! and an older reader does not miss it.

use delegate_protocol::RunId;
use rusqlite::{Connection, OptionalExtension, Transaction, params};

/// A task of a run, whose child has delegated.
pub(super) type Above = (RunId, u32);

const TABLE: &str = "
    CREATE TABLE IF NOT EXISTS lineage (
        run_id TEXT PRIMARY KEY NOT NULL,
        parent_run TEXT NOT NULL,
        parent_task INTEGER NOT NULL
    );
    CREATE INDEX IF NOT EXISTS lineage_by_parent ON lineage (parent_run);
";

/// Makes the table where it is not there.
pub(super) fn prepare(transaction: &Transaction<'_>) -> rusqlite::Result<()> {
    transaction.execute_batch(TABLE)
}

/// Whether there is one: a database that no new writer has opened has none.
pub(super) fn is_there(connection: &Connection) -> rusqlite::Result<bool> {
    let sql = "SELECT count(*) FROM sqlite_schema WHERE type = 'table' AND name = 'lineage'";
    connection.query_row(sql, [], |row| row.get(0))
}

/// Notes whose run it is.
pub(super) fn put(transaction: &Transaction<'_>, run: RunId, above: Above) -> rusqlite::Result<()> {
    let mut statement = transaction.prepare_cached(
        "INSERT OR IGNORE INTO lineage (run_id, parent_run, parent_task) VALUES (?1, ?2, ?3)",
    )?;
    statement.execute(params![run.to_string(), above.0.to_string(), above.1])?;
    Ok(())
}

/// Whose run it is.
pub(super) fn of(connection: &Connection, run: RunId) -> rusqlite::Result<Option<Above>> {
    if !is_there(connection)? {
        return Ok(None);
    }
    let sql = "SELECT parent_run, parent_task FROM lineage WHERE run_id = ?1";
    let mut statement = connection.prepare_cached(sql)?;
    let found: Option<(String, u32)> =
        statement.query_row([run.to_string()], |row| Ok((row.get(0)?, row.get(1)?))).optional()?;
    // What is no id is nobody's.
    Ok(found.and_then(|(run, task)| Some((run.parse().ok()?, task))))
}

/// The condition on `runs` that leaves out what children have delegated.
pub(super) const OF_THE_ROOT: &str =
    "NOT EXISTS (SELECT 1 FROM lineage WHERE lineage.run_id = runs.id)";

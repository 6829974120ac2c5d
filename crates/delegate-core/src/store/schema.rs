//! The schema of `runs.sqlite` in its versions, and the way from one to the next. Used by `database`.

use rusqlite::{Connection, Transaction};

/// Version of the schema (`user_version`). A reader takes this one and older ones; whoever writes brings
/// an older one up first. An older program moves a newer file aside.
///
/// * 1: tables `runs` and `results`.
/// * 2: of a run also what it takes to go on with it (`facts`, `specs`), how it ended (`ending`), what it
///   repeats, and whether it is in the background; `deliveries`; `pruned`.
pub(super) const VERSION: i64 = 2;

/// The first version with what [`STEPS`] adds second.
pub(super) const WITH_BACKGROUND: i64 = 2;

/// What each version adds to the one before it.
const STEPS: [&str; 2] = [
    "
    CREATE TABLE runs (
        id TEXT PRIMARY KEY NOT NULL,
        started_at REAL NOT NULL,
        owner_pid INTEGER NOT NULL,
        owner_start INTEGER,
        owner_boot TEXT,
        title TEXT NOT NULL,
        isolation TEXT NOT NULL,
        tasks INTEGER NOT NULL,
        status TEXT NOT NULL,
        duration_seconds REAL
    );
    CREATE INDEX runs_by_start ON runs (started_at);
    CREATE TABLE results (
        run_id TEXT NOT NULL,
        task_index INTEGER NOT NULL,
        status TEXT NOT NULL,
        entry TEXT NOT NULL,
        UNIQUE (run_id, task_index)
    );
    CREATE INDEX results_by_status ON results (run_id, status);
    PRAGMA user_version = 1;
",
    "
    ALTER TABLE runs ADD COLUMN background INTEGER NOT NULL DEFAULT 0;
    ALTER TABLE runs ADD COLUMN resumed INTEGER NOT NULL DEFAULT 0;
    ALTER TABLE runs ADD COLUMN rerun_of TEXT;
    ALTER TABLE runs ADD COLUMN rerun_tasks TEXT;
    ALTER TABLE runs ADD COLUMN facts TEXT;
    ALTER TABLE runs ADD COLUMN ending TEXT;
    CREATE TABLE specs (
        run_id TEXT NOT NULL,
        task_index INTEGER NOT NULL,
        spec BLOB NOT NULL,
        UNIQUE (run_id, task_index)
    );
    CREATE TABLE deliveries (
        run_id TEXT NOT NULL,
        unit INTEGER NOT NULL,
        tasks TEXT NOT NULL,
        origin TEXT NOT NULL,
        session TEXT,
        state TEXT NOT NULL,
        attempts INTEGER NOT NULL,
        claimed_at REAL,
        dispatched_at REAL NOT NULL,
        changed_at REAL NOT NULL,
        finished_at REAL,
        restored INTEGER NOT NULL,
        why TEXT,
        UNIQUE (run_id, unit)
    );
    CREATE INDEX deliveries_by_state ON deliveries (state);
    CREATE TABLE pruned (run_id TEXT PRIMARY KEY NOT NULL);
    PRAGMA user_version = 2;
",
];

/// The schema that a file has; 0 when it is fresh.
pub(super) fn version(connection: &Connection) -> rusqlite::Result<i64> {
    connection.pragma_query_value(None, "user_version", |row| row.get(0))
}

/// Brings a file up to [`VERSION`], within a transaction that excludes every other writer: the version is
/// looked at again in it, since somebody may have been faster.
pub(super) fn bring_up(transaction: &Transaction<'_>) -> rusqlite::Result<()> {
    let found = usize::try_from(version(transaction)?).unwrap_or_default();
    STEPS.iter().skip(found).try_for_each(|step| transaction.execute_batch(step))
}

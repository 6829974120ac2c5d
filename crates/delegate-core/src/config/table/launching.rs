//! The keys that say how worker processes are started ([`crate::launch`]), for [`super`].

use super::{Id, KeyInfo, TENTH, Type, count, seconds};

/// Most workers that are kept for nobody yet.
const MOST_IDLE: u64 = 1024;

/// Most tasks of one worker. What it leaks by then is bounded by what a process may have.
const MOST_USES: u64 = 1_000_000;

pub(super) const LAUNCHER: KeyInfo = KeyInfo {
    id: Id::Launcher,
    name: "launcher",
    kind: Type::Launcher,
    default: "auto",
    also: None,
    sensitive: false,
    about: "How worker processes are started: by executing the program (exec), as copies of a template in which the agent is prepared (zygote), from a stock of waiting ones (pool), or as suits the batch (auto).",
};

pub(super) const POOL_MIN_IDLE: KeyInfo = KeyInfo {
    id: Id::PoolMinIdle,
    name: "pool.min_idle",
    kind: Type::Count { min: 0, max: MOST_IDLE, optional: false },
    default: "0",
    also: None,
    sensitive: false,
    about: "Waiting workers that are kept of each agent once it was used; with launcher auto, 1 or more means pool.",
};

pub(super) const POOL_MAX_IDLE: KeyInfo = KeyInfo {
    id: Id::PoolMaxIdle,
    name: "pool.max_idle",
    kind: count(MOST_IDLE, false),
    default: "4",
    also: None,
    sensitive: false,
    about: "Most waiting workers of one agent: as many are started ahead while it is in use.",
};

pub(super) const POOL_IDLE: KeyInfo = KeyInfo {
    id: Id::PoolIdle,
    name: "pool.idle_seconds",
    kind: seconds(TENTH, false),
    default: "30",
    also: None,
    sensitive: false,
    about: "Waiting workers above min_idle leave after this time without a launch.",
};

pub(super) const POOL_MAX_USES: KeyInfo = KeyInfo {
    id: Id::PoolMaxUses,
    name: "pool.max_uses",
    kind: count(MOST_USES, false),
    default: "1",
    also: None,
    sensitive: false,
    about: "Tasks that one waiting worker carries at most, one after the other. More than 1 counts only for an agent that says that it is reusable, and a worker that a task has left changed carries no other (docs/launchers.md).",
};

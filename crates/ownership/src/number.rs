//! Numbers of children: one number names a child towards its guards, in their journal and in the ledger.

use std::hash::{BuildHasher, RandomState};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

static NEXT: OnceLock<AtomicU64> = OnceLock::new();

/// 31 random bits for each program, so that numbers fit SQLite's integers, and are never 0.
fn next() -> &'static AtomicU64 {
    NEXT.get_or_init(|| AtomicU64::new((RandomState::new().hash_one(0) >> 33 << 32) + 1))
}

/// Not used twice by a process, nor by the program that it executes in its place; later ones are higher.
pub(crate) fn next_spawn() -> u64 {
    next().fetch_add(1, Ordering::Relaxed)
}

/// Numbers below this one were used by the program before.
#[cfg(target_os = "linux")]
pub(crate) fn go_on_from(number: u64) {
    next().fetch_max(number, Ordering::Relaxed);
}

/// Number of an owner among those of its process: not used twice, as above.
#[cfg(target_os = "linux")]
pub(crate) fn next_owner() -> u64 {
    static OWNERS: OnceLock<AtomicU64> = OnceLock::new();
    let first = || AtomicU64::new(RandomState::new().hash_one(1) >> 33 << 16);
    OWNERS.get_or_init(first).fetch_add(1, Ordering::Relaxed)
}

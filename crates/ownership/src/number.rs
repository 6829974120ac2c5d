//! Numbers of children: one number names a child towards its guards, in their journal and in the ledger.

use std::hash::{BuildHasher, RandomState};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

/// Not used twice by a process, nor by the program that it executes in its place; later ones are higher.
pub(crate) fn next_spawn() -> u64 {
    static NEXT: OnceLock<AtomicU64> = OnceLock::new();
    // 31 random bits for each program, so that numbers fit SQLite's integers, and are never 0.
    let first = || AtomicU64::new((RandomState::new().hash_one(0) >> 33 << 32) + 1);
    NEXT.get_or_init(first).fetch_add(1, Ordering::Relaxed)
}

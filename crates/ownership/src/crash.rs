//! For tests: the point of its line at which a process that asks kills itself. [`crate::client`] and what it sends come
//! to these points; [`crate::hook`] says whether there are any.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::hook::setting;

/// The point of its line at which a process that asks kills itself: `POINT:RECORD[:TURN]`. Points are
/// `before-ask`, `after-ask`, `before-hear` (read, and nobody knows of it) and `after-hear` (acted on).
const TEST_ASKER_DIE_AT: &str = "OWNERSHIP_TEST_ASKER_DIE_AT";

/// In tests the process that asks may end here.
pub(crate) fn asker_comes(point: &str, record: impl FnOnce() -> Option<&'static str>) {
    static AT: OnceLock<Option<(String, AtomicU64)>> = OnceLock::new();
    if !cfg!(debug_assertions) {
        return;
    }
    let Some((at, left)) = AT.get_or_init(asker_end) else { return };
    let here = |record| at.strip_prefix(point).and_then(|at| at.strip_prefix(':')) == Some(record);
    if record().is_some_and(here) && left.fetch_sub(1, Ordering::Relaxed) == 1 {
        // A process may signal itself.
        let _ =
            rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL);
    }
}

fn asker_end() -> Option<(String, AtomicU64)> {
    let text = setting(TEST_ASKER_DIE_AT)?;
    let (at, turn) = match text.rsplit_once(':').map(|(at, turn)| (at, turn.parse())) {
        Some((at, Ok(turn))) => (at.to_owned(), turn),
        _ => (text, 1),
    };
    Some((at, AtomicU64::new(turn)))
}

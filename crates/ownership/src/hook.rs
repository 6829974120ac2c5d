//! Settings for tests, from the environment. A release build has none: nobody shall be able to weaken from
//! outside what it promises.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

/// Mechanisms to switch off, by name and separated by commas. Each has a test that shows what escapes then.
const TEST_OFF: &str = "OWNERSHIP_TEST_OFF";

/// The point of its line at which a process that asks kills itself: `POINT:RECORD[:TURN]`. Points are
/// `before-ask`, `after-ask`, `before-hear` (read, and nobody knows of it) and `after-hear` (acted on).
const TEST_ASKER_DIE_AT: &str = "OWNERSHIP_TEST_ASKER_DIE_AT";

/// The value of a variable that only tests set.
pub(crate) fn setting(variable: &str) -> Option<String> {
    if cfg!(debug_assertions) { std::env::var(variable).ok() } else { None }
}

/// Whether a test has switched this mechanism off.
pub(crate) fn is_off(mechanism: &str) -> bool {
    let list = setting(TEST_OFF);
    list.is_some_and(|list| list.split(',').any(|word| word == mechanism))
}

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

//! Runs an agent so that a panic becomes a message with its place, in a worker and in a thread of a
//! larger program alike. Used by `serve`.

use std::any::Any;
use std::cell::RefCell;
use std::panic::{self, AssertUnwindSafe, PanicHookInfo};
use std::sync::Once;

thread_local! {
    /// `Some` on a thread that runs an agent; then the last panic of this thread, if any.
    static CAUGHT: RefCell<Option<Option<String>>> = const { RefCell::new(None) };
}

/// Calls `work`; the error is the panic's message with file, line and column.
///
/// Only panics of this very thread are captured (and then not printed); those of all other threads go
/// to the hook that was there before.
pub(crate) fn run<T>(work: impl FnOnce() -> T) -> Result<T, String> {
    install();
    CAUGHT.set(Some(None));
    // What the closure touched is not used after a panic, but for the account and the outbox, whose
    // locks are recovered.
    let result = panic::catch_unwind(AssertUnwindSafe(work));
    let caught = CAUGHT.take().flatten();
    result.map_err(|payload| caught.unwrap_or_else(|| message(&*payload).to_owned()))
}

fn install() {
    static INSTALLED: Once = Once::new();
    INSTALLED.call_once(|| {
        let previous = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            if !capture(info) {
                previous(info);
            }
        }));
    });
}

/// Whether this thread runs an agent.
fn capture(info: &PanicHookInfo<'_>) -> bool {
    // A panic while a thread-local is torn down, or inside this very hook, is not an agent's.
    let captured = CAUGHT.try_with(|caught| {
        let Ok(mut caught) = caught.try_borrow_mut() else { return false };
        let Some(slot) = caught.as_mut() else { return false };
        let place = info.location().map_or_else(String::new, |place| format!(" ({place})"));
        *slot = Some(format!("{}{place}", message(info.payload())));
        true
    });
    captured.unwrap_or(false)
}

fn message(payload: &(dyn Any + Send)) -> &str {
    let text = payload.downcast_ref::<&str>().copied();
    text.or_else(|| payload.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("a panic without a message")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread;

    #[test]
    fn message_and_place_are_captured_per_thread() {
        let threads: Vec<_> = (0..8)
            .map(|number| {
                thread::spawn(move || (number, run(|| panic!("number {number}")).unwrap_err()))
            })
            .collect();
        for thread in threads {
            let (number, error) = thread.join().unwrap();
            let head = format!("number {number} (crates/delegate-child/src/guard.rs:");
            assert!(error.starts_with(&head) && error.ends_with(')'), "{error}");
        }
    }

    #[test]
    fn a_payload_that_is_no_text_has_words_and_the_next_run_is_clean() {
        let error = run(|| panic::panic_any(7_u8)).unwrap_err();
        assert!(error.starts_with("a panic without a message ("), "{error}");
        assert_eq!(run(|| 3), Ok(3));
        assert!(CAUGHT.with_borrow(Option::is_none));
    }
}

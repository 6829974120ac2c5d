//! Settings for tests, from the environment. A release build has none: nobody shall be able to weaken from
//! outside what it promises. (It needs nothing else of this crate, so that a test can compile it both ways.)

/// Mechanisms to switch off, by name and separated by commas. Each has a test that shows what escapes then.
const TEST_OFF: &str = "OWNERSHIP_TEST_OFF";

/// The value of a variable that only tests set.
pub(crate) fn setting(variable: &str) -> Option<String> {
    if cfg!(debug_assertions) { std::env::var(variable).ok() } else { None }
}

/// The entry of our environment that says so, for a process that gets nothing else of it.
pub(crate) fn inherited() -> Option<String> {
    setting(TEST_OFF).map(|list| format!("{TEST_OFF}={list}"))
}

/// Whether a test has switched this mechanism off.
pub(crate) fn is_off(mechanism: &str) -> bool {
    let list = setting(TEST_OFF);
    list.is_some_and(|list| list.split(',').any(|word| word == mechanism))
}

//! For tests only: single mechanisms switched off, so that a test can show what escapes without them.

/// For tests only: mechanisms to switch off, by name. Each has a test that shows what escapes then.
const TEST_OFF: &str = "OWNERSHIP_TEST_OFF";

/// For tests only: the step at which a guard kills itself, and at which time it is taken by either of the
/// two: `STEP` or `STEP:TURN`.
const TEST_DIE_AT: &str = "OWNERSHIP_TEST_DIE_AT";

/// What is switched off, in tests.
#[derive(Debug, Clone, Default)]
pub(super) struct Off {
    pub(super) subreaper: bool,
    pub(super) pidfd: bool,
    pub(super) walk: bool,
    pub(super) cont: bool,
    pub(super) kill: bool,
    /// As on a kernel without `CONFIG_PROC_CHILDREN`.
    pub(super) lists: bool,
    /// As on a kernel before 6.9.
    pub(super) group_handle: bool,
    pub(super) die_at: Option<(String, u64)>,
}

impl Off {
    pub(super) fn from_environment() -> Self {
        let list = std::env::var(TEST_OFF).unwrap_or_default();
        let has = |name| list.split(',').any(|word| word == name);
        Self {
            subreaper: has("subreaper"),
            pidfd: has("pidfd"),
            walk: has("walk"),
            cont: has("cont"),
            kill: has("kill"),
            lists: has("lists"),
            group_handle: has("group-handle"),
            die_at: std::env::var(TEST_DIE_AT).ok().map(|step| match step.split_once(':') {
                Some((step, turn)) => (step.to_owned(), turn.parse().unwrap_or(1)),
                None => (step, 1),
            }),
        }
    }
}

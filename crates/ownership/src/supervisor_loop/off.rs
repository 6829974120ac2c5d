//! For tests only: single mechanisms switched off, so that a test can show what escapes without them.

use std::io;

use crate::hook::{is_off, setting};
use crate::succession::Role;

/// For tests only: the step at which a guard kills itself, and at which time it is taken by either of the
/// two: `STEP` or `STEP:TURN`.
const TEST_DIE_AT: &str = "OWNERSHIP_TEST_DIE_AT";

/// For tests only: which guards kill themselves while they set themselves up, how many of them, and a directory
/// in which they count: `stage|keeper|supervisor:COUNT:DIR`.
const TEST_SET_UP: &str = "OWNERSHIP_TEST_SET_UP";

/// What is switched off, in tests.
#[derive(Debug, Clone, Default)]
pub(super) struct Off {
    pub(super) subreaper: bool,
    /// The owner's death is not seen. `deaf` does that to the supervisor alone.
    pub(super) pidfd: bool,
    pub(super) walk: bool,
    pub(super) cont: bool,
    pub(super) kill: bool,
    /// As on a kernel without `CONFIG_PROC_CHILDREN`.
    pub(super) lists: bool,
    /// As on a kernel before 6.9.
    pub(super) group_handle: bool,
    /// The other guard's death is not seen.
    pub(super) keeper_watch: bool,
    /// What the other guard had is not read.
    pub(super) table: bool,
    /// The other guard gets no copies of lines.
    pub(super) mirror: bool,
    /// A supervisor that does not begin to end everything is waited for.
    pub(super) mark: bool,
    /// Cgroups are not frozen for a TERM.
    pub(super) freeze: bool,
    /// Whoever knocks is the owner.
    pub(super) credentials: bool,
    pub(super) die_at: Option<(String, u64)>,
}

impl Off {
    pub(super) fn from_environment(role: Role) -> Self {
        Self {
            subreaper: is_off("subreaper"),
            pidfd: is_off("pidfd") || role == Role::Supervisor && is_off("deaf"),
            walk: is_off("walk"),
            cont: is_off("cont"),
            kill: is_off("kill"),
            lists: is_off("lists"),
            group_handle: is_off("group-handle"),
            keeper_watch: is_off("keeper-watch"),
            table: is_off("table"),
            mirror: is_off("mirror"),
            mark: is_off("mark"),
            freeze: is_off("freeze"),
            credentials: is_off("credentials"),
            die_at: setting(TEST_DIE_AT).map(|step| match step.split_once(':') {
                Some((step, turn)) => (step.to_owned(), turn.parse().unwrap_or(1)),
                None => (step, 1),
            }),
        }
    }
}

/// For tests only: a supervisor that cannot start, in either way.
pub(super) fn fail_at_start() -> io::Result<()> {
    if is_off("abort-at-start") {
        std::process::abort();
    }
    if is_off("exit-at-start") { Err(io::ErrorKind::Other.into()) } else { Ok(()) }
}

/// For tests only: this guard dies here, if it is one of those that are to.
pub(super) fn die_in_set_up(point: &str) {
    let Some(setting) = setting(TEST_SET_UP) else { return };
    let mut parts = setting.splitn(3, ':');
    let (Some(at), Some(count), Some(dir)) = (parts.next(), parts.next(), parts.next()) else {
        return;
    };
    let count: u32 = count.parse().unwrap_or(0);
    let claim = |number: u32| {
        let file = std::path::Path::new(dir).join(format!("death-{number}"));
        std::fs::File::create_new(file).is_ok()
    };
    if at == point && (1..=count).any(claim) {
        // A process may signal itself.
        let _ =
            rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL);
    }
}

//! Whose run a row is: the process that began it, so that a reader can tell that it died.
//!
//! A pid alone is reused; a pid with its start time is not, within one boot (proc_pid_stat(5),
//! field 22, in clock ticks since boot).

use std::fs;

/// Identity of a process across reuse of its number.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Owner {
    pub(crate) pid: u32,
    /// `None` where there is no `/proc`.
    pub(crate) start: Option<u64>,
    /// Id of the boot that `start` counts from.
    pub(crate) boot: Option<String>,
}

impl Owner {
    /// This process.
    pub(crate) fn this_process() -> Self {
        let pid = std::process::id();
        Self { pid, start: start_time(pid), boot: boot_id() }
    }

    /// Whether it is known to have ended. What cannot be told counts as alive.
    pub(crate) fn is_gone(&self) -> bool {
        let (Some(start), Some(boot)) = (self.start, &self.boot) else {
            return false;
        };
        boot_id().is_some_and(|now| now != *boot || start_time(self.pid) != Some(start))
    }
}

fn boot_id() -> Option<String> {
    let id = fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    Some(id.trim().to_owned())
}

/// Start time of a living process; a zombie has ended.
pub(crate) fn start_time(pid: u32) -> Option<u64> {
    parse_stat(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
}

/// The name (field 2) is in brackets and may hold anything, so fields count from the last bracket.
fn parse_stat(stat: &str) -> Option<u64> {
    let (_, rest) = stat.rsplit_once(") ")?;
    let mut fields = rest.split(' ');
    let state = fields.next()?;
    let start = fields.nth(18)?.parse().ok()?;
    (!matches!(state, "Z" | "X")).then_some(start)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_with_brackets_and_spaces_does_not_shift_the_fields() {
        let stat = |state: &str| {
            format!("7 (a) b) {state} 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 4242 0 0")
        };
        assert_eq!(parse_stat(&stat("S")), Some(4242));
        assert_eq!(parse_stat(&stat("Z")), None);
        assert_eq!(parse_stat("7 (x) S 1"), None);
        assert_eq!(parse_stat(""), None);
    }

    #[test]
    fn a_reused_pid_and_an_earlier_boot_are_gone() {
        let me = Owner::this_process();
        assert!(!me.is_gone());
        assert!(Owner { start: me.start.map(|at| at + 1), ..me.clone() }.is_gone());
        assert!(Owner { boot: Some("another".into()), ..me.clone() }.is_gone());
        assert!(!Owner { start: None, ..me }.is_gone());
    }
}

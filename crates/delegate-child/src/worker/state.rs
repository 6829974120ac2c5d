//! What a process is like, as far as one task could leave it changed for the next: compared before and after by
//! [`super::again`]. Read from `/proc`; what differs is named.
//!
//! It covers the working directory, the environment, umask, users, groups and capabilities, what is done on signals,
//! limits, priority, open descriptors, threads and child processes. Memory it cannot cover: that is what an agent
//! promises when it says that it is reusable.

use std::collections::BTreeMap;
use std::fs;
use std::os::fd::RawFd;
use std::process::id;

/// Lines of `/proc/self/status` and what they are called here.
const FIELDS: [(&str, &str); 15] = [
    ("Umask:", "umask"),
    ("Uid:", "users"),
    ("Gid:", "groups"),
    ("Groups:", "groups"),
    ("SigBlk:", "signals"),
    ("SigIgn:", "signals"),
    ("SigCgt:", "signals"),
    ("CapInh:", "capabilities"),
    ("CapPrm:", "capabilities"),
    ("CapEff:", "capabilities"),
    ("CapBnd:", "capabilities"),
    ("CapAmb:", "capabilities"),
    ("NoNewPrivs:", "privileges"),
    ("Seccomp:", "privileges"),
    ("Threads:", "threads"),
];

/// Place of the nice value in `/proc/self/stat`, behind the name (man 5 proc_pid_stat: field 19).
const NICE: usize = 16;

/// One look.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct State(BTreeMap<&'static str, String>);

impl State {
    /// Of this process, without this one descriptor: the line of the task, which is gone after it.
    pub(super) fn now(line: RawFd) -> Self {
        let read =
            |name: &str| fs::read_to_string(format!("/proc/self/{name}")).unwrap_or_default();
        let mut state = Self::default();
        state.put("working directory", &linked("/proc/self/cwd"));
        for (name, value) in std::env::vars_os() {
            state.put("environment", &format!("{name:?}={value:?}\n"));
        }
        let status = read("status");
        for line in status.lines() {
            if let Some((_, name)) = FIELDS.iter().find(|(field, _)| line.starts_with(field)) {
                state.put(name, line);
            }
        }
        state.put("limits", &read("limits"));
        let stat = read("stat");
        let nice = stat.rsplit_once(')').and_then(|(_, rest)| rest.split_whitespace().nth(NICE));
        state.put("priority", nice.unwrap_or_default());
        state.put("priority", &read("oom_score_adj"));
        state.put("descriptors", &descriptors(line));
        state.put("children", &read(&format!("task/{}/children", id())));
        state
    }

    fn put(&mut self, name: &'static str, text: &str) {
        self.0.entry(name).or_default().push_str(text);
    }

    /// What is not as it was, in words.
    pub(super) fn changed_since(&self, before: &Self) -> Vec<&'static str> {
        let names: std::collections::BTreeSet<_> = self.0.keys().chain(before.0.keys()).collect();
        names.into_iter().filter(|name| self.0.get(*name) != before.0.get(*name)).copied().collect()
    }
}

fn linked(path: &str) -> String {
    fs::read_link(path).map(|target| target.display().to_string()).unwrap_or_default()
}

/// Numbers and what is behind them, without the descriptor that reads the list.
fn descriptors(line: RawFd) -> String {
    let own = format!("/proc/{}/fd", id());
    let entries = fs::read_dir("/proc/self/fd").into_iter().flatten().flatten();
    let mut open: Vec<String> = entries
        .filter_map(|entry| {
            let number: RawFd = entry.file_name().to_str()?.parse().ok()?;
            let target = linked(entry.path().to_str()?);
            (number != line && target != own).then(|| format!("{number} {target}\n"))
        })
        .collect();
    open.sort();
    open.concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Beside other tests, which change this process too: only what they do not.
    #[test]
    fn what_was_opened_is_named_and_what_was_not_is_not() {
        let before = State::now(-1);
        let file = fs::File::open("/proc/self/environ").unwrap();
        let after = State::now(-1);
        let changed = after.changed_since(&before);
        assert!(changed.contains(&"descriptors"), "{changed:?}");
        assert!(!changed.contains(&"umask") && !changed.contains(&"limits"), "{changed:?}");
        drop(file);
        for name in ["working directory", "environment", "umask", "signals", "limits", "priority"] {
            assert!(before.0.get(name).is_some_and(|text| !text.is_empty()), "{name}");
        }
        assert_eq!(before.changed_since(&before.clone()), Vec::<&str>::new());
    }

    #[test]
    fn a_part_that_is_missing_on_one_side_is_a_change() {
        let mut one = State::default();
        one.put("limits", "x");
        assert_eq!(one.changed_since(&State::default()), ["limits"]);
        assert_eq!(State::default().changed_since(&one), ["limits"]);
    }
}

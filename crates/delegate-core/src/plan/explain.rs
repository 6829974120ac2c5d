//! The decisions of a [`Plan`] in sentences, for `--explain` and `--dry-run`.

use std::collections::BTreeSet;

use delegate_protocol::Isolation;
use ownership::Ration;

use super::{Plan, Task, role_word};
use crate::config::{bytes, duration};

impl Plan {
    /// The decisions as pairs of a name and a sentence, for `--explain` and `--dry-run`.
    #[must_use]
    pub fn explain(&self) -> Vec<(&'static str, String)> {
        let settings = &self.settings;
        let own = self.tasks.iter().filter(|task| task.timeout.is_some()).count();
        let timeout = match (settings.child_timeout, own) {
            (Some(limit), 0) => duration::show(limit),
            (Some(limit), own) => {
                format!("{}; {own} with a limit of their own", duration::show(limit))
            }
            (None, 0) => "none".to_owned(),
            (None, own) => format!("none; {own} with a limit of their own"),
        };
        let agents: BTreeSet<&str> = self.tasks.iter().map(Task::agent).collect();
        let launcher = self
            .launching
            .as_ref()
            .map(|(launching, why)| ("launcher", format!("{} ({why})", launching.word())));
        let limits = match limits_of(settings.ration) {
            limits if limits.is_empty() => "none".to_owned(),
            limits if self.isolation == Isolation::Thread => {
                format!("{limits}; without effect on threads")
            }
            limits => limits,
        };
        let decisions = vec![
            ("tasks", self.tasks.len().to_string()),
            ("agents", agents.into_iter().collect::<Vec<_>>().join(", ")),
            ("isolation", format!("{} ({})", self.isolation.word(), self.reason)),
            ("role", format!("{} at depth {}", role_word(self.frame.role), self.frame.child_depth)),
            ("route", self.frame.routed.reason.clone()),
            ("at once", settings.max_concurrent_children.to_string()),
            ("timeout per child", timeout),
            ("interrupt grace", duration::show(settings.interrupt_grace)),
            ("terminate grace", duration::show(settings.terminate_grace)),
            ("containment", settings.containment.to_string()),
            ("limits of a child", limits),
            ("start timeout", duration::show(settings.start_timeout)),
            ("heartbeat interval", duration::show(settings.heartbeat_interval)),
            ("largest result", format!("{} bytes", settings.max_result_bytes)),
        ];
        decisions.into_iter().chain(launcher).collect()
    }
}

/// What is asked for, by its keys.
pub(super) fn limits_of(ration: Ration) -> String {
    let Ration { memory, processes, open_files, cpu, nice, cpu_weight } = ration;
    let number = |number: u64| number.to_string();
    let parts = [
        ("max_memory", memory.map(bytes::show)),
        ("max_processes", processes.map(number)),
        ("max_open_files", open_files.map(number)),
        ("max_cpu", cpu.map(duration::show)),
        ("child_nice", nice.map(u64::from).map(number)),
        ("child_cpu_weight", cpu_weight.map(u64::from).map(number)),
    ];
    let parts = parts.into_iter().filter_map(|(key, value)| Some(format!("{key} {}", value?)));
    parts.collect::<Vec<_>>().join(", ")
}

impl Plan {
    /// What a person should know before anything starts.
    pub(crate) fn warnings(&self) -> Vec<String> {
        let limits = limits_of(self.settings.ration);
        if limits.is_empty() || self.isolation == Isolation::Process {
            return Vec::new();
        }
        vec![format!("{limits}: without effect, the children are threads of this process")]
    }
}

//! The decisions of a [`Plan`] in sentences, for `--explain` and `--dry-run`.

use std::collections::BTreeSet;

use super::{Plan, Task, role_word};
use crate::config::duration;

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
            ("start timeout", duration::show(settings.start_timeout)),
            ("heartbeat interval", duration::show(settings.heartbeat_interval)),
            ("largest result", format!("{} bytes", settings.max_result_bytes)),
        ];
        decisions.into_iter().chain(launcher).collect()
    }
}

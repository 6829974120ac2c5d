//! What would run and why: the headline of a run, `--dry-run` and `--explain`.

use std::fmt::Write as _;
use std::io::{self, Write};

use delegate_core::config::{Loaded, Origin, Settings};
use delegate_core::plan::Plan;
use delegate_protocol::Isolation;
use serde::Serialize;

use crate::cli::render::Style;
use crate::cli::render::json::line;
use crate::cli::render::text::{clip, count, escape, label, pad, took};

/// `3 tasks, one process each · config ./delegate.yaml`.
pub(crate) fn headline(plan: &Plan, loaded: &Loaded, style: Style) -> String {
    let tasks = count(plan.tasks.len(), "task", "tasks");
    let how = match plan.isolation {
        Isolation::Process => "one process each",
        Isolation::Thread => "in threads",
    };
    let config = match loaded.files.first() {
        Some(file) => {
            format!("{}config {}", style.dot(), escape(&file.to_string_lossy()))
        }
        None => String::new(),
    };
    format!("{tasks}, {how}{config}")
}

/// Each task that would run.
///
/// # Errors
/// Those of the writer.
pub(crate) fn tasks(to: &mut dyn Write, plan: &Plan, style: Style) -> io::Result<()> {
    let digits = plan.tasks.len().saturating_sub(1).to_string().len();
    for index in 0..plan.tasks.len() {
        let spec = plan.spec(index);
        let limit = spec.timeout_ms.map(std::time::Duration::from_millis);
        let limit = limit.map(|limit| format!("  limit {}", took(limit))).unwrap_or_default();
        let goal = pad(&label(&spec.goal, 60), if limit.is_empty() { 0 } else { 28 });
        let row = format!("  {index:>digits$} {}  {goal}{limit}", escape(&spec.agent));
        let row = clip(&row, style.width.unwrap_or(usize::MAX), style.ellipsis()).into_owned();
        writeln!(to, "{row}")?;
    }
    Ok(())
}

/// Each decision and its reason.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Explained {
    decisions: Vec<Decision>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
struct Decision {
    what: String,
    is: String,
    why: String,
}

impl Explained {
    /// For this plan and the settings that it was made from.
    pub(crate) fn of(plan: &Plan, loaded: &Loaded) -> Self {
        let mut decisions = vec![Decision {
            what: "isolation".into(),
            is: plan.isolation.word().into(),
            why: plan.reason.clone(),
        }];
        decisions.extend(values(&plan.settings).map(|(key, is)| Decision {
            what: key.into(),
            is,
            why: origin(loaded, key),
        }));
        for (key, by) in &loaded.origins {
            if !decisions.iter().any(|decision| spells(&decision.what, key)) {
                decisions.push(Decision {
                    what: (*key).into(),
                    is: "set".into(),
                    why: by_words(by),
                });
            }
        }
        for file in &loaded.files {
            decisions.push(Decision {
                what: "configuration".into(),
                is: file.to_string_lossy().into_owned(),
                why: "read".into(),
            });
        }
        Self { decisions }
    }

    /// One line per decision.
    pub(crate) fn text(&self) -> String {
        let mut text = String::new();
        for Decision { what, is, why } in &self.decisions {
            let (is, why) = (escape(is), escape(why));
            // Writing to a `String` cannot fail.
            let _: std::fmt::Result = writeln!(text, "{} {is} ({why})", pad(what, 24));
        }
        text
    }

    /// The plan as one object.
    ///
    /// # Errors
    /// Those of the writer.
    pub(crate) fn json(&self, to: &mut dyn Write, plan: &Plan) -> io::Result<()> {
        #[derive(Serialize)]
        struct PlanObject<'a> {
            schema: &'static str,
            isolation: Isolation,
            max_concurrent_children: u32,
            tasks: Vec<TaskObject>,
            decisions: &'a [Decision],
        }
        #[derive(Serialize)]
        struct TaskObject {
            task_index: u32,
            agent: String,
            goal: String,
            timeout_seconds: Option<f64>,
        }
        let task = |index| {
            let spec = plan.spec(index);
            let limit = spec.timeout_ms.map(std::time::Duration::from_millis);
            TaskObject {
                task_index: spec.task_index,
                agent: spec.agent,
                goal: spec.goal,
                timeout_seconds: limit.map(|limit| limit.as_secs_f64()),
            }
        };
        line(
            to,
            &PlanObject {
                schema: "delegate.plan/1",
                isolation: plan.isolation,
                max_concurrent_children: plan.settings.max_concurrent_children,
                tasks: (0..plan.tasks.len()).map(task).collect(),
                decisions: &self.decisions,
            },
        )
    }
}

/// The settings that decide how a batch runs.
fn values(settings: &Settings) -> impl Iterator<Item = (&'static str, String)> {
    let limit = settings.child_timeout.map_or_else(|| "none".to_owned(), took);
    let worker = match &settings.worker_command {
        Some(command) => command.join(" "),
        None => "this program".to_owned(),
    };
    [
        ("max_concurrent_children", settings.max_concurrent_children.to_string()),
        ("child_timeout", limit),
        ("start_timeout", took(settings.start_timeout)),
        ("interrupt_grace", took(settings.interrupt_grace)),
        ("terminate_grace", took(settings.terminate_grace)),
        ("worker.command", worker),
    ]
    .into_iter()
}

/// Durations have two spellings: `child_timeout` and `child_timeout_seconds`.
fn spells(name: &str, key: &str) -> bool {
    key.strip_suffix("_seconds").unwrap_or(key) == name
}

fn origin(loaded: &Loaded, name: &str) -> String {
    let found = loaded.origins.iter().find(|(key, _)| spells(name, key));
    found.map_or_else(|| "default".to_owned(), |(_, by)| by_words(by))
}

fn by_words(by: &Origin) -> String {
    match by {
        Origin::File { file, line } => format!("{}:{line}", file.display()),
        Origin::Variable(name) => format!("variable {name}"),
        Origin::Flag(name) => format!("flag {name}"),
        _ => "set".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;
    use std::time::Duration;

    fn loaded() -> Loaded {
        let origins = BTreeMap::from([
            ("child_timeout_seconds", Origin::Flag("--timeout".into())),
            ("max_iterations", Origin::Variable("DELEGATE_MAX_ITERATIONS".into())),
            ("max_concurrent_children", Origin::File { file: "d.yaml".into(), line: 3 }),
        ]);
        let settings =
            Settings { child_timeout: Some(Duration::from_secs(90)), ..Settings::default() };
        Loaded { settings, files: vec!["d.yaml".into()], notes: Vec::new(), origins }
    }

    fn plan() -> Plan {
        let (isolation, settings) = (Isolation::Process, loaded().settings);
        Plan { isolation, reason: "nothing was said".into(), tasks: Vec::new(), settings }
    }

    #[test]
    fn every_decision_has_its_reason() {
        let text = Explained::of(&plan(), &loaded()).text();
        for line in [
            "isolation                process (nothing was said)\n",
            "max_concurrent_children  10 (d.yaml:3)\n",
            "child_timeout            90.0s (flag --timeout)\n",
            "interrupt_grace          10.0s (default)\n",
            "worker.command           this program (default)\n",
            "max_iterations           set (variable DELEGATE_MAX_ITERATIONS)\n",
            "configuration            d.yaml (read)\n",
        ] {
            assert!(text.contains(line), "{line}{text}");
        }
        assert_eq!(text.matches("child_timeout").count(), 1);
    }

    #[test]
    fn the_headline_says_how_and_from_where() {
        let bare = Loaded { files: Vec::new(), ..loaded() };
        assert_eq!(headline(&plan(), &bare, Style::PLAIN), "0 tasks, one process each");
        let thread = Plan { isolation: Isolation::Thread, ..plan() };
        assert_eq!(
            headline(&thread, &loaded(), Style::ASCII),
            "0 tasks, in threads - config d.yaml"
        );
    }

    #[test]
    fn the_plan_for_programs() {
        let mut bytes = Vec::new();
        Explained::of(&plan(), &loaded()).json(&mut bytes, &plan()).unwrap();
        let json: serde_json::Value = serde_json::from_slice(&bytes).unwrap();
        assert_eq!(json["schema"], "delegate.plan/1");
        assert_eq!(json["isolation"], "process");
        assert_eq!(json["decisions"][0]["why"], "nothing was said");
    }
}

//! What would run and why: the headline of a run, `--dry-run` and `--explain`.

use std::io::{self, Write};

use delegate_core::config::{Loaded, Origin};
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
        let limit = plan.timeout(index).map(|limit| format!("  limit {}", took(limit)));
        let limit = limit.unwrap_or_default();
        let goal = pad(&label(&spec.goal, 60), if limit.is_empty() { 0 } else { 28 });
        let row = format!("  {index:>digits$} {}  {goal}{limit}", escape(&spec.agent));
        let row = clip(&row, style.width.unwrap_or(usize::MAX), style.ellipsis()).into_owned();
        writeln!(to, "{row}")?;
    }
    Ok(())
}

/// Where tasks run when neither a flag nor a file says so: the command differs from the library here.
const BY_DEFAULT: &str = "process (nothing is said: the command isolates every task)";

/// Each decision with its reason, and who set what.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Explained {
    decisions: Vec<Decision>,
    settings: Vec<Setting>,
    files: Vec<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
struct Decision {
    what: &'static str,
    is: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
struct Setting {
    key: &'static str,
    set_by: String,
}

impl Explained {
    /// For this plan and the settings that it was made from.
    /// `worker` is what a worker process executes, `said` whether anybody said where tasks run.
    pub(crate) fn of(plan: &Plan, loaded: &Loaded, worker: Option<&str>, said: bool) -> Self {
        let worker = worker.filter(|_| plan.isolation == Isolation::Process);
        let worker = worker.map(|is| ("worker", is.to_owned()));
        let decisions = plan.explain().into_iter().chain(worker);
        let decisions = decisions.map(|(what, is)| match what {
            "isolation" if !said => Decision { what, is: BY_DEFAULT.to_owned() },
            _ => Decision { what, is },
        });
        let settings = loaded.origins.iter();
        let settings = settings.map(|(key, by)| Setting { key, set_by: by_words(by) });
        let files = loaded.files.iter().map(|file| file.to_string_lossy().into_owned());
        Self {
            decisions: decisions.collect(),
            settings: settings.collect(),
            files: files.collect(),
        }
    }

    /// One line for each.
    pub(crate) fn text(&self) -> String {
        let decisions = self.decisions.iter().map(|Decision { what, is }| (*what, is.clone()));
        let settings =
            self.settings.iter().map(|Setting { key, set_by }| (*key, format!("set by {set_by}")));
        let files = self.files.iter().map(|file| ("configuration", file.clone()));
        let lines = decisions.chain(settings).chain(files);
        lines.map(|(what, is)| format!("{}  {}\n", pad(what, 26), escape(&is))).collect()
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
            #[serde(flatten)]
            explained: &'a Explained,
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
            TaskObject {
                task_index: spec.task_index,
                agent: spec.agent,
                goal: spec.goal,
                timeout_seconds: plan.timeout(index).map(|limit| limit.as_secs_f64()),
            }
        };
        line(
            to,
            &PlanObject {
                schema: "delegate.plan/1",
                isolation: plan.isolation,
                max_concurrent_children: plan.settings.max_concurrent_children,
                tasks: (0..plan.tasks.len()).map(task).collect(),
                explained: self,
            },
        )
    }
}

fn by_words(by: &Origin) -> String {
    match by {
        Origin::File { file, line } => format!("{}:{line}", file.display()),
        Origin::Variable(name) => format!("variable {name}"),
        Origin::Flag(name) => format!("flag {name}"),
        _ => "something else".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use delegate_core::config::Settings;
    use delegate_core::plan::{self, Task};
    use std::collections::BTreeMap;
    use std::time::Duration;

    fn loaded() -> Loaded {
        let origins = BTreeMap::from([
            ("child_timeout_seconds", Origin::Flag("--timeout".into())),
            ("max_iterations", Origin::Variable("DELEGATE_MAX_ITERATIONS".into())),
            ("worker.command", Origin::File { file: "d.yaml\x1b".into(), line: 3 }),
        ]);
        let settings =
            Settings { child_timeout: Some(Duration::from_secs(90)), ..Settings::default() };
        Loaded { settings, files: vec!["d.yaml".into()], notes: Vec::new(), origins }
    }

    fn plan() -> Plan {
        let mut tasks = vec![
            Task::new("a", "first\x1b[2J\nline"),
            Task::new("a", "second").timeout(Duration::from_secs(5)),
        ];
        let asked = Some(plan::Isolation::Thread);
        let agents = ["a".to_owned()];
        let means =
            plan::Means { agents: Some(&agents), has_worker: true, ..plan::Means::default() };
        plan::plan(&mut tasks, &loaded().settings, asked, means).unwrap()
    }

    #[test]
    fn every_decision_has_its_line() {
        let text = Explained::of(&plan(), &loaded(), Some("this program"), true).text();
        for line in [
            "at once                     10\n",
            "child_timeout_seconds       set by flag --timeout\n",
            "max_iterations              set by variable DELEGATE_MAX_ITERATIONS\n",
            "worker.command              set by d.yaml\\x1b:3\n",
            "configuration               d.yaml\n",
        ] {
            assert!(text.contains(line), "{line}{text}");
        }
        assert!(text.contains("isolation                   thread ("), "{text}");
    }

    #[test]
    fn the_headline_says_how_and_from_where() {
        let bare = Loaded { files: Vec::new(), ..loaded() };
        assert_eq!(headline(&plan(), &bare, Style::PLAIN), "2 tasks, in threads");
        let from = headline(&plan(), &loaded(), Style::ASCII);
        assert_eq!(from, "2 tasks, in threads - config d.yaml");
    }

    #[test]
    fn tasks_show_their_limits() {
        let mut text = Vec::new();
        tasks(&mut text, &plan(), Style::PLAIN).unwrap();
        assert_eq!(
            String::from_utf8(text).unwrap(),
            "  0 a  first\\x1b[2J                  limit 90.0s\n  \
             1 a  second                        limit 5.0s\n"
        );
    }

    #[test]
    fn the_plan_for_programs() {
        let mut bytes = Vec::new();
        Explained::of(&plan(), &loaded(), Some("this program"), true)
            .json(&mut bytes, &plan())
            .unwrap();
        let json: serde_json::Value = serde_json::from_slice(&bytes).unwrap();
        assert_eq!(json["schema"], "delegate.plan/1");
        assert_eq!(json["isolation"], "thread");
        assert_eq!(json["tasks"][1]["timeout_seconds"], 5.0);
        assert_eq!(json["decisions"][0]["what"], "tasks");
        assert_eq!(json["settings"][0]["set_by"], "flag --timeout");
        assert_eq!(json["files"][0], "d.yaml");
    }
}

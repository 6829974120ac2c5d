//! Matrix 11.4 and what a call is refused for: nothing is started when anything is refused, in either
//! executor.

use std::sync::{Arc, Mutex};

use delegate_protocol::TaskSpec;
use delegate_runtime::config::Settings;
use delegate_runtime::plan::{Addition, ChildBuilder, Parent};
use delegate_runtime::{Isolation, Outcome, Task, Value, blocking};

use crate::agents::{self, answer, script};
use crate::support::{BOTH, Rig, as_asked, rig, rig_with};

fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap()
}

/// Nothing of a batch is on record, and nothing was written for one.
fn nothing_started(rig: &Rig) {
    assert_eq!(rig.delegator.store().runs(1).unwrap(), []);
    let left = std::fs::read_dir(rig.state.path().join("runs"));
    assert_eq!(left.map(Iterator::count).unwrap_or_default(), 0);
}

/// Why a call is refused: the same in both executors.
fn refused_with(settings: &Settings, parent: Option<Parent>, call: &str) -> String {
    let [thread, process] = BOTH.map(|isolation| {
        let rig = rig_with(isolation, settings.clone());
        let batch = rig.delegator.call(json(call), "spec");
        let batch = match parent.clone() {
            Some(parent) => batch.parent(parent),
            None => batch,
        };
        let said = batch.start().unwrap_err().to_string();
        nothing_started(&rig);
        said
    });
    assert_eq!(thread, process);
    assert!(thread.ends_with("nothing was started"), "{thread}");
    thread
}

fn refused(call: &str) -> String {
    refused_with(&Settings::default(), Some(Parent::default()), call)
}

/// The specs of a call as the agents saw them; equal in both executors but for ids.
fn taken(call: &str) -> Vec<TaskSpec> {
    let [thread, process] = BOTH.map(|isolation| {
        let rig = rig(isolation);
        let batch = rig.delegator.call(json(call), "spec").parent(Parent::default());
        let read = |outcome: Outcome| -> TaskSpec {
            serde_json::from_str(outcome.summary.as_ref().unwrap()).unwrap()
        };
        batch.run().unwrap().results().map(read).collect::<Vec<_>>()
    });
    let goals = |specs: &[TaskSpec]| specs.iter().map(|spec| spec.goal.clone()).collect::<Vec<_>>();
    assert_eq!(goals(&thread), goals(&process));
    thread
}

#[test]
fn m003_a_call_cannot_set_the_budget() {
    let spec = taken(r#"{"goal": "a goal", "max_iterations": 9999}"#).remove(0);
    assert_eq!(spec.max_iterations, Settings::default().max_iterations);
}

#[test]
fn m008_a_call_cannot_name_a_program_that_speaks_for_the_model() {
    let spec = taken(r#"{"goal": "a goal", "acp_command": "sh", "acp_args": ["-c"]}"#).remove(0);
    assert_eq!((spec.routing.acp_command, spec.routing.acp_args.len()), (None, 0));
}

#[test]
fn m009_a_goal_alone_is_the_first_turn_without_context() {
    let spec = taken(r#"{"goal": "a goal"}"#).remove(0);
    assert_eq!((spec.goal.as_str(), spec.context), ("a goal", None));
}

#[test]
fn m010_goal_and_context_are_both_there() {
    let spec = taken(r#"{"goal": "a goal", "context": "what to know"}"#).remove(0);
    assert_eq!((spec.goal.as_str(), spec.context.as_deref()), ("a goal", Some("what to know")));
}

#[test]
fn m011_a_blank_context_is_none() {
    assert_eq!(taken(r#"{"goal": "a goal", "context": " \n"}"#)[0].context, None);
}

#[test]
fn m025_a_call_without_a_parent_names_the_parent_agent() {
    let said = refused_with(&Settings::default(), None, r#"{"goal": "a goal"}"#);
    assert!(said.contains("no parent agent"), "{said}");
}

#[test]
fn m026_a_caller_at_depth_2_is_refused_with_both_numbers_and_the_key() {
    let parent = Parent { depth: 2, ..Parent::default() };
    let said = refused_with(&Settings::default(), Some(parent.clone()), r#"{"goal": "a goal"}"#);
    assert!(said.contains("depth 2") && said.contains("max_spawn_depth is 1"), "{said}");
    for isolation in BOTH {
        let rig = rig(isolation);
        let task = script([], answer("a")).task("a goal");
        let error = rig.delegator.batch([task]).parent(parent.clone()).start().unwrap_err();
        assert_eq!(error.to_string(), said);
        nothing_started(&rig);
    }
}

#[test]
fn m027_neither_goal_nor_tasks_is_an_error() {
    for call in ["{}", r#"{"tasks": []}"#, r#"{"context": "c", "tasks": null}"#] {
        assert!(refused(call).contains("neither a goal nor a task"), "{call}");
    }
}

#[test]
fn m028_a_blank_goal_is_an_error() {
    assert!(refused(r#"{"goal": " \n"}"#).contains("task 0: the goal is blank"));
}

#[test]
fn m029_a_task_without_goal_is_an_error() {
    let said = refused(r#"{"tasks": [{"goal": "a goal of some length"}, {"context": "c"}]}"#);
    assert!(said.contains("task 1: it has no goal"), "{said}");
}

#[test]
fn m030_tasks_as_a_json_text_are_parsed_and_run() {
    let specs = taken(
        r#"{"tasks": "[{\"goal\": \"the first of two goals\"}, {\"goal\": \"the second of two goals\"}]"}"#,
    );
    assert_eq!(specs.len(), 2);
    assert_eq!(specs[1].goal, "the second of two goals");
}

#[test]
fn m031_a_task_that_is_text_is_named_with_its_number() {
    let said = refused(r#"{"tasks": ["text"]}"#);
    assert!(said.contains("task 0") && said.contains("object"), "{said}");
}

#[test]
fn m032_a_broken_json_text_is_an_error() {
    assert!(refused(r#"{"tasks": "[{"}"#).contains("not JSON"));
    assert!(refused(r#"{"tasks": "{}"}"#).contains("not of a list"));
}

#[test]
fn m033_more_tasks_than_allowed_are_refused_and_never_cut() {
    let settings = Settings { max_batch_size: Some(2), ..Settings::default() };
    let task = r#"{"goal": "a goal of some length"}"#;
    let call = format!(r#"{{"tasks": [{task}, {task}, {task}, {task}]}}"#);
    let said = refused_with(&settings, Some(Parent::default()), &call);
    assert!(said.contains("4 tasks") && said.contains("max_batch_size is 2"), "{said}");
}

#[test]
fn m034_tasks_make_the_goal_of_the_call_ignored() {
    let specs = taken(r#"{"goal": "outer", "context": "outer", "tasks": [{"goal": "inner"}]}"#);
    assert_eq!((specs.len(), specs[0].goal.as_str()), (1, "inner"));
    assert_eq!(specs[0].context, None);
}

#[test]
fn a_goal_that_says_nothing_is_refused() {
    assert!(refused(r#"{"goal": "TODO"}"#).contains("placeholder"));
    assert!(refused(r#"{"goal": "Summarise <name of file>"}"#).contains("<name of file>"));
}

/// Writes down what is built and undone, and fails at one child.
#[derive(Debug, Clone, Default)]
struct Builder {
    log: Arc<Mutex<Vec<(&'static str, u32)>>>,
    fails_at: Option<u32>,
}

impl ChildBuilder for Builder {
    fn build(&self, child: &TaskSpec) -> Result<Addition, String> {
        let index = child.task_index;
        if self.fails_at == Some(index) {
            return Err("its session cannot be opened".to_owned());
        }
        self.log.lock().unwrap().push(("build", index));
        let system_prompt = Some(format!("{:?} {}", child.role, child.child_depth));
        Ok(Addition { system_prompt, ..Addition::default() })
    }

    fn undo(&self, child: &TaskSpec) {
        self.log.lock().unwrap().push(("undo", child.task_index));
    }
}

fn build(
    isolation: Isolation,
    builder: &Builder,
) -> (Result<Vec<Outcome>, String>, tempfile::TempDir) {
    let state = tempfile::tempdir().unwrap();
    let delegator = blocking::Delegator::builder()
        .isolation(isolation)
        .settings(as_asked(Settings::default()))
        .child_builder(builder.clone())
        .state_dir(state.path())
        .build()
        .unwrap();
    let tasks = (0..3).map(|index| Task::of::<agents::Spec>(format!("goal {index}"), Value::Null));
    let report = delegator.batch(tasks).run().map_err(|error| error.to_string());
    if report.is_err() {
        assert_eq!(delegator.store().runs(1).unwrap(), []);
    }
    (report.map(|report| report.results().collect()), state)
}

#[test]
fn children_already_built_are_undone_when_a_later_one_fails() {
    for isolation in BOTH {
        let builder = Builder { fails_at: Some(2), ..Builder::default() };
        let (refused, _state) = build(isolation, &builder);
        let said = refused.unwrap_err();
        assert!(said.contains("task 2 (\"goal 2\") cannot be built: its session"), "{said}");
        let log = builder.log.lock().unwrap().clone();
        assert_eq!(log, [("build", 0), ("build", 1), ("undo", 1), ("undo", 0)]);
    }
}

#[test]
fn what_is_built_reaches_each_child_and_is_not_undone_when_it_runs() {
    for isolation in BOTH {
        let builder = Builder::default();
        let (ran, _state) = build(isolation, &builder);
        for outcome in ran.unwrap() {
            let spec: TaskSpec = serde_json::from_str(outcome.summary.as_ref().unwrap()).unwrap();
            assert_eq!(spec.system_prompt.as_deref(), Some("Leaf 1"));
        }
        assert_eq!(*builder.log.lock().unwrap(), [("build", 0), ("build", 1), ("build", 2)]);
    }
}

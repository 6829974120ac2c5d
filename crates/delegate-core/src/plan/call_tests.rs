//! Calls of a model: every shape of arguments, and the order in which faults are told.
#![expect(clippy::wildcard_enum_match_arm, reason = "a test looks for some errors among all")]

use std::sync::{Arc, Mutex};

use proptest::prelude::*;

use super::*;

fn value(json: &str) -> Value {
    serde_json::from_str(json).unwrap()
}

fn agents() -> Vec<String> {
    vec!["model".to_owned(), "command".to_owned()]
}

fn planned(json: &str, agent: &str) -> Result<Plan, StartError> {
    let (parent, agents) = (Parent::default(), agents());
    let means = Means {
        agents: Some(&agents),
        has_worker: true,
        parent: Some(&parent),
        ..Means::default()
    };
    plan_call(&value(json), agent, &Settings::default(), None, means)
}

fn refused(json: &str) -> String {
    planned(json, "model").unwrap_err().to_string()
}

fn goals(json: &str) -> Vec<String> {
    planned(json, "model").unwrap().tasks.iter().map(|task| task.goal.clone()).collect()
}

#[test]
fn a_call_becomes_tasks() {
    let json = r#"{"goal": "ignored", "tasks": [
        {"goal": "look at the first file", "context": "c", "group": "g", "images": "a.png"},
        {"goal": "look at the second file", "context": " ", "images": ["a", "b"], "role": "leaf"}
    ]}"#;
    let plan = planned(json, "model").unwrap();
    let (one, two) = (plan.spec(0), plan.spec(1));
    assert_eq!((one.context.as_deref(), one.group.as_deref()), (Some("c"), Some("g")));
    assert_eq!((one.images, two.images), (vec!["a.png".to_owned()], vec!["a".into(), "b".into()]));
    assert_eq!((two.context, two.agent.as_str()), (None, "model"));
    assert_eq!(goals(r#"{"goal": "one alone"}"#), ["one alone"]);
    assert_eq!(goals(r#"{"goal": "one alone", "tasks": [], "action": "delegate"}"#), ["one alone"]);
    assert_eq!(goals(r#"{"goal": "one alone", "tasks": null, "action": " "}"#), ["one alone"]);
    // What a model may not say is not taken from it, and is no fault either.
    let acp = r#"{"goal": "g", "acp_command": "sh", "acp_args": ["-c"], "max_iterations": 9999}"#;
    let spec = planned(acp, "model").unwrap().spec(0);
    assert_eq!((spec.routing.acp_command.as_deref(), spec.max_iterations), (None, 50));
}

#[test]
fn a_call_that_is_wrong_says_where() {
    for (json, expected) in [
        ("5", "the arguments must be an object, not a number"),
        (r#"{"action": "explode"}"#, "there is no action `explode`"),
        (r#"{"action": "list"}"#, "the action `list` starts nothing: Delegator::act"),
        (r#"{"action": 5}"#, "action must be text"),
        (r#"{"tasks": 5}"#, "tasks must be a list, not a number"),
        (r#"{"tasks": "[{"}"#, "tasks is a text that is not JSON"),
        (r#"{"tasks": "{}"}"#, "tasks is a JSON text of an object, not of a list"),
        (r#"{"goal": 5}"#, "task 0: goal must be text, not a number"),
        (r#"{"tasks": [{"goal": "fine fine fine"}, {"context": "c"}]}"#, "task 1: it has no goal"),
        (
            r#"{"tasks": [{"goal": "g", "gaol": "x"}]}"#,
            "task 0: unknown field `gaol`; did you mean `goal`?",
        ),
        (
            r#"{"goal": "long enough here", "output_schema": "x"}"#,
            "task 0 (\"long enough here\"): output_schema is malformed: it must be an object",
        ),
        (r#"{"goal": "g", "images": {}}"#, "task 0: images must be a list of at most 8"),
        (r#"{"goal": "g", "images": [5]}"#, "task 0: an image must be text"),
        (r#"{"goal": "todo"}"#, "task 0 (\"todo\"): the goal is a placeholder"),
        (
            r#"{"tasks": [{"goal": "short"}, {"goal": "long enough here"}]}"#,
            "task 0 (\"short\"): the goal has 5",
        ),
    ] {
        let said = refused(json);
        assert!(said.starts_with(expected), "{json}\n{said}");
        assert!(said.ends_with("; nothing was started"), "{said}");
    }
}

#[test]
fn the_gate_does_not_ask_about_the_goals_of_commands() {
    let json = r#"{"tasks": [{"goal": "todo"}, {"goal": "x"}]}"#;
    assert!(planned(json, "command").is_ok());
    assert!(planned(json, "model").is_err());
    // Duplicates are fine: two looks at one thing may be meant.
    let twice = r#"{"tasks": [{"goal": "look at the file"}, {"goal": "look at the file"}]}"#;
    assert!(planned(twice, "model").is_ok());
}

/// Writes down what is built and undone; fails at one child.
#[derive(Debug, Default)]
struct Builder {
    log: Arc<Mutex<Vec<String>>>,
    fails_at: Option<u32>,
    panics: bool,
}

impl ChildBuilder for Builder {
    fn build(&self, child: &TaskSpec) -> Result<Addition, String> {
        let index = child.task_index;
        if self.fails_at == Some(index) {
            assert!(!self.panics, "the builder panics");
            return Err("the session database is locked".to_owned());
        }
        self.log.lock().unwrap().push(format!("build {index} {}", child.goal));
        Ok(Addition { system_prompt: Some(format!("prompt {index}")), ..Addition::default() })
    }

    fn undo(&self, child: &TaskSpec) {
        let index = child.task_index;
        self.log
            .lock()
            .unwrap()
            .push(format!("undo {index} {}", child.system_prompt.as_ref().unwrap()));
        assert!(!self.panics, "undoing panics too");
    }
}

fn build(builder: Builder, keep: bool) -> (Result<(), StartError>, Vec<String>) {
    let log = Arc::clone(&builder.log);
    let builder: Arc<dyn ChildBuilder> = Arc::new(builder);
    let agents = agents();
    let means = Means {
        agents: Some(&agents),
        has_worker: true,
        builder: Some(&builder),
        ..Means::default()
    };
    let mut tasks: Vec<Task> =
        (0..4).map(|index| Task::new("model", format!("goal {index}"))).collect();
    let planned = plan(&mut tasks, &Settings::default(), None, means);
    if planned.is_err() {
        assert_eq!(tasks.len(), 4, "the tasks are given back");
    }
    let planned = planned.map(|plan| {
        assert_eq!(plan.spec(2).system_prompt.as_deref(), Some("prompt 2"));
        if keep {
            plan.keep_built();
        }
    });
    let log = log.lock().unwrap().clone();
    (planned, log)
}

#[test]
fn children_already_built_are_undone_when_a_later_one_fails() {
    let (planned, log) = build(Builder { fails_at: Some(2), ..Builder::default() }, false);
    assert_eq!(
        planned.unwrap_err().to_string(),
        "task 2 (\"goal 2\") cannot be built: the session database is locked; nothing was started"
    );
    assert_eq!(log, ["build 0 goal 0", "build 1 goal 1", "undo 1 prompt 1", "undo 0 prompt 0"]);
}

#[test]
fn a_plan_that_is_dropped_is_undone_and_one_that_starts_is_not() {
    let builds = ["build 0 goal 0", "build 1 goal 1", "build 2 goal 2", "build 3 goal 3"];
    let (planned, log) = build(Builder::default(), false);
    assert!(planned.is_ok());
    assert_eq!(log[..4], builds);
    assert_eq!(
        log[4..],
        ["undo 3 prompt 3", "undo 2 prompt 2", "undo 1 prompt 1", "undo 0 prompt 0"]
    );
    assert_eq!(build(Builder::default(), true).1, builds);
}

#[test]
fn a_builder_that_panics_is_undone_as_well() {
    let builder = Builder { fails_at: Some(2), panics: true, ..Builder::default() };
    let log = Arc::clone(&builder.log);
    let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| build(builder, false)));
    assert!(panicked.is_err());
    assert_eq!(log.lock().unwrap()[2..], ["undo 1 prompt 1", "undo 0 prompt 0"]);
}

/// The steps of a call in the order of the contract, as what is wrong with them.
const STEPS: [&str; 8] =
    ["parent", "action", "depth", "route", "tasks", "too many", "images", "build"];

fn step_of(error: &StartError) -> &'static str {
    match error {
        StartError::NoParent => "parent",
        StartError::InvalidCall { reason } if reason.contains("action") => "action",
        StartError::TooDeep { .. } => "depth",
        StartError::NoRoute { .. } => "route",
        StartError::InvalidCall { .. } => "tasks",
        StartError::TooManyTasks { .. } => "too many",
        StartError::InvalidTask { .. } => "images",
        StartError::NotBuilt { .. } => "build",
        other => panic!("{other}"),
    }
}

#[test]
fn whatever_is_wrong_at_once_the_first_step_is_told_and_nothing_is_built() {
    for wrong in 0..1_u32 << STEPS.len() {
        let is = |name: &str| {
            let at = STEPS.iter().position(|step| *step == name).unwrap();
            wrong & (1 << at) != 0
        };
        let parent = Parent { depth: if is("depth") { 1 } else { 0 }, ..Parent::default() };
        let settings = Settings {
            provider: is("route").then(|| "nobody".to_owned()),
            max_batch_size: is("too many").then_some(1),
            ..Settings::default()
        };
        let images = if is("images") { 9 } else { 1 };
        let mut call = serde_json::json!({ "tasks": [
            { "goal": "a goal that is long enough" },
            { "goal": "another one of that kind", "images": vec!["i"; images] },
        ]});
        if is("action") {
            call["action"] = "list".into();
        }
        if is("tasks") {
            call["tasks"][0] = "text".into();
        }
        let builder = Builder { fails_at: is("build").then_some(1), ..Builder::default() };
        let log = Arc::clone(&builder.log);
        let builder: Arc<dyn ChildBuilder> = Arc::new(builder);
        let agents = agents();
        let means = Means {
            agents: Some(&agents),
            has_worker: true,
            parent: (!is("parent")).then_some(&parent),
            builder: Some(&builder),
            ..Means::default()
        };
        let call: Value = serde_json::from_value(call).unwrap();
        let told = plan_call(&call, "model", &settings, None, means);
        let first = STEPS.iter().find(|step| is(step));
        assert_eq!(told.as_ref().err().map(step_of), first.copied(), "{wrong:b}");
        if first.is_some_and(|step| *step != "build") {
            assert!(log.lock().unwrap().is_empty(), "{wrong:b}");
        }
    }
}

fn any_value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::Bool),
        any::<i8>().prop_map(|number| Value::Int(number.into())),
        "[a-z{}<> \\[\\]\"]{0,20}".prop_map(Value::Text),
    ];
    let key = prop::sample::select(
        ["goal", "tasks", "context", "images", "group", "action", "role", "x"].to_vec(),
    );
    leaf.prop_recursive(3, 20, 4, move |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::List),
            prop::collection::btree_map(key.clone().prop_map(str::to_owned), inner, 0..4)
                .prop_map(Value::Map),
        ]
    })
}

proptest! {
    #[test]
    fn no_call_makes_it_panic(call in any_value()) {
        let (parent, agents) = (Parent::default(), agents());
        let means = Means {
            agents: Some(&agents), has_worker: true, parent: Some(&parent), ..Means::default()
        };
        if let Ok(plan) = plan_call(&call, "model", &Settings::default(), None, means) {
            prop_assert!((0..plan.tasks.len()).all(|index| !plan.spec(index).goal.trim().is_empty()));
        }
    }
}

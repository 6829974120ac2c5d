//! What `plan` decides and refuses, and what batch files say.

use std::path::Path;
use std::time::{Duration, UNIX_EPOCH};

use delegate_protocol::Value;
use proptest::prelude::*;

use super::batch_file::{self, BatchFile};
use super::*;

fn agents() -> Vec<String> {
    vec!["primes".to_owned(), "command".to_owned()]
}

fn try_plan(mut tasks: Vec<Task>) -> Result<Plan, StartError> {
    plan(&mut tasks, &Settings::default(), None, means(&agents()))
}

fn refused(tasks: Vec<Task>) -> String {
    try_plan(tasks).unwrap_err().to_string()
}

fn read(text: &str) -> Result<BatchFile, crate::config::Diagnostic> {
    batch_file::parse(text, Path::new("b.yaml"))
}

fn fault(text: &str) -> String {
    read(text).unwrap_err().render(false)
}

fn means(agents: &[String]) -> Means<'_> {
    Means { agents: Some(agents), has_worker: true, ..Means::default() }
}

#[test]
fn a_batch_that_cannot_start_says_why() {
    assert_eq!(refused(vec![]), "the batch has no task; nothing was started");
    let settings = Settings { max_batch_size: Some(2), ..Settings::default() };
    let mut tasks: Vec<Task> = (0..3).map(|i| Task::new("primes", format!("part {i}"))).collect();
    assert_eq!(
        plan(&mut tasks, &settings, None, means(&agents())).unwrap_err().to_string(),
        "the batch has 3 tasks, max_batch_size is 2; nothing was started"
    );
    let good = || Task::new("primes", "good");
    assert_eq!(
        refused(vec![good(), Task::new("primes", " \n")]),
        "task 1: the goal is blank; nothing was started"
    );
    assert_eq!(
        refused(vec![good(), Task::new("prime", "part 1")]),
        "task 1 (\"part 1\"): there is no agent `prime` here; known: command, primes; nothing was started"
    );
    let nan = Value::from_typed(&std::collections::BTreeMap::from([("from", f64::NAN)])).unwrap();
    assert_eq!(
        refused(vec![Task::new("primes", "part 3").params(nan)]),
        "task 0 (\"part 3\"): params cannot cross the process line: field from is NaN; nothing was started"
    );
    assert_eq!(
        refused(vec![good().timeout(Duration::from_millis(999))]),
        "task 0 (\"good\"): its timeout is 999ms, at least 1s is needed; nothing was started"
    );
    assert_eq!(
        refused(vec![good().images((0..9).map(|i| format!("{i}.png")))]),
        "task 0 (\"good\"): it has 9 images, at most 8 are taken; nothing was started"
    );
    assert!(
        try_plan(vec![good().images((0..8).map(|i| format!("{i}.png"))).timeout(MIN_TIMEOUT)])
            .is_ok()
    );
}

#[test]
fn tasks_become_a_plan_or_stay_where_they_are() {
    let mut tasks = vec![Task::new("primes", "good"), Task::new("primes", " ")];
    let given = tasks.clone();
    assert!(plan(&mut tasks, &Settings::default(), None, means(&agents())).is_err());
    assert_eq!(tasks, given);
    tasks.pop();
    assert!(plan(&mut tasks, &Settings::default(), None, means(&agents())).is_ok());
    assert!(tasks.is_empty());
}

#[test]
fn params_that_are_nested_too_deep_are_named() {
    let depth = delegate_protocol::codec::MAX_DEPTH;
    let deep = (0..2 * depth).fold(Value::Null, |inside, _| Value::List(vec![inside]));
    let text = refused(vec![Task::new("primes", "g").params(deep)]);
    assert!(text.starts_with("task 0 (\"g\"): params cannot cross"), "{text}");
}

#[test]
fn params_that_could_not_become_data_are_named() {
    let params = task::Params::refused("a key is not text".to_owned());
    let task = Task { params, ..Task::new("primes", "g") };
    assert_eq!(
        refused(vec![task]),
        "task 0 (\"g\"): params cannot cross the process line: a key is not text; nothing was started"
    );
}

#[test]
fn processes_that_are_asked_for_are_planned() {
    let asked = plan(
        &mut vec![Task::new("primes", "g")],
        &Settings::default(),
        Some(Isolation::Process),
        means(&agents()),
    );
    if decide::HAS_PROCESSES {
        assert_eq!(asked.unwrap().isolation, delegate_protocol::Isolation::Process);
    } else {
        assert!(matches!(asked, Err(StartError::Unsupported { .. })));
    }
}

#[test]
fn a_spec_carries_its_task_and_the_settings() {
    let settings = Settings {
        child_timeout: Some(Duration::from_secs(7)),
        heartbeat_interval: Duration::from_millis(1500),
        max_iterations: 5,
        max_result_bytes: 99,
        ..Settings::default()
    };
    let own = Task::new("primes", "own")
        .context("c")
        .timeout(Duration::from_secs(2))
        .cwd("sub/dir")
        .group("g")
        .traceparent("00-1-2-03")
        .metadata("chat", Value::Int(7))
        .params(Value::from("p"));
    let mut tasks = vec![Task::new("command", "plain"), own];
    let mut plan = plan(&mut tasks, &settings, None, means(&agents())).unwrap();
    plan.started = UNIX_EPOCH + Duration::from_secs(951_782_400);
    plan.nonce = 0x00ff_ffff;

    let plain = plan.spec(0);
    assert_eq!((plain.task_index, plain.task_count, plain.child_depth), (0, 2, 1));
    assert_eq!(plain.session_id, "20000229_000000_ffffff");
    assert_eq!(plan.spec(1).session_id, "20000229_000000_000000");
    assert_eq!(plain.log_prefix, "[subagent-0]");
    assert_eq!(plain.platform, "subagent");
    assert_eq!((plain.timeout_ms, plain.heartbeat_interval_ms), (Some(7000), 1500));
    assert_eq!((plain.max_iterations, plain.max_result_bytes), (5, 99));
    assert_eq!((plain.cwd, plain.params), (None, Value::Null));
    assert!(plain.relay_events && !plain.auto_approve);

    let own = plan.spec(1);
    assert_eq!(own.timeout_ms, Some(2000));
    assert_eq!(own.cwd, Some(std::env::current_dir().unwrap().join("sub/dir")));
    assert_eq!((own.context.as_deref(), own.group.as_deref()), (Some("c"), Some("g")));
    assert_eq!(own.traceparent.as_deref(), Some("00-1-2-03"));
    assert_eq!((own.params, own.metadata["chat"].clone()), (Value::from("p"), Value::Int(7)));
}

#[test]
fn ids_are_stable_in_a_plan_and_new_in_the_next() {
    let tasks = || (0..50).map(|i| Task::new("primes", format!("{i}"))).collect::<Vec<_>>();
    let (one, two) = (try_plan(tasks()).unwrap(), try_plan(tasks()).unwrap());
    let sessions: BTreeSet<String> = (0..50).map(|i| one.spec(i).session_id).collect();
    assert_eq!(sessions.len(), 50);
    for index in 0..50 {
        assert_eq!(one.spec(index), one.spec(index));
        assert_eq!(one.spec(index).subagent_id, one.subagent_id(index));
        assert_ne!(one.subagent_id(index), two.subagent_id(index));
    }
}

#[test]
fn the_explanation_names_every_decision() {
    let mut tasks =
        vec![Task::new("primes", "a").timeout(Duration::from_secs(90)), Task::new("command", "b")];
    let settings = Settings {
        process_isolation: Some(crate::config::ProcessIsolation::Off),
        ..Settings::default()
    };
    let explained = plan(&mut tasks, &settings, None, means(&agents())).unwrap().explain();
    let of = |name: &str| explained.iter().find(|(key, _)| *key == name).unwrap().1.as_str();
    assert_eq!(of("tasks"), "2");
    assert_eq!(of("agents"), "command, primes");
    assert_eq!(of("isolation"), "thread (the setting process_isolation is false)");
    assert_eq!(of("at once"), "10");
    assert_eq!(of("timeout per child"), "none; 1 with a limit of their own");
    assert_eq!(of("start timeout"), "1m");
}

#[test]
fn a_batch_file_becomes_tasks() {
    let text = "\
defaults:
  agent: primes
  context: shared
  params: {from: 1, deep: {a: [1, 2.5, x, true, ~]}}
  timeout: 1m
  metadata: {a: 1, b: 2}
tasks:
  - goal: one
  - goal: |
      two
      lines
    agent: command
    params:
      argv: [rg, -c, x]
    timeout_seconds: 2.5
    cwd: sub
    images: [a.png]
    group: g
    metadata: {c: 3}
    traceparent: 00-1-2-03
    context: ~
";
    let tasks = read(text).unwrap().tasks;
    let params = Value::from_typed(
        &serde_json::json!({"from": 1, "deep": {"a": [1, 2.5, "x", true, null]}}),
    );
    let one = Task {
        origin: at(8, 5),
        timeout_origin: at(5, 3),
        ..Task::new("primes", "one")
            .context("shared")
            .params(params.unwrap())
            .timeout(Duration::from_secs(60))
            .metadata("a", Value::Int(1))
            .metadata("b", Value::Int(2))
    };
    let argv = Value::from_typed(&serde_json::json!({"argv": ["rg", "-c", "x"]})).unwrap();
    let two = Task {
        origin: at(9, 5),
        timeout_origin: at(15, 5),
        ..Task::new("command", "two\nlines\n")
            .context("shared")
            .params(argv)
            .timeout(Duration::from_millis(2500))
            .cwd("sub")
            .images(["a.png"])
            .group("g")
            .metadata("c", Value::Int(3))
            .traceparent("00-1-2-03")
    };
    assert_eq!(tasks, [one, two]);
    assert_eq!(read("tasks: [{goal: x}]").unwrap().tasks[0].agent(), "command");
}

#[test]
fn faults_of_a_batch_file_have_place_and_remedy() {
    for (text, expected) in [
        (
            "",
            "error: the batch file is empty\n --> b.yaml:1:1\n1 | \n  | ^ it needs `tasks:`, a list of tasks with a `goal` each\n",
        ),
        (
            "# nothing\n",
            "error: the batch file is empty\n --> b.yaml:1:1\n1 | # nothing\n  | ^ it needs `tasks:`, a list of tasks with a `goal` each\n",
        ),
        (
            "defaults: {}\n",
            "error: there is no `tasks:`\n --> b.yaml:1:1\n1 | defaults: {}\n  | ^ it is a list of tasks with a `goal` each\n",
        ),
        ("tasks: []\n", "error: `tasks` is empty\n --> b.yaml:1:1\n1 | tasks: []\n  | ^^^^^\n"),
        ("tasks:\n", "error: `tasks` is empty\n --> b.yaml:1:1\n1 | tasks:\n  | ^^^^^\n"),
        (
            "tasks: {goal: x}\n",
            "error: `tasks` must be a list, not a map\n --> b.yaml:1:8\n1 | tasks: {goal: x}\n  |        ^\n",
        ),
        (
            "- goal: x\n",
            "error: a batch file must be a map of fields, not a list\n --> b.yaml:1:1\n1 | - goal: x\n  | ^\n",
        ),
        (
            "task:\n  - goal: x\n",
            "error: unknown field `task` in a batch file\n --> b.yaml:1:1\n1 | task:\n  | ^^^^ did you mean `tasks`?\n",
        ),
        (
            "tasks:\n  - x\n",
            "error: task 0 must be a map of fields, not the text `x`\n --> b.yaml:2:5\n2 |   - x\n  |     ^\n",
        ),
        (
            "tasks:\n  - goal: a\n  - agent: b\n",
            "error: task 1 has no `goal`\n --> b.yaml:3:5\n3 |   - agent: b\n  |     ^\n",
        ),
        (
            "tasks:\n  - goal: ~\n",
            "error: task 0 has no `goal`\n --> b.yaml:2:5\n2 |   - goal: ~\n  |     ^\n",
        ),
        (
            "tasks:\n  - goal: '  '\n",
            "error: the goal is blank\n --> b.yaml:2:11\n2 |   - goal: '  '\n  |           ^^^^\n",
        ),
        (
            "tasks:\n  - goal: 42\n",
            "error: `goal` must be text, not the number 42\n --> b.yaml:2:11\n2 |   - goal: 42\n  |           ^^ put it in quotes\n",
        ),
        (
            "tasks:\n  - goal: {a: b}\n",
            "error: `goal` must be text, not a map\n --> b.yaml:2:11\n2 |   - goal: {a: b}\n  |           ^\n",
        ),
        (
            "tasks:\n  - gaol: x\n",
            "error: unknown field `gaol` in task 0\n --> b.yaml:2:5\n2 |   - gaol: x\n  |     ^^^^ did you mean `goal`?\n",
        ),
        (
            "defaults: {goal: x}\ntasks: [{goal: y}]\n",
            "error: unknown field `goal` in `defaults`\n --> b.yaml:1:12\n1 | defaults: {goal: x}\n  |            ^^^^ known: context, agent, params, timeout, timeout_seconds, cwd, images, group, toolsets, worktree_isolation, metadata, output_schema, traceparent\n",
        ),
        (
            "tasks:\n  - goal: x\n    goal: y\n",
            "error: the key `goal` is set twice\n --> b.yaml:3:5\n3 |     goal: y\n  |     ^^^^ remove one of the two\n",
        ),
        (
            "tasks:\n  - goal: x\n    timeout: 90s\n    timeout_seconds: 90\n",
            "error: `timeout` and `timeout_seconds` are the same setting\n --> b.yaml:4:5\n4 |     timeout_seconds: 90\n  |     ^^^^^^^^^^^^^^^ keep one of the two\n",
        ),
        (
            "tasks:\n  - goal: x\n    timeout: 500ms\n",
            "error: `timeout` must be from 1s to 87600h, not the text `500ms`\n --> b.yaml:3:14\n3 |     timeout: 500ms\n  |              ^^^^^\n",
        ),
        (
            "tasks:\n  - goal: x\n    timeout_seconds: -3\n",
            "error: `timeout_seconds` must be from 1s to 87600h, not the number -3\n --> b.yaml:3:22\n3 |     timeout_seconds: -3\n  |                      ^^\n",
        ),
        (
            "tasks:\n  - goal: x\n    timeout: 90\n",
            "error: `timeout` must be a duration such as `90s`, `5m`, `1h30m` or `250ms`, not the number 90\n --> b.yaml:3:14\n3 |     timeout: 90\n  |              ^^ write `90s`\n",
        ),
        (
            "tasks:\n  - goal: x\n    argv: [ls]\n",
            "error: unknown field `argv` in task 0\n --> b.yaml:3:5\n3 |     argv: [ls]\n  |     ^^^^ write `params: {argv: ...}`\n",
        ),
        (
            "tasks:\n  - goal: x\n    timeout_seconds: 90s\n",
            "error: `timeout_seconds` must be a number of seconds, not the text `90s`\n --> b.yaml:3:22\n3 |     timeout_seconds: 90s\n  |                      ^^^\n",
        ),
        (
            "tasks:\n  - goal: x\n    params: {1: a}\n",
            "error: a map key must be text; put it in quotes\n --> b.yaml:3:14\n3 |     params: {1: a}\n  |              ^\n",
        ),
        (
            "tasks:\n  - goal: x\n    images: [1]\n",
            "error: `images` must be text, not the number 1\n --> b.yaml:3:14\n3 |     images: [1]\n  |              ^ put it in quotes\n",
        ),
        (
            "tasks:\n  - goal: x\n    images: [a, a, a, a, a, a, a, a, a]\n",
            "error: 9 images, at most 8 are taken\n --> b.yaml:3:5\n3 |     images: [a, a, a, a, a, a, a, a, a]\n  |     ^^^^^^\n",
        ),
        (
            "tasks:\n  - goal: x\n    metadata: [1]\n",
            "error: `metadata` must be a map of fields, not a list\n --> b.yaml:3:15\n3 |     metadata: [1]\n  |               ^\n",
        ),
    ] {
        assert_eq!(fault(text), expected, "{text}");
    }
    assert!(fault("tasks: [\n").starts_with("error: not valid YAML: "));
}

#[test]
fn nan_in_a_batch_file_reaches_the_plan() {
    let tasks = read("tasks: [{goal: x, params: {a: [.nan]}}]").unwrap().tasks;
    assert_eq!(
        refused(tasks),
        "task 0 (\"x\"): params cannot cross the process line: field a[0] is NaN; nothing was started"
    );
}

fn at(line: u32, column: u32) -> Option<Origin> {
    Some(Origin { file: Path::new("b.yaml").into(), line, column })
}

/// 100,000 tasks where the code is optimised (`cargo test --release`): more nodes, events and bytes
/// than the parser's own budgets allow. Unoptimised that takes minutes, so it is a shorter batch.
const LONG_BATCH: usize = if cfg!(debug_assertions) { 3_000 } else { 100_000 };

#[test]
fn a_long_batch_is_read_and_planned() {
    let mut text = "defaults: {timeout: 5m}\ntasks:\n".to_owned();
    for index in 0..LONG_BATCH {
        text.push_str(&format!(
            "  - goal: part {index}\n    params: {{argv: [echo, '{index}']}}\n"
        ));
    }
    let tasks = read(&text).unwrap().tasks;
    assert_eq!(tasks.len(), LONG_BATCH);
    let last = tasks[LONG_BATCH - 1].origin().unwrap();
    assert_eq!(last.to_string(), format!("b.yaml:{}", 2 * LONG_BATCH + 1));
    let plan = try_plan(tasks).unwrap();
    assert_eq!(plan.spec(LONG_BATCH - 1).goal, format!("part {}", LONG_BATCH - 1));
}

proptest! {
    #[test]
    fn no_batch_file_makes_it_panic(
        text in prop_oneof![
            any::<String>(),
            "(tasks:\n)?( {0,4}(- )?(goal|params|timeout|tasks|images|defaults|x): ?(a|1|\\[|\\{|~|90s|&a|\\*a)?\n){0,8}",
        ],
    ) {
        match read(&text) {
            Err(fault) => prop_assert!(!fault.render(false).is_empty()),
            Ok(batch) => prop_assert!(!batch.tasks.is_empty()),
        }
    }
}

//! Matrix 11.13 to 11.14 as far as they are decided before the start: depth, role, toolsets, lineage,
//! approvals. The same spec in both executors.

use delegate_protocol::TaskSpec;
use delegate_runtime::config::{self, Settings, Sources};
use delegate_runtime::plan::{Parent, Tools};
use delegate_runtime::{Role, SubagentId, Task, Value};

use crate::agents;
use crate::matrix_routing::{nobody, specs};

fn load(below: &str) -> Result<Settings, String> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("config.yaml");
    std::fs::write(&path, format!("delegation:\n  {below}\n")).unwrap();
    let env = vec![("HOME".to_owned(), folder.path().display().to_string())];
    let cwd = folder.path().to_owned();
    let sources = Sources { explicit: Some(path), cwd, env, flags: Vec::new() };
    config::load(&sources).map(|loaded| loaded.settings).map_err(|error| error.to_string())
}

fn texts(names: &[&str]) -> Vec<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

fn holding(sets: &[&str]) -> Parent {
    Parent { tools: Tools { enabled: Some(texts(sets)), ..Tools::default() }, ..Parent::default() }
}

/// The spec of one task, the same in both executors but for its ids.
fn spec_of(settings: &Settings, parent: &Parent, task: Task) -> TaskSpec {
    let [mut thread, mut process] = specs(settings, parent, &nobody(), &[task]);
    let (thread, mut process) = (thread.remove(0), process.remove(0));
    process.subagent_id = thread.subagent_id;
    process.session_id.clone_from(&thread.session_id);
    assert_eq!(thread, process);
    thread
}

fn task() -> Task {
    Task::of::<agents::Spec>("a goal", Value::Null)
}

fn at(depth: u32, below: &str) -> TaskSpec {
    let parent = Parent { depth, ..holding(&["web"]) };
    spec_of(&load(below).unwrap(), &parent, task())
}

#[test]
fn m038_the_depth_of_a_child_is_its_parents_and_one() {
    assert_eq!(at(0, "max_spawn_depth: 9").child_depth, 1);
    assert_eq!(at(5, "max_spawn_depth: 9").child_depth, 6);
}

#[test]
fn m123_depth_is_1_where_nothing_is_said_and_the_switch_is_on() {
    let settings = Settings::default();
    assert_eq!((settings.max_spawn_depth, settings.orchestrator_enabled), (1, true));
}

#[test]
fn m124_depth_0_is_an_error() {
    let said = load("max_spawn_depth: 0").unwrap_err();
    assert!(said.contains("max_spawn_depth` must be a whole number from 1"), "{said}");
}

#[test]
fn m125_depth_99_is_99() {
    assert_eq!(load("max_spawn_depth: 99").unwrap().max_spawn_depth, 99);
    assert_eq!(at(98, "max_spawn_depth: 99").child_depth, 99);
}

#[test]
fn m126_a_depth_that_is_no_number_is_an_error() {
    assert!(load("max_spawn_depth: deep").unwrap_err().contains("max_spawn_depth"));
}

#[test]
fn m127_a_child_is_a_leaf_where_nothing_is_said() {
    let spec = at(0, "max_iterations: 5");
    assert_eq!((spec.role, spec.enabled_toolsets), (Role::Leaf, Some(texts(&["web"]))));
}

#[test]
fn m128_at_depth_0_of_2_a_child_may_delegate_and_has_the_toolset() {
    let spec = at(0, "max_spawn_depth: 2");
    assert_eq!(spec.role, Role::Orchestrator);
    assert_eq!(spec.enabled_toolsets.unwrap(), ["web", "delegation"]);
    assert!(!spec.blocked_tools.contains(&"delegate_task".to_owned()));
}

#[test]
fn m130_at_depth_1_of_2_a_child_is_a_leaf() {
    let spec = at(1, "max_spawn_depth: 2");
    assert_eq!((spec.role, spec.enabled_toolsets), (Role::Leaf, Some(texts(&["web"]))));
    assert!(spec.blocked_tools.contains(&"delegate_task".to_owned()));
}

#[test]
fn m131_at_the_default_depth_a_child_is_a_leaf() {
    assert_eq!(at(0, "max_spawn_depth: 1").role, Role::Leaf);
}

#[test]
fn m132_with_the_switch_off_a_child_is_a_leaf_whatever_the_depth() {
    let spec = at(0, "{max_spawn_depth: 9, orchestrator_enabled: false}");
    assert_eq!((spec.role, spec.enabled_toolsets), (Role::Leaf, Some(texts(&["web"]))));
    assert!(load("orchestrator_enabled: 'off'").is_err(), "strict booleans");
}

#[test]
fn m133_every_child_of_a_batch_has_the_role_of_its_depth() {
    let settings = load("max_spawn_depth: 2").unwrap();
    let tasks = [task(), task(), task()];
    for seen in specs(&settings, &holding(&["web"]), &nobody(), &tasks) {
        assert!(seen.iter().all(|spec| spec.role == Role::Orchestrator));
    }
}

#[test]
fn m136_approval_is_a_strict_boolean_that_reaches_the_child() {
    assert!(!at(0, "max_iterations: 5").auto_approve);
    assert!(!at(0, "subagent_auto_approve: false").auto_approve);
    assert!(at(0, "subagent_auto_approve: true").auto_approve);
    assert!(load("subagent_auto_approve: 'yes'").is_err());
    assert!(load("subagent_auto_approve: yes").is_err());
}

#[test]
fn m016_blocked_toolsets_do_not_reach_a_child() {
    let held = holding(&["terminal", "file", "delegation", "clarify", "memory", "code_execution"]);
    let spec = spec_of(&Settings::default(), &held, task());
    assert_eq!(spec.enabled_toolsets.unwrap(), ["terminal", "file", "code_execution"]);
}

#[test]
fn m022_a_narrowed_child_keeps_the_mcp_toolsets() {
    let mut held = holding(&["web", "browser", "mcp-X"]);
    held.tools.mcp = texts(&["mcp-X"]);
    let narrowed = || task().toolsets(["web", "browser", "terminal"]);
    let spec = spec_of(&Settings::default(), &held, narrowed());
    assert_eq!(spec.enabled_toolsets.unwrap(), ["web", "browser", "mcp-X"]);
}

#[test]
fn m023_with_inherit_mcp_toolsets_off_it_does_not() {
    let mut held = holding(&["web", "browser", "mcp-X"]);
    held.tools.mcp = texts(&["mcp-X"]);
    let off = load("inherit_mcp_toolsets: false").unwrap();
    let spec = spec_of(&off, &held, task().toolsets(["web", "browser", "terminal"]));
    assert_eq!(spec.enabled_toolsets.unwrap(), ["web", "browser"]);
}

#[test]
fn m024_a_parent_without_delegation_gives_it_to_a_child_that_may_delegate() {
    let settings = load("max_spawn_depth: 2").unwrap();
    let spec = spec_of(&settings, &holding(&["file"]), task());
    assert_eq!(spec.enabled_toolsets.unwrap(), ["file", "delegation"]);
}

#[test]
fn m046_the_parents_view_of_its_tools_stays_as_it_was() {
    let held = holding(&["web", "memory"]);
    let before = held.clone();
    let spec = spec_of(&Settings::default(), &held, task().toolsets(["web"]));
    assert_eq!(spec.enabled_toolsets.unwrap(), ["web"]);
    assert_eq!(held, before);
}

#[test]
fn lineage_and_place_come_from_the_parent_and_the_session_from_us() {
    let folder = tempfile::tempdir().unwrap();
    let parent = Parent {
        subagent_id: Some(SubagentId::new(3, 7)),
        depth: 1,
        session_id: Some("20260101_000000_abcdef".to_owned()),
        turn_id: Some("turn-9".to_owned()),
        delegation_id: Some("d-1".to_owned()),
        session_db_path: Some("/var/sessions.db".into()),
        cwd: Some("/tmp".into()),
        workspaces: vec!["not/absolute".into(), folder.path().to_owned()],
        container: Some("box".to_owned()),
        cache_ttl: Some("1h".to_owned()),
        relay_events: false,
        tools: Tools { disabled: texts(&["browser"]), ..Tools::default() },
        ..Parent::default()
    };
    let settings = load("max_spawn_depth: 5").unwrap();
    let spec = spec_of(&settings, &parent, task());
    assert_eq!(spec.parent_subagent_id, parent.subagent_id);
    assert_eq!((spec.parent_session_id, spec.parent_turn_id), (parent.session_id, parent.turn_id));
    assert_eq!(spec.delegation_id, parent.delegation_id);
    assert_eq!((spec.session_db_path, spec.cwd), (parent.session_db_path, parent.cwd));
    assert_eq!(spec.workspace_hint.as_deref(), Some(folder.path()));
    assert_eq!((spec.container, spec.cache_ttl.as_deref()), (parent.container, Some("5m")));
    assert_eq!((spec.relay_events, spec.disabled_toolsets), (false, texts(&["browser"])));
    // YYYYmmdd_HHMMSS_<6 hex>, made before the child started.
    let parts: Vec<&str> = spec.session_id.split('_').collect();
    assert_eq!(parts.iter().map(|part| part.len()).collect::<Vec<_>>(), [8, 6, 6]);
    // A task's own directory wins.
    let own = spec_of(
        &settings,
        &Parent { cwd: Some("/".into()), ..Parent::default() },
        task().cwd("/tmp"),
    );
    assert_eq!(own.cwd.as_deref(), Some("/tmp".as_ref()));
}

//! Settings from real files: the place of every fault, precedence, variables, trust.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use proptest::prelude::*;
use tempfile::TempDir;

use super::yaml::Source;
use super::*;

/// A home, a repository below it, and a system file, all empty.
struct World {
    dir: TempDir,
}

impl World {
    fn new() -> Self {
        let dir = TempDir::new().unwrap();
        fs::create_dir_all(dir.path().join("home/repo/.git")).unwrap();
        fs::create_dir_all(dir.path().join("home/repo/deep/er")).unwrap();
        Self { dir }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Writes a file that begins with `delegation:`.
    fn write(&self, name: &str, below: &str) -> PathBuf {
        self.write_all(name, &format!("delegation:\n{below}"))
    }

    fn write_all(&self, name: &str, text: &str) -> PathBuf {
        let path = self.path(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, text).unwrap();
        path
    }

    fn sources(&self) -> Sources {
        Sources {
            explicit: None,
            cwd: self.path("home/repo"),
            env: vec![("HOME".to_owned(), self.path("home").display().to_string())],
            flags: Vec::new(),
        }
    }

    fn load(&self, sources: &Sources) -> Result<Loaded, Diagnostic> {
        load_with(sources, &self.path("etc/config.yaml"))
    }

    /// Loads one file by name and renders its fault, with the file shown as `F`.
    fn fault(&self, text: &str) -> String {
        let file = self.write_all("named.yaml", text);
        let sources = Sources { explicit: Some(file.clone()), ..self.sources() };
        let fault = self.load(&sources).unwrap_err();
        fault.render(false).replace(&file.display().to_string(), "F")
    }

    fn set(&self, sources: &mut Sources, variable: &str, value: &str) {
        sources.env.push((variable.to_owned(), value.to_owned()));
    }
}

#[test]
fn nothing_said_is_the_default() {
    let world = World::new();
    let loaded = world.load(&world.sources()).unwrap();
    assert_eq!(loaded.settings, Settings::default());
    assert!(loaded.files.is_empty() && loaded.notes.is_empty() && loaded.origins.is_empty());
}

#[test]
fn the_example_is_the_default_and_sets_every_key() {
    let world = World::new();
    let example = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../config.example.yaml");
    let loaded = world.load(&Sources { explicit: Some(example), ..world.sources() }).unwrap();
    assert_eq!(loaded.settings, Settings::default());
    assert_eq!(loaded.origins.len(), keys::KEYS.len());
}

#[test]
fn every_key_reaches_its_setting() {
    let world = World::new();
    world.write(
        "home/.config/delegate/config.yaml",
        "  process_isolation: auto
  isolate_single_task: true
  max_concurrent_children: 4
  max_batch_size: 7
  max_tree_children: 8
  max_tree_tokens: 1000000
  max_tree_cost_usd: 2.5
  child_max_tokens: 900
  child_max_cost_usd: 1
  child_timeout: 1m30s
  child_inactivity: 40s
  stale_idle_seconds: 41
  stale_in_tool: 42s
  on_stale: kill
  containment: subreaper
  max_memory: 512MiB
  max_processes: 64
  max_open_files: 128
  max_cpu: 2m
  child_nice: 5
  child_cpu_weight: 50
  interrupt_grace_seconds: 0
  terminate_grace: 250ms
  start_timeout_seconds: 0.5
  heartbeat_interval_seconds: 1.25
  max_iterations: 9
  max_result_bytes: 1000
  max_summary_chars: 0
  worker: {command: [python3, worker.py]}
  max_spawn_depth: 3
  orchestrator_enabled: false
  model: ' m '
  provider: p
  base_url: https://example.org/v1
  api_key: ' sk-1 '
  api_mode: Chat_Completions
  request_overrides: {extra_body: {a: 1}}
  reasoning_effort: false
  fallback_providers: [{provider: q, model: n, api_key: sk-2}]
  inherit_mcp_toolsets: false
  subagent_auto_approve: true
  worktree_isolation: true
  janitor_at_start: report
  launcher: pool
  pool: {min_idle: 2, max_idle: 9, idle: 5s, max_uses: 3}
  credential_pools: ' /etc/keys.yaml '
  credential_pool_strategies: {a: round_robin, 'custom:b': least_used}
  provider_limits: {a: {max_concurrent_calls: 4, requests_per_minute: 60}, b: {}}
  background_overflow: refuse
  independent_completions: true
  shared_helpers: {docs: [npx, server]}
",
    );
    let expected = Settings {
        process_isolation: Some(ProcessIsolation::Auto),
        isolate_single_task: true,
        max_concurrent_children: 4,
        max_batch_size: Some(7),
        max_tree_children: Some(8),
        max_tree_tokens: Some(1_000_000),
        max_tree_cost_usd: Some(2.5),
        child_max_tokens: Some(900),
        child_max_cost_usd: Some(1.0),
        child_timeout: Some(Duration::from_secs(90)),
        child_inactivity: Some(Duration::from_secs(40)),
        stale_idle: Duration::from_secs(41),
        stale_in_tool: Duration::from_secs(42),
        on_stale: OnStale::Kill,
        containment: ownership::Containment::Subreaper,
        ration: ownership::Ration {
            memory: Some(512 << 20),
            processes: Some(64),
            open_files: Some(128),
            cpu: Some(Duration::from_secs(120)),
            nice: Some(5),
            cpu_weight: Some(50),
        },
        interrupt_grace: Duration::ZERO,
        terminate_grace: Duration::from_millis(250),
        start_timeout: Duration::from_millis(500),
        heartbeat_interval: Duration::from_millis(1250),
        max_iterations: 9,
        max_result_bytes: 1000,
        max_summary_chars: Some(0),
        worker_command: Some(vec!["python3".into(), "worker.py".into()]),
        max_spawn_depth: 3,
        orchestrator_enabled: false,
        model: Some("m".into()),
        provider: Some("p".into()),
        base_url: Some("https://example.org/v1".into()),
        api_key: Some(ApiKey::new("sk-1".into())),
        api_mode: Some("chat_completions".into()),
        request_overrides: Some(
            [("extra_body".to_owned(), Value::Map([("a".to_owned(), Value::Int(1))].into()))]
                .into(),
        ),
        reasoning_effort: Some("none"),
        fallback_providers: Some(vec![Fallback {
            provider: "q".into(),
            model: "n".into(),
            api_key: Some(ApiKey::new("sk-2".into())),
            ..Fallback::default()
        }]),
        inherit_mcp_toolsets: false,
        subagent_auto_approve: true,
        worktree_isolation: true,
        janitor_at_start: AtStart::Report,
        launcher: LauncherWish::Pool,
        pool: Pool { min_idle: 2, max_idle: 9, idle: Duration::from_secs(5), max_uses: 3 },
        credential_pools: Some("/etc/keys.yaml".into()),
        credential_pool_strategies: [
            ("a".to_owned(), PoolStrategy::RoundRobin),
            ("custom:b".to_owned(), PoolStrategy::LeastUsed),
        ]
        .into(),
        provider_limits: [
            (
                "a".to_owned(),
                CallLimits { max_concurrent_calls: Some(4), requests_per_minute: Some(60) },
            ),
            ("b".to_owned(), CallLimits::default()),
        ]
        .into(),
        background_overflow: Overflow::Refuse,
        independent_completions: true,
        shared_helpers: BTreeMap::from([(
            "docs".to_owned(),
            vec!["npx".to_owned(), "server".to_owned()],
        )]),
    };
    let loaded = world.load(&world.sources()).unwrap();
    assert_eq!(loaded.settings, expected);
    // Every key is shown too, and no key of an endpoint.
    let default = Loaded { settings: Settings::default(), ..loaded.clone() }.settings_in_order();
    for (set, default) in loaded.settings_in_order().into_iter().zip(default) {
        assert_ne!(set.value, default.value, "{}", set.name);
    }
    assert!(!format!("{:?}", loaded.settings_in_order()).contains("sk-"));
    assert!(!format!("{loaded:?}").contains("sk-"));
}

#[test]
fn a_key_comes_from_a_file_only_and_is_shown_in_no_message() {
    let world = World::new();
    let mut sources = world.sources();
    world.set(&mut sources, "DELEGATE_API_KEY", "sk-canary");
    let fault = world.load(&sources).unwrap_err();
    assert_eq!(fault.code, "key_not_in_a_file");
    assert!(!fault.render(false).contains("canary"));
    for (key, text) in [
        ("api_key", "sk-canary"),
        ("fallback_providers", "[{provider: a, model: b, api_key: sk-canary}]"),
    ] {
        let flags = vec![(key.to_owned(), text.to_owned(), "--set".to_owned())];
        let fault = world.load(&Sources { flags, ..world.sources() }).unwrap_err();
        assert_eq!(fault.code, "key_not_in_a_file", "{key}");
        assert!(!fault.to_string().contains("canary"));
    }
    for below in [
        "api_key: [sk-canary]",
        "fallback_providers: [{api_key: sk-canary}]",
        "api_key: sk-canary: x",
        "api_kye: sk-canary",
        "apy_key: sk-canary",
        "pasword: sk-canary",
        "api_key_: sk-canary",
        "fallback_providers: [{provider: a, model: b, api_kye: sk-canary}]",
        "api_kye:\n    - sk-canary",
        "key_of_mine: &it sk-canary\n  api_key: *it",
        "nonsense: [1, &it sk-canary]\n  api_key: *it",
        "{api_key: sk-canary, x: 1}",
        "base_url: https://user:sk-canary@host/v1",
        "base_url: 'http://sk-canary@host'",
    ] {
        let shown = world.fault(&format!("delegation:\n  {below}\n"));
        assert!(shown.contains("F:2:") && !shown.contains("canary"), "{shown}");
    }
    // What stands below a key is it.
    for below in [
        "api_key:\n    - sk-canary",
        "api_key:\n  - sk-canary",
        "api_key:\n    sk-canary: x",
        "api_key: >\n\n    text\n    sk-canary: [",
        "request_overrides:\n    headers:\n      - x: &a 1\n        sk-canary: 1\n        sk-canary: 2",
    ] {
        let text = format!("delegation:\n  {below}\n  max_iterations: -1\n");
        let shown = world.fault(&text);
        assert!(
            shown.contains("F:") && !shown.contains("| sk-") && !shown.contains("- sk-"),
            "{shown}"
        );
    }
    // What cannot hold a key is shown still.
    assert!(world.fault("delegation:\n  max_tokens: 5\n").contains("| "));
}

/// Each fault looks for its line; a file of a hundred thousand took minutes.
#[test]
fn a_file_with_nothing_but_faults_is_given_up_after_some() {
    let wrong = |name: &str| (0..20_000).map(|n| format!("{name}{n}: 1\n")).collect::<String>();
    for text in [format!("delegation:\n{}", wrong("  k")), wrong("k")] {
        let source = Source { file: Some(Path::new("F")), text: &text };
        let layer = layer::read(source);
        assert_eq!(layer.faults.len(), 101);
        let last = layer.faults.last().unwrap();
        assert_eq!(last.code, "too_many_faults");
        assert!(last.line >= Some(101) && last.line <= Some(102), "{last:?}");
    }
}

#[cfg(unix)]
#[test]
fn a_key_that_others_can_read_is_told() {
    use std::os::unix::fs::PermissionsExt as _;
    let world = World::new();
    let file = world.write("home/.config/delegate/config.yaml", "  api_key: sk-canary\n");
    let notes = |mode| {
        fs::set_permissions(&file, fs::Permissions::from_mode(mode)).unwrap();
        world.load(&world.sources()).unwrap().notes
    };
    assert!(notes(0o600).is_empty());
    let told = notes(0o644);
    assert!(told[0].contains(":2: others can read") && told[0].contains("chmod 600"), "{told:?}");
    assert!(!told[0].contains("canary"));
}

#[test]
fn a_check_tells_every_fault_in_the_order_of_the_file() {
    let world = World::new();
    let file = world.write(
        "c.yaml",
        "  max_iteration: 1\n  max_batch_size: 0\n  worker: {command: x, y: 1}\n  independent_completions: 1\n  routes: {}\nother: 1\n",
    );
    let system = world.path("none");
    let checked = show::check_with(Some(&file), &world.sources(), &system);
    let told: Vec<(&str, u32)> =
        checked.faults.iter().map(|fault| (fault.code, fault.line.unwrap())).collect();
    assert_eq!(
        told,
        [
            ("unknown_key", 2),
            ("out_of_range", 3),
            ("wrong_type", 4),
            ("unknown_key", 4),
            ("wrong_type", 5),
            ("unknown_key", 7)
        ]
    );
    assert_eq!(checked.notes, ["ignored, the agent loop's own key: routes"]);
    assert_eq!(checked.files, [file]);
    // Everything that would be read: files, then what they are together.
    assert!(show::check_with(None, &world.sources(), &system).faults.is_empty());
    let tree = world.write("home/repo/delegate.yaml", "  provider: p\n");
    let checked = show::check_with(None, &world.sources(), &system);
    assert_eq!(checked.faults.iter().map(|fault| fault.code).collect::<Vec<_>>(), ["untrusted"]);
    let at = places(&world.sources());
    assert_eq!((&at[0].path, at[0].state), (&tree, State::Untrusted));
    world.write("home/repo/delegate.yaml", "  provider: [p]\n");
    assert_eq!(places(&world.sources())[0].state, State::Faulty);
    world.write("home/repo/delegate.yaml", "  model: m\n");
    assert_eq!(places(&world.sources())[0].state, State::Read);
    assert_eq!(places(&world.sources())[1].state, State::Absent);
    let missing = show::check_with(Some(&world.path("nowhere")), &world.sources(), &system);
    assert_eq!(missing.faults[0].code, "missing_file");
}

#[test]
fn faults_of_a_file_have_place_and_remedy() {
    let world = World::new();
    for (text, expected) in [
        (
            "# c\n\ndelegation:\n  max_concurent_children: 4\n",
            "error: unknown key `max_concurent_children`\n --> F:4:3\n4 |   max_concurent_children: 4\n  |   ^^^^^^^^^^^^^^^^^^^^^^ did you mean `max_concurrent_children`?\n",
        ),
        (
            "delegation:\n  worker:\n    comand: [a]\n",
            "error: unknown key `comand`\n --> F:3:5\n3 |     comand: [a]\n  |     ^^^^^^ did you mean `command`?\n",
        ),
        (
            "delegation: {}\nmodel: x\n",
            "error: unknown key `model`\n --> F:2:1\n2 | model: x\n  | ^^^^^ the only section is `delegation`; settings stand below it\n",
        ),
        (
            "delegatoin: {}\n",
            "error: unknown key `delegatoin`\n --> F:1:1\n1 | delegatoin: {}\n  | ^^^^^^^^^^ did you mean `delegation`?\n",
        ),
        (
            "delegation:\n  max_iterations: 1\n  max_iterations: 2\n",
            "error: the key `max_iterations` is set twice\n --> F:3:3\n3 |   max_iterations: 2\n  |   ^^^^^^^^^^^^^^ remove one of the two\n",
        ),
        (
            "delegation:\n  child_timeout: 90s\n  child_timeout_seconds: 90\n",
            "error: `child_timeout` and `child_timeout_seconds` are the same setting\n --> F:3:3\n3 |   child_timeout_seconds: 90\n  |   ^^^^^^^^^^^^^^^^^^^^^ keep one of the two\n",
        ),
        (
            "delegation:\n  isolate_single_task: yes\n",
            "error: `isolate_single_task` must be true or false, not the text `yes`\n --> F:2:24\n2 |   isolate_single_task: yes\n  |                        ^^^ With process_isolation true or auto: give a batch of one task a process too. Default: false\n",
        ),
        (
            "delegation:\n  process_isolation: autos\n",
            "error: `process_isolation` must be false, true or auto, or null, not the text `autos`\n --> F:2:22\n2 |   process_isolation: autos\n  |                      ^^^^^ did you mean `auto`?\n",
        ),
        (
            "delegation:\n  process_isolation: 'true'\n",
            "error: `process_isolation` must be false, true or auto, or null, not the text `true`\n --> F:2:22\n2 |   process_isolation: 'true'\n  |                      ^^^^^^ write it without quotes\n",
        ),
        (
            "delegation:\n  max_batch_size: 1e3\n",
            "error: `max_batch_size` must be a whole number from 1 to 4294967295, or null, not the number 1000.0\n --> F:2:19\n2 |   max_batch_size: 1e3\n  |                   ^^^ write it with digits only\n",
        ),
        (
            "delegation:\n  child_timeout: 90\n",
            "error: `child_timeout` must be a duration such as `90s`, `5m`, `1h30m` or `250ms`, not the number 90\n --> F:2:18\n2 |   child_timeout: 90\n  |                  ^^ write `90s`, or use `child_timeout_seconds`\n",
        ),
        (
            "delegation:\n  child_timeout_seconds: 90s\n",
            "error: `child_timeout_seconds` must be a number of seconds from 1 to 315360000, or null, not the text `90s`\n --> F:2:26\n2 |   child_timeout_seconds: 90s\n  |                          ^^^ a duration text belongs to `child_timeout`\n",
        ),
        (
            "delegation:\n  child_timeout: 999ms\n",
            "error: `child_timeout` must be from 1s to 87600h, not the text `999ms`\n --> F:2:18\n2 |   child_timeout: 999ms\n  |                  ^^^^^ Wall clock of one child, from its own start. null: no limit. Default: null\n",
        ),
        (
            "delegation:\n  worker:\n    command: python3 worker.py\n",
            "error: `worker.command` must be a list of texts, the program first, or null, not the text `python3 worker.py`\n --> F:3:14\n3 |     command: python3 worker.py\n  |              ^^^^^^^^^^^^^^^^^ Worker program of another make with its arguments, as a list. null: this program itself. Default: null\n",
        ),
        (
            "- a\n",
            "error: a configuration file must be a map of keys, not a list\n --> F:1:1\n1 | - a\n  | ^\n",
        ),
        (
            "delegation: 3\n",
            "error: `delegation` must be a map of keys, not the number 3\n --> F:1:13\n1 | delegation: 3\n  |             ^\n",
        ),
    ] {
        assert_eq!(world.fault(text), expected, "{text}");
    }
}

#[test]
fn a_fault_that_is_not_yaml_has_its_place() {
    let world = World::new();
    let text = world.fault("delegation:\n  max_iterations: [1\n");
    assert!(text.starts_with("error: not valid YAML: ") && text.contains("--> F:"), "{text}");
}

#[test]
fn values_out_of_range_are_errors_and_never_clamped() {
    let world = World::new();
    for line in [
        "max_concurrent_children: 0",
        "max_concurrent_children: -1",
        "max_concurrent_children: 4294967296",
        "max_concurrent_children: 18446744073709551615",
        "max_batch_size: 0",
        "max_tree_children: 0",
        "max_tree_tokens: 0",
        "max_tree_cost_usd: 0",
        "child_max_cost_usd: -0.5",
        "child_max_cost_usd: .nan",
        "max_tree_cost_usd: 1e10",
        "max_iterations: 0",
        "max_result_bytes: 1099511627777",
        "child_timeout_seconds: 0",
        "child_timeout_seconds: 0.999",
        "child_timeout_seconds: -5",
        "child_timeout_seconds: .nan",
        "child_timeout_seconds: .inf",
        "child_timeout_seconds: 1e300",
        "child_inactivity_seconds: 0.999",
        "stale_idle_seconds: 0",
        "stale_in_tool_seconds: 0.5",
        "interrupt_grace_seconds: -0.1",
        "start_timeout_seconds: 0.05",
        "heartbeat_interval: 99ms",
    ] {
        let file = world.write("named.yaml", &format!("  {line}\n"));
        let fault = world.load(&Sources { explicit: Some(file), ..world.sources() }).unwrap_err();
        assert_eq!((fault.code, fault.line), ("out_of_range", Some(2)), "{line}: {fault}");
    }
}

#[test]
fn wrong_types_are_errors() {
    let world = World::new();
    for line in [
        "max_tree_cost_usd: '2'",
        "max_tree_tokens: 1e6",
        "max_concurrent_children: four",
        "max_concurrent_children: '4'",
        "max_concurrent_children: true",
        "max_concurrent_children: 4.0",
        "max_concurrent_children: 010",
        "max_concurrent_children: 1_0",
        "max_concurrent_children: null",
        "max_concurrent_children: [4]",
        "isolate_single_task: 1",
        "isolate_single_task: on",
        "process_isolation: 1",
        "child_timeout_seconds: true",
        "child_timeout: 1 s",
        "interrupt_grace: null",
        "stale_idle: null",
        "on_stale: null",
        "on_stale: true",
        "janitor_at_start: true",
        "janitor_at_start: null",
        "background_overflow: true",
        "independent_completions: 1",
        "worker: {command: []}",
        "worker: {command: ['']}",
        "worker: {command: [a, 1]}",
        "worker: {command: \"a\"}",
        "worker: {command: [\"a\\0b\"]}",
        "worker: [a]",
    ] {
        let file = world.write("named.yaml", &format!("  {line}\n"));
        let fault = world.load(&Sources { explicit: Some(file), ..world.sources() }).unwrap_err();
        assert_eq!((fault.code, fault.line), ("wrong_type", Some(2)), "{line}: {fault}");
    }
}

#[test]
fn files_that_cannot_be_read_are_told() {
    let world = World::new();
    let code = |sources: &Sources| world.load(sources).unwrap_err();
    let missing = Sources { explicit: Some("nowhere.yaml".into()), ..world.sources() };
    assert_eq!(
        code(&missing).render(false),
        format!(
            "error: there is no such file\n --> {}\nhint: it was named by --config\n",
            world.path("home/repo/nowhere.yaml").display()
        )
    );
    let mut by_variable = world.sources();
    world.set(&mut by_variable, "DELEGATE_CONFIG", "nowhere.yaml");
    assert_eq!(code(&by_variable).hint.as_deref(), Some("it was named by DELEGATE_CONFIG"));
    let directory = Sources { explicit: Some(world.path("home")), ..world.sources() };
    assert_eq!(code(&directory).code, "unreadable_file");
    fs::write(world.path("bytes.yaml"), b"delegation:\n  \xff: 1\n").unwrap();
    let bytes = Sources { explicit: Some(world.path("bytes.yaml")), ..world.sources() };
    let fault = code(&bytes);
    assert_eq!(
        (fault.code, fault.message.as_str()),
        ("not_text", "the file is not UTF-8 text (byte 14)")
    );
}

#[test]
fn the_stronger_source_wins_key_by_key() {
    let world = World::new();
    let mut sources = world.sources();
    // Each source sets one key alone and shares the other with all weaker ones.
    let system = world.write("etc/config.yaml", "  max_iterations: 1\n  max_batch_size: 1\n");
    let user = world
        .write("home/.config/delegate/config.yaml", "  max_iterations: 2\n  interrupt_grace: 2s\n");
    let tree =
        world.write("home/repo/delegate.yaml", "  max_iterations: 3\n  terminate_grace: 4s\n");
    let value = |sources: &Sources| world.load(sources).unwrap();
    assert_eq!(value(&sources).settings.max_iterations, 3);
    let by_variable = world.write("v.yaml", "  max_iterations: 4\n  start_timeout: 5s\n");
    world.set(&mut sources, "DELEGATE_CONFIG", &by_variable.display().to_string());
    assert_eq!(value(&sources).settings.max_iterations, 4);
    let by_flag = world.write("f.yaml", "  max_iterations: 5\n  max_concurrent_children: 6\n");
    sources.explicit = Some(by_flag.clone());
    assert_eq!(value(&sources).settings.max_iterations, 5);
    world.set(&mut sources, "DELEGATE_MAX_ITERATIONS", "6");
    assert_eq!(value(&sources).settings.max_iterations, 6);
    sources.flags.push(("max_iterations".into(), "7".into(), "--max-iterations".into()));
    let loaded = value(&sources);
    let expected = Settings {
        max_iterations: 7,
        max_batch_size: Some(1),
        interrupt_grace: Duration::from_secs(2),
        terminate_grace: Duration::from_secs(4),
        start_timeout: Duration::from_secs(5),
        max_concurrent_children: 6,
        ..Settings::default()
    };
    assert_eq!(loaded.settings, expected);
    assert_eq!(loaded.files, [by_flag, by_variable, tree.clone(), user, system]);
    assert_eq!(loaded.origins["max_iterations"], Origin::Flag("--max-iterations".into()));
    assert_eq!(loaded.origins["terminate_grace_seconds"], Origin::File { file: tree, line: 3 });
}

#[test]
fn null_undoes_what_a_weaker_file_says() {
    let world = World::new();
    world.write(
        "home/.config/delegate/config.yaml",
        "  child_timeout: 5s\n  process_isolation: true\n",
    );
    world.write(
        "home/repo/delegate.yaml",
        "  child_timeout_seconds: null\n  process_isolation: ~\n",
    );
    let settings = world.load(&world.sources()).unwrap().settings;
    assert_eq!((settings.child_timeout, settings.process_isolation), (None, None));
}

#[test]
fn the_search_stops_where_it_must() {
    let world = World::new();
    let files =
        |cwd: &str| world.load(&Sources { cwd: world.path(cwd), ..world.sources() }).unwrap().files;
    let above = world.write("delegate.yaml", "  max_iterations: 1\n");
    let home = world.write("home/delegate.yaml", "  max_iterations: 2\n");
    // The repository is a border, even when it has no file of its own.
    assert!(files("home/repo/deep/er").is_empty());
    let repo = world.write("home/repo/delegate.yaml", "  max_iterations: 3\n");
    assert_eq!(files("home/repo/deep/er"), std::slice::from_ref(&repo));
    let nearer = world.write("home/repo/deep/delegate.yaml", "  max_iterations: 4\n");
    assert_eq!(files("home/repo/deep/er"), [nearer]);
    // Without a repository: up to the home directory, and outside of it only where we stand.
    fs::create_dir_all(world.path("home/plain/deep")).unwrap();
    assert_eq!(files("home/plain/deep"), [home]);
    fs::create_dir_all(world.path("elsewhere")).unwrap();
    assert!(files("elsewhere").is_empty());
    assert_eq!(files(""), [above]);
}

#[test]
fn variables_are_keys_or_named_in_notes() {
    let world = World::new();
    let mut sources = world.sources();
    for (variable, value) in [
        ("DELEGATE_CHILD_TIMEOUT", "2m"),
        ("DELEGATION_CHILD_TIMEOUT_SECONDS", "7"),
        ("DELEGATION_MAX_CONCURRENT_CHILDREN", "3"),
        ("DELEGATE_WORKER__COMMAND", "[python3, worker.py]"),
        ("DELEGATE_PROCESS_ISOLATION", "true"),
        ("DELEGATE_MAX_BATCH_SIZE", ""),
        ("DELEGATE_GOAL", "x"),
        ("DELEGATE_LOG", "debug"),
        ("DELEGATE_MAX_ITERATION", "3"),
        ("DELEGATE_COLOUR", "red"),
        ("PATH", "/bin"),
    ] {
        world.set(&mut sources, variable, value);
    }
    let loaded = world.load(&sources).unwrap();
    let expected = Settings {
        child_timeout: Some(Duration::from_secs(120)),
        max_concurrent_children: 3,
        worker_command: Some(vec!["python3".into(), "worker.py".into()]),
        process_isolation: Some(ProcessIsolation::On),
        ..Settings::default()
    };
    assert_eq!(loaded.settings, expected);
    assert_eq!(
        loaded.notes,
        [
            "unknown variable `DELEGATE_COLOUR` is ignored",
            "unknown variable `DELEGATE_MAX_ITERATION` is ignored; did you mean `DELEGATE_MAX_ITERATIONS`?",
        ]
    );
}

#[test]
fn a_wrong_variable_or_flag_is_named() {
    let world = World::new();
    let with = |variable: &str, value: &str| {
        let mut sources = world.sources();
        world.set(&mut sources, variable, value);
        world.load(&sources).unwrap_err().message
    };
    assert_eq!(
        with("DELEGATE_MAX_ITERATIONS", "many"),
        "DELEGATE_MAX_ITERATIONS must be a whole number from 1 to 4294967295, not the text `many`"
    );
    assert_eq!(
        with("DELEGATION_CHILD_TIMEOUT_SECONDS", "0.5"),
        "DELEGATION_CHILD_TIMEOUT_SECONDS must be a number of seconds from 1 to 315360000, or null, not the number 0.5"
    );
    assert!(
        with("DELEGATE_WORKER__COMMAND", "[a")
            .starts_with("DELEGATE_WORKER__COMMAND: not valid YAML: ")
    );
    let mut both = world.sources();
    world.set(&mut both, "DELEGATE_CHILD_TIMEOUT", "5s");
    world.set(&mut both, "DELEGATE_CHILD_TIMEOUT_SECONDS", "5");
    let fault = world.load(&both).unwrap_err();
    assert_eq!(
        (fault.code, fault.message.as_str()),
        (
            "both_set",
            "DELEGATE_CHILD_TIMEOUT_SECONDS and DELEGATE_CHILD_TIMEOUT are the same setting"
        )
    );
    let flags = vec![("child_timeout".to_owned(), "90".to_owned(), "--timeout".to_owned())];
    let fault = world.load(&Sources { flags, ..world.sources() }).unwrap_err();
    assert_eq!(
        fault.to_string(),
        "--timeout must be a duration such as `90s`, `5m`, `1h30m` or `250ms`, not the number 90 (write `90s`, or use `child_timeout_seconds`)"
    );
}

#[test]
fn the_loops_own_keys_are_ignored_with_one_note() {
    let world = World::new();
    world.write(
        "home/.config/delegate/config.yaml",
        "  routes: {a: {model: x}}\n  max_async_children: many\n",
    );
    world.write("home/repo/delegate.yaml", "  routes: {}\n  default_toolsets: [web]\n");
    let loaded = world.load(&world.sources()).unwrap();
    assert_eq!(loaded.settings, Settings::default());
    assert_eq!(
        loaded.notes,
        ["ignored, the agent loop's own keys: default_toolsets, max_async_children, routes"]
    );
}

#[test]
fn a_file_of_the_tree_needs_trust_for_a_command() {
    let world = World::new();
    let text = "  max_iterations: 3\n  worker:\n    command: [./evil]\n";
    let file = world.write("home/repo/delegate.yaml", text);
    let state = world.path("home/.local/state/delegate");
    let sources = world.sources();
    assert_eq!(state_dir(&sources.env), state);
    let refused = world.load(&sources).unwrap_err();
    assert_eq!(refused.code, "untrusted");
    let shown = file.display().to_string();
    assert_eq!(
        refused.render(false).replace(&shown, "F"),
        "error: `worker.command` is not taken from a file of the working tree that is not trusted\n --> F:4:5\n4 |     command: [./evil]\n  |     ^^^^^^^ read the file, then `delegate trust F`\n"
    );

    let trusted = trust(&file, &state).unwrap();
    assert_eq!(
        (trusted.keys.as_slice(), trusted.sha256.len()),
        (&["worker.command".to_owned()][..], 64)
    );
    assert_eq!(
        world.load(&sources).unwrap().settings.worker_command,
        Some(vec!["./evil".to_owned()])
    );

    // Any change withdraws it; so does the same content under another path.
    world.write("home/repo/delegate.yaml", &format!("{text}# changed\n"));
    assert_eq!(world.load(&sources).unwrap_err().code, "untrusted");
    world.write("home/repo/delegate.yaml", text);
    assert!(world.load(&sources).is_ok());
    world.write("home/repo/deep/delegate.yaml", text);
    let deep = Sources { cwd: world.path("home/repo/deep"), ..world.sources() };
    assert_eq!(world.load(&deep).unwrap_err().code, "untrusted");
}

#[test]
fn a_named_file_is_trusted_also_when_it_stands_in_the_tree() {
    let world = World::new();
    let file = world.write("home/repo/delegate.yaml", "  worker: {command: [w]}\n");
    let named = Sources { explicit: Some("delegate.yaml".into()), ..world.sources() };
    assert!(world.load(&named).unwrap().settings.worker_command.is_some());
    let mut by_variable = world.sources();
    world.set(&mut by_variable, "DELEGATE_CONFIG", &file.display().to_string());
    assert!(world.load(&by_variable).unwrap().settings.worker_command.is_some());
    // Home and system files are the user's and the system's own.
    fs::remove_file(file).unwrap();
    world.write("home/.config/delegate/config.yaml", "  worker: {command: [w]}\n");
    assert!(world.load(&world.sources()).unwrap().settings.worker_command.is_some());
}

#[test]
fn the_list_of_trusted_files_is_private_and_keeps_the_others() {
    let world = World::new();
    let state = world.path("state");
    let (one, two) =
        (world.write("one.yaml", "  max_iterations: 1\n"), world.write("two.yaml", ""));
    for file in [&one, &two, &one] {
        trust(file, &state).unwrap();
    }
    let list = fs::read_to_string(state.join("trusted")).unwrap();
    assert_eq!(list.lines().count(), 2, "{list}");
    assert!(list.lines().all(|line| line.contains("  /") && line.ends_with(".yaml")), "{list}");
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt as _;
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(&state), mode(&state.join("trusted"))), (0o700, 0o600));
    }
}

#[test]
fn a_file_that_is_no_configuration_is_not_trusted() {
    let world = World::new();
    let file = world.write("bad.yaml", "  nonsense: 1\n");
    assert_eq!(trust(&file, &world.path("state")).unwrap_err().code, "unknown_key");
    assert_eq!(trust(&world.path("none"), &world.path("state")).unwrap_err().code, "missing_file");
    let file = world.write("good.yaml", "");
    fs::write(world.path("file"), "").unwrap();
    let fault = trust(&file, &world.path("file")).unwrap_err();
    assert_eq!(fault.code, "not_recorded", "{fault}");
}

#[test]
fn the_state_directory_follows_the_environment() {
    let env = |pairs: &[(&str, &str)]| -> Vec<(String, String)> {
        pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
    };
    for (pairs, expected) in [
        (&[("DELEGATE_STATE_DIR", "/s"), ("XDG_STATE_HOME", "/x"), ("HOME", "/h")][..], "/s"),
        (&[("XDG_STATE_HOME", "/x"), ("HOME", "/h")], "/x/delegate"),
        (&[("XDG_STATE_HOME", "relative"), ("HOME", "/h")], "/h/.local/state/delegate"),
        (&[("XDG_STATE_HOME", ""), ("HOME", "/h")], "/h/.local/state/delegate"),
    ] {
        assert_eq!(state_dir(&env(pairs)), Path::new(expected), "{pairs:?}");
    }
}

#[cfg(unix)]
#[test]
fn a_state_directory_of_another_user_in_a_shared_directory_is_refused() {
    use std::os::unix::fs::{PermissionsExt as _, chown};
    let world = World::new();
    let (shared, state) = (world.path("shared"), world.path("shared/state"));
    fs::create_dir_all(&state).unwrap();
    let mode = |bits| fs::set_permissions(&shared, fs::Permissions::from_mode(bits)).unwrap();
    mode(0o1777);
    search::refuse_foreign(&state).unwrap();
    if chown(&state, Some(65534), None).is_err() {
        return; // only root can give it away
    }
    let refused = search::refuse_foreign(&state).unwrap_err().to_string();
    assert!(refused.contains("another user (65534)"), "{refused}");
    let file = world.write("good.yaml", "");
    assert_eq!(trust(&file, &state).unwrap_err().code, "not_recorded");
    mode(0o755);
    search::refuse_foreign(&state).unwrap();
}

#[test]
fn without_a_home_each_user_has_a_state_directory_of_their_own() {
    let dir = state_dir(&[]);
    let name = dir.file_name().unwrap().to_str().unwrap();
    assert!(name.strip_prefix("delegate-state-").is_some_and(|user| user.parse::<u32>().is_ok()));
}

pub(super) fn any_config() -> impl Strategy<Value = String> {
    let key = prop::sample::select(
        keys::names().chain(["delegation", "worker", "command", "routes", "x"]).collect::<Vec<_>>(),
    );
    let value = prop_oneof![
        Just("null".to_owned()),
        Just("true".to_owned()),
        Just("auto".to_owned()),
        Just("[a, b]".to_owned()),
        Just("{command: [x]}".to_owned()),
        "-?[0-9]{1,20}",
        "-?[0-9]{1,3}\\.[0-9]e?[0-9]{0,3}",
        "[0-9]{1,20}(h|m|s|ms)",
        "[^\n]{0,12}",
    ];
    prop::collection::vec((0..4_usize, key, value), 0..6).prop_map(|lines| {
        let lines = lines
            .iter()
            .map(|(indent, key, value)| format!("{:1$}{key}: {value}\n", "", indent * 2));
        format!("delegation:\n{}", lines.collect::<String>())
    })
}

proptest! {
    #[test]
    fn no_file_makes_it_panic(text in prop_oneof![any_config(), any::<String>()]) {
        let source = Source { file: Some(Path::new("f")), text: &text };
        if let Ok(layer) = layer::from_file(source) {
            // What was accepted is within the limits that the rest of the program relies on.
            let (settings, _) = resolve([layer.values].into_iter());
            prop_assert!(settings.max_concurrent_children >= 1);
            prop_assert!(settings.child_timeout.is_none_or(|limit| limit >= Duration::from_secs(1)));
        }
    }

    #[test]
    fn no_variable_makes_it_panic(index in 0..keys::KEYS.len(), value in any::<String>()) {
        let env = [(keys::variable(keys::KEYS[index].name), value)];
        let _fault = layer::from_env(&env).map_err(|fault| fault.render(false));
    }
}

/// More than the kernel takes is told where it is written, before anything starts; and an option that sets any key says
/// which.
#[test]
fn a_limit_that_nobody_can_hold_is_told_with_its_place_and_its_key() {
    let world = World::new();
    let with = |count: u64| {
        let flags = vec![("max_processes".to_owned(), count.to_string(), "--set".to_owned())];
        world.load(&Sources { flags, ..world.sources() })
    };
    let loaded = with(MOST_PROCESSES).unwrap();
    assert_eq!(loaded.settings.ration.processes, Some(4_194_304));
    let fault = with(MOST_PROCESSES + 1).unwrap_err();
    assert_eq!(fault.code, "out_of_range");
    assert!(fault.message.starts_with("--set max_processes must be a whole number"), "{fault}");
    assert!(fault.message.contains("to 4194304"), "{fault}");
    for (name, flag, label) in [
        ("interrupt_grace", "--set", "--set interrupt_grace"),
        ("max_concurrent_children", "--jobs", "--jobs"),
    ] {
        let flags = vec![(name.to_owned(), "[".to_owned(), flag.to_owned())];
        let fault = world.load(&Sources { flags, ..world.sources() }).unwrap_err();
        assert!(fault.message.starts_with(&format!("{label}: ")), "{fault}");
    }
    let shown = world.fault("delegation:\n  max_processes: 4194305\n");
    assert!(shown.contains("F:2:") && shown.contains("`max_processes` must be"), "{shown}");
}

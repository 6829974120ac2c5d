//! Matrix 11.9, credentials, and C44 to C46: the route that an agent is given, the same in a thread and
//! in a process. What the decisions turn into errors is asserted as an error.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use delegate_protocol::TaskSpec;
use delegate_runtime::config::{self, Settings, Sources};
use delegate_runtime::plan::{Endpoint, Parent, Providers, Resolved};
use delegate_runtime::{ApiKey, Fallback, Isolation, Routing, Task, Value, blocking};

use crate::agents;
use crate::support::{BOTH, as_asked};

/// What the resolver was asked: provider and model.
type Asked = Arc<Mutex<Vec<(String, Option<String>)>>>;

/// A resolver with one answer.
#[derive(Debug, Clone)]
pub struct Answer {
    pub with: Result<Resolved, String>,
    pub asked: Asked,
}

impl Providers for Answer {
    fn resolve(&self, provider: &str, model: Option<&str>) -> Result<Resolved, String> {
        let asked = (provider.to_owned(), model.map(str::to_owned));
        self.asked.lock().unwrap().push(asked);
        self.with.clone()
    }

    fn knows_mode(&self, mode: &str) -> bool {
        mode == "plugin_mode"
    }

    fn has_program(&self, command: &str) -> bool {
        command == "installed"
    }
}

fn answer(with: Result<Resolved, String>) -> Answer {
    Answer { with, asked: Asked::default() }
}

/// A resolver that knows nobody.
pub fn nobody() -> Answer {
    answer(Err("nobody may ask".to_owned()))
}

fn key(text: &str) -> Option<ApiKey> {
    Some(ApiKey::new(text.to_owned()))
}

fn text(text: &str) -> Option<String> {
    Some(text.to_owned())
}

/// A provider with all that a child needs.
fn bundle() -> Resolved {
    Resolved {
        provider: text("b"),
        base_url: text("https://b.example/v1"),
        api_key: key("key-b"),
        api_mode: text("codex_responses"),
        ..Resolved::default()
    }
}

/// A parent on provider `a` with every field of a route set.
pub fn parent() -> Parent {
    Parent {
        routing: Routing {
            model: text("model-a"),
            provider: text("a"),
            requested_provider: text("named-a"),
            base_url: text("https://a.example/v1"),
            api_key: key("key-a"),
            capabilities: [("trusted".to_owned(), true)].into(),
            api_mode: text("anthropic_messages"),
            acp_command: text("speaker"),
            acp_args: vec!["--quiet".to_owned()],
            reasoning_config: Some(Value::Map([("effort".to_owned(), Value::from("high"))].into())),
            fallback_model: vec![Fallback {
                provider: "f".to_owned(),
                model: "model-f".to_owned(),
                base_url: text("https://f.example"),
                api_key: key("key-f"),
                api_mode: text("chat_completions"),
            }],
            prefill_messages: vec![Value::from("before")],
            max_tokens: Some(4096),
            request_overrides: [("temperature".to_owned(), Value::Float(0.5))].into(),
            providers_allowed: vec!["x".to_owned()],
            providers_ignored: vec!["y".to_owned()],
            providers_order: vec!["z".to_owned()],
            provider_sort: text("price"),
            provider_require_parameters: true,
            provider_data_collection: "deny".to_owned(),
            openrouter_min_coding_score: Some(0.25),
            default_headers: [("x-team".to_owned(), "blue".to_owned())].into(),
        },
        ..Parent::default()
    }
}

/// One rig with what it needs of providers.
fn rig(
    isolation: Isolation,
    settings: Settings,
    providers: Answer,
) -> (blocking::Delegator, tempfile::TempDir) {
    let state = tempfile::tempdir().unwrap();
    let builder = blocking::Delegator::builder().isolation(isolation);
    let builder = builder.settings(as_asked(settings));
    (builder.providers(providers).state_dir(state.path()).build().unwrap(), state)
}

/// The specs of a batch as the agents saw them in each executor; made anew for each run: the ids.
pub fn specs(
    settings: &Settings,
    parent: &Parent,
    providers: &Answer,
    tasks: &[Task],
) -> [Vec<TaskSpec>; 2] {
    BOTH.map(|isolation| {
        let (delegator, _state) = rig(isolation, settings.clone(), providers.clone());
        let batch = delegator.batch(tasks.to_vec()).parent(parent.clone());
        let report = batch.run().unwrap();
        let read = |outcome: delegate_runtime::Outcome| {
            serde_json::from_str(outcome.summary.as_ref().unwrap()).unwrap()
        };
        report.results().map(read).collect()
    })
}

/// The route that an agent is given: the same in both executors.
fn routed(settings: &Settings, parent: &Parent, providers: &Answer) -> Routing {
    let task = Task::of::<agents::Spec>("a goal", Value::Null);
    let [thread, process] = specs(settings, parent, providers, &[task]);
    assert_eq!(thread[0].routing, process[0].routing);
    thread[0].routing.clone()
}

/// Why a batch is refused, in both executors; no agent was built, and no run is on record.
fn refused(settings: &Settings, parent: &Parent, providers: &Answer) -> String {
    let [thread, process] = BOTH.map(|isolation| {
        let (delegator, _state) = rig(isolation, settings.clone(), providers.clone());
        let task = Task::of::<agents::Spec>("a goal", Value::Null);
        let error = delegator.batch([task]).parent(parent.clone()).start().unwrap_err();
        assert_eq!(delegator.store().runs(1).unwrap(), []);
        error.to_string()
    });
    assert_eq!(thread, process);
    assert!(thread.ends_with("nothing was started"), "{thread}");
    thread
}

fn direct(base_url: &str) -> Settings {
    Settings { base_url: text(base_url), api_key: key("key-set"), ..Settings::default() }
}

fn pinned() -> Settings {
    Settings { provider: text("b"), ..Settings::default() }
}

/// Settings from the text of a file, or why not.
fn load(below: &str) -> Result<Settings, String> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("config.yaml");
    std::fs::write(&path, format!("delegation:\n  {below}\n")).unwrap();
    let env = vec![("HOME".to_owned(), folder.path().display().to_string())];
    let cwd = folder.path().to_owned();
    let sources = Sources { explicit: Some(path), cwd, env, flags: Vec::new() };
    config::load(&sources).map(|loaded| loaded.settings).map_err(|error| error.to_string())
}

#[test]
fn m040_a_child_inherits_endpoint_key_provider_and_dialect() {
    let got = routed(&Settings::default(), &parent(), &nobody());
    let theirs = parent().routing;
    assert_eq!((got.base_url, got.api_key), (theirs.base_url, theirs.api_key));
    assert_eq!((got.provider, got.api_mode), (theirs.provider, theirs.api_mode));
}

#[test]
fn m059_empty_provider_and_model_set_nothing() {
    let settings = load("{provider: '', model: ' '}").unwrap();
    assert_eq!(settings, Settings::default());
    assert_eq!(routed(&settings, &Parent::default(), &nobody()), Routing::default());
}

#[test]
fn m060_a_model_alone_sets_the_model_and_no_credential() {
    let settings = load("model: ' m '").unwrap();
    let got = routed(&settings, &Parent::default(), &nobody());
    assert_eq!(got, Routing { model: text("m"), ..Routing::default() });
}

#[test]
fn m061_a_section_without_those_keys_sets_nothing() {
    let settings = load("max_iterations: 7").unwrap();
    assert_eq!(routed(&settings, &Parent::default(), &nobody()), Routing::default());
}

#[test]
fn m062_an_endpoint_with_key_beside_a_provider_is_custom() {
    let settings = Settings { provider: text("b"), ..direct("https://set.example/v1") };
    let with = Resolved {
        request_overrides: [("k".to_owned(), Value::Int(1))].into(),
        default_headers: [("never".to_owned(), "taken".to_owned())].into(),
        ..bundle()
    };
    let got = routed(&settings, &parent(), &answer(Ok(with)));
    assert_eq!(got.provider.as_deref(), Some("custom"));
    assert_eq!(got.base_url.as_deref(), Some("https://set.example/v1"));
    assert_eq!((got.api_key, got.api_mode), (key("key-set"), text("chat_completions")));
    // Of the provider only its request arguments; that it cannot be resolved does not matter.
    assert_eq!(got.request_overrides, [("k".to_owned(), Value::Int(1))].into());
    assert_eq!(got.default_headers, BTreeMap::new());
    let got = routed(&settings, &parent(), &nobody());
    assert_eq!((got.provider, got.request_overrides), (text("custom"), BTreeMap::new()));
}

#[test]
fn m063_an_address_that_ends_with_anthropic_speaks_its_dialect() {
    let got = routed(&direct("https://set.example/anthropic"), &parent(), &nobody());
    assert_eq!(got.api_mode.as_deref(), Some("anthropic_messages"));
    let got = routed(&direct("https://api.anthropic.com/v1"), &parent(), &nobody());
    assert_eq!(got.provider.as_deref(), Some("anthropic"));
    let got = routed(&direct("https://chatgpt.com/backend-api/codex"), &parent(), &nobody());
    assert_eq!((got.provider, got.api_mode), (text("openai-codex"), text("codex_responses")));
}

#[test]
fn m064_an_explicit_dialect_is_used_on_a_neutral_address() {
    let settings = Settings { api_mode: text("codex_responses"), ..direct("https://set.example") };
    assert_eq!(routed(&settings, &parent(), &nobody()).api_mode, text("codex_responses"));
    let plugin = Settings { api_mode: text("plugin_mode"), ..direct("https://set.example") };
    assert_eq!(routed(&plugin, &parent(), &nobody()).api_mode, text("plugin_mode"));
}

#[test]
fn m065_an_explicit_dialect_wins_against_the_address() {
    let settings =
        Settings { api_mode: text("chat_completions"), ..direct("https://set.example/anthropic") };
    assert_eq!(routed(&settings, &parent(), &nobody()).api_mode, text("chat_completions"));
}

#[test]
fn m066_an_unknown_dialect_is_an_error() {
    let settings = Settings { api_mode: text("smalltalk"), ..direct("https://set.example") };
    let said = refused(&settings, &parent(), &nobody());
    assert!(
        said.starts_with("api_mode `smalltalk` is not known; known: chat_completions"),
        "{said}"
    );
}

#[test]
fn m067_an_endpoint_without_key_takes_the_parents_and_none_of_the_environment() {
    // The key of a program of its own, without a parent, is none: nothing is read from variables.
    let settings = Settings { api_key: None, ..direct("https://set.example") };
    assert_eq!(routed(&settings, &Parent::default(), &nobody()).api_key, None);
    assert_eq!(routed(&settings, &parent(), &nobody()).api_key, key("key-a"));
}

#[test]
fn m068_an_endpoint_without_key_is_no_error() {
    let settings = Settings { api_key: None, ..direct("http://localhost:8080/v1") };
    let got = routed(&settings, &Parent::default(), &nobody());
    assert_eq!(got.base_url.as_deref(), Some("http://localhost:8080/v1"));
}

#[test]
fn m069_a_provider_that_cannot_be_resolved_is_named_with_the_reason() {
    let said = refused(&pinned(), &parent(), &answer(Err("not logged in".to_owned())));
    assert!(said.starts_with("provider `b` cannot be resolved: not logged in"), "{said}");
}

#[test]
fn m070_a_provider_without_key_is_an_error() {
    let with = Resolved { api_key: None, ..bundle() };
    let said = refused(&pinned(), &parent(), &answer(Ok(with.clone())));
    assert!(said.starts_with("provider `b` has no API key"), "{said}");
    let keyless = Resolved { keyless: true, ..with };
    assert_eq!(routed(&pinned(), &parent(), &answer(Ok(keyless))).api_key, None);
    let nowhere = Resolved { base_url: None, ..bundle() };
    let said = refused(&pinned(), &parent(), &answer(Ok(nowhere.clone())));
    assert!(said.starts_with("provider `b` has no endpoint"), "{said}");
    let addressless = Resolved { addressless: true, ..nowhere };
    assert_eq!(routed(&pinned(), &parent(), &answer(Ok(addressless))).base_url, None);
}

#[test]
fn m071_a_custom_provider_keeps_the_name_that_was_configured() {
    let resolver = answer(Ok(Resolved { is_custom: true, provider: text("custom"), ..bundle() }));
    let settings = Settings { provider: text("my-box"), model: text("m"), ..Settings::default() };
    let got = routed(&settings, &parent(), &resolver);
    assert_eq!((got.provider, got.requested_provider), (text("my-box"), text("my-box")));
    let asked = resolver.asked.lock().unwrap().clone();
    assert_eq!(asked, [("my-box".to_owned(), text("m")), ("my-box".to_owned(), text("m"))]);
}

#[test]
fn m072_a_standard_provider_has_the_runtimes_own_name() {
    let settings = Settings { provider: text("alias-of-b"), ..Settings::default() };
    assert_eq!(routed(&settings, &parent(), &answer(Ok(bundle()))).provider, text("b"));
}

#[test]
fn m073_an_empty_provider_is_none_whatever_the_resolver_would_say() {
    let resolver = answer(Ok(bundle()));
    let settings = load("provider: '  '").unwrap();
    assert_eq!(routed(&settings, &Parent::default(), &resolver).provider, None);
    assert!(resolver.asked.lock().unwrap().is_empty());
}

#[test]
fn m074_a_resolver_without_a_provider_gives_none() {
    let with = Resolved { provider: None, ..bundle() };
    let got = routed(&pinned(), &parent(), &answer(Ok(with)));
    assert_eq!((got.provider, got.requested_provider), (None, None));
}

#[test]
fn m075_the_resolved_bundle_reaches_the_child() {
    let settings = Settings { model: text("model-b"), ..pinned() };
    let with = Resolved { default_headers: [("h".to_owned(), "v".to_owned())].into(), ..bundle() };
    let got = routed(&settings, &parent(), &answer(Ok(with)));
    assert_eq!((got.model, got.provider), (text("model-b"), text("b")));
    assert_eq!((got.base_url, got.api_key), (text("https://b.example/v1"), key("key-b")));
    assert_eq!(got.api_mode, text("codex_responses"));
    assert_eq!(got.default_headers, [("h".to_owned(), "v".to_owned())].into());
}

#[test]
fn m076_children_on_another_provider_have_nothing_of_the_parents_endpoint() {
    // Also where the bundle says less than the parent.
    let with = Resolved { api_mode: None, base_url: None, addressless: true, ..bundle() };
    for parent in [parent(), Parent { live: Some(Endpoint::default()), ..parent() }] {
        let got = routed(&pinned(), &parent, &answer(Ok(with.clone())));
        assert_eq!((got.base_url, got.api_key), (None, key("key-b")));
        assert_eq!((got.api_mode, got.requested_provider), (None, text("b")));
        assert_eq!((got.capabilities, got.default_headers), (BTreeMap::new(), BTreeMap::new()));
    }
    // On the same provider the dialect is the parent's.
    let same = Resolved { provider: text("a"), ..with };
    assert_eq!(
        routed(&pinned(), &parent(), &answer(Ok(same))).api_mode,
        text("anthropic_messages")
    );
}

#[test]
fn m077_a_pinned_provider_resets_the_routing_filters() {
    let got = routed(&pinned(), &parent(), &answer(Ok(bundle())));
    let none: Vec<String> = Vec::new();
    assert_eq!([&got.providers_allowed, &got.providers_ignored, &got.providers_order], [&none; 3]);
    assert_eq!(got.provider_sort, None);
}

#[test]
fn m078_a_direct_endpoint_reaches_the_child() {
    let got = routed(&direct("https://set.example/v1"), &parent(), &nobody());
    assert_eq!((got.base_url, got.api_key), (text("https://set.example/v1"), key("key-set")));
    assert_eq!((got.provider, got.model), (text("custom"), text("model-a")));
}

#[test]
fn m079_with_nothing_set_a_child_has_the_parents_model_provider_and_endpoint() {
    assert_eq!(routed(&Settings::default(), &parent(), &nobody()), parent().routing);
}

#[test]
fn m080_the_live_endpoint_wins_with_its_key_as_a_pair() {
    let live = Endpoint { base_url: text("https://live.example"), api_key: None };
    let got = routed(&Settings::default(), &Parent { live: Some(live), ..parent() }, &nobody());
    assert_eq!((got.base_url, got.api_key), (text("https://live.example"), None));
}

#[test]
fn m081_a_stale_address_of_a_cloud_does_not_lead_away_from_a_local_client() {
    let live = Endpoint { base_url: text("http://localhost:11434/v1"), api_key: key("local") };
    let parent = Parent { live: Some(live), ..parent() };
    let got = routed(&Settings::default(), &parent, &nobody());
    assert_eq!((got.base_url, got.api_key), (text("http://localhost:11434/v1"), key("local")));
}

#[test]
fn m082_an_error_of_credentials_refuses_the_call_before_any_child() {
    let settings = Settings { api_key: key("for nothing"), ..Settings::default() };
    let said = refused(&settings, &parent(), &nobody());
    assert!(said.starts_with("api_key is the key for base_url, which is not set"), "{said}");
    assert!(!said.contains("for nothing"));
}

#[test]
fn m083_every_child_of_a_batch_has_the_bundle() {
    let resolver = answer(Ok(bundle()));
    let tasks: Vec<Task> = (0..3)
        .map(|index| Task::of::<agents::Spec>(format!("goal {index}"), Value::Null))
        .collect();
    for seen in specs(&pinned(), &parent(), &resolver, &tasks) {
        assert_eq!(seen.len(), 3);
        assert!(seen.iter().all(|spec| spec.routing == seen[0].routing));
        assert_eq!(seen[0].routing.api_key, key("key-b"));
    }
    assert_eq!(resolver.asked.lock().unwrap().len(), 2, "once per batch");
}

fn speaker(command: &str, provider: Option<&str>) -> Answer {
    answer(Ok(Resolved {
        provider: provider.map(str::to_owned),
        acp_command: text(command),
        acp_args: vec!["--stdio".to_owned()],
        ..Resolved::default()
    }))
}

#[test]
fn m084_a_program_that_speaks_for_the_model_reaches_the_child() {
    let got = routed(&pinned(), &parent(), &speaker("installed", Some("b")));
    assert_eq!((got.acp_command, got.acp_args), (text("installed"), vec!["--stdio".to_owned()]));
    assert_eq!((got.provider, got.api_mode), (text("copilot-acp"), text("chat_completions")));
    let said = refused(&pinned(), &parent(), &speaker("gone", None));
    assert!(said.contains("needs the program `gone`, which is not on PATH"), "{said}");
}

#[test]
fn m085_a_call_cannot_name_such_a_program_only_the_parent_hands_its_own_on() {
    let got = routed(&Settings::default(), &parent(), &nobody());
    assert_eq!((got.acp_command, got.acp_args), (text("speaker"), vec!["--quiet".to_owned()]));
    for isolation in BOTH {
        let (delegator, _state) = rig(isolation, Settings::default(), nobody());
        let call = r#"{"goal": "a goal", "acp_command": "sh", "acp_args": ["-c", "evil"]}"#;
        let call = serde_json::from_str(call).unwrap();
        let report = delegator.call(call, "spec").parent(Parent::default()).run().unwrap();
        let summary = report.results().next().unwrap().summary.clone().unwrap();
        let spec: TaskSpec = serde_json::from_str(&summary).unwrap();
        assert_eq!((spec.routing.acp_command, spec.routing.acp_args.len()), (None, 0));
    }
}

#[test]
fn m086_a_model_alone_changes_the_model_only() {
    let settings = Settings { model: text("other"), ..Settings::default() };
    let got = routed(&settings, &parent(), &nobody());
    assert_eq!(got, Routing { model: text("other"), ..parent().routing });
}

#[test]
fn m087_the_fallback_chain_is_the_parents_where_nothing_is_pinned() {
    let chain = |settings: &Settings, providers: &Answer| {
        routed(settings, &parent(), providers).fallback_model
    };
    assert_eq!(chain(&Settings::default(), &nobody()), parent().routing.fallback_model);
    assert_eq!(chain(&pinned(), &answer(Ok(bundle()))), []);
    assert_eq!(chain(&direct("https://set.example"), &nobody()), []);
    // What is set is used either way.
    let own = load("fallback_providers: [{provider: p, model: m}]").unwrap().fallback_providers;
    for settings in [Settings::default(), pinned()] {
        let settings = Settings { fallback_providers: own.clone(), ..settings };
        assert_eq!(Some(chain(&settings, &answer(Ok(bundle())))), own);
    }
}

#[test]
fn m088_an_empty_chain_gives_none() {
    let settings = load("fallback_providers: []").unwrap();
    assert_eq!(routed(&settings, &parent(), &nobody()).fallback_model, []);
    let bare =
        Parent { routing: Routing { fallback_model: vec![], ..parent().routing }, ..parent() };
    assert_eq!(routed(&Settings::default(), &bare, &nobody()).fallback_model, []);
}

fn effort(below: &str) -> Option<Value> {
    routed(&load(below).unwrap(), &parent(), &nobody()).reasoning_config
}

#[test]
fn m089_an_empty_reasoning_effort_is_the_parents() {
    assert_eq!(effort("reasoning_effort: ''"), parent().routing.reasoning_config);
    assert_eq!(effort("reasoning_effort: null"), parent().routing.reasoning_config);
}

#[test]
fn m090_a_low_effort_is_low() {
    let low = effort("reasoning_effort: Low").unwrap();
    assert_eq!(low.get("effort"), Some(&Value::from("low")));
    assert_eq!(low.get("enabled"), Some(&Value::Bool(true)));
}

#[test]
fn m091_no_effort_turns_thinking_off() {
    for none in ["none", "false"] {
        let off = effort(&format!("reasoning_effort: {none}")).unwrap();
        assert_eq!(off, Value::Map([("enabled".to_owned(), Value::Bool(false))].into()));
    }
}

#[test]
fn m092_an_unknown_effort_is_an_error() {
    let said = load("reasoning_effort: hihg").unwrap_err();
    assert!(said.contains("reasoning_effort") && said.contains("did you mean `high`?"), "{said}");
}

#[test]
fn c44_a_pin_drops_filters_chain_and_program_and_keeps_the_score() {
    for (settings, providers) in
        [(pinned(), answer(Ok(bundle()))), (direct("https://set.example"), nobody())]
    {
        let got = routed(&settings, &parent(), &providers);
        assert_eq!((got.providers_allowed, got.fallback_model), (vec![], vec![]));
        assert_eq!((got.acp_command, got.acp_args), (None, vec![]));
        assert_eq!(got.openrouter_min_coding_score, Some(0.25));
        assert_eq!((got.max_tokens, got.prefill_messages.len()), (Some(4096), 1));
    }
}

#[test]
fn c45_required_parameters_and_data_policy_are_inherited_and_reset_by_a_pin() {
    let got = routed(&Settings::default(), &parent(), &nobody());
    assert!(got.provider_require_parameters && got.provider_data_collection == "deny");
    let got = routed(&pinned(), &parent(), &answer(Ok(bundle())));
    assert!(!got.provider_require_parameters && got.provider_data_collection.is_empty());
}

#[test]
fn c46_request_overrides_merge_one_level_into_extra_body() {
    let settings = load("request_overrides: {extra_body: {b: {z: 1}, c: 2}, top_p: 1}").unwrap();
    let mut from = parent();
    let extra = serde_json::from_str(r#"{"a": 1, "b": {"y": 1}}"#).unwrap();
    from.routing.request_overrides.insert("extra_body".to_owned(), extra);
    let (before, theirs) = (settings.clone(), from.clone());
    let got = routed(&settings, &from, &nobody()).request_overrides;
    let expected: BTreeMap<String, Value> = serde_json::from_str(
        r#"{"temperature": 0.5, "top_p": 1, "extra_body": {"a": 1, "b": {"z": 1}, "c": 2}}"#,
    )
    .unwrap();
    assert_eq!(got, expected);
    assert_eq!((settings, from), (before, theirs), "both sides stay as they were");
}

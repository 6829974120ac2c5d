//! What `route` may never do, over generated settings and parents; and addresses by hand. The lines of
//! the contract's matrix are tested over both executors, in the conformance suite.

use proptest::prelude::*;

use super::*;
use delegate_protocol::Fallback;

/// Resolves every provider to a bundle that names it.
#[derive(Debug)]
struct Bundles;

impl Providers for Bundles {
    fn resolve(&self, provider: &str, _model: Option<&str>) -> Result<Resolved, String> {
        Ok(Resolved {
            provider: Some(provider.to_owned()),
            base_url: Some(format!("https://{provider}.example")),
            api_key: Some(ApiKey::new(format!("key-of-{provider}"))),
            request_overrides: [("from".to_owned(), Value::from(provider))].into(),
            ..Resolved::default()
        })
    }
}

#[test]
fn an_address_tells_provider_and_dialect() {
    for (address, expected) in [
        ("https://example.org/v1", ("custom", "chat_completions")),
        ("http://localhost:8080", ("custom", "chat_completions")),
        ("https://chatgpt.com/backend-api/codex", ("openai-codex", "codex_responses")),
        ("https://chatgpt.com/backend-api/codex/v2", ("openai-codex", "codex_responses")),
        ("https://chatgpt.com/", ("custom", "chat_completions")),
        ("https://API.Anthropic.com:443/v1", ("anthropic", "anthropic_messages")),
        ("https://api.anthropic.com.evil.example", ("custom", "chat_completions")),
        ("https://api.kimi.com/coding/v1", ("custom", "anthropic_messages")),
        ("https://api.kimi.com/codings", ("custom", "chat_completions")),
        ("https://gateway.example/anthropic", ("custom", "anthropic_messages")),
        ("https://gateway.example/x/anthropic/?a=b", ("custom", "anthropic_messages")),
        ("https://gateway.example/misanthropic", ("custom", "chat_completions")),
    ] {
        assert_eq!(by_address(address), expected, "{address}");
    }
}

#[test]
fn overrides_merge_one_level_into_extra_body_only() {
    let value = |text: &str| -> BTreeMap<String, Value> { serde_json::from_str(text).unwrap() };
    let base = value(r#"{"a": {"x": 1}, "extra_body": {"p": {"q": 1}, "r": 1}, "k": 1}"#);
    let over = value(r#"{"a": {"y": 2}, "extra_body": {"p": {"s": 2}, "t": 2}, "n": 2}"#);
    let (before, after) = (base.clone(), over.clone());
    let merged = merge(&base, Some(&over));
    let expected =
        r#"{"a": {"y": 2}, "extra_body": {"p": {"s": 2}, "r": 1, "t": 2}, "k": 1, "n": 2}"#;
    assert_eq!(merged, value(expected));
    assert_eq!((base, over), (before, after));
    // What is no map replaces, and is replaced.
    let odd = value(r#"{"extra_body": 5}"#);
    assert_eq!(
        merge(&odd, Some(&value(r#"{"extra_body": {"a": 1}}"#))),
        value(r#"{"extra_body": {"a": 1}}"#)
    );
    assert_eq!(merge(&value(r#"{"extra_body": {"a": 1}}"#), Some(&odd)), odd);
}

fn word() -> impl Strategy<Value = Option<String>> {
    prop::option::of("[a-c]")
}

fn overrides() -> impl Strategy<Value = BTreeMap<String, Value>> {
    let leaf = any::<i8>().prop_map(|number| Value::Int(number.into()));
    let map = prop::collection::btree_map("[a-c]", leaf.clone(), 0..3).prop_map(Value::Map);
    prop::collection::btree_map(
        prop_oneof![Just("extra_body".to_owned()), "[a-c]"],
        prop_oneof![leaf, map],
        0..4,
    )
}

fn chain() -> impl Strategy<Value = Vec<Fallback>> {
    let entry = ("[a-c]", "[a-c]").prop_map(|(provider, model)| Fallback {
        provider,
        model,
        ..Fallback::default()
    });
    prop::collection::vec(entry, 0..3)
}

fn parents() -> impl Strategy<Value = Parent> {
    let names = || prop::collection::vec("[a-c]", 0..3);
    let endpoint = || {
        (word(), word()).prop_map(|(address, key)| Endpoint {
            base_url: address.map(|name| format!("https://parent-{name}.example")),
            api_key: key.map(|name| ApiKey::new(format!("parent-key-{name}"))),
        })
    };
    (
        (word(), word(), word(), endpoint(), prop::option::of(endpoint())),
        (chain(), overrides(), names(), any::<bool>(), prop::option::of(1..9_u64)),
        (prop::collection::btree_map("[a-c]", any::<bool>(), 0..3), word(), names()),
    )
        .prop_map(|(one, two, three)| {
            let (model, provider, api_mode, endpoint, live) = one;
            let (fallback_model, request_overrides, filters, flag, max_tokens) = two;
            let (capabilities, acp_command, acp_args) = three;
            Parent {
                live,
                routing: Routing {
                    model,
                    requested_provider: provider.clone().map(|name| format!("named-{name}")),
                    provider,
                    base_url: endpoint.base_url,
                    api_key: endpoint.api_key,
                    capabilities,
                    api_mode,
                    acp_command,
                    acp_args,
                    reasoning_config: Some(Value::from("parent")),
                    fallback_model,
                    prefill_messages: vec![Value::from("hello")],
                    max_tokens,
                    request_overrides,
                    providers_allowed: filters.clone(),
                    providers_ignored: filters.clone(),
                    providers_order: filters,
                    provider_sort: Some("price".to_owned()),
                    provider_require_parameters: flag,
                    provider_data_collection: "deny".to_owned(),
                    openrouter_min_coding_score: Some(0.5),
                    default_headers: [("x".to_owned(), "y".to_owned())].into(),
                },
                ..Parent::default()
            }
        })
}

fn settings() -> impl Strategy<Value = Settings> {
    (
        word(),
        prop::option::of(prop_oneof!["[a-c]", Just("bedrock".to_owned())]),
        prop::option::of((word(), any::<bool>())),
        prop::option::of(prop::sample::select(MODES.to_vec())),
        prop::option::of(overrides()),
        prop::option::of(chain()),
        prop::option::of(prop::sample::select(vec!["none", "low"])),
    )
        .prop_map(|(model, provider, direct, mode, overrides, fallbacks, effort)| Settings {
            model,
            provider,
            api_key: direct
                .as_ref()
                .and_then(|(key, _)| Some(ApiKey::new(format!("set-key-{}", key.as_ref()?)))),
            base_url: direct.map(|(_, long)| {
                let end = if long { "/anthropic" } else { "" };
                format!("https://set.example{end}")
            }),
            api_mode: mode.map(str::to_owned),
            request_overrides: overrides,
            fallback_providers: fallbacks,
            reasoning_effort: effort,
            ..Settings::default()
        })
}

proptest! {
    #[test]
    fn endpoint_and_key_are_one_bundle(settings in settings(), parent in parents()) {
        let (before, theirs) = (settings.clone(), parent.clone());
        let routing = route(&settings, &parent, &Bundles).unwrap().routing;
        prop_assert_eq!(&before, &settings);
        prop_assert_eq!(&theirs, &parent);
        let used = parent.endpoint();
        let native = settings.provider.as_deref() == Some("bedrock");
        let expected = match (&settings.base_url, &settings.provider) {
            // Without a key of its own it is sent the parent's, as documented.
            (Some(url), _) if !native => Endpoint {
                base_url: Some(url.clone()),
                api_key: settings.api_key.clone().or(used.api_key),
            },
            (_, Some(name)) => {
                let bundle = Bundles.resolve(name, None).unwrap();
                Endpoint { base_url: bundle.base_url, api_key: bundle.api_key }
            }
            (_, None) => used,
        };
        prop_assert_eq!(&routing.base_url, &expected.base_url);
        prop_assert_eq!(&routing.api_key, &expected.api_key);
    }

    #[test]
    fn c44_a_pin_resets_what_belongs_to_the_endpoint(settings in settings(), parent in parents()) {
        let routing = route(&settings, &parent, &Bundles).unwrap().routing;
        let is_pinned = settings.base_url.is_some() || settings.provider.is_some();
        let theirs = &parent.routing;
        // Always the parent's, or what is set.
        prop_assert_eq!(&routing.prefill_messages, &theirs.prefill_messages);
        prop_assert_eq!(routing.max_tokens, theirs.max_tokens);
        prop_assert_eq!(routing.openrouter_min_coding_score, Some(0.5));
        prop_assert_eq!(routing.model.as_ref(), settings.model.as_ref().or(theirs.model.as_ref()));
        if settings.reasoning_effort.is_none() {
            prop_assert_eq!(&routing.reasoning_config, &theirs.reasoning_config);
        }
        if let Some(chain) = &settings.fallback_providers {
            prop_assert_eq!(&routing.fallback_model, chain);
        }
        if is_pinned {
            let cleared = Routing {
                model: routing.model.clone(),
                provider: routing.provider.clone(),
                requested_provider: routing.provider.clone(),
                base_url: routing.base_url.clone(),
                api_key: routing.api_key.clone(),
                api_mode: routing.api_mode.clone(),
                reasoning_config: routing.reasoning_config.clone(),
                fallback_model: settings.fallback_providers.clone().unwrap_or_default(),
                prefill_messages: routing.prefill_messages.clone(),
                max_tokens: routing.max_tokens,
                request_overrides: routing.request_overrides.clone(),
                openrouter_min_coding_score: Some(0.5),
                ..Routing::default()
            };
            prop_assert_eq!(&routing, &cleared);
            let from_parent = theirs.request_overrides.iter().filter(|(name, value)| {
                routing.request_overrides.get(*name) == Some(value)
                    && !settings.request_overrides.as_ref().is_some_and(|set| set.contains_key(*name))
            });
            prop_assert_eq!(from_parent.count(), 0);
        }
    }

    #[test]
    fn nothing_set_is_the_parents_route_with_its_live_endpoint(parent in parents()) {
        let routing = route(&Settings::default(), &parent, &NoProviders).unwrap().routing;
        let used = parent.endpoint();
        let expected =
            Routing { base_url: used.base_url, api_key: used.api_key, ..parent.routing.clone() };
        prop_assert_eq!(routing, expected);
    }

    #[test]
    fn c46_request_overrides_lie_over_those_below(base in overrides(), over in overrides()) {
        let merged = merge(&base, Some(&over));
        for (name, value) in &over {
            match (base.get(name), value) {
                (Some(Value::Map(below)), Value::Map(above)) if name == EXTRA_BODY => {
                    let mut both = below.clone();
                    both.extend(above.clone());
                    prop_assert_eq!(&merged[name], &Value::Map(both));
                }
                _ => prop_assert_eq!(&merged[name], value),
            }
        }
        for (name, value) in base.iter().filter(|(name, _)| !over.contains_key(*name)) {
            prop_assert_eq!(&merged[name], value);
        }
        prop_assert_eq!(merge(&merged, Some(&over)), merged.clone());
        prop_assert_eq!(merge(&base, None), base);
    }
}

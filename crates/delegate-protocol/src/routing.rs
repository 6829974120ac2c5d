//! Which model, endpoint and key a child uses: one bundle, made by the parent.
//!
//! Part of [`crate::spec::TaskSpec`]. Nothing here is looked up in the child.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::value::Value;

/// A key. It crosses the line, and shows itself nowhere else: `Debug` prints a mask, and
/// [`crate::TaskSpec::without_secrets`] is what may be stored.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ApiKey(String);

impl ApiKey {
    /// Wraps a key.
    #[must_use]
    pub const fn new(key: String) -> Self {
        Self(key)
    }

    /// The key itself, for the request that needs it.
    #[must_use]
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for ApiKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ApiKey(***)")
    }
}

/// An entry of a fallback chain. Its endpoint and key are a bundle of their own: an entry without a key
/// never gets one from the endpoint before it.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Fallback {
    /// Runtime provider.
    pub provider: String,
    /// Model id.
    pub model: String,
    /// Endpoint, where it is not the provider's usual one.
    pub base_url: Option<String>,
    /// Key for that endpoint.
    pub api_key: Option<ApiKey>,
    /// Wire dialect.
    pub api_mode: Option<String>,
}

/// The routing bundle of one child. `Debug` shows no key and no value of a header or override.
#[derive(Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Routing {
    /// Model id.
    pub model: Option<String>,
    /// Runtime provider.
    pub provider: Option<String>,
    /// Named endpoint identity.
    pub requested_provider: Option<String>,
    /// Endpoint. Belongs to `api_key`: both come from one place.
    pub base_url: Option<String>,
    /// Key for that endpoint.
    pub api_key: Option<ApiKey>,
    /// Endpoint-trust flags.
    pub capabilities: BTreeMap<String, bool>,
    /// Wire dialect, such as `chat_completions`.
    pub api_mode: Option<String>,
    /// A process that speaks for the model.
    pub acp_command: Option<String>,
    /// Its arguments.
    pub acp_args: Vec<String>,
    /// Thinking level: `{enabled: false}`, or `{enabled: true, effort: low}`.
    pub reasoning_config: Option<Value>,
    /// Entries tried in order when the first fails.
    pub fallback_model: Vec<Fallback>,
    /// Messages put before the conversation.
    pub prefill_messages: Vec<Value>,
    /// Cap of one model answer, in tokens.
    pub max_tokens: Option<u64>,
    /// Extra request arguments.
    pub request_overrides: BTreeMap<String, Value>,
    /// Hosts that may be used.
    pub providers_allowed: Vec<String>,
    /// Hosts that may not.
    pub providers_ignored: Vec<String>,
    /// Hosts in the order to try.
    pub providers_order: Vec<String>,
    /// How hosts are sorted.
    pub provider_sort: Option<String>,
    /// Only hosts that support every request parameter.
    pub provider_require_parameters: bool,
    /// Data-policy filter; empty is none.
    pub provider_data_collection: String,
    /// Model-gated score floor.
    pub openrouter_min_coding_score: Option<f64>,
    /// Headers that the provider wants.
    pub default_headers: BTreeMap<String, String>,
}

impl fmt::Debug for Routing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // No `..`: whoever adds a field decides here whether it may be shown.
        let Self {
            model,
            provider,
            requested_provider,
            base_url,
            api_key,
            capabilities,
            api_mode,
            acp_command,
            acp_args,
            reasoning_config,
            fallback_model,
            prefill_messages,
            max_tokens,
            request_overrides,
            providers_allowed,
            providers_ignored,
            providers_order,
            provider_sort,
            provider_require_parameters,
            provider_data_collection,
            openrouter_min_coding_score,
            default_headers,
        } = self;
        f.debug_struct("Routing")
            .field("model", model)
            .field("provider", provider)
            .field("requested_provider", requested_provider)
            .field("base_url", base_url)
            .field("api_key", api_key)
            .field("capabilities", capabilities)
            .field("api_mode", api_mode)
            .field("acp_command", acp_command)
            .field("acp_args", &acp_args.len())
            .field("reasoning_config", reasoning_config)
            .field("fallback_model", fallback_model)
            .field("prefill_messages", &prefill_messages.len())
            .field("max_tokens", max_tokens)
            .field("request_overrides", &request_overrides.keys())
            .field("providers_allowed", providers_allowed)
            .field("providers_ignored", providers_ignored)
            .field("providers_order", providers_order)
            .field("provider_sort", provider_sort)
            .field("provider_require_parameters", provider_require_parameters)
            .field("provider_data_collection", provider_data_collection)
            .field("openrouter_min_coding_score", openrouter_min_coding_score)
            .field("default_headers", &default_headers.keys())
            .finish()
    }
}

impl Routing {
    /// The same without what may be a key: the only form that may be stored or logged. Keys and
    /// headers are left out, of `request_overrides` every part whose name says that it is secret.
    #[must_use]
    pub fn without_secrets(&self) -> Self {
        let mut copy = self.clone();
        copy.api_key = None;
        copy.default_headers.clear();
        copy.acp_args.clear();
        for fallback in &mut copy.fallback_model {
            fallback.api_key = None;
        }
        copy.request_overrides.retain(|name, value| !is_secret_name(name) && forget(value));
        copy
    }
}

/// Takes secret parts out of a value, at any depth. Always true.
fn forget(value: &mut Value) -> bool {
    match value {
        Value::Map(entries) => {
            entries.retain(|name, value| !is_secret_name(name) && forget(value));
        }
        Value::List(items) => items.retain_mut(forget),
        Value::Null
        | Value::Bool(_)
        | Value::Int(_)
        | Value::UInt(_)
        | Value::Float(_)
        | Value::Text(_)
        | Value::Bytes(_) => {}
    }
    true
}

/// Whether a field of this name holds a secret, or headers, which may. `max_tokens` does not.
#[must_use]
pub fn is_secret_name(name: &str) -> bool {
    let name = name.to_ascii_lowercase().replace('-', "_");
    ["token", "secret", "password", "authorization", "headers", "cookie", "credentials"]
        .iter()
        .any(|word| name.ends_with(word))
        || ["key", "apikey"].contains(&name.as_str())
        || name.ends_with("_key")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map<const N: usize>(entries: [(&str, Value); N]) -> BTreeMap<String, Value> {
        entries.map(|(name, value)| (name.to_owned(), value)).into()
    }

    #[test]
    fn nothing_secret_is_shown_or_stored() {
        const CANARY: &str = "sk-canary";
        let secret = || Value::from(CANARY);
        let routing = Routing {
            api_key: Some(ApiKey::new(CANARY.to_owned())),
            fallback_model: vec![Fallback {
                api_key: Some(ApiKey::new(CANARY.to_owned())),
                model: "kept".to_owned(),
                ..Fallback::default()
            }],
            acp_args: vec![format!("--key={CANARY}")],
            default_headers: [("Authorization".to_owned(), CANARY.to_owned())].into(),
            request_overrides: map([
                ("extra_headers", Value::Map(map([("X", secret())]))),
                ("X-Api-Key", secret()),
                (
                    "extra_body",
                    Value::Map(map([
                        ("max_tokens", Value::Int(5)),
                        ("list", Value::List(vec![Value::Map(map([("auth_token", secret())]))])),
                    ])),
                ),
            ]),
            ..Routing::default()
        };
        assert!(!format!("{routing:?}").contains(CANARY));
        let stored = serde_json::to_string(&routing.without_secrets()).unwrap();
        assert!(!stored.contains(CANARY), "{stored}");
        assert!(stored.contains("max_tokens") && stored.contains("kept"), "{stored}");
        assert!(serde_json::to_string(&routing).unwrap().contains(CANARY), "it does cross");
    }

    #[test]
    fn names_of_secrets_are_known_from_others() {
        for name in ["api_key", "apikey", "Authorization", "x-auth-token", "headers", "accessToken"]
        {
            assert!(is_secret_name(name), "{name}");
        }
        for name in ["max_tokens", "monkey", "temperature", "keys", "token_count"] {
            assert!(!is_secret_name(name), "{name}");
        }
    }
}

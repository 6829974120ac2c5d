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

/// The routing bundle of one child.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
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
    /// Thinking level.
    pub reasoning_config: Option<Value>,
    /// Entries tried in order when the first fails.
    pub fallback_model: Vec<Value>,
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

//! The route of a child: which model, endpoint and key it uses, out of the settings and what its
//! parent has ([`route`]). Pure but for the hook ([`Providers`]) through which an agent loop tells
//! what a provider is. `docs/routing.md` has the rules as a table.

use std::collections::BTreeMap;
use std::fmt;

use delegate_protocol::{ApiKey, Routing, Value};

use super::parent::{Endpoint, Parent};
use crate::config::Settings;

/// Providers whose own SDK finds the endpoint: `base_url` says nothing to them.
const NATIVE: [&str; 4] = ["bedrock", "vertex", "google", "google-genai"];

/// Wire dialects that everybody knows.
const MODES: [&str; 3] = ["chat_completions", "codex_responses", "anthropic_messages"];

/// Provider of an endpoint that is given by its address.
const CUSTOM: &str = "custom";

/// Provider of a program that speaks for a model, where its own is not of that kind.
const ACP: &str = "copilot-acp";

/// A provider whose dialect depends on the model.
const BY_MODEL: &str = "nous";

/// What a provider comes to: its whole bundle.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Resolved {
    /// The runtime's own name for it.
    pub provider: Option<String>,
    /// An endpoint that the user named: the child keeps the name that was configured.
    pub is_custom: bool,
    /// Endpoint.
    pub base_url: Option<String>,
    /// Key.
    pub api_key: Option<ApiKey>,
    /// It works without a key.
    pub keyless: bool,
    /// It works without an address.
    pub addressless: bool,
    /// Wire dialect.
    pub api_mode: Option<String>,
    /// A program that speaks for the model.
    pub acp_command: Option<String>,
    /// Its arguments.
    pub acp_args: Vec<String>,
    /// Extra request arguments that it needs.
    pub request_overrides: BTreeMap<String, Value>,
    /// Headers that it wants.
    pub default_headers: BTreeMap<String, String>,
}

/// What the agent loop knows of providers. Asked once per batch, before anything starts, on the thread
/// that plans.
pub trait Providers: fmt::Debug + Send + Sync {
    /// The bundle of a provider, for a model where one is set.
    ///
    /// # Errors
    /// Why it cannot be had, in words for a person.
    fn resolve(&self, provider: &str, model: Option<&str>) -> Result<Resolved, String>;

    /// Whether `mode` is a wire dialect beyond the three usual ones.
    fn knows_mode(&self, mode: &str) -> bool {
        let _ = mode;
        false
    }

    /// Whether a provider is an external program.
    fn is_external(&self, provider: &str) -> bool {
        provider == ACP
    }

    /// Whether a program can be found. The default looks into `PATH`.
    fn has_program(&self, command: &str) -> bool {
        if command.contains('/') {
            return std::path::Path::new(command).is_file();
        }
        let path = std::env::var_os("PATH").unwrap_or_default();
        std::env::split_paths(&path).any(|dir| dir.join(command).is_file())
    }
}

/// Knows no provider.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoProviders;

impl Providers for NoProviders {
    fn resolve(&self, _provider: &str, _model: Option<&str>) -> Result<Resolved, String> {
        Err("this program knows no providers; give it Builder::providers, or set base_url and \
             api_key instead of provider"
            .to_owned())
    }
}

/// Why there is no route.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RouteError {
    /// The hook has refused.
    #[error("provider `{provider}` cannot be resolved: {reason}")]
    Unresolved {
        /// As configured.
        provider: String,
        /// The hook's words.
        reason: String,
    },
    /// It came without a key.
    #[error("provider `{provider}` has no API key; log in to it, or set base_url and api_key")]
    NoKey {
        /// As configured.
        provider: String,
    },
    /// It came without an address.
    #[error("provider `{provider}` has no endpoint; set base_url")]
    NoEndpoint {
        /// As configured.
        provider: String,
    },
    /// The program that speaks for it is not installed.
    #[error(
        "provider `{provider}` needs the program `{command}`, which is not on PATH; install it"
    )]
    NoProgram {
        /// As configured.
        provider: String,
        /// The program.
        command: String,
    },
    /// `api_mode` is no dialect.
    #[error("api_mode `{mode}` is not known; known: {}", MODES.join(", "))]
    UnknownMode {
        /// As configured.
        mode: String,
    },
    /// A key for nothing.
    #[error("api_key is the key for base_url, which is not set; set it, or remove api_key")]
    KeyWithoutEndpoint,
}

/// A route, and one sentence on where it came from.
#[derive(Debug, Clone, PartialEq)]
pub struct Routed {
    /// The same for every child of a batch.
    pub routing: Routing,
    /// For `--explain`.
    pub reason: String,
}

/// What is set for children and not inherited.
struct Pin {
    provider: Option<String>,
    endpoint: Endpoint,
    api_mode: Option<String>,
    acp: Option<(String, Vec<String>)>,
    overrides: BTreeMap<String, Value>,
    headers: BTreeMap<String, String>,
    reason: String,
}

/// Decides the route of a batch's children. Settings and parent stay as they are.
///
/// # Errors
/// [`RouteError`]; the whole call is refused.
pub fn route(
    settings: &Settings,
    parent: &Parent,
    providers: &dyn Providers,
) -> Result<Routed, RouteError> {
    let mode = explicit_mode(settings, providers)?;
    let native = settings.provider.as_deref().is_some_and(|name| NATIVE.contains(&name));
    if settings.api_key.is_some() && settings.base_url.is_none() {
        return Err(RouteError::KeyWithoutEndpoint);
    }
    let pin = match (settings.base_url.as_deref(), settings.provider.as_deref()) {
        (Some(base_url), provider) if !native => {
            Some(direct(base_url, provider, settings, parent, mode, providers))
        }
        (_, Some(provider)) => Some(pinned(provider, settings, parent, mode, providers)?),
        (_, None) => None,
    };
    Ok(match pin {
        Some(pin) => {
            let reason = pin.reason.clone();
            Routed { routing: with_pin(pin, settings, &parent.routing), reason }
        }
        None => Routed {
            routing: inherited(settings, parent, mode),
            reason: "the parent's route".to_owned(),
        },
    })
}

fn explicit_mode<'a>(
    settings: &'a Settings,
    providers: &dyn Providers,
) -> Result<Option<&'a str>, RouteError> {
    match settings.api_mode.as_deref() {
        Some(mode) if !MODES.contains(&mode) && !providers.knows_mode(mode) => {
            Err(RouteError::UnknownMode { mode: mode.to_owned() })
        }
        mode => Ok(mode),
    }
}

/// An endpoint by its address. A provider beside it gives its request arguments and nothing else.
fn direct(
    base_url: &str,
    provider: Option<&str>,
    settings: &Settings,
    parent: &Parent,
    mode: Option<&str>,
    providers: &dyn Providers,
) -> Pin {
    let (name, found) = by_address(base_url);
    let beside = provider.and_then(|name| providers.resolve(name, settings.model.as_deref()).ok());
    Pin {
        provider: Some(name.to_owned()),
        endpoint: Endpoint {
            base_url: Some(base_url.to_owned()),
            api_key: settings.api_key.clone().or_else(|| parent.endpoint().api_key),
        },
        api_mode: Some(mode.unwrap_or(found).to_owned()),
        acp: None,
        overrides: beside.map(|resolved| resolved.request_overrides).unwrap_or_default(),
        headers: BTreeMap::new(),
        reason: "base_url is set".to_owned(),
    }
}

/// Provider and dialect of an address.
fn by_address(base_url: &str) -> (&'static str, &'static str) {
    let lower = base_url.to_ascii_lowercase();
    let rest = lower.split_once("://").map_or(lower.as_str(), |(_, rest)| rest);
    let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
    let path = path.split(['?', '#']).next().unwrap_or_default().trim_end_matches('/');
    let host = authority.split(':').next().unwrap_or_default();
    let within = |folder: &str| path == folder || path.starts_with(&format!("{folder}/"));
    if host == "chatgpt.com" && within("backend-api/codex") {
        ("openai-codex", "codex_responses")
    } else if host == "api.anthropic.com" {
        ("anthropic", "anthropic_messages")
    } else if (host == "api.kimi.com" && within("coding"))
        || path == "anthropic"
        || path.ends_with("/anthropic")
    {
        (CUSTOM, "anthropic_messages")
    } else {
        (CUSTOM, "chat_completions")
    }
}

/// A provider with its own bundle.
fn pinned(
    name: &str,
    settings: &Settings,
    parent: &Parent,
    mode: Option<&str>,
    providers: &dyn Providers,
) -> Result<Pin, RouteError> {
    let provider = || name.to_owned();
    let resolved = providers
        .resolve(name, settings.model.as_deref())
        .map_err(|reason| RouteError::Unresolved { provider: provider(), reason })?;
    let Resolved {
        provider: own,
        is_custom,
        base_url,
        api_key,
        keyless,
        addressless,
        api_mode,
        acp_command,
        acp_args,
        request_overrides,
        default_headers,
    } = resolved;
    let acp = acp_command.filter(|command| !command.is_empty());
    if let Some(command) = acp.as_ref().filter(|command| !providers.has_program(command)) {
        return Err(RouteError::NoProgram { provider: provider(), command: command.clone() });
    }
    if api_key.is_none() && !keyless && acp.is_none() {
        return Err(RouteError::NoKey { provider: provider() });
    }
    let native = NATIVE.contains(&name);
    if base_url.is_none() && !addressless && !native && acp.is_none() {
        return Err(RouteError::NoEndpoint { provider: provider() });
    }
    let own = if is_custom { Some(provider()) } else { own };
    let (own, found) = if acp.is_some() {
        let external = own.filter(|own| providers.is_external(own));
        (external.or_else(|| Some(ACP.to_owned())), Some("chat_completions".to_owned()))
    } else {
        let same = own.is_some() && own == parent.routing.provider;
        let theirs = || parent.routing.api_mode.clone().filter(|_| same);
        let found = api_mode.or_else(theirs).filter(|_| own.as_deref() != Some(BY_MODEL));
        (own, found)
    };
    let unused = native && settings.base_url.is_some();
    let but =
        if unused { "; its SDK finds the endpoint, base_url and api_key are not used" } else { "" };
    Ok(Pin {
        provider: own,
        endpoint: Endpoint { base_url, api_key },
        api_mode: mode.map(str::to_owned).or(found),
        acp: acp.map(|command| (command, acp_args)),
        overrides: request_overrides,
        headers: default_headers,
        reason: format!("provider is set to {name}{but}"),
    })
}

/// A pinned route: nothing of the parent's endpoint, and none of the filters that belong to it.
fn with_pin(pin: Pin, settings: &Settings, parent: &Routing) -> Routing {
    let (acp_command, acp_args) = pin.acp.unzip();
    Routing {
        model: settings.model.clone().or_else(|| parent.model.clone()),
        requested_provider: pin.provider.clone(),
        provider: pin.provider,
        base_url: pin.endpoint.base_url,
        api_key: pin.endpoint.api_key,
        capabilities: BTreeMap::new(),
        api_mode: pin.api_mode,
        acp_command,
        acp_args: acp_args.unwrap_or_default(),
        reasoning_config: reasoning(settings, parent),
        fallback_model: settings.fallback_providers.clone().unwrap_or_default(),
        prefill_messages: parent.prefill_messages.clone(),
        max_tokens: parent.max_tokens,
        request_overrides: merge(&pin.overrides, settings.request_overrides.as_ref()),
        providers_allowed: Vec::new(),
        providers_ignored: Vec::new(),
        providers_order: Vec::new(),
        provider_sort: None,
        provider_require_parameters: false,
        provider_data_collection: String::new(),
        openrouter_min_coding_score: parent.openrouter_min_coding_score,
        default_headers: pin.headers,
    }
}

/// The parent's route, with the model of the settings.
fn inherited(settings: &Settings, parent: &Parent, mode: Option<&str>) -> Routing {
    let Endpoint { base_url, api_key } = parent.endpoint();
    let theirs = &parent.routing;
    let by_model = theirs.provider.as_deref() == Some(BY_MODEL);
    let found = theirs.api_mode.clone().filter(|_| !by_model);
    Routing {
        model: settings.model.clone().or_else(|| theirs.model.clone()),
        provider: theirs.provider.clone(),
        requested_provider: theirs.requested_provider.clone(),
        base_url,
        api_key,
        capabilities: theirs.capabilities.clone(),
        api_mode: mode.map(str::to_owned).or(found),
        acp_command: theirs.acp_command.clone(),
        acp_args: theirs.acp_args.clone(),
        reasoning_config: reasoning(settings, theirs),
        fallback_model: settings
            .fallback_providers
            .clone()
            .unwrap_or_else(|| theirs.fallback_model.clone()),
        prefill_messages: theirs.prefill_messages.clone(),
        max_tokens: theirs.max_tokens,
        request_overrides: merge(&theirs.request_overrides, settings.request_overrides.as_ref()),
        providers_allowed: theirs.providers_allowed.clone(),
        providers_ignored: theirs.providers_ignored.clone(),
        providers_order: theirs.providers_order.clone(),
        provider_sort: theirs.provider_sort.clone(),
        provider_require_parameters: theirs.provider_require_parameters,
        provider_data_collection: theirs.provider_data_collection.clone(),
        openrouter_min_coding_score: theirs.openrouter_min_coding_score,
        default_headers: theirs.default_headers.clone(),
    }
}

fn reasoning(settings: &Settings, parent: &Routing) -> Option<Value> {
    let entry = |name: &str, value| (name.to_owned(), value);
    match settings.reasoning_effort {
        None => parent.reasoning_config.clone(),
        Some("none") => Some(Value::Map([entry("enabled", Value::Bool(false))].into())),
        Some(effort) => Some(Value::Map(
            [entry("enabled", Value::Bool(true)), entry("effort", Value::from(effort))].into(),
        )),
    }
}

/// The field of a request that providers put their own extensions into.
const EXTRA_BODY: &str = "extra_body";

/// `over` on top of `base`; of `extra_body` the entries are laid over one another, one level deep.
/// Both sides stay as they are.
fn merge(
    base: &BTreeMap<String, Value>,
    over: Option<&BTreeMap<String, Value>>,
) -> BTreeMap<String, Value> {
    let mut merged = base.clone();
    for (name, value) in over.into_iter().flatten() {
        match (merged.get_mut(name), value) {
            (Some(Value::Map(below)), Value::Map(above)) if name == EXTRA_BODY => {
                below.extend(above.iter().map(|(name, value)| (name.clone(), value.clone())));
            }
            _ => drop(merged.insert(name.clone(), value.clone())),
        }
    }
    merged
}

#[cfg(test)]
#[path = "routing_tests.rs"]
mod tests;

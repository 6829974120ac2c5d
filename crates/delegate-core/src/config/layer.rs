//! One layer of settings: what a file, the variables or the flags say, each value with its origin.
//! `config::load` stacks layers and resolves them with [`apply`].

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use delegate_protocol::Value;

use super::keys::{self, Id, KeyInfo};
use super::value::{Typed, check};
use super::yaml::{Key, Kind, Node, Source};
use super::{Diagnostic, Origin, Settings, did_you_mean, nearest, yaml};

/// A value and who said it.
#[derive(Debug, Clone)]
pub(crate) struct Given {
    pub(crate) value: Typed,
    pub(crate) origin: Origin,
    /// The name that was used: the key's or its twin's.
    name: String,
}

impl Given {
    fn holds_key(&self) -> bool {
        self.value.holds_key()
    }
}

/// Faults of one file that are told.
const MOST_FAULTS: usize = 100;

/// Values by setting.
pub(crate) type Layer = BTreeMap<Id, Given>;

/// What a file says.
#[derive(Debug, Default)]
pub(crate) struct FileLayer {
    pub(crate) values: Layer,
    /// Keys that are the agent loop's own.
    pub(crate) loops_own: Vec<String>,
    /// Dotted names of commands, keys and endpoints that it sets, with their places.
    pub(crate) sensitive: Vec<(String, Key)>,
    /// The place of the first key (of an endpoint) that it holds.
    pub(crate) secret: Option<Key>,
    /// What is wrong with it, in its order.
    pub(crate) faults: Vec<Diagnostic>,
}

/// Reads a configuration file.
///
/// # Errors
/// The first fault of the file, in its order.
pub(crate) fn from_file(source: Source<'_>) -> Result<FileLayer, Diagnostic> {
    let mut layer = read(source);
    if layer.faults.is_empty() { Ok(layer) } else { Err(layer.faults.swap_remove(0)) }
}

/// Reads a configuration file with all its faults. What is wrong as YAML is one fault.
pub(crate) fn read(source: Source<'_>) -> FileLayer {
    let mut layer = FileLayer::default();
    if let Err(fault) = yaml::parse(source).and_then(|root| layer.add_root(source, root)) {
        layer.faults.push(fault);
    }
    layer
}

/// The entries of a map; none for null.
fn entries(source: Source<'_>, node: Node, what: &str) -> Result<Vec<(Key, Node)>, Diagnostic> {
    let fault = node.no_map(source, &format!("{what} must be a map of keys"));
    match node.kind {
        Kind::Map(entries) => Ok(entries),
        Kind::Scalar(Value::Null) => Ok(Vec::new()),
        Kind::Scalar(_) | Kind::List(_) => Err(fault),
    }
}

fn unknown_section(source: Source<'_>, key: &Key) -> Diagnostic {
    let message = format!("unknown key `{}`", super::shorten(&key.text, 60));
    let hint = did_you_mean(&key.text, ["delegation"])
        .unwrap_or_else(|| "the only section is `delegation`; settings stand below it".to_owned());
    source.fault("unknown_key", key.place, message).hint(hint)
}

impl FileLayer {
    fn add_root(&mut self, source: Source<'_>, root: Node) -> Result<(), Diagnostic> {
        for (key, node) in entries(source, root, "a configuration file")? {
            if key.text == "delegation" {
                match entries(source, node, "`delegation`") {
                    Ok(entries) => self.add_all(source, "", entries),
                    Err(fault) => self.faults.push(fault),
                }
            } else if self.faults.len() >= MOST_FAULTS {
                self.give_up(source, &key);
            } else {
                self.faults.push(unknown_section(source, &key));
            }
        }
        Ok(())
    }

    fn add_all(&mut self, source: Source<'_>, prefix: &str, entries: Vec<(Key, Node)>) {
        for (key, node) in entries {
            if self.faults.len() >= MOST_FAULTS {
                return self.give_up(source, &key);
            }
            if let Err(fault) = self.add(source, prefix, key, node) {
                self.faults.push(fault);
            }
        }
    }

    /// Nobody repairs so many at once, and each costs a look through the text.
    fn give_up(&mut self, source: Source<'_>, key: &Key) {
        const CODE: &str = "too_many_faults";
        if self.faults.last().is_none_or(|last| last.code != CODE) {
            let message = format!("{MOST_FAULTS} faults; from here on nothing was checked");
            let fault = source.fault(CODE, key.place, message);
            self.faults.push(fault.hint("repair those above first"));
        }
    }

    /// Adds one entry of a section; `prefix` is empty or ends with a dot.
    fn add(
        &mut self,
        source: Source<'_>,
        prefix: &str,
        key: Key,
        node: Node,
    ) -> Result<(), Diagnostic> {
        let full = format!("{prefix}{}", key.text);
        // In a file a dot is no way down: the schema, which editors use, has none either.
        if let Some((info, is_twin)) = keys::find(&full).filter(|_| !key.text.contains('.')) {
            return self.set(source, info, is_twin, &full, key, &node);
        }
        let below = format!("{full}.");
        if keys::names().any(|name| name.starts_with(&below)) {
            let entries = entries(source, node, &format!("`{full}`"))?;
            self.add_all(source, &below, entries);
            return Ok(());
        }
        if keys::LOOPS_OWN.contains(&full.as_str()) {
            self.loops_own.push(full);
            return Ok(());
        }
        let message = format!("unknown key `{}`", super::shorten(&key.text, 60));
        let fault = source.fault("unknown_key", key.place, message);
        Err(match did_you_mean(&key.text, siblings(prefix)) {
            Some(hint) => fault.hint(hint),
            None => fault,
        })
    }

    fn set(
        &mut self,
        source: Source<'_>,
        info: &KeyInfo,
        is_twin: bool,
        full: &str,
        key: Key,
        node: &Node,
    ) -> Result<(), Diagnostic> {
        let value = check(info, is_twin, &format!("`{full}`"), node).map_err(|wrong| {
            let fault = source.fault(wrong.code, node.place, wrong.message);
            match wrong.hint {
                Some(hint) => fault.hint(hint),
                None => fault,
            }
        })?;
        if let Some(earlier) = self.values.get(&info.id) {
            let message = format!("`{}` and `{full}` are the same setting", earlier.name);
            return Err(source.fault("both_set", key.place, message).hint("keep one of the two"));
        }
        let file = source.file.unwrap_or(Path::new("")).to_owned();
        let origin = Origin::File { file, line: key.place.line };
        self.values.insert(info.id, Given { value, origin, name: full.to_owned() });
        if self.secret.is_none() && self.values.get(&info.id).is_some_and(Given::holds_key) {
            self.secret = Some(key.clone());
        }
        if info.sensitive {
            self.sensitive.push((full.to_owned(), key));
        }
        Ok(())
    }
}

/// Names that may stand where an unknown one stood.
fn siblings(prefix: &str) -> impl Iterator<Item = &'static str> {
    keys::names()
        .filter_map(move |name| name.strip_prefix(prefix))
        .map(|rest| rest.split('.').next().unwrap_or(rest))
}

/// What the variables of the environment say, and notes about those that nobody knows.
///
/// # Errors
/// A wrong value, with the variable's name.
pub(crate) fn from_env(env: &[(String, String)]) -> Result<(Layer, Vec<String>), Diagnostic> {
    let mut layer = Layer::new();
    for (info, is_twin, variable) in keys::KEYS.iter().flat_map(variables) {
        let Some(text) = value_of(env, &variable) else { continue };
        let value = from_text(info, is_twin, &variable, text)?;
        if let Some(earlier) = layer.get(&info.id) {
            let message = format!("{} and {variable} are the same setting", earlier.name);
            return Err(Diagnostic { code: "both_set", message, ..Diagnostic::default() }
                .hint("unset one of the two"));
        }
        let origin = Origin::Variable(variable.clone());
        layer.insert(info.id, Given { value, origin, name: variable });
    }
    for info in &keys::KEYS {
        // What loops already set is weaker than what was said to us.
        let Some(variable) = info.also else { continue };
        let Some(text) = value_of(env, variable) else { continue };
        let value = from_text(info, false, variable, text)?;
        let origin = Origin::Variable(variable.to_owned());
        layer.entry(info.id).or_insert(Given { value, origin, name: variable.to_owned() });
    }
    Ok((layer, unknown_variables(env)))
}

fn variables(info: &'static KeyInfo) -> impl Iterator<Item = (&'static KeyInfo, bool, String)> {
    let own = (info, false, keys::variable(info.name));
    std::iter::once(own).chain(info.twin().map(|twin| (info, true, keys::variable(twin))))
}

/// A variable that is set and not empty.
pub(crate) fn value_of<'a>(env: &'a [(String, String)], name: &str) -> Option<&'a str> {
    env.iter()
        .find(|(key, value)| key == name && !value.is_empty())
        .map(|(_, value)| value.as_str())
}

const PREFIX: &str = "DELEGATE_";

fn unknown_variables(env: &[(String, String)]) -> Vec<String> {
    let known: Vec<String> = keys::names()
        .map(keys::variable)
        .chain(keys::NOT_KEYS.map(str::to_owned))
        .map(|name| name[PREFIX.len()..].to_owned())
        .collect();
    let known = || known.iter().map(String::as_str);
    let mut notes: Vec<String> = env
        .iter()
        .filter_map(|(name, _)| name.strip_prefix(PREFIX))
        .filter(|name| !known().any(|other| other == *name))
        .map(|name| {
            let near = nearest(name, known());
            let hint = near.map(|near| format!("; did you mean `{PREFIX}{near}`?"));
            let name = super::shorten(name, 60);
            format!("unknown variable `{PREFIX}{name}` is ignored{}", hint.unwrap_or_default())
        })
        .collect();
    notes.sort();
    notes
}

/// The option that sets any key.
const SET: &str = "--set";

/// What the flags say; a later one replaces an earlier one.
///
/// # Errors
/// A wrong value, with the flag's name.
pub(crate) fn from_flags(flags: &[(String, String, String)]) -> Result<Layer, Diagnostic> {
    let mut layer = Layer::new();
    for (name, text, flag) in flags {
        let Some((info, is_twin)) = keys::find(name) else {
            let message = format!("{flag}: unknown key `{name}`");
            let hint = did_you_mean(name, keys::names());
            return Err(Diagnostic { code: "unknown_key", message, hint, ..Diagnostic::default() });
        };
        // An option of a name of its own says by itself what is wrong.
        let label = if flag == SET { &format!("{flag} {name}") } else { flag };
        let value = from_text(info, is_twin, label, text)?;
        let origin = Origin::Flag(flag.clone());
        layer.insert(info.id, Given { value, origin, name: flag.clone() });
    }
    Ok(layer)
}

/// A value that was given as text, read as YAML.
fn from_text(info: &KeyInfo, is_twin: bool, label: &str, text: &str) -> Result<Typed, Diagnostic> {
    let fault = |code, message, hint| Diagnostic { code, message, hint, ..Diagnostic::default() };
    let node = yaml::parse(Source { file: None, text })
        .map_err(|error| fault(error.code, format!("{label}: {}", error.message), error.hint))?;
    let value = check(info, is_twin, label, &node)
        .map_err(|wrong| fault(wrong.code, wrong.message, wrong.hint))?;
    if value.holds_key() {
        let message = format!("{label}: a key is taken from a file only");
        let hint = "every child would inherit the variable, and everybody sees the arguments of a \
                    program; write it into a configuration file that only you can read";
        return Err(fault("key_not_in_a_file", message, Some(hint.to_owned())));
    }
    Ok(value)
}

/// Puts one value into the settings. A value of another type cannot come here: [`check`] made it.
pub(crate) fn apply(settings: &mut Settings, id: Id, value: &Typed) {
    match id {
        Id::ProcessIsolation => settings.process_isolation = value.isolation(),
        Id::IsolateSingleTask => settings.isolate_single_task = *value == Typed::Flag(true),
        Id::MaxConcurrentChildren => set(&mut settings.max_concurrent_children, value.count()),
        Id::MaxBatchSize => settings.max_batch_size = value.count(),
        Id::MaxTreeChildren => settings.max_tree_children = value.count(),
        Id::MaxTreeTokens => settings.max_tree_tokens = value.count(),
        Id::MaxTreeCostUsd => settings.max_tree_cost_usd = value.money(),
        Id::ChildMaxTokens => settings.child_max_tokens = value.count(),
        Id::ChildMaxCostUsd => settings.child_max_cost_usd = value.money(),
        Id::ChildTimeout => settings.child_timeout = value.time(),
        Id::ChildInactivity => settings.child_inactivity = value.time(),
        Id::StaleIdle => set(&mut settings.stale_idle, value.time()),
        Id::StaleInTool => set(&mut settings.stale_in_tool, value.time()),
        Id::OnStale => set(&mut settings.on_stale, value.on_stale()),
        Id::InterruptGrace => set(&mut settings.interrupt_grace, value.time()),
        Id::TerminateGrace => set(&mut settings.terminate_grace, value.time()),
        Id::StartTimeout => set(&mut settings.start_timeout, value.time()),
        Id::Containment => set(&mut settings.containment, value.containment()),
        Id::MaxMemory => settings.ration.memory = value.count(),
        Id::MaxProcesses => settings.ration.processes = value.count(),
        Id::MaxOpenFiles => settings.ration.open_files = value.count(),
        Id::MaxCpu => settings.ration.cpu = value.time(),
        Id::ChildNice => settings.ration.nice = value.count(),
        Id::ChildCpuWeight => settings.ration.cpu_weight = value.count(),
        Id::HeartbeatInterval => set(&mut settings.heartbeat_interval, value.time()),
        Id::MaxIterations => set(&mut settings.max_iterations, value.count()),
        Id::MaxResultBytes => set(&mut settings.max_result_bytes, value.count()),
        Id::MaxSummaryChars => settings.max_summary_chars = value.count(),
        Id::WorkerCommand => settings.worker_command = value.command(),
        Id::MaxSpawnDepth => set(&mut settings.max_spawn_depth, value.count()),
        Id::OrchestratorEnabled => settings.orchestrator_enabled = *value == Typed::Flag(true),
        Id::Model => settings.model = value.text(),
        Id::Provider => settings.provider = value.text(),
        Id::BaseUrl => settings.base_url = value.text(),
        Id::ApiKey => settings.api_key = value.secret(),
        Id::ApiMode => settings.api_mode = value.text(),
        Id::RequestOverrides => settings.request_overrides = value.overrides(),
        Id::ReasoningEffort => settings.reasoning_effort = value.effort(),
        Id::FallbackProviders => settings.fallback_providers = value.fallbacks(),
        Id::InheritMcpToolsets => settings.inherit_mcp_toolsets = *value == Typed::Flag(true),
        Id::WorktreeIsolation => settings.worktree_isolation = *value == Typed::Flag(true),
        Id::SubagentAutoApprove => settings.subagent_auto_approve = *value == Typed::Flag(true),
        Id::Launcher => set(&mut settings.launcher, value.launcher()),
        Id::PoolMinIdle => set(&mut settings.pool.min_idle, value.count()),
        Id::PoolMaxIdle => set(&mut settings.pool.max_idle, value.count()),
        Id::PoolIdle => set(&mut settings.pool.idle, value.time()),
        Id::PoolMaxUses => set(&mut settings.pool.max_uses, value.count()),
        Id::JanitorAtStart => set(&mut settings.janitor_at_start, value.at_start()),
        Id::CredentialPools => settings.credential_pools = value.text().map(PathBuf::from),
        Id::CredentialPoolStrategies => settings.credential_pool_strategies = value.strategies(),
        Id::ProviderLimits => settings.provider_limits = value.limits(),
        Id::BackgroundOverflow => set(&mut settings.background_overflow, value.overflow()),
        Id::IndependentCompletions => {
            settings.independent_completions = *value == Typed::Flag(true);
        }
        Id::SharedHelpers => settings.shared_helpers = value.helpers(),
    }
}

fn set<T>(field: &mut T, value: Option<T>) {
    if let Some(value) = value {
        *field = value;
    }
}

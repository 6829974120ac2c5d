//! What is in force and from where ([`Loaded::settings_in_order`]), what is wrong with files
//! ([`check`]), and where files are looked for ([`places`]). For commands that show configuration.

use std::path::{Path, PathBuf};

use delegate_protocol::{Fallback, Value};

use super::keys::{self, Id};
use super::search::{self, Candidate, Found};
use super::yaml::Source;
use super::{
    Diagnostic, Loaded, Origin, ProcessIsolation, Settings, Sources, bytes, layer, pools, trust,
};

/// What stands for a key.
const MASK: &str = "***";

/// One setting as it is in force.
#[derive(Debug, Clone, PartialEq)]
pub struct Setting {
    /// Dotted name below `delegation`.
    pub name: &'static str,
    /// The value, as a file would say it. A key is `***`.
    pub value: Value,
    /// Who set it; `None`: the default.
    pub origin: Option<Origin>,
    /// One line on what it is for.
    pub about: &'static str,
}

impl Loaded {
    /// Every setting in the order of the reference.
    #[must_use]
    pub fn settings_in_order(&self) -> Vec<Setting> {
        let setting = |key: &'static keys::KeyInfo| Setting {
            name: key.name,
            value: value(&self.settings, key.id),
            origin: self.origins.get(key.name).cloned(),
            about: key.about,
        };
        keys::KEYS.iter().map(setting).collect()
    }
}

/// The value of a key. Over all ids: a key that nobody shows does not compile.
fn value(settings: &Settings, id: Id) -> Value {
    let whole = |number: u64| i64::try_from(number).map_or(Value::UInt(number), Value::Int);
    let count = |number: u32| Value::Int(number.into());
    let seconds = |time: std::time::Duration| {
        if time.subsec_nanos() == 0 {
            whole(time.as_secs())
        } else {
            Value::Float(time.as_secs_f64())
        }
    };
    let text = |text: &Option<String>| text.clone().map_or(Value::Null, Value::Text);
    let texts = |texts: &[String]| Value::List(texts.iter().cloned().map(Value::Text).collect());
    match id {
        Id::ProcessIsolation => match settings.process_isolation {
            None => Value::Null,
            Some(ProcessIsolation::Off) => Value::Bool(false),
            Some(ProcessIsolation::On) => Value::Bool(true),
            Some(ProcessIsolation::Auto) => Value::from("auto"),
        },
        Id::IsolateSingleTask => Value::Bool(settings.isolate_single_task),
        Id::MaxConcurrentChildren => count(settings.max_concurrent_children),
        Id::MaxBatchSize => settings.max_batch_size.map_or(Value::Null, count),
        Id::MaxTreeChildren => settings.max_tree_children.map_or(Value::Null, count),
        Id::MaxTreeTokens => settings.max_tree_tokens.map_or(Value::Null, whole),
        Id::MaxTreeCostUsd => settings.max_tree_cost_usd.map_or(Value::Null, Value::Float),
        Id::ChildMaxTokens => settings.child_max_tokens.map_or(Value::Null, whole),
        Id::ChildMaxCostUsd => settings.child_max_cost_usd.map_or(Value::Null, Value::Float),
        Id::ChildTimeout => settings.child_timeout.map_or(Value::Null, seconds),
        Id::ChildInactivity => settings.child_inactivity.map_or(Value::Null, seconds),
        Id::StaleIdle => seconds(settings.stale_idle),
        Id::StaleInTool => seconds(settings.stale_in_tool),
        Id::OnStale => Value::from(settings.on_stale.word()),
        Id::Launcher => Value::from(settings.launcher.word()),
        Id::PoolMinIdle => count(settings.pool.min_idle),
        Id::PoolMaxIdle => count(settings.pool.max_idle),
        Id::PoolIdle => seconds(settings.pool.idle),
        Id::PoolMaxUses => count(settings.pool.max_uses),
        Id::JanitorAtStart => Value::from(settings.janitor_at_start.word()),
        Id::BackgroundOverflow => Value::from(settings.background_overflow.word()),
        Id::IndependentCompletions => Value::Bool(settings.independent_completions),
        Id::InterruptGrace => seconds(settings.interrupt_grace),
        Id::TerminateGrace => seconds(settings.terminate_grace),
        Id::StartTimeout => seconds(settings.start_timeout),
        Id::Containment => Value::from(settings.containment.word()),
        Id::MaxMemory => {
            settings.ration.memory.map_or(Value::Null, |memory| Value::from(bytes::show(memory)))
        }
        Id::MaxProcesses => settings.ration.processes.map_or(Value::Null, whole),
        Id::MaxOpenFiles => settings.ration.open_files.map_or(Value::Null, whole),
        Id::MaxCpu => settings.ration.cpu.map_or(Value::Null, seconds),
        Id::ChildNice => settings.ration.nice.map_or(Value::Null, |nice| count(nice.into())),
        Id::ChildCpuWeight => {
            settings.ration.cpu_weight.map_or(Value::Null, |weight| count(weight.into()))
        }
        Id::HeartbeatInterval => seconds(settings.heartbeat_interval),
        Id::MaxIterations => count(settings.max_iterations),
        Id::MaxResultBytes => whole(settings.max_result_bytes),
        Id::MaxSummaryChars => settings.max_summary_chars.map_or(Value::Null, count),
        Id::WorkerCommand => settings.worker_command.as_deref().map_or(Value::Null, texts),
        Id::MaxSpawnDepth => count(settings.max_spawn_depth),
        Id::OrchestratorEnabled => Value::Bool(settings.orchestrator_enabled),
        Id::Model => text(&settings.model),
        Id::Provider => text(&settings.provider),
        Id::BaseUrl => text(&settings.base_url),
        Id::ApiKey => settings.api_key.as_ref().map_or(Value::Null, |_| Value::from(MASK)),
        Id::ApiMode => text(&settings.api_mode),
        Id::RequestOverrides => settings
            .request_overrides
            .clone()
            .map_or(Value::Null, |entries| masked(Value::Map(entries))),
        Id::ReasoningEffort => settings.reasoning_effort.map_or(Value::Null, Value::from),
        Id::FallbackProviders => settings
            .fallback_providers
            .as_ref()
            .map_or(Value::Null, |entries| Value::List(entries.iter().map(fallback).collect())),
        Id::InheritMcpToolsets => Value::Bool(settings.inherit_mcp_toolsets),
        Id::WorktreeIsolation => Value::Bool(settings.worktree_isolation),
        Id::SubagentAutoApprove => Value::Bool(settings.subagent_auto_approve),
        Id::CredentialPools => match &settings.credential_pools {
            Some(path) => Value::Text(path.display().to_string()),
            None => Value::Null,
        },
        Id::CredentialPoolStrategies => {
            pools::show_strategies(&settings.credential_pool_strategies)
        }
        Id::ProviderLimits => pools::show_limits(&settings.provider_limits),
        Id::SharedHelpers if settings.shared_helpers.is_empty() => Value::Null,
        Id::SharedHelpers => {
            let entry = |(name, words): (&String, &Vec<String>)| (name.clone(), texts(words));
            Value::Map(settings.shared_helpers.iter().map(entry).collect())
        }
    }
}

/// The same with every part masked whose name says that it is secret.
fn masked(value: Value) -> Value {
    match value {
        Value::Map(entries) => {
            let entry = |(name, value): (String, Value)| {
                let secret = delegate_protocol::routing::is_secret_name(&name);
                let value = if secret { Value::from(MASK) } else { masked(value) };
                (name, value)
            };
            Value::Map(entries.into_iter().map(entry).collect())
        }
        Value::List(items) => Value::List(items.into_iter().map(masked).collect()),
        plain @ (Value::Null
        | Value::Bool(_)
        | Value::Int(_)
        | Value::UInt(_)
        | Value::Float(_)
        | Value::Text(_)
        | Value::Bytes(_)) => plain,
    }
}

fn fallback(entry: &Fallback) -> Value {
    let Fallback { provider, model, base_url, api_key, api_mode } = entry;
    let key = api_key.as_ref().map(|_| MASK.to_owned());
    let fields = [
        ("provider", Some(provider.clone())),
        ("model", Some(model.clone())),
        ("base_url", base_url.clone()),
        ("api_key", key),
        ("api_mode", api_mode.clone()),
    ];
    let set = fields.into_iter().filter_map(|(name, text)| Some((name.to_owned(), text?.into())));
    Value::Map(set.collect())
}

/// What [`check`] found.
#[derive(Debug, Clone, Default)]
pub struct Checked {
    /// Files that were looked at, strongest first.
    pub files: Vec<PathBuf>,
    /// Everything that is wrong.
    pub faults: Vec<Diagnostic>,
    /// Things to know that are not wrong.
    pub notes: Vec<String>,
}

/// Checks one file by itself with every fault in it; without a file, all that would be read, the
/// variables, and whether they fit together.
#[must_use]
pub fn check(file: Option<&Path>, sources: &Sources) -> Checked {
    check_with(file, sources, Path::new(super::SYSTEM_FILE))
}

pub(super) fn check_with(file: Option<&Path>, sources: &Sources, system: &Path) -> Checked {
    let mut checked = Checked::default();
    if let Some(file) = file {
        // As it is named: messages show what the caller knows.
        match search::read_text(file) {
            Ok(text) => checked.add(file, &text),
            Err(fault) => checked.faults.push(fault),
        }
        checked.files.push(file.to_owned());
        return checked;
    }
    for candidate in search::candidates(sources, system) {
        match search::read(&candidate) {
            Ok(Some(text)) => {
                checked.add(&candidate.path, &text);
                checked.files.push(candidate.path);
            }
            Ok(None) => {}
            Err(_) if candidate.found == Found::Home && search::is_hidden(&candidate.path) => {}
            Err(fault) => checked.faults.push(fault),
        }
    }
    if checked.faults.is_empty() {
        match super::load_with(sources, system) {
            Ok(loaded) => checked.notes = loaded.notes,
            Err(fault) => checked.faults.push(fault),
        }
    }
    checked
}

impl Checked {
    fn add(&mut self, path: &Path, text: &str) {
        let layer = layer::read(Source { file: Some(path), text });
        self.faults.extend(layer.faults);
        if let Some(key) = layer.secret.filter(|_| search::others_can_read(path)) {
            self.notes.push(super::exposed(path, &key));
        }
        let own = layer.loops_own.into_iter();
        self.notes.extend(own.map(|key| format!("ignored, the agent loop's own key: {key}")));
    }
}

/// A file that may be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// Its path.
    pub path: PathBuf,
    /// Why it is in question.
    pub why: &'static str,
    /// What was found there.
    pub state: State,
}

/// What was found at a [`Place`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum State {
    /// A file that counts.
    Read,
    /// Nothing, and nothing is needed.
    Absent,
    /// A file of the working tree that sets commands, keys or endpoints and is not trusted.
    Untrusted,
    /// It has faults, or cannot be read.
    Faulty,
}

impl State {
    /// One word for people and programs.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Absent => "absent",
            Self::Untrusted => "untrusted",
            Self::Faulty => "faulty",
        }
    }
}

/// Where configuration files are looked for, strongest first. The working tree's is there only when
/// one exists.
#[must_use]
pub fn places(sources: &Sources) -> Vec<Place> {
    let state_dir = super::state_dir(&sources.env);
    let place = |candidate: Candidate| Place {
        why: candidate.found.why(),
        state: state(&candidate, &state_dir),
        path: candidate.path,
    };
    search::candidates(sources, Path::new(super::SYSTEM_FILE)).into_iter().map(place).collect()
}

fn state(candidate: &Candidate, state_dir: &Path) -> State {
    let text = match search::read(candidate) {
        Ok(Some(text)) => text,
        Ok(None) => return State::Absent,
        Err(_) if candidate.found == Found::Home && search::is_hidden(&candidate.path) => {
            return State::Absent;
        }
        Err(_) => return State::Faulty,
    };
    let layer = layer::read(Source { file: Some(&candidate.path), text: &text });
    let needs_trust = candidate.found == Found::Tree && !layer.sensitive.is_empty();
    if !layer.faults.is_empty() {
        State::Faulty
    } else if needs_trust && !trust::is_trusted(&candidate.path, &text, state_dir) {
        State::Untrusted
    } else {
        State::Read
    }
}

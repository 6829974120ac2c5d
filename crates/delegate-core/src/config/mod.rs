//! Settings, as typed and as resolved: from files, variables and flags to one [`Settings`].
//!
//! | module | holds |
//! |---|---|
//! | `keys` | the one table of settings |
//! | `yaml` | YAML text as nodes that know their place; batch files use it too |
//! | `layer`, `value` | what one source says, checked against the table |
//! | `search` | where files and state live |
//! | `schema`, `show` | the table as JSON Schema; what is in force, from where, and what is wrong |
//! | `pools` | settings that are maps from a provider's name |
//! | [`trust`](mod@trust) | which files of working trees may set commands, keys and endpoints |
//! | [`diagnostic`] | what is wrong, where, and what to do |
//! | [`duration`], `nearest` | duration texts, and what a person probably meant |

pub mod bytes;
pub mod diagnostic;
pub mod duration;
mod keys;
mod layer;
mod lists;
mod nearest;
pub mod plain;
mod pools;
mod schema;
mod search;
mod show;
mod table;
#[cfg(test)]
mod tests;
pub mod trust;
mod value;
mod wishes;
pub(crate) mod yaml;

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use delegate_protocol::{ApiKey, Fallback, Value};

pub use diagnostic::Diagnostic;
pub use nearest::{did_you_mean, nearest};
pub use schema::schema;
pub(crate) use search::{read_text, refuse_foreign};
pub use search::{state_dir, user_dir};
pub use show::{Checked, Place, Setting, State, check, places};
pub(crate) use table::MOST_PROCESSES;
pub use trust::{Trusted, trust};
pub(crate) use value::address_fault;
pub use wishes::{
    AtStart, CallLimits, LauncherWish, OnStale, Overflow, Pool, PoolStrategy, ProcessIsolation,
};

use layer::{FileLayer, Layer};
use search::Found;
use yaml::Source;

/// Everything under `delegation:`, resolved once. Durations are already checked against their
/// limits.
#[derive(Debug, Clone, PartialEq)]
pub struct Settings {
    /// Processes or threads. `None` when nobody said: the library then uses threads, the command
    /// processes.
    pub process_isolation: Option<ProcessIsolation>,
    /// Whether a single task is isolated too (library; the command always does where nothing is
    /// said).
    pub isolate_single_task: bool,
    /// Children that run at once; the rest wait in order.
    pub max_concurrent_children: u32,
    /// Most tasks of one batch; more is an error.
    pub max_batch_size: Option<u32>,
    /// Children of all levels of a tree that work at once; `None` is [`Settings::max_concurrent_children`].
    pub max_tree_children: Option<u32>,
    /// Tokens that a tree may spend.
    pub max_tree_tokens: Option<u64>,
    /// US dollars that a tree may spend.
    pub max_tree_cost_usd: Option<f64>,
    /// Tokens that one child may spend.
    pub child_max_tokens: Option<u64>,
    /// US dollars that one child may spend.
    pub child_max_cost_usd: Option<f64>,
    /// Wall clock of one child from its own start.
    pub child_timeout: Option<Duration>,
    /// Longest time without progress; any progress starts it again.
    pub child_inactivity: Option<Duration>,
    /// Time without progress after which a child is stale that runs no tool.
    pub stale_idle: Duration,
    /// The same for one that runs a tool.
    pub stale_in_tool: Duration,
    /// What happens to a stale child.
    pub on_stale: OnStale,
    /// From the interrupt until TERM.
    pub interrupt_grace: Duration,
    /// From TERM until KILL.
    pub terminate_grace: Duration,
    /// From the launch until the first frame.
    pub start_timeout: Duration,
    /// Between two beats.
    pub heartbeat_interval: Duration,
    /// What holds a child and all that it starts together.
    pub containment: ownership::Containment,
    /// What a child process and all that it starts may use of the machine.
    pub ration: ownership::Ration,
    /// Turns of a model-calling agent.
    pub max_iterations: u32,
    /// Largest answer in bytes.
    pub max_result_bytes: u64,
    /// Most characters of one answer in its entry; 0 is no limit, `None` is 24,000 where an agent
    /// delegates and no limit for a program of its own.
    pub max_summary_chars: Option<u32>,
    /// A worker program of another make, with its arguments.
    pub worker_command: Option<Vec<String>>,
    /// Agents at a depth below this may delegate.
    pub max_spawn_depth: u32,
    /// Whether any child may.
    pub orchestrator_enabled: bool,
    /// Model of the children; `None` is the parent's. Here and below: see
    /// [`crate::plan::routing`] for how these become the route of a child.
    pub model: Option<String>,
    /// Provider of the children.
    pub provider: Option<String>,
    /// Endpoint of the children.
    pub base_url: Option<String>,
    /// Key for [`Settings::base_url`].
    pub api_key: Option<ApiKey>,
    /// Wire dialect, in small letters.
    pub api_mode: Option<String>,
    /// Extra request arguments.
    pub request_overrides: Option<BTreeMap<String, Value>>,
    /// One of `none`, `minimal`, `low`, `medium`, `high`, `xhigh`.
    pub reasoning_effort: Option<&'static str>,
    /// Tried in order when the first fails; empty: none.
    pub fallback_providers: Option<Vec<Fallback>>,
    /// A child with fewer toolsets keeps the MCP toolsets of its parent.
    pub inherit_mcp_toolsets: bool,
    /// Children approve dangerous commands once, or deny them.
    pub subagent_auto_approve: bool,
    /// Each child in a git worktree of its own.
    pub worktree_isolation: bool,
    /// What a start does about leftovers of dead owners.
    pub janitor_at_start: AtStart,
    /// How worker processes are started.
    pub launcher: LauncherWish,
    /// The stock of waiting workers, where there is one.
    pub pool: Pool,
    /// The file with the keys of providers; see [`crate::lease`].
    pub credential_pools: Option<PathBuf>,
    /// In which order the keys of a pool are taken, by its name.
    pub credential_pool_strategies: BTreeMap<String, PoolStrategy>,
    /// How many calls a provider is sent, by its name.
    pub provider_limits: BTreeMap<String, CallLimits>,
    /// What happens to a background run that finds no place.
    pub background_overflow: Overflow,
    /// Each group of a background run, and each task without one, is told by itself.
    pub independent_completions: bool,
    /// Programs and arguments of the stdio servers that all children share, by name.
    pub shared_helpers: BTreeMap<String, Vec<String>>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            process_isolation: None,
            isolate_single_task: false,
            max_concurrent_children: 10,
            max_batch_size: None,
            max_tree_children: None,
            max_tree_tokens: None,
            max_tree_cost_usd: None,
            child_max_tokens: None,
            child_max_cost_usd: None,
            child_timeout: None,
            child_inactivity: None,
            stale_idle: Duration::from_secs(450),
            stale_in_tool: Duration::from_secs(1200),
            on_stale: OnStale::Interrupt,
            interrupt_grace: Duration::from_secs(10),
            terminate_grace: Duration::from_secs(3),
            start_timeout: Duration::from_secs(60),
            heartbeat_interval: Duration::from_secs(30),
            containment: ownership::Containment::Auto,
            ration: ownership::Ration::default(),
            max_iterations: 50,
            max_result_bytes: 1 << 30,
            max_summary_chars: None,
            worker_command: None,
            max_spawn_depth: 1,
            orchestrator_enabled: true,
            model: None,
            provider: None,
            base_url: None,
            api_key: None,
            api_mode: None,
            request_overrides: None,
            reasoning_effort: None,
            fallback_providers: None,
            inherit_mcp_toolsets: true,
            subagent_auto_approve: false,
            worktree_isolation: false,
            janitor_at_start: AtStart::End,
            launcher: LauncherWish::Auto,
            pool: Pool::default(),
            credential_pools: None,
            credential_pool_strategies: BTreeMap::new(),
            provider_limits: BTreeMap::new(),
            background_overflow: Overflow::Wait,
            independent_completions: false,
            shared_helpers: BTreeMap::new(),
        }
    }
}

/// Where to look for settings. Everything that the process environment says is an argument here.
#[derive(Debug, Clone, Default)]
pub struct Sources {
    /// `--config FILE`: trusted, and must exist.
    pub explicit: Option<PathBuf>,
    /// Directory from which `delegate.yaml` is searched upward to the repository root.
    pub cwd: PathBuf,
    /// The environment.
    pub env: Vec<(String, String)>,
    /// Flags: dotted key below `delegation`, text as typed, and the flag's name for messages.
    pub flags: Vec<(String, String, String)>,
}

impl Sources {
    /// The environment and the working directory of this process; no file and no flag.
    #[must_use]
    pub fn of_process() -> Self {
        Self {
            explicit: None,
            cwd: std::env::current_dir().unwrap_or_default(),
            env: process_env(),
            flags: Vec::new(),
        }
    }
}

/// The environment of this process, as far as it is text.
#[must_use]
pub fn process_env() -> Vec<(String, String)> {
    std::env::vars_os()
        .filter_map(|(key, value)| Some((key.into_string().ok()?, value.into_string().ok()?)))
        .collect()
}

/// Who set a value. Shows itself as `file:line`, the variable or the flag.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Origin {
    /// A file.
    File {
        /// Which.
        file: PathBuf,
        /// Line of the key, from 1.
        line: u32,
    },
    /// A variable of the environment, by name.
    Variable(String),
    /// A flag, by name.
    Flag(String),
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File { file, line } => write!(f, "{}:{line}", file.display()),
            Self::Variable(name) | Self::Flag(name) => f.write_str(name),
        }
    }
}

/// What [`load`] found.
#[derive(Debug, Clone)]
pub struct Loaded {
    /// The resolved settings.
    pub settings: Settings,
    /// Files that were read, strongest first.
    pub files: Vec<PathBuf>,
    /// Things to tell once: keys that are the loop's own and ignored here, unknown variables.
    pub notes: Vec<String>,
    /// Who set each key that is not at its default, by dotted name below `delegation`.
    pub origins: BTreeMap<&'static str, Origin>,
}

/// Reads, merges and resolves: flag > variable > file > default; among files `--config` >
/// `$DELEGATE_CONFIG` > nearest `delegate.yaml` upward > `$XDG_CONFIG_HOME/delegate/config.yaml` >
/// `/etc/delegate/config.yaml`, merged per key.
///
/// # Errors
/// A [`Diagnostic`] with file, line, column, snippet and the nearest known key.
pub fn load(sources: &Sources) -> Result<Loaded, Diagnostic> {
    load_with(sources, Path::new(SYSTEM_FILE))
}

/// The weakest file.
const SYSTEM_FILE: &str = "/etc/delegate/config.yaml";

/// [`load`] with another system file, for tests.
fn load_with(sources: &Sources, system: &Path) -> Result<Loaded, Diagnostic> {
    let state_dir = state_dir(&sources.env);
    let (mut files, mut hidden) = (Vec::new(), Vec::new());
    let mut loops_own: Vec<String> = Vec::new();
    let mut from_files: Vec<Layer> = Vec::new();
    for candidate in search::candidates(sources, system) {
        if candidate.found == Found::Home && search::is_hidden(&candidate.path) {
            hidden.push(format!("no permission to look for {}", candidate.path.display()));
            continue;
        }
        let Some(text) = search::read(&candidate)? else { continue };
        let source = Source { file: Some(&candidate.path), text: &text };
        let layer = layer::from_file(source)?;
        if candidate.found == Found::Tree {
            check_trust(source, &layer, &candidate.path, &state_dir)?;
        }
        if let Some(key) = layer.secret.filter(|_| search::others_can_read(&candidate.path)) {
            hidden.push(exposed(&candidate.path, &key));
        }
        loops_own.extend(layer.loops_own);
        from_files.push(layer.values);
        files.push(candidate.path);
    }
    let (from_env, mut notes) = layer::from_env(&sources.env)?;
    notes.splice(0..0, hidden);
    let layers = [layer::from_flags(&sources.flags)?, from_env].into_iter().chain(from_files);
    if !loops_own.is_empty() {
        loops_own.sort();
        loops_own.dedup();
        notes.insert(0, format!("ignored, the agent loop's own keys: {}", loops_own.join(", ")));
    }
    let (settings, origins) = resolve(layers);
    Ok(Loaded { settings, files, notes, origins })
}

/// Stacks layers, the strongest first, over the defaults.
fn resolve(layers: impl Iterator<Item = Layer>) -> (Settings, BTreeMap<&'static str, Origin>) {
    let mut merged = Layer::new();
    for (id, given) in layers.flatten() {
        merged.entry(id).or_insert(given);
    }
    let mut settings = Settings::default();
    let mut origins = BTreeMap::new();
    for key in &keys::KEYS {
        if let Some(given) = merged.remove(&key.id) {
            layer::apply(&mut settings, key.id, &given.value);
            origins.insert(key.name, given.origin);
        }
    }
    (settings, origins)
}

/// A file of the working tree may set commands, keys and endpoints only once it is trusted.
fn check_trust(
    source: Source<'_>,
    layer: &FileLayer,
    path: &Path,
    state_dir: &Path,
) -> Result<(), Diagnostic> {
    let Some((name, key)) = layer.sensitive.first() else { return Ok(()) };
    if trust::is_trusted(path, source.text, state_dir) {
        return Ok(());
    }
    let message =
        format!("`{name}` is not taken from a file of the working tree that is not trusted");
    let hint = format!("read the file, then `delegate trust {}`", path.display());
    Err(source.fault("untrusted", key.place, message).hint(hint))
}

/// A key that other users can read.
fn exposed(path: &Path, key: &yaml::Key) -> String {
    let (file, line, name) = (path.display(), key.place.line, &key.text);
    format!("{file}:{line}: others can read the key in `{name}`; chmod 600 {file}")
}

/// The first characters of a text, for messages.
pub(crate) fn shorten(text: &str, most: usize) -> String {
    let line = text.lines().next().unwrap_or_default();
    let mut short: String = line.chars().take(most).collect();
    if short.len() < text.trim_end().len() {
        short.push('…');
    }
    short
}

//! The one table of settings: [`KEYS`]. Files, variables, suggestions, `config.example.yaml` and
//! `docs/configuration.md` are driven by it or checked against it.

use std::time::Duration;

mod launching;
mod trees;
mod words;

/// The setting behind a key; `layer::apply` matches over all, so one that nobody applies does not compile.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Id {
    ProcessIsolation,
    IsolateSingleTask,
    MaxConcurrentChildren,
    MaxBatchSize,
    MaxTreeChildren,
    MaxTreeTokens,
    MaxTreeCostUsd,
    ChildMaxTokens,
    ChildMaxCostUsd,
    ChildTimeout,
    ChildInactivity,
    StaleIdle,
    StaleInTool,
    OnStale,
    InterruptGrace,
    TerminateGrace,
    StartTimeout,
    HeartbeatInterval,
    Containment,
    MaxIterations,
    MaxResultBytes,
    MaxSummaryChars,
    WorkerCommand,
    MaxSpawnDepth,
    OrchestratorEnabled,
    Model,
    Provider,
    BaseUrl,
    ApiKey,
    ApiMode,
    RequestOverrides,
    ReasoningEffort,
    FallbackProviders,
    InheritMcpToolsets,
    SubagentAutoApprove,
    JanitorAtStart,
    BackgroundOverflow,
    IndependentCompletions,
    WorktreeIsolation,
    Launcher,
    PoolMinIdle,
    PoolMaxIdle,
    PoolIdle,
    CredentialPools,
    CredentialPoolStrategies,
    ProviderLimits,
    SharedHelpers,
}

/// What values a key takes. `optional` ones take `null` too.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Type {
    /// `false`, `true`, `auto` or `null`.
    Isolation,
    /// `true` or `false`.
    Flag,
    /// A whole number, both ends included.
    Count { min: u64, max: u64, optional: bool },
    /// US dollars, or `null`.
    Money,
    /// Seconds; the twin key takes a duration text.
    Seconds { min: Duration, optional: bool },
    /// `warn`, `interrupt` or `kill`.
    OnStale,
    /// `end`, `report` or `ignore`.
    AtStart,
    /// `wait` or `refuse`.
    Overflow,
    /// `auto`, `subreaper` or `cgroup`.
    Containment,
    /// `auto`, `exec`, `zygote` or `pool`.
    Launcher,
    /// A program and its arguments, or `null`.
    Command,
    /// Text without the blanks around it; blank text and `null` are "not set".
    Text,
    /// The same in small letters.
    Word,
    /// An `http` or `https` address without a password in it.
    Url,
    /// A key: from a file only.
    Secret,
    /// One of [`EFFORTS`], `false` for `none`, or `null`.
    Effort,
    /// A map with anything in it, or `null`.
    Overrides,
    /// A list of maps with `provider` and `model`, or `null`.
    Fallbacks,
    /// A whole path, or one that begins with `~/`; blank text and `null` are "not set".
    Path,
    /// A map from provider to a word, or `null`.
    Strategies,
    /// A map from provider to its limits, or `null`.
    Limits,
    /// A map of names to programs with their arguments, or `null`.
    Helpers,
}

/// Words of `reasoning_effort`.
pub(crate) const EFFORTS: [&str; 6] = ["none", "minimal", "low", "medium", "high", "xhigh"];

/// Fields of an entry of `fallback_providers`; the first two are needed.
pub(crate) const FALLBACK_FIELDS: [&str; 5] =
    ["provider", "model", "base_url", "api_key", "api_mode"];

/// Most bytes of one answer that may be asked for: 1 TiB.
const MAX_BYTES: u64 = 1 << 40;

/// One row of the table.
#[derive(Debug)]
pub(crate) struct KeyInfo {
    pub(crate) id: Id,
    /// Dotted, below `delegation`.
    pub(crate) name: &'static str,
    pub(crate) kind: Type,
    /// As YAML.
    pub(crate) default: &'static str,
    /// A variable that loops already set; weaker than ours.
    pub(crate) also: Option<&'static str>,
    /// A command, key or endpoint: not from an untrusted file of the working tree.
    pub(crate) sensitive: bool,
    /// One line for people.
    pub(crate) about: &'static str,
}

impl KeyInfo {
    /// The twin of `X_seconds`: `X`, which takes a duration text.
    pub(crate) fn twin(&self) -> Option<&'static str> {
        matches!(self.kind, Type::Seconds { .. }).then(|| self.name.strip_suffix("_seconds"))?
    }
}

/// The variable of a key: `worker.command` is `DELEGATE_WORKER__COMMAND`.
pub(crate) fn variable(name: &str) -> String {
    format!("DELEGATE_{}", name.replace('.', "__").to_ascii_uppercase())
}

/// A key by its dotted name or its twin's; the flag says that it was the twin's.
pub(crate) fn find(name: &str) -> Option<(&'static KeyInfo, bool)> {
    KEYS.iter().find_map(|key| {
        if key.name == name {
            Some((key, false))
        } else {
            (key.twin() == Some(name)).then_some((key, true))
        }
    })
}

/// Every dotted name, twins included.
pub(crate) fn names() -> impl Iterator<Item = &'static str> {
    KEYS.iter().flat_map(|key| [Some(key.name), key.twin()]).flatten()
}

/// Keys of the agent loop itself: accepted, ignored, told once.
pub(crate) const LOOPS_OWN: [&str; 6] = [
    "routes",
    "default_toolsets",
    "compression_threshold_tokens",
    "surface_child_process_notifications",
    "oneshot_max_children",
    "max_async_children",
];

/// Keys of the contract whose feature is not there yet: refused, so that nobody relies on them.
pub(crate) const LATER: [&str; 0] = [];

/// The key that is not there yet, by its name or the one that a duration text would have.
pub(crate) fn later(name: &str) -> Option<&'static str> {
    let is_it = |key: &&str| *key == name || key.strip_suffix("_seconds") == Some(name);
    LATER.iter().copied().find(|key| is_it(key))
}

/// Variables with our prefix that are not settings.
pub(crate) const NOT_KEYS: [&str; 8] = [
    delegate_child::helper::VARIABLE,
    "DELEGATE_DISABLE_FILE_STATE_GUARD",
    "DELEGATE_CONFIG",
    "DELEGATE_STATE_DIR",
    "DELEGATE_GOAL",
    "DELEGATE_OUTPUT_SCHEMA",
    "DELEGATE_LOG",
    "DELEGATE_LOG_FILE",
];

const fn seconds(min: Duration, optional: bool) -> Type {
    Type::Seconds { min, optional }
}

const fn count(max: u64, optional: bool) -> Type {
    Type::Count { min: 1, max, optional }
}

const NO_TIME: Duration = Duration::ZERO;
const TENTH: Duration = Duration::from_millis(100);
const SECOND: Duration = Duration::from_secs(1);
const U32: u64 = u32::MAX as u64;

pub(crate) use trees::MOST_MONEY;

/// Every setting.
pub(crate) const KEYS: [KeyInfo; 47] = [
    KeyInfo {
        id: Id::ProcessIsolation,
        name: "process_isolation",
        kind: Type::Isolation,
        default: "null",
        also: None,
        sensitive: false,
        about: "Run children as OS processes (true), as threads (false), or decide per batch (auto); null: the command uses processes, the library threads.",
    },
    KeyInfo {
        id: Id::IsolateSingleTask,
        name: "isolate_single_task",
        kind: Type::Flag,
        default: "false",
        also: None,
        sensitive: false,
        about: "With process_isolation true or auto: give a batch of one task a process too.",
    },
    KeyInfo {
        id: Id::MaxConcurrentChildren,
        name: "max_concurrent_children",
        kind: count(U32, false),
        default: "10",
        also: Some("DELEGATION_MAX_CONCURRENT_CHILDREN"),
        sensitive: false,
        about: "Children that run at once; the rest of a batch waits in order.",
    },
    KeyInfo {
        id: Id::MaxBatchSize,
        name: "max_batch_size",
        kind: count(U32, true),
        default: "null",
        also: None,
        sensitive: false,
        about: "Most tasks of one batch; more is an error, never a cut. null: no limit.",
    },
    trees::MAX_TREE_CHILDREN,
    trees::MAX_TREE_TOKENS,
    trees::MAX_TREE_COST_USD,
    trees::CHILD_MAX_TOKENS,
    trees::CHILD_MAX_COST_USD,
    KeyInfo {
        id: Id::ChildTimeout,
        name: "child_timeout_seconds",
        kind: seconds(SECOND, true),
        default: "null",
        also: Some("DELEGATION_CHILD_TIMEOUT_SECONDS"),
        sensitive: false,
        about: "Wall clock of one child, from its own start. null: no limit.",
    },
    KeyInfo {
        id: Id::ChildInactivity,
        name: "child_inactivity_seconds",
        kind: seconds(SECOND, true),
        default: "null",
        also: None,
        sensitive: false,
        about: "Longest time of one child without progress; any progress starts it again, one warning comes at 80 %. null: no limit.",
    },
    KeyInfo {
        id: Id::StaleIdle,
        name: "stale_idle_seconds",
        kind: seconds(SECOND, false),
        default: "450",
        also: None,
        sensitive: false,
        about: "Time without progress after which a child is stale that runs no tool.",
    },
    KeyInfo {
        id: Id::StaleInTool,
        name: "stale_in_tool_seconds",
        kind: seconds(SECOND, false),
        default: "1200",
        also: None,
        sensitive: false,
        about: "The same for a child that runs a tool.",
    },
    KeyInfo {
        id: Id::OnStale,
        name: "on_stale",
        kind: Type::OnStale,
        default: "interrupt",
        also: None,
        sensitive: false,
        about: "What happens to a stale child: warn, interrupt (it may unwind, its status is timeout), or kill.",
    },
    KeyInfo {
        id: Id::InterruptGrace,
        name: "interrupt_grace_seconds",
        kind: seconds(NO_TIME, false),
        default: "10",
        also: None,
        sensitive: false,
        about: "From the interrupt, in which an agent may unwind, until TERM.",
    },
    KeyInfo {
        id: Id::TerminateGrace,
        name: "terminate_grace_seconds",
        kind: seconds(NO_TIME, false),
        default: "3",
        also: None,
        sensitive: false,
        about: "From TERM until KILL, for everything that the child started.",
    },
    KeyInfo {
        id: Id::StartTimeout,
        name: "start_timeout_seconds",
        kind: seconds(TENTH, false),
        default: "60",
        also: None,
        sensitive: false,
        about: "From the launch of a child until its first frame.",
    },
    KeyInfo {
        id: Id::HeartbeatInterval,
        name: "heartbeat_interval_seconds",
        kind: seconds(TENTH, false),
        default: "30",
        also: None,
        sensitive: false,
        about: "Between two signs of life of a child.",
    },
    KeyInfo {
        id: Id::Containment,
        name: "containment",
        kind: Type::Containment,
        default: "auto",
        also: None,
        sensitive: false,
        about: "What holds a child and all that it starts together: auto (the best that there is), subreaper, cgroup or pid-namespace (a child then sees other process numbers); what cannot be had is refused (delegate doctor).",
    },
    KeyInfo {
        id: Id::MaxIterations,
        name: "max_iterations",
        kind: count(U32, false),
        default: "50",
        also: None,
        sensitive: false,
        about: "Turns of an agent that calls a model.",
    },
    KeyInfo {
        id: Id::MaxResultBytes,
        name: "max_result_bytes",
        kind: count(MAX_BYTES, false),
        default: "1073741824",
        also: None,
        sensitive: false,
        about: "Largest answer of one child in bytes; a larger one fails the task.",
    },
    KeyInfo {
        id: Id::MaxSummaryChars,
        name: "max_summary_chars",
        kind: Type::Count { min: 0, max: U32, optional: true },
        default: "null",
        also: None,
        sensitive: false,
        about: "Most characters of one answer in its entry; the whole is kept in a file. 0: no limit. null: 24000 where an agent delegates, no limit for a program.",
    },
    KeyInfo {
        id: Id::WorkerCommand,
        name: "worker.command",
        kind: Type::Command,
        default: "null",
        also: None,
        sensitive: true,
        about: "Worker program of another make with its arguments, as a list. null: this program itself.",
    },
    KeyInfo {
        id: Id::MaxSpawnDepth,
        name: "max_spawn_depth",
        kind: count(U32, false),
        default: "1",
        also: None,
        sensitive: false,
        about: "Agents at a depth below this may delegate; the program itself is at depth 0.",
    },
    KeyInfo {
        id: Id::OrchestratorEnabled,
        name: "orchestrator_enabled",
        kind: Type::Flag,
        default: "true",
        also: None,
        sensitive: false,
        about: "false: no child may delegate, whatever max_spawn_depth says.",
    },
    KeyInfo {
        id: Id::Model,
        name: "model",
        kind: Type::Text,
        default: "null",
        also: None,
        sensitive: false,
        about: "Model of the children. null: the parent's.",
    },
    KeyInfo {
        id: Id::Provider,
        name: "provider",
        kind: Type::Text,
        default: "null",
        also: None,
        sensitive: true,
        about: "Provider of the children, with its own endpoint and key. null: the parent's.",
    },
    KeyInfo {
        id: Id::BaseUrl,
        name: "base_url",
        kind: Type::Url,
        default: "null",
        also: None,
        sensitive: true,
        about: "Endpoint of the children; wins over provider, except for providers with an SDK of their own.",
    },
    KeyInfo {
        id: Id::ApiKey,
        name: "api_key",
        kind: Type::Secret,
        default: "null",
        also: None,
        sensitive: true,
        about: "Key for base_url, from a file only. null: the parent's key.",
    },
    KeyInfo {
        id: Id::ApiMode,
        name: "api_mode",
        kind: Type::Word,
        default: "null",
        also: None,
        sensitive: false,
        about: "Wire dialect of the endpoint; wins over what its address suggests. null: found from the address.",
    },
    KeyInfo {
        id: Id::RequestOverrides,
        name: "request_overrides",
        kind: Type::Overrides,
        default: "null",
        also: None,
        sensitive: true,
        about: "Extra request arguments, over those of parent and provider; extra_body is merged one level deep.",
    },
    KeyInfo {
        id: Id::ReasoningEffort,
        name: "reasoning_effort",
        kind: Type::Effort,
        default: "null",
        also: None,
        sensitive: false,
        about: "How much the children think; none or false: not at all. null: as the parent.",
    },
    KeyInfo {
        id: Id::FallbackProviders,
        name: "fallback_providers",
        kind: Type::Fallbacks,
        default: "null",
        also: None,
        sensitive: true,
        about: "Tried in order when the first fails, each with provider and model. null: the parent's where nothing is pinned; []: none.",
    },
    KeyInfo {
        id: Id::InheritMcpToolsets,
        name: "inherit_mcp_toolsets",
        kind: Type::Flag,
        default: "true",
        also: None,
        sensitive: false,
        about: "A child with fewer toolsets keeps the MCP toolsets of its parent.",
    },
    KeyInfo {
        id: Id::SubagentAutoApprove,
        name: "subagent_auto_approve",
        kind: Type::Flag,
        default: "false",
        also: None,
        sensitive: true,
        about: "Children approve dangerous commands once (true) or deny them.",
    },
    KeyInfo {
        id: Id::WorktreeIsolation,
        name: "worktree_isolation",
        kind: Type::Flag,
        default: "false",
        also: None,
        sensitive: false,
        about: "Each child works in a git worktree and on a branch of its own; removed at its end when proved clean, else kept (docs/worktrees.md).",
    },
    KeyInfo {
        id: Id::JanitorAtStart,
        name: "janitor_at_start",
        kind: Type::AtStart,
        default: "end",
        also: None,
        sensitive: false,
        about: "What dead owners have left, guards and all: end what is proved and name the rest, report it, or ignore it.",
    },
    launching::LAUNCHER,
    launching::POOL_MIN_IDLE,
    launching::POOL_MAX_IDLE,
    launching::POOL_IDLE,
    KeyInfo {
        id: Id::CredentialPools,
        name: "credential_pools",
        kind: Type::Path,
        default: "null",
        also: None,
        sensitive: true,
        about: "File with the keys of providers, of which each child leases one (docs/credentials.md). null: none.",
    },
    KeyInfo {
        id: Id::CredentialPoolStrategies,
        name: "credential_pool_strategies",
        kind: Type::Strategies,
        default: "null",
        also: None,
        sensitive: false,
        about: "In which order the keys of a pool are taken: fill_first, round_robin, random or least_used. null: fill_first.",
    },
    KeyInfo {
        id: Id::ProviderLimits,
        name: "provider_limits",
        kind: Type::Limits,
        default: "null",
        also: None,
        sensitive: false,
        about: "Calls at once (max_concurrent_calls) and per minute (requests_per_minute) that a provider is sent by all children together. null: no limit.",
    },
    KeyInfo {
        id: Id::BackgroundOverflow,
        name: "background_overflow",
        kind: Type::Overflow,
        default: "wait",
        also: None,
        sensitive: false,
        about: "A background run where max_concurrent_children of them go on already: it waits in line (wait), or is an error (refuse).",
    },
    KeyInfo {
        id: Id::IndependentCompletions,
        name: "independent_completions",
        kind: Type::Flag,
        default: "false",
        also: None,
        sensitive: false,
        about: "A background run tells each group, and each task without one, as soon as it has ended, instead of all at the end.",
    },
    KeyInfo {
        id: Id::SharedHelpers,
        name: "shared_helpers",
        kind: Type::Helpers,
        default: "null",
        also: None,
        sensitive: true,
        about: "Stdio servers that all children share, name to program and arguments; each is started once, when a child first reaches it.",
    },
];

#[cfg(test)]
mod tests {
    use super::*;

    const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");

    fn read(name: &str) -> String {
        std::fs::read_to_string(format!("{ROOT}/{name}")).unwrap()
    }

    #[test]
    fn names_are_unique_and_every_twin_has_its_seconds() {
        let mut all: Vec<&str> = names().collect();
        all.sort_unstable();
        let count = all.len();
        all.dedup();
        assert_eq!(all.len(), count);
        for key in &KEYS {
            assert_eq!(key.twin().is_some(), key.name.ends_with("_seconds"), "{}", key.name);
        }
        assert_eq!(variable("worker.command"), "DELEGATE_WORKER__COMMAND");
        assert_eq!(
            find("child_timeout").map(|(key, twin)| (key.id, twin)),
            Some((Id::ChildTimeout, true))
        );
    }

    #[test]
    fn the_reference_has_a_row_for_every_key() {
        let page = read("docs/configuration.md");
        for key in &KEYS {
            let also = key.also.map(|name| format!(", `{name}`")).unwrap_or_default();
            let twin = key.twin().map(|twin| format!("<br>`{twin}`")).unwrap_or_default();
            let row = format!(
                "| `{}`{twin} | {} | `{}` | `{}`{also} | {}{} |",
                key.name,
                key.kind,
                key.default,
                variable(key.name),
                key.about,
                if key.sensitive { " Needs trust." } else { "" },
            );
            assert!(page.lines().any(|line| line == row), "docs/configuration.md lacks:\n{row}");
        }
        let rows = page.lines().filter(|line| line.contains("` | `DELEGATE_")).count();
        assert_eq!(rows, KEYS.len(), "docs/configuration.md has a key that does not exist");
        for name in NOT_KEYS.iter().chain(&LOOPS_OWN).chain(&LATER) {
            assert!(page.contains(&format!("`{name}`")), "docs/configuration.md lacks {name}");
        }
    }

    #[test]
    fn the_example_has_every_key_with_its_line_and_default() {
        let page = read("config.example.yaml");
        for key in &KEYS {
            let (indent, name) = match key.name.rsplit_once('.') {
                Some((_, name)) => ("    ", name),
                None => ("  ", key.name),
            };
            let block = format!("{indent}# {}\n{indent}{name}: {}\n", key.about, key.default);
            assert!(page.contains(&block), "config.example.yaml lacks:\n{block}");
        }
    }
}

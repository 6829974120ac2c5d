//! What a setting is: its names, its type, its variable. The table of all of them is [`KEYS`]; files, variables,
//! suggestions, `config.example.yaml` and `docs/configuration.md` are driven by it or checked against it.

use std::time::Duration;

pub(crate) use super::table::{KEYS, MEMORY, MOST_MONEY};

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
    MaxMemory,
    MaxProcesses,
    MaxOpenFiles,
    MaxCpu,
    ChildNice,
    ChildCpuWeight,
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
    PoolMaxUses,
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
    /// Bytes, as a number or as text with a unit, or `null`.
    Bytes,
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
        for name in NOT_KEYS.iter().chain(&LOOPS_OWN) {
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

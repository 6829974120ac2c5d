//! Settings that are one of a few words or a few numbers, each a type of its own.

use std::time::Duration;

/// `delegation.process_isolation`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ProcessIsolation {
    /// Threads of this process.
    #[default]
    Off,
    /// A requirement: where it cannot be met nothing starts.
    On,
    /// Processes for a batch of two or more; a thread for a single task.
    Auto,
}

/// `delegation.launcher`: how worker processes are started.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum LauncherWish {
    /// As suits the batch.
    #[default]
    Auto,
    /// The program is executed for each child.
    Exec,
    /// Each child is a copy of a template, in which its agent is prepared once.
    Zygote,
    /// Such copies wait for children to come.
    Pool,
}

impl LauncherWish {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Auto, Self::Exec, Self::Zygote, Self::Pool];

    /// The word that a configuration file holds.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Exec => "exec",
            Self::Zygote => "zygote",
            Self::Pool => "pool",
        }
    }
}

/// `delegation.pool`: the stock of waiting workers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pool {
    /// Kept of each agent once it was used.
    pub min_idle: u32,
    /// Most of one agent.
    pub max_idle: u32,
    /// Those above `min_idle` leave after this time without a launch.
    pub idle: Duration,
    /// Tasks that one worker carries at most; more than one only with an agent that says that it is reusable.
    pub max_uses: u32,
}

impl Default for Pool {
    fn default() -> Self {
        Self { min_idle: 0, max_idle: 4, idle: Duration::from_secs(30), max_uses: 1 }
    }
}

/// `delegation.on_stale`: what happens to a child that is stale.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OnStale {
    /// A warning, and no more signs of life to the parent until it makes progress again.
    Warn,
    /// It is interrupted, and ended after the grace times.
    #[default]
    Interrupt,
    /// It is ended at once.
    Kill,
}

impl OnStale {
    /// The word that a configuration file holds.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Warn => "warn",
            Self::Interrupt => "interrupt",
            Self::Kill => "kill",
        }
    }
}

/// `delegation.janitor_at_start`: what a start does about what dead owners have left here, whose guards are dead too.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum AtStart {
    /// What is proved to be left over is ended, the rest is named.
    #[default]
    End,
    /// All of it is named, and nobody is ended.
    Report,
    /// Nothing is said about it.
    Ignore,
}

impl AtStart {
    /// The word that a configuration file holds.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::End => "end",
            Self::Report => "report",
            Self::Ignore => "ignore",
        }
    }
}

/// `delegation.credential_pool_strategies`: in which order the keys of a pool are taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum PoolStrategy {
    /// The first that may be used.
    #[default]
    FillFirst,
    /// The one that was taken longest ago.
    RoundRobin,
    /// Any.
    Random,
    /// The one that was taken least.
    LeastUsed,
}

impl PoolStrategy {
    /// Every one.
    pub const ALL: [Self; 4] = [Self::FillFirst, Self::RoundRobin, Self::Random, Self::LeastUsed];

    /// The word that a configuration file holds.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::FillFirst => "fill_first",
            Self::RoundRobin => "round_robin",
            Self::Random => "random",
            Self::LeastUsed => "least_used",
        }
    }

    /// The strategy of a word.
    #[must_use]
    pub fn of_word(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|strategy| strategy.word() == word)
    }
}

/// `delegation.provider_limits`: how many calls one provider is sent by a whole tree; `None` is no limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CallLimits {
    /// Calls at once.
    pub max_concurrent_calls: Option<u32>,
    /// Calls that begin within a minute.
    pub requests_per_minute: Option<u32>,
}

/// `delegation.background_overflow`: what happens to a background run that finds no place.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Overflow {
    /// It waits in line, and its handle says where.
    #[default]
    Wait,
    /// Nothing is started.
    Refuse,
}

impl Overflow {
    /// The word that a configuration file holds.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Wait => "wait",
            Self::Refuse => "refuse",
        }
    }
}

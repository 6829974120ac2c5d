//! Agents by name.

use crate::agent::Agent;

/// Which agents a worker (or a thread of the parent) can run.
#[derive(Debug, Clone, Default)]
pub struct Registry {}

impl Registry {
    /// Only the agents that ship.
    #[must_use]
    pub fn shipped() -> Self {
        Self {}
    }

    /// Adds an agent; the factory makes one object per child. A later one of the same name replaces
    /// the earlier.
    #[must_use]
    pub fn with<A: Agent>(self, _factory: impl Fn() -> A + Send + Sync + 'static) -> Self {
        self
    }

    /// Names, sorted.
    #[must_use]
    pub fn names(&self) -> Vec<String> {
        Vec::new()
    }
}

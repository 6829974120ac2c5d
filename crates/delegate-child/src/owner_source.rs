//! Who starts the programs of a child: its worker's line to the supervisor, or, in a thread, a scope
//! that is opened when the agent first needs it, so that agents that start nothing cost no process.

use std::fmt;
use std::sync::OnceLock;

use ownership::Owner;

type Opener = Box<dyn Fn() -> Option<Owner> + Send + Sync>;

/// An owner, now or later.
pub struct OwnerSource {
    owner: OnceLock<Option<Owner>>,
    opener: Opener,
}

impl OwnerSource {
    /// This owner; `None` where processes cannot be owned.
    #[must_use]
    pub fn of(owner: Option<Owner>) -> Self {
        Self { owner: OnceLock::from(owner), opener: Box::new(|| None) }
    }

    /// Whatever `opener` gives when it is first asked.
    pub fn lazy(opener: impl Fn() -> Option<Owner> + Send + Sync + 'static) -> Self {
        Self { owner: OnceLock::new(), opener: Box::new(opener) }
    }

    /// The owner.
    #[must_use]
    pub fn get(&self) -> Option<&Owner> {
        self.owner.get_or_init(&self.opener).as_ref()
    }
}

impl fmt::Debug for OwnerSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("OwnerSource").field(&self.owner.get()).finish()
    }
}

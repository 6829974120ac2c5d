//! What one batch has of keys: its pool, which is chosen once its route is known, and the way to admit its
//! children. Also how pools resolve a provider ([`PoolProviders`]). Used by `run` and `delegator`.

use std::sync::{Arc, OnceLock, Weak};

use delegate_protocol::{Routing, SubagentId};

use super::authority::Admission;
use super::desk::{Keys, Lease};
use super::endpoint::{CUSTOM, Parents};
use crate::plan::{Plan, Providers, Resolved};

/// Where the lease of a child is kept while the child has its place.
pub(crate) type Slot = OnceLock<Lease>;

/// The keys of one batch.
#[derive(Debug, Clone)]
pub(crate) struct BatchKeys {
    keys: Keys,
    pool: Option<String>,
    /// The key of the route is one of the pool: a child that gets no lease must not use it.
    is_pooled: bool,
    provider: Option<String>,
    endpoint: Option<String>,
}

impl BatchKeys {
    /// Those of a plan.
    pub(crate) fn of(keys: &Keys, plan: &Plan) -> Self {
        let route = plan.routing();
        let parent = plan.delegating_agent();
        let endpoint = parent.map(crate::plan::Parent::endpoint).unwrap_or_default();
        let parents = Parents {
            provider: parent.and_then(|parent| parent.routing.provider.as_deref()),
            pool: parent.and_then(|parent| parent.pool.as_deref()),
            key: endpoint.api_key.as_ref(),
            is_program: parent.is_none(),
        };
        let chosen = keys.choose(route, parents);
        let (pool, is_pooled) = chosen.map_or((None, false), |(pool, has)| (Some(pool), has));
        let provider = route.requested_provider.clone().or_else(|| route.provider.clone());
        Self { keys: keys.clone(), pool, is_pooled, provider, endpoint: route.base_url.clone() }
    }

    /// What is admitted before the child starts; `None` where there is no pool, and so no lease. `branch` is
    /// its first ancestor below the root; a child of the root has none but itself.
    pub(crate) fn admission(
        &self,
        child: SubagentId,
        branch: Option<SubagentId>,
    ) -> Option<(Keys, Admission)> {
        self.pool.as_ref()?;
        Some((self.keys.clone(), self.admission_of(child, branch)))
    }

    /// Takes in a child without a pool, which asks for the first time.
    pub(crate) fn enter(&self, child: SubagentId, branch: Option<SubagentId>) -> Lease {
        self.keys.enter(self.admission_of(child, branch))
    }

    fn admission_of(&self, child: SubagentId, branch: Option<SubagentId>) -> Admission {
        Admission {
            child,
            branch: branch.unwrap_or(child),
            pool: self.pool.clone(),
            provider: self.provider.clone(),
            endpoint: self.endpoint.clone(),
        }
    }

    /// Puts the key of a child into its route. One that should have a lease and has none gets no key of the
    /// pool: it asks for one.
    pub(crate) fn put_into(&self, routing: &mut Routing, lease: Option<&Lease>) {
        match lease.and_then(Lease::given) {
            Some(given) => {
                routing.api_key = Some(given.api_key.clone());
                if given.base_url.is_some() {
                    routing.base_url.clone_from(&given.base_url);
                }
            }
            None if self.is_pooled => routing.api_key = None,
            None => {}
        }
    }
}

/// Keeps a lease where it belongs, or gives it back when its child has lost its place meanwhile.
pub(crate) fn keep(lease: Lease, slot: &Weak<Slot>) {
    if let Some(slot) = slot.upgrade()
        && let Err(second) = slot.set(lease)
    {
        drop(second);
    }
}

/// A slot, and the way to it for the thread that starts the child.
pub(crate) fn slot() -> Arc<Slot> {
    Arc::default()
}

/// What the agent loop knows of providers, and what pools add: a provider with a pool needs no key of its
/// own, and one with a pool that names its endpoint needs nobody to resolve it.
#[derive(Debug)]
pub(crate) struct PoolProviders<'a> {
    pub(crate) own: &'a dyn Providers,
    pub(crate) keys: &'a Keys,
}

impl Providers for PoolProviders<'_> {
    fn resolve(&self, provider: &str, model: Option<&str>) -> Result<Resolved, String> {
        let own = self.own.resolve(provider, model);
        let Some(pool) = self.keys.pool_named(provider) else { return own };
        let is_custom = pool.starts_with("custom:");
        let mut resolved = match (own, self.keys.endpoint_of(&pool)) {
            (Ok(resolved), _) => resolved,
            (Err(_), Some(Some(base_url))) => Resolved {
                provider: Some(if is_custom { CUSTOM } else { provider }.to_owned()),
                is_custom,
                base_url: Some(base_url),
                ..Resolved::default()
            },
            (Err(reason), _) => {
                return Err(format!("{reason}; its pool of keys names no base_url either"));
            }
        };
        if resolved.api_key.is_none() && self.keys.has_key_at_all(&pool) {
            resolved.api_key = self.keys.select(&pool).map(|given| given.api_key);
            // All of them rest: the children wait.
            resolved.keyless |= resolved.api_key.is_none();
        }
        Ok(resolved)
    }

    fn knows_mode(&self, mode: &str) -> bool {
        self.own.knows_mode(mode)
    }

    fn is_external(&self, provider: &str) -> bool {
        self.own.is_external(provider)
    }

    fn has_program(&self, command: &str) -> bool {
        self.own.has_program(command)
    }
}

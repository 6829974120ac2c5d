//! The plan of a batch, with what its delegator has ([`crate::plan`]).

use delegate_protocol::Value;

use super::batch::When;
use super::{Delegator, Inner};
use crate::lease::batch::PoolProviders;
use crate::plan::{self, Again, Isolation, Means, NoProviders, Parent, Plan, StartError, Task};

impl Delegator {
    pub(super) fn plan(
        &self,
        tasks: &mut Vec<Task>,
        parent: Option<&Parent>,
        (isolation, again): (Option<Isolation>, Option<&Again>),
        when: When,
    ) -> Result<Plan, StartError> {
        let Inner { settings, isolation: usual, .. } = &*self.inner;
        let asked = isolation.or(*usual);
        self.with_means(parent, again, when, |means| plan::plan(tasks, settings, asked, means))
    }

    pub(super) fn plan_call(
        &self,
        arguments: &Value,
        agent: &str,
        parent: Option<&Parent>,
        when: When,
    ) -> Result<Plan, StartError> {
        let Inner { settings, isolation, .. } = &*self.inner;
        self.with_means(parent, None, when, |means| {
            plan::plan_call(arguments, agent, settings, *isolation, means)
        })
    }

    fn with_means(
        &self,
        parent: Option<&Parent>,
        again: Option<&Again>,
        when: When,
        plan: impl FnOnce(Means<'_>) -> Result<Plan, StartError>,
    ) -> Result<Plan, StartError> {
        self.check_process()?;
        self.inner.with_means(parent, again, when, plan)
    }
}

impl Inner {
    pub(super) fn with_means(
        &self,
        parent: Option<&Parent>,
        again: Option<&Again>,
        when: When,
        plan: impl FnOnce(Means<'_>) -> Result<Plan, StartError>,
    ) -> Result<Plan, StartError> {
        let (inner, helpers) = (self, self.helpers()?);
        // A worker of another make tells its agents only when it runs.
        let foreign = inner.settings.worker_command.is_some() && inner.worker.is_some();
        let agents = (!foreign).then(|| inner.registry.names());
        let own = inner.providers.as_deref().unwrap_or(&NoProviders);
        let pooled = PoolProviders { own, keys: &inner.keys };
        plan(Means {
            again,
            agents: agents.as_deref(),
            has_worker: inner.worker.is_some(),
            parent,
            providers: Some(&pooled),
            builder: inner.builder.as_ref(),
            helpers: helpers.as_deref(),
            // What is only looked at may be decided in a pause.
            paused: when == When::ToStart && inner.live.is_paused(),
        })
    }
}

//! What a delegator has started ahead of its children, and which launcher a plan therefore gets: templates and
//! waiting workers outlive a batch, so that the next one finds them.

use crate::config::Settings;
use crate::launch::Launcher;
use crate::launch::exec::WorkerProgram;
use crate::plan::Plan;

#[cfg(target_os = "linux")]
pub(super) use linux::Ahead;
#[cfg(not(target_os = "linux"))]
pub(super) use none::Ahead;

#[cfg(target_os = "linux")]
mod linux {
    use std::sync::{Arc, OnceLock};

    use super::{Launcher, Plan, Settings, WorkerProgram};
    use crate::delegator::Delegator;
    use crate::launch::pool::{Pool, Terms};
    use crate::launch::zygote::{Account, Zygotes};
    use crate::plan::Launching;

    /// Made when it is first needed.
    #[derive(Debug, Default)]
    pub(crate) struct Ahead {
        zygotes: OnceLock<Arc<Zygotes>>,
        pool: OnceLock<Arc<Pool>>,
    }

    impl Ahead {
        pub(crate) fn launcher(
            &self,
            worker: WorkerProgram,
            settings: &Settings,
            plan: &Plan,
        ) -> Launcher {
            let zygotes = || {
                let made = || Arc::new(Zygotes::new(worker.clone(), settings.containment));
                Arc::clone(self.zygotes.get_or_init(made))
            };
            match plan.launching.as_ref().map(|(launching, _)| *launching) {
                Some(Launching::Exec) | None => Launcher::Exec(worker),
                Some(Launching::Zygote) => Launcher::Zygote(zygotes()),
                Some(Launching::Pool) => {
                    let terms = Terms {
                        pool: settings.pool,
                        grace: plan.settings.terminate_grace,
                        containment: plan.settings.containment,
                        ration: plan.settings.ration,
                    };
                    let made = || Arc::new(Pool::new(zygotes(), terms));
                    Launcher::Pool(Arc::clone(self.pool.get_or_init(made)))
                }
            }
        }
    }

    impl Delegator {
        /// What is known of the templates of workers, by agent ([`crate::launch::zygote`]).
        #[must_use]
        pub fn templates(&self) -> Vec<Account> {
            self.inner.ahead.zygotes.get().map(|zygotes| zygotes.accounts()).unwrap_or_default()
        }

        /// Worker processes that wait for a child of this agent ([`crate::launch::pool`]).
        #[must_use]
        pub fn waiting_workers(&self, agent: &str) -> Vec<u32> {
            self.inner.ahead.pool.get().map(|pool| pool.waiting(agent)).unwrap_or_default()
        }
    }
}

#[cfg(not(target_os = "linux"))]
mod none {
    use super::{Launcher, Plan, Settings, WorkerProgram};

    /// Nothing is started ahead where nothing can be owned.
    #[derive(Debug, Default)]
    pub(crate) struct Ahead;

    impl Ahead {
        pub(crate) fn launcher(
            &self,
            worker: WorkerProgram,
            _settings: &Settings,
            _plan: &Plan,
        ) -> Launcher {
            Launcher::Exec(worker)
        }
    }
}

//! How the delegator makes a batch, for the program and for children that delegate ([`Nest`]): the same way for
//! both, so that no way to launch goes round the accounts of the tree.

use std::sync::Arc;
use std::time::SystemTime;

use delegate_protocol::delegation::Work;
use delegate_protocol::{Isolation, RunId};
use tokio::sync::oneshot;

use super::Inner;
use super::batch::When;
use crate::file_state::registry::Who;
use crate::launch::{self, Launcher, limits, program};
use crate::lease::batch::BatchKeys;
use crate::plan::{self, Parent, Plan, StartError, Task};
use crate::run::batch::Batch as BatchLoop;
use crate::run::common::Common;
use crate::run::control::ControlState;
use crate::run::live::LiveRun;
use crate::run::nest::{Assembled, Nest, Nested};

impl Nest for Inner {
    fn plan(&self, work: Work, parent: &Parent, isolation: Isolation) -> Result<Plan, StartError> {
        // A child's children run as it does itself.
        let asked = Some(match isolation {
            Isolation::Process => plan::Isolation::Process,
            Isolation::Thread => plan::Isolation::Thread,
        });
        let settings = &self.settings;
        self.with_means(Some(parent), None, When::ToStart, |means| match work {
            Work::Tasks(orders) => {
                let mut tasks = orders.into_iter().map(Task::from).collect();
                plan::plan_nested(&mut tasks, settings, asked, means)
            }
            Work::Call { arguments, agent } => {
                plan::plan_call(&arguments, &agent, settings, asked, means)
            }
        })
    }

    fn assemble(&self, plan: Plan, nested: Nested) -> Result<Assembled, StartError> {
        let title = plan.tasks.first().map(|task| task.goal().to_owned());
        let made = (RunId::random(), Arc::default());
        self.assemble_as(plan, nested, title.unwrap_or_default(), made)
    }
}

impl Inner {
    /// A batch that is on the list of what runs, and ready to.
    pub(super) fn assemble_as(
        &self,
        mut plan: Plan,
        nested: Nested,
        title: String,
        (run, control): (RunId, Arc<ControlState>),
    ) -> Result<Assembled, StartError> {
        limits::check(&plan.settings, plan.isolation == Isolation::Process)?;
        if self.live.is_paused() {
            return Err(StartError::Paused);
        }
        let Nested { nest, kin, outlet, listener, session } = nested;
        let standing = kin.tree.standing();
        let places = plan.settings.max_concurrent_children as usize;
        let others = (standing.working + standing.lending) as usize;
        launch::make_room(plan.isolation, others + plan.tasks.len().min(places));
        let launcher = match plan.isolation {
            Isolation::Thread => {
                let owner = program::owner().map(|owner| {
                    // What a task in a thread starts is held as it is asked for here too.
                    let owner = self.records.kept_by(owner);
                    owner.with_containment(plan.settings.containment)
                });
                Launcher::Thread(self.registry.clone(), owner)
            }
            Isolation::Process => {
                let worker = self.worker.clone().ok_or(StartError::NotItsOwnWorker)?;
                self.ahead.launcher(worker, &self.settings, &plan)
            }
        };
        let keys = BatchKeys::of(&self.keys, &plan);
        let trees = self.trees(run, plan.resumed, &mut plan)?;
        let caller = plan
            .caller()
            .map_or_else(|| Who::Parent(session.as_deref().unwrap_or_default().into()), Who::Child);
        let (files, jobs) = (self.files.clone(), self.jobs.clone());
        let common = Common { files, jobs, caller, trees, turns: None };
        let plan = Arc::new(plan);
        let listed = self.live.add(LiveRun {
            id: run,
            title: title.clone(),
            session: session.clone(),
            above: kin.above,
            started: SystemTime::now(),
            plan: Arc::clone(&plan),
            control: Arc::clone(&control),
        });
        let (report, reported) = oneshot::channel();
        let batch = BatchLoop {
            _listed: listed,
            run,
            title,
            plan,
            launcher,
            records: self.records.clone(),
            store: self.store.clone(),
            outlet,
            control: Arc::clone(&control),
            listener,
            clock: self.clock.clone(),
            nest,
            kin,
            session,
            common,
            keys,
            dispatch: None,
            kept: None,
            background: false,
            rerun_of: None,
            _place: None,
        };
        Ok(Assembled { batch, control, report, reported })
    }
}

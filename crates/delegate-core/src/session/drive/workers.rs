//! Workers of a session, for [`super`]: how one is started, and what is known of one that has left. What follows says
//! `machine`.

use std::sync::Arc;
use std::time::Duration;

use delegate_protocol::SubagentId;
use delegate_protocol::turn::{BETWEEN_TURNS, NO_TURNS};

use super::{Driver, Worker};
use crate::collect::limits;
use crate::run::Run;
use crate::run::crash::{Place, reach};
use crate::run::turns::Turns;
use crate::session::machine::{Event, Parting};

impl Driver {
    /// The worker's run is over.
    pub(super) async fn gone(&mut self, verified_empty: bool, now: Duration) {
        let Some(worker) = self.worker.take() else { return };
        reach(Place::WorkerGone);
        self.shared.set_worker(None);
        self.verified_empty &= verified_empty;
        self.waiting = None;
        self.left = self.store.outcome(worker.run, 0).ok();
        let reason = self.left.as_ref().and_then(|left| left.failure_reason.as_deref());
        let parting = match reason {
            Some(NO_TURNS) => Parting::Hopeless,
            Some(BETWEEN_TURNS) => Parting::BetweenTurns,
            Some(_) | None => Parting::Lost,
        };
        let error = self.left.as_ref().and_then(|left| left.error.clone());
        self.lost_by.clone_from(&error);
        if let Some(met) = self.left.as_ref().and_then(limits::met) {
            let warning =
                format!("its worker met a limit, so its answers may lack something: {met}");
            self.limits_met += 1;
            self.warn(warning);
        }
        let before = self.machine.restarts();
        let effects = self.machine.step(Event::Gone(parting), now);
        let (number, restarts) = (worker.number, self.machine.restarts());
        if restarts > before {
            let session = self.head.id;
            tracing::warn!(target: "delegate::session", %session, restarts, error, "a worker was lost");
        }
        self.shared.set_restarts(restarts);
        self.write(move |database| database.worker_gone(number, error.as_deref(), restarts)).await;
        self.act(effects, now).await;
    }

    pub(super) async fn launched(&mut self, launched: Result<Run, String>, now: Duration) {
        match launched {
            Ok(run) => {
                let (number, id) = (self.last, run.id());
                self.write(move |database| database.worker(number, id)).await;
                self.hire(&run);
                reach(Place::Replaced);
                if self.shared.is_ending()
                    && let Some(worker) = &self.worker
                {
                    worker.control.interrupt();
                }
                // Its caller may read no more.
                drop(self.lives.send(run));
            }
            Err(error) => {
                self.warn(format!("a worker could not be started: {error}"));
                self.lost_by = Some(error);
                self.left = None;
                let effects = self.machine.step(Event::Gone(Parting::Lost), now);
                self.shared.set_restarts(self.machine.restarts());
                self.act(effects, now).await;
            }
        }
    }

    pub(super) fn hire(&mut self, run: &Run) {
        let child: SubagentId = run.plan().subagent_id(0);
        self.shared.set_worker(Some((run.control(), child)));
        self.shared.set_run(run.id());
        self.worker = Some(Worker { number: self.last, run: run.id(), control: run.control() });
    }

    pub(super) fn start_another(&mut self) {
        self.last += 1;
        let turns = Turns { worker: self.last, sender: self.asks.clone() };
        let (launch, launches) = (Arc::clone(&self.launch), self.launches.clone());
        // A start may block: not on the thread that watches deadlines.
        tokio::task::spawn_blocking(move || {
            let run = launch(turns).map_err(|error| error.to_string());
            // A session that is over wants none: dropping the run ends it.
            drop(launches.send(run));
        });
    }
}

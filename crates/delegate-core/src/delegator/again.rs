//! Going on with what is stored: [`Delegator::resume_run`] in the same run, [`Delegator::rerun`] in a new
//! one. Nothing is ever run again by itself.

use std::sync::Arc;

use delegate_protocol::{RunId, Status, SubagentId};

use super::Delegator;
use super::batch::Batch;
use crate::plan::kept::revive;
use crate::plan::{Again, Isolation, StartError, Task};
use crate::store::KeptRun;

/// Which tasks of a run are run again.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Which {
    /// Those that did not complete, and those without an outcome.
    Failed,
    /// Those at these positions.
    Tasks(Vec<u32>),
    /// All.
    All,
}

/// What a batch takes from an earlier run.
#[derive(Debug)]
pub(super) struct Earlier {
    pub(super) run: RunId,
    pub(super) keyed: Option<String>,
    pub(super) by_agent: bool,
    /// It goes on in that run.
    pub(super) again: Option<Arc<Again>>,
    /// It is a new one, of these tasks.
    pub(super) tasks: Vec<u32>,
}

impl Delegator {
    /// The tasks of a run whose process is gone, to be started in the same run: what has an outcome keeps
    /// it, the rest is launched with the ids that its children had. Settings are those of this delegator;
    /// isolation is that of the run. [`Batch::start`] takes the run over, which one of several who try can.
    ///
    /// # Errors
    /// There is nothing to resume, its tasks were not stored, or something that is never stored is not given
    /// again.
    pub fn resume_run(&self, run: RunId) -> Result<Batch, StartError> {
        let kept = self.kept(run)?;
        if kept.run.status == "running" {
            let pid =
                kept.run.process.map_or(String::new(), |(pid, _)| format!(" in process {pid}"));
            return Err(StartError::NotResumable { run, reason: format!("it still runs{pid}") });
        }
        if kept.statuses.len() >= kept.run.tasks as usize {
            return Err(StartError::NothingLeft {
                run,
                what: "there is no task without an outcome",
            });
        }
        let all: Vec<u32> = (0..kept.run.tasks).collect();
        let (tasks, ids) = revived(&kept, &all, |index| kept.statuses.contains_key(&index))?;
        let again = Again { ids, ended: kept.statuses.clone() };
        Ok(self.going_on(kept, tasks, Some(Arc::new(again)), Vec::new()))
    }

    /// Tasks of a run that has ended, as a new run that names the old one.
    ///
    /// # Errors
    /// As [`Delegator::resume_run`]; also when no task is meant.
    pub fn rerun(&self, run: RunId, which: &Which) -> Result<Batch, StartError> {
        let kept = self.kept(run)?;
        if kept.run.status == "running" {
            return Err(StartError::NotResumable { run, reason: "it still runs".to_owned() });
        }
        let completed = |task: &u32| kept.statuses.get(task) == Some(&Status::Completed);
        let chosen: Vec<u32> = match which {
            Which::All => (0..kept.run.tasks).collect(),
            Which::Failed => (0..kept.run.tasks).filter(|task| !completed(task)).collect(),
            Which::Tasks(tasks) => tasks.clone(),
        };
        if chosen.is_empty() {
            return Err(StartError::NothingLeft { run, what: "there is no failed task" });
        }
        if chosen.iter().any(|task| *task >= kept.run.tasks) {
            return Err(StartError::NothingLeft { run, what: "there is no such task" });
        }
        let (tasks, _) = revived(&kept, &chosen, |_| false)?;
        Ok(self.going_on(kept, tasks, None, chosen))
    }

    fn kept(&self, run: RunId) -> Result<KeptRun, StartError> {
        let store = self.store();
        let unreadable =
            |error: crate::store::StoreError| StartError::Unreadable(error.to_string());
        let record = store.find_run(&run.to_string()).map_err(unreadable)?;
        store.reader().kept(record).map_err(unreadable)?.ok_or(StartError::NotKept { run })
    }

    fn going_on(
        &self,
        kept: KeptRun,
        tasks: Vec<Task>,
        again: Option<Arc<Again>>,
        chosen: Vec<u32>,
    ) -> Batch {
        let KeptRun { run, facts, .. } = kept;
        let mut batch = self.batch(tasks).title(run.title).resumable();
        batch.note = facts.note;
        batch.detached = run.background && again.is_some();
        batch.isolation = Some(match run.isolation.as_str() {
            "thread" => Isolation::Thread,
            _ => Isolation::Process,
        });
        batch.from = Some(Earlier {
            run: run.id,
            keyed: facts.keyed.then_some(facts.route),
            by_agent: facts.by_agent,
            again,
            tasks: chosen,
        });
        batch
    }
}

/// The tasks at these positions; what is not launched needs nothing that was left out.
fn revived(
    kept: &KeptRun,
    positions: &[u32],
    is_over: impl Fn(u32) -> bool,
) -> Result<(Vec<Task>, Vec<SubagentId>), StartError> {
    let run = kept.run.id;
    let mut found = (Vec::new(), Vec::new());
    for &task in positions {
        let stored = kept.tasks.get(task as usize).and_then(Option::as_ref);
        let bytes = stored.ok_or(StartError::NotKept { run })?;
        let over = is_over(task);
        let given = |name: &str| match std::env::var(name) {
            Ok(value) => Some(value),
            Err(_) => over.then(String::new),
        };
        let (task, id) =
            revive(bytes, &given).map_err(|source| StartError::NotGiven { run, task, source })?;
        found.0.push(task);
        found.1.push(id);
    }
    Ok(found)
}

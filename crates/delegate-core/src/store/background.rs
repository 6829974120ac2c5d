//! What the store does for runs that nobody waits for: completions that are claimed and settled, runs that
//! are taken over or forgotten. Each is one job of the recorder ([`super::desk`]); futures need no runtime.

use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use delegate_protocol::RunId;
use tokio::sync::oneshot;

use super::delivery::{ClaimOver, Delivery, Proof, Verdict};
use super::desk::Desk;
use super::inbox::Record;
use super::retention::{self, Candidate, Pruned, Retention, choose};
use super::{RUNS, Store, StoreError};

/// Seconds since the epoch.
pub(crate) fn seconds_now() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64()
}

impl Store {
    /// Has the recorder do something; where there is none it is done here, without a database.
    fn at_desk<T: Send + 'static>(
        &self,
        work: impl FnOnce(Desk<'_>) -> T + Send + 'static,
    ) -> oneshot::Receiver<T> {
        let (say, said) = oneshot::channel();
        let work = Box::new(move |desk: Desk<'_>| {
            // Who asked may be gone.
            drop(say.send(work(desk)));
        });
        if let Err(Record::Work(work)) = self.inner.inbox.push(Record::Work(work)) {
            work(Desk { database: None, shared: &self.inner.shared });
        }
        said
    }

    /// How a run ended, as its loop wrote it (JSON); `None` before its end.
    pub(crate) fn ending(&self, run: RunId) -> Result<Option<String>, StoreError> {
        let kept = self.inner.shared.memory().ending(run);
        kept.map_or_else(|| self.inner.reader.ending(run), |ending| Ok(Some(ending)))
    }

    /// Ready when every record said so far is written, or known not to be.
    pub(crate) async fn written(&self) {
        drop(self.at_desk(|_| ()).await);
    }

    /// The outcomes of a unit are stored: makes its completion pending, then calls `stored` on the
    /// recorder's thread (`true`: it is on disk).
    pub(crate) fn finish_unit(
        &self,
        delivery: Delivery,
        now: f64,
        stored: impl FnOnce(bool) + Send + 'static,
    ) {
        drop(self.at_desk(move |desk| stored(desk.finish(delivery, now))));
    }

    /// Takes a completion for a consumer; `None` when there is none for it.
    pub(crate) async fn claim(
        &self,
        session: Option<String>,
        by_id: Option<RunId>,
        now: f64,
    ) -> Option<Delivery> {
        let claimed = self.at_desk(move |desk| {
            let proof = by_id.map_or(Proof::Session(session.as_deref()), |_| Proof::Id);
            desk.claim(proof, by_id, now)
        });
        claimed.await.ok().flatten()
    }

    /// What a consumer says of a completion that it has claimed.
    pub(crate) async fn settle(
        &self,
        claim: (RunId, u32, u32),
        verdict: Verdict,
        now: f64,
    ) -> Result<(), ClaimOver> {
        let settled = self.at_desk(move |desk| desk.settle(claim, &verdict, now));
        settled.await.unwrap_or_else(|_| Err(ClaimOver("the store is closed".to_owned())))
    }

    /// Makes a run whose owner is gone this process's: of several who try one wins. `Err`: why not.
    pub(crate) fn take_over(&self, run: RunId) -> oneshot::Receiver<Result<(), String>> {
        self.at_desk(move |desk| desk.take_over(run))
    }

    /// What [`Store::prune`] would look at, newest first.
    fn candidates(&self) -> Result<Vec<Candidate>, StoreError> {
        let weights = self.inner.reader.weights()?;
        let root = self.inner.state_dir.join(RUNS);
        let candidate = |run: super::RunRecord| {
            let (rows, waits) = weights.get(&run.id).copied().unwrap_or_default();
            let held = if run.status == "running" {
                Some("it still runs")
            } else {
                waits.then_some("nobody has taken its completion yet")
            };
            let bytes = rows + retention::bytes_in(&root.join(run.id.to_string()));
            Candidate { run, bytes, held }
        };
        Ok(self.inner.reader.runs(usize::MAX)?.into_iter().map(candidate).collect())
    }

    /// Forgets runs, rows and folders both; never one that lives, nor one whose completion waits. A
    /// pruning that is killed is finished by the next one. Blocks. With `dry_run` it only says what it would
    /// do.
    ///
    /// # Errors
    /// The database cannot be read or written; nothing was forgotten then.
    pub fn prune(
        &self,
        limits: Retention,
        dry_run: bool,
        now: SystemTime,
    ) -> Result<Pruned, StoreError> {
        let now = now.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64();
        let candidates = self.candidates()?;
        let chosen = choose(&candidates, limits, now);
        let mut pruned = Pruned { kept: candidates.len() - chosen.len(), ..Pruned::default() };
        for candidate in chosen.into_iter().map(|at| candidates[at].clone()) {
            match candidate.held {
                Some(_) => pruned.held.push(candidate),
                None => pruned.forgotten.push(candidate),
            }
        }
        pruned.kept += pruned.held.len();
        if dry_run {
            return Ok(pruned);
        }
        let ids: Vec<RunId> = pruned.forgotten.iter().map(|one| one.run.id).collect();
        let forgotten = self.at_desk(move |desk| desk.forget(&ids)).blocking_recv();
        let failed = |reason: String| StoreError::Io {
            what: "forgetting runs in",
            path: self.inner.state_dir.clone(),
            reason,
        };
        let gone = forgotten.unwrap_or_else(|_| Err("the store is closed".to_owned()));
        let gone = gone.map_err(failed)?;
        // One that began to live meanwhile stays.
        let (forgotten, lives) =
            pruned.forgotten.into_iter().partition(|one| gone.contains(&one.run.id));
        pruned.forgotten = forgotten;
        pruned.kept += Vec::<Candidate>::len(&lives);
        let (removed, failed) = Self::remove_folders(&self.inner.state_dir.join(RUNS), gone);
        pruned.failed = failed;
        drop(self.at_desk(move |desk| desk.forgotten(&removed)).blocking_recv());
        Ok(pruned)
    }

    fn remove_folders(root: &Path, runs: Vec<RunId>) -> (Vec<RunId>, Vec<String>) {
        let (mut removed, mut failed) = (Vec::new(), Vec::new());
        for run in runs {
            match retention::remove(root, run) {
                Ok(()) => removed.push(run),
                Err(error) => failed.push(error.to_string()),
            }
        }
        (removed, failed)
    }
}

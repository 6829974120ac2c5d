//! What a batch hands back: [`Report`], plain data for consumers. Texts are read back from the store.

use std::collections::BTreeMap;
use std::io;
use std::time::Duration;

pub use delegate_child::Outcome;
use delegate_protocol::event::seconds;
use delegate_protocol::outcome::ExitReason;
use delegate_protocol::{RunId, Status};
use serde::ser::{Serialize, SerializeStruct, Serializer};

use crate::collect::cost::Spending;
use crate::store::{RunRecord, Store, StoreError, bare};

/// Something that could not be ended: a process that waits in the kernel.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct LeftRunning {
    /// Which task started it.
    pub task_index: u32,
    /// Its pid when it was seen.
    pub pid: Option<u32>,
    /// Its name, or what is known of it.
    pub name: String,
    /// Why it is still there.
    pub why: String,
}

/// A batch of which not every task completed: the first that did not.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("task {task_index} of run {run_id} ended with status {}: {reason}", status.word())]
pub struct TaskFailed {
    /// The run.
    pub run_id: RunId,
    /// Which task.
    pub task_index: u32,
    /// How it ended.
    pub status: Status,
    /// Why.
    pub reason: String,
}

/// What the run loop knows at the end of a batch.
#[derive(Debug, Clone)]
pub struct Ending {
    /// Id of the run.
    pub run_id: RunId,
    /// Status of each task, in task order: the one small record per outcome that stays in memory.
    pub statuses: Vec<Status>,
    /// What could not be ended.
    pub left_running: Vec<LeftRunning>,
    /// Whether the kernel confirmed that every scope is empty.
    pub verified_empty: bool,
    /// Whether every outcome is on disk.
    pub durable: bool,
    /// What a person should know.
    pub warnings: Vec<String>,
    /// From start to end.
    pub total_duration: Duration,
    /// What its children spent, and those below them.
    pub spent: Spending,
    /// Children on all levels that have an outcome.
    pub descendants: u64,
    /// How its processes were started and why, and where it came otherwise; empty without processes.
    pub launching: Vec<String>,
}

/// What is stored of it besides the outcomes; what is missing there is the worse.
#[derive(Debug, Clone, Default, serde::Serialize, serde::Deserialize)]
#[serde(default)]
pub(crate) struct StoredEnding {
    pub(crate) left_running: Vec<LeftRunning>,
    pub(crate) verified_empty: bool,
    pub(crate) durable: bool,
    pub(crate) warnings: Vec<String>,
    pub(crate) launching: Vec<String>,
}

/// The end of a batch.
#[derive(Debug)]
#[must_use]
pub struct Report {
    store: Store,
    ending: Ending,
}

/// `schema` of the JSON object that [`Report::write_json`] writes.
pub const SCHEMA: &str = "delegate.report/1";

impl Report {
    /// A report whose outcomes are in `store`.
    pub const fn new(store: Store, ending: Ending) -> Self {
        Self { store, ending }
    }

    /// The report of a run that has ended, or whose parent died, of this process or another: tasks without
    /// an outcome have an entry with status `unknown` and cause `lost`.
    ///
    /// # Errors
    /// The store cannot be read.
    pub fn stored(store: &Store, run: &RunRecord) -> Result<Self, StoreError> {
        let known = store.reader().statuses(run.id)?;
        let status = |task: u32| match known.get(&task) {
            Some(status) => *status,
            None => store.outcome(run.id, task).map_or(Status::Unknown, |entry| entry.status),
        };
        let ending = store.ending(run.id)?.unwrap_or_default();
        let StoredEnding { left_running, verified_empty, durable, warnings, launching } =
            serde_json::from_str(&ending).unwrap_or_default();
        Ok(Self::new(
            store.clone(),
            Ending {
                run_id: run.id,
                launching,
                statuses: (0..run.tasks).map(status).collect(),
                left_running,
                verified_empty,
                durable,
                warnings,
                total_duration: Duration::try_from_secs_f64(
                    run.duration_seconds.unwrap_or_default(),
                )
                .unwrap_or_default(),
                // Told while it runs; the entries have it too.
                spent: Spending::default(),
                descendants: 0,
            },
        ))
    }

    /// Id of the run.
    #[must_use]
    pub const fn run_id(&self) -> RunId {
        self.ending.run_id
    }

    /// Results in task order, read back from the store one at a time. One that cannot be read back is
    /// an entry that says so.
    pub fn results(&self) -> impl Iterator<Item = Outcome> + '_ {
        (0..).zip(&self.ending.statuses).map(|(index, status)| {
            let read = self.store.entry(self.ending.run_id, index);
            Outcome::from(
                read.unwrap_or_else(|error| unreadable(index, *status, &error.to_string())),
            )
        })
    }

    /// Every result in task order, or the first task that did not complete. Holds all of them in
    /// memory; [`Report::results`] does not.
    ///
    /// # Errors
    /// [`TaskFailed`].
    pub fn into_result(self) -> Result<Vec<Outcome>, TaskFailed> {
        self.results()
            .map(|outcome| {
                if outcome.status == Status::Completed {
                    return Ok(outcome);
                }
                let reason = outcome.error.clone();
                Err(TaskFailed {
                    run_id: self.run_id(),
                    task_index: outcome.task_index,
                    status: outcome.status,
                    reason: reason.unwrap_or_else(|| "no reason was given".into()),
                })
            })
            .collect()
    }

    /// Status of each task, in task order.
    #[must_use]
    pub fn statuses(&self) -> &[Status] {
        &self.ending.statuses
    }

    /// How many tasks ended with each status; statuses that did not occur are not listed.
    #[must_use]
    pub fn counts(&self) -> BTreeMap<Status, usize> {
        let mut counts = BTreeMap::new();
        for status in self.statuses() {
            *counts.entry(*status).or_default() += 1;
        }
        counts
    }

    /// Whether every task completed.
    #[must_use]
    pub fn all_completed(&self) -> bool {
        self.statuses().iter().all(|status| *status == Status::Completed)
    }

    /// What is still there, and why. Empty in the normal case.
    #[must_use]
    pub fn left_running(&self) -> &[LeftRunning] {
        &self.ending.left_running
    }

    /// Whether the kernel confirmed that nothing of this batch is left.
    #[must_use]
    pub const fn verified_empty(&self) -> bool {
        self.ending.verified_empty
    }

    /// Whether every outcome is on disk; the others live in memory until this process ends.
    #[must_use]
    pub const fn is_durable(&self) -> bool {
        self.ending.durable
    }

    /// Things that a person should know: outcomes that could not be stored, and such.
    #[must_use]
    pub fn warnings(&self) -> &[String] {
        &self.ending.warnings
    }

    /// What its children have spent, on all levels, and how many they were.
    #[must_use]
    pub const fn spent(&self) -> (Spending, u64) {
        (self.ending.spent, self.ending.descendants)
    }

    /// How its processes were started and why, and for which agents it came otherwise; empty where no
    /// process was.
    #[must_use]
    pub fn launching(&self) -> &[String] {
        &self.ending.launching
    }

    /// From start to end.
    #[must_use]
    pub const fn total_duration(&self) -> Duration {
        self.ending.total_duration
    }

    /// Writes the report as one JSON object (schema [`SCHEMA`]), without a newline after it. Results
    /// are read and written one by one; give it a buffered writer.
    ///
    /// # Errors
    /// Those of `out`.
    pub fn write_json(&self, out: &mut impl io::Write) -> io::Result<()> {
        serde_json::to_writer(out, &Json(self)).map_err(io::Error::from)
    }
}

/// A report as JSON.
struct Json<'a>(&'a Report);

/// Its results, each dropped before the next is read.
struct Results<'a>(&'a Report);

impl Serialize for Json<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Ending {
            run_id,
            statuses: _,
            left_running,
            verified_empty,
            durable,
            warnings,
            total_duration,
            spent: _,
            descendants: _,
            launching,
        } = &self.0.ending;
        let status = if self.0.all_completed() { "completed" } else { "failed" };
        let mut object = serializer.serialize_struct("Report", 10)?;
        object.serialize_field("schema", SCHEMA)?;
        object.serialize_field("run_id", run_id)?;
        object.serialize_field("status", status)?;
        object.serialize_field("results", &Results(self.0))?;
        object.serialize_field("left_running", left_running)?;
        object.serialize_field("verified_empty", verified_empty)?;
        object.serialize_field("durable", durable)?;
        object.serialize_field("warnings", warnings)?;
        object.serialize_field("launching", launching)?;
        object.serialize_field("total_duration_seconds", &seconds(*total_duration))?;
        object.end()
    }
}

impl Serialize for Results<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.0.results().map(Outcome::into_entry))
    }
}

/// The entry of a task of any run.
pub(crate) fn entry_or_unreadable(store: &Store, run: RunId, task_index: u32) -> Outcome {
    let read = store.entry(run, task_index);
    Outcome::from(
        read.unwrap_or_else(|error| unreadable(task_index, Status::Unknown, &error.to_string())),
    )
}

/// The entry of a task whose outcome is known by its status only.
pub(crate) fn unreadable(task_index: u32, status: Status, why: &str) -> delegate_protocol::Outcome {
    let exit_reason = match status {
        Status::Completed => ExitReason::Completed,
        Status::Failed | Status::Error | Status::Unknown => ExitReason::Error,
        Status::Timeout => ExitReason::Timeout,
        Status::Interrupted => ExitReason::Interrupted,
    };
    delegate_protocol::Outcome {
        error: Some(format!("its outcome cannot be read back: {why}")),
        notes: vec!["only the status of this entry is known".into()],
        ..bare(task_index, status, exit_reason)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(statuses: &[Status], stored: &[u32]) -> (tempfile::TempDir, Report) {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(dir.path());
        let run_id = RunId::from_u128(7);
        for index in stored {
            let status = statuses[usize::try_from(*index).unwrap()];
            let mut entry = unreadable(*index, status, "");
            entry.summary = Some(format!("answer {index}"));
            entry.error = (status != Status::Completed).then(|| "it broke".into());
            store.put_outcome(run_id, entry, |stored| assert!(stored));
        }
        store.flush(Duration::from_secs(30));
        let ending = Ending {
            run_id,
            statuses: statuses.to_vec(),
            left_running: vec![LeftRunning {
                task_index: 0,
                pid: Some(9),
                name: "dd".into(),
                why: "waits in the kernel".into(),
            }],
            verified_empty: false,
            durable: false,
            warnings: vec!["careful".into()],
            launching: Vec::new(),
            total_duration: Duration::from_millis(64_204),
            spent: Spending::default(),
            descendants: 0,
        };
        (dir, Report::new(store, ending))
    }

    fn json(report: &Report) -> serde_json::Value {
        let mut out = Vec::new();
        report.write_json(&mut out).unwrap();
        serde_json::from_slice(&out).unwrap()
    }

    #[test]
    fn the_json_object_has_every_field() {
        let (_dir, report) = report(&[Status::Completed, Status::Timeout], &[0, 1]);
        let json = json(&report);
        assert_eq!(json["schema"], "delegate.report/1");
        assert_eq!(json["run_id"], RunId::from_u128(7).to_string());
        assert_eq!(json["status"], "failed");
        assert_eq!(json["results"][0]["summary"], "answer 0");
        assert_eq!(json["results"][1]["status"], "timeout");
        assert_eq!(json["results"].as_array().unwrap().len(), 2);
        assert_eq!(json["left_running"][0]["pid"], 9);
        assert_eq!(json["verified_empty"], false);
        assert_eq!(json["warnings"][0], "careful");
        assert_eq!(json["total_duration_seconds"], 64.2);
        for field in ["pid", "isolation", "launcher", "logs"] {
            assert!(json["results"][0].get(field).is_some(), "{field}");
        }
    }

    #[test]
    fn a_result_that_cannot_be_read_back_is_not_skipped() {
        let (_dir, report) = report(&[Status::Completed; 3], &[0, 2]);
        let json = json(&report);
        assert_eq!(json["status"], "completed");
        let results = json["results"].as_array().unwrap();
        let indices: Vec<_> = results.iter().map(|entry| entry["task_index"].as_u64()).collect();
        assert_eq!(indices, [Some(0), Some(1), Some(2)]);
        let error = results[1]["error"].as_str().unwrap();
        assert!(error.contains("cannot be read back"), "{error}");
    }

    #[test]
    fn the_first_failure_is_the_error() {
        let statuses = [Status::Completed, Status::Failed, Status::Timeout];
        let (_dir, report) = report(&statuses, &[0, 1, 2]);
        assert_eq!(
            report.counts().into_iter().collect::<Vec<_>>(),
            [(Status::Completed, 1), (Status::Failed, 1), (Status::Timeout, 1)]
        );
        let failed = report.into_result().unwrap_err();
        assert_eq!((failed.task_index, failed.status), (1, Status::Failed));
        assert!(failed.to_string().contains("status failed: it broke"), "{failed}");
    }

    #[test]
    fn without_a_failure_every_outcome_is_there() {
        let (_dir, report) = report(&[Status::Completed; 2], &[0, 1]);
        assert!(report.all_completed());
        let outcomes = report.into_result().unwrap();
        assert_eq!(outcomes.len(), 2);
        assert_eq!(outcomes[1].summary.as_deref(), Some("answer 1"));
    }

    #[test]
    fn a_writer_that_refuses_is_an_error() {
        struct Closed;
        impl io::Write for Closed {
            fn write(&mut self, _: &[u8]) -> io::Result<usize> {
                Err(io::ErrorKind::BrokenPipe.into())
            }
            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        let (_dir, report) = report(&[Status::Completed], &[0]);
        let error = report.write_json(&mut Closed).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::BrokenPipe);
    }
}

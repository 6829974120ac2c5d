//! Which runs are kept: a pure choice by age, count and size, and its carrying out.

use std::path::Path;
use std::time::Duration;
use std::{fs, io};

use delegate_protocol::RunId;

use super::{RunRecord, StoreError};

/// What may be forgotten. A run goes when any of the limits says so; without one nothing does.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Retention {
    /// Runs that began longer ago than this.
    pub older_than: Option<Duration>,
    /// All but so many of the newest.
    pub keep: Option<usize>,
    /// The oldest, until the others have this many bytes at most.
    pub max_bytes: Option<u64>,
}

/// A run that may be forgotten, or that counts for its size only.
#[derive(Debug, Clone, PartialEq)]
pub struct Candidate {
    /// The run.
    pub run: RunRecord,
    /// Its files and its rows.
    pub bytes: u64,
    /// It is never forgotten: why.
    pub held: Option<&'static str>,
}

/// What pruning came to.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Pruned {
    /// What was forgotten, or would be, newest first.
    pub forgotten: Vec<Candidate>,
    /// What the limits say should go and what must not.
    pub held: Vec<Candidate>,
    /// Runs that are kept.
    pub kept: usize,
    /// Folders that could not be removed; the next pruning tries again.
    pub failed: Vec<String>,
}

/// Chooses: `runs` are newest first. Gives positions, in their order.
#[must_use]
pub fn choose(runs: &[Candidate], limits: Retention, now: f64) -> Vec<usize> {
    let Retention { older_than, keep, max_bytes } = limits;
    let (mut kept, mut bytes) = (0_usize, 0_u64);
    let mut full = false;
    let mut chosen = Vec::new();
    for (position, Candidate { run, bytes: own, held: _ }) in runs.iter().enumerate() {
        // A clock that was set back makes nobody old.
        let old = older_than.is_some_and(|age| now - run.started_at > age.as_secs_f64());
        let many = keep.is_some_and(|keep| kept >= keep);
        // From the first that does not fit on: a small old run does not outlive a large newer one.
        full |= max_bytes.is_some_and(|most| bytes.saturating_add(*own) > most);
        if old || many || full {
            chosen.push(position);
        } else {
            kept += 1;
            bytes = bytes.saturating_add(*own);
        }
    }
    chosen
}

/// Bytes of a folder and everything in it; links are not followed.
pub(super) fn bytes_in(folder: &Path) -> u64 {
    let mut waiting = vec![folder.to_owned()];
    let mut total = 0;
    while let Some(folder) = waiting.pop() {
        let Ok(entries) = fs::read_dir(folder) else { continue };
        for entry in entries.flatten() {
            match entry.metadata() {
                Ok(data) if data.is_dir() => waiting.push(entry.path()),
                Ok(data) => total += data.len(),
                Err(_) => {}
            }
        }
    }
    total
}

/// Removes the folder of a run.
pub(super) fn remove(root: &Path, run: RunId) -> Result<(), StoreError> {
    let path = root.join(run.to_string());
    match fs::remove_dir_all(&path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(StoreError::Io { what: "removing", path, reason: error.to_string() })
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: f64 = 100_000.0;

    /// A run every 1,000 s back from now, of so many bytes each.
    fn runs(bytes: &[u64]) -> Vec<Candidate> {
        let one = |(age, bytes): (u32, &u64)| Candidate {
            run: RunRecord {
                id: RunId::from_u128(age.into()),
                started_at: NOW - f64::from(age) * 1000.0,
                duration_seconds: None,
                status: "completed".to_owned(),
                tasks: 1,
                counts: Vec::new(),
                title: String::new(),
                isolation: "thread".to_owned(),
                above: None,
                process: None,
                background: false,
                resumed: 0,
                rerun_of: None,
            },
            bytes: *bytes,
            held: None,
        };
        (0..).zip(bytes).map(one).collect()
    }

    fn chosen(bytes: &[u64], limits: Retention) -> Vec<usize> {
        choose(&runs(bytes), limits, NOW)
    }

    #[test]
    fn each_limit_takes_the_oldest_and_any_of_them_is_enough() {
        let (age, keep, size) = (
            Retention { older_than: Some(Duration::from_secs(1500)), ..Retention::default() },
            Retention { keep: Some(3), ..Retention::default() },
            Retention { max_bytes: Some(25), ..Retention::default() },
        );
        let sizes = [10, 10, 10, 10];
        assert_eq!(chosen(&sizes, Retention::default()), [0_usize; 0]);
        assert_eq!(chosen(&sizes, age), [2, 3]);
        assert_eq!(chosen(&sizes, keep), [3]);
        assert_eq!(chosen(&sizes, size), [2, 3]);
        let all = Retention { keep: Some(1), ..age };
        assert_eq!(chosen(&sizes, all), [1, 2, 3]);
        assert_eq!(chosen(&sizes, Retention { keep: Some(0), ..size }), [0, 1, 2, 3]);
        assert_eq!(chosen(&[], size), [0_usize; 0]);
    }

    #[test]
    fn a_small_old_run_does_not_outlive_a_large_newer_one() {
        let size = Retention { max_bytes: Some(25), ..Retention::default() };
        assert_eq!(chosen(&[10, 100, 1], size), [1, 2]);
    }

    #[test]
    fn a_run_of_the_future_is_not_old() {
        let age = Retention { older_than: Some(Duration::from_secs(1)), ..Retention::default() };
        assert_eq!(choose(&runs(&[1]), age, NOW - 5000.0), [0_usize; 0]);
    }
}

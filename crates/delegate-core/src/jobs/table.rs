//! Whose a background program is, and how it stands: a pure machine. Times are arguments. [`super`] starts and
//! ends processes.

use std::collections::BTreeMap;

use delegate_protocol::job::{COMMAND_CHARS, HAND_OFFS, JOBS, Job, PURPOSE_CHARS, TAIL_CHARS};
use ownership::ExitStatus;

use crate::file_state::registry::Who;

/// Jobs that have ended and are kept; the oldest go.
pub const FINISHED: usize = 64;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// It is being started.
    Starting,
    Running,
    /// How it ended, and after which time in milliseconds. Whether its owner was told.
    Ended(ExitStatus, u64, bool),
}

#[derive(Debug)]
struct Row {
    owner: Who,
    /// Who handed it over, and what for.
    handed: Option<(Who, String)>,
    command: String,
    /// It lives on, for this reason, and is this one's when its owner ends.
    persist: Option<(String, Who)>,
    pid: Option<u32>,
    since: u64,
    state: State,
}

impl Row {
    const fn runs(&self) -> bool {
        !matches!(self.state, State::Ended(..))
    }
}

/// The jobs of one tree.
#[derive(Debug, Default)]
pub struct Table {
    rows: BTreeMap<u64, Row>,
    last: u64,
}

/// One sentence of a bounded length.
fn sentence(text: &str, what: &str) -> Result<String, String> {
    let text = text.trim();
    if text.is_empty() || text.contains('\n') || text.chars().count() > PURPOSE_CHARS {
        return Err(format!("{what}: one sentence of at most {PURPOSE_CHARS} characters"));
    }
    Ok(text.to_owned())
}

/// What a child that ends leaves.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Left {
    /// Those that are its parent's now.
    pub handed: Vec<u64>,
    /// Those that run, and are to be ended.
    pub orphaned: Vec<u64>,
    /// Those that ended, which it never heard.
    pub unread: Vec<u64>,
}

impl Table {
    /// A place for one more.
    ///
    /// # Errors
    /// Why not, in a sentence.
    pub fn reserve(
        &mut self,
        owner: &Who,
        command: &[String],
        persist: Option<(&str, &Who)>,
        now: u64,
    ) -> Result<u64, String> {
        if command.first().is_none_or(String::is_empty) {
            return Err("a job needs a program".to_owned());
        }
        if self.rows.values().filter(|row| row.runs()).count() >= JOBS {
            return Err(format!("{JOBS} jobs run in this tree, which is the most"));
        }
        let persist = match persist {
            Some((reason, parent)) => {
                let reason = sentence(reason, "a job that lives on needs its reason")?;
                self.check_hand_offs(owner, None)?;
                Some((reason, parent.clone()))
            }
            None => None,
        };
        self.last += 1;
        let row = Row {
            owner: owner.clone(),
            handed: None,
            command: command.join(" ").chars().take(COMMAND_CHARS).collect(),
            persist,
            pid: None,
            since: now,
            state: State::Starting,
        };
        self.rows.insert(self.last, row);
        Ok(self.last)
    }

    /// It runs. `false`: nobody wants it any more, and it is to be ended.
    #[must_use]
    pub fn started(&mut self, job: u64, pid: u32) -> bool {
        let Some(row) = self.rows.get_mut(&job) else { return false };
        row.pid = Some(pid);
        if row.state == State::Starting {
            row.state = State::Running;
        }
        true
    }

    /// It could not be started, or its owner has ended: nothing is known of it any more.
    pub fn forget(&mut self, job: u64) {
        self.rows.remove(&job);
    }

    /// It has ended. Told once; what is told later changes nothing.
    pub fn ended(&mut self, job: u64, status: ExitStatus, now: u64) {
        if let Some(row) = self.rows.get_mut(&job)
            && row.runs()
        {
            row.state = State::Ended(status, now.saturating_sub(row.since), false);
        }
        let ended: Vec<u64> =
            self.rows.iter().filter(|(_, row)| !row.runs()).map(|(job, _)| *job).collect();
        for oldest in ended.iter().take(ended.len().saturating_sub(FINISHED)) {
            self.rows.remove(oldest);
        }
    }

    /// Whether it is kept.
    #[must_use]
    pub fn knows(&self, job: u64) -> bool {
        self.rows.contains_key(&job)
    }

    /// Whether this agent has a job, or has handed one over.
    #[must_use]
    pub fn has_any(&self, who: &Who) -> bool {
        let given = |row: &Row| row.handed.as_ref().is_some_and(|(by, _)| by == who);
        self.rows.values().any(|row| row.owner == *who || given(row))
    }

    /// Whether this agent has such a job.
    #[must_use]
    pub fn is_of(&self, who: &Who, job: u64) -> bool {
        self.rows.get(&job).is_some_and(|row| row.owner == *who)
    }

    /// Whether it has ended, or is not known.
    #[must_use]
    pub fn is_over(&self, job: u64) -> bool {
        self.rows.get(&job).is_none_or(|row| !row.runs())
    }

    /// Makes it `parent`'s. It must be one that runs, of the one who gives it, who gives [`HAND_OFFS`] at most.
    ///
    /// # Errors
    /// Why not, in a sentence.
    pub fn hand_off(
        &mut self,
        who: &Who,
        job: u64,
        purpose: &str,
        parent: &Who,
    ) -> Result<(), String> {
        let row = self.rows.get(&job).filter(|row| row.owner == *who);
        let row = row.ok_or_else(|| format!("job {job} is not yours"))?;
        if row.state != State::Running {
            return Err(format!("job {job} does not run"));
        }
        let purpose = sentence(purpose, "a hand-over needs its purpose")?;
        self.check_hand_offs(who, Some(job))?;
        if let Some(row) = self.rows.get_mut(&job) {
            row.handed = Some((who.clone(), purpose));
            row.owner = parent.clone();
        }
        Ok(())
    }

    /// Whether one more may be given by this agent: besides those that it has given, those that it has and that live on.
    fn check_hand_offs(&self, who: &Who, except: Option<u64>) -> Result<(), String> {
        let given = |row: &Row| row.handed.as_ref().is_some_and(|(by, _)| by == who);
        let lives_on = |row: &Row| row.owner == *who && row.persist.is_some() && row.runs();
        let others = self.rows.iter().filter(|(job, _)| Some(**job) != except);
        if others.filter(|(_, row)| given(row) || lives_on(row)).count() >= HAND_OFFS {
            return Err(format!("{HAND_OFFS} jobs were handed over, which is the most"));
        }
        Ok(())
    }

    /// A child ends. What lives on is its parent's from here on.
    #[must_use]
    pub fn leave(&mut self, who: &Who) -> Left {
        let mut left = Left::default();
        for (job, row) in &mut self.rows {
            if row.owner == *who
                && row.state == State::Running
                && let Some((reason, parent)) = &row.persist
            {
                row.handed = Some((who.clone(), reason.clone()));
                row.owner = parent.clone();
                left.handed.push(*job);
            } else if row.owner == *who {
                match row.state {
                    State::Starting | State::Running => left.orphaned.push(*job),
                    State::Ended(_, _, false) => left.unread.push(*job),
                    State::Ended(_, _, true) => {}
                }
            } else if row.handed.as_ref().is_some_and(|(by, _)| by == who) {
                left.handed.push(*job);
            }
        }
        left
    }

    /// Forgets what is still this child's.
    pub fn forget_all(&mut self, who: &Who) {
        self.rows.retain(|_, row| row.owner != *who);
    }

    /// How a job stands. An end counts as read when its owner is told.
    #[must_use]
    pub fn show(&mut self, job: u64, tail: &str, now: u64, told: bool) -> Option<Job> {
        let row = self.rows.get_mut(&job)?;
        let (exit_code, signal, ran) = match &mut row.state {
            State::Starting | State::Running => (None, None, now.saturating_sub(row.since)),
            State::Ended(status, ran, read) => {
                *read |= told;
                match *status {
                    ExitStatus::Code(code) => (Some(code), None, *ran),
                    ExitStatus::Signal { signal, .. } => (None, Some(signal), *ran),
                    ExitStatus::Unknown => (None, None, *ran),
                }
            }
        };
        let skip = tail.chars().count().saturating_sub(TAIL_CHARS);
        Some(Job {
            id: job,
            command: row.command.clone(),
            pid: row.pid,
            ended: !row.runs(),
            exit_code,
            signal,
            seconds: std::time::Duration::from_millis(ran).as_secs_f64(),
            purpose: row.handed.as_ref().map(|(_, purpose)| purpose.clone()),
            tail: tail.chars().skip(skip).collect(),
            persists: None,
        })
    }

    /// The jobs of an agent, oldest first.
    #[must_use]
    pub fn of(&self, who: &Who) -> Vec<u64> {
        self.rows.iter().filter(|(_, row)| row.owner == *who).map(|(job, _)| *job).collect()
    }
}

#[cfg(test)]
#[path = "table_tests.rs"]
mod tests;

//! [`Jobs`]: background programs of an agent. Its parent starts and holds them, so that one can be handed over; the
//! others end with this child, however it ends ([`delegate_protocol::job`]).

use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use delegate_protocol::job::{Job, JobAnswer, JobQuestion, JobSpec};
use delegate_protocol::{Answer, Question};

use crate::agent::AskError;
use crate::asks::Until;
use crate::session::Desk;

/// The jobs of one child. From [`crate::Session::jobs`]; clones may be used on any thread.
#[derive(Debug, Clone)]
pub struct Jobs {
    desk: Arc<Desk>,
}

/// A program to be started in the background.
#[derive(Debug, Clone)]
#[must_use = "nothing runs before start"]
pub struct NewJob {
    jobs: Jobs,
    spec: JobSpec,
}

impl NewJob {
    /// Its working directory. Default: the task's.
    pub fn dir(mut self, dir: impl Into<PathBuf>) -> Self {
        self.spec.cwd = Some(dir.into());
        self
    }

    /// A variable on top of the parent's environment.
    pub fn env(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.spec.env.push((name.into(), value.into()));
        self
    }

    /// It lives on when this child ends, and when its parent does, in whatever way: outside of everything that ends with
    /// them, with this reason written down, and a log. It counts among the 3 that a child may hand over, and is the
    /// parent's when the child ends. `reason` is one sentence.
    pub fn persist_on_release(mut self, reason: impl Into<String>) -> Self {
        self.spec.persist = Some(reason.into());
        self
    }

    /// Starts it; returns when it was executed.
    ///
    /// # Errors
    /// [`AskError`]: it does not run, and why.
    pub fn start(self) -> Result<Job, AskError> {
        self.jobs.one(JobQuestion::Start(self.spec))
    }
}

impl Jobs {
    pub(crate) const fn new(desk: Arc<Desk>) -> Self {
        Self { desk }
    }

    /// A program and its arguments, to be started in the background.
    pub fn command<S: Into<OsString>>(&self, command: impl IntoIterator<Item = S>) -> NewJob {
        let text = |word: S| word.into().to_string_lossy().into_owned();
        let command = command.into_iter().map(text).collect();
        NewJob {
            jobs: self.clone(),
            spec: JobSpec { command, cwd: None, env: Vec::new(), persist: None },
        }
    }

    /// Those of this child, oldest first.
    ///
    /// # Errors
    /// [`AskError`].
    pub fn list(&self) -> Result<Vec<Job>, AskError> {
        match self.ask(JobQuestion::List)? {
            JobAnswer::Jobs(jobs) => Ok(jobs),
            JobAnswer::Job(job) => Ok(vec![job]),
        }
    }

    /// Waits for its end, and tells how it stands by then. An end that is told here is not unread in the entry.
    ///
    /// # Errors
    /// [`AskError`]: it is no job of this child, or the child is to stop meanwhile.
    pub fn wait(&self, job: u64, at_most: Duration) -> Result<Job, AskError> {
        let wait_ms = u64::try_from(at_most.as_millis()).unwrap_or(u64::MAX);
        self.one(JobQuestion::Wait { job, wait_ms })
    }

    /// Ends it and all that it started: TERM, 3 s, KILL. Returns at once; see [`Jobs::wait`].
    ///
    /// # Errors
    /// [`AskError`]: it is no job of this child.
    pub fn end(&self, job: u64) -> Result<Job, AskError> {
        self.one(JobQuestion::End { job })
    }

    /// Makes it the parent's, where it lives on when this child ends. It must run; at most 3 of a child. `purpose`
    /// is one sentence.
    ///
    /// # Errors
    /// [`AskError`]: why not.
    pub fn hand_off(&self, job: u64, purpose: impl Into<String>) -> Result<Job, AskError> {
        self.one(JobQuestion::HandOff { job, purpose: purpose.into() })
    }

    fn one(&self, question: JobQuestion) -> Result<Job, AskError> {
        match self.ask(question)? {
            JobAnswer::Job(job) => Ok(job),
            JobAnswer::Jobs(_) => {
                Err(AskError::Refused("the parent has answered another question".to_owned()))
            }
        }
    }

    fn ask(&self, question: JobQuestion) -> Result<JobAnswer, AskError> {
        // One that unwinds may still end or hand over what it has.
        let waits = matches!(question, JobQuestion::Wait { .. } | JobQuestion::Start(_));
        let stops = self.desk.token.is_raised() && !waits;
        let until = if stops { Until::ParentGone } else { Until::Interrupt };
        let answer = self.desk.ask(Question::Job(question), until)?;
        if let Answer::Job(answer) = answer { Ok(answer) } else { Err(AskError::of(answer)) }
    }
}

//! What a user writes: [`Agent`], and the ways in which a run can fail.

use std::fmt;

use delegate_protocol::Answer;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::session::Session;

/// Something that carries out a task. One object per child.
///
/// `run` blocks on purpose: a worker needs no runtime.
pub trait Agent: Send + 'static {
    /// The name in specs and batch files.
    const NAME: &'static str;
    /// Parameters; a map only on the wire.
    type Params: Serialize + DeserializeOwned;
    /// The answer. A text (`String`, or [`crate::LongText`] when it may be very large) becomes the
    /// summary as it is; anything else becomes JSON.
    type Answer: Serialize + DeserializeOwned + 'static;
    /// Whether one object of it may carry several tasks, one after the other, in one process: what a task leaves in the
    /// memory of the process (in this object, in statics) must be nothing to the next. Then a pool of workers may use a
    /// worker again (`pool.max_uses`), as long as each task leaves the rest of the process as it was.
    const REUSABLE: bool = false;

    /// Does what is costly and the same for every task: loads a model, reads an index, builds a client. Called
    /// once on each object, before [`Agent::run`].
    ///
    /// Where workers are copies of a template (`launcher: zygote` or `pool`), it runs once, in the template, and
    /// each child gets an object that was prepared already. So it must not start a thread that is to live on (a copy
    /// has none of them; such a template is not used), and what it holds is what every child begins with: an open
    /// connection would be shared by all of them.
    ///
    /// # Errors
    /// Any [`Failure`]: that of the child whose object it was to be.
    fn prepare(&mut self) -> Result<(), Failure> {
        Ok(())
    }

    /// Carries out one task.
    ///
    /// # Errors
    /// Any [`Failure`]; an interrupt unwinds through `?` from [`Session::checkpoint`].
    fn run(&mut self, params: Self::Params, session: &mut Session)
    -> Result<Self::Answer, Failure>;

    /// Whether it takes several prompts, one after another, in a session (`Delegator::session`): it has
    /// [`Agent::turn`] then. A session of an agent that does not is refused before anything starts.
    const TAKES_TURNS: bool = false;

    /// A session begins: what is the same for all of its turns. Called once on each object, before the first
    /// [`Agent::turn`], also on that of a worker that takes the place of one that was lost: what it needs to know of
    /// earlier turns is in [`Session::history`].
    ///
    /// # Errors
    /// Any [`Failure`]: the worker ends, and counts as lost.
    fn open(&mut self, params: Self::Params, session: &mut Session) -> Result<(), Failure> {
        drop(params);
        _ = session;
        Ok(())
    }

    /// Carries out one turn of a session. `prompt` is what is asked now; the task's `goal` is what the session is
    /// for. A stop of the turn unwinds through `?` from [`Session::checkpoint`], as an interrupt of the child does,
    /// and the next turn begins as if nothing had been. A panic ends the worker.
    ///
    /// ```
    /// use delegate_child::{Agent, Failure, Session};
    ///
    /// #[derive(Default)]
    /// struct Count(usize);
    ///
    /// impl Agent for Count {
    ///     const NAME: &'static str = "count";
    ///     type Params = ();
    ///     type Answer = String;
    ///
    ///     fn run(&mut self, (): (), session: &mut Session) -> Result<String, Failure> {
    ///         let goal = session.spec().goal.clone();
    ///         self.turn(&goal, session)
    ///     }
    ///
    ///     const TAKES_TURNS: bool = true;
    ///
    ///     fn open(&mut self, (): (), session: &mut Session) -> Result<(), Failure> {
    ///         self.0 = session.history()?.len(); // not empty in a worker that replaces another
    ///         Ok(())
    ///     }
    ///
    ///     fn turn(&mut self, prompt: &str, session: &mut Session) -> Result<String, Failure> {
    ///         session.checkpoint()?;
    ///         self.0 += 1;
    ///         Ok(format!("{}: {prompt}", self.0))
    ///     }
    /// }
    /// ```
    ///
    /// # Errors
    /// Any [`Failure`]: the turn has failed, and the next one may come.
    fn turn(&mut self, prompt: &str, session: &mut Session) -> Result<Self::Answer, Failure> {
        _ = (prompt, session);
        Err(Failure::new(format!("agent `{}` takes no turns", Self::NAME)))
    }

    /// Something that the agent holds has changed while it waited for a prompt: another thread of it rang
    /// ([`Session::bell`]). An error ends the worker, which costs no prompt: the next one goes to the worker that takes its
    /// place.
    ///
    /// # Errors
    /// Any [`Failure`]: it is of no use any more.
    fn between_turns(&mut self, session: &mut Session) -> Result<(), Failure> {
        _ = session;
        Ok(())
    }

    /// Answers once more, since the answer of [`Agent::run`] does not meet the task's `output_schema`;
    /// `errors` says why ([`crate::schema::told_again`] makes a prompt of it). Asked at most once, and
    /// not when the answer was empty or the child is to stop. `None`: it has no second turn, and the
    /// answer stays.
    ///
    /// ```
    /// use delegate_child::{Agent, Failure, Session, schema};
    ///
    /// /// Talks to a model; here it learns fast.
    /// #[derive(Default)]
    /// struct Model(Vec<String>);
    ///
    /// impl Model {
    ///     fn ask(&mut self, prompt: String) -> String {
    ///         self.0.push(prompt);
    ///         if self.0.len() == 1 { "n is 3".into() } else { r#"{"n": 3}"#.into() }
    ///     }
    /// }
    ///
    /// impl Agent for Model {
    ///     const NAME: &'static str = "model";
    ///     type Params = ();
    ///     type Answer = String;
    ///
    ///     fn run(&mut self, (): (), session: &mut Session) -> Result<String, Failure> {
    ///         let mut prompt = session.spec().goal.clone();
    ///         if let Some(contract) = session.answer_contract() {
    ///             prompt = format!("{prompt}\n\n{contract}");
    ///         }
    ///         Ok(self.ask(prompt))
    ///     }
    ///
    ///     fn answer_again(
    ///         &mut self,
    ///         errors: &[String],
    ///         _session: &mut Session,
    ///     ) -> Option<Result<String, Failure>> {
    ///         Some(Ok(self.ask(schema::told_again(errors))))
    ///     }
    /// }
    /// ```
    ///
    /// # Errors
    /// As of [`Agent::run`]; the first answer stays then.
    fn answer_again(
        &mut self,
        errors: &[String],
        session: &mut Session,
    ) -> Option<Result<Self::Answer, Failure>> {
        _ = (errors, session);
        None
    }
}

/// The child was asked to stop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Interrupted;

impl fmt::Display for Interrupted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("interrupted")
    }
}

impl std::error::Error for Interrupted {}

/// Why a parent's answer is not there.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum AskError {
    /// The child was asked to stop, or its parent is gone.
    Interrupted,
    /// The parent does not grant it, and says why.
    Refused(String),
}

impl AskError {
    /// What an answer of another kind than expected comes to.
    pub(crate) fn of(answer: Answer) -> Self {
        match answer {
            Answer::Refused { reason } => Self::Refused(reason),
            Answer::TimeLeft { .. }
            | Answer::File(_)
            | Answer::Job(_)
            | Answer::Key(_)
            | Answer::Turn(_)
            | Answer::Delegated(_)
            | Answer::Told(_)
            | Answer::Stopping => {
                Self::Refused("the parent has answered another question".to_owned())
            }
        }
    }
}

impl fmt::Display for AskError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Interrupted => Interrupted.fmt(f),
            Self::Refused(reason) => f.write_str(reason),
        }
    }
}

impl std::error::Error for AskError {}

impl From<Interrupted> for AskError {
    fn from(_: Interrupted) -> Self {
        Self::Interrupted
    }
}

impl From<AskError> for Failure {
    fn from(error: AskError) -> Self {
        match error {
            AskError::Interrupted => Self::Interrupted,
            AskError::Refused(reason) => Self::new(reason),
        }
    }
}

/// Why a run has no answer.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Failure {
    /// It unwound because it was asked to.
    Interrupted,
    /// It failed.
    Failed {
        /// What went wrong, for people.
        message: String,
        /// Classified cause, such as `rate_limit`.
        reason: Option<String>,
    },
    /// It failed, and so will whatever it is asked next: a session replaces its worker.
    Broken {
        /// What went wrong, for people.
        message: String,
    },
    /// The turn budget was used up; this is what there was.
    MaxIterations {
        /// The answer so far.
        partial: String,
    },
}

impl Failure {
    /// A failure with a message.
    pub fn new(message: impl Into<String>) -> Self {
        Self::Failed { message: message.into(), reason: None }
    }
}

impl From<Interrupted> for Failure {
    fn from(_: Interrupted) -> Self {
        Self::Interrupted
    }
}

impl<E: std::error::Error> From<E> for Failure
where
    E: NotInterrupted,
{
    fn from(error: E) -> Self {
        Self::new(error.to_string())
    }
}

/// Errors that become [`Failure::Failed`] through `?`. Implemented for those of the standard library
/// that agents meet.
pub trait NotInterrupted {}
impl NotInterrupted for std::io::Error {}
impl NotInterrupted for std::fmt::Error {}
impl NotInterrupted for std::num::ParseIntError {}
impl NotInterrupted for std::num::ParseFloatError {}
impl NotInterrupted for std::string::FromUtf8Error {}
impl NotInterrupted for serde_json::Error {}

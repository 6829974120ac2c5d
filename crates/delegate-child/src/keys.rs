//! Keys and calls of a child: the route that it uses now, the next key when one fails, and permits for
//! calls. The parent decides all of it; a child holds one key and never the pool. Part of [`Session`].

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use delegate_protocol::lease::{FAILURE_BYTES, Given};
use delegate_protocol::{
    Answer, ChildEvent, Fingerprint, KeyAnswer, KeyFailure, KeyQuestion, Note, Question, Routing,
};

use crate::agent::{AskError, Interrupted};
use crate::asks::Until;
use crate::session::{Desk, Session};
use crate::tail::clip;

/// Who waits longer than this for a key or a permit is said to be quiet on purpose.
const SHORT_WAIT: Duration = Duration::from_secs(1);

/// What to do after a key has failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Rotation {
    /// [`Session::route`] has the next key: try again.
    Next,
    /// No key works now; the first may again after this time. [`Session::await_key`] waits for it.
    Wait(Duration),
    /// There is no other key, and none will come back by itself; why, for people.
    Nothing(String),
}

/// A call that may be made. It is over when this is dropped.
#[must_use = "the call is over when the permit is dropped"]
pub struct Permit {
    desk: Arc<Desk>,
    number: u64,
    refused: Option<String>,
}

impl fmt::Debug for Permit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Permit").field("number", &self.number).finish_non_exhaustive()
    }
}

impl Permit {
    /// The provider refused the call for its rate (429, 503), and said when to come back (the value of
    /// `Retry-After`, or a text that holds a time), or nothing: until then nobody of the tree calls it.
    /// Where the refusal is about the key and not about everybody, [`Session::rotate`] tells that instead.
    pub fn refused(mut self, retry_after: Option<&str>) {
        self.refused = Some(clip(retry_after.unwrap_or_default(), FAILURE_BYTES).to_owned());
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        let refused = self.refused.take();
        self.desk.tell(Question::Key(KeyQuestion::GiveBack { permit: self.number, refused }));
    }
}

/// Keys and calls.
impl Session {
    /// The route that this child uses now: that of its task, with the key that it was given last.
    #[must_use]
    pub fn route(&self) -> &Routing {
        &self.route
    }

    /// Says that a call with the key of [`Session::route`] failed, and gets the next one. Many children may
    /// say so of one key: it is one failure. Not counted as a retry of anything.
    ///
    /// ```no_run
    /// # use delegate_child::{Failure, Session, keys::Rotation};
    /// # use delegate_protocol::{KeyFailure, Routing};
    /// # struct Reply { status: u16, retry_after: Option<String>, text: String }
    /// # fn call(route: &Routing) -> std::io::Result<Reply> { unimplemented!() }
    /// fn ask_model(session: &mut Session) -> Result<String, Failure> {
    ///     loop {
    ///         let permit = session.permit()?;
    ///         let reply = call(session.route())?;
    ///         if reply.status < 400 {
    ///             return Ok(reply.text);
    ///         }
    ///         let failure = KeyFailure { reset: reply.retry_after, ..KeyFailure::status(reply.status) };
    ///         // Told before the call is over: nobody begins another one with this key in between.
    ///         let rotation = session.rotate(failure)?;
    ///         drop(permit);
    ///         match rotation {
    ///             Rotation::Next => {}
    ///             Rotation::Wait(_) => session.await_key()?,
    ///             Rotation::Nothing(why) => return Err(Failure::new(why)),
    ///         }
    ///     }
    /// }
    /// ```
    ///
    /// # Errors
    /// [`AskError::Interrupted`], or the parent did not decide.
    pub fn rotate(&mut self, failure: KeyFailure) -> Result<Rotation, AskError> {
        let short = |text: Option<String>| text.map(|text| clip(&text, FAILURE_BYTES).to_owned());
        let KeyFailure { status, reason, message, reset } = failure;
        let (reason, message, reset) = (short(reason), short(message), short(reset));
        let failure = KeyFailure { status, reason, message, reset };
        let fingerprint = self.route.api_key.as_ref().map(Fingerprint::of);
        self.content("a key was rotated");
        match self.ask_key(KeyQuestion::Rotate { fingerprint, failure })? {
            KeyAnswer::Key(given) => {
                self.use_key(given);
                Ok(Rotation::Next)
            }
            KeyAnswer::Wait { ms } => Ok(Rotation::Wait(Duration::from_millis(ms))),
            KeyAnswer::NoKey { why } => Ok(Rotation::Nothing(why)),
            KeyAnswer::Permit { .. } | KeyAnswer::Noted => Err(unexpected()),
        }
    }

    /// Waits until there is a key; [`Session::route`] has it then. Meanwhile this child counts as quiet on
    /// purpose.
    ///
    /// # Errors
    /// [`AskError::Interrupted`]; or refused: there is no key, and none will come back by itself.
    pub fn await_key(&mut self) -> Result<(), AskError> {
        match self.ask_key(KeyQuestion::Await)? {
            KeyAnswer::Key(given) => {
                self.use_key(given);
                Ok(())
            }
            KeyAnswer::NoKey { why } => Err(AskError::Refused(why)),
            KeyAnswer::Wait { .. } | KeyAnswer::Permit { .. } | KeyAnswer::Noted => {
                Err(unexpected())
            }
        }
    }

    /// Waits until a call may be made: there is room at the provider (`provider_limits`), nobody was
    /// refused there a moment ago, and there is a key. Where the key of this child has failed elsewhere
    /// meanwhile, [`Session::route`] has another one then.
    ///
    /// # Errors
    /// [`AskError::Interrupted`]; or refused: there is no key, and none will come back by itself.
    pub fn permit(&mut self) -> Result<Permit, AskError> {
        match self.ask_key(KeyQuestion::Permit)? {
            KeyAnswer::Permit { permit, key } => {
                if let Some(given) = key {
                    self.use_key(given);
                }
                Ok(Permit { desk: Arc::clone(&self.desk), number: permit, refused: None })
            }
            KeyAnswer::NoKey { why } => Err(AskError::Refused(why)),
            KeyAnswer::Wait { .. } | KeyAnswer::Key(_) | KeyAnswer::Noted => Err(unexpected()),
        }
    }

    fn use_key(&mut self, given: Given) {
        let Given { api_key, base_url } = given;
        self.route.api_key = Some(api_key);
        if base_url.is_some() {
            self.route.base_url = base_url;
        }
    }

    fn ask_key(&mut self, question: KeyQuestion) -> Result<KeyAnswer, AskError> {
        let until = Until::Interrupt;
        let asks = &self.desk.mail.asks;
        let number = asks.ask(Question::Key(question), &self.desk.token, until);
        let number = number.ok_or(Interrupted)?;
        self.desk.outbox.poke();
        let is_long = !asks.is_over_within(number, SHORT_WAIT, &self.desk.token, until);
        if is_long {
            self.put(ChildEvent::Note(Note::Channel { reports: false }));
        }
        let answer = self.desk.mail.asks.wait(number, &self.desk.token, until);
        if is_long {
            self.put(ChildEvent::Note(Note::Channel { reports: true }));
            self.content("it was its turn");
        }
        let answer = answer.ok_or(Interrupted)?;
        if let Answer::Key(answer) = answer { Ok(answer) } else { Err(AskError::of(answer)) }
    }
}

fn unexpected() -> AskError {
    AskError::Refused("the parent has answered another question".to_owned())
}

//! Agents by name. `serve` looks them up; a program of a user adds its own.

use std::any::Any;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use delegate_protocol::outcome::SchemaWord;
use delegate_protocol::{TaskSpec, Value};

use crate::agent::{Agent, Failure};
use crate::agents::command::Command;
use crate::answer::LongText;
use crate::second_turn;
use crate::session::Session;
use crate::tail::clip;

mod converse;

/// How an agent is made, and whether it takes turns.
#[derive(Clone)]
struct Factory {
    make: Arc<dyn Fn() -> Box<dyn Runner> + Send + Sync>,
    takes_turns: bool,
}

/// Which agents a worker (or a thread of the parent) can run.
#[derive(Clone, Default)]
pub struct Registry {
    factories: BTreeMap<String, Factory>,
    /// Those whose objects may run again.
    reusable: BTreeSet<&'static str>,
    /// One that was prepared before, for the first child of this name.
    ready: Arc<Mutex<Option<Ready>>>,
    /// This process may carry several tasks. Threads of a parent make an object for each.
    keeps: bool,
}

/// A prepared object, and the name of its agent.
type Ready = (String, Box<dyn Runner>);

impl fmt::Debug for Registry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.factories.keys()).finish()
    }
}

impl Registry {
    /// Only the agents that ship.
    #[must_use]
    pub fn shipped() -> Self {
        Self::default().with(Command::default)
    }

    /// Adds an agent; the factory makes one object per child. A later one of the same name replaces
    /// the earlier.
    #[must_use]
    pub fn with<A: Agent>(mut self, factory: impl Fn() -> A + Send + Sync + 'static) -> Self {
        if A::REUSABLE {
            self.reusable.insert(A::NAME);
        } else {
            self.reusable.remove(A::NAME);
        }
        let make = Arc::new(move || -> Box<dyn Runner> { Box::new(Typed(factory())) });
        let factory = Factory { make, takes_turns: A::TAKES_TURNS };
        self.factories.insert(A::NAME.to_owned(), factory);
        self
    }

    /// Names, sorted.
    #[must_use]
    pub fn names(&self) -> Vec<String> {
        self.factories.keys().cloned().collect()
    }

    /// Whether there is an agent of this name.
    #[must_use]
    pub fn contains(&self, name: &str) -> bool {
        self.factories.contains_key(name)
    }

    /// Whether objects of this agent may carry several tasks ([`Agent::REUSABLE`]).
    #[cfg(target_os = "linux")]
    pub(crate) fn is_reusable(&self, name: &str) -> bool {
        self.reusable.contains(name)
    }

    /// Whether the agent of this name takes several prompts ([`Agent::TAKES_TURNS`]).
    #[must_use]
    pub fn takes_turns(&self, name: &str) -> bool {
        self.factories.get(name).is_some_and(|factory| factory.takes_turns)
    }

    /// Makes an object of this agent and prepares it, for the next child of this process that names it.
    ///
    /// # Errors
    /// As [`Agent::prepare`]; also when there is no such agent.
    #[cfg(target_os = "linux")]
    pub(crate) fn prepare(&self, name: &str) -> Result<(), Failure> {
        let runner = self.make(name)?;
        *self.ready.lock().unwrap_or_else(PoisonError::into_inner) =
            Some((name.to_owned(), runner));
        Ok(())
    }

    /// For a process that may carry several tasks.
    #[cfg(target_os = "linux")]
    pub(crate) fn keeping(&self) -> Self {
        Self { keeps: true, ..self.clone() }
    }

    fn make(&self, name: &str) -> Result<Box<dyn Runner>, Failure> {
        let Some(factory) = self.factories.get(name) else {
            let (name, known) = (clip(name, 256), self.names().join(", "));
            return Err(Failure::new(format!("there is no agent `{name}` here; known: {known}")));
        };
        let mut runner = (factory.make)();
        runner.prepare()?;
        Ok(runner)
    }

    fn take_ready(&self, name: &str) -> Option<Box<dyn Runner>> {
        let mut ready = self.ready.lock().unwrap_or_else(PoisonError::into_inner);
        ready.take_if(|(ready, _)| ready == name).map(|(_, runner)| runner)
    }

    /// Keeps one that may run again, in a process that may have another task for it.
    fn keep(&self, name: &str, runner: Box<dyn Runner>) {
        if self.keeps && self.reusable.contains(name) {
            *self.ready.lock().unwrap_or_else(PoisonError::into_inner) =
                Some((name.to_owned(), runner));
        }
    }

    /// Makes one object of the agent that the task names, unless one is prepared, and runs it.
    pub(crate) fn run(&self, session: &mut Session) -> Result<Reply, Failure> {
        let spec = session.shared_spec();
        if spec.in_turns && self.contains(&spec.agent) && !self.takes_turns(&spec.agent) {
            return Err(converse::refused(&spec.agent));
        }
        let mut runner = match self.take_ready(&spec.agent) {
            Some(runner) => runner,
            None => self.make(&spec.agent)?,
        };
        if spec.in_turns {
            return converse::carry(&mut *runner, &spec, session);
        }
        let reply = runner.run(&spec.params, session)?;
        let reply = met(&mut *runner, &spec, reply, session);
        self.keep(&spec.agent, runner);
        Ok(reply)
    }
}

/// The answer that counts, with the word about its schema, if the task has one.
fn met(runner: &mut dyn Runner, spec: &TaskSpec, reply: Reply, session: &mut Session) -> Reply {
    let Some(schema) = &spec.output_schema else { return reply };
    let again = |errors: &[String], session: &mut Session| runner.again(errors, session);
    let (answer, word) = second_turn::meet(schema, reply.into(), session, again);
    Reply { text: answer.text, is_json: answer.is_json, schema: Some(word) }
}

/// An answer in the form that crosses the line.
#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) text: LongText,
    pub(crate) is_json: bool,
    /// How it meets the task's schema, if there is one.
    pub(crate) schema: Option<SchemaWord>,
}

impl From<Reply> for second_turn::Answer {
    fn from(Reply { text, is_json, schema: _ }: Reply) -> Self {
        Self { text, is_json }
    }
}

/// An [`Agent`] without its types.
trait Runner: Send {
    fn prepare(&mut self) -> Result<(), Failure>;

    fn run(&mut self, params: &Value, session: &mut Session) -> Result<Reply, Failure>;

    fn again(&mut self, errors: &[String], session: &mut Session) -> second_turn::Turn;

    fn open(&mut self, params: &Value, session: &mut Session) -> Result<(), Failure>;

    fn turn(&mut self, prompt: &str, session: &mut Session) -> Result<Reply, Failure>;

    fn between_turns(&mut self, session: &mut Session) -> Result<(), Failure>;
}

struct Typed<A>(A);

impl<A: Agent> Runner for Typed<A> {
    fn prepare(&mut self) -> Result<(), Failure> {
        self.0.prepare()
    }

    fn run(&mut self, params: &Value, session: &mut Session) -> Result<Reply, Failure> {
        reply(self.0.run(fitting::<A>(params)?, session)?)
    }

    fn open(&mut self, params: &Value, session: &mut Session) -> Result<(), Failure> {
        self.0.open(fitting::<A>(params)?, session)
    }

    fn turn(&mut self, prompt: &str, session: &mut Session) -> Result<Reply, Failure> {
        reply(self.0.turn(prompt, session)?)
    }

    fn between_turns(&mut self, session: &mut Session) -> Result<(), Failure> {
        self.0.between_turns(session)
    }

    fn again(&mut self, errors: &[String], session: &mut Session) -> second_turn::Turn {
        let answer = self.0.answer_again(errors, session)?;
        Some(answer.and_then(reply).map(Into::into))
    }
}

fn fitting<A: Agent>(params: &Value) -> Result<A::Params, Failure> {
    typed_params(params)
        .map_err(|error| Failure::new(format!("params do not fit agent `{}`: {error}", A::NAME)))
}

/// No params at all also stand for a map without entries.
fn typed_params<P: serde::de::DeserializeOwned>(
    params: &Value,
) -> Result<P, delegate_protocol::value::ValueError> {
    match params.to_typed() {
        Err(_) if *params == Value::Null => Value::Map(BTreeMap::new()).to_typed(),
        result => result,
    }
}

/// Texts as they are, without a copy; everything else as JSON.
fn reply<T: serde::Serialize + 'static>(answer: T) -> Result<Reply, Failure> {
    let mut answer: Box<dyn Any> = Box::new(answer);
    if let Some(text) = answer.downcast_mut::<String>() {
        return Ok(Reply { text: std::mem::take(text).into(), is_json: false, schema: None });
    }
    if let Some(text) = answer.downcast_mut::<LongText>() {
        return Ok(Reply { text: std::mem::take(text), is_json: false, schema: None });
    }
    let json = answer.downcast_ref::<T>().map(serde_json::to_string).transpose();
    match json {
        Ok(json) => {
            Ok(Reply { text: json.unwrap_or_default().into(), is_json: true, schema: None })
        }
        Err(error) => Err(Failure::new(format!("the answer cannot be written as JSON: {error}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parts(reply: Reply) -> (String, bool) {
        (reply.text.into_text().unwrap(), reply.is_json)
    }

    #[test]
    fn only_texts_go_as_they_are() {
        assert_eq!(parts(reply("a\"b".to_owned()).unwrap()), ("a\"b".to_owned(), false));
        assert_eq!(parts(reply(LongText::from("x".to_owned())).unwrap()), ("x".to_owned(), false));
        assert_eq!(parts(reply(3_u64).unwrap()), ("3".to_owned(), true));
        assert_eq!(parts(reply(Some("x")).unwrap()), ("\"x\"".to_owned(), true));
        let map = std::collections::HashMap::from([(vec![1_u8], 1)]);
        assert!(matches!(reply(map), Err(Failure::Failed { .. })));
    }

    #[test]
    fn no_params_are_a_map_without_entries() {
        #[derive(Debug, serde::Deserialize)]
        struct Params {
            from: u64,
        }
        assert!(typed_params::<()>(&Value::Null).is_ok());
        let text = typed_params::<Params>(&Value::Null).unwrap_err().to_string();
        assert!(text.contains("missing field `from`"), "{text}");
        let map = Value::Map(BTreeMap::from([("from".to_owned(), Value::Int(3))]));
        assert_eq!(typed_params::<Params>(&map).unwrap().from, 3);
    }
}

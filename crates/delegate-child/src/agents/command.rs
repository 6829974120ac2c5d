//! The agent `command`: runs one program per task.
//!
//! The goal goes to the program's stdin, and to `DELEGATE_GOAL` while it is short; the `output_schema` to
//! `DELEGATE_OUTPUT_SCHEMA`. Lines of its
//! stdout are streamed as text; all of it without the last newline is the answer. Exit code 0 is
//! success, with or without output; anything else fails with the last of its stderr.
//!
//! The program is started through [`Session::owner`], so it ends with this child, and so does
//! everything that it starts. `pipes` moves the bytes, `lossy` makes text of them, `verdict`
//! puts the end into words. In a session one program takes all prompts, as lines of JSON: `talk`.

mod lossy;
mod pipes;
mod talk;
mod verdict;

use std::collections::BTreeMap;
use std::io::{self, PipeWriter, Write};
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;

use crossbeam_channel::{Receiver, bounded};
use ownership::spawn::{DEFAULT_GRACE, Spawn};
use ownership::{ChildEvent, Exit, Owned, Owner};
use rustix::io::ioctl_fionbio;
use serde::de::{DeserializeOwned, Error};
use serde::{Deserialize, Deserializer, Serialize};

use crate::agent::{Agent, Failure};
use crate::answer::LongText;
use crate::helper;
use crate::session::Session;

use self::pipes::Pipes;
use self::talk::Talk;

/// Goals up to here also go into [`GOAL_VARIABLE`]; the kernel takes 128 KiB per string
/// (man 2 execve).
pub const GOAL_IN_ENVIRONMENT: usize = 64 * 1024;

/// The variable with the goal.
pub const GOAL_VARIABLE: &str = "DELEGATE_GOAL";

/// The variable with the JSON Schema that the output must meet, while that is short.
pub const SCHEMA_VARIABLE: &str = "DELEGATE_OUTPUT_SCHEMA";

/// Runs a program.
#[derive(Debug, Default)]
pub struct Command {
    /// The program of a session.
    talk: Option<Talk>,
}

/// Which program, and how.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CommandParams {
    /// Program and arguments; the program by name or path.
    #[serde(default, deserialize_with = "argv")]
    pub argv: Vec<String>,
    /// Variables on top of the environment.
    #[serde(default, deserialize_with = "env")]
    pub env: BTreeMap<String, String>,
    /// Working directory; relative to the task's.
    #[serde(default, deserialize_with = "cwd", skip_serializing_if = "Option::is_none")]
    pub cwd: Option<PathBuf>,
}

fn argv<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<String>, D::Error> {
    named(deserializer, "params.argv must be a list of texts")
}

fn env<'de, D: Deserializer<'de>>(deserializer: D) -> Result<BTreeMap<String, String>, D::Error> {
    named(deserializer, "params.env must map names to texts")
}

fn cwd<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<PathBuf>, D::Error> {
    named(deserializer, "params.cwd must be a path")
}

/// MessagePack errors do not name the field.
fn named<'de, T: DeserializeOwned, D: Deserializer<'de>>(
    deserializer: D,
    rule: &str,
) -> Result<T, D::Error> {
    T::deserialize(deserializer).map_err(|error| D::Error::custom(format!("{rule}: {error}")))
}

impl Agent for Command {
    const NAME: &'static str = "command";
    type Params = CommandParams;
    type Answer = LongText;

    fn run(&mut self, params: CommandParams, session: &mut Session) -> Result<LongText, Failure> {
        session.checkpoint()?;
        // Whether a program that prints nothing gets on, nobody can tell.
        session.reports(false);
        let running = Running::start(params, session)?;
        let exit = running.follow(session)?;
        session.allow_empty_answer();
        exit
    }

    const TAKES_TURNS: bool = true;

    fn open(&mut self, params: CommandParams, session: &mut Session) -> Result<(), Failure> {
        self.talk = Some(Talk::start(params, session)?);
        Ok(())
    }

    fn turn(&mut self, prompt: &str, session: &mut Session) -> Result<LongText, Failure> {
        // Whether a program that prints nothing gets on, nobody can tell.
        session.reports(false);
        match &mut self.talk {
            Some(talk) => talk.turn(prompt, session).map(Into::into),
            None => Err(Failure::new("no program was started for this session")),
        }
    }

    /// The program has said something, or has ended.
    fn between_turns(&mut self, session: &mut Session) -> Result<(), Failure> {
        self.talk.as_mut().map_or(Ok(()), |talk| talk.hear_between_turns(session))
    }
}

/// A program that runs, and our ends of its pipes.
struct Running {
    program: String,
    owned: Owned,
    /// How it ended; disconnected when that will not become known.
    ended: Receiver<Exit>,
    pipes: Pipes,
}

impl Running {
    fn start(params: CommandParams, session: &Session) -> Result<Self, Failure> {
        let spec = session.spec();
        let (stdin, to_program) = io::pipe()?;
        let (from_stdout, stdout) = io::pipe()?;
        let (from_stderr, stderr) = io::pipe()?;
        let (woken, waker) = io::pipe()?;
        let (program, owner, spawn) = described(params, session)?;
        let spawn = spawn.fd(0, stdin.into()).fd(1, stdout.into()).fd(2, stderr.into());
        let waker = Arc::new(nonblocking(waker)?);
        let (owned, ended) =
            start(owner, spawn, &waker).map_err(|error| verdict::not_started(&program, &error))?;
        session.on_interrupt(move || wake(&waker));
        let pipes = Pipes::new(
            spec.goal.clone().into_bytes(),
            nonblocking(to_program)?,
            nonblocking(from_stdout)?,
            nonblocking(from_stderr)?,
            nonblocking(woken)?,
        );
        Ok(Self { program, owned, ended, pipes })
    }

    /// Moves bytes until the program has ended. The outer result is for ends that are no exit.
    fn follow(mut self, session: &mut Session) -> Result<Result<LongText, Failure>, Failure> {
        let mut ending = false;
        let exit = loop {
            if session.is_interrupted() && !ending {
                self.owned.end(DEFAULT_GRACE);
                ending = true;
            }
            match self.ended.try_recv() {
                Ok(exit) => break Some(exit),
                Err(crossbeam_channel::TryRecvError::Disconnected) => break None,
                Err(crossbeam_channel::TryRecvError::Empty) => {}
            }
            // An error drops `owned`, which ends the program.
            self.pipes.step(session)?;
        };
        // What is in the pipes now is all that counts: a grandchild may keep them open for ever.
        let (answer, stderr) = self.pipes.finish(session)?;
        if ending {
            return Err(Failure::Interrupted);
        }
        match verdict::of_exit(&self.program, exit.map(|exit| exit.status), &stderr) {
            // Whoever asked for the stop may have ended the program before we looked.
            Err(_) if session.is_interrupted() => Err(Failure::Interrupted),
            verdict => Ok(verdict.map(|()| answer)),
        }
    }
}

/// The program that is asked for, all but its pipes, and who starts it.
fn described(params: CommandParams, session: &Session) -> Result<(String, &Owner, Spawn), Failure> {
    let Some((program, args)) = params.argv.split_first() else {
        let text = "params.argv is empty: it must name the program to run and its arguments";
        return Err(Failure::new(text));
    };
    let Some(owner) = session.owner() else {
        return Err(Failure::new("no program can be started here: there is no supervisor"));
    };
    let spec = session.spec();
    let mut spawn = Spawn::new(program).args(args).purpose(format!("command {program}"));
    spawn = match &spec.goal {
        goal if goal.len() < GOAL_IN_ENVIRONMENT && !goal.contains('\0') => {
            spawn.env(GOAL_VARIABLE, goal)
        }
        _ => spawn.env_remove(GOAL_VARIABLE),
    };
    let schema = spec.output_schema.as_ref().map(serde_json::to_string).transpose()?;
    spawn = match schema {
        Some(schema) if schema.len() < GOAL_IN_ENVIRONMENT => spawn.env(SCHEMA_VARIABLE, schema),
        _ => spawn.env_remove(SCHEMA_VARIABLE),
    };
    spawn = match &spec.helpers {
        Some(address) => spawn.env(helper::VARIABLE, address),
        None => spawn.env_remove(helper::VARIABLE),
    };
    for (key, value) in &params.env {
        spawn = spawn.env(key, value);
    }
    let dir = match (&spec.cwd, params.cwd) {
        (Some(base), Some(dir)) => Some(base.join(dir)),
        (base, dir) => dir.or_else(|| base.clone()),
    };
    if let Some(dir) = dir {
        spawn = spawn.dir(dir);
    }
    Ok((program.clone(), owner, spawn))
}

/// Starts the program; its end is sent to the receiver, and the waker is written.
fn start(
    owner: &Owner,
    spawn: Spawn,
    waker: &Arc<PipeWriter>,
) -> Result<(Owned, Receiver<Exit>), ownership::SpawnError> {
    let (end, ended) = bounded(1);
    let (mut end, waker) = (Some(end), Arc::clone(waker));
    let owned = owner.spawn(spawn, move |event| {
        // Every event but an exit says that no exit comes (any more).
        let sender = end.take();
        if let (Some(sender), ChildEvent::Exited(exit)) = (sender, event)
            && sender.try_send(exit).is_err()
        {
            tracing::trace!("nobody waits for this program any more");
        }
        wake(&waker);
    })?;
    Ok((owned, ended))
}

/// A full pipe wakes as well as a fresh byte, and a closed one has nobody to wake.
fn wake(mut waker: &PipeWriter) {
    if let Err(error) = waker.write(&[0]) {
        tracing::trace!(%error, "the waker was not written");
    }
}

/// Only our end: the program's end is another open file description (man 7 pipe).
fn nonblocking<F: Into<OwnedFd> + From<OwnedFd>>(end: F) -> io::Result<F> {
    let end: OwnedFd = end.into();
    ioctl_fionbio(&end, true)?;
    Ok(F::from(end))
}

#[cfg(test)]
mod tests {
    use super::*;
    use delegate_protocol::Value;

    fn params(value: &serde_json::Value) -> Result<CommandParams, String> {
        Value::from_typed(value).unwrap().to_typed().map_err(|error| error.to_string())
    }

    #[test]
    fn params_that_do_not_fit_name_the_field() {
        let good = params(&serde_json::json!({"argv": ["ls", "-l"], "env": {"A": "1"}})).unwrap();
        assert_eq!((good.argv.len(), good.env["A"].as_str(), good.cwd), (2, "1", None));
        for (value, name) in [
            (serde_json::json!({"argv": "ls -l"}), "params.argv must be a list of texts"),
            (serde_json::json!({"argv": ["ls", 1]}), "params.argv must be a list of texts"),
            (serde_json::json!({"env": {"A": 1}}), "params.env must map names to texts"),
            (serde_json::json!({"cwd": 3}), "params.cwd must be a path"),
            (serde_json::json!({"arg": ["ls"]}), "unknown field `arg`"),
        ] {
            let error = params(&value).unwrap_err();
            assert!(error.contains(name), "{error}");
        }
        assert_eq!(params(&serde_json::json!({})), Ok(CommandParams::default()));
    }
}

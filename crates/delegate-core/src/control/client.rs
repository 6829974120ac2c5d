//! Asks delegators of this user over their control sockets; blocking, for the `delegate` command and for
//! programs without a runtime.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use delegate_protocol::id::MIN_PREFIX;
use serde_json::Value;

use super::operator::LiveRunInfo;
use super::place::{Name, Place, is_stopped};
use super::protocol::{Ask, ControlError, Request, SCHEMA};
use crate::run::LiveSession;

/// How long a delegator may take to answer at once.
const PATIENCE: Duration = Duration::from_secs(5);

/// Nobody answers at once on a busy machine.
const SHORTEST: Duration = Duration::from_millis(200);

/// Bytes of one line of a delegator: an event may carry 1 MiB of arguments, a list 10,000 children.
const LINE: u64 = 64 * 1024 * 1024;

/// A connection to one delegator.
#[derive(Debug)]
pub struct Client {
    stream: BufReader<UnixStream>,
    session: Option<String>,
    next: u64,
    /// Whose socket it is, as far as its number means something here.
    pid: Option<u32>,
    patience: Duration,
}

/// What an answer was, and who gave it.
#[derive(Debug)]
pub struct Called {
    /// The value of `ok`.
    pub value: Value,
    /// The connection, for [`Client::watched`].
    pub client: Client,
}

/// The answer to [`Ask::List`].
#[derive(serde::Deserialize)]
struct Running {
    runs: Vec<LiveRunInfo>,
    /// An earlier version tells none.
    #[serde(default)]
    sessions: Vec<LiveSession>,
}

/// A line of what is watched.
#[derive(Debug, Clone, PartialEq)]
pub enum Watched {
    /// An event, as it stands in events.jsonl.
    Event(Value),
    /// So many progress events were left out here: this side was too slow for them.
    Lost(u64),
    /// Nothing more comes.
    End(Value),
}

/// A connection to each delegator that runs. With a session only what belongs to that conversation
/// exists for it.
#[must_use]
pub fn clients(dir: &Path, session: Option<&str>) -> Vec<Client> {
    // Where nothing ever ran there is no directory.
    let Ok(place) = Place::open(dir) else { return Vec::new() };
    place.sweep();
    let connect = |name: &Name| {
        let stream = place.connect(name).ok()?;
        stream.set_write_timeout(Some(PATIENCE)).ok()?;
        let (stream, session) = (BufReader::new(stream), session.map(str::to_owned));
        Some(Client { stream, session, next: 1, pid: name.pid_here(), patience: PATIENCE })
    };
    place.names().iter().filter_map(connect).collect()
}

/// Asks the delegator that has what `id` names; `ask` makes the request from the id in full.
///
/// # Errors
/// No such run or child goes on, or what that delegator answered; one that does not answer may have it.
pub fn call(
    dir: &Path,
    session: Option<&str>,
    id: &str,
    ask: impl Fn(String) -> Ask,
) -> Result<Called, ControlError> {
    call_within(dir, session, id, None, ask)
}

/// The same, where nobody is waited for longer than `patience` (5 s at most) before it is known who is to be asked.
///
/// # Errors
/// Those of [`call`].
pub fn call_within(
    dir: &Path,
    session: Option<&str>,
    id: &str,
    patience: Option<Duration>,
    ask: impl Fn(String) -> Ask,
) -> Result<Called, ControlError> {
    let mut clients = clients(dir, session);
    let patience = patience.map_or(PATIENCE, |patience| patience.clamp(SHORTEST, PATIENCE));
    clients.iter_mut().for_each(|client| client.patience = patience);
    let mut silent = None;
    let (run, child) = id.split_once('/').map_or((id, None), |(run, child)| (run, Some(child)));
    if id.parse::<delegate_protocol::SubagentId>().is_ok() {
        for mut client in clients {
            match client.ask(ask(id.to_owned())) {
                Ok(value) => return Ok(Called { value, client }),
                Err(error) if error.code() == "not_found" => {}
                Err(error @ ControlError::Silent { .. }) => silent = Some(error),
                Err(ControlError::Gone(_)) => {}
                Err(error) => return Err(error),
            }
        }
        return Err(silent.unwrap_or_else(|| ControlError::NotFound(id.to_owned())));
    }
    let newest = matches!(run, "latest" | "-");
    let mut known = Vec::new();
    for (at, client) in clients.iter_mut().enumerate() {
        // One that ends meanwhile has nothing to say here; one that hangs may have it.
        let Running { runs, sessions } = match client.running() {
            Ok(running) => running,
            Err(error) => {
                if matches!(error, ControlError::Silent { .. }) {
                    silent = Some(error);
                }
                continue;
            }
        };
        known.extend(runs.into_iter().map(|run| (run.started_at, run.run_id.to_string(), at)));
        // The newest is that of runs.
        let sessions = sessions.into_iter().filter(|_| !newest);
        known.extend(sessions.map(|one| (one.started_at, one.session_id.to_string(), at)));
    }
    if !newest {
        known.retain(|(_, full, _)| run.len() >= MIN_PREFIX && full.starts_with(run));
    }
    known.sort_by(|one, two| one.0.total_cmp(&two.0));
    if known.len() > 1 && !newest {
        let found = known.into_iter().take(8).map(|(_, full, _)| full).collect();
        return Err(ControlError::Ambiguous { id: run.to_owned(), found });
    }
    let unknown = || silent.unwrap_or_else(|| ControlError::NotFound(id.to_owned()));
    let (_, full, at) = known.pop().ok_or_else(unknown)?;
    let full = child.map_or(full.clone(), |child| format!("{full}/{child}"));
    let mut client = clients.swap_remove(at);
    let value = client.ask(ask(full))?;
    Ok(Called { value, client })
}

impl Client {
    /// The runs of this delegator.
    ///
    /// # Errors
    /// It is gone, or what it answered.
    pub fn list(&mut self) -> Result<Vec<LiveRunInfo>, ControlError> {
        self.running().map(|running| running.runs)
    }

    /// The sessions of this delegator.
    ///
    /// # Errors
    /// As of [`Client::list`].
    pub fn sessions(&mut self) -> Result<Vec<LiveSession>, ControlError> {
        self.running().map(|running| running.sessions)
    }

    /// Both, of one moment.
    fn running(&mut self) -> Result<Running, ControlError> {
        let value = self.ask(Ask::List)?;
        serde_json::from_value(value).map_err(|error| gone(&error))
    }

    /// Asks, and waits for the answer: 5 s at most, or as long as was asked for.
    ///
    /// # Errors
    /// It is gone, or what it answered.
    pub fn ask(&mut self, ask: Ask) -> Result<Value, ControlError> {
        let patience = match &ask {
            Ask::Wait { seconds: None, .. } => None,
            Ask::Wait { seconds: Some(seconds), .. } => {
                Some(super::protocol::duration(*seconds)?.saturating_add(PATIENCE))
            }
            Ask::List
            | Ask::Steer { .. }
            | Ask::Stop { .. }
            | Ask::Pause { .. }
            | Ask::Resume { .. }
            | Ask::Extend { .. }
            | Ask::Watch { .. } => Some(self.patience),
        };
        let id = self.next;
        self.next += 1;
        let session = self.session.clone();
        let request = Request { schema: SCHEMA.to_owned(), id, session, ask };
        let mut line = serde_json::to_vec(&request).map_err(|error| gone(&error))?;
        line.push(b'\n');
        let stream = self.stream.get_mut();
        stream.set_read_timeout(patience).map_err(|error| gone(&error))?;
        stream.write_all(&line).map_err(|error| gone(&error))?;
        let mut answer = self.line()?;
        match answer.get_mut("ok") {
            Some(value) => Ok(value.take()),
            None => Err(refused(&answer)),
        }
    }

    /// The next line of what is watched ([`Ask::Watch`]); waits as long as it takes.
    ///
    /// # Errors
    /// It is gone.
    pub fn watched(&mut self) -> Result<Watched, ControlError> {
        self.stream.get_mut().set_read_timeout(None).map_err(|error| gone(&error))?;
        let mut line = self.line()?;
        if let Some(event) = line.get_mut("event") {
            return Ok(Watched::Event(event.take()));
        }
        if let Some(lost) = line.get("lost").and_then(Value::as_u64) {
            return Ok(Watched::Lost(lost));
        }
        match line.get_mut("end") {
            Some(end) => Ok(Watched::End(end.take())),
            None => Err(refused(&line)),
        }
    }

    fn line(&mut self) -> Result<Value, ControlError> {
        let mut line = Vec::new();
        let mut bounded = self.stream.by_ref().take(LINE);
        let read = bounded.read_until(b'\n', &mut line);
        read.map_err(|error| {
            if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) {
                let stopped = self.pid.is_some_and(is_stopped);
                ControlError::Silent { pid: self.pid, stopped }
            } else {
                gone(&error)
            }
        })?;
        if line.last() != Some(&b'\n') {
            return Err(gone(&"it closed the line"));
        }
        serde_json::from_slice(&line).map_err(|error| gone(&error))
    }
}

fn gone(error: &dyn std::fmt::Display) -> ControlError {
    ControlError::Gone(format!("the delegator does not answer: {error}"))
}

fn refused(answer: &Value) -> ControlError {
    let part = |key: &str| {
        let text = answer.get("error").and_then(|error| error.get(key)).and_then(Value::as_str);
        text.unwrap_or_default().to_owned()
    };
    ControlError::Other { code: part("code"), message: part("message") }
}

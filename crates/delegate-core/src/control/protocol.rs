//! What is asked and answered, one JSON object a line. Pure; `server` and `client` carry it.

use std::time::Duration;

use delegate_protocol::RunId;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::run::SteerError;

/// Name and version of the protocol, in every line. Within a version fields are only added.
pub const SCHEMA: &str = "delegate.control/1";

/// Bytes of one line of a client. The longest word that steers is 64 KiB, six times that when every
/// character of it must be escaped.
pub(crate) const LINE: usize = 512 * 1024;

/// The longest time that anything is extended or waited by, in seconds: a hundred years.
const LONGEST: f64 = 3_153_600_000.0;

/// What a client wants. An id is `RUN` (a prefix of 4 characters or more, `latest` or `-`), `RUN/N`,
/// `RUN/CHILD` or `CHILD`; of a session the id, or a prefix.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "verb", rename_all = "snake_case")]
#[non_exhaustive]
pub enum Ask {
    /// The runs, and their children that have a place.
    List,
    /// Say something to a child.
    Steer {
        /// A child; of a run with one task the run will do. Or a session.
        id: String,
        /// What to say.
        text: String,
    },
    /// Ask a run, a child or a session to unwind.
    Stop {
        /// Which.
        id: String,
        /// End it at once.
        #[serde(default)]
        now: bool,
    },
    /// Launch nothing more in a run; stop the processes and the clocks of a child.
    Pause {
        /// Which.
        id: String,
    },
    /// The opposite.
    Resume {
        /// Which.
        id: String,
    },
    /// More time, for a child or for each of a run.
    Extend {
        /// Which.
        id: String,
        /// Seconds.
        seconds: f64,
    },
    /// Answer when the run or the session has ended.
    Wait {
        /// Which.
        id: String,
        /// At most so long.
        #[serde(default)]
        seconds: Option<f64>,
    },
    /// The events of a run from now on.
    Watch {
        /// Which run.
        id: String,
    },
}

/// A line of a client.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Request {
    pub(crate) schema: String,
    /// Comes back in every line of the answer.
    pub(crate) id: u64,
    /// Only what belongs to this conversation exists.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) session: Option<String>,
    pub(crate) ask: Ask,
}

/// It was not done, and why.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ControlError {
    /// No such run or child goes on.
    #[error("no run or child `{0}` goes on here")]
    NotFound(String),
    /// A prefix that fits more than one run.
    #[error("`{id}` fits {} runs that go on: {}", found.len(), found.join(", "))]
    Ambiguous {
        /// What was asked for.
        id: String,
        /// Ids that fit.
        found: Vec<String>,
    },
    /// A child must be named.
    #[error("`{id}` has {tasks} tasks: name one, as {id}/0")]
    NeedsChild {
        /// What was asked for.
        id: String,
        /// Tasks of the run.
        tasks: usize,
    },
    /// A run must be named.
    #[error("`{0}` is a child: name its run")]
    NeedsRun(String),
    /// A session, where a run must be named.
    #[error("{}", of_session(id, *run))]
    Session {
        /// What was asked for.
        id: String,
        /// The run of its worker.
        run: Option<RunId>,
    },
    /// It was not accepted.
    #[error("not accepted: {0}")]
    Steer(#[from] SteerError),
    /// The time to wait is over.
    #[error("it has not ended in time")]
    Elapsed,
    /// How it ended is not known.
    #[error("how it ended is not known")]
    Unknown,
    /// A line that is not of the protocol.
    #[error("{0}")]
    BadRequest(String),
    /// Another version is asked for.
    #[error("this side speaks {SCHEMA}, not `{0}`")]
    Version(String),
    /// Too many clients.
    #[error("too many clients: try again")]
    Busy,
    /// The other side cannot be reached, or is gone.
    #[error("{0}")]
    Gone(String),
    /// A delegator that may be meant says nothing.
    #[error("{}", silent(*pid, *stopped))]
    Silent {
        /// Its process, where that is known.
        pid: Option<u32>,
        /// It stands still (SIGSTOP, SIGTSTP).
        stopped: bool,
    },
    /// A refusal that this side does not know.
    #[error("{message}")]
    Other {
        /// Its word.
        code: String,
        /// Its text.
        message: String,
    },
}

impl ControlError {
    /// The word for programs.
    #[must_use]
    pub fn code(&self) -> &str {
        match self {
            Self::NotFound(_) => "not_found",
            Self::Ambiguous { .. } => "ambiguous",
            Self::NeedsChild { .. } => "needs_child",
            Self::NeedsRun(_) | Self::Session { .. } => "needs_run",
            Self::Steer(SteerError::Ended) => "ended",
            Self::Steer(SteerError::NoSuchChild) => "not_found",
            Self::Steer(_) => "not_accepted",
            Self::Elapsed => "elapsed",
            Self::Unknown => "unknown_end",
            Self::BadRequest(_) => "bad_request",
            Self::Version(_) => "version",
            Self::Busy => "busy",
            Self::Gone(_) => "gone",
            Self::Silent { .. } => "silent",
            Self::Other { code, .. } => code,
        }
    }
}

fn of_session(id: &str, run: Option<RunId>) -> String {
    match run {
        Some(run) => format!(
            "`{id}` is a session, which can be stopped, steered and waited for: for anything else name the run of \
             its worker, {run}"
        ),
        None => format!("`{id}` is a session whose worker is being replaced: try again"),
    }
}

fn silent(pid: Option<u32>, stopped: bool) -> String {
    match pid {
        Some(pid) if stopped => format!(
            "whoever may run it does not answer: process {pid} is stopped; `kill -CONT {pid}` lets it go on"
        ),
        Some(pid) => format!("whoever may run it does not answer: process {pid}"),
        None => "whoever may run it does not answer".to_owned(),
    }
}

/// Seconds as a duration.
pub(crate) fn duration(seconds: f64) -> Result<Duration, ControlError> {
    let wrong = || ControlError::BadRequest(format!("{seconds} is not a number of seconds"));
    if seconds > LONGEST {
        return Err(wrong());
    }
    Duration::try_from_secs_f64(seconds).map_err(|_| wrong())
}

/// Reads a line of a client. With the error comes the id that it is about, as far as it can be read.
pub(crate) fn request(line: &[u8]) -> Result<Request, (u64, ControlError)> {
    let value: Value = serde_json::from_slice(line)
        .map_err(|error| (0, ControlError::BadRequest(format!("not JSON: {error}"))))?;
    let id = value.get("id").and_then(Value::as_u64).unwrap_or(0);
    let schema = value.get("schema").and_then(Value::as_str).unwrap_or_default();
    if schema != SCHEMA {
        return Err((id, ControlError::Version(schema.chars().take(64).collect())));
    }
    serde_json::from_value(value)
        .map_err(|error| (id, ControlError::BadRequest(format!("no request: {error}"))))
}

/// A line that answers: `ok`, `lost` or `end` with a value.
pub(crate) fn answer(id: u64, key: &str, value: &Value) -> Vec<u8> {
    line(&json!({ "schema": SCHEMA, "id": id, key: value }))
}

/// A line that refuses.
pub(crate) fn refusal(id: u64, error: &ControlError) -> Vec<u8> {
    let told = json!({ "code": error.code(), "message": error.to_string() });
    answer(id, "error", &told)
}

/// A line with an event, which is JSON already.
pub(crate) fn event(id: u64, event: &[u8]) -> Vec<u8> {
    let mut line = format!("{{\"schema\":\"{SCHEMA}\",\"id\":{id},\"event\":").into_bytes();
    line.extend_from_slice(event.trim_ascii());
    line.extend_from_slice(b"}\n");
    line
}

fn line(value: &Value) -> Vec<u8> {
    let mut line = value.to_string().into_bytes();
    line.push(b'\n');
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_verb_survives_a_round_trip() {
        let id = || "k7f3/2".to_owned();
        let asks = [
            Ask::List,
            Ask::Steer { id: id(), text: "left\n\u{1f600}".to_owned() },
            Ask::Stop { id: id(), now: true },
            Ask::Pause { id: id() },
            Ask::Resume { id: id() },
            Ask::Extend { id: id(), seconds: 1.5 },
            Ask::Wait { id: id(), seconds: None },
            Ask::Watch { id: id() },
        ];
        for ask in asks {
            let sent = Request { schema: SCHEMA.to_owned(), id: 7, session: None, ask };
            let text = serde_json::to_vec(&sent).unwrap();
            assert_eq!(request(&text), Ok(sent));
        }
        let old =
            br#"{"schema":"delegate.control/1","id":1,"ask":{"verb":"stop","id":"k7f3"},"new":1}"#;
        assert_eq!(request(old).unwrap().ask, Ask::Stop { id: "k7f3".to_owned(), now: false });
    }

    #[test]
    fn what_is_no_request_is_refused_with_its_id() {
        let code = |text: &str| {
            let (id, error) = request(text.as_bytes()).unwrap_err();
            (id, error.code().to_owned())
        };
        assert_eq!(code("{"), (0, "bad_request".to_owned()));
        assert_eq!(code("[1]"), (0, "version".to_owned()));
        assert_eq!(code(r#"{"schema":"delegate.control/9","id":3}"#), (3, "version".to_owned()));
        let ask = r#"{"schema":"delegate.control/1","id":4,"ask":{"verb":"fly"}}"#;
        assert_eq!(code(ask), (4, "bad_request".to_owned()));
        for seconds in [-1.0, f64::NAN, f64::INFINITY, 1e300] {
            assert!(duration(seconds).is_err(), "{seconds}");
        }
        assert_eq!(duration(0.5), Ok(Duration::from_millis(500)));
    }

    #[test]
    fn an_event_is_carried_as_it_was_written() {
        let line = event(3, b"{\"event\":\"subagent.start\",\"at\":1.0}\n");
        let read: Value = serde_json::from_slice(&line).unwrap();
        assert_eq!((read["id"].as_u64(), read["event"]["at"].as_f64()), (Some(3), Some(1.0)));
        assert_eq!(line.iter().filter(|byte| **byte == b'\n').count(), 1);
    }
}

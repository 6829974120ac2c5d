//! A program that takes the prompts of a session, one JSON object a line on its stdin, and answers on its stdout:
//!
//! | to the program | means |
//! |---|---|
//! | `{"history":[…]}` | first, where there were turns before it: `number`, `prompt`, `status`, `answer`, `error` of each |
//! | `{"turn":N,"prompt":"…"}` | a turn begins |
//! | `{"steer":"…"}` | a word that interrupts nothing |
//! | `{"stop":N}` | the turn is not wanted any more |
//!
//! | from the program | means |
//! |---|---|
//! | `{"answer":…}` | the turn is over: a text, or any other value, which is the answer as JSON |
//! | `{"error":"…"}` | it has failed |
//! | `{"stopped":N}` | turn N was stopped; nothing in any other turn |
//! | `{"text":"…"}`, `{"thinking":"…"}`, `{"progress":"…"}` | what it says meanwhile |
//! | any other line | text |
//!
//! Objects may have other keys too. With `"turn":N` an answer or an error is that of turn N, and dropped in any other
//! one; without, it is dropped where no turn runs.
//!
//! Threads move the bytes, so that a program that does not read cannot hold up one that writes. A program that ends
//! breaks its worker, also between two turns, and the session replaces that.

use std::io::{self, BufRead, BufReader, PipeReader, PipeWriter, Read, Write};
use std::thread;
use std::time::Duration;

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, bounded};
use delegate_protocol::outcome::STDERR_TAIL;
use delegate_protocol::turn::TURN_ANSWER_BYTES;
use ownership::Owned;
use ownership::spawn::DEFAULT_GRACE;
use serde_json::{Value, json};

use super::{CommandParams, described, verdict};
use crate::agent::Failure;
use crate::cancel::Reason;
use crate::kept::Stream;
use crate::session::Session;
use crate::tail::Tail;

/// Lines that wait for a program that does not read.
const UNREAD: usize = 64;

/// Pieces of output that wait for the agent.
const SAID: usize = 64;

/// Bytes of one line; one that is longer breaks the program's word.
const LINE: u64 = 2 * TURN_ANSWER_BYTES as u64;

/// No turn has this number.
const NO_TURN: u64 = 0;

/// Between two looks at whether it is steered or stopped.
const LOOK: Duration = Duration::from_millis(20);

/// What a program prints.
#[derive(Debug)]
enum Said {
    Line(String),
    /// An object of more than [`LINE`] bytes.
    TooLong,
    Stderr(Vec<u8>),
    /// It has closed its stdout.
    Closed,
}

/// What a line of its stdout says.
#[derive(Debug, PartialEq)]
enum Word {
    Answer(Value),
    Error(String),
    Stopped,
    /// Of another turn than the one that runs.
    Stale,
    Text(String),
    Thinking(String),
    Progress(String),
}

impl Word {
    /// What it says while this turn runs.
    fn of(line: &str, turn: u64) -> Self {
        // Some programs begin with a byte order mark.
        let json = line.trim_start_matches('\u{feff}');
        let mut object = match serde_json::from_str(json) {
            Ok(Value::Object(object)) => object,
            Err(error) if is_meant(json) && turn != NO_TURN => {
                return Self::Error(format!("it answered with an object that is no JSON: {error}"));
            }
            Ok(_) | Err(_) => return Self::Text(format!("{line}\n")),
        };
        if let Some(stopped) = object.get("stopped").and_then(Value::as_u64) {
            return if stopped == turn { Self::Stopped } else { Self::Stale };
        }
        let (answer, error) = (object.remove("answer"), object.remove("error"));
        if answer.is_some() || error.is_some() {
            if object.get("turn").is_some_and(|of| of.as_u64() != Some(turn)) {
                return Self::Stale;
            }
            return match (answer, error.filter(|error| !error.is_null())) {
                (_, Some(Value::String(error))) => Self::Error(error),
                (_, Some(error)) => Self::Error(error.to_string()),
                (Some(answer), None) => Self::Answer(answer),
                (None, None) => Self::Error("it answered with an error that is null".to_owned()),
            };
        }
        let mut text = |key: &str| match object.remove(key) {
            Some(Value::String(text)) => Some(text),
            _ => None,
        };
        let said = text("text").map(Self::Text);
        let said = said.or_else(|| text("thinking").map(Self::Thinking));
        let said = said.or_else(|| text("progress").map(Self::Progress));
        said.unwrap_or_else(|| Self::Text(format!("{line}\n")))
    }
}

/// Whether a line that is no JSON was to end a turn: somebody waits for it, and would wait in vain. `NaN`, half a surrogate
/// and a number beyond all bounds come from the usual encoders, as deep nesting does.
fn is_meant(line: &str) -> bool {
    let first = line.trim_start().strip_prefix('{').map(str::trim_start);
    let ends = |key| first.is_some_and(|first| first.starts_with(key));
    ends("\"answer\"") || ends("\"error\"") || ends("\"stopped\"") || ends("\"turn\"")
}

/// A program that runs.
#[derive(Debug)]
pub(super) struct Talk {
    program: String,
    owned: Owned,
    lines: Sender<String>,
    said: Receiver<Said>,
    errors: Tail,
}

impl Talk {
    /// Starts it, and tells it what was before.
    ///
    /// # Errors
    /// It does not run.
    pub(super) fn start(params: CommandParams, session: &Session) -> Result<Self, Failure> {
        let (stdin, to_program) = io::pipe()?;
        let (from_stdout, stdout) = io::pipe()?;
        let (from_stderr, stderr) = io::pipe()?;
        let (program, owner, spawn) = described(params, session)?;
        let spawn = spawn.fd(0, stdin.into()).fd(1, stdout.into()).fd(2, stderr.into());
        let owned =
            owner.spawn(spawn, |_| {}).map_err(|error| verdict::not_started(&program, &error))?;
        let (lines, unread) = bounded(UNREAD);
        let (say, said) = bounded(SAID);
        let say_too = say.clone();
        start("program-in", move || write(to_program, &unread))?;
        let bell = session.bell();
        start("program-out", move || {
            read(from_stdout, &say);
            // So that there is room for the last word, where nobody listens just now; and then for that word.
            bell.ring();
            drop(say.send(Said::Closed));
            bell.ring();
        })?;
        start("program-err", move || read_errors(from_stderr, &say_too))?;
        let talk = Self { program, owned, lines, said, errors: Tail::new(STDERR_TAIL) };
        let history = session.history()?;
        if !history.is_empty() {
            talk.tell(&json!({ "history": history }))?;
        }
        Ok(talk)
    }

    /// One turn.
    ///
    /// # Errors
    /// It failed, was stopped, or the program is of no use any more.
    pub(super) fn turn(&mut self, prompt: &str, session: &mut Session) -> Result<String, Failure> {
        let number = session.turn().unwrap_or_default();
        self.hear_between_turns(session).map_err(before_this_turn)?;
        self.tell(&json!({ "turn": number, "prompt": prompt }))?;
        let mut stopping = false;
        loop {
            if session.desk().token.raised() > Some(Reason::Turn) {
                self.owned.end(DEFAULT_GRACE);
                return Err(Failure::Interrupted);
            }
            if session.is_interrupted() && !stopping {
                stopping = true;
                self.tell(&json!({ "stop": number }))?;
            }
            while let Some(word) = session.steer() {
                self.tell(&json!({ "steer": word }))?;
            }
            match self.said.recv_timeout(LOOK) {
                Err(RecvTimeoutError::Timeout) => {}
                Ok(Said::Stderr(bytes)) => self.keep(session, &bytes),
                Ok(Said::Line(line)) => {
                    session.keep(Stream::Stdout, format!("{line}\n").as_bytes());
                    if let Some(end) = take(&line, number, session) {
                        return end;
                    }
                }
                Ok(Said::TooLong) => {
                    return Err(Failure::new(format!(
                        "{}: it said an object of more than {LINE} bytes in one line; an answer has \
                         {TURN_ANSWER_BYTES} bytes at most",
                        self.program
                    )));
                }
                Ok(Said::Closed) | Err(RecvTimeoutError::Disconnected) => {
                    return Err(self.broken(session));
                }
            }
        }
    }

    /// What it has said since the last turn: an answer there is none of the next prompt.
    ///
    /// # Errors
    /// It has ended.
    pub(super) fn hear_between_turns(&mut self, session: &mut Session) -> Result<(), Failure> {
        while let Ok(said) = self.said.try_recv() {
            match said {
                Said::Stderr(bytes) => self.keep(session, &bytes),
                Said::Line(line) => {
                    session.keep(Stream::Stdout, format!("{line}\n").as_bytes());
                    match Word::of(&line, NO_TURN) {
                        Word::Text(text) => session.text(&text),
                        Word::Thinking(text) => session.thinking(&text),
                        Word::Progress(text) => session.progress(text),
                        Word::Answer(_) | Word::Error(_) | Word::Stopped | Word::Stale => {
                            dropped(session)
                        }
                    }
                }
                Said::TooLong => dropped(session),
                Said::Closed => return Err(self.broken(session)),
            }
        }
        Ok(())
    }

    fn keep(&mut self, session: &mut Session, bytes: &[u8]) {
        session.keep(Stream::Stderr, bytes);
        self.errors.push(bytes);
    }

    /// It has closed its stdout: how it ended, with the last of its stderr.
    fn broken(&mut self, session: &mut Session) -> Failure {
        self.owned.end(DEFAULT_GRACE);
        let status = self.owned.wait().map(|exit| exit.status);
        // The other end is closed with the program, unless a grandchild keeps it.
        while let Ok(Said::Stderr(bytes)) = self.said.recv_timeout(LOOK) {
            self.keep(session, &bytes);
        }
        let message = match verdict::of_exit(&self.program, status, &self.errors) {
            Err(Failure::Failed { message, .. } | Failure::Broken { message }) => message,
            Ok(()) | Err(_) => format!("{}: it ended while it was wanted", self.program),
        };
        Failure::Broken { message }
    }

    fn tell(&self, word: &Value) -> Result<(), Failure> {
        self.lines.try_send(format!("{word}\n")).map_err(|_| Failure::Broken {
            message: format!("{}: it does not read its stdin", self.program),
        })
    }
}

fn before_this_turn(failure: Failure) -> Failure {
    match failure {
        Failure::Broken { message } => {
            Failure::Broken { message: format!("before this turn: {message}") }
        }
        other @ (Failure::Failed { .. } | Failure::Interrupted | Failure::MaxIterations { .. }) => {
            other
        }
    }
}

/// What a line means; `Some`: the turn is over.
fn take(line: &str, turn: u64, session: &mut Session) -> Option<Result<String, Failure>> {
    match Word::of(line, turn) {
        Word::Answer(Value::String(text)) => {
            if text.is_empty() {
                session.allow_empty_answer();
            }
            return Some(Ok(text));
        }
        Word::Answer(value) => return Some(Ok(value.to_string())),
        Word::Error(message) => return Some(Err(Failure::new(message))),
        Word::Stopped => return Some(Err(Failure::Interrupted)),
        Word::Stale => dropped(session),
        Word::Text(text) => session.text(&text),
        Word::Thinking(text) => session.thinking(&text),
        Word::Progress(text) => session.progress(text),
    }
    None
}

fn dropped(session: &mut Session) {
    session.progress("what the program said of no turn that runs was dropped");
}

fn start(name: &str, work: impl FnOnce() + Send + 'static) -> io::Result<()> {
    thread::Builder::new().name(name.to_owned()).spawn(work).map(drop)
}

/// Writes lines until the program reads no more, or the agent is done.
fn write(mut to: PipeWriter, lines: &Receiver<String>) {
    for line in lines {
        if let Err(error) = to.write_all(line.as_bytes()) {
            return tracing::debug!(%error, "a program reads no more");
        }
    }
}

/// Reads lines to the end, or until nobody wants them. What is no UTF-8 becomes U+FFFD.
fn read(from: PipeReader, say: &Sender<Said>) {
    let mut from = BufReader::new(from);
    // The rest of an object that is too long.
    let mut skips = false;
    loop {
        let mut line = Vec::new();
        match from.by_ref().take(LINE).read_until(b'\n', &mut line) {
            Ok(count @ 1..) => {
                let goes_on = count as u64 == LINE && !line.ends_with(b"\n");
                if skips {
                    skips = goes_on;
                    continue;
                }
                skips = goes_on && line.starts_with(b"{");
                let said = if skips {
                    Said::TooLong
                } else {
                    Said::Line(String::from_utf8_lossy(line.trim_ascii_end()).into_owned())
                };
                if say.send(said).is_err() {
                    return;
                }
            }
            Ok(0) | Err(_) => return,
        }
    }
}

fn read_errors(mut from: PipeReader, say: &Sender<Said>) {
    let mut buffer = vec![0; 64 * 1024];
    while let Ok(count @ 1..) = from.read(&mut buffer) {
        if say.send(Said::Stderr(buffer[..count].to_vec())).is_err() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_line_has_its_meaning() {
        let mut session = Session::for_tests(|_| {});
        let mut end = |line: &str| take(line, 1, &mut session);
        assert_eq!(end(r#"{"answer":"a\nb"}"#), Some(Ok("a\nb".to_owned())));
        assert_eq!(end(r#"{"answer":{"n":3}}"#), Some(Ok(r#"{"n":3}"#.to_owned())));
        assert_eq!(end(r#"{"error":"no"}"#), Some(Err(Failure::new("no"))));
        assert_eq!(end(r#"{"stopped":1}"#), Some(Err(Failure::Interrupted)));
        let more = r#"{"answer":"a","error":null,"turn":1,"id":"x"}"#;
        assert_eq!(end(more), Some(Ok("a".to_owned())), "other keys are none of ours");
        assert_eq!(end(r#"{"answer":"a","error":"no"}"#), Some(Err(Failure::new("no"))));
        assert_eq!(end(r#"{"error":3}"#), Some(Err(Failure::new("3"))));
        assert_eq!(end("\u{feff}{\"answer\":\"a\"}"), Some(Ok("a".to_owned())));
        let deep = format!(r#"{{"answer":{}}}"#, "[".repeat(200));
        for line in [r#"{"answer":NaN}"#, r#" { "answer" :"#, r#"{"error":"\udcff"}"#, &deep]
            .into_iter()
            .chain([r#"{"turn":1,"answer":1e999}"#, r#"{"stopped":1"#])
        {
            let failed = end(line).and_then(Result::err).map(|failure| format!("{failure:?}"));
            assert!(failed.is_some_and(|why| why.contains("no JSON")), "{line}");
        }
        assert!(matches!(Word::of(r#"{"answer":NaN}"#, NO_TURN), Word::Text(_)), "nobody waits");
        assert!(end(r#"{"error":null}"#).is_some_and(|it| it.is_err()), "it is no text either");
        let stale =
            [r#"{"stopped":2}"#, r#"{"answer":"a","turn":2}"#, r#"{"error":"e","turn":"1"}"#];
        let unknown = [r#"{"answers":1}"#, "plain", "3", "", r#"{"text":"#, r#"{"text":3}"#];
        for line in [r#"{"text":"t"}"#, r#"{"thinking":"t"}"#, r#"{"progress":"t"}"#]
            .into_iter()
            .chain(unknown)
            .chain(stale)
        {
            assert_eq!(end(line), None, "{line}");
        }
    }
}

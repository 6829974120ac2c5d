//! One side of a comparison: a process that says `ready`, or `missing WHY`, and then answers each line that it is sent
//! with `ok` and numbers or with `failed WHY`. So whatever is compared takes turns in the same way, and what fails is a
//! row that says so. `rows` says who they are, `peers` where they come from.

use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

/// Until it is ready: a template prepares, an interpreter imports, a cluster starts.
const READY: Duration = Duration::from_secs(120);

/// From the end of its input to its own end, before it is killed.
const LEAVES: Duration = Duration::from_secs(20);

/// As much of what it wrote to its error stream as a row can say.
const LAST_WORDS: usize = 160;

#[derive(Debug)]
pub(crate) struct Participant {
    child: Child,
    answers: Receiver<String>,
    errors: tempfile::NamedTempFile,
}

impl Participant {
    /// Starts it and waits until it is ready.
    ///
    /// # Errors
    /// Why there is none, for the row.
    pub(crate) fn start(mut command: Command) -> Result<Self, String> {
        let errors = tempfile::NamedTempFile::new().map_err(|error| error.to_string())?;
        let stream = File::create(errors.path()).map_err(|error| error.to_string())?;
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(stream);
        let mut child = command
            .spawn()
            .map_err(|error| format!("{}: {error}", command.get_program().to_string_lossy()))?;
        let output = BufReader::new(child.stdout.take().expect("a pipe"));
        let (line, answers) = channel();
        thread::spawn(move || {
            for said in output.lines().map_while(Result::ok) {
                if line.send(said).is_err() {
                    return;
                }
            }
        });
        let mut participant = Self { child, answers, errors };
        match participant.hear(READY)?.split_once(' ') {
            None => Ok(participant),
            Some(("missing", why)) => Err(why.to_owned()),
            Some((word, rest)) => Err(format!("it said {word} {rest}, and not ready")),
        }
    }

    /// One round.
    ///
    /// # Errors
    /// Why there is no answer. It is not asked again then.
    pub(crate) fn ask(&mut self, request: &str, patience: Duration) -> Result<Vec<f64>, String> {
        let input = self.child.stdin.as_mut().ok_or("its input is closed")?;
        if let Err(error) = writeln!(input, "{request}") {
            return Err(self.last_words(&error.to_string()));
        }
        let said = self.hear(patience)?;
        let numbers = said
            .strip_prefix("ok ")
            .ok_or_else(|| said.trim_start_matches("failed ").to_owned())?;
        numbers.split(' ').map(|number| number.parse().map_err(|_| said.clone())).collect()
    }

    fn hear(&mut self, patience: Duration) -> Result<String, String> {
        match self.answers.recv_timeout(patience) {
            Ok(said) => Ok(said),
            Err(RecvTimeoutError::Timeout) => {
                Err(self.last_words(&format!("no answer within {} s", patience.as_secs())))
            }
            Err(RecvTimeoutError::Disconnected) => Err(self.last_words("it has ended")),
        }
    }

    fn last_words(&self, what: &str) -> String {
        let said = std::fs::read_to_string(self.errors.path()).unwrap_or_default();
        let Some(line) = said.lines().rev().find(|line| !line.trim().is_empty()) else {
            return what.to_owned();
        };
        format!("{what}: {}", line.chars().take(LAST_WORDS).collect::<String>())
    }
}

impl Drop for Participant {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        let until = Instant::now() + LEAVES;
        while Instant::now() < until {
            if !matches!(self.child.try_wait(), Ok(None)) {
                return;
            }
            thread::sleep(Duration::from_millis(5));
        }
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

//! The agent of the fault suite, shared by its test binary and by the program `helper-owner`: does one
//! thing, right or wrong, as its parameters say.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use delegate_runtime::{Agent, Failure, Session};
use serde::{Deserialize, Serialize};

/// One step, and how it ends.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) enum Step {
    /// Answers.
    Answer(String),
    /// Says a text, and fails with a reason.
    Fail { text: String, message: String, reason: Option<String> },
    /// Says a text and panics.
    Panic(String),
    /// Uses its turns up.
    Turns(String),
    /// Answers nothing, on purpose or not.
    Empty { on_purpose: bool },
    /// Ends the process under the agent.
    Exit { stderr: String, code: i32 },
    /// Says `waiting`, and waits for the interrupt.
    Wait,
    /// Says `waiting`, counts into a file, and hears no interrupt. Ends when there is a file
    /// of that name with the extension `stop`.
    Count(PathBuf),
    /// Says `gate`, waits until the file is there, then answers with so many bytes.
    Gate { open: PathBuf, bytes: usize },
    /// Says that it sleeps, and answers after so many milliseconds.
    Sleep(u64),
    /// Writes so many bytes of noise on standard output, then answers.
    Noise(usize),
}

/// Carries out a [`Step`].
pub(crate) struct Stepper;

impl Agent for Stepper {
    const NAME: &'static str = "step";
    type Params = Step;
    type Answer = String;

    fn run(&mut self, step: Step, session: &mut Session) -> Result<String, Failure> {
        match step {
            Step::Answer(text) => Ok(text),
            Step::Fail { text, message, reason } => {
                session.text(&text);
                Err(Failure::Failed { message, reason })
            }
            Step::Panic(text) => {
                session.text("about to panic");
                panic!("{text}")
            }
            Step::Turns(partial) => Err(Failure::MaxIterations { partial }),
            Step::Empty { on_purpose } => {
                if on_purpose {
                    session.allow_empty_answer();
                }
                Ok(String::new())
            }
            Step::Exit { stderr, code } => {
                eprintln!("{stderr}");
                std::process::exit(code)
            }
            Step::Wait => {
                session.text("waiting");
                loop {
                    session.checkpoint()?;
                    std::thread::sleep(Duration::from_millis(1));
                }
            }
            Step::Count(path) => {
                session.text("waiting");
                let stop = path.with_extension("stop");
                let mut number = 0_u64;
                while !stop.exists() {
                    number += 1;
                    fs::write(&path, number.to_string())?;
                }
                Ok(number.to_string())
            }
            Step::Gate { open, bytes } => {
                session.text("gate");
                while !open.exists() {
                    session.checkpoint()?;
                    std::thread::sleep(Duration::from_millis(1));
                }
                Ok("r".repeat(bytes))
            }
            Step::Sleep(milliseconds) => {
                session.text("sleeping");
                std::thread::sleep(Duration::from_millis(milliseconds));
                session.checkpoint()?;
                Ok("slept".to_owned())
            }
            Step::Noise(bytes) => {
                use std::io::Write;
                let block = "noise\n".repeat(1000);
                for _ in 0..bytes / block.len() {
                    std::io::stdout().write_all(block.as_bytes())?;
                }
                Ok("made noise".to_owned())
            }
        }
    }
}

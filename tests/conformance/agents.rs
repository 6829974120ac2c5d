//! Agents of this suite. The same code runs in a thread and in a worker process.

use std::io::Write;
use std::time::Duration;

use delegate_child::LongText;
use delegate_protocol::Tokens;
use delegate_runtime::{Agent, Failure, Session, Task, Value};
use serde::{Deserialize, Serialize};

/// One step of a script.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Op {
    Text(String),
    Thinking(String),
    Tool(String),
    ToolDone(u64, bool),
    Progress(String),
    ApiCall(u64, u64),
    Model(String),
    AllowEmpty,
    /// Waits until it is asked to stop, and goes on.
    AwaitInterrupt,
    /// Waits for a file to exist, for tests that decide who ends first.
    AwaitFile(String),
    /// Makes a file.
    Touch(String),
    /// Says that it gets on, and nothing else.
    Alive,
    /// Streams blanks until it is asked to stop.
    Blank,
    /// Waits for a notice of the parent, and says it.
    AwaitNotice,
    /// Waits for a word that steers it, and says it.
    AwaitSteer,
    /// Says every word that steers it, until a file exists.
    SteersUntil(String),
    /// What a tool gave, with what there is to say to the model.
    ToolResult(String),
    /// Speaks with a shared helper: name, then a method and its parameters as JSON; says the answer.
    Helper(String, String, String),
    /// Asks a shared helper for this and then for more than it is kept, and reads nothing; says how that ended.
    FloodHelper(String, String),
    /// Asks how much time is left, and says it.
    TimeLeft,
    /// Asks for approval, and says the answer.
    Approve(String),
    Read(String),
    Wrote(String),
    /// A model call with so many tokens of reasoning and nothing else.
    Reasoned(u64),
    /// How the current tool ended, with what it gave.
    Output(String, bool),
    /// One of several calls at once: id, tool, arguments as JSON.
    Call(String, String, String),
    /// What the call of this id gave, as JSON.
    Result(Option<String>, String),
    CostStatus(String),
    /// A model call that cost so much, in US dollars.
    Cost(f64),
    /// Says its context.
    Context,
    /// Hands on a callback of an agent loop: name, tool, preview.
    Relay(String, String, String),
    /// Burns the CPU until a file exists, and says nothing.
    BurnUntil(String),
    /// Burns the CPU for milliseconds.
    Burn(u64),
    /// Sleeps and looks at nothing.
    Sleep(u64),
}

/// How a script ends.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum End {
    Answer(String),
    Fail(String, Option<String>),
    Panic(String),
    MaxIterations(String),
    Interrupted,
}

/// A script: what an agent does.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Script {
    pub ops: Vec<Op>,
    pub end: End,
}

impl Script {
    /// A task that plays it.
    pub fn task(&self, goal: impl Into<String>) -> Task {
        Task::of::<Scripted>(goal, self.clone())
    }
}

/// A script from its steps and its end.
pub fn script(ops: impl IntoIterator<Item = Op>, end: End) -> Script {
    Script { ops: ops.into_iter().collect(), end }
}

/// The end of a script that answers.
pub fn answer(text: &str) -> End {
    End::Answer(text.to_owned())
}

/// Plays a [`Script`].
pub struct Scripted;

impl Agent for Scripted {
    const NAME: &'static str = "scripted";
    type Params = Script;
    type Answer = String;

    fn run(&mut self, script: Script, session: &mut Session) -> Result<String, Failure> {
        for op in script.ops {
            play(op, session)?;
        }
        match script.end {
            End::Answer(text) => Ok(text),
            End::Fail(message, reason) => Err(Failure::Failed { message, reason }),
            End::Panic(message) => panic!("{message}"),
            End::MaxIterations(partial) => Err(Failure::MaxIterations { partial }),
            End::Interrupted => Err(Failure::Interrupted),
        }
    }
}

fn play(op: Op, session: &mut Session) -> Result<(), Failure> {
    match op {
        Op::Text(text) => session.text(&text),
        Op::Thinking(text) => session.thinking(&text),
        Op::Tool(name) => session.tool(&name, Some("preview"), Value::Int(7)),
        Op::ToolDone(bytes, ok) => session.tool_done(bytes, ok),
        Op::Progress(text) => session.progress(text),
        Op::ApiCall(input, output) => session.api_call(Tokens { input, output }, Some(0.25)),
        Op::Model(name) => session.model(&name),
        Op::AllowEmpty => session.allow_empty_answer(),
        Op::AwaitInterrupt => {
            while !session.is_interrupted() {
                std::thread::sleep(Duration::from_millis(2));
            }
        }
        Op::AwaitFile(path) => {
            while !std::path::Path::new(&path).exists() {
                session.checkpoint()?;
                std::thread::sleep(Duration::from_millis(2));
            }
        }
        Op::Touch(path) => std::fs::write(path, "")?,
        Op::Alive => session.alive(),
        Op::Blank => {
            while !session.is_interrupted() {
                session.text(" ");
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        Op::AwaitNotice => loop {
            session.checkpoint()?;
            let notices = session.take_notices();
            if !notices.is_empty() {
                notices.iter().for_each(|notice| session.text(notice));
                break;
            }
            std::thread::sleep(Duration::from_millis(2));
        },
        Op::AwaitSteer => loop {
            session.checkpoint()?;
            if let Some(text) = session.steer() {
                session.text(&text);
                break;
            }
            std::thread::sleep(Duration::from_millis(2));
        },
        Op::SteersUntil(path) => {
            while !std::path::Path::new(&path).exists() {
                session.checkpoint()?;
                if let Some(text) = session.steer() {
                    session.text(&format!("<{text}>"));
                }
            }
        }
        Op::ToolResult(result) => {
            let result = session.with_steers(result);
            session.text(&result);
        }
        Op::Helper(name, method, params) => {
            let said = crate::helpers::speak(session, &name, &method, &params)?;
            session.text(&said);
        }
        Op::FloodHelper(name, method) => {
            let said = crate::helpers::flood(session, &name, &method)?;
            session.text(&said);
        }
        Op::TimeLeft => {
            let left = session.time_left()?;
            session.text(&left.map_or("any".to_owned(), |left| left.as_millis().to_string()));
        }
        Op::Approve(request) => {
            let answer = if session.approve(request) { "approved" } else { "denied" };
            session.text(answer);
        }
        Op::Read(path) => session.read_file(path),
        Op::Wrote(path) => session.wrote_file(path),
        Op::Reasoned(tokens) => {
            session.api_call_with_reasoning(Tokens::default(), tokens, None);
        }
        Op::Output(text, ok) => session.tool_output(&text, ok),
        Op::Call(id, name, args) => {
            session.tool_call(&id, &name, None, serde_json::from_str(&args)?);
        }
        Op::Result(id, result) => {
            session.tool_result(id.as_deref(), &serde_json::from_str(&result)?);
        }
        Op::Cost(dollars) => session.api_call(Tokens::default(), Some(dollars)),
        Op::Context => {
            let context = session.spec().context.clone().unwrap_or_default();
            session.text(&context);
        }
        Op::CostStatus(word) => session.cost_status(&word),
        Op::Relay(name, tool, preview) => {
            session.relay(&name, Some(&tool), Some(&preview), Value::Null);
        }
        Op::Burn(millis) => {
            let start = std::time::Instant::now();
            while start.elapsed() < Duration::from_millis(millis) {
                session.checkpoint()?;
                std::hint::black_box((0..1000u64).sum::<u64>());
            }
        }
        Op::BurnUntil(path) => {
            while !std::path::Path::new(&path).exists() {
                std::hint::black_box((0..100_000u64).sum::<u64>());
            }
        }
        Op::Sleep(millis) => std::thread::sleep(Duration::from_millis(millis)),
    }
    Ok(())
}

/// Answers with so many bytes. Each MiB differs, so that lost or swapped parts show in the hash.
pub struct Sized;

/// The answer of [`Sized`] for a length, piece by piece.
pub fn pieces(bytes: u64) -> impl Iterator<Item = String> {
    const PIECE: u64 = 1 << 20;
    (0..bytes.div_ceil(PIECE)).map(move |number| {
        let length = usize::try_from(PIECE.min(bytes - number * PIECE)).unwrap();
        let mut piece = format!("{number:016}").repeat(length / 16 + 1);
        piece.truncate(length);
        piece
    })
}

impl Agent for Sized {
    const NAME: &'static str = "sized";
    type Params = u64;
    type Answer = LongText;

    fn run(&mut self, bytes: u64, session: &mut Session) -> Result<LongText, Failure> {
        session.allow_empty_answer();
        let mut text = LongText::default();
        for piece in pieces(bytes) {
            text.push(&piece)?;
        }
        Ok(text)
    }
}

/// Answers with its own spec as JSON.
pub struct Spec;

impl Agent for Spec {
    const NAME: &'static str = "spec";
    type Params = Value;
    type Answer = String;

    fn run(&mut self, _params: Value, session: &mut Session) -> Result<String, Failure> {
        Ok(serde_json::to_string(session.spec())?)
    }
}

/// Answers with the descriptors that its process has open, `number target` a line.
pub struct Descriptors;

impl Agent for Descriptors {
    const NAME: &'static str = "descriptors";
    type Params = ();
    type Answer = Vec<(u32, String)>;

    fn run(&mut self, (): (), _session: &mut Session) -> Result<Vec<(u32, String)>, Failure> {
        let mut open = Vec::new();
        for entry in std::fs::read_dir("/proc/self/fd")? {
            let path = entry?.path();
            // The list's own descriptor is in the list, too.
            let Ok(target) = std::fs::read_link(&path) else { continue };
            if !target.to_string_lossy().starts_with("/proc/") {
                let number = path.file_name().unwrap().to_str().unwrap().parse()?;
                open.push((number, target.to_string_lossy().into_owned()));
            }
        }
        open.sort();
        Ok(open)
    }
}

/// Prints so many bytes on descriptors 1 and 2 of its process, as a library might.
pub struct Noisy;

impl Agent for Noisy {
    const NAME: &'static str = "noisy";
    type Params = usize;
    type Answer = String;

    fn run(&mut self, bytes: usize, session: &mut Session) -> Result<String, Failure> {
        let block = vec![0xfe; 64 * 1024];
        for _ in 0..bytes.div_ceil(block.len()) {
            // Past the buffers of std (and past libtest's capture).
            rustix::io::write(rustix::stdio::stdout(), &block).map_err(std::io::Error::from)?;
            rustix::io::write(rustix::stdio::stderr(), &block).map_err(std::io::Error::from)?;
        }
        std::io::stderr().flush()?;
        session.text("noise is out");
        Ok("quiet".to_owned())
    }
}

/// Takes a large parameter and gives as much back: full duplex. Answers with length and hash.
pub struct Swallow;

impl Agent for Swallow {
    const NAME: &'static str = "swallow";
    type Params = String;
    type Answer = LongText;

    fn run(&mut self, text: String, _session: &mut Session) -> Result<LongText, Failure> {
        let mut back = LongText::default();
        back.push(&text)?;
        Ok(back)
    }
}

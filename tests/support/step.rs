//! The agent of the fault suite, shared by its test binary and by the program `helper-owner`: does one
//! thing, right or wrong, as its parameters say.

use std::fs;
use std::io::Read;
use std::path::PathBuf;
use std::time::Duration;

use delegate_protocol::Order;
use delegate_runtime::{Agent, Failure, Session, Value};
use ownership::spawn::Spawn;
use ownership::{Owned, Owner, Scope};
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
    /// Starts a [`TREE`] that it leaves running, says one event of each kind, then answers with so many bytes.
    Every(usize),
    /// Asks for everything that an agent can ask its owner for, leaves a [`TREE`] running, says
    /// `asked`, and waits for the interrupt.
    Asks,
    /// Delegates these (agent, parameters), and answers with how each ended.
    Delegate(Vec<(String, Value)>),
    /// Has its parent start a [`TREE`] as a job, hands it over or not, says `job` and waits.
    Job { hand_off: bool },
    /// Has its parent start a [`TREE`] that lives on, and one that does not, says `job PID ID` of the first, and waits for
    /// this file.
    Persist(PathBuf),
    /// Writes so many bytes of noise on standard output, then answers.
    Noise(usize),
    /// Fills so many bytes of memory, then answers.
    Fill(usize),
    /// Starts so many programs that stay, does not care which of them could be, and answers.
    Start(usize),
    /// Computes for ever, and hears no interrupt.
    Burn,
    /// Kills its own process.
    KillSelf,
    /// Answers with its own nice value and that of a program that it starts.
    Nice,
    /// Opens files until it cannot, and answers with how many there were.
    Open,
    /// Runs this shell script in its scope, says the so many lines that it prints, and leaves it running.
    Tree { script: String, lines: usize },
    /// What was asked and answered before, in a session.
    History,
}

/// A helper of a session of its own below a shell; its line says that it is there.
const TREE: &str = r#"setsid sh -c "echo up; exec sleep 600" & exec sleep 600"#;

/// Carries out a [`Step`].
pub(crate) struct Stepper;

impl Agent for Stepper {
    const NAME: &'static str = "step";
    type Params = Step;
    type Answer = String;

    const TAKES_TURNS: bool = true;

    /// Each prompt is a step.
    fn turn(&mut self, prompt: &str, session: &mut Session) -> Result<String, Failure> {
        self.run(serde_json::from_str(prompt)?, session)
    }

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
            Step::Every(bytes) => {
                // Not ended by its handle: whoever ends this child is to find it.
                std::mem::forget(start_tree(session.owner())?);
                session.thinking("one of each");
                session.tool("tree", None, Value::Null);
                session.tool_done(3, true);
                session.progress("half");
                session.time_left()?;
                session.text("text");
                Ok("r".repeat(bytes))
            }
            Step::Fill(bytes) => {
                let filled = vec![1_u8; bytes];
                Ok(std::hint::black_box(&filled).len().to_string())
            }
            Step::Start(count) => {
                let owner = session.owner().ok_or_else(|| Failure::new("no owner"))?;
                for _ in 0..count {
                    if let Ok(stays) = owner.spawn(Spawn::new("sleep").arg("600"), |_| {}) {
                        std::mem::forget(stays);
                    }
                }
                Ok("all is well".to_owned())
            }
            Step::Burn => loop {
                std::hint::black_box(0);
            },
            Step::KillSelf => {
                let own = rustix::process::getpid();
                let killed = rustix::process::kill_process(own, rustix::process::Signal::KILL);
                killed.map_err(std::io::Error::from)?;
                Ok("alive".to_owned())
            }
            Step::Nice => {
                let nice = |pid: u32| {
                    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
                    let rest = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
                    rest.split_whitespace().nth(16).unwrap_or_default().to_owned()
                };
                let owner = session.owner().ok_or_else(|| Failure::new("no owner"))?;
                let child = owner.spawn(Spawn::new("sleep").arg("600"), |_| {});
                let child = child.map_err(|error| Failure::new(error.to_string()))?;
                Ok(format!("{} {}", nice(std::process::id()), nice(child.pid())))
            }
            Step::Open => {
                let open = || fs::File::open("/dev/null").ok();
                let held: Vec<_> = std::iter::from_fn(open).take(100_000).collect();
                Ok(held.len().to_string())
            }
            Step::Asks => {
                let _held = ask_for_everything(session)?;
                session.text("asked");
                loop {
                    session.checkpoint()?;
                    std::thread::sleep(Duration::from_millis(1));
                }
            }
            Step::Delegate(below) => {
                let order = |(agent, params)| Order::new(agent, "a goal of a grandchild", params);
                let outcomes = session.delegate(below.into_iter().map(order))?;
                let words = outcomes.iter().map(|outcome| outcome.status.word());
                Ok(words.collect::<Vec<_>>().join(" "))
            }
            Step::Job { hand_off } => {
                let jobs = session.jobs();
                let job = jobs.command(["sh", "-c", TREE]).start()?.id;
                while jobs.wait(job, Duration::from_millis(10))?.tail.is_empty() {}
                if hand_off {
                    jobs.hand_off(job, "It serves the page.")?;
                }
                let pid = jobs.list()?.first().and_then(|job| job.pid).unwrap_or_default();
                session.text(&format!("job {pid}"));
                loop {
                    session.checkpoint()?;
                    std::thread::sleep(Duration::from_millis(1));
                }
            }
            Step::Persist(until) => {
                let jobs = session.jobs();
                let script = format!("echo printed; {TREE}");
                let job = jobs.command(["sh", "-c", &script]);
                let job = job.persist_on_release("It serves on for this test.").start()?;
                let other = jobs.command(["sh", "-c", TREE]).start()?.id;
                while jobs.wait(other, Duration::from_millis(10))?.tail.is_empty() {}
                let up = |tail: &str| tail.contains("up");
                while !up(&jobs.wait(job.id, Duration::from_millis(10))?.tail) {}
                let id = job.persists.map(|persists| persists.id).unwrap_or_default();
                session.text(&format!("job {} {id}", job.pid.unwrap_or_default()));
                while !until.exists() {
                    session.checkpoint()?;
                    std::thread::sleep(Duration::from_millis(1));
                }
                Ok("left".to_owned())
            }
            Step::Tree { script, lines } => {
                let owner = session.owner().ok_or_else(|| Failure::new("no owner"))?;
                let (told, tell) = std::io::pipe()?;
                let spawn = Spawn::new("sh").args(["-c", &script]).fd(1, tell.into());
                let tree = owner.spawn(spawn, |_| {});
                let tree = tree.map_err(|error| Failure::new(error.to_string()))?;
                let said = std::io::BufRead::lines(std::io::BufReader::new(told));
                for line in said.take(lines) {
                    session.text(&format!("{}\n", line?));
                }
                // Whoever ends this child is to find it.
                std::mem::forget(tree);
                Ok("up".to_owned())
            }
            Step::History => {
                let past = session.history()?;
                let told =
                    past.iter().map(|turn| format!("{}:{}", turn.number, turn.status.word()));
                Ok(told.collect::<Vec<_>>().join(" "))
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

/// A [`TREE`] that is up.
fn start_tree(owner: Option<&Owner>) -> Result<Owned, Failure> {
    let owner = owner.ok_or_else(|| Failure::new("no owner"))?;
    let (mut told, tell) = std::io::pipe()?;
    let spawn = Spawn::new("sh").args(["-c", TREE]).fd(1, tell.into());
    let tree = owner.spawn(spawn, |_| {}).map_err(|error| Failure::new(error.to_string()))?;
    told.read_exact(&mut [0; 3])?;
    Ok(tree)
}

/// Everything that an agent can ask for; gives what is to stay.
fn ask_for_everything(session: &Session) -> Result<(Owned, Scope), Failure> {
    let owner = session.owner().ok_or_else(|| Failure::new("no owner"))?;
    let ended = start_tree(Some(owner))?;
    ended.pause();
    ended.resume();
    if owner.spawn(Spawn::new("/no/such/program"), |_| {}).is_ok() {
        return Err(Failure::new("what is not there was started"));
    }
    let scope = owner.scope("asks", |_| {}).map_err(|error| Failure::new(error.to_string()))?;
    std::mem::forget(start_tree(Some(&scope.owner()))?);
    let group = adopted_group()?;
    let leader = group.id().cast_signed();
    // What a child runs in its scope is owned by its descent already.
    if owner.own_process_groups(&[leader]).is_ok() {
        return Err(Failure::new("a group was adopted over a line that was inherited"));
    }
    ended.end(Duration::from_millis(100));
    ended.wait_empty();
    Ok((start_tree(Some(owner))?, scope))
}

#[expect(clippy::disallowed_methods, reason = "a group that something else has started")]
fn adopted_group() -> std::io::Result<std::process::Child> {
    use std::os::unix::process::CommandExt;
    // detached-spawn: ok — a group of its own is what is adopted; it stays below its worker
    std::process::Command::new("sleep").arg("600").process_group(0).spawn()
}

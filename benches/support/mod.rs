//! What the benches share: agents, and one measured round of each kind. `delegation` gives the rounds
//! to criterion, `compare` interleaves them with bare programs and prints one table, `table` with everything that it
//! finds. `agents` are those that few of them need.
#![allow(dead_code, reason = "each bench uses its part")]
#![allow(clippy::allow_attributes, reason = "an expectation would fail in the bench that uses all")]

pub(crate) mod agents;

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::process::{Command, ExitCode, Stdio};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use delegate_runtime::{
    Agent, Event, Failure, Isolation, Session, Status, Task, Value, blocking,
    config::{LauncherWish, Settings},
};
use rustix::process::{Pid, Signal, kill_process};

/// The role of the bare program that [`bare_start`] executes: it says one byte and leaves.
pub(crate) const BARE: &str = "@bare";

/// The same, which then stays until its input ends.
pub(crate) const STAYS: &str = "@bare-stays";

/// A tool event of a realistic size is some 200 bytes on the wire.
const PREVIEW: &str = "src/run/batch.rs: the loop of one batch feeds the pure monitor and carries \
                       out its effects; it is the only code that waits and acts";

/// Says one word at once, then answers with a text of the asked size.
pub(crate) struct Sender;

impl Agent for Sender {
    const NAME: &'static str = "sender";
    type Params = usize;
    type Answer = String;

    fn run(&mut self, size: usize, session: &mut Session) -> Result<String, Failure> {
        session.text("here");
        Ok("x".repeat(size))
    }
}

/// Sends as many tool events as it is told.
pub(crate) struct Tools;

impl Agent for Tools {
    const NAME: &'static str = "tools";
    type Params = usize;
    type Answer = String;

    fn run(&mut self, events: usize, session: &mut Session) -> Result<String, Failure> {
        for _ in 0..events {
            session.tool("read_file", Some(PREVIEW), Value::Null);
        }
        Ok("done".to_owned())
    }
}

/// Looks at its session in a loop, and says when it saw the interrupt.
pub(crate) struct Spinner;

impl Agent for Spinner {
    const NAME: &'static str = "spinner";
    type Params = ();
    type Answer = String;

    fn run(&mut self, (): (), session: &mut Session) -> Result<String, Failure> {
        session.text("here");
        while !session.is_interrupted() {
            std::hint::spin_loop();
        }
        session.text(&wall_clock().as_nanos().to_string());
        session.checkpoint()?;
        Ok(String::new())
    }
}

/// As [`Sender`], with something large that it prepares: 64 MiB, written to.
#[derive(Default)]
pub(crate) struct Heavy(Vec<u8>);

impl Agent for Heavy {
    const NAME: &'static str = "heavy";
    type Params = usize;
    type Answer = String;

    fn prepare(&mut self) -> Result<(), Failure> {
        self.0 = vec![1; 64 << 20];
        Ok(())
    }

    fn run(&mut self, size: usize, session: &mut Session) -> Result<String, Failure> {
        session.text("here");
        Ok(self.0[..size].iter().map(|_| 'x').collect())
    }
}

/// The first expression of a bench's `main`: workers, the bare program, or the bench.
pub(crate) fn main(host: impl FnOnce()) -> ExitCode {
    let workers = delegate_runtime::workers();
    let workers = workers.agent(Heavy::default);
    let workers = workers.agent(|| agents::Empty).agent(|| agents::Held).agent(|| agents::Hog);
    let workers = workers.agent(agents::Large::default).agent(agents::Costly::default);
    workers.agent(|| Sender).agent(|| Tools).agent(|| Spinner).or_else(|| {
        let role = std::env::args().nth(1).unwrap_or_default();
        if [BARE, STAYS].contains(&role.as_str()) {
            let mut said =
                std::io::stdout().write_all(b"h").and_then(|()| std::io::stdout().flush());
            if role == STAYS {
                said = said.and(std::io::stdin().read_to_end(&mut Vec::new()).map(drop));
            }
            return ExitCode::from(u8::from(said.is_err()));
        }
        host();
        ExitCode::SUCCESS
    })
}

/// Time since the epoch: two processes of one machine share it, which an `Instant` cannot.
fn wall_clock() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).expect("a clock after 1970")
}

/// A delegator whose state goes with it.
pub(crate) struct Rig {
    pub(crate) delegator: blocking::Delegator,
    _state: tempfile::TempDir,
}

impl Rig {
    /// With as many places as children, after a first child: the supervisor runs.
    pub(crate) fn new(isolation: Isolation, places: usize) -> Self {
        let places = places.try_into().expect("a small number");
        Self::with(isolation, Settings { max_concurrent_children: places, ..Settings::default() })
    }

    /// Processes that are started in this way, one at a time.
    pub(crate) fn launched(launcher: LauncherWish) -> Self {
        Self::with(Isolation::Process, Settings { launcher, ..Settings::default() })
    }

    pub(crate) fn with(isolation: Isolation, settings: Settings) -> Self {
        let state = tempfile::tempdir().expect("a state directory");
        let builder = blocking::Delegator::builder().isolation(isolation).settings(settings);
        let delegator = builder.state_dir(state.path()).build().expect("a delegator");
        let rig = Self { delegator, _state: state };
        rig.batch(1, 1);
        rig
    }

    pub(crate) fn start(&self, task: Task) -> blocking::Run {
        self.delegator.batch([task]).start().expect("a run")
    }

    /// As [`Rig::start_and_outcome`], of the agent that prepares.
    pub(crate) fn start_and_outcome_of_heavy(&self) -> (Duration, Duration) {
        self.first_and_last(Task::of::<Heavy>("one", 1))
    }

    /// Delegate → the child's first event, and → its outcome stored and its process reaped.
    pub(crate) fn start_and_outcome(&self) -> (Duration, Duration) {
        self.first_and_last(Task::of::<Sender>("one", 1))
    }

    pub(crate) fn first_and_last(&self, task: Task) -> (Duration, Duration) {
        let began = Instant::now();
        let mut run = self.start(task);
        let spoke = run.events().any(|event| matches!(event, Event::Text { .. }));
        let first = began.elapsed();
        let report = run.finish();
        assert!(spoke && report.all_completed(), "{:?}", report.statuses());
        (first, began.elapsed())
    }

    /// A child's first word seen → its answer of so many bytes is stored and its process reaped. What the child has
    /// done before the word was seen is not in it.
    pub(crate) fn result(&self, bytes: usize) -> Duration {
        let mut run = self.start(Task::of::<Sender>("one", bytes));
        assert!(run.events().any(|event| matches!(event, Event::Text { .. })));
        let began = Instant::now();
        let report = run.finish();
        assert!(report.all_completed(), "{:?}", report.statuses());
        began.elapsed()
    }

    /// Some children that answer with some bytes each, end to end.
    pub(crate) fn batch(&self, children: usize, bytes: usize) -> Duration {
        let began = Instant::now();
        let tasks = (0..children).map(|index| Task::of::<Sender>(format!("task {index}"), bytes));
        let report = self.delegator.batch(tasks).run().expect("a report");
        assert!(report.all_completed(), "{:?}", report.statuses());
        began.elapsed()
    }

    /// One child's tool events, all of them delivered to a consumer that reads.
    pub(crate) fn events(&self, events: usize) -> Duration {
        let began = Instant::now();
        let mut run = self.start(Task::of::<Tools>("events", events));
        let came = run.events().filter(|event| matches!(event, Event::Tool { .. })).count();
        let took = began.elapsed();
        assert_eq!(came, events);
        drop(run.finish());
        took
    }

    /// Interrupt asked for → seen by a child that checks in a loop.
    pub(crate) fn interrupt(&self) -> Duration {
        let mut run = self.start(Task::of::<Spinner>("spin", ()));
        let control = run.control();
        let mut texts = run.events().filter_map(|event| {
            if let Event::Text { child: _, text } = event { Some(text) } else { None }
        });
        assert_eq!(texts.next().as_deref(), Some("here"));
        let asked = wall_clock();
        control.interrupt();
        let seen = texts.next().and_then(|text| text.parse().ok()).expect("a time");
        drop(texts);
        drop(run.finish());
        Duration::from_nanos(seen).saturating_sub(asked)
    }

    /// SIGKILL sent to a worker → its terminal record is stored and announced.
    pub(crate) fn killed(&self) -> Duration {
        let mut run = self.start(Task::of::<Spinner>("spin", ()));
        let mut pid = None;
        for event in run.events() {
            if let Event::Start { pid: started, .. } = event {
                pid = started;
            } else if let Event::Text { .. } = event {
                break;
            }
        }
        let pid = pid.and_then(|pid| Pid::from_raw(pid.try_into().ok()?)).expect("a process");
        let began = Instant::now();
        kill_process(pid, Signal::KILL).expect("a signal");
        assert!(run.events().any(|event| matches!(event, Event::Complete { .. })));
        let took = began.elapsed();
        assert!(!run.finish().statuses().contains(&Status::Completed));
        took
    }
}

/// This program executed without any runtime: spawn → its first byte, and → reaped.
pub(crate) fn bare_start() -> (Duration, Duration) {
    let program = std::env::current_exe().expect("this program");
    let began = Instant::now();
    let mut child =
        Command::new(program).arg(BARE).stdout(Stdio::piped()).spawn().expect("a process");
    let mut byte = [0];
    child.stdout.as_mut().expect("a pipe").read_exact(&mut byte).expect("a byte");
    let first = began.elapsed();
    assert!(child.wait().expect("a status").success());
    (first, began.elapsed())
}

/// SIGKILL → reaped, of a bare process.
pub(crate) fn bare_kill() -> Duration {
    let mut child = Command::new("sleep").arg("60").spawn().expect("a process");
    thread::sleep(Duration::from_millis(2));
    let began = Instant::now();
    child.kill().expect("a signal");
    child.wait().expect("a status");
    began.elapsed()
}

/// As many messages of this size over a socket pair, one write each, to a reader in this process.
pub(crate) fn bare_messages(count: usize, bytes: usize) -> Duration {
    bare_copy(count, &vec![b'x'; bytes])
}

/// A socket copy of so many bytes.
pub(crate) fn bare_bytes(bytes: usize) -> Duration {
    bare_copy(1, &vec![b'x'; bytes])
}

fn bare_copy(times: usize, message: &[u8]) -> Duration {
    let (mut reader, mut writer) = UnixStream::pair().expect("a socket pair");
    let began = Instant::now();
    thread::scope(|scope| {
        scope.spawn(move || {
            for _ in 0..times {
                writer.write_all(message).expect("a reader");
            }
        });
        let (mut buffer, mut left) = (vec![0; 64 * 1024], times * message.len());
        while left > 0 {
            left -= reader.read(&mut buffer).expect("bytes");
        }
    });
    began.elapsed()
}

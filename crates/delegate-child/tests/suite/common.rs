//! The parent's end of both lines, and agents that each do one thing.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, bounded};
use delegate_child::link::{self, Next, ParentHalf, Refused};
use delegate_child::{
    Agent, Failure, Host, Kept, LinkError, OwnerSource, Registry, Session, serve,
};
use delegate_protocol::frame::{Decoder, Encoder};
use delegate_protocol::spec::sample;
use delegate_protocol::{ChildMessage, ParentEnd, ParentMessage, TaskSpec, Tokens, Value};
use serde::Serialize;

/// Longest wait for anything.
const DEADLINE: Duration = Duration::from_secs(30);

/// Which line.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Line {
    Socket,
    Memory,
}

enum End {
    Socket(UnixStream),
    Memory(ParentHalf, Receiver<()>),
}

/// A parent of one child that is served on a thread.
pub(crate) struct Parent {
    end: End,
    decoder: Decoder<ParentEnd>,
    child: JoinHandle<Result<(), LinkError>>,
    /// Time to do nothing after each message.
    pub(crate) pause: Option<Duration>,
    /// Calls that the agent `tools` has made.
    calls: Arc<AtomicUsize>,
}

impl Parent {
    /// One of the agents below.
    pub(crate) fn start(line: Line) -> Self {
        let calls = Arc::new(AtomicUsize::new(0));
        let registry = agents(&calls);
        Self { calls, ..Self::start_with(line, registry, None) }
    }

    pub(crate) fn start_with(
        line: Line,
        registry: Registry,
        owner: Option<ownership::Owner>,
    ) -> Self {
        let (link, end) = match line {
            Line::Socket => {
                let (ours, theirs) = UnixStream::pair().unwrap();
                ours.set_read_timeout(Some(DEADLINE)).unwrap();
                (link::socket(theirs.into()), End::Socket(ours))
            }
            Line::Memory => {
                let (wake, woken) = bounded(1);
                let (link, half) = link::memory(Arc::new(move || {
                    // Full means that it is awake already.
                    let _awake = wake.try_send(());
                }));
                (link, End::Memory(half, woken))
            }
        };
        let host = Host {
            owner: OwnerSource::of(owner),
            output: Kept::default(),
            pid: 0,
            program_version: "test".to_owned(),
        };
        let child = thread::spawn(move || serve(link, &registry, host));
        Self { end, decoder: Decoder::default(), child, pause: None, calls: Arc::default() }
    }

    pub(crate) fn send(&mut self, message: &ParentMessage) {
        self.send_bytes(encoded(message));
    }

    /// The child may have left.
    pub(crate) fn send_if_there(&mut self, message: &ParentMessage) {
        let bytes = encoded(message);
        match &mut self.end {
            End::Socket(socket) => drop(socket.write_all(&bytes)),
            End::Memory(half, _) => drop(half.send(bytes)),
        }
    }

    pub(crate) fn send_bytes(&mut self, mut bytes: Vec<u8>) {
        match &mut self.end {
            End::Socket(socket) => socket.write_all(&bytes).unwrap(),
            End::Memory(half, woken) => loop {
                match half.send(bytes) {
                    Ok(()) => return,
                    Err(Refused::Full(back)) => bytes = back,
                    Err(Refused::Closed) => panic!("the child left"),
                }
                woken.recv_timeout(DEADLINE).unwrap();
            },
        }
    }

    /// The next message; `None` when the child has left.
    pub(crate) fn next(&mut self) -> Option<ChildMessage> {
        if let Some(pause) = self.pause {
            thread::sleep(pause);
        }
        loop {
            if let Some(message) = self.decoder.next_message() {
                return Some(message.unwrap());
            }
            match &mut self.end {
                End::Socket(socket) => {
                    let mut buffer = [0; 64 * 1024];
                    match socket.read(&mut buffer) {
                        Ok(0) => return None,
                        Ok(count) => self.decoder.push(&buffer[..count]),
                        // It left without reading all that we sent (man 7 unix).
                        Err(e) if e.kind() == std::io::ErrorKind::ConnectionReset => return None,
                        Err(error) => panic!("{error}"),
                    }
                }
                End::Memory(half, woken) => match half.try_next() {
                    Next::Frame(frame) => self.decoder.push(&frame),
                    Next::Closed => return None,
                    Next::Empty => woken.recv_timeout(DEADLINE).unwrap(),
                },
            }
        }
    }

    /// Waits, without reading, until the child has stopped to make progress.
    pub(crate) fn until_stuck(&self) {
        let deadline = Instant::now() + DEADLINE;
        let mut before = usize::MAX;
        loop {
            let now = self.calls.load(Ordering::Relaxed);
            if now == before {
                return;
            }
            before = now;
            assert!(Instant::now() < deadline);
            thread::sleep(Duration::from_millis(100));
        }
    }

    /// What serve returned.
    pub(crate) fn served(self) -> Result<(), LinkError> {
        let Self { end, child, .. } = self;
        let served = ended(child);
        drop(end);
        served
    }

    /// Goes away; what serve returned then.
    pub(crate) fn leave(self) -> Result<(), LinkError> {
        let Self { end, child, .. } = self;
        drop(end);
        ended(child)
    }
}

fn ended(child: JoinHandle<Result<(), LinkError>>) -> Result<(), LinkError> {
    let deadline = Instant::now() + DEADLINE;
    while !child.is_finished() {
        assert!(Instant::now() < deadline, "serve does not return");
        thread::sleep(Duration::from_millis(1));
    }
    child.join().unwrap()
}

fn encoded(message: &ParentMessage) -> Vec<u8> {
    let mut bytes = Vec::new();
    Encoder::<ParentEnd>::default().frame(message, &mut bytes).unwrap();
    bytes
}

/// A task for one of the agents below.
pub(crate) fn spec(agent: &str, params: impl Serialize) -> TaskSpec {
    let mut spec = sample(0, agent, "goal");
    spec.params = Value::from_typed(&params).unwrap();
    spec
}

/// The text of the agent `size`.
pub(crate) fn text_of(size: usize) -> String {
    let mut text = "0123456789abcde\n".repeat(size / 16 + 1);
    text.truncate(size);
    text
}

macro_rules! agents {
    ($($type:ident $name:literal ($params:ident: $in:ty) -> $out:ty, $session:ident $body:block)+) => {
        $(
            struct $type;
            impl Agent for $type {
                const NAME: &'static str = $name;
                type Params = $in;
                type Answer = $out;
                fn run(&mut self, $params: $in, $session: &mut Session) -> Result<$out, Failure> $body
            }
        )+
        fn agents(calls: &Arc<AtomicUsize>) -> Registry {
            let calls = Arc::clone(calls);
            Registry::default()$(.with(|| $type))+.with(move || Tools(Arc::clone(&calls)))
        }
    };
}

agents! {
    Talk "talk" (_p: ()) -> String, session {
        session.thinking("think;");
        session.tool("grep;", Some("x"), Value::Null);
        session.text("text ");
        session.text("and more;");
        session.progress("half;");
        session.tool_done(12, false);
        session.tool("sed;", None, Value::Null);
        session.text("end;");
        session.api_call(Tokens { input: 1, output: 2 }, Some(0.25));
        session.model("m-1");
        Ok("done".to_owned())
    }
    Typed "typed" (_p: ()) -> Vec<u8>, _session { Ok(vec![1, 2]) }
    Panic "panic" (_p: ()) -> String, session {
        session.text("before");
        panic!("gave up")
    }
    Goal "goal" (_p: ()) -> String, session { Ok(session.spec().goal.clone()) }
    Size "size" (size: usize) -> String, _session { Ok(text_of(size)) }
    Wait "wait" (_p: ()) -> String, session {
        session.text("so far");
        session.progress("at work");
        loop {
            session.checkpoint()?;
            thread::sleep(Duration::from_millis(1));
        }
    }
    Compute "compute" (_p: ()) -> u64, session {
        session.tool("multiply", None, Value::Null);
        let mut product = 1_u64;
        loop {
            session.checkpoint()?;
            product = std::hint::black_box(product.wrapping_mul(31));
        }
    }
    Flood "flood" (deltas: usize) -> String, session {
        for number in 0..deltas {
            session.text(&format!("{:06} ", number % 1_000_000));
        }
        Ok("done".to_owned())
    }
    Progress "progress" (count: u64) -> String, session {
        for step in 1..=count {
            session.progress(format_args!("step {step}"));
        }
        Ok("done".to_owned())
    }
}

/// Says more than anybody can take.
struct Tools(Arc<AtomicUsize>);

impl Agent for Tools {
    const NAME: &'static str = "tools";
    type Params = ();
    type Answer = String;

    fn run(&mut self, _params: (), session: &mut Session) -> Result<String, Failure> {
        session.progress("at work");
        for number in 0.. {
            session.checkpoint()?;
            session.api_call(Tokens::default(), None);
            session.tool(&number.to_string(), None, Value::from("x".repeat(1000)));
            self.0.fetch_add(1, Ordering::Relaxed);
        }
        Ok(String::new())
    }
}

//! A child that is never started, and one whose events follow each other closely.

use super::*;
use crate::agent::Agent;
use crate::link::{self, Link, Next, ParentHalf};
use crate::pace::GATHER;
use crate::session::Session;
use delegate_protocol::frame::{Decoder, Encoder};
use delegate_protocol::{ChildEvent, ParentEnd, ParentMessage, spec::sample};

struct Never;

impl Agent for Never {
    const NAME: &'static str = "never";
    type Params = delegate_protocol::Value;
    type Answer = String;

    fn run(&mut self, _: Self::Params, _: &mut Session) -> Result<String, Failure> {
        panic!("it was started")
    }
}

/// Both ends of a line on which this agent has its task already; `woken` is told of what it says.
fn begun(agent: &str, woken: impl Fn() + Send + Sync + 'static) -> (Link, ParentHalf, Host) {
    let (link, parent) = link::memory(Arc::new(woken));
    let mut begin = Vec::new();
    let message = ParentMessage::Begin(Box::new(sample(0, agent, "goal")));
    Encoder::<ParentEnd>::default().frame(&message, &mut begin).unwrap();
    assert!(parent.send(begin).is_ok());
    let host = Host {
        owner: OwnerSource::of(None),
        output: Kept::default(),
        pid: 0,
        program_version: String::new(),
    };
    (link, parent, host)
}

/// The parent said both before anybody here looked.
#[test]
fn a_task_that_was_interrupted_before_it_was_taken_is_not_started() {
    let (link, parent, host) = begun(Never::NAME, || {});
    let token = Arc::<Token>::default();
    token.raise(Reason::Interrupt);
    serve_until(link, &Registry::default().with(|| Never), host, &token).unwrap();
    let mut decoder = Decoder::<ParentEnd>::default();
    while let Next::Frame(frame) = parent.try_next() {
        decoder.push(&frame);
    }
    let said = std::iter::from_fn(|| decoder.next_message()).map(Result::unwrap);
    let [ChildMessage::Hello(_), ChildMessage::Finish(finish)] = &said.collect::<Vec<_>>()[..]
    else {
        panic!("a greeting and an end, and nothing between");
    };
    assert_eq!((finish.verdict, &finish.error), (Verdict::Interrupted, &None));
}

struct Talker;

impl Agent for Talker {
    const NAME: &'static str = "talker";
    type Params = delegate_protocol::Value;
    type Answer = String;

    fn run(&mut self, _: Self::Params, session: &mut Session) -> Result<String, Failure> {
        let mut next = clock();
        for number in 0..EVENTS {
            session.tool(&number.to_string(), None, delegate_protocol::Value::Null);
            // Longer than it takes to write one, so that each would go out by itself.
            next += GATHER / 4;
            while clock() < next {
                std::hint::spin_loop();
            }
        }
        Ok(String::new())
    }
}

const EVENTS: usize = 2000;

/// Pieces go out [`GATHER`] apart at least, so there can be no more of them than that.
#[test]
fn events_that_follow_closely_go_out_together_and_in_order() {
    let arrived = Arc::new((std::sync::Mutex::new(()), std::sync::Condvar::new()));
    let woken = Arc::clone(&arrived);
    let (link, parent, host) = begun(Talker::NAME, move || woken.1.notify_all());
    let began = clock();
    let registry = Registry::default().with(|| Talker);
    let child = thread::spawn(move || serve(link, &registry, host));
    let (mut pieces, mut bytes, mut decoder) = (0, 0, Decoder::<ParentEnd>::default());
    let mut names = Vec::new();
    loop {
        match parent.try_next() {
            Next::Frame(piece) => {
                pieces += 1;
                bytes += piece.len();
                decoder.push(&piece);
            }
            Next::Closed => break,
            // Looked at again soon, whether or not it was told.
            Next::Empty => {
                let lock = arrived.0.lock().unwrap();
                drop(arrived.1.wait_timeout(lock, GATHER).unwrap());
            }
        }
        while let Some(message) = decoder.next_message() {
            if let ChildMessage::Event(ChildEvent::Tool { name, .. }) = message.unwrap() {
                names.push(name);
            }
        }
    }
    let time = clock().duration_since(began);
    child.join().unwrap().unwrap();
    assert!(names.iter().map(|name| name.parse::<usize>().unwrap()).eq(0..EVENTS));
    // Greeting, first event, what was full, beats, the end.
    let others = 8 + bytes / (64 * 1024) + usize::try_from(time.as_secs()).unwrap();
    let most = usize::try_from(time.as_nanos() / GATHER.as_nanos()).unwrap() + others;
    assert!(pieces <= most, "{pieces} of at most {most}");
}

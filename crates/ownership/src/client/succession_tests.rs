//! The asking side against a guard that this test plays, record by record.
#![expect(clippy::wildcard_enum_match_arm, reason = "a test names what it is about")]

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use super::*;
use crate::client::Answer;
use crate::line::{self, Received};
use crate::number::next_spawn;
use crate::protocol::{MAX_INLINE, Reply, VERSION};
use crate::spawn::{Spawn, SpawnError};

/// Rounds of what depends on which thread is faster.
const ROUNDS: usize = 100;

type Start = JoinHandle<Result<(Arc<Child>, Answer), SpawnError>>;

struct Guard {
    socket: OwnedFd,
    client: Arc<Client>,
}

impl Guard {
    /// Serves a client.
    fn new() -> Self {
        let (ours, theirs) = line::pair().expect("line");
        let guard = Self { socket: theirs, client: Client::given(ours) };
        guard.hello(1);
        guard
    }

    fn say(&self, reply: &Reply, fds: &[OwnedFd]) {
        let fds: Vec<_> = fds.iter().map(AsFd::as_fd).collect();
        line::send(self.socket.as_fd(), &reply.encode(), &fds, true).expect("said");
    }

    /// Without a handle, by which it would be killed when it is slow.
    fn hello(&self, generation: u32) {
        self.say(&Reply::Hello { version: VERSION, pid: 1, generation }, &[]);
    }

    fn hear(&self) -> Request {
        let heard = line::receive(self.socket.as_fd(), &mut vec![0; MAX_INLINE], true);
        let Ok(Received::Record { bytes, .. }) = heard else { panic!("{heard:?}") };
        Request::decode(&bytes).expect("a request")
    }

    /// Reads up to the question of this guard, and gives the starts before it.
    fn hear_resync(&self, generation: u32) -> Vec<u64> {
        let mut starts = Vec::new();
        loop {
            match self.hear() {
                Request::Resync { number } if number == u64::from(generation) => return starts,
                Request::Spawn(order) => starts.push(order.id),
                _ => {}
            }
        }
    }

    fn resynced(&self, generation: u32) {
        self.say(&Reply::Resynced { number: u64::from(generation) }, &[]);
    }

    fn asked(&self) -> Start {
        let client = Arc::clone(&self.client);
        std::thread::spawn(move || client.spawn(next_spawn(), Spawn::new("x"), Box::new(|_| {})))
    }

    /// The next start. A question of a guard that was replaced may come late.
    fn heard_start(&self) -> u64 {
        loop {
            match self.hear() {
                Request::Spawn(order) => return order.id,
                Request::Resync { .. } => {}
                other => panic!("{other:?}"),
            }
        }
    }

    fn started(&self, id: u64) {
        let null = std::fs::File::open("/dev/null").expect("null");
        self.say(&Reply::Started { id, pid: 1, scope: 1 }, &[null.into()]);
    }

    /// Answers a start, and gives the requests that came until the end of its child was asked for.
    fn finish(&self, start: Start, id: u64) -> Vec<Request> {
        self.started(id);
        let (child, _) = start.join().expect("no panic").expect("started");
        self.client.end(&child, Duration::ZERO);
        let mut requests = Vec::new();
        loop {
            match self.hear() {
                Request::End { .. } => return requests,
                other => requests.push(other),
            }
        }
    }
}

fn starts(requests: &[Request]) -> usize {
    requests.iter().filter(|request| matches!(request, Request::Spawn(_))).count()
}

#[test]
fn what_a_guard_took_with_it_is_asked_for_once_again() {
    let guard = Guard::new();
    let start = guard.asked();
    let id = guard.heard_start();
    guard.hello(2);
    assert!(guard.hear_resync(2).is_empty(), "not before the answer");
    guard.resynced(2);
    assert_eq!(guard.heard_start(), id);
    assert_eq!(starts(&guard.finish(start, id)), 0);
}

/// The first guard has done it and said so, and its word came before the next one's hello.
#[test]
fn what_was_answered_is_not_asked_for_again() {
    let guard = Guard::new();
    let start = guard.asked();
    let id = guard.heard_start();
    guard.hello(2);
    guard.hear_resync(2);
    guard.started(id);
    guard.resynced(2);
    let (child, _) = start.join().expect("no panic").expect("started");
    guard.client.end(&child, Duration::ZERO);
    assert!(matches!(guard.hear(), Request::End { .. }), "nothing comes before it");
}

/// The third guard's hello comes together with the second one's answer: whatever was sent to the second one is
/// lost with it, and to the third one it is sent once, whichever thread is faster.
#[test]
fn a_second_replacement_between_answer_and_resend_doubles_nothing() {
    for round in 0..ROUNDS {
        let guard = Guard::new();
        let start = guard.asked();
        let id = guard.heard_start();
        guard.hello(2);
        guard.hear_resync(2);
        guard.resynced(2);
        guard.hello(3);
        let lost = guard.hear_resync(3);
        assert!(lost.len() <= 1, "round {round}: {lost:?}");
        guard.resynced(3);
        assert_eq!(guard.heard_start(), id);
        assert_eq!(starts(&guard.finish(start, id)), 0, "round {round}: twice");
    }
}

/// The second guard dies before it answers, and the third one reads its question too.
#[test]
fn an_answer_to_an_old_question_is_none() {
    for round in 0..ROUNDS {
        let guard = Guard::new();
        let start = guard.asked();
        let id = guard.heard_start();
        guard.hello(2);
        guard.hello(3);
        let lost = guard.hear_resync(3);
        assert!(lost.is_empty(), "round {round}: {lost:?}");
        guard.resynced(2);
        guard.resynced(3);
        assert_eq!(guard.heard_start(), id);
        assert_eq!(starts(&guard.finish(start, id)), 0, "round {round}: twice");
    }
}

/// A keeper tells the end of what was never handed out: that is not the end of the request.
#[test]
fn the_end_of_what_was_not_answered_answers_nothing() {
    let guard = Guard::new();
    let start = guard.asked();
    let id = guard.heard_start();
    let emptied = crate::exit::Emptied::default();
    guard.say(&Reply::Emptied { id, emptied }, &[]);
    guard.hello(2);
    guard.hear_resync(2);
    guard.resynced(2);
    assert_eq!(guard.heard_start(), id);
    guard.finish(start, id);
}

/// The line ends while a thread waits for the answer to its question.
#[test]
fn no_thread_waits_for_guards_that_are_gone() {
    let guard = Guard::new();
    let start = guard.asked();
    guard.heard_start();
    guard.hello(2);
    guard.hear_resync(2);
    let Guard { socket, client } = guard;
    drop(socket);
    assert!(start.join().expect("no panic").is_err(), "it cannot be started any more");
    assert!(
        lock(&client.state).resync.is_none(),
        "who waits for the answer is told that none comes"
    );
}

/// What is wanted is said in the order in which it makes sense, and the last word counts.
#[test]
fn wishes_are_said_again() {
    let guard = Guard::new();
    let start = guard.asked();
    let id = guard.heard_start();
    guard.started(id);
    let (child, _) = start.join().expect("no panic").expect("started");
    let said_again = |generation| {
        guard.hello(generation);
        guard.hear_resync(generation);
        guard.resynced(generation);
        let mut wishes = Vec::new();
        loop {
            match guard.hear() {
                Request::Ping { .. } => return wishes,
                other => wishes.push(other),
            }
        }
    };
    guard.client.pause(&child);
    assert_eq!(said_again(2), [Request::Pause { id }]);
    guard.client.resume(&child);
    assert_eq!(said_again(3), [Request::Resume { id }]);
    guard.client.end(&child, Duration::from_secs(9));
    guard.client.end(&child, Duration::from_secs(1));
    guard.client.end(&child, Duration::from_secs(5));
    let end = Request::End { id, grace: Duration::from_secs(1) };
    assert_eq!(said_again(4), [Request::Resume { id }, end]);
}

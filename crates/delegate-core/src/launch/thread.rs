//! The in-thread launcher: the very same `serve` on a thread of this process, over a memory link.
//!
//! The oracle of every parity test. A thread cannot be killed, and what it prints itself goes where we
//! print; what a program that it runs prints is kept through two pipes. What its agent starts gets a
//! scope of its own, opened when it is first needed.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use delegate_child::{Ending, Host, Kept, OwnerSource, Registry, link, serve_beside};
use ownership::{ChildEvent, Emptied, Exit, ExitStatus, Owner, Reached, Scope, Usage};

use super::{Handle, Launch, Launched, Line, Sink, StartFailure, failure};

/// Starts one worker thread.
pub(super) fn launch(
    registry: &Registry,
    owner: Option<Owner>,
    launch: Launch,
) -> Result<Launched, StartFailure> {
    let (link, half) = link::memory(launch.waker);
    let open: Open = Box::new(move |purpose, sink| open(owner.as_ref()?, purpose, sink));
    let scope = Arc::new(LazyScope::new(launch.purpose, launch.sink, open));
    let (kept, output) = Kept::pipes().map_err(|error| failure("pipes", &error))?;
    let (registry, inner) = (registry.clone(), Arc::clone(&scope));
    let opener = Arc::clone(&scope);
    let host = Host {
        owner: OwnerSource::lazy(move || opener.owner()),
        output: kept,
        pid: 0,
        program_version: env!("CARGO_PKG_VERSION").to_owned(),
    };
    thread::Builder::new()
        .name("delegate-child".to_owned())
        .spawn(move || {
            let served = serve_beside(link, &registry, host, &inner.ending);
            if let Err(error) = served {
                tracing::debug!(target: "delegate::launch::thread", %error, "the line ended");
            }
            inner.returned();
        })
        .map_err(|error| failure("thread", &error))?;
    Ok(Launched {
        pid: None,
        how: "thread",
        handle: Handle::Thread(scope),
        line: Line::Memory(half),
        output: Some(output),
        // It is told by its token, and tells by frames that are memory already.
        page: None,
    })
}

/// Makes a scope; blocks until the supervisor has answered.
type Open = Box<dyn Fn(&str, Sink) -> Option<Scope> + Send + Sync>;

fn open(owner: &Owner, purpose: &str, sink: Sink) -> Option<Scope> {
    match owner.scope(purpose, move |event| sink(event)) {
        Ok(scope) => Some(scope),
        Err(error) => {
            tracing::warn!(target: "delegate::launch::thread", %error, "no scope");
            None
        }
    }
}

/// The scope of what a thread starts; there is none before it starts something.
pub struct LazyScope {
    purpose: String,
    sink: Sink,
    open: Open,
    ending: Ending,
    /// Never held while something is waited for: the loop of the batch takes it too.
    state: Mutex<State>,
}

enum State {
    /// None yet. One that was ended is opened no more.
    Unopened,
    Open(Scope),
    Closed,
}

impl fmt::Debug for LazyScope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LazyScope({})", self.purpose)
    }
}

impl LazyScope {
    fn new(purpose: String, sink: Sink, open: Open) -> Self {
        let (ending, state) = (Ending::default(), Mutex::new(State::Unopened));
        Self { purpose, sink, open, ending, state }
    }

    /// The owner of this scope; `None` where processes cannot be owned, or after its end. Asked once,
    /// by the thread of the agent.
    fn owner(&self) -> Option<Owner> {
        if !matches!(*self.lock(), State::Unopened) {
            return None;
        }
        let scope = (self.open)(&self.purpose, Arc::clone(&self.sink))?;
        let mut state = self.lock();
        if let State::Unopened = *state {
            let owner = scope.owner();
            *state = State::Open(scope);
            return Some(owner);
        }
        // Ended meanwhile: dropping it ends it.
        drop(state);
        None
    }

    /// The thread is back: tells the end, and ends what the agent left.
    fn returned(&self) {
        (self.sink)(ChildEvent::Exited(Exit {
            status: ExitStatus::Code(0),
            usage: Usage::default(),
            reached: Reached::default(),
        }));
        let before = std::mem::replace(&mut *self.lock(), State::Closed);
        match before {
            // Dropping the scope ends it; the supervisor tells when it is empty.
            State::Open(scope) => drop(scope),
            State::Unopened | State::Closed => {
                (self.sink)(ChildEvent::Emptied(Emptied::default()));
            }
        }
    }

    /// Said to the agent first: a program of its that we end has not failed.
    pub(super) fn end(&self, grace: Duration) {
        self.ending.announce();
        let mut state = self.lock();
        match &*state {
            State::Open(scope) => scope.end(grace),
            State::Unopened => *state = State::Closed,
            State::Closed => {}
        }
    }

    pub(super) fn pause(&self) {
        if let State::Open(scope) = &*self.lock() {
            scope.pause();
        }
    }

    pub(super) fn resume(&self) {
        if let State::Open(scope) = &*self.lock() {
            scope.resume();
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use delegate_child::{Agent, Failure, Session};
    use delegate_protocol::frame::Encoder;
    use delegate_protocol::{ParentEnd, ParentMessage, Value, spec::sample};
    use std::sync::Barrier;

    fn scope(open: Open) -> Arc<LazyScope> {
        Arc::new(LazyScope::new("test".to_owned(), Arc::new(|_| {}), open))
    }

    #[test]
    fn who_ends_a_scope_does_not_wait_for_a_supervisor_that_opens_it() {
        static DOOR: Barrier = Barrier::new(2);
        fn slow(_: &str, _: Sink) -> Option<Scope> {
            DOOR.wait();
            DOOR.wait();
            None
        }
        let scope = scope(Box::new(slow));
        let (opening, ending) = (Arc::clone(&scope), Arc::clone(&scope));
        let opener = thread::spawn(move || opening.owner().is_none());
        DOOR.wait();
        let (done, ended) = crossbeam_channel::bounded(1);
        let ender = thread::spawn(move || {
            ending.pause();
            ending.resume();
            ending.end(Duration::ZERO);
            done.send(()).unwrap();
        });
        let in_time = ended.recv_timeout(Duration::from_secs(10));
        DOOR.wait();
        assert!(opener.join().unwrap());
        ender.join().unwrap();
        assert_eq!(in_time, Ok(()));
    }

    #[test]
    fn a_scope_that_was_ended_is_opened_no_more() {
        let scope = scope(Box::new(|_, _| panic!("it was opened")));
        scope.end(Duration::ZERO);
        assert!(scope.owner().is_none());
    }

    /// Says how its session stood when its program had ended.
    struct Follower(crossbeam_channel::Sender<bool>);

    impl Agent for Follower {
        const NAME: &'static str = "follower";
        type Params = Value;
        type Answer = String;

        fn run(&mut self, _: Value, session: &mut Session) -> Result<String, Failure> {
            while !session.is_interrupted() {
                thread::yield_now();
            }
            self.0.send(true).unwrap();
            Err(Failure::new("its program was killed"))
        }
    }

    /// The line may come later than the end of the agent's program.
    #[test]
    fn who_is_ended_knows_it_without_a_word_on_its_line() {
        let (tell, told) = crossbeam_channel::bounded(1);
        let registry = Registry::default().with(move || Follower(tell.clone()));
        let launch = Launch {
            agent: Follower::NAME.to_owned(),
            purpose: "test".to_owned(),
            terminate_grace: Duration::ZERO,
            containment: ownership::Containment::Auto,
            ration: ownership::Ration::default(),
            sink: Arc::new(|_| {}),
            waker: Arc::new(|| {}),
            again: None,
        };
        let launched = launch_for_test(&registry, launch);
        let Line::Memory(half) = launched.line else { panic!("a thread has no socket") };
        let begin = ParentMessage::Begin(Box::new(sample(0, Follower::NAME, "goal")));
        let mut frame = Vec::new();
        Encoder::<ParentEnd>::default().frame(&begin, &mut frame).unwrap();
        assert!(half.send(frame).is_ok());
        assert!(told.recv_timeout(Duration::from_millis(50)).is_err(), "it runs");
        launched.handle.end(Duration::ZERO);
        assert_eq!(told.recv_timeout(Duration::from_secs(20)), Ok(true));
    }

    fn launch_for_test(registry: &Registry, launch: Launch) -> Launched {
        super::launch(registry, None, launch).unwrap_or_else(|_| panic!("a thread starts"))
    }
}

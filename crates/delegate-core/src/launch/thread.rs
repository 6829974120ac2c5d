//! The in-thread launcher: the very same `serve` on a thread of this process, over a memory link.
//!
//! The oracle of every parity test. A thread cannot be killed, and what it prints itself goes where we print;
//! what a program that it runs prints is kept through two pipes. What its agent starts gets a scope of its own, opened when it is first needed.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use delegate_child::{Host, Kept, OwnerSource, Registry, link, serve};
use ownership::{ChildEvent, Emptied, Exit, ExitStatus, Owner, Scope, Usage};

use super::{Handle, Launch, Launched, Line, Sink, StartFailure, failure, program};

/// Starts one worker thread.
pub(super) fn launch(registry: &Registry, launch: Launch) -> Result<Launched, StartFailure> {
    let (link, half) = link::memory(launch.waker);
    let scope = Arc::new(LazyScope {
        purpose: launch.purpose,
        sink: launch.sink,
        state: Mutex::new(State::Unopened),
    });
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
            let served = serve(link, &registry, host);
            if let Err(error) = served {
                tracing::debug!(target: "delegate::launch::thread", %error, "the line ended");
            }
            inner.returned();
        })
        .map_err(|error| failure("thread", &error))?;
    Ok(Launched {
        pid: None,
        handle: Handle::Thread(scope),
        line: Line::Memory(half),
        output: Some(output),
    })
}

/// The scope of what a thread starts; there is none before it starts something.
pub struct LazyScope {
    purpose: String,
    sink: Sink,
    state: Mutex<State>,
}

enum State {
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
    /// The owner of this scope; `None` where processes cannot be owned, or after its end.
    fn owner(&self) -> Option<Owner> {
        let mut state = self.lock();
        if let State::Unopened = *state {
            let sink = Arc::clone(&self.sink);
            match program::owner()?.scope(&self.purpose, move |event| sink(event)) {
                Ok(scope) => *state = State::Open(scope),
                Err(error) => {
                    tracing::warn!(target: "delegate::launch::thread", %error, "no scope");
                    return None;
                }
            }
        }
        match &*state {
            State::Open(scope) => Some(scope.owner()),
            State::Unopened | State::Closed => None,
        }
    }

    /// The thread is back: tells the end, and ends what the agent left.
    fn returned(&self) {
        (self.sink)(ChildEvent::Exited(Exit {
            status: ExitStatus::Code(0),
            usage: Usage::default(),
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

    pub(super) fn end(&self, grace: Duration) {
        if let State::Open(scope) = &*self.lock() {
            scope.end(grace);
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

//! Workers of a pool that carry several children, one after the other. The worker says how each child has left its process
//! (`delegate_child::worker::again`); as long as that is as it was found, it goes back to the shelf.
//!
//! To whoever launched the child it is a worker like any other: it is told the end of a process that has left nothing. The process
//! itself lives on. A child that ends otherwise, and one that is ended, takes its worker with it, and the events are the real ones.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Weak};
use std::thread;

use delegate_child::worker::again::SAME;
use ownership::{ChildEvent, Emptied, Exit, ExitStatus, Owned, exit, handover};

use super::{Idle, Relay, Stock, Waits};
use crate::launch::exec::Pipes;
use crate::launch::{Handle, Launched, StartFailure, failure};

/// A worker that has carried a child, and waits for another.
#[derive(Debug)]
pub(super) struct Used {
    owned: Arc<Owned>,
    line: Arc<OwnedFd>,
}

impl Used {
    pub(super) fn pid(&self) -> u32 {
        self.owned.pid()
    }

    pub(super) fn handle(&self) -> Handle {
        Handle::Process(Arc::clone(&self.owned))
    }

    /// Gives it what the next child needs.
    pub(super) fn launch(self) -> Result<Launched, StartFailure> {
        let pipes = Pipes::open().map_err(|error| failure("pipes", &error))?;
        let (theirs, ours) = pipes.split();
        let fds: Vec<_> = theirs.iter().map(AsFd::as_fd).collect();
        handover::send(&self.line, SAME, &fds).map_err(|error| failure("handover", &error))?;
        Ok(ours.launched(self.owned, "pool"))
    }
}

/// Whether it was started as one that can be used again: one that had to be executed cannot.
pub(super) fn can(launched: &Launched) -> bool {
    launched.how == "zygote"
}

/// Waits for what one worker says.
#[derive(Debug)]
pub(super) struct Watch {
    pub(super) stock: Weak<Stock>,
    pub(super) agent: String,
    pub(super) relay: Arc<Relay>,
    pub(super) surroundings: u64,
}

impl Watch {
    /// On a thread of its own, which ends with the worker. Where there is none the worker carries one child: nobody gives it
    /// another, and it leaves when the line is closed.
    pub(super) fn start(self, handle: &Handle, line: Arc<OwnedFd>, most: u32) {
        let Handle::Process(owned) = handle else { return };
        // Whoever launched it holds it: a worker that is given up must end.
        let owned = Arc::downgrade(owned);
        let thread = thread::Builder::new().name("delegate-reuse".to_owned());
        let watch = move || {
            self.run(&owned, line, most);
            // Another one is to be started in its place.
            let Some(stock) = self.stock.upgrade() else { return };
            if self.relay.is_connected() {
                stock.is_back(&self.agent);
            }
            stock.want_more();
        };
        if let Err(error) = thread.spawn(watch) {
            tracing::warn!(target: "delegate::launch::pool", %error, "a worker is not used again");
        }
    }

    fn run(&self, owned: &Weak<Owned>, line: Arc<OwnedFd>, most: u32) {
        for uses in 1.. {
            let said = match handover::receive(&line) {
                Ok(Some(handed)) => handed.bytes,
                Ok(None) | Err(_) => return,
            };
            if said != SAME {
                let why = String::from_utf8_lossy(&said);
                tracing::debug!(target: "delegate::launch::pool", agent = self.agent, %why, "retired");
                return;
            }
            let (Some(owned), Some(stock)) = (owned.upgrade(), self.stock.upgrade()) else {
                return;
            };
            // Ended meanwhile: that is told.
            let Some(sink) = self.relay.disconnect() else { return };
            let last = uses >= most;
            if last {
                stock.is_back(&self.agent);
            } else {
                let waits = Waits::Used(Used { owned, line: Arc::clone(&line) });
                let relay = Arc::clone(&self.relay);
                stock
                    .give_back(&self.agent, Idle { waits, relay, surroundings: self.surroundings });
            }
            // What its process used is that of several children, and is told when it leaves.
            let (usage, reached) = (exit::Usage::default(), exit::Reached::default());
            sink(ChildEvent::Exited(Exit { status: ExitStatus::Code(0), usage, reached }));
            sink(ChildEvent::Emptied(Emptied::default()));
            if last {
                return;
            }
        }
    }
}

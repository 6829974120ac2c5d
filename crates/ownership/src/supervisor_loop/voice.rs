//! What is said on a line: at once where there is room, else later and in order, never lost and never
//! waited for.

use std::collections::VecDeque;
use std::os::fd::{AsFd, OwnedFd};

use rustix::io::Errno;

use crate::identity;
use crate::line;
use crate::protocol::{Reply, VERSION};

/// One line and what waits to be said on it.
pub(super) struct Line {
    pub(super) socket: OwnedFd,
    pub(super) waiting: VecDeque<(Vec<u8>, Option<OwnedFd>)>,
    /// The kernel lacks something else than room, of which `poll` would know nothing.
    pub(super) starved: bool,
}

impl Line {
    /// With the supervisor's own handle for its owner, who may have to reap it.
    pub(super) fn new(socket: OwnedFd, own_handle: Option<OwnedFd>) -> Self {
        let hello = Reply::Hello { version: VERSION, pid: identity::own_pid() };
        Self { socket, waiting: VecDeque::from([(hello.encode(), own_handle)]), starved: false }
    }

    /// Whether `poll` can tell when the next word may be said.
    pub(super) fn waits_for_room(&self) -> bool {
        !self.waiting.is_empty() && !self.starved
    }

    /// Says what can be said without waiting. `false` when nobody is there to hear it.
    pub(super) fn flush(&mut self) -> bool {
        self.starved = false;
        while let Some((bytes, fd)) = self.waiting.front() {
            let fds: Vec<_> = fd.iter().map(AsFd::as_fd).collect();
            match line::send(self.socket.as_fd(), bytes, &fds, false) {
                Ok(()) => drop(self.waiting.pop_front()),
                Err(Errno::AGAIN) => return true,
                // TOOMANYREFS: more descriptors are under way than one user may have.
                Err(Errno::TOOMANYREFS | Errno::NOBUFS | Errno::NOMEM) => {
                    self.starved = true;
                    return true;
                }
                Err(_) => {
                    self.waiting.clear();
                    return false;
                }
            }
        }
        true
    }
}

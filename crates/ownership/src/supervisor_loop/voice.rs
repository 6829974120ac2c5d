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
}

impl Line {
    pub(super) fn new(socket: OwnedFd) -> Self {
        let hello = Reply::Hello { version: VERSION, pid: identity::own_pid() };
        Self { socket, waiting: VecDeque::from([(hello.encode(), None)]) }
    }

    /// Says what can be said without waiting. `false` when nobody is there to hear it.
    pub(super) fn flush(&mut self) -> bool {
        while let Some((bytes, fd)) = self.waiting.front() {
            let fds: Vec<_> = fd.iter().map(AsFd::as_fd).collect();
            match line::send(self.socket.as_fd(), bytes, &fds, false) {
                Ok(()) => drop(self.waiting.pop_front()),
                // TOOMANYREFS: more descriptors under way than one process may have; told later.
                Err(Errno::AGAIN | Errno::TOOMANYREFS | Errno::NOBUFS | Errno::NOMEM) => {
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

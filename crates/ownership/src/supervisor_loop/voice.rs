//! What is said on a line: at once where there is room, else later and in order, never lost and never
//! waited for.

use std::collections::VecDeque;
use std::os::fd::{AsFd, OwnedFd};

use rustix::io::Errno;

use crate::line;
use crate::protocol::Reply;
use crate::table::{Flag, Slot};

/// What may be noted in the table once a word was heard.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Heard {
    Flag(Slot, Flag),
    /// The last word about a scope.
    Free(Slot),
}

/// Something to be said.
pub(super) struct Word {
    pub(super) bytes: Vec<u8>,
    pub(super) fds: Vec<OwnedFd>,
    pub(super) heard: Option<Heard>,
}

impl Word {
    pub(super) fn new(reply: &Reply, fds: Vec<OwnedFd>) -> Self {
        Self { bytes: reply.encode(), fds, heard: None }
    }
}

/// One line and what waits to be said on it.
pub(super) struct Line {
    pub(super) socket: OwnedFd,
    pub(super) waiting: VecDeque<Word>,
    /// The kernel lacks something else than room, of which `poll` would know nothing.
    pub(super) starved: bool,
}

impl Line {
    pub(super) fn new(socket: OwnedFd) -> Self {
        Self { socket, waiting: VecDeque::new(), starved: false }
    }

    /// Whether `poll` can tell when the next word may be said.
    pub(super) fn waits_for_room(&self) -> bool {
        !self.waiting.is_empty() && !self.starved
    }

    /// Says what can be said without waiting, and notes what was heard. `false` when nobody is there to
    /// hear it: then it counts as heard.
    pub(super) fn flush(&mut self, heard: &mut Vec<Heard>) -> bool {
        self.starved = false;
        while let Some(word) = self.waiting.front() {
            let fds: Vec<_> = word.fds.iter().map(AsFd::as_fd).collect();
            match line::send(self.socket.as_fd(), &word.bytes, &fds, false) {
                Ok(()) => heard.extend(self.waiting.pop_front().and_then(|word| word.heard)),
                Err(Errno::AGAIN) => return true,
                // TOOMANYREFS: more descriptors are under way than one user may have.
                Err(Errno::TOOMANYREFS | Errno::NOBUFS | Errno::NOMEM) => {
                    self.starved = true;
                    return true;
                }
                Err(_) => {
                    self.silence(heard);
                    return false;
                }
            }
        }
        true
    }

    /// Nobody hears what waits here.
    pub(super) fn silence(&mut self, heard: &mut Vec<Heard>) {
        heard.extend(self.waiting.drain(..).filter_map(|word| word.heard));
    }
}

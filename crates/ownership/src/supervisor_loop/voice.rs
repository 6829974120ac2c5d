//! What is said on a line: at once where there is room, else later and in order, never lost and never
//! waited for. An owner that executes another program is away for a while: what happens to its children is kept
//! for that program, beside what the one before it may not have read.

use std::collections::VecDeque;
use std::os::fd::{AsFd, OwnedFd};

use rustix::io::Errno;

use crate::hook;
use crate::line;
use crate::protocol::{Back, Reply};
use crate::sys::socket;
use crate::table::{Flag, Slot};

/// Most words that count as not read yet: more than the kernel's buffer of a socket holds.
const MAX_UNREAD: usize = 1024;

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
    /// What happened to a child of the owner, and which one that is.
    pub(super) news: Option<Back>,
}

impl Word {
    pub(super) fn new(reply: &Reply, fds: Vec<OwnedFd>) -> Self {
        Self { bytes: reply.encode(), fds, heard: None, news: None }
    }
}

/// One line and what waits to be said on it.
pub(super) struct Line {
    pub(super) socket: OwnedFd,
    pub(super) waiting: VecDeque<Word>,
    /// The kernel lacks something else than room, of which `poll` would know nothing.
    pub(super) starved: bool,
    /// News that was said, and may not have been read.
    unread: VecDeque<Word>,
    /// News for who is not there, or does not know yet whom it is about.
    held: Option<Vec<Word>>,
    /// The other end is closed, and somebody may come back to it.
    pub(super) away: bool,
}

impl Line {
    pub(super) fn new(socket: OwnedFd) -> Self {
        let (waiting, unread) = (VecDeque::new(), VecDeque::new());
        Self { socket, waiting, starved: false, unread, held: None, away: false }
    }

    /// Says it as soon as it may be said.
    pub(super) fn say(&mut self, word: Word) {
        match &mut self.held {
            Some(held) if word.news.is_some() => held.push(word),
            _ if self.away => {}
            _ => self.waiting.push_back(word),
        }
    }

    /// The other end was closed: the news are kept, and the rest is of no use to who comes next.
    pub(super) fn go_away(&mut self) {
        let held = self.held.take().unwrap_or_default();
        let said = self.unread.drain(..).chain(self.waiting.drain(..));
        self.held = Some(said.filter(|word| word.news.is_some()).chain(held).collect());
        self.away = true;
    }

    /// Somebody is there again. The news wait until it was told whom they are about.
    pub(super) fn come_back(&mut self, socket: OwnedFd) {
        if !self.away {
            self.go_away();
        }
        self.socket = socket;
        self.away = false;
    }

    /// News that are held back.
    pub(super) fn held(&self) -> &[Word] {
        self.held.as_deref().unwrap_or_default()
    }

    /// They may be said.
    pub(super) fn tell_held(&mut self) {
        self.waiting.extend(self.held.take().into_iter().flatten());
    }

    /// Whether `poll` can tell when the next word may be said.
    pub(super) fn waits_for_room(&self) -> bool {
        !self.waiting.is_empty() && !self.starved && !self.away
    }

    /// Says what can be said without waiting, and notes what was heard. `false` when nobody is there to
    /// hear it.
    pub(super) fn flush(&mut self, heard: &mut Vec<Heard>) -> bool {
        self.starved = false;
        if self.away {
            return true;
        }
        while let Some(word) = self.waiting.front() {
            let fds: Vec<_> = word.fds.iter().map(AsFd::as_fd).collect();
            if !self.unread.is_empty() && socket::is_all_read(self.socket.as_fd()) {
                self.unread.clear();
            }
            match line::send(self.socket.as_fd(), &word.bytes, &fds, false) {
                Ok(()) => self.was_said(heard),
                Err(Errno::AGAIN) => return true,
                // TOOMANYREFS: more descriptors are under way than one user may have.
                Err(Errno::TOOMANYREFS | Errno::NOBUFS | Errno::NOMEM) => {
                    self.starved = true;
                    return true;
                }
                Err(_) => return false,
            }
        }
        true
    }

    fn was_said(&mut self, heard: &mut Vec<Heard>) {
        let Some(mut word) = self.waiting.pop_front() else { return };
        heard.extend(word.heard.take());
        if word.news.is_some() && !hook::is_off("unread") {
            self.unread.push_back(word);
            if self.unread.len() > MAX_UNREAD {
                self.unread.pop_front();
            }
        }
    }

    /// Nobody hears what waits here.
    pub(super) fn silence(&mut self, heard: &mut Vec<Heard>) {
        let held = self.held.take().into_iter().flatten();
        heard.extend(self.waiting.drain(..).chain(held).filter_map(|word| word.heard));
    }
}

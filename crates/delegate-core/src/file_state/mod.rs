//! Files that the agents of one tree share: one [`registry`] of who read and changed what, and one table of
//! [`locks`], both held by the parent. Children ask through their line ([`delegate_protocol::file`], answered
//! by [`crate::run`]); the agent at the root has [`Files`].
//!
//! It advises: nothing here keeps anybody from writing. `DELEGATE_DISABLE_FILE_STATE_GUARD=1` turns all of
//! it off.

mod capped;
mod files;
pub mod locks;
pub mod registry;
mod reminder;

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use delegate_protocol::file::{Busy, Change, FileAnswer, FileQuestion, Staleness, Stamp};
use delegate_protocol::outcome::PATH_BYTES;

pub use self::files::{Files, PathLock};
pub use self::reminder::{NAMED, remind};

use self::locks::{Asked, Locks, Ticket};
use self::registry::{Registry, Who};

/// The variable that turns it off, with `1` or `true`.
pub const SWITCH: &str = "DELEGATE_DISABLE_FILE_STATE_GUARD";

/// Called once, when a lock is had.
type Wake = Box<dyn FnOnce() + Send>;

#[derive(Default)]
struct State {
    registry: Registry,
    locks: Locks,
    waiting: HashMap<Ticket, Wake>,
}

impl fmt::Debug for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("State").field("waiting", &self.waiting.len()).finish_non_exhaustive()
    }
}

/// The file state of one tree; clones share it.
#[derive(Debug, Clone)]
pub struct FileState {
    /// `None`: it is switched off.
    state: Option<Arc<Mutex<State>>>,
}

/// What became of asking for a lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Turn {
    /// It is there.
    Now(Ticket),
    /// The waker will be called.
    Later(Ticket),
    /// The agent has too many.
    TooMany,
}

impl FileState {
    /// An empty one; one that is switched off knows nothing, warns of nothing and lets everybody in.
    #[must_use]
    pub fn new(is_on: bool) -> Self {
        Self { state: is_on.then(Arc::default) }
    }

    /// As the variable [`SWITCH`] says.
    #[must_use]
    pub fn switched_by(value: Option<&str>) -> Self {
        Self::new(!matches!(value, Some("1" | "true")))
    }

    fn state(&self) -> Option<MutexGuard<'_, State>> {
        let state = self.state.as_ref()?;
        Some(state.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// A child of `parent` begins.
    pub fn enter(&self, who: Who, parent: Who) {
        if let Some(mut state) = self.state() {
            state.registry.enter(who, parent);
        }
    }

    /// A child has ended, and nothing of it can write any more. Gives its locks back, and what its parent has
    /// to hear ([`remind`]).
    #[must_use]
    pub fn leave(&self, who: &Who, now: SystemTime) -> Vec<String> {
        let Some(mut state) = self.state() else { return Vec::new() };
        let stale = state.registry.stale_for_parent(who);
        state.registry.leave(who);
        let turns = state.locks.leave(who, millis(now));
        let wakes: Vec<_> =
            turns.iter().filter_map(|ticket| state.waiting.remove(ticket)).collect();
        drop(state);
        wakes.into_iter().for_each(|wake| wake());
        stale.into_iter().map(|(path, done)| reminder::line(&path, &done)).collect()
    }

    /// Answers a question that needs no waiting; `None` for a lock ([`FileState::lock`]).
    #[must_use]
    pub fn answer(
        &self,
        who: &Who,
        question: &FileQuestion,
        now: SystemTime,
    ) -> Option<FileAnswer> {
        match question {
            FileQuestion::Read { path, stamp, partial } => {
                self.read(who, path, *stamp, *partial, now);
            }
            FileQuestion::Changed { path, change } => self.changed(who, path, change, now),
            FileQuestion::Check { path, found } => {
                return Some(FileAnswer::Checked(self.check(who, path, found.as_ref())));
            }
            FileQuestion::Unlock { lock } => self.unlock(who, *lock, now),
            FileQuestion::Lock { .. } => return None,
        }
        Some(FileAnswer::Noted)
    }

    /// Asks for a path. `wake` is called when its turn comes, unless [`FileState::give_up`] was first.
    #[must_use]
    pub fn lock(&self, who: &Who, path: &str, now: SystemTime, wake: Wake) -> Turn {
        let Some(mut state) = self.state() else { return Turn::Now(0) };
        match state.locks.ask(who, path, millis(now)) {
            Asked::Granted(ticket) => Turn::Now(ticket),
            Asked::Waits(ticket) => {
                state.waiting.insert(ticket, wake);
                Turn::Later(ticket)
            }
            Asked::TooMany => Turn::TooMany,
        }
    }

    /// The time is over: `Ok` when its turn came in the same moment, else who has it.
    ///
    /// # Errors
    /// Who has the path. The wish is given up.
    pub fn give_up(&self, who: &Who, ticket: Ticket, now: SystemTime) -> Result<(), Busy> {
        let Some(mut state) = self.state() else { return Ok(()) };
        state.waiting.remove(&ticket);
        let now = millis(now);
        let Some(busy) = state.locks.busy(ticket, now) else { return Ok(()) };
        let turn = state.locks.release(who, ticket, now);
        debug_assert_eq!(turn, None, "it only waited");
        Err(busy)
    }

    /// Gives a lock back.
    pub fn unlock(&self, who: &Who, ticket: Ticket, now: SystemTime) {
        let Some(mut state) = self.state() else { return };
        let turn = state.locks.release(who, ticket, millis(now));
        let wake = turn.and_then(|turn| state.waiting.remove(&turn));
        drop(state);
        if let Some(wake) = wake {
            wake();
        }
    }

    /// It read a file.
    pub fn read(
        &self,
        who: &Who,
        path: &str,
        stamp: Option<Stamp>,
        partial: bool,
        now: SystemTime,
    ) {
        if let Some(mut state) = self.state() {
            state.registry.read(who, path, stamp, partial, millis(now));
        }
    }

    /// It changed a file.
    pub fn changed(&self, who: &Who, path: &str, change: &Change, now: SystemTime) {
        if let Some(mut state) = self.state() {
            state.registry.changed(who, path, change, millis(now));
        }
    }

    /// What speaks against its writing a file, of which it just saw `found`.
    #[must_use]
    pub fn check(&self, who: &Who, path: &str, found: Option<&Stamp>) -> Option<Staleness> {
        self.state()?.registry.check(who, path, found)
    }
}

/// A path of a peer may be of any length, and relative to what only it knows. Why a question cannot be
/// answered.
#[must_use]
pub fn refusal(question: &FileQuestion) -> Option<String> {
    let paths: [Option<&str>; 2] = match question {
        FileQuestion::Read { path, .. }
        | FileQuestion::Check { path, .. }
        | FileQuestion::Lock { path, .. } => [Some(path), None],
        FileQuestion::Changed { path, change } => match change {
            Change::Renamed { to, .. } => [Some(path), Some(to)],
            Change::Written(_) | Change::Deleted => [Some(path), None],
        },
        FileQuestion::Unlock { .. } => [None, None],
    };
    paths.into_iter().flatten().find_map(|path| {
        if path.len() > PATH_BYTES {
            Some(format!("a path has {} bytes, at most {PATH_BYTES} are taken", path.len()))
        } else if !path.starts_with('/') {
            Some("a path is not absolute".to_owned())
        } else {
            None
        }
    })
}

/// Since 1970; before it is 0.
fn millis(time: SystemTime) -> u64 {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use delegate_protocol::SubagentId;

    fn who(index: u32) -> Who {
        Who::Child(SubagentId::new(index, 1))
    }

    fn lock(state: &FileState, index: u32) -> Turn {
        state.lock(&who(index), "/a", UNIX_EPOCH, Box::new(|| {}))
    }

    /// What a child asks, with and without the guard: what the tests of it find is the guard's work.
    #[test]
    fn switched_off_it_knows_nothing_and_lets_everybody_in() {
        for (value, is_on) in
            [(None, true), (Some("0"), true), (Some("1"), false), (Some("true"), false)]
        {
            let state = FileState::switched_by(value);
            state.enter(who(0), Who::Parent("".into()));
            let stamp = Stamp { size: 0, mtime_ns: 0, device: 0, inode: 0, hash: None };
            state.read(&Who::Parent("".into()), "/a", Some(stamp), false, UNIX_EPOCH);
            let change = Change::Written(Some(stamp));
            let changed = FileQuestion::Changed { path: "/a".to_owned(), change };
            assert_eq!(state.answer(&who(0), &changed, UNIX_EPOCH), Some(FileAnswer::Noted));
            let check = FileQuestion::Check { path: "/a".to_owned(), found: Some(stamp) };
            let told = state.answer(&who(1), &check, UNIX_EPOCH);
            assert_eq!(told != Some(FileAnswer::Checked(None)), is_on, "{value:?}: {told:?}");
            assert!(matches!(lock(&state, 0), Turn::Now(_)));
            assert_eq!(matches!(lock(&state, 1), Turn::Later(_)), is_on, "{value:?}");
            assert_eq!(state.leave(&who(0), UNIX_EPOCH).len(), usize::from(is_on), "{value:?}");
        }
    }

    #[test]
    fn a_turn_that_comes_in_the_moment_of_giving_up_is_taken() {
        let state = FileState::new(true);
        let Turn::Now(first) = lock(&state, 0) else { panic!("nobody has it") };
        let Turn::Later(second) = lock(&state, 1) else { panic!("it is held") };
        let Turn::Later(third) = lock(&state, 2) else { panic!("it is held") };
        state.unlock(&who(0), first, UNIX_EPOCH);
        assert_eq!(state.give_up(&who(1), second, UNIX_EPOCH), Ok(()));
        assert!(state.give_up(&who(2), third, UNIX_EPOCH).is_err());
        drop(state.leave(&who(1), UNIX_EPOCH));
        assert!(state.state().unwrap().locks.is_empty());
    }

    #[test]
    fn a_path_that_is_too_long_or_relative_is_refused() {
        let check =
            |path: &str| refusal(&FileQuestion::Check { path: path.to_owned(), found: None });
        assert_eq!(check("/a"), None);
        assert!(check("a").unwrap().contains("not absolute"));
        assert!(check(&"/".repeat(PATH_BYTES + 1)).unwrap().contains("4097 bytes"));
        let change = Change::Renamed { to: "b".to_owned(), stamp: None };
        assert!(refusal(&FileQuestion::Changed { path: "/a".to_owned(), change }).is_some());
    }
}

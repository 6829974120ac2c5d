//! An owner that executed another program: its line has ended, and it lives. The guard that serves opens a
//! [`Door`] at which the new program finds it; whoever else knocks is sent away at once.
//!
//! The line of the new program goes to the other guard before anything is said on it, so that it is lost with
//! neither. What lives is told then (`recount`).

use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use super::{BATCH, LOOK_AGAIN, Loop, now};
use crate::door::{self, Door, Hall, Name};
use crate::journal;
use crate::peer::{Held, Note};
use crate::registry::ScopeId;

/// An owner that dies closes its line a moment before it is dead: for that no door is opened.
const MOMENT: Duration = Duration::from_millis(10);

/// Whoever tidies up temporary files may remove a door while an owner is away, which is not told: it is looked after that
/// time, and then ever more seldom.
const FIRST_LOOK: Duration = Duration::from_millis(250);
const SLOWEST_LOOK: Duration = Duration::from_secs(60);

/// How far the guard is with the door.
#[derive(Default)]
pub(super) struct Doorway {
    state: State,
    open: Option<Door>,
    /// The owner's next program, as long as the other guard was not told.
    caller: Option<OwnedFd>,
}

/// What is to be done about the door.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum State {
    /// The owner is there, or nobody waits for it.
    #[default]
    None,
    /// It is away since a moment ago.
    Due(Instant),
    /// It is looked after then, and after that time twice.
    Open(Instant, Duration),
    /// There can be none.
    Refused,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    Nothing,
    Open,
    /// To see whether it is there, and else to open it again.
    Look,
    Close,
}

impl State {
    /// What is to be done now, and the state after that, where the guard `waits`: it serves an owner that lives
    /// and is away. [`Step::Open`] may fail.
    fn step(self, waits: bool, now: Instant) -> (Self, Step) {
        match self {
            Self::Open(..) if !waits => (Self::None, Step::Close),
            Self::None | Self::Due(_) | Self::Refused if !waits => (Self::None, Step::Nothing),
            Self::None => (Self::Due(now + MOMENT), Step::Nothing),
            Self::Due(at) if now >= at => (Self::Open(now + FIRST_LOOK, FIRST_LOOK), Step::Open),
            Self::Open(at, pause) if now >= at => {
                let pause = (pause * 2).min(SLOWEST_LOOK);
                (Self::Open(now + pause, pause), Step::Look)
            }
            Self::Due(_) | Self::Open(..) | Self::Refused => (self, Step::Nothing),
        }
    }
}

impl Doorway {
    pub(super) fn listener(&self) -> Option<&OwnedFd> {
        self.open.as_ref().map(Door::listener)
    }

    pub(super) fn due(&self) -> Option<Instant> {
        match self.state {
            State::Due(at) | State::Open(at, _) => Some(at),
            State::None | State::Refused => None,
        }
    }
}

impl Loop {
    /// The owner's line has ended, and not the owner.
    pub(super) fn owner_went_away(&mut self) {
        self.recount = None;
        if let Some(line) = self.lines.get_mut(&ScopeId::ALL) {
            line.go_away();
        }
    }

    /// In each turn.
    pub(super) fn look_after_door(&mut self) {
        let line = self.lines.get(&ScopeId::ALL);
        let waits = line.is_some_and(|line| line.away) && self.serves && !self.leaving;
        let (state, step) = self.doorway.state.step(waits, now());
        self.doorway.state = state;
        match step {
            Step::Nothing => {}
            Step::Open => self.open_door(),
            Step::Look if self.doorway.open.as_ref().is_some_and(Door::is_there) => {}
            // Somebody tidied up where it was.
            Step::Look => {
                self.doorway.open = None;
                self.open_door();
            }
            Step::Close => self.doorway.open = None,
        }
        if !waits {
            self.doorway.caller = None;
        }
        self.welcome();
    }

    fn open_door(&mut self) {
        let Some(name) = Name::of_identity(&self.owner_identity) else {
            return self.doorway.state = State::Refused;
        };
        match Hall::make().and_then(|hall| Door::open(hall, name)) {
            Ok(door) => self.doorway.open = Some(door),
            Err(error) => {
                self.doorway.state = State::Refused;
                // What is wrong with the directory itself has no number.
                let errno = error.raw_os_error().unwrap_or(libc::EPERM);
                self.write_down(journal::Event::NoDoor { errno });
            }
        }
    }

    /// That of the guard that is taken over, which may have been killed while it was open.
    pub(super) fn remove_door(&mut self) {
        self.doorway = Doorway::default();
        let hall = door::places().first().and_then(|place| Hall::open(place).ok());
        if let Some((hall, name)) = hall.zip(Name::of_identity(&self.owner_identity)) {
            hall.remove(&name);
        }
    }

    /// Somebody knocks.
    pub(super) fn answer_door(&mut self) {
        for _ in 0..BATCH {
            let Some(door) = &self.doorway.open else { return };
            match door.answer() {
                Ok(Some(caller)) if self.off.credentials || self.is_owner(&caller) => {
                    self.let_in(caller);
                }
                // Closed at once.
                Ok(Some(_)) => {}
                Ok(None) => return,
                // Nothing can be answered for a while, and `poll` would not stop telling of it.
                Err(_) => {
                    self.doorway.open = None;
                    self.doorway.state = State::Due(now() + LOOK_AGAIN);
                    return;
                }
            }
        }
    }

    fn is_owner(&self, caller: &OwnedFd) -> bool {
        door::is_process(caller, &self.owner)
    }

    /// The last one who came counts: the one before has given up.
    fn let_in(&mut self, caller: OwnedFd) {
        if let Some(copy) = caller.try_clone().ok().filter(|_| !self.off.mirror) {
            self.tell_peer(&Note::Mirror(Held::Line, ScopeId::ALL), vec![copy]);
            self.flush_link();
        }
        self.die_at("mirrored");
        self.doorway.caller = Some(caller);
    }

    /// Once the other guard has its line.
    fn welcome(&mut self) {
        let told = self.peer.as_ref().is_none_or(|peer| peer.link.waiting.is_empty());
        let Some(caller) = self.doorway.caller.take_if(|_| told) else { return };
        self.owner_came_back(caller);
        self.hello(ScopeId::ALL);
        self.die_at("welcome");
        self.doorway.open = None;
        self.doorway.state = State::None;
        self.write_down(journal::Event::Reattached);
    }

    /// The line of the owner's next program. What happened to its children waits until it knows of them.
    pub(super) fn owner_came_back(&mut self, socket: OwnedFd) {
        if let Some(line) = self.lines.get_mut(&ScopeId::ALL) {
            line.come_back(socket);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every state, with everything that can be known, before and after the moment.
    #[test]
    fn a_door_is_open_only_while_somebody_could_come() {
        #[expect(clippy::disallowed_methods, reason = "an origin for a pure machine")]
        let at = Instant::now() + MOMENT;
        let before = at - Duration::from_millis(1);
        let open = State::Open(at, FIRST_LOOK);
        for state in [State::None, State::Due(at), open, State::Refused] {
            for now in [before, at] {
                let step = if state == open { Step::Close } else { Step::Nothing };
                assert_eq!(state.step(false, now), (State::None, step), "{state:?}");
            }
        }
        let due = (State::Due(before + MOMENT), Step::Nothing);
        assert_eq!(State::None.step(true, before), due);
        assert_eq!(State::Due(at).step(true, before), (State::Due(at), Step::Nothing));
        let opened = State::Open(at + FIRST_LOOK, FIRST_LOOK);
        assert_eq!(State::Due(at).step(true, at), (opened, Step::Open));
        assert_eq!(opened.step(true, at), (opened, Step::Nothing));
        let later = State::Open(at + FIRST_LOOK * 2, FIRST_LOOK * 2);
        assert_eq!(open.step(true, at), (later, Step::Look));
        let seldom = State::Open(at, SLOWEST_LOOK);
        let again = State::Open(at + SLOWEST_LOOK, SLOWEST_LOOK);
        assert_eq!(seldom.step(true, at), (again, Step::Look));
        assert_eq!(State::Refused.step(true, at), (State::Refused, Step::Nothing));
    }
}

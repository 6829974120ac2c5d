//! Everything below one process, and ending it. Used by a shim for its own job ([`super::shim`]) and from
//! outside ([`super::stop`]).
//!
//! Nobody is signalled by number: each member is opened, checked to be the one that was met, and kept. A
//! member counts only if its parent is one, and only while the root's handle says that the root lives:
//! a root that died meanwhile may have given its number to somebody else.

use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

use crate::escalation::{Ladder, Rung};
use crate::exit::Process;
use crate::identity::Handle;
use crate::membership::{Identity, Member, Source};
use crate::sys::{Pid, signal};

/// Rounds of stopping before KILL is sent anyway.
const STOP_ROUNDS: usize = 32;

/// Most of the ended that are named.
const MAX_NAMED: usize = 256;

/// Where a walk begins.
#[derive(Debug, Clone, Copy)]
pub(super) struct Root {
    pub(super) pid: Pid,
    /// Whether it is a member itself. A shim is not.
    pub(super) member: bool,
}

/// A member that was met and is held.
struct Kept {
    handle: Handle,
    process: Process,
    termed: bool,
    stopped: bool,
}

/// The ending of a tree.
pub(super) struct Ending {
    ladder: Ladder,
    source: Source,
    /// Alive when last looked at: in a storm, handles of the dead would use up all descriptors.
    kept: HashMap<Identity, Kept>,
    ended: Vec<Process>,
}

impl Ending {
    /// Sends TERM and CONT to everybody below these roots.
    pub(super) fn begin(
        now: Instant,
        grace: Duration,
        roots: &[Root],
        certain: &dyn Fn() -> bool,
    ) -> Self {
        let ladder = Ladder::begin(now, grace);
        let mut ending =
            Self { ladder, source: Source::probe(), kept: HashMap::new(), ended: Vec::new() };
        ending.terminate(roots, certain);
        ending
    }

    /// When [`Ending::step`] has something to do.
    pub(super) fn due(&self) -> Instant {
        self.ladder.due()
    }

    /// Does what is due. `certain` says, after a member was opened, that the roots are still who they
    /// were. `true` once what is left will not die of anything that is sent.
    pub(super) fn step(
        &mut self,
        now: Instant,
        roots: &[Root],
        certain: &dyn Fn() -> bool,
    ) -> bool {
        match self.ladder.step(now) {
            Some(Rung::Walk) => self.terminate(roots, certain),
            Some(Rung::WalkAndKill) => {
                self.terminate(roots, certain);
                self.kill(roots, certain);
            }
            Some(Rung::Kill) => self.kill(roots, certain),
            Some(Rung::Report) => {
                self.kill(roots, certain);
                return true;
            }
            None => {}
        }
        false
    }

    /// Meets everybody and keeps each new one. Whether there was anybody new.
    fn meet(&mut self, roots: &[Root], certain: &dyn Fn() -> bool) -> bool {
        self.let_go();
        let mut known: HashSet<Pid> = HashSet::new();
        let mut new = false;
        self.source.walk(roots.iter().map(|root| root.pid), |member| {
            let root = roots.iter().find(|root| root.pid == member.pid);
            if root.is_none() && !known.contains(&member.stat.parent) {
                return;
            }
            known.insert(member.pid);
            if root.is_none_or(|root| root.member) {
                new |= self.keep(member, certain);
            }
        });
        new
    }

    fn let_go(&mut self) {
        let dead = self.kept.extract_if(|_, kept| !kept.lives());
        let ended: Vec<_> = dead.map(|(_, kept)| kept.process).collect();
        let room = MAX_NAMED.saturating_sub(self.ended.len());
        self.ended.extend(ended.into_iter().take(room));
    }

    fn keep(&mut self, member: &Member, certain: &dyn Fn() -> bool) -> bool {
        if self.kept.contains_key(&member.identity()) {
            return false;
        }
        let Some(handle) = Handle::open(member.pid, &member.stat) else { return false };
        if !certain() {
            return false;
        }
        let process = member.stat.process(member.pid);
        self.kept
            .insert(member.identity(), Kept { handle, process, termed: false, stopped: false });
        true
    }

    fn terminate(&mut self, roots: &[Root], certain: &dyn Fn() -> bool) {
        self.meet(roots, certain);
        for kept in self.kept.values_mut().filter(|kept| !kept.termed) {
            kept.termed = true;
            kept.send(libc::SIGTERM);
            kept.send(libc::SIGCONT);
        }
    }

    /// Stops everybody until nobody new is met, and then kills all.
    fn kill(&mut self, roots: &[Root], certain: &dyn Fn() -> bool) {
        for _ in 0..STOP_ROUNDS {
            let new = self.meet(roots, certain);
            for kept in self.kept.values_mut().filter(|kept| !kept.stopped) {
                kept.stopped = true;
                kept.send(libc::SIGSTOP);
            }
            if !new {
                break;
            }
        }
        for kept in self.kept.values() {
            kept.send(libc::SIGKILL);
        }
    }

    /// Who was met: those who have ended, and those who have not.
    pub(super) fn outcome(mut self) -> (Vec<Process>, Vec<Process>) {
        self.let_go();
        (self.ended, self.kept.into_values().map(|kept| kept.process).collect())
    }

    /// Whether somebody who was met lives.
    pub(super) fn any_left(&self) -> bool {
        self.kept.values().any(Kept::lives)
    }
}

impl Kept {
    fn send(&self, number: i32) {
        // Gone, or of another user: the end tells.
        let _ = signal::send(self.handle.fd(), number);
    }

    fn lives(&self) -> bool {
        !super::look::readable(self.handle.fd(), Duration::ZERO)
    }
}

//! What this guard saw and did, in its owner's [`crate::journal`], if the owner named a directory for one. What
//! cannot be written is left out: nobody waits for it.

use std::collections::HashSet;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use super::Loop;
use crate::identity::{self, Identity};
use crate::journal::{Event, Guard, Journal, Record, Why};
use crate::launch::JOURNAL;
use crate::protocol::Reply;
use crate::registry::{Root, ScopeId};
use crate::succession::Role;
use crate::sys::Pid;
use crate::table::{Flag, Slot};

/// Signals that are written down of one scope: of a storm the first ones say enough, and a child must not push
/// out of the journal what was written of others.
const MAX_SIGNALS: usize = 32;

/// Signals that were written down of a scope.
pub(super) type Sent = HashSet<(Pid, i32)>;

/// The journal of the owner that this handle stands for; `None` where none is asked for or none can be.
pub(super) fn open(owner: &std::os::fd::OwnedFd) -> Option<Journal> {
    use std::os::fd::AsFd;
    let dir = std::env::var_os(JOURNAL).filter(|_| !crate::hook::is_off("journal"))?;
    let pid = identity::pid_of(owner.as_fd())?;
    Journal::open(Path::new(&dir), &Identity::of(pid.cast_unsigned(), owner.as_fd())).ok()
}

impl Loop {
    pub(super) fn write_down(&self, event: Event) {
        let Some(journal) = &self.journal else { return };
        let guard = match self.succession.role() {
            Role::Keeper => Guard::Keeper,
            Role::Supervisor => Guard::Supervisor,
        };
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let at = u64::try_from(since.as_millis()).unwrap_or(u64::MAX);
        // A full disk is not ours to care for.
        drop(journal.append(&Record { at, guard, event }));
    }

    /// It was started, at `start`.
    pub(super) fn write_down_start(&self, slot: Slot, pid: Pid, start: u64) {
        let Some(row) = self.journal.as_ref().and_then(|_| self.table.read(slot)) else { return };
        let handle = self.handles.get(&pid);
        let inode =
            handle.and_then(|handle| identity::pidfd_inode(std::os::fd::AsFd::as_fd(handle)));
        // A release command is no child that anybody has a number for.
        let spawn = if row.has(Flag::Releases) { 0 } else { row.id };
        let (pid, inode) = (pid.cast_unsigned(), inode.unwrap_or(0));
        self.write_down(Event::Started { spawn, pid, start, inode });
    }

    /// What is about to be told of a child.
    pub(super) fn write_down_reply(&self, slot: Slot, reply: &Reply) {
        if let Reply::Emptied { id, emptied } = reply
            && let Some(released) = emptied.release
        {
            self.write_down(Event::Released { spawn: *id, released });
        }
        match reply {
            Reply::Exited { id, exit } => {
                let pid = self.table.read(slot).map_or(0, |row| row.pid.cast_unsigned());
                self.write_down(Event::Exited { spawn: *id, pid, status: exit.status });
            }
            // What was let live is over later, and that is told.
            Reply::Emptied { emptied, .. } if emptied.kept > 0 => {}
            Reply::Emptied { id, emptied } if emptied.left.is_empty() => {
                let leftovers = emptied.leftover_count;
                self.write_down(Event::Emptied { spawn: *id, leftovers });
            }
            Reply::Emptied { id, emptied } => {
                for process in &emptied.left {
                    self.write_down(Event::Left { spawn: *id, pid: process.pid });
                }
            }
            Reply::Hello { .. }
            | Reply::NoScope { .. }
            | Reply::Started { .. }
            | Reply::Failed { .. }
            | Reply::Opened { .. }
            | Reply::Leaving
            | Reply::Resynced { .. }
            | Reply::Stopped { .. }
            | Reply::Pong { .. }
            | Reply::Returned(_)
            | Reply::Recounted { .. } => {}
        }
    }

    /// These were sent a signal on account of `scope`.
    pub(super) fn write_down_signal(
        &mut self,
        scope: ScopeId,
        signal: i32,
        to: impl IntoIterator<Item = Pid>,
    ) {
        if self.journal.is_none() {
            return;
        }
        let found = self.machine.registry().get(scope).filter(|scope| !scope.releases);
        let spawn = found.map_or(0, |scope| scope.id);
        let why = self.why(scope, signal);
        for pid in to {
            let sent = &mut self.reached.entry(scope).or_default().written_down;
            if sent.len() >= MAX_SIGNALS {
                return;
            }
            if sent.insert((pid, signal)) {
                let pid = pid.cast_unsigned();
                self.write_down(Event::KillSent { spawn, pid, signal, why });
            }
        }
    }

    fn why(&self, scope: ScopeId, signal: i32) -> Why {
        let Some(found) = self.machine.registry().get(scope) else { return Why::Unattributed };
        // Who asked for it over its own line, if not the owner itself.
        let asker_gone = !self.lines.contains_key(&found.parent);
        if signal == libc::SIGKILL {
            Why::GraceOver
        } else if self.owner_gone {
            Why::OwnerGone
        } else if scope == ScopeId::ALL {
            Why::Unattributed
        } else if found.root == Root::Dead {
            Why::Leftover
        } else if asker_gone {
            Why::OwnerGone
        } else {
            Why::Asked
        }
    }
}

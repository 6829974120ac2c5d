//! What this guard does is noted in the [`crate::table`], step by step, so that the other one can go on
//! from any point.

use super::voice::Heard;
use super::{Loop, Off};
use crate::protocol::Reply;
use crate::registry::ScopeId;
use crate::table::{Flag, Slot, Stage};

impl Loop {
    pub(super) fn row(&self, scope: ScopeId) -> Option<Slot> {
        self.rows.get(&scope).copied()
    }

    pub(super) fn flag(&self, scope: ScopeId, flag: Flag, on: bool) {
        if let Some(slot) = self.row(scope) {
            self.table.flag(slot, flag, on);
        }
    }

    /// Before it is said: notes what happened, and gives what is to be noted once it was heard.
    pub(super) fn note_reply(&self, reply: &Reply, about: ScopeId) -> Option<Heard> {
        let slot = self.row(about)?;
        match reply {
            Reply::Started { .. } | Reply::Opened { .. } => {
                Some(Heard::Flag(slot, Flag::ToldStarted))
            }
            Reply::Exited { exit, .. } => {
                self.table.set_exit(slot, exit);
                Some(Heard::Flag(slot, Flag::ToldExited))
            }
            // Something of it cannot die, and it is still there.
            Reply::Emptied { .. } if self.machine.registry().get(about).is_some() => {
                Some(Heard::Flag(slot, Flag::ToldEmptied))
            }
            Reply::Emptied { .. } => {
                self.table.advance(slot, Stage::Empty);
                Some(Heard::Free(slot))
            }
            Reply::Hello { .. }
            | Reply::Failed { .. }
            | Reply::Leaving
            | Reply::Resynced { .. }
            | Reply::Pong { .. } => None,
        }
    }

    pub(super) fn note_heard(&mut self, heard: &[Heard]) {
        for heard in heard {
            match *heard {
                Heard::Flag(slot, flag) => {
                    if flag == Flag::ToldStarted {
                        self.die_at("after-started");
                    }
                    self.table.flag(slot, flag, true);
                }
                Heard::Free(slot) => {
                    self.die_at("after-emptied");
                    self.table.free(slot);
                }
            }
        }
    }

    /// The row of a scope that is over, unless its end is still to be heard.
    pub(super) fn forget_row(&mut self, scope: ScopeId) {
        if let Some(slot) = self.rows.remove(&scope)
            && self.table.stage(slot) != Some(Stage::Empty)
        {
            self.table.free(slot);
        }
    }

    /// For tests only: dies here.
    pub(super) fn die_at(&self, step: &str) {
        self.off.die_at(step, self.generation);
    }
}

impl Off {
    /// Kills this process at the step that the test names; only the first two guards of an owner, and with
    /// `2:` before the step only the second.
    pub(super) fn die_at(&self, step: &str, generation: u32) {
        let Some(wanted) = self.die_at.as_deref() else { return };
        let (wanted, first) = wanted.strip_prefix("2:").map_or((wanted, 1), |wanted| (wanted, 2));
        if wanted == step && (first..=2).contains(&generation) {
            let own = rustix::process::getpid();
            let _ = rustix::process::kill_process(own, rustix::process::Signal::KILL);
        }
    }
}

//! What this guard does is noted in the [`crate::table`], step by step, so that the other one can go on
//! from any point; what people may want to know of it later is in `chronicle`.

use super::Loop;
use super::voice::Heard;
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
        self.write_down_reply(slot, reply);
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
            | Reply::NoScope { .. }
            | Reply::Failed { .. }
            | Reply::Leaving
            | Reply::Resynced { .. }
            | Reply::Stopped { .. }
            | Reply::Pong { .. }
            | Reply::Returned(_)
            | Reply::Recounted { .. } => None,
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
                    self.table.free(slot, self.generation);
                }
            }
        }
    }

    /// The row of a scope that is over, unless its end is still to be heard.
    pub(super) fn forget_row(&mut self, scope: ScopeId) {
        if let Some(slot) = self.rows.remove(&scope)
            && self.table.stage(slot) != Some(Stage::Empty)
        {
            self.table.free(slot, self.generation);
        }
    }

    /// For tests only: dies here, if it is this step's turn, of whichever guard.
    pub(super) fn die_at(&self, step: &str) {
        if let Some((wanted, turn)) = &self.off.die_at
            && wanted == step
            && self.table.count_step() == *turn
        {
            let own = rustix::process::getpid();
            let _ = rustix::process::kill_process(own, rustix::process::Signal::KILL);
        }
    }
}

//! What owners that are dead have left in the ledger: rows that can be ended, because what they are about is
//! gone, and processes that are certainly still there. It ends no process: that is the janitor's.

use std::fmt;
use std::path::Path;

use rusqlite::Connection;

use super::database::{self, Which};
use super::evidence::{Standing, standing};
use super::fold::{self, Settled};
use super::row::{End, EndedBy, Policy, Row, now_ms};
use crate::identity::Stat;
use crate::journal::{self, Waits};

/// What [`super::Ledger::review`] found.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Review {
    /// Journals that were taken in.
    pub folded: usize,
    /// Rows that were ended, because nothing is left of what they are about.
    pub settled: usize,
    /// Processes that outlived their owner and its guards, oldest first.
    pub leftovers: Vec<Leftover>,
}

/// A process that certainly lives, whose owner certainly does not, and that no guard sees to.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Leftover {
    /// What was written down of it.
    pub row: Row,
    /// Its name as it is now.
    pub name: String,
    /// Milliseconds since it was started, by the wall clock.
    pub age_ms: u64,
}

impl Leftover {
    /// Its pid. Signal it through [`Row::open`] only.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.row.identity.as_ref().map_or(0, |identity| identity.pid)
    }
}

impl fmt::Display for Leftover {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (pid, seconds) = (self.pid(), self.age_ms / 1000);
        let owner = self.row.owner.pid;
        write!(f, "{} (pid {pid}, started {seconds} s ago by {owner}, which is dead)", self.name)
    }
}

pub(super) fn review(connection: &mut Connection, dir: &Path) -> Result<Review, String> {
    let folded = fold::fold(connection, dir, &mut |_| {})?;
    let said = |error: rusqlite::Error| error.to_string();
    let living = database::select(connection, &Which::Living).map_err(said)?;
    let (mut gone, mut leftovers) = (Vec::new(), Vec::new());
    for row in living.into_iter().filter(|row| row.policy == Policy::Owned) {
        match verdict(&row, dir) {
            Verdict::Leave => {}
            Verdict::Gone(why) => {
                let end = row.exit.map_or(End::Lost, End::Exited);
                gone.push(Settled { row, end, by: EndedBy::Itself, why });
            }
            Verdict::Leftover(name) => {
                let age_ms = now_ms().saturating_sub(row.intent_at);
                leftovers.push(Leftover { row, name, age_ms });
            }
        }
    }
    let settled = fold::settle(connection, &gone, now_ms()).map_err(said)?;
    Ok(Review { folded, settled, leftovers })
}

enum Verdict {
    /// Others see to it, or nothing is certain.
    Leave,
    Gone(&'static str),
    Leftover(String),
}

fn verdict(row: &Row, dir: &Path) -> Verdict {
    if !standing(&row.owner).has_ended() {
        return Verdict::Leave;
    }
    // As long as a guard writes the journal, it ends what there is; looked at before the process is.
    let waits = journal::waits(dir, &row.owner);
    if waits == Some(Waits::Written) {
        return Verdict::Leave;
    }
    match row.verify().child {
        // The journal may know how it ended: it was finished after the folding, or cannot be folded.
        child if waits.is_some() && child != Standing::Same => Verdict::Leave,
        Standing::Stale => Verdict::Gone("the machine was started again"),
        Standing::Gone | Standing::Another => Verdict::Gone("found gone after its owner"),
        Standing::Same => {
            let pid = row.identity.as_ref().map_or(0, |identity| identity.pid);
            match Stat::read(pid.cast_signed()) {
                // Asked again, for the name to be its own.
                Some(stat) if row.verify().is_leftover() => Verdict::Leftover(stat.name),
                _ => Verdict::Leave,
            }
        }
        // Its guards, whose journal is in the tables, did not start it, or were killed before they could write.
        Standing::Unknown if row.identity.is_none() => {
            Verdict::Gone("not known to have been started")
        }
        Standing::Unknown | Standing::Elsewhere => Verdict::Leave,
    }
}

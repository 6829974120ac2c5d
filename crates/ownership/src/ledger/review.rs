//! What owners that are dead have left: rows that can be ended, because what they are about is gone, and
//! processes that are certainly still there. It ends no process: that is the janitor's.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::fs;
use std::os::fd::AsFd;
use std::path::Path;

use rusqlite::Connection;
use rustix::process::{Pid as RawPid, PidfdFlags, pidfd_open};

use super::database::{self, Which};
use super::evidence::{Standing, standing};
use super::fold::{self, Settled};
use super::row::{End, EndedBy, Policy, Row, now_ms};
use crate::identity::{self, BootId, Identity, Stat};
use crate::journal::{self, Waits};
use crate::launch::TAG;
use crate::sys::Pid;

/// Clock ticks in a second as the kernel shows them (`USER_HZ`, man 7 time), for people only.
const TICKS: u64 = 100;

/// What [`super::Ledger::review`] found.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Review {
    /// Journals that were taken in.
    pub folded: usize,
    /// Rows that were ended, because nothing is left of what they are about.
    pub settled: usize,
    /// Processes that outlived their owner and its guards.
    pub leftovers: Vec<Leftover>,
}

/// A process that certainly lives, whose owner certainly does not, and that no guard sees to.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Leftover {
    /// Who it is.
    pub identity: Identity,
    /// Whose it was.
    pub owner: Identity,
    /// Its name.
    pub name: String,
    /// Seconds since it began.
    pub seconds: u64,
    /// What was written down of it. `None` for one that a child left: known by the mark in its environment, which
    /// is a hint and no proof, and the topmost of those that bear it.
    pub row: Option<Row>,
}

impl Leftover {
    fn new(identity: Identity, owner: Identity, name: String, row: Option<Row>) -> Self {
        let began = identity.start.unwrap_or(0) / TICKS;
        let seconds = uptime().saturating_sub(began);
        Self { identity, owner, name, seconds, row }
    }
}

impl fmt::Display for Leftover {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { identity, owner, name, seconds, .. } = self;
        let (pid, owner) = (identity.pid, owner.pid);
        write!(f, "{name} (pid {pid}, began {seconds} s ago, of {owner}, which is dead)")
    }
}

/// Seconds since the boot, of which start times are counted.
fn uptime() -> u64 {
    let text = fs::read_to_string("/proc/uptime").unwrap_or_default();
    text.split('.').next().and_then(|seconds| seconds.parse().ok()).unwrap_or(0)
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
            Verdict::Leftover(identity, name) => {
                leftovers.push(Leftover::new(identity, row.owner.clone(), name, Some(row)));
            }
        }
    }
    let settled = fold::settle(connection, &gone, now_ms()).map_err(said)?;
    leftovers.extend(marked(connection, dir, &leftovers).map_err(said)?);
    Ok(Review { folded, settled, leftovers })
}

enum Verdict {
    /// Others see to it, or nothing is certain.
    Leave,
    Gone(&'static str),
    Leftover(Identity, String),
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
    match (row.verify().child, &row.identity) {
        (Standing::Same, Some(identity)) => match Stat::read(identity.pid.cast_signed()) {
            // Asked again, for the name to be its own.
            Some(stat) if row.verify().is_leftover() => {
                Verdict::Leftover(identity.clone(), stat.name)
            }
            _ => Verdict::Leave,
        },
        // The journal may know how it ended: it was finished after the folding, or cannot be folded.
        _ if waits.is_some() => Verdict::Leave,
        (Standing::Stale, _) => Verdict::Gone("the machine was started again"),
        (Standing::Gone | Standing::Another, _) => Verdict::Gone("found gone after its owner"),
        // Its guards, whose journal is in the tables, did not start it, or were killed before they could write.
        (Standing::Unknown, None) => Verdict::Gone("not known to have been started"),
        (Standing::Unknown | Standing::Elsewhere | Standing::Same, _) => Verdict::Leave,
    }
}

/// The mark in a process's environment: number and start time of its owner.
type Mark = (Pid, u64);

/// The topmost processes that bear the mark of a dead owner of this ledger, but for `known` ones. What this process
/// itself stands in is not named: somebody works in it.
fn marked(
    connection: &Connection,
    dir: &Path,
    known: &[Leftover],
) -> rusqlite::Result<Vec<Leftover>> {
    let marks = marks();
    let own = ancestors(identity::own_pid());
    let named: HashSet<_> = known.iter().map(|leftover| leftover.identity.pid).collect();
    let mut owners = HashMap::new();
    let mut found = Vec::new();
    for (pid, (mark, stat)) in &marks {
        let below = marks.get(&stat.parent).is_some_and(|(above, _)| above == mark);
        if below || own.contains(pid) || named.contains(&pid.cast_unsigned()) {
            continue;
        }
        let owner = match owners.get(mark) {
            Some(owner) => owner,
            None => owners.entry(*mark).or_insert(dead_owner(connection, dir, *mark)?),
        };
        let Some(owner) = owner else { continue };
        let identity = identify(*pid, stat);
        found.extend(identity.map(|it| Leftover::new(it, owner.clone(), stat.name.clone(), None)));
    }
    found.sort_by_key(|leftover| (leftover.identity.start, leftover.identity.pid));
    Ok(found)
}

/// Everybody who bears a mark and may be looked at.
fn marks() -> HashMap<Pid, (Mark, Stat)> {
    let numbers = fs::read_dir("/proc").into_iter().flatten();
    let numbers = numbers.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    let read = |pid: Pid| {
        let stat = Stat::read(pid).filter(|stat| !stat.is_dead())?;
        let environ = fs::read(format!("/proc/{pid}/environ")).ok()?;
        let prefix = format!("{TAG}=");
        let mut entries = environ.split(|byte| *byte == 0);
        let mark = entries.find_map(|entry| entry.strip_prefix(prefix.as_bytes()))?;
        Some((pid, (parse(mark)?, stat)))
    };
    numbers.filter_map(read).collect()
}

fn parse(mark: &[u8]) -> Option<Mark> {
    let (owner, _) = std::str::from_utf8(mark).ok()?.split_once(':')?;
    // A process may have several owners: their number comes last.
    let mut parts = owner.split('.');
    Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
}

/// This process and those above it.
fn ancestors(of: Pid) -> HashSet<Pid> {
    let parent = |pid: &Pid| Stat::read(*pid).map(|stat| stat.parent).filter(|pid| *pid > 0);
    std::iter::successors(Some(of), parent).collect()
}

/// An owner of this ledger that is dead, and whose guards are.
fn dead_owner(
    connection: &Connection,
    dir: &Path,
    (pid, start): Mark,
) -> rusqlite::Result<Option<Identity>> {
    let here = (BootId::current(), identity::own_namespace());
    let found = database::owner_at(connection, here, pid.cast_unsigned(), start)?;
    let is_over = |owner: &Identity| {
        standing(owner).has_ended() && journal::waits(dir, owner) != Some(Waits::Written)
    };
    Ok(found.filter(is_over))
}

/// The process that was looked at, if it lives and still is the same.
fn identify(pid: Pid, seen: &Stat) -> Option<Identity> {
    let handle = pidfd_open(RawPid::from_raw(pid)?, PidfdFlags::empty()).ok()?;
    let identity = Identity::of(pid.cast_unsigned(), handle.as_fd());
    let same = identity.start == Some(seen.start) && standing(&identity) == Standing::Same;
    same.then_some(identity)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_are_read_with_care() {
        assert_eq!(parse(b"41.99:7"), Some((41, 99)));
        for wrong in [&b""[..], b"41.99", b"41:7", b"x.99:7", b"41.-9:7", b"\xff.1:2"] {
            assert_eq!(parse(wrong), None, "{wrong:?}");
        }
    }

    #[test]
    fn what_we_stand_in_begins_with_us() {
        let own = ancestors(identity::own_pid());
        let parent = Stat::read(identity::own_pid()).expect("stat").parent;
        assert!(own.contains(&identity::own_pid()) && (parent == 0 || own.contains(&parent)));
    }
}

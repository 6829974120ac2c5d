//! Puts a picture of `/proc` and the rows of a ledger together: owners, their children, the processes of each. Pure: asks
//! nobody, so what it makes of any picture can be tested.
//!
//! Whose a process is says, nearest word first: the row that is about it, the mark in its environment, whoever stands
//! above it. Each process is looked at once, parents first, so that thousands cost no more than their number.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::time::Duration;

use super::ports::Port;
use super::scan::{Role, Seen, Snapshot};
use crate::cgroup;
use crate::containment::Tier;
use crate::identity::Identity;
use crate::ledger::{Policy, Row};

/// Number and start time of an owner.
type Owner = (u32, u64);

/// What is left of an owner.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum OwnerState {
    /// It lives.
    Lives,
    /// It has ended.
    Dead,
    /// It was started where its number cannot be looked up: in another boot's ledger or another pid namespace.
    Elsewhere,
}

/// How many guards an owner has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Guarding {
    /// Keeper and supervisor: one ends everything should the other be killed.
    Full,
    /// One of both is missing; it is replaced within seconds.
    Degraded,
    /// None is seen above its children.
    Nobody,
}

impl Guarding {
    /// As one word.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Full => "guarded",
            Self::Degraded => "degraded",
            Self::Nobody => "unguarded",
        }
    }
}

/// Why something is alive.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum WhyAlive {
    /// Its owner lives.
    OwnerLives,
    /// It may outlive its owner, for this reason.
    #[non_exhaustive]
    Exempt {
        /// Why.
        reason: String,
        /// Until when, in unix milliseconds.
        expires: Option<u64>,
    },
    /// Its owner is dead, and guards are ending it.
    Ending,
    /// Its owner is dead and so are its guards: what the janitor is for.
    LeftOver,
    /// It cannot be told.
    Unknown,
}

impl WhyAlive {
    /// As one word.
    #[must_use]
    pub fn word(&self) -> &'static str {
        match self {
            Self::OwnerLives => "owner-lives",
            Self::Exempt { .. } => "exempt",
            Self::Ending => "ending",
            Self::LeftOver => "left-over",
            Self::Unknown => "unknown",
        }
    }
}

/// How it is known whose a process is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum KnownBy {
    /// A row of the ledger is about it.
    Row,
    /// It bears a mark, and stands below somebody of that owner.
    Place,
    /// It bears a mark, and stands below nobody of that owner: a hint.
    Mark,
}

/// One process.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct ProcessView {
    /// Its number.
    pub pid: u32,
    /// Start time in clock ticks since boot; with the number its identity.
    pub start: u64,
    /// Its parent's number.
    pub parent: u32,
    /// How far it stands below the first of its child, from 0.
    pub depth: usize,
    /// Its name, at most 15 bytes.
    pub name: String,
    /// Its command line, redacted.
    pub command: Vec<String>,
    /// Its state as `/proc/PID/stat` says: R, S, D, T, …
    pub state: char,
    /// How long ago it began.
    pub age: Duration,
    /// Memory that is resident, in bytes.
    pub rss: u64,
    /// Its share of what is resident, in bytes, where that was asked for and may be read.
    pub pss: Option<u64>,
    /// Processor time so far.
    pub cpu: Duration,
    /// Where it listens.
    pub ports: Vec<Port>,
    /// How it is known whose it is.
    pub known_by: KnownBy,
}

/// What an owner has started at once: a program and all below it.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct ChildView {
    /// The number that its owner gave it. Of a scope without a row it is the one in the marks.
    pub spawn: u64,
    /// What was written down of it.
    pub row: Option<Row>,
    /// Why it is alive.
    pub why: WhyAlive,
    /// What holds it together, as its processes show it.
    pub tier: Tier,
    /// Its processes, parents before children. Empty when it is just being started, or ended and not yet told.
    pub processes: Vec<ProcessView>,
}

impl ChildView {
    /// Memory that all of it has resident, in bytes. What they share is counted for each.
    #[must_use]
    pub fn rss(&self) -> u64 {
        self.processes.iter().map(|process| process.rss).sum()
    }

    /// Processor time of all of it.
    #[must_use]
    pub fn cpu(&self) -> Duration {
        self.processes.iter().map(|process| process.cpu).sum()
    }

    /// How long ago the oldest of it began.
    #[must_use]
    pub fn age(&self) -> Duration {
        self.processes.iter().map(|process| process.age).max().unwrap_or_default()
    }
}

/// Somebody who starts others.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct OwnerView {
    /// Who it is, as far as that was written down.
    pub identity: Identity,
    /// Its name, while it lives.
    pub name: Option<String>,
    /// Its command line, redacted, while it lives.
    pub command: Vec<String>,
    /// How long ago it began, while it lives.
    pub age: Option<Duration>,
    /// What is left of it.
    pub state: OwnerState,
    /// How many guards it has.
    pub guarding: Guarding,
    /// The numbers of its guards.
    pub guards: Vec<u32>,
    /// Whether it is in this ledger. One that is not is known by marks alone.
    pub in_ledger: bool,
    /// The owner that it belongs to itself.
    pub below: Option<u32>,
    /// Its children, oldest first.
    pub children: Vec<ChildView>,
}

/// An exempt job, as it was recorded, with the processes that bear its mark.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct JobView {
    /// Its id; known to be one of this state directory if `reason` is there.
    pub id: String,
    /// Why it may outlive its owner.
    pub reason: Option<String>,
    /// Until when, in unix milliseconds.
    pub expires: Option<u64>,
    /// Its program.
    pub program: Option<String>,
    /// Its processes.
    pub processes: Vec<ProcessView>,
}

/// What is known of a job besides its processes.
#[derive(Debug, Clone)]
pub(super) struct Job {
    pub(super) id: String,
    pub(super) reason: String,
    pub(super) expires: Option<u64>,
    pub(super) program: String,
}

/// Whose a process is.
#[derive(Debug, Clone, Copy)]
struct Slot {
    owner: Owner,
    spawn: u64,
    known_by: KnownBy,
}

/// Makes the tree.
pub(super) fn owners(snapshot: &Snapshot, rows: &[Row]) -> Vec<OwnerView> {
    let slots = slots(snapshot, rows);
    let mut found: BTreeMap<Owner, OwnerView> = BTreeMap::new();
    for row in rows {
        let Some(start) = row.owner.start else { continue };
        let key = (row.owner.pid, start);
        found.entry(key).or_insert_with(|| owner_view(snapshot, row.owner.clone(), true));
    }
    let mut children: BTreeMap<(Owner, u64), Vec<(u32, KnownBy)>> = BTreeMap::new();
    for pid_seen in snapshot.parents_first() {
        let Some(slot) = slots.get(&pid_seen) else { continue };
        found.entry(slot.owner).or_insert_with(|| {
            let (pid, start) = slot.owner;
            // The number in a mark counts where whoever bears it is.
            let namespace = snapshot.processes.get(&pid_seen).and_then(|seen| seen.namespace);
            let (boot, namespace) = (snapshot.boot, namespace.or(snapshot.namespace));
            let start = Some(start);
            let identity = Identity { boot, pid, start, inode: None, namespace, cgroup: None };
            owner_view(snapshot, identity, false)
        });
        children.entry((slot.owner, slot.spawn)).or_default().push((pid_seen, slot.known_by));
    }
    let guards = guards(snapshot, &slots);
    for (key, owner) in &mut found {
        owner.guards = guards.get(key).cloned().unwrap_or_default();
        owner.guarding = match owner.guards.len() {
            0 => Guarding::Nobody,
            1 => Guarding::Degraded,
            _ => Guarding::Full,
        };
        owner.below =
            slots.get(&key.0).map(|slot| slot.owner.0).filter(|_| snapshot.has(key.0, key.1));
    }
    for row in rows {
        let Some(start) = row.owner.start else { continue };
        let key = ((row.owner.pid, start), row.spawn);
        let Some(owner) = found.get_mut(&key.0) else { continue };
        let members = children.remove(&key).unwrap_or_default();
        owner.children.push(child_view(snapshot, owner, row.spawn, Some(row), &members));
    }
    for ((key, spawn), members) in children {
        let Some(owner) = found.get_mut(&key) else { continue };
        owner.children.push(child_view(snapshot, owner, spawn, None, &members));
    }
    let mut owners: Vec<_> = found.into_values().collect();
    for owner in &mut owners {
        owner.children.sort_by_key(|child| {
            let first = child.processes.first();
            (first.map_or(u64::MAX, |first| first.start), child.spawn)
        });
    }
    owners.sort_by_key(|owner| (owner.identity.start, owner.identity.pid));
    owners
}

/// The processes of jobs.
pub(super) fn jobs(snapshot: &Snapshot, known: Vec<Job>) -> Vec<JobView> {
    let mut members: BTreeMap<&str, Vec<(u32, KnownBy)>> = BTreeMap::new();
    for pid in snapshot.parents_first() {
        let id = snapshot.processes.get(&pid).and_then(|seen| seen.marks.exempt());
        if let Some(id) = id {
            members.entry(id).or_default().push((pid, KnownBy::Mark));
        }
    }
    let mut jobs = Vec::new();
    for Job { id, reason, expires, program } in known {
        let processes = members.remove(&*id).unwrap_or_default();
        if processes.is_empty() {
            continue;
        }
        let processes = processes_of(snapshot, &processes);
        let (reason, program) = (Some(reason), Some(program));
        jobs.push(JobView { id, reason, expires, program, processes });
    }
    jobs.extend(members.into_iter().map(|(id, processes)| JobView {
        id: id.to_owned(),
        reason: None,
        expires: None,
        program: None,
        processes: processes_of(snapshot, &processes),
    }));
    jobs
}

fn slots(snapshot: &Snapshot, rows: &[Row]) -> HashMap<u32, Slot> {
    let here = |identity: &Identity| {
        identity.boot == snapshot.boot && identity.namespace == snapshot.namespace
    };
    let known = rows.iter().filter_map(|row| {
        let identity = row.identity.as_ref().filter(|identity| here(identity))?;
        let (start, owner) = (identity.start?, (row.owner.pid, row.owner.start?));
        let slot = Slot { owner, spawn: row.spawn, known_by: KnownBy::Row };
        snapshot.has(identity.pid, start).then_some((identity.pid, slot))
    });
    let mut slots: HashMap<u32, Slot> = known.collect();
    // What stands below one that may outlive its owner lives for the same reason, whatever its mark says.
    let exempt: HashSet<_> = rows
        .iter()
        .filter(|row| matches!(row.policy, Policy::Exempt { .. }))
        .filter_map(|row| Some(((row.owner.pid, row.owner.start?), row.spawn)))
        .collect();
    for pid in snapshot.parents_first() {
        let Some(seen) = snapshot.processes.get(&pid) else { continue };
        if slots.contains_key(&pid) || seen.role.is_some() || pid == 1 {
            continue;
        }
        let above = snapshot.parent(pid).and_then(|parent| slots.get(&parent)).copied();
        let slot = match (seen.marks.mark(), above) {
            (_, Some(above)) if exempt.contains(&(above.owner, above.spawn)) => {
                Slot { known_by: KnownBy::Place, ..above }
            }
            (Some(mark), Some(above)) if mark.owner() == above.owner => {
                Slot { spawn: mark.scope, known_by: KnownBy::Place, ..above }
            }
            (Some(mark), _) => {
                // Its guard stands above it, and does so for this owner.
                let guarded =
                    snapshot.parent(pid).and_then(|parent| snapshot.processes.get(&parent));
                let guarded = guarded.is_some_and(is_guard);
                let known_by = if guarded { KnownBy::Place } else { KnownBy::Mark };
                Slot { owner: mark.owner(), spawn: mark.scope, known_by }
            }
            (None, Some(above)) => Slot { known_by: KnownBy::Place, ..above },
            (None, None) => continue,
        };
        slots.insert(pid, slot);
    }
    slots
}

fn is_guard(seen: &Seen) -> bool {
    matches!(seen.role, Some(Role::Keeper | Role::Supervisor))
}

/// The guards of each owner: those above its children.
fn guards(snapshot: &Snapshot, slots: &HashMap<u32, Slot>) -> HashMap<Owner, Vec<u32>> {
    let children = snapshot.children();
    let mut found: HashMap<Owner, Vec<u32>> = HashMap::new();
    let mut asked: HashSet<(Owner, u32)> = HashSet::new();
    for (pid, slot) in slots {
        let guard = |pid: u32| {
            let parent = snapshot.processes.get(&snapshot.parent(pid)?)?;
            is_guard(parent).then_some(parent.pid)
        };
        let Some(first) = guard(*pid).filter(|first| asked.insert((slot.owner, *first))) else {
            continue;
        };
        let list = found.entry(slot.owner).or_default();
        list.push(first);
        list.extend(guard(first));
        // The one above has the other one below it where it has children itself.
        let below = children.get(&first).into_iter().flatten();
        let below = below.filter(|pid| snapshot.processes.get(pid).is_some_and(is_guard));
        list.extend(below);
    }
    for list in found.values_mut() {
        list.sort_unstable();
        list.dedup();
    }
    found
}

fn owner_view(snapshot: &Snapshot, identity: Identity, in_ledger: bool) -> OwnerView {
    let here = identity.boot == snapshot.boot && identity.namespace == snapshot.namespace;
    let seen = snapshot.processes.get(&identity.pid);
    let seen = seen.filter(|seen| here && Some(seen.stat.start) == identity.start);
    let state = match (here, seen) {
        (_, Some(_)) => OwnerState::Lives,
        // Of another boot: it has ended with it.
        (false, None) if identity.boot == snapshot.boot => OwnerState::Elsewhere,
        (_, None) => OwnerState::Dead,
    };
    OwnerView {
        name: seen.map(|seen| seen.stat.name.clone()),
        command: Vec::new(),
        age: seen.map(|seen| snapshot.age(seen.stat.start)),
        state,
        guarding: Guarding::Nobody,
        guards: Vec::new(),
        in_ledger,
        below: None,
        children: Vec::new(),
        identity,
    }
}

fn child_view(
    snapshot: &Snapshot,
    owner: &OwnerView,
    spawn: u64,
    row: Option<&Row>,
    members: &[(u32, KnownBy)],
) -> ChildView {
    let why = match (row.map(|row| &row.policy), owner.state) {
        (Some(Policy::Exempt { reason, expires }), _) => {
            WhyAlive::Exempt { reason: reason.clone(), expires: *expires }
        }
        (_, OwnerState::Lives) => WhyAlive::OwnerLives,
        (_, OwnerState::Dead) if owner.guarding != Guarding::Nobody => WhyAlive::Ending,
        (_, OwnerState::Dead) => WhyAlive::LeftOver,
        (_, OwnerState::Elsewhere) => WhyAlive::Unknown,
    };
    let processes = processes_of(snapshot, members);
    let tier = tier_of(snapshot, members);
    ChildView { spawn, row: row.cloned(), why, tier, processes }
}

/// The strongest that any of them shows: of one that has left its cgroup others tell, and only who bears a mark has its
/// namespace looked at.
fn tier_of(snapshot: &Snapshot, members: &[(u32, KnownBy)]) -> Tier {
    let of = |pid: &u32| {
        let seen = snapshot.processes.get(pid)?;
        let inside = seen.namespace.is_some() && seen.namespace != snapshot.namespace;
        let celled = seen.cgroup.as_deref().and_then(cgroup::place_in).is_some();
        Some(match (inside, celled) {
            (true, _) => Tier::PidNamespace,
            (false, true) => Tier::Cgroup,
            (false, false) => Tier::Subreaper,
        })
    };
    members.iter().filter_map(|(pid, _)| of(pid)).max().unwrap_or(Tier::Subreaper)
}

fn processes_of(snapshot: &Snapshot, members: &[(u32, KnownBy)]) -> Vec<ProcessView> {
    let mut depths: HashMap<u32, usize> = HashMap::new();
    let mut below: HashMap<u32, Vec<(u32, KnownBy)>> = HashMap::new();
    let mut tops = Vec::new();
    let known: HashSet<u32> = members.iter().map(|(pid, _)| *pid).collect();
    for (pid, known_by) in members {
        match snapshot.parent(*pid).filter(|parent| known.contains(parent)) {
            Some(parent) => {
                depths.insert(*pid, depths.get(&parent).copied().unwrap_or(0) + 1);
                below.entry(parent).or_default().push((*pid, *known_by));
            }
            None => tops.push((*pid, *known_by)),
        }
    }
    // Each above its own children, as a tree is read.
    let mut views = Vec::new();
    let mut next: Vec<_> = tops.into_iter().rev().collect();
    while let Some((pid, known_by)) = next.pop() {
        next.extend(below.remove(&pid).into_iter().flatten().rev());
        let Some(seen) = snapshot.processes.get(&pid) else { continue };
        let depth = depths.get(&pid).copied().unwrap_or(0);
        views.push(ProcessView {
            pid,
            start: seen.stat.start,
            parent: seen.stat.parent.cast_unsigned(),
            depth,
            name: seen.stat.name.clone(),
            command: Vec::new(),
            state: char::from(seen.stat.state),
            age: snapshot.age(seen.stat.start),
            rss: seen.rss,
            pss: None,
            cpu: seen.cpu,
            ports: Vec::new(),
            known_by,
        });
    }
    views
}

#[cfg(test)]
#[path = "model_tests.rs"]
mod tests;

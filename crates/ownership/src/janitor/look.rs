//! Gathers the facts about whoever may be left over: rows of owners that are dead, marks, cgroups, and the places below
//! those who are proved. Asks the system about identities; signals nobody. What the facts mean says [`super::grade`].

use std::collections::{HashMap, HashSet};
use std::path::Path;

use super::grade::{Exempt, Facts, Grade, Kind, Marked, Verdict, grade};
use super::groups;
use super::{Finding, Found, Proof, SparedOne};
use crate::cgroup;
use crate::containment;
use crate::exempt::{self, ExemptJob};
use crate::hook;
use crate::identity::Identity;
use crate::journal;
use crate::ledger::{self, Account, Policy, Row, Standing, standing};
use crate::sight::scan::{self, Mark, Role, Seen, Snapshot};

/// Number and start time of an owner, as marks name it.
type Owner = (u32, u64);

/// A row of somebody who lives under its number now.
struct Recorded {
    row: Row,
    owner: Standing,
    child: Standing,
    inode: bool,
}

/// Everything that is asked about owners, each thing once.
struct Owners<'a> {
    snapshot: &'a Snapshot,
    dir: &'a Path,
    standings: HashMap<Owner, Standing>,
    guarded: HashMap<Owner, bool>,
    /// Those that the ledger names.
    known: HashMap<Owner, Identity>,
}

impl Owners<'_> {
    fn identity(&self, owner: Owner) -> Identity {
        self.known.get(&owner).cloned().unwrap_or(Identity {
            boot: self.snapshot.boot,
            pid: owner.0,
            start: Some(owner.1),
            inode: None,
            namespace: self.snapshot.namespace,
            cgroup: None,
        })
    }

    fn standing(&mut self, owner: Owner) -> Standing {
        // A mark says number and start time; more is in the ledger, and not needed for the living.
        let asked = Identity { inode: None, ..self.identity(owner) };
        *self.standings.entry(owner).or_insert_with(|| standing(&asked))
    }

    fn is_guarded(&mut self, owner: Owner) -> bool {
        let (dir, asked) = (self.dir, self.identity(owner));
        let waits = || journal::waits(dir, &asked) == Some(journal::Waits::Written);
        *self.guarded.entry(owner).or_insert_with(waits)
    }
}

/// Looks everything through. With `rows_only`, no further than to the rows when none of them is about anybody who
/// lives and whose owner does not.
pub(super) fn look(
    path: &Path,
    dir: &Path,
    jobs: &[std::path::PathBuf],
    rows_only: bool,
) -> Finding {
    let (account, trouble) = match ledger::account(path, dir) {
        Ok(account) => (account, None),
        Err(error) => (Account::default(), Some(error.to_string())),
    };
    let mut recorded = recorded(&account);
    let (ledger, unreadable_rows) = (account.exists, account.unreadable.clone());
    let mut finding = Finding { ledger, trouble, unreadable_rows, ..Finding::default() };
    if rows_only && recorded.is_empty() && !somebody_is_deserted() {
        return finding;
    }
    let snapshot = Snapshot::take();
    finding.whole = snapshot.whole;
    let known = account
        .rows
        .iter()
        .filter_map(|row| Some(((row.owner.pid, row.owner.start?), row.owner.clone())));
    let here = |(_, owner): &(Owner, Identity)| {
        owner.boot == snapshot.boot && owner.namespace == snapshot.namespace
    };
    let mut owners = Owners {
        snapshot: &snapshot,
        dir,
        standings: HashMap::new(),
        guarded: HashMap::new(),
        known: known.filter(here).collect(),
    };
    let mut surroundings = Surroundings::of(&snapshot, &account, &mut owners, jobs);
    if finding.ledger && finding.trouble.is_none() {
        surroundings.desert(&mut owners);
    }
    let mut met: HashMap<u32, Found> = HashMap::new();
    // From the top down, so that whoever stands above was judged before.
    for pid in snapshot.parents_first() {
        let Some(seen) = snapshot.processes.get(&pid) else { continue };
        let above = snapshot.parent(pid).and_then(|parent| met.get(&parent));
        let above = above.filter(|found| found.grade == Grade::Proved).cloned();
        let record = recorded.remove(&pid);
        let judged = judge(&surroundings, &mut owners, seen, record.as_ref(), above.as_ref());
        let Some((verdict, facts, owner)) = judged else { continue };
        let row = record.map(|record| record.row).filter(|_| facts.record.is_some());
        match verdict {
            Verdict::Nothing => {}
            Verdict::Spared(why) => {
                // What merely stands in the company of a living owner is not worth a word.
                if row.is_some() || facts.below || facts.owner.has_ended() {
                    let (name, owner) = (seen.stat.name.clone(), owner.pid);
                    finding.spared.push(SparedOne { pid, name, owner, why });
                }
            }
            Verdict::Graded(grade) => {
                // One that has vanished meanwhile, or is another by now, is not there.
                let Some(identity) = scan::identify(seen) else { continue };
                let evidence = proofs(&facts, &owner);
                met.insert(
                    pid,
                    Found {
                        identity,
                        owner,
                        name: seen.stat.name.clone(),
                        command: scan::command(pid),
                        age: snapshot.age(seen.stat.start),
                        rss: seen.rss,
                        state: char::from(seen.stat.state),
                        grade,
                        evidence,
                        below: facts.below.then(|| seen.stat.parent.cast_unsigned()),
                        row,
                    },
                );
            }
        }
    }
    finding.unreadable =
        snapshot.processes.values().filter(|seen| cannot_be_read(&snapshot, seen)).count();
    finding.groups = groups::look(&snapshot);
    finding.found = met.into_values().collect();
    finding.found.sort_by(|one, two| {
        let key = |found: &Found| (found.owner.start, found.owner.pid, found.identity.start);
        two.grade.cmp(&one.grade).then(key(one).cmp(&key(two)))
    });
    finding
}

/// Whether somebody lives where a dead owner's guards had put its children. Costs one look into our own cgroup.
fn somebody_is_deserted() -> bool {
    let base = containment::cgroup_of_guards().dir;
    base.is_some_and(|base| cgroup::stale(&base).iter().any(|left| left.cell.is_populated()))
}

fn cannot_be_read(snapshot: &Snapshot, seen: &Seen) -> bool {
    seen.uid == snapshot.uid && seen.marks == scan::Marks::Unreadable
}

/// Rows by the number of their process, where both it may live and its owner may not.
fn recorded(account: &Account) -> HashMap<u32, Recorded> {
    let mut owners: HashMap<(u32, Option<u64>, Option<u64>), Standing> = HashMap::new();
    let mut found = HashMap::new();
    for row in &account.rows {
        let Some(identity) = &row.identity else { continue };
        let key = (row.owner.pid, row.owner.start, row.owner.inode);
        let owner = *owners.entry(key).or_insert_with(|| standing(&row.owner));
        if owner == Standing::Same {
            continue;
        }
        // What a janitor by numbers would believe; a test shows whom that hits.
        let by_number = hook::is_off("janitor_identity") && scan::lives(identity.pid);
        let child = if by_number { Standing::Same } else { standing(identity) };
        if child.has_ended() || owner == Standing::Elsewhere || child == Standing::Elsewhere {
            continue;
        }
        let inode = identity.inode.is_some()
            && (by_number || ledger::inode_of(identity.pid) == identity.inode);
        let record = Recorded { row: row.clone(), owner, child, inode };
        // Of several rows with this number the one that is about this very process counts.
        let known =
            found.get(&identity.pid).is_some_and(|known: &Recorded| known.child == Standing::Same);
        if !known {
            found.insert(identity.pid, record);
        }
    }
    found
}

/// What is around the one that is judged.
struct Surroundings<'a> {
    snapshot: &'a Snapshot,
    /// This process and those above it.
    ours: HashSet<u32>,
    /// Owners that live.
    living: HashSet<Owner>,
    /// Below a guard; below a shim, or something that may outlive its owner.
    guarded: HashSet<u32>,
    shimmed: HashSet<u32>,
    /// When exempt jobs are over, by id; those that end by themselves only are not in it.
    expires: HashMap<String, u64>,
    /// Cgroups that were made for children of dead owners.
    cgroups: HashMap<String, Owner>,
    /// Cgroups in places of dead owners that no guard holds. Filled where a ledger can be read.
    deserted: HashMap<String, Owner>,
}

impl<'a> Surroundings<'a> {
    fn of(
        snapshot: &'a Snapshot,
        account: &Account,
        owners: &mut Owners<'_>,
        jobs: &[std::path::PathBuf],
    ) -> Self {
        let marks = snapshot.processes.values().filter_map(|seen| seen.marks.mark());
        let marked: HashSet<Owner> = marks.map(Mark::owner).collect();
        let mut living: HashSet<Owner> =
            marked.into_iter().filter(|owner| owners.standing(*owner) == Standing::Same).collect();
        let rows =
            account.rows.iter().filter_map(|row| Some((row, (row.owner.pid, row.owner.start?))));
        let mut cgroups = HashMap::new();
        for (row, owner) in rows {
            if snapshot.has(owner.0, owner.1) && owners.standing(owner) == Standing::Same {
                living.insert(owner);
                continue;
            }
            // One that it shares with its owner was made by somebody else, for more.
            let its = row.identity.as_ref().and_then(|identity| identity.cgroup.clone());
            let own = its.filter(|its| its.len() > 1 && Some(its) != row.owner.cgroup.as_ref());
            if let Some(own) = own.filter(|_| row.owner.cgroup.is_some()) {
                cgroups.insert(own, owner);
            }
        }
        let children = snapshot.children();
        let with = |wanted: fn(Role) -> bool| {
            let roots =
                snapshot.processes.values().filter(move |seen| seen.role.is_some_and(wanted));
            below(roots.map(|seen| seen.pid), &children)
        };
        Self {
            snapshot,
            ours: snapshot.ancestors().into_iter().collect(),
            living,
            guarded: with(|role| matches!(role, Role::Keeper | Role::Supervisor)),
            shimmed: &with(|role| role == Role::Shim)
                | &below(exempt_tops(snapshot, account), &children),
            expires: jobs.iter().flat_map(|dir| expiries(dir)).collect(),
            cgroups,
            deserted: HashMap::new(),
        }
    }

    /// Finds the places of dead owners whose guards are gone too. What stands inside a place that somebody still holds
    /// is left to whoever does.
    fn desert(&mut self, owners: &mut Owners<'_>) {
        let cgroups: HashSet<&String> =
            self.snapshot.processes.values().filter_map(|seen| seen.cgroup.as_ref()).collect();
        let mut deserted: HashMap<String, bool> = HashMap::new();
        let mut is_deserted = |place: &str| {
            let look =
                || containment::dir_of_cgroup(place).is_some_and(|dir| cgroup::is_deserted(&dir));
            *deserted.entry(place.to_owned()).or_insert_with(look)
        };
        for path in cgroups {
            let Some((place, around)) = cgroup::place_in(path) else { continue };
            let owner = (place.pid, place.start);
            let here = Some(place.namespace) == self.snapshot.namespace;
            if here
                && owners.standing(owner).has_ended()
                && is_deserted(&place.path)
                && around.iter().all(|around| is_deserted(around))
            {
                self.deserted.insert(path.clone(), owner);
            }
        }
    }

    fn kind(&self, seen: &Seen) -> Kind {
        let Seen { pid, uid, role, stat, .. } = seen;
        if *pid == 1 || *pid == 2 || stat.parent == 2 {
            Kind::System
        } else if self.ours.contains(pid) {
            Kind::Ours
        } else if *uid != self.snapshot.uid {
            Kind::OtherUser
        } else if role.is_some() {
            Kind::Guard
        } else if self.living.contains(&(*pid, stat.start)) {
            Kind::LivingOwner
        } else {
            Kind::Plain
        }
    }

    fn exempt(&self, seen: &Seen, row: Option<&Row>) -> Exempt {
        let now = crate::ledger::unix_now();
        let until = |expires: Option<u64>| match expires {
            Some(at) if at <= now => Exempt::OverByClock,
            Some(_) | None => Exempt::Yes,
        };
        if self.shimmed.contains(&seen.pid) {
            return Exempt::Yes;
        }
        if let Some(id) = seen.marks.exempt() {
            return until(self.expires.get(id).copied());
        }
        match row.map(|row| &row.policy) {
            Some(Policy::Exempt { expires, .. }) => until(*expires),
            Some(Policy::Owned) | None => Exempt::No,
        }
    }
}

/// Processes of rows that may outlive their owner, without an end.
fn exempt_tops<'a>(
    snapshot: &'a Snapshot,
    account: &'a Account,
) -> impl Iterator<Item = u32> + use<'a> {
    account.rows.iter().filter_map(|row| {
        let Policy::Exempt { expires: None, .. } = row.policy else { return None };
        let its = row.identity.as_ref()?;
        let here = its.boot == snapshot.boot && its.namespace == snapshot.namespace;
        (here && snapshot.has(its.pid, its.start?)).then_some(its.pid)
    })
}

fn expiries(dir: &Path) -> Vec<(String, u64)> {
    let jobs = exempt::list_exempt(dir).unwrap_or_default();
    let expiry = |job: ExemptJob| {
        let at = job.expires()?.duration_since(std::time::UNIX_EPOCH).ok()?;
        Some((job.id().to_owned(), u64::try_from(at.as_millis()).unwrap_or(u64::MAX)))
    };
    jobs.into_iter().flatten().filter_map(expiry).collect()
}

/// Everybody below some, themselves not.
fn below(roots: impl Iterator<Item = u32>, children: &HashMap<u32, Vec<u32>>) -> HashSet<u32> {
    let mut found = HashSet::new();
    let mut next: Vec<u32> = roots.collect();
    while let Some(pid) = next.pop() {
        let new = children.get(&pid).into_iter().flatten().filter(|child| found.insert(**child));
        next.extend(new.copied().collect::<Vec<_>>());
    }
    found
}

/// The verdict about a process, with the facts and the owner that these are about. `None` where nothing connects it
/// with anybody.
fn judge(
    around: &Surroundings<'_>,
    owners: &mut Owners<'_>,
    seen: &Seen,
    record: Option<&Recorded>,
    above: Option<&Found>,
) -> Option<(Verdict, Facts, Identity)> {
    let mark = seen.marks.mark().map(Mark::owner);
    let cgroup = seen.cgroup.as_ref().and_then(|cgroup| around.cgroups.get(cgroup)).copied();
    let deserted = seen.cgroup.as_ref().and_then(|cgroup| around.deserted.get(cgroup)).copied();
    // Nearest word first: its own record, who stands above it, what it bears, where it is.
    let whose = match (record, above) {
        (Some(record), _) => record.row.owner.clone(),
        (None, Some(above)) => above.owner.clone(),
        (None, None) => owners.identity(deserted.or(mark).or(cgroup)?),
    };
    let judged = (whose.pid, whose.start?);
    let owner = match (record, above) {
        (Some(record), _) => record.owner,
        (None, Some(_)) => owners.standing(judged),
        // The name of a place says in which pid namespace its owner was, and that is ours.
        (None, None) if deserted == Some(judged) => owners.standing(judged),
        // The number in a mark counts where whoever bears it was started.
        (None, None) => match (seen.namespace, around.snapshot.namespace) {
            (Some(its), Some(ours)) if its == ours => owners.standing(judged),
            (Some(_), Some(_)) => Standing::Elsewhere,
            (None, _) | (_, None) => Standing::Unknown,
        },
    };
    let marked = match (&seen.marks, mark) {
        (scan::Marks::Unreadable, _) => Marked::Unreadable,
        (scan::Marks::Read { .. }, None) => Marked::No,
        (_, Some(mark)) if around.living.contains(&mark) => Marked::Living,
        (_, Some(mark)) if mark == judged => Marked::Same,
        (_, Some(mark)) if owners.standing(mark).has_ended() => Marked::OtherDead,
        (_, Some(_)) => Marked::OtherUnknown,
    };
    let facts = Facts {
        kind: around.kind(seen),
        record: record.map(|record| record.child),
        inode: record.is_some_and(|record| record.inode),
        owner,
        guarded: around.guarded.contains(&seen.pid) || owners.is_guarded(judged),
        exempt: around.exempt(seen, record.map(|record| &record.row)),
        marked,
        below: above.is_some(),
        cgroup: cgroup == Some(judged),
        deserted: deserted == Some(judged),
    };
    Some((grade(&facts), facts, whose))
}

fn proofs(facts: &Facts, owner: &Identity) -> Vec<Proof> {
    let mut proofs = Vec::new();
    proofs.extend(
        facts
            .record
            .map(|standing| Proof::Record { same: standing == Standing::Same, inode: facts.inode }),
    );
    if facts.below {
        proofs.push(Proof::Below);
    }
    match facts.marked {
        Marked::Same => proofs.push(Proof::Mark),
        Marked::OtherDead | Marked::OtherUnknown => proofs.push(Proof::OtherMark),
        Marked::Unreadable => proofs.push(Proof::NoLook),
        Marked::No | Marked::Living => {}
    }
    if facts.deserted {
        proofs.push(Proof::Deserted);
    } else if facts.cgroup {
        proofs.push(Proof::Cgroup);
    }
    if facts.exempt == Exempt::OverByClock {
        proofs.push(Proof::ExpiredByClock);
    }
    proofs.push(if facts.owner.has_ended() { Proof::OwnerDead } else { Proof::OwnerUnknown });
    debug_assert!(owner.pid > 0, "owners are processes");
    proofs
}

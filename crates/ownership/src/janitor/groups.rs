//! Cgroups that guards made for owners that are dead, in which nobody is: found, and removed when told so. Guards remove
//! those of their own pid namespace that they meet at their start; what an owner left that was number 1 of a namespace that
//! is gone, or beside which nobody starts any more, stays until somebody looks.

use std::collections::HashSet;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

use super::EmptyGroup;
use crate::cgroup::{self, Grave};
use crate::containment;
use crate::ration::Controller;
use crate::sight::scan::Snapshot;

/// The pid namespace of the first process of the system (`PROC_PID_INIT_INO`): who is in it sees everybody.
const FIRST_NAMESPACE: u64 = 0xEFFF_FFFC;

/// Where guards of this place make them: the cgroup of version 2, and those of version 1 for limits.
fn bases() -> Vec<PathBuf> {
    let mut bases: Vec<_> = containment::cgroup_of_guards().dir.into_iter().collect();
    for controller in Controller::ALL {
        bases.extend(containment::group_v1(controller.word()).flatten());
    }
    bases.sort();
    bases.dedup();
    bases
}

/// Those that are there. Of an owner of this namespace nobody has number and start time; of another one nobody is in that
/// namespace, and everybody is seen.
pub(super) fn look(snapshot: &Snapshot) -> Vec<EmptyGroup> {
    let found: Vec<_> = bases().iter().flat_map(|base| cgroup::empty(base)).collect();
    let foreign = found.iter().any(|(_, grave)| Some(grave.namespace) != snapshot.namespace);
    let populated = if foreign { populated(snapshot) } else { None };
    let dead = found
        .into_iter()
        .filter(|(_, grave)| is_dead(grave, snapshot.namespace, populated.as_ref()));
    let named = dead.map(|(dir, Grave { pid, start, namespace, .. })| EmptyGroup {
        dir,
        owner_pid: pid,
        owner_start: start,
        owner_namespace: (Some(namespace) != snapshot.namespace).then_some(namespace),
    });
    named.collect()
}

/// Whether the owner of an empty place has certainly ended; `populated` are the namespaces in which somebody lives, where
/// that is known of all.
fn is_dead(grave: &Grave, own: Option<u64>, populated: Option<&HashSet<u64>>) -> bool {
    Some(grave.namespace) == own
        || populated.is_some_and(|populated| !populated.contains(&grave.namespace))
}

/// The pid namespaces in which somebody lives; `None` where somebody may live who is not seen, or is not looked into.
fn populated(snapshot: &Snapshot) -> Option<HashSet<u64>> {
    if !snapshot.whole || snapshot.namespace != Some(FIRST_NAMESPACE) {
        return None;
    }
    let mut found = HashSet::new();
    // Number 1 is in ours, and may not be looked into.
    for (pid, seen) in snapshot.processes.iter().filter(|(pid, _)| **pid != 1) {
        match fs::metadata(format!("/proc/{pid}/ns/pid")) {
            Ok(namespace) => {
                found.insert(namespace.ino());
            }
            // It has ended, or is another user's, whose owners have places of that user's.
            Err(_) if seen.stat.is_dead() || seen.uid != snapshot.uid => {}
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(_) => return None,
        }
    }
    Some(found)
}

/// Removes it, if it still is what was found. Whether it is gone.
pub(super) fn remove(group: &EmptyGroup) -> bool {
    cgroup::remove_empty(&group.dir)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every pair of where the owner was and what is known of namespaces.
    #[test]
    fn an_owner_is_dead_only_where_that_is_seen() {
        let grave = |namespace| Grave { path: String::new(), pid: 1, start: 2, namespace };
        let (one, none) = (HashSet::from([7, 8]), HashSet::from([7]));
        for (namespace, own, populated, dead) in [
            (7, Some(7), None, true),
            (7, Some(7), Some(&one), true),
            (8, Some(7), None, false),
            (8, Some(7), Some(&one), false),
            (8, Some(7), Some(&none), true),
            (8, None, None, false),
        ] {
            assert_eq!(is_dead(&grave(namespace), own, populated), dead, "{namespace} {own:?}");
        }
    }
}

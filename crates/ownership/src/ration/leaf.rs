//! The rule that only leaves have processes, as a decision: a cgroup of version 2 can hand a controller on to what is
//! inside of it only when no process stands in it directly. The root of the hierarchy alone is free of that.

use std::fs;
use std::path::Path;

use super::{Controller, Lack};
use crate::sys::Pid;

/// A cgroup of version 2 of which something is wanted, as its files say.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Own {
    /// It is the root of the hierarchy.
    pub(crate) is_root: bool,
    /// Controllers that it has.
    pub(crate) has: Vec<String>,
    /// Those that it hands on.
    pub(crate) hands_on: Vec<String>,
    /// Who stands in it directly.
    pub(crate) inside: Vec<Pid>,
}

/// What is to be done so that a controller is handed on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Way {
    /// Nothing: it is.
    Already,
    /// It only has to be said.
    AtOnce,
    /// Whoever stands in it moves into a leaf first.
    AfterLeaf,
}

impl Own {
    pub(crate) fn read(dir: &Path) -> Self {
        let text = |name: &str| fs::read_to_string(dir.join(name)).unwrap_or_default();
        let words = |text: String| text.split_ascii_whitespace().map(str::to_owned).collect();
        // One of another pid namespace is written as 0: somebody, and nobody's whom we could move.
        let inside = text("cgroup.procs").lines().filter_map(|pid| pid.parse().ok()).collect();
        Self {
            // Every other one has this file.
            is_root: !dir.join("cgroup.type").exists(),
            has: words(text("cgroup.controllers")),
            hands_on: words(text("cgroup.subtree_control")),
            inside,
        }
    }

    /// What is to be done for this controller, where these processes may be moved.
    pub(crate) fn way(
        &self,
        controller: &str,
        is_ours: impl Fn(Pid) -> bool,
    ) -> Result<Way, Refusal> {
        let names = |list: &[String]| list.iter().any(|name| name == controller);
        if names(&self.hands_on) {
            return Ok(Way::Already);
        }
        if !names(&self.has) {
            return Err(Refusal::NotThere);
        }
        if self.is_root || self.inside.is_empty() {
            return Ok(Way::AtOnce);
        }
        match self.inside.iter().filter(|pid| !is_ours(**pid)).count() {
            0 => Ok(Way::AfterLeaf),
            others => Err(Refusal::Others(others)),
        }
    }
}

/// Why a controller cannot be handed on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// The cgroup has no such controller.
    NotThere,
    /// So many stand in it that are not ours.
    Others(usize),
}

impl Refusal {
    /// In the words of the decision. `known` says whether the hierarchy has that controller at all.
    pub(crate) fn lack(self, controller: Controller, known: bool) -> Lack {
        match self {
            Self::NotThere if known => Lack::NotHandedOn(controller),
            Self::NotThere => Lack::NoController(controller),
            Self::Others(count) => Lack::Others(count),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Files as the kernel shows them (Documentation/admin-guide/cgroup-v2.rst).
    fn tree(root: bool, has: &str, hands_on: &str, inside: &[Pid]) -> Own {
        let dir = tempfile::tempdir().expect("dir");
        let write = |name: &str, text: String| fs::write(dir.path().join(name), text).expect(name);
        if !root {
            write("cgroup.type", "domain\n".into());
        }
        write("cgroup.controllers", format!("{has}\n"));
        write("cgroup.subtree_control", format!("{hands_on}\n"));
        write("cgroup.procs", inside.iter().map(|pid| format!("{pid}\n")).collect());
        Own::read(dir.path())
    }

    /// Every pair of what the files say and who may be moved.
    #[test]
    fn what_is_to_be_done_is_decided_by_the_files() {
        let ours = |pid: Pid| (10..20).contains(&pid);
        for root in [false, true] {
            for (inside, free) in [
                (&[][..], Ok(Way::AtOnce)),
                (&[10, 11], Ok(Way::AfterLeaf)),
                (&[10, 99], Err(Refusal::Others(1))),
                (&[0, 99], Err(Refusal::Others(2))),
            ] {
                let way = |has, on| tree(root, has, on, inside).way("memory", ours);
                let named = format!("root {root}, {inside:?}");
                let free = if root { Ok(Way::AtOnce) } else { free };
                assert_eq!(way("cpu memory pids", ""), free, "{named}");
                assert_eq!(way("cpu memory pids", "pids"), free, "{named}");
                assert_eq!(way("cpu memory", "memory"), Ok(Way::Already), "{named}");
                assert_eq!(way("cpu pids", ""), Err(Refusal::NotThere), "{named}");
                // A name that contains the other is another one.
                assert_eq!(way("memory_x", ""), Err(Refusal::NotThere), "{named}");
            }
        }
    }

    #[test]
    fn a_refusal_says_whether_the_controller_is_elsewhere() {
        let memory = Controller::Memory;
        assert_eq!(Refusal::NotThere.lack(memory, true), Lack::NotHandedOn(memory));
        assert_eq!(Refusal::NotThere.lack(memory, false), Lack::NoController(memory));
        assert_eq!(Refusal::Others(3).lack(memory, false), Lack::Others(3));
    }
}

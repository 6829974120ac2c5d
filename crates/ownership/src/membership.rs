//! Who belongs to a scope: the group of its root, and everything below its root and its orphans.
//!
//! A walk is a picture of a moving thing. It finds whom to signal; that nothing is left is known only
//! from the kernel's ECHILD ([`crate::supervisor`]). Descendants are read from
//! `/proc/PID/task/*/children`; where the kernel lacks these, from the parents of all processes.

use std::collections::{HashMap, HashSet, VecDeque};
use std::fs;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::io::Errno;

use crate::hook;
use crate::identity::{Handle, Stat};
use crate::sys::{Pid, signal};

/// A process that a walk has met.
#[derive(Debug, Clone)]
pub(crate) struct Member {
    pub(crate) pid: Pid,
    pub(crate) stat: Stat,
}

/// Number and start time.
pub(crate) type Identity = (Pid, u64);

impl Member {
    pub(crate) fn identity(&self) -> Identity {
        (self.pid, self.stat.start)
    }

    /// A handle of it, if it still is the process that was met.
    pub(crate) fn hold(&self) -> Option<OwnedFd> {
        Handle::open(self.pid, &self.stat).map(Handle::into_fd)
    }

    /// Sends these signals, if it still is the process that was met.
    pub(crate) fn send(&self, signals: &[i32]) {
        if let Some(handle) = Handle::open(self.pid, &self.stat) {
            for number in signals {
                // Gone between opening and sending, or of another user: nothing to be done here.
                let _ = signal::send(handle.fd(), *number);
            }
        }
    }
}

/// The children of one process, each thread's. One that had a single thread when it was looked at is asked for that
/// one's: whom a thread starts that began since is met by the next look, as with everything that moves. What stands still
/// was looked at when it did.
fn children(pid: Pid, threads: u32) -> Vec<Pid> {
    let mut children = if threads == 1 {
        let list = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"));
        list.map_or_else(|_| Vec::new(), |list| numbers(&list))
    } else {
        let Ok(tasks) = fs::read_dir(format!("/proc/{pid}/task")) else { return Vec::new() };
        let lists =
            tasks.filter_map(|task| fs::read_to_string(task.ok()?.path().join("children")).ok());
        lists.flat_map(|list| numbers(&list)).collect::<Vec<_>>()
    };
    // A long list is mostly of dead ones; the newest are the ones that move.
    children.reverse();
    children
}

/// It is not known how many threads there are.
#[cfg(feature = "ledger")]
const MANY: u32 = 0;

fn numbers(list: &str) -> Vec<Pid> {
    list.split_ascii_whitespace().filter_map(|number| number.parse().ok()).collect()
}

/// How descendants are found on this kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Source {
    /// `children` files (`CONFIG_PROC_CHILDREN`).
    Lists,
    /// A scan of all processes.
    Scan,
}

impl Source {
    pub(crate) fn probe() -> Self {
        let has_lists = Path::new("/proc/thread-self/children").exists() && !hook::is_off("lists");
        if has_lists { Self::Lists } else { Self::Scan }
    }

    /// The children of each of these.
    #[cfg(feature = "ledger")]
    pub(crate) fn children_of(self, parents: &[Pid]) -> Vec<(Pid, Vec<Pid>)> {
        let table = if self == Self::Scan { scan().unwrap_or_default() } else { HashMap::new() };
        let of = |pid: &Pid| match self {
            Self::Lists => (*pid, children(*pid, MANY)),
            Self::Scan => (*pid, table.get(pid).cloned().unwrap_or_default()),
        };
        parents.iter().map(of).collect()
    }

    /// The children of this process. Complete: only a reap takes anybody off the list, and only one thread
    /// reaps.
    ///
    /// # Errors
    /// When it cannot be read, for instance for want of descriptors: then nothing is known.
    pub(crate) fn own_children(self) -> io::Result<Vec<Pid>> {
        match self {
            // Each thread has a list: in a test program the guard is not the first one, and orphans come to
            // that.
            Self::Lists => {
                // One descriptor at a time: there may be only one left.
                let tasks = fs::read_dir("/proc/self/task")?.map(|task| Ok(task?.path()));
                let tasks = tasks.collect::<io::Result<Vec<_>>>()?;
                let mut all = Vec::new();
                for task in tasks {
                    all.extend(numbers(&fs::read_to_string(task.join("children"))?));
                }
                Ok(all)
            }
            Self::Scan => Ok(scan()?.remove(&crate::identity::own_pid()).unwrap_or_default()),
        }
    }

    /// `roots` and everything below them, as far as it is alive. Each is given to `meet` before its
    /// children are read: what stands still by then has no others later. Roots are children of ours that
    /// are not reaped; any other number may be a stranger's by the time that it is looked at, but a
    /// stranger's parent is nobody who was met.
    pub(crate) fn walk(
        self,
        roots: impl IntoIterator<Item = Pid>,
        mut meet: impl FnMut(&Member),
    ) -> Vec<Member> {
        let table = if self == Self::Scan { scan().unwrap_or_default() } else { HashMap::new() };
        let mut met: HashSet<Pid> = HashSet::new();
        let mut next: VecDeque<(Pid, bool)> = roots.into_iter().map(|pid| (pid, true)).collect();
        let mut members = Vec::new();
        while let Some((pid, pinned)) = next.pop_front() {
            // The dead have no children: these were handed on before.
            let look = |met: &HashSet<Pid>| {
                let stat = Stat::read(pid).filter(|stat| !stat.is_dead())?;
                (pinned || met.contains(&stat.parent)).then_some(stat)
            };
            if met.contains(&pid) {
                continue;
            }
            let Some(stat) = look(&met) else { continue };
            met.insert(pid);
            let (start, threads) = (stat.start, stat.threads);
            let member = Member { pid, stat };
            meet(&member);
            let below = match self {
                Self::Lists => children(pid, threads),
                Self::Scan => table.get(&pid).cloned().unwrap_or_default(),
            };
            // Read under a number that may have been handed on meanwhile.
            if pinned || look(&met).is_some_and(|now| now.start == start) {
                next.extend(below.into_iter().map(|pid| (pid, false)));
            }
            members.push(member);
        }
        members
    }
}

/// All processes by their parents.
fn scan() -> io::Result<HashMap<Pid, Vec<Pid>>> {
    // One that vanishes meanwhile is no error; without its own entry nothing can be read.
    fs::metadata("/proc/self/stat")?;
    let mut table: HashMap<Pid, Vec<Pid>> = HashMap::new();
    for entry in fs::read_dir("/proc")? {
        let Some(pid) = entry?.file_name().to_str().and_then(|name| name.parse::<Pid>().ok())
        else {
            continue;
        };
        if let Some(stat) = Stat::read(pid) {
            table.entry(stat.parent).or_default().push(pid);
        }
    }
    Ok(table)
}

/// Members that were stopped, in rounds.
#[derive(Debug, Default)]
pub(crate) struct Stopped {
    known: HashSet<Identity>,
    members: Vec<Member>,
}

impl Stopped {
    /// Stops what stands below `roots` and was not stopped before. Whether there was anybody.
    pub(crate) fn round(&mut self, source: Source, roots: Vec<Pid>) -> bool {
        let before = self.members.len();
        source.walk(roots, |member| {
            if self.known.insert(member.identity()) {
                member.send(&[libc::SIGSTOP]);
                self.members.push(member.clone());
            }
        });
        self.members.len() > before
    }

    /// All that were stopped; some may be gone.
    pub(crate) fn members(self) -> Vec<Member> {
        self.members
    }
}

/// A group that may be signalled: led by a child of ours that is not reaped, so that its number
/// cannot be anybody else's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ProcessGroup {
    leader: Pid,
}

/// Groups that are never signalled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Protected {
    /// The supervisor's own group.
    pub(crate) own: Pid,
    /// The owner's group.
    pub(crate) owner: Pid,
}

impl ProcessGroup {
    /// `None` for what must not be signalled: everything (-1), the own group (0), init's, the
    /// supervisor's and the owner's.
    pub(crate) fn led_by(leader: Pid, protected: Protected) -> Option<Self> {
        let safe = leader > 1 && leader != protected.own && leader != protected.owner;
        safe.then_some(Self { leader })
    }

    /// Signals the group through its leader's handle where the kernel can (6.9), else by number.
    pub(crate) fn send(self, leader: Option<BorrowedFd<'_>>, number: i32) -> Result<(), Errno> {
        match leader.map_or(Err(Errno::INVAL), |leader| signal::send_group(leader, number)) {
            Err(Errno::INVAL) => signal::send_group_number(self.leader, number),
            other => other,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unsafe_groups_cannot_be_written_down() {
        let protected = Protected { own: 50, owner: 60 };
        for refused in [i32::MIN, -1, 0, 1, 50, 60] {
            assert_eq!(ProcessGroup::led_by(refused, protected), None, "{refused}");
        }
        assert!(ProcessGroup::led_by(51, protected).is_some());
    }

    #[test]
    fn both_sources_see_the_same_tree() {
        let mut child = std::process::Command::new("sleep");
        #[expect(clippy::disallowed_methods, reason = "a child of the test itself")]
        let mut child = child.arg("60").spawn().expect("sleep");
        let pid = child.id().cast_signed();
        for source in [Source::Lists, Source::Scan] {
            let members = source.walk([crate::identity::own_pid()], |_| ());
            assert!(members.iter().any(|member| member.pid == pid), "{source:?}");
        }
        child.kill().expect("kill");
        child.wait().expect("wait");
    }
}

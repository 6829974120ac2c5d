//! What a process has of its scope's ration by itself: its nice value, limits that the kernel keeps for each process,
//! and groups of version 1, which nothing can be born in. For [`super::start`], between clone and exec, and for a
//! copy of a template, which its supervisor burdens before it goes on.

use std::os::fd::OwnedFd;

use rustix::io::Errno;
use rustix::process::{Resource, Rlimit};

use super::Pid;

/// Seconds of processor time from SIGXCPU until KILL.
const CPU_GRACE: u64 = 5;

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Burden {
    /// The nice value itself.
    pub(crate) nice: Option<i32>,
    /// Bytes of private memory that it may write to (RLIMIT_DATA).
    pub(crate) data: Option<u64>,
    /// Open descriptors.
    pub(crate) open_files: Option<u64>,
    /// Seconds of processor time.
    pub(crate) cpu: Option<u64>,
    /// `cgroup.procs` of the groups that it joins.
    pub(crate) groups: Vec<OwnedFd>,
}

impl Burden {
    /// On this process itself. Plain system calls on memory that was prepared: async-signal-safe.
    pub(super) fn shoulder(&self) -> Result<(), Errno> {
        for group in &self.groups {
            // 0 is whoever writes.
            rustix::io::write(group, b"0")?;
        }
        self.set(None)
    }

    /// On a child that does nothing yet.
    pub(crate) fn lay_on(&self, child: Pid) -> Result<(), Errno> {
        let pid = rustix::process::Pid::from_raw(child).ok_or(Errno::SRCH)?;
        for group in &self.groups {
            rustix::io::write(group, child.to_string().as_bytes())?;
        }
        self.set(Some(pid))
    }

    fn set(&self, pid: Option<rustix::process::Pid>) -> Result<(), Errno> {
        let Self { nice, data, open_files, cpu, groups: _ } = self;
        if let Some(nice) = nice {
            rustix::process::setpriority_process(pid, *nice)?;
        }
        let limits = [
            (Resource::Data, *data, 0),
            (Resource::Nofile, *open_files, 0),
            (Resource::Cpu, *cpu, CPU_GRACE),
        ];
        for (resource, soft, grace) in limits {
            let Some(soft) = soft else { continue };
            let hard = rustix::process::getrlimit(resource).maximum;
            let most = |value: u64| hard.map_or(value, |hard| value.min(hard));
            let limit = Rlimit {
                current: Some(most(soft)),
                maximum: Some(most(soft.saturating_add(grace))),
            };
            rustix::process::prlimit(pid, resource, limit)?;
        }
        Ok(())
    }

    /// What a process that is started for this one has of it, as if this one had started it.
    pub(crate) fn of_parent(parent: Pid) -> Self {
        let text = std::fs::read_to_string(format!("/proc/{parent}/limits")).unwrap_or_default();
        let nice = |pid| rustix::process::getpriority_process(pid).ok();
        let theirs = rustix::process::Pid::from_raw(parent).and_then(|pid| nice(Some(pid)));
        Self {
            nice: theirs.filter(|theirs| nice(None).is_some_and(|ours| *theirs > ours)),
            data: soft_limit(&text, "Max data size"),
            open_files: soft_limit(&text, "Max open files"),
            cpu: soft_limit(&text, "Max cpu time"),
            groups: Vec::new(),
        }
    }
}

/// A soft limit in `/proc/PID/limits`; `None` for none.
fn soft_limit(text: &str, name: &str) -> Option<u64> {
    let rest = text.lines().find_map(|line| line.strip_prefix(name))?;
    rest.split_ascii_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_read_as_the_kernel_writes_them() {
        let text = "Limit                     Soft Limit           Hard Limit           Units     \n\
                    Max cpu time              7                    12                   seconds   \n\
                    Max data size             unlimited            unlimited            bytes     \n";
        assert_eq!(soft_limit(text, "Max cpu time"), Some(7));
        assert_eq!(soft_limit(text, "Max data size"), None);
        assert_eq!(soft_limit(text, "Max open files"), None);
        let own = std::fs::read_to_string("/proc/self/limits").expect("limits");
        let files = rustix::process::getrlimit(Resource::Nofile).current;
        assert_eq!(soft_limit(&own, "Max open files"), files);
    }
}

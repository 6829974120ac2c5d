//! Keys of what one child may use of the machine ([`ownership::Ration`]), for [`super`].

use ownership::ration::{MOST_NICE, MOST_WEIGHT};

use super::{Id, KeyInfo, SECOND, Type, U32, seconds};

/// A worker that has less does not come up.
const LEAST_FILES: u64 = 32;

/// The kernel takes no more for one cgroup (`PID_MAX_LIMIT` on 64 bits, as in man 5 proc of `pid_max`).
pub(crate) const MOST_PROCESSES: u64 = 4_194_304;

/// Threads of a worker of our own, and one program that it starts.
const LEAST_PROCESSES: u64 = 8;

pub(super) const MAX_MEMORY: KeyInfo = KeyInfo {
    id: Id::MaxMemory,
    name: "max_memory",
    kind: Type::Bytes,
    default: "null",
    also: None,
    sensitive: false,
    about: "Memory of one child process and all that it starts; who needs more is ended, out of memory. Without a cgroup: of each process (RLIMIT_DATA). null: no limit.",
};

pub(super) const MAX_PROCESSES: KeyInfo = KeyInfo {
    id: Id::MaxProcesses,
    name: "max_processes",
    kind: Type::Count { min: LEAST_PROCESSES, max: MOST_PROCESSES, optional: true },
    default: "null",
    also: None,
    sensitive: false,
    about: "Processes and threads of one child process at once, its own among them; needs a cgroup (delegate doctor). null: no limit.",
};

pub(super) const MAX_OPEN_FILES: KeyInfo = KeyInfo {
    id: Id::MaxOpenFiles,
    name: "max_open_files",
    kind: Type::Count { min: LEAST_FILES, max: U32, optional: true },
    default: "null",
    also: None,
    sensitive: false,
    about: "Open descriptors of a child process and of each that it starts. null: as many as ours.",
};

pub(super) const MAX_CPU: KeyInfo = KeyInfo {
    id: Id::MaxCpu,
    name: "max_cpu_seconds",
    kind: seconds(SECOND, true),
    default: "null",
    also: None,
    sensitive: false,
    about: "Processor time of one child process and all that it starts, in whole seconds; without a cgroup of each process. null: no limit.",
};

pub(super) const CHILD_NICE: KeyInfo = KeyInfo {
    id: Id::ChildNice,
    name: "child_nice",
    kind: Type::Count { min: 0, max: MOST_NICE as u64, optional: true },
    default: "null",
    also: None,
    sensitive: false,
    about: "Added to the nice value of child processes and of what they start, so that this program goes first. null: the same as ours.",
};

pub(super) const CHILD_CPU_WEIGHT: KeyInfo = KeyInfo {
    id: Id::ChildCpuWeight,
    name: "child_cpu_weight",
    kind: Type::Count { min: 1, max: MOST_WEIGHT as u64, optional: true },
    default: "null",
    also: None,
    sensitive: false,
    about: "Share of processor time of one child process and all that it starts, where others want some too; 100 is everybody's. Without a cgroup it has no effect. null: 100.",
};

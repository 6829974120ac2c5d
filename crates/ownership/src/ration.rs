//! What a scope may use, and by what it is held to it, as a decision: from what was asked ([`Ration`]) and what
//! this machine offers ([`Offers`], seen by [`Offers::look`]) to a means for each limit, and why not a better one.
//!
//! Pure but for `look`. The module `cgroup` has the files, `supervisor_loop` acts, `sys` sets what a process
//! has by itself.

#[cfg(target_os = "linux")]
pub(crate) mod leaf;
#[cfg(target_os = "linux")]
mod look;

use std::fmt;
use std::time::Duration;

#[cfg(target_os = "linux")]
pub(crate) use look::{group_of_version_1, is_guard};

use crate::containment::Why;

/// Most that [`Ration::nice`] may add.
pub const MOST_NICE: u8 = 19;

/// Most that [`Ration::cpu_weight`] may be; the least is 1, and 100 is what a scope without one has.
pub const MOST_WEIGHT: u16 = 10_000;

/// What the processes of one scope may use together, and in which order they get time. `None` is no limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Hash)]
pub struct Ration {
    /// Bytes of memory, swapped out or not.
    pub memory: Option<u64>,
    /// Processes and threads at once.
    pub processes: Option<u64>,
    /// Open descriptors of each process.
    pub open_files: Option<u64>,
    /// Time on processors. Kept to the second, rounded up.
    pub cpu: Option<Duration>,
    /// What is added to the owner's nice value, up to [`MOST_NICE`]; the sum ends there too.
    pub nice: Option<u8>,
    /// Share of processor time beside others that want some, from 1 to [`MOST_WEIGHT`].
    pub cpu_weight: Option<u16>,
}

impl Ration {
    /// Whether nothing is asked for.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// The limits and wishes that are asked for.
    pub fn asked(&self) -> impl Iterator<Item = Limit> {
        let Self { memory, processes, open_files, cpu, nice, cpu_weight } = *self;
        let asked = [
            memory.is_some(),
            processes.is_some(),
            open_files.is_some(),
            cpu.is_some(),
            nice.is_some(),
            cpu_weight.is_some(),
        ];
        Limit::ALL.into_iter().zip(asked).filter_map(|(limit, asked)| asked.then_some(limit))
    }

    /// Whether it binds a scope as a whole, so that what is started in that is bound too.
    #[cfg(target_os = "linux")]
    pub(crate) fn binds_a_tree(&self) -> bool {
        self.memory.is_some()
            || self.processes.is_some()
            || self.cpu.is_some()
            || self.cpu_weight.is_some()
    }

    /// Whole seconds of processor time.
    #[cfg(target_os = "linux")]
    pub(crate) fn cpu_seconds(&self) -> Option<u64> {
        let up = |time: Duration| time.as_secs() + u64::from(time.subsec_nanos() > 0);
        self.cpu.map(|time| up(time).max(1))
    }
}

/// One part of a [`Ration`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Limit {
    /// [`Ration::memory`].
    Memory,
    /// [`Ration::processes`].
    Processes,
    /// [`Ration::open_files`].
    OpenFiles,
    /// [`Ration::cpu`].
    Cpu,
    /// [`Ration::nice`].
    Nice,
    /// [`Ration::cpu_weight`].
    CpuWeight,
}

impl Limit {
    /// All of them.
    pub const ALL: [Self; 6] =
        [Self::Memory, Self::Processes, Self::OpenFiles, Self::Cpu, Self::Nice, Self::CpuWeight];

    /// The word for it.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::Processes => "processes",
            Self::OpenFiles => "open_files",
            Self::Cpu => "cpu_seconds",
            Self::Nice => "nice",
            Self::CpuWeight => "cpu_weight",
        }
    }

    /// The controller of cgroups that can hold it.
    #[must_use]
    pub const fn controller(self) -> Option<Controller> {
        match self {
            Self::Memory => Some(Controller::Memory),
            Self::Processes => Some(Controller::Pids),
            Self::CpuWeight => Some(Controller::Cpu),
            Self::OpenFiles | Self::Cpu | Self::Nice => None,
        }
    }
}

/// A controller of cgroups that a limit may need.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Controller {
    /// Memory.
    Memory,
    /// Processes and threads.
    Pids,
    /// Processor time.
    Cpu,
}

impl Controller {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Memory, Self::Pids, Self::Cpu];

    /// The kernel's word for it.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::Pids => "pids",
            Self::Cpu => "cpu",
        }
    }
}

/// By what a limit is held.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Means {
    /// The scope's cgroup of version 2: for all of its processes together.
    CgroupV2,
    /// A cgroup of version 1 for it: for all of its processes together.
    CgroupV1,
    /// The guard counts what its cgroup has used, and each process has a limit of its own beside (RLIMIT_CPU).
    Counted,
    /// A limit of each process (`setrlimit`), which those that it starts inherit.
    EachProcess,
    /// The nice value, which those that it starts inherit.
    Priority,
}

impl Means {
    /// The word for it.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::CgroupV2 => "cgroup v2",
            Self::CgroupV1 => "cgroup v1",
            Self::Counted => "counted in its cgroup",
            Self::EachProcess => "rlimit of each process",
            Self::Priority => "nice value",
        }
    }
}

/// Why a means cannot be had.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Lack {
    /// A scope has no cgroup of version 2 here.
    NoCell(Why),
    /// That hierarchy has no such controller; one of version 1 may have it.
    NoController(Controller),
    /// It has, but it was not handed on to our own cgroup.
    NotHandedOn(Controller),
    /// Our own cgroup can hand it on only when no process stands in it, and so many stand there that are not ours to
    /// move.
    Others(usize),
    /// The kernel refused.
    Refused {
        /// Which step.
        step: &'static str,
        /// The error number.
        errno: i32,
    },
    /// No hierarchy of version 1 has this controller.
    NotInVersion1(Controller),
    /// Our own cgroup of version 1 is not below its mount.
    OutOfSight,
    /// No cgroup can be made in our own one of version 1.
    NotWritable(i32),
    /// There is no limit of a process that means this.
    NoSuchLimit(Limit),
}

impl fmt::Display for Lack {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let error = |errno: i32| std::io::Error::from_raw_os_error(errno);
        match self {
            Self::NoCell(why) => write!(f, "cgroup v2: {why}"),
            Self::NoController(which) => {
                write!(f, "cgroup v2 has no {} controller here", which.word())
            }
            Self::NotHandedOn(which) => write!(
                f,
                "cgroup v2: the {} controller is not handed on to our cgroup (systemd: Delegate=yes)",
                which.word()
            ),
            Self::Others(count) => write!(
                f,
                "cgroup v2: {count} other process(es) stand in our cgroup, which can hand controllers on only \
                 when it is empty (start in one of your own: systemd-run --user --scope -p Delegate=yes)"
            ),
            Self::Refused { step, errno } => write!(f, "cgroup v2: {step}: {}", error(*errno)),
            Self::NotInVersion1(which) => {
                write!(f, "cgroup v1 has no {} controller here", which.word())
            }
            Self::OutOfSight => f.write_str("cgroup v1: our cgroup is not below its mount"),
            Self::NotWritable(errno) => {
                write!(f, "cgroup v1: none can be made in ours: {}", error(*errno))
            }
            Self::NoSuchLimit(Limit::Processes) => f.write_str(
                "RLIMIT_NPROC counts all processes of the user, and not those of root: no limit of one child",
            ),
            Self::NoSuchLimit(limit) => {
                write!(f, "no limit of a process means {}", limit.word())
            }
        }
    }
}

/// What is offered for one controller.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Offer {
    /// The cgroup of version 2 that a scope gets has it, or can have.
    pub v2: Result<(), Lack>,
    /// A group of version 1 can be made for it.
    pub v1: Result<(), Lack>,
}

/// What this machine offers for limits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Offers {
    /// Memory, processes, processor time: as [`Controller::ALL`].
    pub controllers: [Offer; 3],
    /// A scope has a cgroup of version 2, which counts processor time without any controller.
    pub counts: Result<(), Lack>,
    /// Controllers are handed on only after the owner and its guards have moved into a leaf of our own cgroup.
    pub needs_leaf: bool,
}

/// By what one limit is held, and why not by what is better.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Held {
    /// The limit.
    pub limit: Limit,
    /// `None`: it cannot be held here.
    pub means: Option<Means>,
    /// What would be better, and why it cannot be had.
    pub not: Vec<Lack>,
}

impl Offers {
    /// What is offered for a controller.
    #[must_use]
    pub fn of(&self, controller: Controller) -> &Offer {
        &self.controllers[controller as usize]
    }

    /// By what a limit is held here.
    #[must_use]
    pub fn decide(&self, limit: Limit) -> Held {
        let mut not = Vec::new();
        let means = match (limit.controller(), limit) {
            (Some(controller), _) => {
                let Offer { v2, v1 } = self.of(controller);
                let tried = [(Means::CgroupV2, v2), (Means::CgroupV1, v1)];
                let mut found = None;
                for (means, offered) in tried {
                    match offered {
                        Ok(()) => {
                            found = Some(means);
                            break;
                        }
                        Err(lack) => not.push(lack.clone()),
                    }
                }
                found.or_else(|| {
                    if limit == Limit::Memory {
                        return Some(Means::EachProcess);
                    }
                    not.push(Lack::NoSuchLimit(limit));
                    None
                })
            }
            (None, Limit::Cpu) => Some(match &self.counts {
                Ok(()) => Means::Counted,
                Err(lack) => {
                    not.push(lack.clone());
                    Means::EachProcess
                }
            }),
            (None, Limit::Nice) => Some(Means::Priority),
            (None, _) => Some(Means::EachProcess),
        };
        Held { limit, means, not }
    }
}

/// Systems without ownership have nothing of it.
#[cfg(not(target_os = "linux"))]
impl Offers {
    /// What this process sees.
    #[must_use]
    pub fn look(_asked: crate::containment::Containment) -> Self {
        let offer = |which| Offer {
            v2: Err(Lack::NoCell(Why::NotMounted)),
            v1: Err(Lack::NotInVersion1(which)),
        };
        Self {
            controllers: Controller::ALL.map(offer),
            counts: Err(Lack::NoCell(Why::NotMounted)),
            needs_leaf: false,
        }
    }
}

#[cfg(test)]
#[path = "ration_tests.rs"]
mod tests;
